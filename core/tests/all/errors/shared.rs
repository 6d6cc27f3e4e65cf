//! Errors and answers of `Shared`, the allocator behind a lock, are those of the `RegionPool`.

use super::ranged;
use crate::common::{GIB, KIB, MIB, Source, point, table};
use larder_core::{
    AllocError, BestFit, BlockAllocator, Cause, EventNumber, FreeError, RegionPool, Request, Shared,
};

#[test]
fn the_shared_allocator_gives_the_same_errors_and_answers() {
    let source = Source::contiguous();
    source.capacity_bytes.set(128 * KIB);
    let bfc = RegionPool::new(ranged(GIB), table(64)).expect("a good configuration");
    let allocator: Shared<RegionPool<'_>, _> = Shared::new(bfc, source);
    let check = || allocator.with(|bfc| bfc.check_invariants()).expect("sound");
    assert_eq!(allocator.alloc(&Request::new(0)), Err(AllocError::ZeroSize));
    let block = allocator.alloc(&Request::new(1000)).expect("room").block;
    check();
    assert_eq!(allocator.requested_bytes(&block), Some(1000));
    assert_eq!(allocator.allocation_id(&block), Some(1));
    let error = allocator.alloc(&Request::new(MIB)).expect_err("no room");
    check();
    assert!(matches!(error, AllocError::OutOfMemory(out) if out.cause == Cause::SubAllocator));
    let far = point(1, EventNumber::WINDOW + 1);
    let rejected = allocator.free_after(block, far).expect_err("too far");
    assert_eq!(rejected.error, FreeError::EventTooFar);
    allocator
        .free_after(rejected.value, point(1, 9))
        .expect("near");
    check();
    assert_eq!(allocator.trim(), 0, "still used");
    allocator.complete(larder_core::StreamId::new(1), EventNumber::new(9));
    assert_eq!(allocator.pool_stats().stable_bytes, 0);
    assert_eq!(allocator.adjust(0), 0);
    check();
    assert_eq!(
        (
            allocator.stats().reserved_bytes,
            allocator.source().out_bytes()
        ),
        (0, 0)
    );
}
