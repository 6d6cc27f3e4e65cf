//! Refused resizes that need a second `Block` for the same block, growth under way, or a broken sub-allocator.

use crate::common::{self, GIB, GRANULE, Pool, UNIT, range};
use larder_core::{BestFit, Block, RegionAttempt, Rejected, Request, ResizeError};
use larder_model::{Broken, Call, Source};

/// Expects a resize to be refused, within the held memory and over the sub-allocator, and to change nothing. Returns
/// the block.
#[track_caller]
fn refused(pool: &mut Pool, block: Block, bytes: u64, error: ResizeError) -> Block {
    let place = (block.range(), block.handle());
    let held = pool.unchanged(|pool| pool.shared.get_mut().resize(block, bytes));
    let held = held.expect_err("no room in what is held");
    let over = pool.unchanged(|pool| pool.shared.resize(held.value, bytes));
    let over = over.expect_err("no room behind what is held");
    assert_eq!((over.value.range(), over.value.handle()), place);
    assert!(held.error == error || held.error == ResizeError::NoRoom);
    assert_eq!(over.error, error);
    over.value
}

#[test]
fn the_value_of_the_former_size_is_refused_as_are_blocks_of_others() {
    let mut pool = Pool::fixed(8);
    let block = pool.alloc(4 * GRANULE);
    let former = pool.second(&block);
    let resized = pool.shared.resize(block, 2 * GRANULE);
    let block = resized.expect("smaller");
    let former = refused(&mut pool, former, 3 * GRANULE, ResizeError::Unknown);
    assert_eq!(pool.shared.get_mut().requested_bytes(&former), None);
    drop(pool.refuses_free(former));
    let mut other = Pool::fixed(8);
    let theirs = other.alloc(2 * GRANULE);
    let place = |block: &Block| (block.range(), block.handle());
    assert_eq!(place(&theirs), place(&block));
    drop(refused(&mut pool, theirs, GRANULE, ResizeError::Unknown));
    let freed = pool.second(&block);
    pool.free(block);
    drop(refused(&mut pool, freed, GRANULE, ResizeError::Unknown));
}

#[test]
fn what_is_on_its_way_to_another_request_is_waited_for_by_nobody_else() {
    let mut pool = Pool::over(common::ranged(UNIT, GIB), common::contiguous(), 64);
    let block = pool.alloc(UNIT);
    let attempt = &mut RegionAttempt::new(Request::new(UNIT));
    let ticket = pool.growth(attempt);
    pool.source().take_log();
    let block = refused(&mut pool, block, 2 * UNIT, ResizeError::NoRoom);
    assert_eq!(pool.source().take_log(), []);
    pool.shared.get_mut().abort(ticket);
    let block = pool.shared.resize(block, 2 * UNIT).expect("room again");
    pool.free(block);
}

#[test]
fn a_sub_allocator_that_breaks_its_promises_costs_the_block_nothing() {
    const HELD: u64 = 0x7000_0000_0000;
    const ANSWERS: [Broken; 8] = [
        |_| (HELD, 2 * UNIT),
        |_| (HELD + UNIT / 2, 2 * UNIT),
        |_| (HELD - UNIT, 3 * UNIT),
        |_| (HELD + UNIT, UNIT),
        |_| (HELD + UNIT, 2 * UNIT + 1),
        |_| (HELD + UNIT + 1, 2 * UNIT - 1),
        |_| (HELD + UNIT, GIB),
        |_| (0, 2 * UNIT),
    ];
    for (i, answer) in ANSWERS.into_iter().enumerate() {
        let source = Source::new(HELD, GIB);
        let mut pool = Pool::over(common::ranged(UNIT, 8 * UNIT), source, 64);
        let block = pool.alloc(UNIT);
        assert_eq!(block.range(), range(HELD, UNIT));
        pool.source().answer_with(Some(answer));
        pool.source().take_log();
        let result: Result<Block, Rejected<ResizeError>> = pool.shared.resize(block, 3 * UNIT);
        pool.check();
        let block = result.expect_err("a broken answer").value;
        assert_eq!(block.range(), range(HELD, UNIT), "{i}");
        assert_eq!(pool.reserved_bytes(), UNIT, "{i}");
        let released = matches!(pool.source().take_log()[..], [_, Call::Release(_)]);
        assert_eq!(released, i > 2, "{i}: what overlaps must not go back");
        pool.free(block);
        assert_eq!(pool.free_chunks(), [(HELD, UNIT)]);
    }
}
