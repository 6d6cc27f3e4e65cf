//! A released range is given again before its release is reported: one thread has released it, and another thread's
//! growth gets the same addresses and is reported first.

use std::cell::{Cell, OnceCell};

use crate::common::{GIB, GIVEN_BASE, KIB, MIB, Pool, UNIT, contiguous, range, ranged, table};
use larder_core::{
    AddrRange, BestFit, Block, BlockAllocator, FixedRange, GrowRequest, GrowTicket, Progress,
    RegionAttempt, RegionError, RegionPool, ReleaseTicket, Request, Shared, SubAllocError,
    SubAllocator,
};

const START: u64 = GIVEN_BASE;

/// Returns a pool over one range that grows at its end.
fn pool() -> Pool {
    Pool::over(ranged(UNIT, GIB), contiguous(), 32)
}

#[track_caller]
fn leaving(pool: &mut Pool) -> ReleaseTicket {
    let ticket = pool.shared.get_mut().take_releasable(u64::MAX);
    ticket.expect("a free range")
}

/// Releases the free end of the range to the sub-allocator without reporting it to the pool.
#[track_caller]
fn released(pool: &mut Pool) -> ReleaseTicket {
    let ticket = leaving(pool);
    let taken = pool.source().release(ticket.range());
    taken.expect("it is the end");
    ticket
}

#[track_caller]
fn step_to_block(pool: &mut Pool, attempt: &mut RegionAttempt) -> Block {
    match pool.shared.get_mut().advance(attempt) {
        Progress::Ready(grant) => grant.block,
        step => panic!("a block was expected, not {step:?}"),
    }
}

fn given(pool: &Pool, growth: &GrowTicket) -> AddrRange {
    pool.source().grow(growth.request()).expect("room")
}

#[track_caller]
fn commit(pool: &mut Pool, growth: GrowTicket, given: AddrRange) {
    let committed = pool.shared.get_mut().commit(growth, given);
    committed.expect("the former range is gone");
    pool.check();
}

/// Expects a range that overlaps held memory to be refused.
#[track_caller]
fn overlaps(pool: &mut Pool, growth: GrowTicket, wrong: AddrRange) {
    let rejected = pool.shared.get_mut().commit(growth, wrong);
    let rejected = rejected.expect_err("a source that lies");
    assert_eq!(rejected.error, RegionError::Overlap);
    pool.check();
}

#[test]
fn a_whole_region_given_again_serves_and_the_late_report_is_void() {
    let mut pool = pool();
    let block = pool.alloc(UNIT);
    pool.free(block);
    let ticket = released(&mut pool);
    let mut attempt = RegionAttempt::new(Request::new(UNIT));
    let growth = pool.growth(&mut attempt);
    let given = given(&pool, &growth);
    assert!(given.overlaps(ticket.range()));
    commit(&mut pool, growth, given);
    let block = step_to_block(&mut pool, &mut attempt);
    pool.unchanged(|pool| pool.shared.get_mut().released(ticket));
    assert_eq!(pool.reserved_bytes(), pool.source().out_bytes());
    pool.free(block);
    pool.shared.trim();
    assert_eq!((pool.reserved_bytes(), pool.source().out_bytes()), (0, 0));
}

#[test]
fn the_end_of_a_range_given_again_joins_what_lies_in_front_of_it() {
    let mut pool = pool();
    let anchor = pool.alloc(UNIT);
    let end = pool.alloc(2 * UNIT);
    pool.free(end);
    let ticket = released(&mut pool);
    assert_eq!(ticket.range(), range(START + UNIT, 2 * UNIT));
    let mut attempt = RegionAttempt::new(Request::new(3 * UNIT));
    let growth = pool.growth(&mut attempt);
    let given = given(&pool, &growth);
    assert_eq!(given, range(START + UNIT, 3 * UNIT));
    commit(&mut pool, growth, given);
    pool.shared.get_mut().released(ticket);
    pool.check();
    let regions = pool.shared.get_mut().report().regions;
    assert_eq!(regions, 1, "the range goes on as one");
    let block = step_to_block(&mut pool, &mut attempt);
    assert_eq!(pool.reserved_bytes(), 4 * UNIT);
    pool.free_all([block, anchor]);
}

