//! Growing over a sub-allocator: the memory missing behind the last block of the growing range.

use core::num::NonZeroU32;

use super::{GRANULE, UNIT, ranged, refused, resized};
use crate::common::{Call, GIB, KIB, MIB, Pool, Source, range};
use larder_core::{
    BestFit, Block, Growth, Progress, RegionAttempt, RegionConfig, RegionPlan, Rejected, Request,
    ResizeError, SubAllocError,
};

fn pool(limit_bytes: u64) -> Pool {
    Pool::over(ranged(limit_bytes), Source::contiguous(), 64)
}

/// Returns a refusal, with the requests made to the sub-allocator.
#[track_caller]
fn calls_of(pool: &mut Pool, block: Block, bytes: u64) -> (Block, ResizeError, Vec<Call>) {
    pool.source().take_log();
    let (block, error) = refused(pool, block, bytes);
    (block, error, pool.source().take_log())
}

#[test]
fn a_block_at_the_end_doubles_to_64_mib_where_it_is() {
    let mut pool = pool(GIB);
    let _first = pool.alloc(KIB);
    let mut block = pool.alloc(KIB);
    let addr = block.addr();
    while block.bytes() < 64 * MIB {
        let granules = 2 * block.bytes() / GRANULE;
        block = resized(&mut pool, block, granules);
    }
    assert_eq!(block.addr(), addr);
    assert_eq!(pool.regions().len(), 1);
    assert_eq!(pool.reserved_bytes(), 64 * MIB + UNIT);
    assert_eq!(pool.shared.get_mut().stats().allocations, 2);
    pool.free(block);
    assert_eq!(pool.trim(), 64 * MIB);
}

#[test]
fn only_what_is_missing_is_asked_for_in_units_and_the_wilderness_counts() {
    let mut pool = pool(GIB);
    let block = pool.alloc(40 * KIB);
    pool.source().take_log();
    let block = resized(&mut pool, block, 64 * KIB / GRANULE);
    assert_eq!(pool.source().take_log(), [], "the wilderness serves");
    let block = resized(&mut pool, block, 64 * KIB / GRANULE + 1);
    assert_eq!(pool.source().take_log(), [Call::Grow(UNIT)]);
    let block = resized(&mut pool, block, 192 * KIB / GRANULE);
    assert_eq!(pool.source().take_log(), [Call::Grow(UNIT)]);
    let block = resized(&mut pool, block, 193 * KIB / GRANULE);
    let block = resized(&mut pool, block, 64 * KIB / GRANULE);
    pool.source().take_log();
    // Of five units three are held still.
    let block = resized(&mut pool, block, 5 * UNIT / GRANULE);
    assert_eq!(pool.source().take_log(), [Call::Grow(UNIT)]);
    assert_eq!(pool.free_chunks(), []);
    pool.free(block);
}

#[test]
fn growth_runs_ahead_by_the_share_of_what_is_held() {
    let growth = Growth::Range {
        unit_bytes: UNIT,
        ahead_divisor: NonZeroU32::new(2),
    };
    let config = RegionConfig {
        growth,
        ..RegionConfig::new(12 * UNIT)
    };
    let mut pool = Pool::over(config, Source::contiguous(), 64);
    let block = pool.alloc(6 * UNIT);
    pool.source().take_log();
    let block = resized(&mut pool, block, 6 * UNIT / GRANULE + 1);
    assert_eq!(pool.source().take_log(), [Call::Grow(3 * UNIT)]);
    let block = resized(&mut pool, block, 9 * UNIT / GRANULE + 1);
    assert_eq!(
        pool.source().take_log(),
        [Call::Grow(3 * UNIT)],
        "at the limit"
    );
    pool.free(block);
}

#[test]
fn the_limit_is_reached_and_not_passed() {
    let mut pool = pool(4 * UNIT + 100);
    let block = pool.alloc(UNIT);
    let (block, error, calls) = calls_of(&mut pool, block, 4 * UNIT + 1);
    assert_eq!((error, calls), (ResizeError::Limit, vec![]));
    let block = resized(&mut pool, block, 4 * UNIT / GRANULE);
    assert_eq!(pool.reserved_bytes(), 4 * UNIT);
    pool.free(block);
}

#[test]
fn a_block_that_is_not_the_last_asks_for_nothing() {
    let mut pool = pool(GIB);
    let block = pool.alloc(UNIT / 2);
    let last = pool.alloc(GRANULE);
    let (block, error, calls) = calls_of(&mut pool, block, UNIT);
    assert_eq!((error, calls), (ResizeError::NoRoom, vec![]));
    pool.free_all([block, last]);
}

#[test]
fn a_region_that_is_not_the_newest_and_other_ways_of_growth_ask_for_nothing() {
    let mut pool = pool(GIB);
    let block = pool.alloc(UNIT);
    pool.source().contiguous.set(false);
    let other = pool.alloc(UNIT);
    assert_eq!(pool.regions().len(), 2);
    pool.source().contiguous.set(true);
    let (block, error, calls) = calls_of(&mut pool, block, 2 * UNIT);
    assert_eq!((error, calls), (ResizeError::NoRoom, vec![]));
    let other = resized(&mut pool, other, 2 * UNIT / GRANULE);
    pool.free_all([block, other]);
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(MIB, MIB)]);
    let block = pool.alloc(MIB);
    let (block, error, calls) = calls_of(&mut pool, block, 2 * MIB);
    assert_eq!((error, calls), (ResizeError::NoRoom, vec![]));
    pool.free(block);
}

