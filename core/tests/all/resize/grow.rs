//! Growing within the memory held: into free neighbours and the wilderness, as far as they reach.

use super::{BASE, GRANULE, blocks, free_granules, ranged, refused, resized};
use crate::common::{GIB, KIB, Pool, Source};
use larder_core::{RegionConfig, ResizeError};

#[test]
fn a_block_takes_the_front_of_a_free_neighbour_and_then_all_of_it() {
    let (mut pool, [block, hole, behind]) = blocks(RegionConfig::fixed(), 8, [2, 4, 2]);
    pool.free(hole);
    let block = resized(&mut pool, block, 3);
    assert_eq!(free_granules(&pool), [(3, 3)]);
    let block = resized(&mut pool, block, 5);
    assert_eq!(free_granules(&pool), [(5, 1)]);
    let block = resized(&mut pool, block, 6);
    assert_eq!(free_granules(&pool), []);
    pool.free(block);
    assert_eq!(free_granules(&pool), [(0, 6)]);
    pool.free(behind);
}

#[test]
fn a_block_takes_the_front_of_the_wilderness_and_then_all_of_it() {
    let (mut pool, [hole, block]) = blocks(RegionConfig::fixed(), 16, [4, 2]);
    pool.free(hole);
    let block = resized(&mut pool, block, 8);
    assert_eq!(free_granules(&pool), [(0, 4), (12, 4)]);
    // What is left is the wilderness: the hole serves first.
    let again = pool.alloc(4 * GRANULE);
    assert_eq!(again.addr().get(), BASE);
    let block = resized(&mut pool, block, 12);
    assert_eq!(free_granules(&pool), []);
    let block = resized(&mut pool, block, 1);
    assert_eq!(free_granules(&pool), [(5, 11)]);
    pool.free_all([again, block]);
}

#[test]
fn a_used_neighbour_and_one_granule_too_few_refuse() {
    let (mut pool, [block, hole, behind]) = blocks(RegionConfig::fixed(), 8, [2, 3, 3]);
    let (block, error) = refused(&mut pool, block, 2 * GRANULE + 1);
    assert_eq!(error, ResizeError::NoRoom);
    pool.free(hole);
    let (block, error) = refused(&mut pool, block, 5 * GRANULE + 1);
    assert_eq!(error, ResizeError::NoRoom);
    let block = resized(&mut pool, block, 5);
    // The last one of a region has no neighbour at all.
    let (behind, error) = refused(&mut pool, behind, 4 * GRANULE);
    assert_eq!(error, ResizeError::NoRoom);
    pool.free_all([block, behind]);
}

#[test]
fn memory_in_front_is_not_taken_and_nor_is_another_region() {
    let (mut pool, [hole, block]) = blocks(RegionConfig::fixed(), 8, [4, 4]);
    // Without growth the regions stay two.
    pool.add_region(BASE + 8 * GRANULE, 8 * GRANULE);
    pool.free(hole);
    let (block, error) = refused(&mut pool, block, 5 * GRANULE);
    assert_eq!(error, ResizeError::NoRoom);
    pool.free(block);
}

#[test]
fn a_lowered_limit_binds_what_is_live_and_does_not_keep_blocks_from_shrinking() {
    let mut pool = Pool::over(ranged(GIB), Source::contiguous(), 64);
    let [block, kept] = [8, 8].map(|size| pool.alloc(size * GRANULE));
    let large = pool.alloc(64 * KIB);
    pool.free(kept);
    // 128 KiB are held; 66 KiB are live and may be 68.
    assert_eq!(pool.adjust(68 * KIB).excess_bytes, 60 * KIB);
    let (block, error) = refused(&mut pool, block, 16 * GRANULE + 1);
    assert_eq!(error, ResizeError::Limit);
    let block = resized(&mut pool, block, 16);
    let block = resized(&mut pool, block, 7);
    let block = resized(&mut pool, block, 8);
    pool.adjust(66 * KIB);
    let (block, error) = refused(&mut pool, block, 9 * GRANULE);
    assert_eq!(error, ResizeError::Limit);
    let block = pool
        .resize(block, 8 * GRANULE)
        .expect("no more than it has");
    pool.free_all([block, large]);
}
