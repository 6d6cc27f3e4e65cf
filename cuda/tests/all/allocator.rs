//! Memory in the order of streams: in any order that the device chooses, every block keeps its bytes, and
//! no two uses of the same memory overlap in time.

use crate::common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::{MIB, alone, alone_and_clean, apart, assert_clean, ran_in_child, streams, together};
use cudarc::driver::CudaStream;
use larder_core::limits::LimitAnswer;
use larder_core::{Align, AllocError, Block, GrowRequest, SubAllocator};
use larder_cuda::driver::Rule;
use larder_cuda::{
    Context, DeviceAllocError, DeviceAllocator, DeviceConfig, DriverError, PinnedConfig,
    PinnedMemory,
};
use larder_cuda_abi::Code;
use larder_model::Random;

fn fill(stream: &CudaStream, block: &Block, value: u8) {
    common::fill(stream, block.addr().get(), block.bytes(), value);
}

/// Returns the contents of a block, read in the order of its stream.
fn read(stream: &CudaStream, block: &Block) -> Vec<u8> {
    common::read(stream, block.addr().get(), block.bytes())
}

#[test]
fn memory_comes_back_at_once_on_its_stream() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let memory = DeviceAllocator::new(&context).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let block = memory.alloc(&stream, 3 * MIB).unwrap();
    fill(&stream, &block, 7);
    let at = block.addr();
    memory.free(&stream, block).unwrap();
    let held = memory.stats().reserved_bytes;
    let block = memory.alloc(&stream, 3 * MIB).unwrap();
    assert_eq!(block.addr(), at);
    assert_eq!(memory.requested_bytes(&block), Some(3 * MIB));
    assert_eq!(memory.stats().reserved_bytes, held);
    fill(&stream, &block, 9);
    assert_eq!(read(&stream, &block), vec![9; block.bytes() as usize]);
    memory.free(&stream, block).unwrap();
}

/// Eight times its memory would be more addresses than the core counts.
#[test]
fn a_device_of_any_size_has_an_allocator() {
    alone_and_clean(|control| {
        control.reset(2, 500 << 30);
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let block = memory.alloc(&stream, 300 << 30).unwrap();
        memory.free(&stream, block).unwrap();
        drop(memory);
        let config = DeviceConfig {
            address_bytes: 2 << 40,
            ..DeviceConfig::new()
        };
        let error = DeviceAllocator::with_config(&context, config).unwrap_err();
        let size = DriverError::Size { bytes: 2 << 40 };
        assert_eq!(error, DeviceAllocError::Driver(size));
    });
}

#[test]
fn a_steady_state_calls_no_driver() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        {
            let memory = DeviceAllocator::new(&context).unwrap();
            let streams = streams(&context, 2);
            let step = || {
                for stream in &streams {
                    let blocks: Vec<_> = (1..20)
                        .map(|index| memory.alloc(stream, index * 100_000).unwrap())
                        .collect();
                    for block in blocks {
                        memory.free(stream, block).unwrap();
                    }
                }
                memory.end_step();
            };
            for _ in 0..3 {
                step();
            }
            control.reset_calls();
            for _ in 0..10 {
                step();
            }
            let calls = control.call_table();
            let memory_calls =
                |(name, _): &&(String, u64)| name.starts_with("cuMem") || name == "cuEventCreate";
            assert_eq!(calls.iter().find(memory_calls), None, "{calls:?}");
        }
    });
}

#[test]
fn another_stream_waits_on_the_device_and_not_on_the_host() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        {
            // So little that the second stream must take what the first one freed.
            let memory =
                DeviceAllocator::with_config(&context, DeviceConfig::with_budget(4 * MIB)).unwrap();
            let streams = streams(&context, 2);
            let block = memory.alloc(&streams[0], 3 * MIB).unwrap();
            control.schedule_deferred(1);
            fill(&streams[0], &block, 7);
            memory.free(&streams[0], block).unwrap();
            control.reset_calls();
            let block = memory.alloc(&streams[1], 3 * MIB).unwrap();
            let calls = |name| control.calls(Some(name));
            assert_eq!(calls("cuEventRecord"), 1);
            assert_eq!(calls("cuStreamWaitEvent"), 1);
            assert_eq!(calls("cuEventSynchronize"), 0);
            fill(&streams[1], &block, 9);
            assert_eq!(read(&streams[1], &block), vec![9; block.bytes() as usize]);
            // What was waited for once is not waited for again.
            let addr = block.addr();
            memory.free(&streams[1], block).unwrap();
            control.reset_calls();
            let block = memory.alloc(&streams[1], 3 * MIB).unwrap();
            assert_eq!(block.addr(), addr);
            assert_eq!(calls("cuStreamWaitEvent"), 0);
            memory.free(&streams[1], block).unwrap();
        }
    });
}

