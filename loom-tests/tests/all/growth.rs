//! Models the growth of `RegionPool`, during which its lock is not held: requested bytes count against the limit
//! (BFC7), even while the limit is lowered, and no released range is granted.

use larder_core::sync::Spin;
use larder_core::{
    Addr, AddrRange, BestFit, BlockAllocator, FixedRange, Progress, RegionAttempt, RegionPlan,
    RegionPool, Request, Shared, SubAllocator,
};
use loom::sync::Arc;

use crate::explore::{model, spawn};
use crate::regions::{Allocator, Gives, UNIT, alloc, allocator, check, pool};

#[test]
fn two_growing_threads_never_hold_more_than_the_limit() {
    model(|| {
        let allocator = allocator(3 * UNIT, 3 * UNIT, Gives::Apart);
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, 2 * UNIT));
        let mine = alloc(&allocator, 2 * UNIT);
        let theirs = thread.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "there is room for one");
        check(&allocator);
    });
}

#[test]
fn a_block_freed_meanwhile_serves_or_the_growth_does() {
    model(|| {
        let allocator = allocator(2 * UNIT, 2 * UNIT, Gives::Apart);
        let first = alloc(&allocator, UNIT).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || other.free(first).unwrap());
        let mine = alloc(&allocator, UNIT).unwrap();
        thread.join().unwrap();
        check(&allocator);
        allocator.free(mine).unwrap();
        check(&allocator);
    });
}

#[test]
fn l6_after_a_lowered_limit_nothing_is_held_above_it_and_no_released_region_is_given() {
    model(|| {
        let allocator = allocator(8 * UNIT, 3 * UNIT, Gives::Apart);
        // Regions of one and two units; the second is free.
        let first = alloc(&allocator, UNIT).unwrap();
        let second = alloc(&allocator, 2 * UNIT).unwrap();
        allocator.free(second).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT + 1));
        allocator.adjust(UNIT);
        let theirs = thread.join().unwrap();
        check(&allocator);
        let stats = allocator.stats();
        assert_eq!(stats.limit_bytes, UNIT);
        // Either the region was released, or the other thread's block keeps it.
        assert_eq!(stats.reserved_bytes > UNIT, theirs.is_some());
        if let Some(block) = theirs {
            assert!(!allocator.source().has_released(block.range()));
            allocator.free(block).unwrap();
            assert_eq!(allocator.adjust(UNIT), 0);
        }
        allocator.free(first).unwrap();
        check(&allocator);
    });
}

#[test]
fn one_range_growing_for_two_threads_holds_what_both_need_and_no_more_than_the_limit() {
    model(|| {
        let allocator = allocator(4 * UNIT, 4 * UNIT, Gives::Once);
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT + 1));
        let mine = alloc(&allocator, UNIT + 1).expect("four units hold both");
        let theirs = thread.join().unwrap().expect("four units hold both");
        assert!(!mine.range().overlaps(theirs.range()));
        check(&allocator);
        allocator.free(mine).unwrap();
        allocator.free(theirs).unwrap();
        allocator.trim();
        assert_eq!(allocator.stats().reserved_bytes, 0);
        check(&allocator);
    });
}

#[test]
fn the_end_of_a_range_cut_off_while_another_thread_grows_it_is_never_given() {
    model(|| {
        let allocator = allocator(8 * UNIT, 8 * UNIT, Gives::Once);
        let first = alloc(&allocator, 1).unwrap();
        let end = alloc(&allocator, 2 * UNIT).unwrap();
        allocator.free(end).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, 3 * UNIT));
        allocator.adjust(4 * UNIT);
        let theirs = thread.join().unwrap();
        assert_eq!(allocator.stats().limit_bytes, 4 * UNIT);
        if let Some(block) = theirs {
            assert!(!allocator.source().has_released(block.range()));
            allocator.free(block).unwrap();
        }
        check(&allocator);
        allocator.adjust(UNIT);
        assert_eq!(allocator.stats().reserved_bytes, UNIT);
        allocator.free(first).unwrap();
        check(&allocator);
    });
}

