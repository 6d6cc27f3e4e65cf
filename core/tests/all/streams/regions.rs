//! Growing, trimming and releasing beside memory that queued work still uses.

use super::{BASE, GRANULE, cause, full, on, take};
use crate::common::{KIB, MIB, Pool, Source, point};
use larder_core::{BestFit, Cause, EventNumber, Growth, RegionConfig};

fn ranged(limit: u64) -> Pool {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..RegionConfig::new(limit)
    };
    Pool::over(config, Source::contiguous(), 64)
}

/// New memory behind a pending end must serve the request it was asked for: joined with that end
/// it would carry its point, and the request would grow again and again.
#[test]
fn a_request_that_may_not_wait_is_served_by_new_memory_behind_a_pending_end() {
    for request in [
        on(64 * KIB, 2).without_wait(),
        on(64 * KIB, 1).freed_by(EventNumber::new(4)),
    ] {
        let mut pool = ranged(MIB);
        let block = pool.alloc(64 * KIB);
        pool.free_after(block, 1, 5);
        pool.source().take_log();
        let result = pool.try_grant(&request);
        let calls = pool.source().take_log().len();
        assert!(calls <= 1, "{calls} calls for one block");
        assert_eq!(result.map(|grant| grant.wait), Ok(None));
        assert_eq!(pool.reserved_bytes(), 128 * KIB);
    }
}

#[test]
fn a_request_that_may_wait_grows_by_what_is_missing_behind_a_pending_end() {
    let mut pool = ranged(MIB);
    let block = pool.alloc(64 * KIB);
    pool.free_after(block, 1, 5);
    let grant = pool.grant(&on(128 * KIB, 2));
    assert_eq!(grant.wait, Some(point(1, 5)));
    assert_eq!(pool.reserved_bytes(), 128 * KIB);
}

#[test]
fn what_queued_work_uses_is_neither_trimmed_nor_released_until_it_is_through() {
    let mut pool = ranged(MIB);
    let anchor = pool.alloc(64 * KIB);
    let block = pool.alloc(256 * KIB);
    pool.free_after(block, 1, 5);
    assert_eq!(pool.trim(), 0);
    assert_eq!(pool.adjust(0).excess_bytes, 320 * KIB);
    pool.complete(1, 5);
    assert_eq!(pool.adjust(0).excess_bytes, 64 * KIB);
    pool.free_after(anchor, 2, 1);
    assert_eq!(pool.adjust(0).excess_bytes, 64 * KIB);
    pool.complete(2, 1);
    assert_eq!(pool.adjust(0).excess_bytes, 0);
}

/// `PoolStats::stable_bytes`: "the floor a lowered limit can reach at once".
#[test]
fn stable_bytes_count_regions_that_queued_work_uses() {
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(BASE, 4 * GRANULE)]);
    let block = pool.alloc(GRANULE);
    pool.free_after(block, 1, 5);
    let stable = pool.shared.get_mut().pool_stats().stable_bytes;
    pool.check();
    let change = pool.adjust(0);
    assert_eq!(change.excess_bytes, stable);
}

/// Waiting for the streams would help, so that is the cause to name.
#[test]
fn a_request_that_merging_after_completion_would_serve_fails_as_pending() {
    let (mut pool, mut blocks) = full(3);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    pool.free_after(take(&mut blocks[1]), 2, 5);
    assert_eq!(cause(&mut pool, &on(2 * GRANULE, 3)), Cause::Pending);
}