struct Live {
    block: Block,
    stream: usize,
    value: u8,
}

/// Streams of a program.
const STREAMS: usize = 3;

/// Room for what a program reads.
const ROOM: u64 = 1 << 16;

/// A random program over several streams. The bytes of each block are looked at when it is freed.
struct Program {
    memory: DeviceAllocator,
    streams: Vec<Arc<CudaStream>>,
    live: VecDeque<Live>,
    /// Where what is read goes, and what it must be.
    results: PinnedMemory,
    to: u64,
    expected: Vec<u8>,
}

impl Program {
    fn new(context: &Context, config: DeviceConfig) -> Self {
        let results = PinnedMemory::with_config(context, PinnedConfig::default());
        let wish = GrowRequest {
            bytes: ROOM,
            align: Align::ONE,
            at: None,
        };
        Self {
            memory: DeviceAllocator::with_config(context, config).unwrap(),
            streams: streams(context, STREAMS),
            live: VecDeque::new(),
            to: results.grow(wish).unwrap().start().get(),
            results,
            expected: Vec::new(),
        }
    }

    fn run(mut self, seed: u64) {
        let mut random = Random::new(seed);
        for step in 0..60 {
            let stream = random.index(STREAMS);
            let bytes = 1 + random.below([4000, MIB, 5 * MIB][step % 3]);
            self.alloc(stream, bytes, 1 + random.below(250) as u8);
            while self.live.len() > 6 || random.below(3) == 0 {
                if !self.free() {
                    break;
                }
            }
            if random.below(16) == 0 {
                self.memory.end_step();
                self.memory.release(2 * MIB);
            }
        }
        while self.free() {}
        for stream in &self.streams {
            stream.synchronize().unwrap();
        }
        assert!(self.expected.len() as u64 <= ROOM && self.results.held_bytes() >= ROOM);
        let start: *const u8 = std::ptr::with_exposed_provenance(self.to as usize);
        // SAFETY: pinned memory that holds so many bytes, and no work uses it any more.
        let seen = unsafe { std::slice::from_raw_parts(start, self.expected.len()) };
        assert_eq!(seen, self.expected, "seed {seed}");
    }

