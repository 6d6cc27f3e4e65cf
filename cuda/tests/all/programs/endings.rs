//! A dropped allocator has waited for the work that uses its memory: the driver may be slow to take memory
//! back, and the work must be over when it does.

use larder_cuda::driver::Rule;
use larder_cuda::{Context, DeviceAllocator};

use crate::common::{self, MIB, alone, assert_clean};
use crate::programs::run::streams;

/// Operations queued when the allocator is dropped.
const QUEUED: u64 = 100;

/// The fate of the block whose memory is still used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Freed,
    FreedOnSeveral,
    Live,
}

#[test]
fn a_dropped_allocator_has_waited_for_what_was_freed() {
    for fate in [Fate::Freed, Fate::FreedOnSeveral] {
        drop_under_work(fate);
    }
}

/// "That waits for the streams", says the allocator: for blocks that were not freed too.
#[test]
fn a_dropped_allocator_has_waited_for_blocks_that_were_not_freed() {
    drop_under_work(Fate::Live);
}

fn drop_under_work(fate: Fate) {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..5 {
        let context = Context::new(0).unwrap();
        {
            let memory = DeviceAllocator::new(&context).unwrap();
            let streams = streams(&context, 2).unwrap();
            let block = memory.alloc(&streams[0], MIB).unwrap();
            memory.order_after(&streams[1], &streams[0]).unwrap();
            control.schedule_deferred(seed);
            for step in 0..QUEUED {
                for (place, stream) in streams.iter().enumerate() {
                    let at = block.addr().get() + place as u64 * 4096;
                    common::fill(stream, at, 4096, step as u8);
                }
            }
            // The stream that the rest of the work is on need not be one that allocated.
            match fate {
                Fate::Freed => memory.free(&streams[1], block).unwrap(),
                Fate::FreedOnSeveral => memory.free_used_on(&streams, block).unwrap(),
                Fate::Live => drop(block),
            }
            // On the stand-in an unmap waits for the device, which would hide a missing wait.
            control
                .fail(Rule::of("cuMemUnmap").times(u64::MAX))
                .unwrap();
            drop(memory);
            let last = if fate == Fate::FreedOnSeveral { 0 } else { 1 };
            for stream in &streams[last..] {
                assert_eq!(context.is_done(stream), Ok(true), "{fate:?}, seed {seed}");
            }
            control.clear_failures();
            control.schedule_eagerly();
            context.synchronize().unwrap();
        }
        assert_eq!(context.settle(), 0);
        drop(context);
        assert_clean(control);
    }
}
