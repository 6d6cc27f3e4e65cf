//! CONFORMANCE 8.1 and 8.3: the chunk that serves a request, its split, and the counters.

use crate::common::{Alike, GIB, KIB, MIB, Pool, Random, Upstream, both};
use larder_core::{Align, BestFit, Block, Granule, Request};

#[test]
fn s8_1_the_granule_is_256_bytes() {
    assert_eq!(Granule::DEFAULT.bytes(), 256);
    for (bytes, granted) in [(1, 256), (255, 256), (256, 256), (257, 512)] {
        for mut pool in both(GIB) {
            assert_eq!(pool.alloc(bytes).bytes(), granted);
        }
    }
}

/// What a request is granted from one free chunk of `whole` bytes, and what stays free.
fn granted(whole: u64, bytes: u64) -> (u64, Vec<u64>) {
    let mut pool = Upstream::with_regions(u64::MAX, &[(0x1_0000, whole)]);
    let block = pool.alloc(bytes);
    assert_eq!(block.addr().get(), 0x1_0000, "the front is given");
    let rest = pool.free_chunks().iter().map(|chunk| chunk.1).collect();
    (block.bytes(), rest)
}

#[test]
fn s8_3_a_chunk_of_twice_the_rounded_size_is_split_and_one_granule_less_is_not() {
    for r in [256, 512, 4096, 64 * MIB] {
        assert_eq!(granted(r, r), (r, vec![]));
        assert_eq!(granted(2 * r, r), (r, vec![r]));
        assert_eq!(granted(2 * r + 256, r), (r, vec![r + 256]));
        if r > 256 {
            assert_eq!(granted(2 * r - 256, r), (2 * r - 256, vec![]));
            assert_eq!(
                granted(2 * r, r - 255),
                (r, vec![r]),
                "the rounded size counts"
            );
            assert_eq!(granted(2 * r - 256, r - 256), (r - 256, vec![r]));
        }
    }
}

#[test]
fn s8_3_a_chunk_128_mib_larger_is_split_and_one_granule_less_is_not() {
    let waste = 128 * MIB;
    for r in [waste + 256, 200 * MIB, GIB] {
        assert_eq!(granted(r + waste, r), (r, vec![waste]));
        assert_eq!(granted(r + waste + 256, r), (r, vec![waste + 256]));
        assert_eq!(granted(r + waste - 256, r), (r + waste - 256, vec![]));
    }
    // At 128 MiB both rules agree.
    assert_eq!(granted(2 * waste, waste), (waste, vec![waste]));
    assert_eq!(granted(2 * waste - 256, waste), (2 * waste - 256, vec![]));
}

#[test]
fn s8_3_in_use_counts_whole_chunks_700_kib_of_a_1_mib_region_count_1_mib() {
    let mut pool = Upstream::new(GIB);
    let block = pool.alloc(700 * KIB);
    assert_eq!(pool.tuple(), (1, MIB, MIB, MIB));
    let sizes = (block.bytes(), pool.requested_bytes(&block));
    assert_eq!(sizes, (MIB, Some(700 * KIB)));
    assert_eq!(pool.stats().requested_bytes, 700 * KIB);
    pool.free(block);
    assert_eq!(pool.tuple(), (1, 0, MIB, MIB));
}

/// Ours: what is lost in a block is less than a granule.
#[test]
fn s8_3_ours_counts_the_rounded_size_700_kib_of_a_1_mib_region_count_700_kib() {
    let mut pool = Pool::of_regions(GIB);
    let block = pool.alloc(700 * KIB - 100);
    assert_eq!(pool.tuple(), (1, 700 * KIB, 700 * KIB, 700 * KIB));
    let lost = pool.shared.get_mut().report().internal_fragmentation();
    assert_eq!(lost, 100.0 / (700.0 * 1024.0));
    pool.free(block);
}

#[test]
fn s8_3_the_smallest_chunk_that_fits_serves_wherever_it_lies() {
    let bytes = [8192, 2560, 3072, 3328, 512, 6144];
    let places: Vec<(u64, u64)> = (1..).map(|i| i * 0x10_0000).zip(bytes).collect();
    let mut pool = Upstream::with_regions(u64::MAX, &places);
    // (request, the chunk that serves); none is split, so each is used up.
    for (request, served) in [
        (2561, 3072),
        (2561, 3328),
        (300, 512),
        (2048, 2560),
        (5000, 6144),
    ] {
        let block = pool.alloc(request);
        let expected = places
            .iter()
            .find(|place| place.1 == served)
            .expect("in the list");
        assert_eq!(
            (block.addr().get(), block.bytes()),
            *expected,
            "for {request}"
        );
    }
}

