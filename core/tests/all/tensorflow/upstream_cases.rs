//! The cases of CONFORMANCE 8.9 one by one: sizes, bins, growth, collection.

use crate::common::{
    Alike, GIB, KIB, MIB, Pool, Random, Upstream, assert_disjoint, both, both_at_once,
};
use larder_core::{AllocError, BestFit, Block, RegionConfig, Request};
use larder_model::tensorflow::Bfc;

/// Sizes of the random cases of 8.9: 100 bytes to 1 MiB.
fn sizes(seed: u64, count: usize) -> impl Iterator<Item = u64> {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    std::iter::repeat_with(move || random.below(MIB).max(100)).take(count)
}

#[test]
fn s8_9_no_dups_sizes_1_to_1023_give_distinct_blocks_and_the_tuple() {
    for mut pool in both(GIB).into_iter().chain(both_at_once(GIB)) {
        let blocks: Vec<Block> = (1..1024).map(|bytes| pool.alloc(bytes)).collect();
        assert_disjoint(&blocks);
        assert_eq!(pool.tuple(), (1023, 654_336, 654_336, 1024));
        for block in blocks {
            pool.free(block);
        }
        assert_eq!(pool.tuple(), (1023, 0, 654_336, 1024));
        let whole: Vec<u64> = pool.free_chunks().iter().map(|chunk| chunk.1).collect();
        assert_eq!(whole, pool.region_bytes(), "all is coalesced");
    }
}

#[test]
fn s8_9_random_255_sizes_half_freed_1_gib_and_one_is_null_255_more_never_overlap() {
    for mut pool in both(GIB).into_iter().chain(both_at_once(GIB)) {
        let mut live: Vec<Block> = sizes(1, 255).map(|bytes| pool.alloc(bytes)).collect();
        assert_disjoint(&live);
        let (kept, freed): (Vec<_>, Vec<_>) =
            live.drain(..).enumerate().partition(|(i, _)| i % 2 == 1);
        freed.into_iter().for_each(|(_, block)| pool.free(block));
        live.extend(kept.into_iter().map(|(_, block)| block));
        assert!(pool.try_alloc(GIB + 1).is_none());
        live.extend(sizes(2, 255).map(|bytes| pool.alloc(bytes)));
        assert_disjoint(&live);
        pool.free_all(live);
        assert_eq!(pool.tuple().1, 0);
    }
}

#[test]
fn s8_9_coalescing_1024_rounds_end_with_one_chunk_and_the_first_pointer_comes_back() {
    for mut pool in both_at_once(GIB) {
        let first = pool.alloc(1024 * 4);
        let first_addr = first.addr();
        pool.free(first);
        assert_eq!(pool.tuple(), (1, 0, 4096, 4096));
        for _ in 0..1024 {
            let blocks = [4 * KIB, 8 * MIB, 16 * KIB, 40 * MIB].map(|bytes| pool.alloc(bytes));
            assert_disjoint(&blocks);
            pool.free_all(blocks.into());
        }
        assert_eq!(pool.tuple(), (4097, 0, 50_352_128, 41_943_040));
        assert_eq!(pool.free_chunks().len(), 1);
        let again = pool.alloc(4096);
        assert_eq!(again.addr(), first_addr);
        pool.free(again);
    }
}

#[test]
fn s8_9_zero_bytes_is_an_error_and_grows_nothing() {
    for mut pool in both(GIB) {
        pool.refuses_unchanged(0);
        assert_eq!(pool.source().take_log(), []);
    }
    let mut ours = Pool::of_regions(GIB);
    let result = ours.unchanged(|pool| pool.try_grant(&Request::new(0)));
    assert_eq!(result, Err(AllocError::ZeroSize));
}

#[test]
fn s8_9_tracks_sizes_4_bytes_are_requested_4_allocated_256() {
    for mut pool in both(GIB) {
        let block = pool.alloc(4);
        assert_eq!(pool.requested_bytes(&block), Some(4));
        assert_eq!(block.bytes(), 256);
        assert_eq!(pool.stats().requested_bytes, 4);
        assert_eq!(pool.tuple(), (1, 256, 256, 256));
        pool.free(block);
        assert_eq!(pool.stats().requested_bytes, 0);
    }
}

#[test]
fn s8_9_with_a_limit_of_1_mib_256_bytes_are_given_and_4_mib_are_not() {
    for mut pool in both(MIB) {
        let block = pool.alloc(256);
        pool.refuses_unchanged(4 * MIB);
        pool.free(block);
        assert!(pool.try_alloc(MIB + 1).is_none());
        assert!(pool.try_alloc(MIB).is_some());
    }
}

