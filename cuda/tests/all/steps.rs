//! Steps of streams: known ones are served at planned places without any driver call, and in any order of
//! the device no two uses of the same memory conflict.

use crate::common;

use std::sync::Arc;

use common::{
    MIB, alone, alone_and_clean, assert_clean, assert_filled, fill, ran_in_child, together,
};
use cudarc::driver::CudaStream;
use larder_core::Block;
use larder_cuda::{Context, DeviceAllocator, DeviceConfig};

/// One step: blocks that overlap in time, filled and checked. Gives their addresses.
fn step(memory: &DeviceAllocator, stream: &Arc<CudaStream>, sizes: &[u64], value: u8) -> Vec<u64> {
    let _step = memory.step(stream).unwrap();
    let mut held: Vec<Block> = Vec::new();
    let mut addresses = Vec::new();
    for (index, bytes) in sizes.iter().enumerate() {
        let block = memory.alloc(stream, *bytes).unwrap();
        let value = value.wrapping_add(index as u8);
        fill(stream, block.addr().get(), block.bytes(), value);
        addresses.push(block.addr().get());
        held.push(block);
        if index % 3 == 2 {
            let block = held.remove(index % held.len());
            memory.free(stream, block).unwrap();
        }
    }
    for block in held {
        memory.free(stream, block).unwrap();
    }
    addresses
}

const SIZES: [u64; 8] = [
    3 * MIB,
    700_000,
    MIB,
    5 * MIB,
    100,
    2 * MIB + 1,
    900_000,
    4 * MIB,
];

#[test]
fn a_known_step_is_served_at_its_places_and_calls_no_driver() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        {
            // As in a release build.
            let config = DeviceConfig {
                check_captures: false,
                ..DeviceConfig::new()
            };
            let memory = DeviceAllocator::with_config(&context, config).unwrap();
            let stream = context.cudarc().new_stream().unwrap();
            assert_eq!(memory.step_stats(&stream), None);
            for _ in 0..3 {
                step(&memory, &stream, &SIZES, 1);
            }
            let places = step(&memory, &stream, &SIZES, 1);
            control.reset_calls();
            let before = memory.step_stats(&stream).unwrap();
            for _ in 0..10 {
                assert_eq!(step(&memory, &stream, &SIZES, 1), places);
            }
            let calls = control.call_table();
            let calls: Vec<_> = calls
                .iter()
                .filter(|(name, _)| !name.starts_with("cuMemset") && !name.starts_with("cuCtx"))
                .collect();
            assert!(calls.is_empty(), "{calls:?}");
            let after = memory.step_stats(&stream).unwrap();
            assert_eq!(after.known_steps - before.known_steps, 10);
            assert_eq!(after.hits - before.hits, 10 * SIZES.len() as u64);
            assert_eq!(after.misses, before.misses);
        }
    });
}

#[test]
fn a_step_inside_another_is_part_of_it() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let memory = DeviceAllocator::new(&context).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    for _ in 0..4 {
        let outer = memory.step(&stream).unwrap();
        step(&memory, &stream, &SIZES, 1);
        let block = memory.alloc(&stream, MIB).unwrap();
        memory.free(&stream, block).unwrap();
        drop(outer);
    }
    let stats = memory.step_stats(&stream).unwrap();
    assert_eq!((stats.steps, stats.known_steps), (4, 3));
}

/// Each stream has steps of its own, blocks of the one come to the other, and one block goes from
/// stream to stream.
#[test]
fn steps_of_several_streams_never_meet_in_memory() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..60 {
        let context = Context::new(0).unwrap();
        {
            control.schedule_deferred(seed);
            let memory = DeviceAllocator::new(&context).unwrap();
            let streams: Vec<_> = common::streams(&context, 3);
            let [first, second, third] = &streams[..] else {
                unreachable!()
            };
            for round in 0..6_u8 {
                let outer = memory.step(first).unwrap();
                let passed = memory.alloc(first, 2 * MIB).unwrap();
                fill(first, passed.addr().get(), passed.bytes(), round);
                // While a step of the first is under way, the second has one.
                step(&memory, second, &SIZES, 10);
                let kept = memory.alloc(first, 3 * MIB).unwrap();
                fill(first, kept.addr().get(), kept.bytes(), 77);
                memory.order_after(third, first).unwrap();
                let copy = memory.alloc(third, passed.bytes()).unwrap();
                // SAFETY: the test holds both blocks, which are so long.
                unsafe {
                    cudarc::driver::result::memcpy_dtod_async(
                        copy.addr().get(),
                        passed.addr().get(),
                        passed.bytes() as usize,
                        third.cu_stream(),
                    )
                }
                .unwrap();
                let both = [first.clone(), third.clone()];
                memory.free_used_on(&both, passed).unwrap();
                let other = memory.alloc(first, 2 * MIB).unwrap();
                fill(first, other.addr().get(), other.bytes(), 99);
                assert_filled(third, copy.addr().get(), copy.bytes(), round);
                assert_filled(first, kept.addr().get(), kept.bytes(), 77);
                memory.free(first, kept).unwrap();
                memory.free(first, other).unwrap();
                // Given back on a stream that it did not come from.
                memory.order_after(second, third).unwrap();
                memory.free(second, copy).unwrap();
                drop(outer);
                if round == 3 {
                    memory.release(u64::MAX);
                }
            }
            assert!(memory.step_stats(second).unwrap().hits > 0, "seed {seed}");
        }
        control.schedule_eagerly();
        drop(context);
        assert_clean(control);
    }
}