#[test]
fn s8_3_among_equal_chunks_of_one_region_the_lowest_address_serves() {
    let mut random = Random::new(7);
    for _ in 0..20 {
        let mut pool = Upstream::with_regions(u64::MAX, &[(0x1000, 64 * 1024)]);
        // Blocks to free alternate with blocks that keep them apart.
        let mut blocks: Vec<Block> = (0..64).map(|_| pool.alloc(512)).collect();
        let mut free: Vec<u64> = Vec::new();
        for _ in 0..16 {
            let i = random.below(32) as usize * 2;
            let found = blocks
                .iter()
                .position(|b| b.addr().get() == 0x1000 + 512 * i as u64);
            if let Some(found) = found {
                free.push(blocks[found].addr().get());
                pool.free(blocks.swap_remove(found));
            }
        }
        free.sort_unstable();
        for addr in free {
            assert_eq!(pool.alloc(512).addr().get(), addr);
        }
    }
}

#[test]
fn s8_3_among_equal_chunks_of_two_regions_the_lowest_address_serves() {
    let (low, high) = (0x1000_0000, 0x5000_0000);
    for order in [[low, high], [high, low]] {
        let regions = order.map(|start| (start, 4096));
        let mut pool = Upstream::with_regions(u64::MAX, &regions);
        assert_eq!(pool.alloc(4096).addr().get(), low);
        assert_eq!(pool.alloc(4096).addr().get(), high);
    }
    // Also after both were used and freed in either order.
    for order in [[0, 1], [1, 0]] {
        let regions = [(high, 4096), (low, 4096)];
        let mut pool = Upstream::with_regions(u64::MAX, &regions);
        let mut blocks = [0, 1].map(|_| Some(pool.alloc(4096)));
        for i in order {
            pool.free(blocks[i].take().expect("freed once"));
        }
        assert_eq!(pool.alloc(4096).addr().get(), low);
    }
}

#[test]
fn s8_3_ids_start_at_1_rise_by_1_and_a_failure_takes_none() {
    for mut pool in both(MIB) {
        let first = pool.alloc(1);
        assert_eq!(pool.allocation_id(&first), Some(1));
        assert!(pool.try_alloc(2 * MIB).is_none());
        assert!(pool.try_alloc(0).is_none());
        let second = pool.alloc(1);
        assert_eq!(pool.allocation_id(&second), Some(2));
        pool.free(first);
        let third = pool.alloc(1);
        let id = pool.allocation_id(&third);
        assert_eq!(id, Some(3), "a place used again has a new id");
        pool.clear_stats();
        let fourth = pool.alloc(1);
        let id = pool.allocation_id(&fourth);
        assert_eq!(id, Some(4), "clearing counts leaves ids alone");
        assert_eq!(pool.tuple().0, 1);
    }
}

#[test]
fn s3_1_clearing_sets_count_and_largest_to_0_and_the_peak_to_what_is_in_use() {
    for mut pool in both(GIB) {
        let [a, b, c] = [1000, 5000, 3000].map(|bytes| pool.alloc(bytes));
        pool.free(b);
        assert_eq!(pool.tuple(), (3, 1024 + 3072, 1024 + 5120 + 3072, 5120));
        let mut by_hand = pool.stats();
        pool.clear_stats();
        assert_eq!(pool.tuple(), (0, 4096, 4096, 0));
        by_hand.clear();
        assert_eq!(by_hand, pool.stats());
        assert_eq!((by_hand.reserved_bytes, by_hand.limit_bytes), (MIB, GIB));
        pool.free_all(vec![a, c]);
        assert_eq!(pool.tuple(), (0, 0, 4096, 0));
    }
}

#[test]
fn s8_3_the_alignment_up_to_256_is_free_and_above_it_is_honoured() {
    let mut upstream = Upstream::new(GIB);
    for bytes in [1, 256, 300, 5000] {
        assert_eq!(upstream.alloc(bytes).addr().get() % 256, 0);
    }
    // Ours: upstream looks at no alignment.
    let mut pool = Pool::of_regions(GIB);
    for log2 in 0..=20 {
        let align = Align::new(1 << log2).expect("a power of two");
        let block = pool.grant(&Request::new(300).aligned(align)).block;
        assert!(
            block.addr().is_aligned(align),
            "{} at {}",
            align.bytes(),
            block.addr()
        );
    }
}