#[test]
fn a_refused_growth_is_tried_with_the_least_that_helps_and_changes_nothing() {
    let growth = Growth::Range {
        unit_bytes: UNIT,
        ahead_divisor: NonZeroU32::new(1),
    };
    let config = RegionConfig {
        growth,
        ..RegionConfig::new(GIB)
    };
    let mut pool = Pool::over(config, Source::contiguous(), 64);
    let block = pool.alloc(4 * UNIT);
    pool.source().refuse_grows.set(2);
    let (block, error, calls) = calls_of(&mut pool, block, 4 * UNIT + 1);
    let asked = [Call::GrowRefused(4 * UNIT), Call::GrowRefused(UNIT)];
    assert_eq!((error, calls.as_slice()), (ResizeError::NoRoom, &asked[..]));
    pool.source().refuse_grows.set(1);
    let block = resized(&mut pool, block, 5 * UNIT / GRANULE);
    let asked = [Call::GrowRefused(4 * UNIT), Call::Grow(UNIT)];
    assert_eq!(pool.source().take_log(), asked);
    pool.free(block);
}

#[test]
fn a_range_that_lies_elsewhere_goes_back_or_is_held_for_others() {
    let mut pool = pool(GIB);
    let block = pool.alloc(UNIT);
    pool.source().contiguous.set(false);
    let (block, error, calls) = calls_of(&mut pool, block, 3 * UNIT);
    assert_eq!(error, ResizeError::NoRoom);
    assert_eq!(calls, [Call::Grow(2 * UNIT), Call::Release(2 * UNIT)]);
    pool.source().refuse_releases.set(1);
    let rejected = pool.resize_over(block, 3 * UNIT).expect_err("elsewhere");
    assert_eq!(rejected.error, ResizeError::NoRoom);
    assert_eq!(pool.reserved_bytes(), 3 * UNIT);
    assert_eq!(pool.reserved_bytes(), pool.source().out_bytes());
    pool.source().take_log();
    let other = pool.alloc(2 * UNIT);
    assert_eq!(pool.source().take_log(), [], "what was kept serves");
    pool.free_all([rejected.value, other]);
    pool.trim();
    assert_eq!((pool.reserved_bytes(), pool.source().out_bytes()), (0, 0));
}

#[test]
fn what_is_on_its_way_to_another_request_is_waited_for_by_nobody_else() {
    let mut pool = pool(GIB);
    let block = pool.alloc(UNIT);
    let Progress::Plan(RegionPlan::Grow(ticket)) = pool
        .shared
        .get_mut()
        .advance(&mut RegionAttempt::new(Request::new(UNIT)))
    else {
        panic!("it has to grow");
    };
    let (block, error, calls) = calls_of(&mut pool, block, 2 * UNIT);
    assert_eq!((error, calls), (ResizeError::NoRoom, vec![]));
    pool.shared.get_mut().abort(ticket);
    let block = resized(&mut pool, block, 2 * UNIT / GRANULE);
    pool.free(block);
}

#[test]
fn a_full_table_refuses_before_anything_is_asked_for() {
    let mut pool = Pool::over(ranged(GIB), Source::contiguous(), 2);
    let block = pool.alloc(UNIT);
    let (block, error, calls) = calls_of(&mut pool, block, 2 * UNIT);
    assert_eq!((error, calls), (ResizeError::TableFull, vec![]));
    pool.free(block);
}

#[test]
fn a_region_grows_to_what_can_be_counted_and_no_further() {
    let mut pool = pool(u64::MAX);
    let max = u64::from(u32::MAX) * GRANULE;
    let block = pool.alloc(GRANULE);
    let (block, error, calls) = calls_of(&mut pool, block, max);
    // 2^32 granules would be whole units; one less is not.
    assert_eq!((error, calls), (ResizeError::NoRoom, vec![]));
    let block = resized(&mut pool, block, (max / UNIT * UNIT) / GRANULE);
    assert_eq!(pool.regions().len(), 1);
    pool.free(block);
}

#[test]
fn a_sub_allocator_that_breaks_its_promises_costs_the_block_nothing() {
    let held = 0x7000_0000_0000u64;
    for (i, (start, bytes)) in [
        (held, 2 * UNIT),
        (held + UNIT / 2, 2 * UNIT),
        (held - UNIT, 3 * UNIT),
        (held + UNIT, UNIT),
        (held + UNIT, 2 * UNIT + 1),
        (held + UNIT + 1, 2 * UNIT - 1),
        (held + UNIT, GIB),
        (0, 2 * UNIT),
    ]
    .into_iter()
    .enumerate()
    {
        let source = Source::from_address(held);
        source.gap_bytes.set(0);
        let mut pool = Pool::over(ranged(8 * UNIT), source, 64);
        let block = pool.alloc(UNIT);
        assert_eq!(block.addr().get(), held);
        pool.source().answer_by(move |_| Ok(range(start, bytes)));
        pool.source().take_log();
        let place = block.range();
        let result: Result<Block, Rejected<ResizeError>> = pool.resize_over(block, 3 * UNIT);
        let block = result.expect_err("a broken answer").value;
        assert_eq!((block.range(), pool.reserved_bytes()), (place, UNIT), "{i}");
        let released = matches!(pool.source().take_log()[..], [_, Call::Release(_)]);
        assert_eq!(released, i > 2, "{i}: what overlaps must not go back");
        pool.source().answer_by(|_| Err(SubAllocError));
        pool.free(block);
        assert_eq!(pool.free_chunks(), [(held, UNIT)]);
    }
}
