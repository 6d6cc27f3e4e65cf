//! Our difference from upstream: a lower limit holds at once, and the excess is released as blocks are freed.

use crate::common::{Call, GIB, MIB, Pool, range};
use larder_core::BestFit;
use larder_core::RegionConfig;

#[test]
fn s9_5_a_failed_shrink_stays_pending_and_completes_as_blocks_come_home() {
    for by_trim in [false, true] {
        let mut pool = Pool::of_regions(GIB);
        let [a, b, c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        let change = pool.adjust(MIB);
        assert_eq!((change.limit_bytes, change.excess_bytes), (MIB, 6 * MIB));
        assert_eq!(
            pool.shared.get_mut().stats().limit_bytes,
            MIB,
            "in force at once"
        );
        for (block, left) in [(b, 4), (c, 0)] {
            pool.free(block);
            if by_trim {
                pool.trim();
            } else {
                assert_eq!(pool.adjust(MIB).excess_bytes, left * MIB);
            }
            assert_eq!(pool.shared.get_mut().excess_bytes(), left * MIB);
            assert_eq!(pool.reserved_bytes(), (1 + left) * MIB);
        }
        pool.free(a);
        assert_eq!(pool.region_mib(), [1], "within the limit now");
    }
}

#[test]
fn s9_5_no_block_passes_a_pending_limit_and_what_is_held_serves_below_it() {
    let mut pool = Pool::of_regions(GIB);
    let [a, b] = [4, 4].map(|mib| pool.alloc(mib * MIB));
    pool.adjust(4 * MIB + 512);
    pool.source().take_log();
    pool.free(a);
    // 8 MiB are held, 4 of them free, but only 512 bytes more may be live.
    assert!(pool.try_alloc(768).is_none());
    let again = pool.alloc(512);
    assert!(pool.try_alloc(256).is_none());
    assert_eq!(
        pool.source().take_log(),
        [],
        "neither asked for nor given back"
    );
    pool.free(again);
    pool.free(b);
    assert_eq!(pool.adjust(4 * MIB).excess_bytes, 0);
    assert_eq!(pool.region_mib(), [4]);
}

#[test]
fn s9_5_raising_the_limit_ends_a_pending_shrink() {
    let mut pool = Pool::of_regions(GIB);
    let block = pool.alloc(4 * MIB);
    assert_eq!(pool.adjust(MIB).excess_bytes, 3 * MIB);
    assert_eq!(pool.adjust(8 * MIB).excess_bytes, 0);
    pool.free(block);
    pool.adjust(8 * MIB);
    assert_eq!(pool.region_mib(), [4]);
}

#[test]
fn s7_10_regions_go_in_the_order_of_least_excess() {
    for (wanted, released, left) in [
        // The smallest that suffices, wherever it lies.
        (1, vec![1], vec![2, 4, 8]),
        (2, vec![2], vec![1, 4, 8]),
        (3, vec![4], vec![1, 2, 8]),
        (4, vec![4], vec![1, 2, 8]),
        (8, vec![8], vec![1, 2, 4]),
        // None suffices: the largest, then the smallest that does the rest.
        (9, vec![8, 1], vec![2, 4]),
        (12, vec![8, 4], vec![1, 2]),
        (15, vec![8, 4, 2, 1], vec![]),
    ] {
        // Without a range that grows, whose end would be cut last.
        let regions = [1, 2, 4, 8].map(|mib| (mib * GIB, mib * MIB));
        let mut pool = Pool::with_regions(RegionConfig::fixed(), &regions);
        for (start, bytes) in regions {
            pool.source().hand_out(range(start, bytes));
        }
        pool.adjust((15 - wanted) * MIB);
        let calls: Vec<Call> = released
            .iter()
            .map(|mib| Call::Release(mib * MIB))
            .collect();
        assert_eq!(pool.source().take_log(), calls, "{wanted} MiB too many");
        assert_eq!(pool.region_mib(), left);
    }
}

/// Upstream restarts its step (s7_2); ours keeps its unit.
#[test]
fn s9_5_growth_goes_on_as_before_after_a_shrink() {
    let mut pool = Pool::of_regions(GIB);
    let block = pool.alloc(20 * MIB);
    pool.free(block);
    pool.adjust(0);
    assert_eq!(pool.reserved_bytes(), 0);
    pool.adjust(GIB);
    pool.source().take_log();
    let _blocks = [1, 20 * MIB].map(|bytes| pool.alloc(bytes));
    let calls = pool.source().take_log();
    assert_eq!(calls[0], Call::Grow(MIB));
    assert_eq!(calls.last(), Some(&Call::Grow(20 * MIB)));
}
