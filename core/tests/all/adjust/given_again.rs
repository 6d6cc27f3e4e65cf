//! A released range is handed out again before its release is reported: one thread has released it, another's growth
//! gets its addresses and reports first.

use std::cell::{Cell, OnceCell};

use crate::common::{GIB, KIB, MIB, range, table};
use larder_core::{
    AddrRange, BestFit, Block, BlockAllocator, FixedRange, GrowRequest, GrowTicket, Growth,
    Progress, RegionAttempt, RegionConfig, RegionError, RegionPlan, RegionPool, Request, Shared,
    SubAllocError, SubAllocator,
};

const START: u64 = 0x7000_0000_0000;
const UNIT: u64 = 64 * KIB;

/// One range growing at its end.
fn ranged() -> RegionConfig {
    RegionConfig {
        growth: Growth::Range {
            unit_bytes: UNIT,
            ahead_divisor: None,
        },
        ..RegionConfig::new(GIB)
    }
}

fn new() -> (RegionPool<'static>, FixedRange) {
    let bfc = RegionPool::new(ranged(), table(32)).expect("a good configuration");
    (bfc, FixedRange::new(range(START, 64 * MIB)))
}

fn alloc(bfc: &mut RegionPool<'_>, source: &FixedRange, bytes: u64) -> Block {
    let mut attempt = RegionAttempt::new(Request::new(bytes));
    loop {
        match bfc.advance(&mut attempt) {
            Progress::Ready(grant) => return grant.block,
            Progress::Plan(RegionPlan::Grow(ticket)) => {
                let range = source.grow(ticket.request()).expect("there is room");
                bfc.commit(ticket, range).expect("a good range");
            }
            step => panic!("a block was expected, not {step:?}"),
        }
    }
}

fn step_to_growth(bfc: &mut RegionPool<'_>, attempt: &mut RegionAttempt) -> GrowTicket {
    match bfc.advance(attempt) {
        Progress::Plan(RegionPlan::Grow(ticket)) => ticket,
        step => panic!("growth was expected, not {step:?}"),
    }
}

fn step_to_block(bfc: &mut RegionPool<'_>, attempt: &mut RegionAttempt) -> Block {
    match bfc.advance(attempt) {
        Progress::Ready(grant) => grant.block,
        step => panic!("a block was expected, not {step:?}"),
    }
}

#[test]
fn a_whole_region_given_again_serves_and_the_late_report_is_void() {
    let (mut bfc, source) = new();
    let block = alloc(&mut bfc, &source, UNIT);
    bfc.free(block).unwrap();
    let ticket = bfc.take_releasable(u64::MAX).expect("a free region");
    source.release(ticket.range()).expect("it is the end");

    let mut attempt = RegionAttempt::new(Request::new(UNIT));
    let growth = step_to_growth(&mut bfc, &mut attempt);
    let given = source.grow(growth.request()).expect("room");
    assert!(given.overlaps(ticket.range()));
    bfc.commit(growth, given).expect("the former range is gone");
    bfc.check_invariants().unwrap();
    let block = step_to_block(&mut bfc, &mut attempt);

    let before = (bfc.stats(), bfc.dump().to_string());
    bfc.released(ticket);
    assert_eq!((bfc.stats(), bfc.dump().to_string()), before);
    bfc.check_invariants().unwrap();
    assert_eq!(bfc.stats().reserved_bytes, source.used_bytes());
    bfc.free(block).unwrap();
    let shared = Shared::new(bfc, source);
    shared.trim();
    let (bfc, source) = shared.into_parts();
    assert_eq!((bfc.stats().reserved_bytes, source.used_bytes()), (0, 0));
}

#[test]
fn the_end_of_a_range_given_again_joins_what_lies_in_front_of_it() {
    let (mut bfc, source) = new();
    let anchor = alloc(&mut bfc, &source, UNIT);
    let end = alloc(&mut bfc, &source, 2 * UNIT);
    bfc.free(end).unwrap();
    let ticket = bfc.take_releasable(u64::MAX).expect("a free end");
    assert_eq!(ticket.range(), range(START + UNIT, 2 * UNIT));
    source.release(ticket.range()).expect("it is the end");

    let mut attempt = RegionAttempt::new(Request::new(3 * UNIT));
    let growth = step_to_growth(&mut bfc, &mut attempt);
    let given = source.grow(growth.request()).expect("room");
    assert_eq!(given, range(START + UNIT, 3 * UNIT));
    bfc.commit(growth, given).expect("the former end is gone");
    bfc.released(ticket);
    bfc.check_invariants().unwrap();
    assert_eq!(bfc.report().regions, 1, "the range goes on as one");
    let block = step_to_block(&mut bfc, &mut attempt);
    assert_eq!(bfc.stats().reserved_bytes, 4 * UNIT);
    bfc.free(block).unwrap();
    bfc.free(anchor).unwrap();
}

#[test]
fn several_ranges_given_again_as_one_are_all_gone() {
    // Three regions with a gap of one unit between any two.
    let (mut bfc, _) = new();
    let places = [(0, 1), (2, 2), (5, 4)];
    let places = places.map(|(start, units)| range(START + start * UNIT, units * UNIT));
    for place in places {
        bfc.add_region(place).expect("a good region");
    }
    let tickets = [(); 3].map(|()| bfc.take_releasable(u64::MAX).expect("a free region"));
    let mut attempt = RegionAttempt::new(Request::new(9 * UNIT));
    let growth = step_to_growth(&mut bfc, &mut attempt);
    let given = range(START, 9 * UNIT);
    assert!(tickets.iter().all(|ticket| given.overlaps(ticket.range())));
    bfc.commit(growth, given).expect("all three are gone");
    bfc.check_invariants().unwrap();
    tickets.into_iter().for_each(|ticket| bfc.released(ticket));
    bfc.check_invariants().unwrap();
    assert_eq!(bfc.stats().reserved_bytes, 9 * UNIT);
    let _block = step_to_block(&mut bfc, &mut attempt);
}

