//! Steps on streams: inputs are allocated and freed at any point of a step.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::Block;
use larder_cuda::{Context, DeviceAllocator};

use crate::common::{MIB, fill, together};

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

/// Frees the input of a step. The first stream is the step's, the second one the copies'.
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

/// Allocates an input of 4 KiB, which is written on the copies' stream and from here on read on the step's.
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
            // Some inputs are freed before the step's end, and some after it.
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
