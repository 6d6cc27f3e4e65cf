//! Ours against upstream: `Shrink::Pending` waits for blocks to come back.

use crate::common::{Call, GIB, MIB, Pool};
use larder_core::{BfcConfig, Shrink};

/// TensorFlow's regions with our way to shrink.
fn pending(limit: u64) -> BfcConfig {
    BfcConfig {
        shrink: Shrink::Pending,
        ..BfcConfig::tensorflow(limit)
    }
}

#[test]
fn s9_5_a_failed_shrink_stays_pending_and_completes_as_blocks_come_home() {
    for by_trim in [false, true] {
        let mut pool = Pool::new(pending(GIB));
        let [a, b, c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        let change = pool.adjust(MIB);
        assert_eq!((change.limit_bytes, change.excess_bytes), (MIB, 6 * MIB));
        assert_eq!(pool.bfc.stats().limit_bytes, MIB, "in force at once");
        for (block, left) in [(b, 4), (c, 0)] {
            pool.free(block);
            if by_trim {
                pool.trim();
            } else {
                assert_eq!(pool.adjust(MIB).excess_bytes, left * MIB);
            }
            assert_eq!(pool.bfc.excess_bytes(), left * MIB);
            assert_eq!(pool.reserved_bytes(), (1 + left) * MIB);
        }
        pool.free(a);
        assert_eq!(pool.region_mib(), [1], "within the limit now");
    }
}

#[test]
fn s9_5_no_block_passes_a_pending_limit_and_what_is_held_serves_below_it() {
    let mut pool = Pool::new(pending(GIB));
    let [a, b] = [4, 4].map(|mib| pool.alloc(mib * MIB));
    pool.adjust(4 * MIB + 512);
    pool.source.take_log();
    pool.free(a);
    // 8 MiB are held, 4 of them free, but only 512 bytes more may be live.
    assert!(pool.try_alloc(768).is_none());
    let again = pool.alloc(512);
    assert!(pool.try_alloc(256).is_none());
    assert_eq!(
        pool.source.take_log(),
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
    let mut pool = Pool::new(pending(GIB));
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
        let mut pool = Pool::new(pending(GIB));
        let blocks = [1, 2, 4, 8].map(|mib| pool.alloc(mib * MIB));
        pool.free_all(blocks);
        pool.source.take_log();
        pool.adjust((15 - wanted) * MIB);
        let calls: Vec<Call> = released
            .iter()
            .map(|mib| Call::Release(mib * MIB))
            .collect();
        assert_eq!(pool.source.take_log(), calls, "{wanted} MiB too many");
        assert_eq!(pool.region_mib(), left);
    }
}

#[test]
fn s9_5_the_growth_step_is_remembered_after_a_shrink() {
    let mut pool = Pool::new(pending(GIB));
    let block = pool.alloc(20 * MIB);
    pool.free(block);
    pool.adjust(0);
    assert_eq!(pool.reserved_bytes(), 0);
    pool.adjust(GIB);
    pool.source.take_log();
    let _block = pool.alloc(1);
    assert_eq!(pool.source.take_log(), [Call::Grow(32 * MIB)]);
}