#[test]
fn several_ranges_given_again_as_one_are_all_gone() {
    // Three regions, one unit apart.
    let mut pool = pool();
    for (start, units) in [(0, 1), (2, 2), (5, 4)] {
        pool.add_region(START + start * UNIT, units * UNIT);
    }
    let tickets = [(); 3].map(|()| leaving(&mut pool));
    let mut attempt = RegionAttempt::new(Request::new(9 * UNIT));
    let growth = pool.growth(&mut attempt);
    let given = range(START, 9 * UNIT);
    assert!(tickets.iter().all(|ticket| given.overlaps(ticket.range())));
    commit(&mut pool, growth, given);
    for ticket in tickets {
        pool.shared.get_mut().released(ticket);
        pool.check();
    }
    assert_eq!(pool.reserved_bytes(), 9 * UNIT);
    let _block = step_to_block(&mut pool, &mut attempt);
}

#[test]
fn a_range_over_a_live_block_is_refused_although_it_lies_over_a_leaving_one_too() {
    let mut pool = pool();
    let live = pool.alloc(UNIT);
    let free = pool.alloc(2 * UNIT);
    pool.free(free);
    let ticket = leaving(&mut pool);
    let mut attempt = RegionAttempt::new(Request::new(3 * UNIT));
    let growth = pool.growth(&mut attempt);
    let wrong = range(START, growth.request().bytes);
    overlaps(&mut pool, growth, wrong);
    // The release is still under way.
    assert_eq!(pool.reserved_bytes(), 3 * UNIT);
    pool.shared.get_mut().release_refused(ticket);
    let again = pool.alloc(2 * UNIT);
    assert_eq!(again.range(), range(START + UNIT, 2 * UNIT));
    pool.free(live);
}

#[test]
fn a_range_over_part_of_a_region_whose_end_is_leaving_is_refused() {
    let mut pool = pool();
    let live = pool.alloc(UNIT);
    let end = pool.alloc(UNIT);
    pool.free(end);
    let ticket = leaving(&mut pool);
    let mut attempt = RegionAttempt::new(Request::new(2 * UNIT));
    let growth = pool.growth(&mut attempt);
    let wrong = range(START + UNIT / 2, growth.request().bytes);
    overlaps(&mut pool, growth, wrong);
    pool.shared.get_mut().released(ticket);
    pool.check();
    assert_eq!(pool.reserved_bytes(), UNIT);
    pool.free(live);
}

#[test]
fn a_late_report_does_not_end_a_later_release_of_the_same_addresses() {
    let mut pool = pool();
    let block = pool.alloc(UNIT);
    pool.free(block);
    let [first, second] = [(); 2].map(|()| {
        let ticket = released(&mut pool);
        let mut attempt = RegionAttempt::new(Request::new(1));
        let growth = pool.growth(&mut attempt);
        let given = given(&pool, &growth);
        commit(&mut pool, growth, given);
        ticket
    });
    let ticket = leaving(&mut pool);
    let ours = pool.shared.get_mut();
    let leaving = ours.report().leaving_bytes;
    assert!(leaving > 0);
    ours.released(first);
    assert_eq!(ours.report().leaving_bytes, leaving, "not this one's");
    ours.release_refused(second);
    assert_eq!(ours.report().leaving_bytes, leaving, "nor this one's");
    ours.released(ticket);
    pool.check();
    assert_eq!(pool.reserved_bytes(), 0);
}

/// A sub-allocator that first gives `given`, a range whose release is under way.
struct Late {
    first: FixedRange,
    given: Cell<Option<AddrRange>>,
    taken: Cell<Option<AddrRange>>,
}

impl SubAllocator for Late {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        match self.given.take() {
            Some(given) => Ok(given),
            None => self.first.grow(request),
        }
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.taken.set(Some(range));
        Ok(())
    }
}

