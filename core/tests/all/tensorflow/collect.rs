//! CONFORMANCE 8.6: which free regions are released to make room, and when.

use crate::common::{Alike, Call, GIB, MIB, Pool, Upstream};

fn collecting(limit: u64) -> Upstream {
    Upstream::collecting(limit)
}

#[test]
fn s8_6_free_regions_are_collected_only_if_that_is_enabled() {
    for enabled in [false, true] {
        let mut pool = if enabled {
            collecting(3 * MIB)
        } else {
            Upstream::new(3 * MIB)
        };
        let blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
        pool.free_all(blocks.into());
        pool.source.take_log();
        let block = pool.try_alloc(3 * MIB);
        assert_eq!(block.is_some(), enabled);
        if enabled {
            let calls = [
                Call::Release(MIB),
                Call::Release(2 * MIB),
                Call::Grow(3 * MIB),
            ];
            assert_eq!(pool.source.take_log(), calls);
            assert_eq!(pool.region_mib(), [3]);
        } else {
            assert_eq!(pool.source.take_log(), []);
            assert_eq!(pool.region_mib(), [1, 2]);
        }
    }
}

#[test]
fn s8_6_all_free_regions_go_even_if_one_would_do_and_regions_in_use_stay() {
    let mut pool = collecting(7 * MIB);
    let [a, _b, c] = [MIB, 2 * MIB, 4 * MIB].map(|bytes| pool.alloc(bytes));
    pool.free(a);
    pool.free(c);
    pool.source.take_log();
    let block = pool.alloc(4 * MIB + 256);
    let calls = [
        Call::Release(MIB),
        Call::Release(4 * MIB),
        Call::Grow(5 * MIB),
    ];
    assert_eq!(pool.source.take_log(), calls);
    assert_eq!((block.bytes(), pool.region_mib()), (5 * MIB, vec![2, 5]));
}

#[test]
fn s8_6_a_request_above_what_collection_can_free_leaves_every_region() {
    let mut pool = collecting(7 * MIB);
    let [a, _b, c] = [MIB, 2 * MIB, 4 * MIB].map(|bytes| pool.alloc(bytes));
    pool.free(a);
    pool.free(c);
    pool.source.take_log();
    pool.refuses_unchanged(5 * MIB + 1);
    assert_eq!(pool.source.take_log(), []);
    assert!(
        pool.try_alloc(5 * MIB).is_some(),
        "exactly what can be freed"
    );
}

#[test]
fn s8_6_without_a_free_region_nothing_is_collected() {
    let mut pool = collecting(3 * MIB);
    let _blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
    pool.source.take_log();
    pool.refuses_unchanged(256);
    assert_eq!(pool.source.take_log(), []);
}

#[test]
fn s8_6_a_region_with_one_small_block_is_not_collected() {
    let mut pool = collecting(2 * MIB);
    let block = pool.alloc(256);
    pool.source.take_log();
    pool.refuses_unchanged(MIB + MIB / 2);
    pool.free(block);
    assert!(pool.try_alloc(MIB + MIB / 2).is_some());
}

#[test]
fn s8_6_growing_goes_before_collecting() {
    let mut pool = collecting(16 * MIB);
    let block = pool.alloc(MIB);
    pool.free(block);
    pool.source.take_log();
    let _block = pool.alloc(2 * MIB);
    assert_eq!(pool.source.take_log(), [Call::Grow(2 * MIB)]);
    assert_eq!(pool.region_mib(), [1, 2]);
}

#[test]
fn s8_6_a_sub_allocator_that_refuses_makes_room_by_collection_and_is_asked_again() {
    let mut pool = collecting(GIB);
    let blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
    pool.free_all(blocks.into());
    pool.source.capacity_bytes.set(4 * MIB);
    pool.source.take_log();
    let block = pool.alloc(4 * MIB);
    // Asked at once for the step of 4 MiB; nothing smaller serves.
    let calls = [
        Call::GrowRefused(4 * MIB),
        Call::Release(MIB),
        Call::Release(2 * MIB),
        Call::Grow(4 * MIB),
    ];
    assert_eq!(pool.source.take_log(), calls);
    assert_eq!(block.bytes(), 4 * MIB);
}

#[test]
fn s8_6_a_refusal_after_collection_is_an_error_and_what_was_collected_is_gone() {
    let mut pool = collecting(3 * MIB);
    let blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
    pool.free_all(blocks.into());
    pool.source.refuse_grows.set(u32::MAX);
    assert!(pool.try_alloc(3 * MIB).is_none());
    assert_eq!((pool.reserved_bytes(), pool.source.out_bytes()), (0, 0));
    pool.source.refuse_grows.set(0);
    assert!(pool.try_alloc(3 * MIB).is_some());
}

/// Ours: upstream's sub-allocator cannot refuse.
#[test]
fn s8_6_a_region_that_is_not_taken_back_is_skipped_and_serves_on() {
    let mut pool = Pool::of_regions(3 * MIB);
    let blocks = [MIB, 2 * MIB].map(|bytes| pool.alloc(bytes));
    pool.free_all(blocks);
    pool.source().refuse_releases.set(u32::MAX);
    pool.source().take_log();
    assert!(pool.unchanged(|pool| pool.try_alloc(3 * MIB)).is_none());
    let refused = [Call::ReleaseRefused(MIB), Call::ReleaseRefused(2 * MIB)];
    assert_eq!(pool.source().take_log(), refused);
    let _blocks = [2 * MIB, MIB].map(|bytes| pool.alloc(bytes));
    assert_eq!(pool.source().take_log(), []);
}
