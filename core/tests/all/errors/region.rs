//! `RegionError` and the growth under way: ranges that may not be committed, and tables that are full.

use super::{numbers, out_of_memory};
use crate::common::{BASE, GIB, GRANULE, KIB, Pool, UNIT, apart, range, ranged};
use larder_core::{
    AddrRange, AllocError, BestFit, Cause, GrowTicket, MAX_REGIONS, Progress, RegionAttempt,
    RegionConfig, RegionError, Request,
};

/// Expects a region to be refused and nothing to change.
#[track_caller]
fn region_error(pool: &mut Pool, start: u64, bytes: u64) -> RegionError {
    let place = range(start, bytes);
    let rejected = pool.unchanged(|pool| pool.shared.get_mut().add_region(place));
    let rejected = rejected.expect_err("a bad region");
    assert_eq!(rejected.value, place, "it comes back");
    rejected.error
}

/// Expects a sub-allocator's range to be refused.
#[track_caller]
fn commit_error(pool: &mut Pool, ticket: GrowTicket, given: AddrRange) -> RegionError {
    let rejected = pool.shared.get_mut().commit(ticket, given);
    let rejected = rejected.expect_err("a bad range");
    pool.check();
    assert_eq!(rejected.value, given, "it comes back");
    rejected.error
}

/// Returns a pool with `count` regions of a granule, none of them adjacent. Growth alone takes larger steps long before
/// the table is full.
fn with_regions(config: RegionConfig, count: usize) -> Pool {
    let places: Vec<_> = (1..=count as u64)
        .map(|i| (i * 2 * GRANULE, GRANULE))
        .collect();
    Pool::with_regions(config, &places)
}

#[test]
fn one_region_more_than_the_table_holds_is_refused() {
    let mut pool = with_regions(RegionConfig::fixed(), MAX_REGIONS);
    let error = region_error(&mut pool, 1 << 40, GRANULE);
    assert_eq!(error, RegionError::RegionsFull);
}

#[test]
fn a_full_region_table_is_the_cause_and_one_released_region_makes_room() {
    let mut pool = with_regions(ranged(GRANULE, GIB), MAX_REGIONS);
    let mut blocks: Vec<_> = (0..MAX_REGIONS).map(|_| pool.alloc(GRANULE)).collect();
    pool.source().take_log();
    let out = out_of_memory(&mut pool, &Request::new(GRANULE));
    let all = MAX_REGIONS as u64 * GRANULE;
    assert_eq!(
        (out.cause, numbers(&out)),
        (Cause::Regions, [GIB, all, all, 0, 0, 0])
    );
    assert_eq!(pool.source().take_log(), [], "nobody was asked");
    pool.free(blocks.swap_remove(77));
    let ticket = pool.shared.get_mut().take_releasable(u64::MAX);
    let ticket = ticket.expect("a free region");
    assert_eq!(ticket.range().bytes(), GRANULE);
    pool.shared.get_mut().released(ticket);
    pool.check();
    let _block = pool.alloc(GRANULE);
}

#[test]
fn a_commit_is_refused_when_the_range_is_too_small_or_the_limit_was_lowered() {
    let mut pool = Pool::new(ranged(UNIT, GIB));
    let mut attempt = RegionAttempt::new(Request::new(100 * KIB));
    let before = pool.picture();
    for (bytes, limit, error) in [
        (128 * KIB - GRANULE, GIB, RegionError::TooSmall),
        (128 * KIB, 128 * KIB - 1, RegionError::Limit),
        (128 * KIB + 1, GIB, RegionError::Misaligned),
    ] {
        let ticket = pool.growth(&mut attempt);
        let asked = (ticket.bytes(), ticket.least_bytes());
        assert_eq!(asked, (128 * KIB, 128 * KIB));
        pool.shared.get_mut().set_limit(limit);
        let refused = commit_error(&mut pool, ticket, range(BASE, bytes));
        assert_eq!(refused, error);
        pool.shared.get_mut().set_limit(GIB);
        assert_eq!(pool.picture(), before, "the ticket counts no more");
    }
    let ticket = pool.growth(&mut attempt);
    let pool = pool.shared.get_mut();
    let committed = pool.commit(ticket, range(BASE, 128 * KIB));
    committed.expect("as asked");
    assert!(matches!(pool.advance(&mut attempt), Progress::Ready(_)));
    assert_eq!(pool.check_invariants(), Ok(()));
}

#[test]
fn a_commit_is_refused_when_the_table_of_chunks_has_filled_up_meanwhile() {
    let mut pool = Pool::over(ranged(UNIT, GIB), apart(), 3);
    pool.add_region(BASE, 4 * GRANULE);
    let waiting = pool.growth(&mut RegionAttempt::new(Request::new(64 * KIB)));
    let _block = pool.alloc(GRANULE);
    let error = commit_error(&mut pool, waiting, range(16 * BASE, 64 * KIB));
    assert_eq!(error, RegionError::TableFull);
}

#[test]
fn a_commit_is_refused_when_the_table_of_regions_has_filled_up_meanwhile() {
    let config = RegionConfig {
        collect_regions: false,
        ..ranged(UNIT, GIB)
    };
    let mut pool = with_regions(config, MAX_REGIONS - 1);
    let mut attempt = RegionAttempt::new(Request::new(100 * KIB));
    let waiting = pool.growth(&mut attempt);
    pool.add_region(1 << 40, GRANULE);
    let error = commit_error(&mut pool, waiting, range(1 << 41, 128 * KIB));
    assert_eq!(error, RegionError::RegionsFull);
    attempt.growth_rejected(error);
    match pool.shared.get_mut().advance(&mut attempt) {
        Progress::Failed(AllocError::OutOfMemory(out)) => assert_eq!(out.cause, Cause::Regions),
        other => panic!("{other:?}"),
    }
    pool.check();
}

#[test]
fn a_ticket_counts_against_the_limit_until_it_is_aborted() {
    let mut pool = Pool::new(ranged(UNIT, 2 * UNIT));
    let mut attempt = RegionAttempt::new(Request::new(UNIT));
    let [one, two] = [0, 1].map(|_| pool.growth(&mut attempt));
    let out = out_of_memory(&mut pool, &Request::new(1));
    let counted = (out.cause, out.reserved_bytes);
    assert_eq!(counted, (Cause::Limit, 2 * UNIT), "growth under way");
    assert_eq!(region_error(&mut pool, BASE, GRANULE), RegionError::Limit);
    pool.shared.get_mut().abort(one);
    pool.add_region(BASE, GRANULE);
    let smaller = pool.shared.get_mut().retry_smaller(two);
    assert_eq!(smaller, None, "nothing smaller helps; it is aborted");
    pool.check();
    assert_eq!(pool.shared.get_mut().excess_bytes(), 0);
    pool.add_region(16 * BASE, 2 * UNIT - GRANULE);
}