    /// A block, filled; or where there is no room, one block less.
    fn alloc(&mut self, stream: usize, bytes: u64, value: u8) {
        match self.memory.alloc(&self.streams[stream], bytes) {
            Ok(block) => {
                fill(&self.streams[stream], &block, value);
                self.live.push_back(Live {
                    block,
                    stream,
                    value,
                });
            }
            Err(DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(_),
                ..
            }) => assert!(self.free(), "an empty allocator is full"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads the ends of the oldest block, in its stream's order, and frees it from there on.
    fn free(&mut self) -> bool {
        let Some(live) = self.live.pop_front() else {
            return false;
        };
        let stream = &self.streams[live.stream];
        let first = live.block.addr().get();
        for from in [first, first + live.block.bytes() - 1] {
            let to = self.to + self.expected.len() as u64;
            // SAFETY: both ends are memory that the driver knows; `results` outlives the copy.
            let code =
                unsafe { cudarc::driver::sys::cuMemcpyAsync(to, from, 1, stream.cu_stream()) };
            assert_eq!(code as u32, 0);
            self.expected.push(live.value);
        }
        self.memory.free(stream, live.block).unwrap();
        true
    }
}

#[test]
fn any_order_of_the_device_keeps_every_blocks_bytes() {
    if ran_in_child() {
        return;
    }
    alone_and_clean(|control| {
        for seed in 0..common::rounds(300) {
            let context = Context::new(0).unwrap();
            control.schedule_deferred(seed);
            let config = match seed % 3 {
                0 => DeviceConfig::new(),
                1 => DeviceConfig::with_budget(24 * MIB),
                _ => DeviceConfig {
                    limit_bytes: 16 * MIB,
                    ..DeviceConfig::new()
                },
            };
            Program::new(&context, config).run(seed);
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
            control.schedule_eagerly();
        }
    });
}

#[test]
fn any_refused_call_leaves_every_block_as_it_is() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for skip in 0..400 {
        let context = Context::new(0).unwrap();
        {
            let Ok(memory) =
                DeviceAllocator::with_config(&context, DeviceConfig::with_budget(16 * MIB))
            else {
                panic!("nothing was refused yet");
            };
            let streams = streams(&context, 2);
            control.fail(Rule::any().after(skip)).unwrap();
            let mut blocks = Vec::new();
            for step in 0..40_usize {
                let stream = step % 2;
                match memory.alloc(&streams[stream], (1 + step as u64 % 5) * MIB) {
                    Ok(block) => blocks.push((stream, block)),
                    Err(DeviceAllocError::Memory { .. } | DeviceAllocError::Driver(_)) => {}
                    Err(other) => panic!("{other}"),
                }
                if blocks.len() > 3 {
                    let (stream, block) = blocks.remove(0);
                    memory.free(&streams[stream], block).unwrap();
                }
            }
            control.clear_failures();
            for (stream, block) in blocks {
                memory.free(&streams[stream], block).unwrap();
            }
            let block = memory.alloc(&streams[0], 15 * MIB).unwrap();
            memory.free(&streams[0], block).unwrap();
        }
        drop(context);
        assert_clean(control);
    }
}

/// Two streams that swap what little there is, with the driver refusing some of the waits.
#[test]
fn a_refused_wait_leaves_memory_with_the_stream_that_used_it() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..50 {
        let context = Context::new(0).unwrap();
        {
            let config = DeviceConfig::with_budget(4 * MIB);
            let memory = DeviceAllocator::with_config(&context, config).unwrap();
            let streams = streams(&context, 2);
            control.schedule_deferred(seed);
            let mut refused = 0;
            for step in 0..20_usize {
                let stream = &streams[step / 2 % 2];
                if step % 4 == 2 {
                    control.fail(Rule::of("cuStreamWaitEvent")).unwrap();
                }
                match memory.alloc(stream, 3 * MIB) {
                    Ok(block) => {
                        fill(stream, &block, 7);
                        memory.free(stream, block).unwrap();
                    }
                    Err(error) => {
                        assert!(matches!(error, DeviceAllocError::Driver(_)), "{error}");
                        refused += 1;
                    }
                }
                control.clear_failures();
            }
            assert!(refused > 0);
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
    }
}

#[test]
fn a_captured_stream_gets_no_new_memory() {
    let _turn = apart();
    let context = Context::new(0).unwrap();
    let memory = DeviceAllocator::new(&context).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    stream.begin_capture(mode).unwrap();
    let error = memory.alloc(&stream, MIB).unwrap_err();
    assert_eq!(error, DeviceAllocError::Capturing);
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream captures; the handle outlives the call.
    let code =
        unsafe { cudarc::driver::sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    assert_eq!(code as u32, 0);
    // SAFETY: the graph was made just now.
    unsafe { cudarc::driver::sys::cuGraphDestroy(graph) };
}

#[test]
fn what_does_not_fit_is_an_error_with_the_drivers_word() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let DeviceAllocError::Memory { reason, driver } =
            memory.alloc(&stream, 2 << 30).unwrap_err()
        else {
            panic!("not for lack of memory");
        };
        assert!(matches!(reason, AllocError::OutOfMemory(_)));
        let Some(DriverError::Call { code, .. }) = driver else {
            panic!("the driver refused");
        };
        assert_eq!(code, Code::OUT_OF_MEMORY);
    });
}

#[test]
fn more_than_the_whole_device_has_is_said_to_be_so() {
    alone_and_clean(|control| {
        control.reset(1, 16 << 30);
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        // Within the reserved addresses, and beyond them.
        for bytes in [20_000_000_000, 200_000_000_000] {
            let said = memory.alloc(&stream, bytes).unwrap_err().to_string();
            let words = [
                "whole device has 16 GiB (17,179,869,184 bytes)",
                "[no limit, ",
            ];
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        assert_eq!(memory.set_limit(64 << 20), LimitAnswer::Applied);
        let said = memory
            .alloc(&stream, 200_000_000_000)
            .unwrap_err()
            .to_string();
        assert!(said.contains("64 MiB (67,108,864 bytes)"), "{said}");
    });
}

/// The default stream of any context has the same handle, and so has each thread's own default
/// stream: what one frees must not go to the other without a wait.
#[test]
fn a_stream_that_could_be_another_one_is_refused() {
    alone_and_clean(|control| {
        let (context, other) = (Context::new(0).unwrap(), Context::new(1).unwrap());
        let memory = DeviceAllocator::new(&context).unwrap();
        let ours = context.cudarc().default_stream();
        let block = memory.alloc(&ours, MIB).unwrap();
        let refused = Err(DeviceAllocError::Stream);
        assert_eq!(memory.alloc(&other.cudarc().default_stream(), MIB), refused);
        assert_eq!(
            memory.alloc(&other.cudarc().new_stream().unwrap(), MIB),
            refused
        );
        let per_thread = context.cudarc().per_thread_stream();
        assert_eq!(memory.alloc(&per_thread, MIB), refused);

        // A free waits for it.
        control.schedule_deferred(3);
        fill(&per_thread, &block, 1);
        memory.free(&per_thread, block).unwrap();
        assert_eq!(context.is_done(&per_thread), Ok(true));
        let block = memory.alloc(&ours, MIB).unwrap();
        fill(&ours, &block, 2);
        memory.free(&ours, block).unwrap();
        context.synchronize().unwrap();
        control.schedule_eagerly();
    });
}