#[test]
fn a_range_over_a_live_block_is_refused_although_it_lies_over_a_leaving_one_too() {
    let (mut bfc, source) = new();
    let live = alloc(&mut bfc, &source, UNIT);
    let free = alloc(&mut bfc, &source, 2 * UNIT);
    bfc.free(free).unwrap();
    let ticket = bfc.take_releasable(u64::MAX).expect("a free region");
    let mut attempt = RegionAttempt::new(Request::new(3 * UNIT));
    let growth = step_to_growth(&mut bfc, &mut attempt);
    let wrong = range(START, growth.request().bytes);
    let rejected = bfc.commit(growth, wrong).expect_err("a source that lies");
    assert_eq!(rejected.error, RegionError::Overlap);
    bfc.check_invariants().unwrap();
    // So the release stands.
    assert_eq!(bfc.stats().reserved_bytes, 3 * UNIT);
    bfc.release_refused(ticket);
    let again = alloc(&mut bfc, &source, 2 * UNIT);
    assert_eq!(again.range(), range(START + UNIT, 2 * UNIT));
    bfc.free(live).unwrap();
}

#[test]
fn a_range_over_part_of_a_region_whose_end_is_leaving_is_refused() {
    let (mut bfc, source) = new();
    let live = alloc(&mut bfc, &source, UNIT);
    let end = alloc(&mut bfc, &source, UNIT);
    bfc.free(end).unwrap();
    let ticket = bfc.take_releasable(u64::MAX).expect("a free end");
    let mut attempt = RegionAttempt::new(Request::new(2 * UNIT));
    let growth = step_to_growth(&mut bfc, &mut attempt);
    let wrong = range(START + UNIT / 2, growth.request().bytes);
    let rejected = bfc.commit(growth, wrong).expect_err("a source that lies");
    assert_eq!(rejected.error, RegionError::Overlap);
    bfc.released(ticket);
    bfc.check_invariants().unwrap();
    assert_eq!(bfc.stats().reserved_bytes, UNIT);
    bfc.free(live).unwrap();
}

#[test]
fn a_late_report_does_not_end_a_later_release_of_the_same_addresses() {
    let (mut bfc, source) = new();
    let block = alloc(&mut bfc, &source, UNIT);
    bfc.free(block).unwrap();
    let late = [(); 2].map(|()| {
        let ticket = bfc.take_releasable(u64::MAX).expect("a free region");
        source.release(ticket.range()).expect("it is the end");
        let growth = {
            let mut attempt = RegionAttempt::new(Request::new(1));
            step_to_growth(&mut bfc, &mut attempt)
        };
        let given = source.grow(growth.request()).expect("room");
        bfc.commit(growth, given).expect("the former range is gone");
        ticket
    });
    let [first, second] = late;
    let ticket = bfc.take_releasable(u64::MAX).expect("a free region");
    let leaving = bfc.report().leaving_bytes;
    assert!(leaving > 0);
    bfc.released(first);
    assert_eq!(bfc.report().leaving_bytes, leaving, "not this one's report");
    bfc.release_refused(second);
    assert_eq!(bfc.report().leaving_bytes, leaving, "nor this one's");
    bfc.released(ticket);
    assert_eq!(bfc.stats().reserved_bytes, 0);
    bfc.check_invariants().unwrap();
}

/// While a block waits to grow behind itself, the sub-allocator gives what was on its way back.
#[test]
fn a_block_that_grows_gets_a_range_that_was_on_its_way_back_and_gives_it_back() {
    struct Source {
        first: FixedRange,
        given: Cell<Option<AddrRange>>,
        taken: Cell<Option<AddrRange>>,
    }
    impl SubAllocator for Source {
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
    let mut bfc = RegionPool::new(ranged(), table(32)).expect("a good configuration");
    let source = Source {
        first: FixedRange::new(range(START, 64 * MIB)),
        given: Cell::new(None),
        taken: Cell::new(None),
    };
    // A free region elsewhere, then the range that grows.
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
    assert_eq!(
        shared.source().taken.get(),
        Some(ticket.range()),
        "given back, of no use for this block"
    );
    let bfc = shared.get_mut();
    bfc.released(ticket);
    bfc.check_invariants().unwrap();
    assert_eq!(bfc.stats().reserved_bytes, UNIT);
    bfc.free(block).unwrap();
}

/// A sub-allocator beside which another thread grows as fast as this one releases.
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
    let bfc = RegionPool::new(ranged(), table(32)).expect("a good configuration");
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
    assert_eq!(
        allocator.stats().reserved_bytes,
        allocator.source().range.used_bytes()
    );
}

#[test]
fn a_refused_growth_takes_what_another_thread_has_grown_meanwhile() {
    let (mut pool, source) = new();
    let [mut first, mut second] = [(); 2].map(|()| RegionAttempt::new(Request::new(KIB)));
    let theirs = step_to_growth(&mut pool, &mut first);
    let mut ours = step_to_growth(&mut pool, &mut second);
    // The sub-allocator has given the other thread all it has, and refuses this one.
    let range = source.grow(theirs.request()).expect("there is room");
    while let Some(smaller) = pool.growth_refused(&mut second, ours) {
        ours = smaller;
    }
    pool.commit(theirs, range).expect("a good range");
    let blocks = [&mut second, &mut first].map(|attempt| step_to_block(&mut pool, attempt));
    assert!(
        blocks
            .map(|block| pool.free(block))
            .iter()
            .all(Result::is_ok)
    );
}
