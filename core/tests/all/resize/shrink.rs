//! Shrinking: the end is cut off, freed and joined.

use super::{BASE, GRANULE, blocks, free_granules, refused, resized};
use crate::common::{Pool, Source};
use larder_core::{BestFit, Block, FreeError, RegionConfig, ResizeError};

#[test]
fn the_end_that_is_cut_off_is_free_between_two_blocks() {
    let (mut pool, [first, behind]) = blocks(RegionConfig::fixed(), 8, [4, 4]);
    let first = resized(&mut pool, first, 1);
    assert_eq!(free_granules(&pool), [(1, 3)]);
    let block = pool.alloc(3 * GRANULE);
    assert_eq!(block.addr().get(), BASE + GRANULE);
    pool.free_all([first, behind, block]);
    assert_eq!(free_granules(&pool), [(0, 8)]);
}

#[test]
fn the_end_joins_a_free_neighbour_and_the_wilderness() {
    let (mut pool, [first, hole, last]) = blocks(RegionConfig::fixed(), 16, [4, 2, 4]);
    pool.free(hole);
    let first = resized(&mut pool, first, 3);
    assert_eq!(free_granules(&pool), [(3, 3), (10, 6)]);
    let last = resized(&mut pool, last, 1);
    assert_eq!(free_granules(&pool), [(3, 3), (7, 9)]);
    // The end is the wilderness still: the hole, which fits, serves before it.
    assert_eq!(pool.alloc(3 * GRANULE).addr().get(), BASE + 3 * GRANULE);
    pool.free_all([first, last]);
}

#[test]
fn the_end_of_the_last_block_becomes_the_wilderness() {
    let (mut pool, [hole, behind, last]) = blocks(RegionConfig::fixed(), 16, [4, 1, 11]);
    pool.free(hole);
    let last = resized(&mut pool, last, 7);
    assert_eq!(free_granules(&pool), [(0, 4), (12, 4)]);
    // Equally large: the wilderness serves last.
    assert_eq!(pool.alloc(4 * GRANULE).addr().get(), BASE);
    pool.free_all([behind, last]);
}

#[test]
fn within_the_same_granules_only_the_requested_size_changes() {
    let (mut pool, [block, _behind]) = blocks(RegionConfig::fixed(), 8, [4, 4]);
    for bytes in [3 * GRANULE + 1, 4 * GRANULE - 1, 4 * GRANULE] {
        let same = pool
            .shared
            .get_mut()
            .block_from_raw(raw(&block))
            .expect("in use");
        let again = pool.resize(same, bytes).expect("the same size");
        assert_eq!(again, block, "the same value");
        assert_eq!(pool.shared.get_mut().requested_bytes(&block), Some(bytes));
        assert_eq!(
            pool.shared.get_mut().stats().requested_bytes,
            bytes + 4 * GRANULE
        );
        assert_eq!(pool.shared.get_mut().stats().live_bytes, 8 * GRANULE);
    }
}

fn raw(block: &Block) -> larder_core::RawBlock {
    larder_core::RawBlock {
        addr: block.addr(),
        handle: block.handle(),
    }
}

#[test]
fn the_value_of_the_former_size_is_refused_as_are_blocks_of_others() {
    let (mut pool, [block]) = blocks(RegionConfig::fixed(), 8, [4]);
    let former = pool
        .shared
        .get_mut()
        .block_from_raw(raw(&block))
        .expect("in use");
    let block = resized(&mut pool, block, 2);
    let (former, error) = refused(&mut pool, former, 3 * GRANULE);
    assert_eq!(error, ResizeError::Unknown);
    assert_eq!(pool.shared.get_mut().requested_bytes(&former), None);
    let rejected = pool.unchanged(|pool| pool.shared.get_mut().free(former));
    assert_eq!(rejected.expect_err("stale").error, FreeError::Unknown);
    let (_other, [theirs]) = blocks(RegionConfig::fixed(), 8, [2]);
    assert_eq!(
        (theirs.range(), theirs.handle()),
        (block.range(), block.handle())
    );
    let (_theirs, error) = refused(&mut pool, theirs, GRANULE);
    assert_eq!(error, ResizeError::Unknown);
    let freed = pool
        .shared
        .get_mut()
        .block_from_raw(raw(&block))
        .expect("in use");
    pool.free(block);
    assert_eq!(refused(&mut pool, freed, GRANULE).1, ResizeError::Unknown);
}

#[test]
fn zero_bytes_and_more_than_can_be_counted_are_errors() {
    let (mut pool, [mut block]) = blocks(RegionConfig::fixed(), 8, [4]);
    for (bytes, expected) in [
        (0, ResizeError::ZeroSize),
        (u64::MAX, ResizeError::TooLarge),
        (u64::MAX - 255, ResizeError::TooLarge),
        (u64::from(u32::MAX) * GRANULE + 1, ResizeError::TooLarge),
        (u64::from(u32::MAX) * GRANULE, ResizeError::NoRoom),
        (8 * GRANULE + 1, ResizeError::NoRoom),
    ] {
        let (same, error) = refused(&mut pool, block, bytes);
        assert_eq!(error, expected, "{bytes}");
        block = same;
    }
    pool.free(block);
}

#[test]
fn the_counters_follow_and_the_number_of_allocations_stays() {
    let (mut pool, [block]) = blocks(RegionConfig::fixed(), 16, [4]);
    let block = resized(&mut pool, block, 10);
    let stats = pool.shared.get_mut().stats();
    assert_eq!(pool.tuple(), (1, 10 * GRANULE, 10 * GRANULE, 10 * GRANULE));
    assert_eq!(stats.requested_bytes, 10 * GRANULE);
    let block = pool.resize(block, GRANULE + 1).expect("smaller");
    let stats = pool.shared.get_mut().stats();
    assert_eq!(pool.tuple(), (1, 2 * GRANULE, 10 * GRANULE, 10 * GRANULE));
    assert_eq!(stats.requested_bytes, GRANULE + 1);
    pool.free(block);
    let stats = pool.shared.get_mut().stats();
    assert_eq!((stats.live_bytes, stats.requested_bytes), (0, 0));
}

#[test]
fn cutting_an_end_off_takes_a_record_and_growing_gives_one_back() {
    let mut pool = Pool::over(RegionConfig::fixed(), Source::new(), 4);
    pool.add_region(BASE, 8 * GRANULE);
    let [first, second, third] = [4, 2, 2].map(|size| pool.alloc(size * GRANULE));
    let (first, error) = refused(&mut pool, first, GRANULE);
    assert_eq!(error, ResizeError::TableFull);
    pool.free(second);
    // All records are chunks still, and growing needs none.
    let first = resized(&mut pool, first, 5);
    assert_eq!(free_granules(&pool), [(5, 1)]);
    let first = resized(&mut pool, first, 6);
    let first = resized(&mut pool, first, 1);
    assert_eq!(free_granules(&pool), [(1, 5)]);
    pool.free_all([first, third]);
}