#[test]
fn a_block_that_grows_gets_a_range_that_was_on_its_way_back_and_gives_it_back() {
    let mut bfc = RegionPool::new(ranged(UNIT, GIB), table(32)).expect("a good configuration");
    let source = Late {
        first: FixedRange::new(range(START, 64 * MIB)),
        given: Cell::new(None),
        taken: Cell::new(None),
    };
    // A region elsewhere, which serves before the range that grows.
    bfc.add_region(range(START + GIB, UNIT)).unwrap();
    let mut shared = Shared::new(bfc, source);
    let [far, block] = [(); 2].map(|()| shared.alloc(&Request::new(UNIT)).unwrap().block);
    let bfc = shared.get_mut();
    bfc.free(far).unwrap();
    let ticket = bfc.take_releasable(u64::MAX).expect("a free region");
    assert_eq!(ticket.range(), range(START + GIB, UNIT));
    shared.source().given.set(Some(ticket.range()));
    let before = block.range();
    let rejected = shared.resize(block, 2 * UNIT);
    let block = rejected.expect_err("it lies elsewhere").value;
    assert_eq!(block.range(), before);
    // The range is of no use to this block and has been released.
    assert_eq!(shared.source().taken.get(), Some(ticket.range()));
    let bfc = shared.get_mut();
    bfc.released(ticket);
    bfc.check_invariants().unwrap();
    assert_eq!(bfc.stats().reserved_bytes, UNIT);
    bfc.free(block).unwrap();
}

/// A fixed range from which the pool grows again during a release, as if in another thread.
struct Chased {
    range: FixedRange,
    allocator: OnceCell<&'static Shared<RegionPool<'static>, Chased>>,
    releases: Cell<u32>,
}

impl SubAllocator for Chased {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        self.range.grow(request)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.range.release(range)?;
        self.releases.set(self.releases.get() + 1);
        if self.releases.get() < 1000
            && let Some(allocator) = self.allocator.get()
        {
            let grant = allocator.alloc(&Request::new(range.bytes()));
            let block = grant.expect("what was just released").block;
            allocator.free(block).unwrap();
        }
        Ok(())
    }
}

#[test]
fn trim_ends_although_another_thread_grows_as_fast_as_it_releases() {
    let source = Chased {
        range: FixedRange::new(range(START, 64 * MIB)),
        allocator: OnceCell::new(),
        releases: Cell::new(0),
    };
    let bfc = RegionPool::new(ranged(UNIT, GIB), table(32)).expect("a good configuration");
    let allocator: &'static Shared<RegionPool<'static>, Chased> =
        Box::leak(Box::new(Shared::new(bfc, source)));
    let block = allocator.alloc(&Request::new(UNIT)).unwrap().block;
    allocator.free(block).unwrap();
    let held = allocator.stats().reserved_bytes;
    allocator.source().allocator.set(allocator).ok().unwrap();
    let bytes = allocator.trim();
    assert_eq!(allocator.source().releases.get(), 1);
    assert_eq!(bytes, held, "what it gave back, whatever others got");
    allocator.with(|bfc| bfc.check_invariants()).unwrap();
    let held = allocator.stats().reserved_bytes;
    assert_eq!(held, allocator.source().range.used_bytes());
}

#[test]
fn a_refused_growth_takes_what_another_thread_has_grown_meanwhile() {
    let mut pool = pool();
    let [mut first, mut second] = [(); 2].map(|()| RegionAttempt::new(Request::new(KIB)));
    let theirs = pool.growth(&mut first);
    let mut ours = pool.growth(&mut second);
    // The sub-allocator has given all its memory to the other thread and refuses this one.
    let range = given(&pool, &theirs);
    while let Some(smaller) = pool.shared.get_mut().growth_refused(&mut second, ours) {
        ours = smaller;
    }
    commit(&mut pool, theirs, range);
    let blocks = [&mut second, &mut first].map(|attempt| step_to_block(&mut pool, attempt));
    pool.free_all(blocks);
}