/// Creates an allocator over a source that grants released memory again at once.
fn allocator_over_range() -> Arc<Shared<RegionPool<'static>, FixedRange, Spin>> {
    let range = AddrRange::new(Addr::new(UNIT), 8 * UNIT).unwrap();
    Arc::new(Shared::new(pool(8 * UNIT), FixedRange::new(range)))
}

#[test]
fn what_one_thread_has_released_and_not_reported_another_one_may_get() {
    model(|| {
        let allocator = allocator_over_range();
        let block = allocator.alloc(&Request::new(UNIT)).unwrap().block;
        allocator.free(block).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || other.alloc(&Request::new(UNIT)).unwrap().block);
        allocator.trim();
        let theirs = thread.join().unwrap();
        let invariants = allocator.with(|bfc| bfc.check_invariants());
        assert_eq!(invariants, Ok(()));
        let held = allocator.stats().reserved_bytes;
        assert_eq!(held, allocator.source().used_bytes());
        allocator.free(theirs).unwrap();
        // Only the end of the range can be released, so two pieces may need two passes.
        allocator.trim();
        allocator.trim();
        assert_eq!(allocator.stats().reserved_bytes, 0);
        assert_eq!(allocator.source().used_bytes(), 0);
    });
}

/// The broken twin: growth adds its range without checking whether the range proves that a release is done.
#[test]
#[should_panic(expected = "Overlap")]
fn broken_twin_a_growth_that_proves_no_release_is_found() {
    model(|| {
        let allocator = allocator_over_range();
        let block = allocator.alloc(&Request::new(UNIT)).unwrap().block;
        allocator.free(block).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || {
            let mut attempt = RegionAttempt::new(Request::new(UNIT));
            if let Progress::Plan(RegionPlan::Grow(ticket)) =
                other.with(|bfc| bfc.advance(&mut attempt))
            {
                let request = ticket.request();
                other.with(|bfc| bfc.abort(ticket));
                let range = other.source().grow(request).unwrap();
                other.with(|bfc| bfc.add_region(range)).unwrap();
            }
        });
        allocator.trim();
        thread.join().unwrap();
    });
}

/// The broken twin of the tickets: requested bytes do not count during the request.
#[test]
#[should_panic(expected = "more is held than the limit allows")]
fn broken_twin_a_ticket_that_does_not_count_is_found() {
    fn alloc_uncounted(allocator: &Allocator, bytes: u64) {
        let mut attempt = RegionAttempt::new(Request::new(bytes));
        if let Progress::Plan(RegionPlan::Grow(ticket)) =
            allocator.with(|bfc| bfc.advance(&mut attempt))
        {
            let request = ticket.request();
            allocator.with(|bfc| bfc.abort(ticket));
            let range = allocator.source().grow(request).unwrap();
            allocator.with(|bfc| bfc.add_region(range)).unwrap();
        }
    }
    model(|| {
        let allocator = allocator(3 * UNIT, 3 * UNIT, Gives::Apart);
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc_uncounted(&other, 2 * UNIT));
        alloc_uncounted(&allocator, 2 * UNIT);
        thread.join().unwrap();
    });
}

/// The broken twin of releasing: blocks can be allocated in a region while it is released.
#[test]
#[should_panic(expected = "a released region was given")]
fn broken_twin_a_region_released_while_in_reach_is_found() {
    model(|| {
        let allocator = allocator(8 * UNIT, 8 * UNIT, Gives::Apart);
        let block = alloc(&allocator, UNIT).unwrap();
        allocator.free(block).unwrap();
        let other = Arc::clone(&allocator);
        let thread = spawn(move || alloc(&other, UNIT));
        if let Some(ticket) = allocator.with(|bfc| bfc.take_releasable(u64::MAX)) {
            let range = ticket.range();
            allocator.with(|bfc| bfc.release_refused(ticket));
            allocator.source().release(range).unwrap();
        }
        let theirs = thread.join().unwrap().unwrap().range();
        let gone = allocator.source().has_released(theirs);
        assert!(!gone, "a released region was given");
    });
}