#[test]
fn s8_9_growth_with_2_gib_serves_small_and_large_until_the_limit() {
    for mut pool in both(2 * GIB) {
        let mut live: Vec<Block> = sizes(3, 255).map(|bytes| pool.alloc(bytes)).collect();
        for i in (0..live.len()).rev().step_by(2) {
            pool.free(live.swap_remove(i));
        }
        assert!(pool.try_alloc(2 * GIB + 1).is_none());
        live.extend(sizes(4, 255).map(|bytes| pool.alloc(bytes)));
        while let Some(block) = pool.try_alloc(300 * MIB) {
            live.push(block);
        }
        assert_disjoint(&live);
        let held = pool.reserved_bytes();
        assert!(held <= 2 * GIB && 2 * GIB - held < 300 * MIB);
        pool.free_all(live);
        assert_eq!(pool.tuple().1, 0);
    }
    // Upstream's regions.
    let mut pool = Upstream::new(2 * GIB);
    while pool.try_alloc(MIB).is_some() {}
    let regions = pool.region_bytes();
    assert_eq!(regions[0], MIB);
    assert!(regions.len() < 16, "doubling: {regions:?}");
}

#[test]
fn s8_9_bin_debug_pairs_of_doubling_sizes_stand_in_their_bins_and_the_rest_in_the_last() {
    // Ours reports upstream's bins.
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(GIB, GIB)]);
    let mut blocks = Vec::new();
    for i in 0..5 {
        blocks.push(pool.alloc(256 << i));
        blocks.push(pool.alloc((256 << i) - 3));
        let bins = pool.shared.with(|pool| pool.bin_summaries());
        for (b, bin) in bins.iter().enumerate() {
            let expected = if b <= i {
                (2, 0)
            } else {
                (0, u32::from(b == 20))
            };
            assert_eq!(
                (bin.used_chunks, bin.free_chunks),
                expected,
                "bin {b} after {i}"
            );
        }
        assert_eq!(bins[i].used_bytes, 2 * (256 << i));
        assert_eq!(bins[i].requested_bytes, 2 * (256 << i) - 3);
        assert_eq!(bins[20].free_bytes, GIB - 2 * (256 * ((2 << i) - 1)));
    }
    pool.free_all(blocks);
    let bins = pool.shared.with(|pool| pool.bin_summaries());
    let all: Vec<(u32, u32)> = bins
        .iter()
        .map(|bin| (bin.used_chunks, bin.free_chunks))
        .collect();
    assert_eq!(all[..20], [(0, 0); 20]);
    assert_eq!((all[20], bins[20].free_bytes), ((0, 1), GIB));
}

#[test]
fn s8_1_a_bin_holds_sizes_from_256_shifted_by_its_number_to_below_the_next() {
    // Bins by the formula of 8.1, at each boundary: the bin's first size, and one granule less.
    for b in 1..21u32 {
        for (bytes, bin) in [(256u64 << b, b), ((256 << b) - 256, b - 1)] {
            let pool = Pool::with_regions(RegionConfig::fixed(), &[(0x1000, bytes)]);
            let bins = pool.shared.with(|pool| pool.bin_summaries());
            let at = bins.iter().position(|bin| bin.free_chunks == 1);
            assert_eq!(at, Some(bin as usize), "{bytes} bytes");
        }
    }
    let pool = Pool::with_regions(RegionConfig::fixed(), &[(0x1000, 8 * GIB)]);
    assert_eq!(
        pool.shared.with(|pool| pool.bin_summaries())[20].free_chunks,
        1
    );
}

#[test]
fn s8_9_growth_flag_on_begins_with_1_mib_and_off_takes_all_at_once() {
    let first_region = |mut pool: Upstream| {
        let _block = pool.alloc(4);
        pool.region_bytes()
    };
    assert_eq!(first_region(Upstream::new(2 * GIB)), [MIB]);
    assert_eq!(first_region(Upstream::at_once(2 * GIB)), [2 * GIB]);
    let without_bound = Bfc::new(2 * GIB).with_first_region(u64::MAX);
    let without_bound = Upstream::over(without_bound, crate::common::Source::new());
    assert_eq!(first_region(without_bound), [2 * GIB]);
}

#[test]
fn s8_9_region_release_collects_all_but_the_region_in_use() {
    let mut pool = Upstream::new(2 * GIB);
    let mut blocks: Vec<Block> = (0..128).map(|_| pool.alloc(4 * MIB)).collect();
    assert_eq!(pool.region_mib(), [4, 4, 8, 16, 32, 64, 128, 256]);
    let last = blocks.pop().expect("128 blocks");
    pool.free_all(blocks);
    assert_eq!(pool.trim(), 256 * MIB);
    assert_eq!(pool.region_mib(), [256]);
    assert_eq!(pool.free_chunks().len(), 1);
    pool.free(last);
    // Ours, of regions that are as large as was asked.
    let mut pool = Pool::of_regions(2 * GIB);
    let mut blocks: Vec<Block> = (0..8).map(|_| pool.alloc(4 * MIB)).collect();
    assert_eq!(pool.region_mib(), [4; 8]);
    let last = blocks.pop().expect("8 blocks");
    pool.free_all(blocks);
    assert_eq!(pool.trim(), 28 * MIB);
    assert_eq!(pool.region_mib(), [4]);
    pool.free(last);
}
