//! The limit of one pool is set ten thousand times.

use larder_core::limits::LimitAnswer;
use larder_cuda::{Context, DeviceAllocator};

use super::common::{MIB, alone_and_clean, ran_in_child};
use super::{plain, stream};

/// Returns the sizes of the allocator's tables, none of which may grow.
fn table_sizes(memory: &DeviceAllocator) -> [usize; 4] {
    let snapshot = memory.snapshot();
    let pages = snapshot.pages;
    [
        snapshot.chunks.len(),
        pages.handles as usize,
        (pages.active_mappings + pages.cached_mappings) as usize,
        pages.address_bytes as usize,
    ]
}

#[test]
fn am_3_ten_thousand_limits_leave_the_tables_as_large_as_they_were() {
    if ran_in_child() {
        return;
    }
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queue = stream(&context);
        let kept = memory.alloc(&queue, 3 * MIB).unwrap();
        let mut after_first = None;
        for round in 0..10_000_u32 {
            let blocks = [5 * MIB, 2 * MIB].map(|bytes| memory.alloc(&queue, bytes).unwrap());
            for block in blocks {
                memory.free(&queue, block).unwrap();
            }
            let answer = memory.set_limit(MIB);
            assert_eq!(answer, LimitAnswer::Deferred { bytes: 3 * MIB });
            assert_eq!(control.used(0), 4 * MIB, "round {round}");
            assert_eq!(memory.set_limit(u64::MAX), LimitAnswer::Applied);
            let now = table_sizes(&memory);
            assert_eq!(now, *after_first.get_or_insert(now), "round {round}");
        }
        memory.free(&queue, kept).unwrap();
    });
}