/// How the input of a step comes back, with the first stream the step's and the second the copies'.
type GiveBack = fn(&DeviceAllocator, &[Arc<CudaStream>; 2], Block);

const GIVE_BACK: [GiveBack; 4] = [
    |memory, [stream, copies], input| {
        memory.order_after(copies, stream).unwrap();
        memory.free(copies, input).unwrap();
    },
    |memory, [stream, _], input| memory.free(stream, input).unwrap(),
    |memory, streams, input| memory.free_used_on(streams, input).unwrap(),
    |memory, [stream, copies], input| {
        let streams = [copies.clone(), stream.clone()];
        memory.free_used_on(&streams, input).unwrap();
    },
];

/// An input of 4 KiB, written on the copies' stream and read on the step's from here on.
fn upload(memory: &DeviceAllocator, [stream, copies]: &[Arc<CudaStream>; 2]) -> Block {
    let input = memory.alloc(copies, 4096).unwrap();
    fill(copies, input.addr().get(), input.bytes(), 9);
    memory.order_after(stream, copies).unwrap();
    input
}

fn two_streams(context: &Context) -> [Arc<CudaStream>; 2] {
    [(); 2].map(|()| context.cudarc().new_stream().unwrap())
}

#[test]
fn a_small_input_of_a_copy_stream_before_each_step_leaves_one_layout() {
    let _turn = together();
    for give_back in GIVE_BACK {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let streams = two_streams(&context);
        for _ in 0..50 {
            let input = upload(&memory, &streams);
            step(&memory, &streams[0], &SIZES, 1);
            give_back(&memory, &streams, input);
        }
        let stats = memory.step_stats(&streams[0]).unwrap();
        assert_eq!((stats.layouts, stats.misses), (1, 0));
        // The first plan may need more than was held before the copies' stream had an arena.
        assert!(stats.rejected <= 1, "{stats:?}");
    }
}

#[test]
fn inputs_at_any_point_of_a_step_leave_one_layout_where_their_stream_keeps_a_small_buffer() {
    let _turn = together();
    for give_back in GIVE_BACK {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let streams = two_streams(&context);
        let mut kept = None;
        for round in 0..50 {
            let outer = memory.step(&streams[0]).unwrap();
            kept = kept.or_else(|| Some(memory.alloc(&streams[1], 256).unwrap()));
            // Some inputs come back before the step's end, and some after it.
            let (from, until) = (round * 5 % SIZES.len(), 2 + round * 3 % SIZES.len());
            let mut input = None;
            for (index, bytes) in SIZES.into_iter().enumerate() {
                if index == from {
                    input = Some(upload(&memory, &streams));
                }
                let block = memory.alloc(&streams[0], bytes).unwrap();
                if let Some(input) = input.take_if(|_| index >= until) {
                    give_back(&memory, &streams, input);
                }
                memory.free(&streams[0], block).unwrap();
            }
            drop(outer);
            if let Some(input) = input {
                give_back(&memory, &streams, input);
            }
        }
        let stats = memory.step_stats(&streams[0]).unwrap();
        assert_eq!((stats.layouts, stats.misses), (1, 0));
        assert!(stats.rejected <= 1, "{stats:?}");
        memory.free(&streams[1], kept.unwrap()).unwrap();
    }
}

#[test]
fn a_step_begins_with_what_the_other_streams_have_passed() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let memory = DeviceAllocator::new(&context).unwrap();
    let streams = two_streams(&context);
    for _ in 0..10 {
        let outer = memory.step(&streams[0]).unwrap();
        assert_eq!(memory.stats().live_bytes, 0);
        let input = upload(&memory, &streams);
        memory.free_used_on(&streams, input).unwrap();
        drop(outer);
    }
}
