//! Streams that are created and destroyed: all stream numbers are taken, or an owner destroys a stream without notice.

use crate::common;
use std::sync::Arc;

use common::graph::Graph;
use common::{MIB, alone, alone_and_clean, assert_clean, assert_filled, fill};
use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaStream, result};
use larder_cuda::{
    ArenaPolicy, Context, DeviceAllocError, DeviceAllocator, DeviceConfig, HostSide,
    StreamAllocator, VmemAllocator, VmemConfig,
};

/// Number of streams in an ordinary run; `LARDER_STREAMS` sets another.
const STREAMS: u64 = 1000;

const SEEDS: u64 = 20;

fn config() -> DeviceConfig {
    DeviceConfig {
        arenas: ArenaPolicy::Always,
        ..DeviceConfig::with_budget(8 * MIB)
    }
}

/// Creates a stream as another library would, and wraps it with cudarc.
fn borrowed(context: &Context) -> Arc<CudaStream> {
    context.cudarc().bind_to_thread().unwrap();
    let kind = result::stream::StreamKind::NonBlocking;
    let stream = result::stream::create(kind).unwrap();
    // SAFETY: the tests destroy the stream once they have forgotten it, or earlier, to see what a wrong program would
    // cause.
    unsafe { context.cudarc().wrap_borrowed_stream(stream) }
}

#[test]
fn streams_come_and_go_by_the_thousand() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let said = std::env::var("LARDER_STREAMS").ok();
    let streams = said.map_or(STREAMS, |number| number.parse().unwrap());
    for seed in [None, Some(1), Some(2)] {
        let context = Context::new(0).unwrap();
        {
            let device = DeviceAllocator::with_config(&context, config()).unwrap();
            let host = VmemConfig::new(HostSide::Pinned(4 * MIB));
            let both = VmemAllocator::new(&device, host).unwrap();
            if let Some(seed) = seed {
                control.schedule_deferred(seed);
            }
            for round in 0..streams {
                let stream = context.cudarc().new_stream().unwrap();
                let memory: &dyn StreamAllocator = match round % 3 {
                    0 => &both,
                    _ => &device,
                };
                let bytes = [1 << 10, 32 << 10, 3 * MIB][(round % 3) as usize];
                let block = memory.alloc_as(&stream, &larder_core::Request::new(bytes));
                let block = block.unwrap_or_else(|error| panic!("round {round}: {error}"));
                let (at, value) = (block.addr().get(), round as u8);
                fill(&stream, at, bytes, value);
                if round % 50 == 0 {
                    assert_filled(&stream, at, bytes, value);
                }
                memory.free(&stream, block).unwrap();
            }
            let alive = control.alive();
            let streams = alive.iter().find(|alive| alive.kind == "stream");
            let count = streams.map_or(0, |alive| alive.count);
            assert!(count < 256, "{count} streams are left");
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
    }
}

#[test]
fn a_stream_that_anybody_holds_keeps_its_number() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        {
            let memory = DeviceAllocator::with_config(&context, config()).unwrap();
            let held: Vec<_> = (0..256)
                .map(|_| {
                    let stream = context.cudarc().new_stream().unwrap();
                    memory.add_stream(&stream).unwrap();
                    stream
                })
                .collect();
            let one_more = context.cudarc().new_stream().unwrap();
            assert_eq!(memory.add_stream(&one_more), Err(DeviceAllocError::Streams));
            let step = memory.step(&held[0]).unwrap();
            let buffer = memory.zeros::<u8>(&held[1], 100).unwrap();
            drop(held);
            memory.add_stream(&one_more).unwrap();
            let handles: Vec<_> = memory.streams().iter().map(|stats| stats.stream).collect();
            assert_eq!(
                handles.len(),
                3,
                "of the step, of the buffer, and the new one"
            );
            drop((step, buffer));
            context.synchronize().unwrap();
        }
    });
}

