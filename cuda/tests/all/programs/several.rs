//! A block that several streams use, one of which the allocator cannot order.

use larder_cuda::{Context, DeviceAllocator, DeviceConfig};

use crate::common::{self, MIB, alone, assert_clean};
use crate::programs::run::streams;

/// The thread's own default stream is waited for on the host; the other one must be waited for too.
#[test]
fn a_block_is_kept_for_all_its_streams_though_the_first_has_no_stream_id() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..5 {
        let context = Context::new(0).unwrap();
        {
            let config = DeviceConfig::with_budget(4 * MIB);
            let memory = DeviceAllocator::with_config(&context, config).unwrap();
            let streams = streams(&context, 2).unwrap();
            let own = context.cudarc().per_thread_stream();
            let block = memory.alloc(&streams[0], 3 * MIB).unwrap();
            control.schedule_deferred(seed);
            for step in 0..20 {
                common::fill(&streams[0], block.addr().get(), 4096, step);
            }
            memory
                .free_used_on(&[own, streams[0].clone()], block)
                .unwrap();
            let block = memory.alloc(&streams[1], 3 * MIB).unwrap();
            common::fill(&streams[1], block.addr().get(), 4096, 9);
            memory.free(&streams[1], block).unwrap();
            context.synchronize().unwrap();
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
    }
}