#[test]
fn a_forgotten_stream_may_be_destroyed_and_its_handle_come_again() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..SEEDS {
        let context = Context::new(0).unwrap();
        {
            let memory = DeviceAllocator::with_config(&context, config()).unwrap();
            control.schedule_deferred(seed);
            for round in 0..20_u8 {
                let stream = borrowed(&context);
                let raw = stream.cu_stream();
                let block = memory.alloc(&stream, 3 * MIB).unwrap();
                fill(&stream, block.addr().get(), 4096, round);
                memory.free(&stream, block).unwrap();
                let clone = stream.clone();
                assert_eq!(
                    memory.forget_stream(clone),
                    Err(DeviceAllocError::StreamHeld)
                );
                memory.forget_stream(stream).unwrap();
                // SAFETY: created by `borrowed`, and no longer held.
                unsafe { result::stream::destroy(raw) }.unwrap();
            }
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
    }
}

/// Breaks the promise of `wrap_borrowed_stream`: the owner destroys the stream without notice. The driver gives its
/// handle to the next stream, which must not get memory that work of the old stream still uses.
#[test]
fn a_stream_destroyed_without_a_word_harms_nobody() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..SEEDS {
        let context = Context::new(0).unwrap();
        {
            let memory = DeviceAllocator::with_config(&context, config()).unwrap();
            control.schedule_deferred(seed);
            let other = context.cudarc().new_stream().unwrap();
            for round in 0..20_u8 {
                let stream = borrowed(&context);
                let block = memory.alloc(&stream, 3 * MIB).unwrap();
                fill(&stream, block.addr().get(), 4096, round);
                memory.free(&stream, block).unwrap();
                // SAFETY: created by `borrowed`; nothing is queued on it from here on.
                unsafe { result::stream::destroy(stream.cu_stream()) }.unwrap();
                let again = borrowed(&context);
                assert_eq!(
                    again.cu_stream(),
                    stream.cu_stream(),
                    "the handle is given again"
                );
                let block = memory.alloc(&again, 3 * MIB).unwrap();
                fill(&again, block.addr().get(), 4096, round);
                memory.free(&again, block).unwrap();
                // Other streams can have the memory of the destroyed stream too.
                let block = memory.alloc(&other, 7 * MIB).unwrap();
                memory.free(&other, block).unwrap();
                // SAFETY: created by `borrowed`; nothing is queued on it from here on.
                unsafe { result::stream::destroy(again.cu_stream()) }.unwrap();
            }
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
    }
}

/// While another stream is being captured, the allocator cannot wait for the work of the destroyed one.
#[test]
fn a_stream_destroyed_without_a_word_spoils_no_capture() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        {
            let memory = DeviceAllocator::with_config(&context, config()).unwrap();
            let capturing = context.cudarc().new_stream().unwrap();
            let written = memory.alloc(&capturing, MIB).unwrap();
            let stream = borrowed(&context);
            let block = memory.alloc(&stream, 3 * MIB).unwrap();
            memory.free(&stream, block).unwrap();
            // SAFETY: created by `borrowed`; nothing is queued on it from here on.
            unsafe { result::stream::destroy(stream.cu_stream()) }.unwrap();
            let again = borrowed(&context);
            assert_eq!(again.cu_stream(), stream.cu_stream());
            let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
            capturing.begin_capture(global).unwrap();
            let refused = memory.alloc(&again, 3 * MIB).unwrap_err();
            assert!(
                refused.to_string().contains("end the capture first"),
                "{refused}"
            );
            fill(&capturing, written.addr().get(), MIB, 1);
            drop(Graph::end_capture(&capturing).expect("a whole capture"));
            let block = memory.alloc(&again, 3 * MIB).unwrap();
            memory.free(&again, block).unwrap();
            memory.free(&capturing, written).unwrap();
            assert_eq!(control.findings(), Vec::<String>::new());
            drop(memory);
            // SAFETY: created by `borrowed`, and no longer in use.
            unsafe { result::stream::destroy(again.cu_stream()) }.unwrap();
        }
    });
}
