//! Sizes, pools, streams, splits, and memory that is released in whole segments.

use super::*;

#[test]
fn segments_are_2_mib_then_20_mib_then_whole_units_of_2_mib() {
    for (bytes, segment) in [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (37 * MIB, 38 * MIB),
    ] {
        let mut allocator = default();
        allocator.alloc(bytes).unwrap();
        assert_eq!(allocator.reserved_bytes(), segment, "{bytes} bytes");
        assert_eq!(allocator.driver_allocations(), 1);
    }
}

#[test]
fn small_requests_never_use_the_segments_of_large_ones() {
    for mut allocator in [default(), expandable(None)] {
        let large = allocator.alloc(5 * MIB).unwrap();
        allocator.free(large);
        allocator.alloc(MIB).unwrap();
        assert_eq!(allocator.reserved_bytes(), 22 * MIB);
        allocator.alloc(MIB + 1).unwrap();
        assert_eq!(allocator.reserved_bytes(), 22 * MIB);
    }
}

#[test]
fn the_smallest_chunk_that_fits_is_taken_and_of_those_the_lowest() {
    let mut allocator = default();
    let sizes = [96, 8, 64, 8, 64, 8].map(|kib| kib * KIB);
    let [widest, _, lower, _, upper, _] = blocks(&mut allocator, sizes);
    for slot in [widest, upper, lower] {
        allocator.free(slot);
    }
    let taken = blocks(&mut allocator, [60 * KIB, 60 * KIB, 60 * KIB]);
    let expected = [lower, upper, widest].map(|slot| slot.address);
    assert_eq!(taken.map(|slot| slot.address), expected);
}

#[test]
fn a_chunk_serves_its_own_stream_only() {
    for mut allocator in [default(), expandable(None)] {
        let slot = allocator.alloc_on(1, 3 * MIB).unwrap();
        allocator.free(slot);
        let other = allocator.alloc_on(0, 3 * MIB).unwrap();
        assert_ne!(other.address, slot.address);
        assert_eq!(allocator.reserved_bytes(), 40 * MIB);
        let own = allocator.alloc_on(1, 3 * MIB).unwrap();
        assert_eq!(own.address, slot.address);
    }
}

#[test]
fn small_chunks_are_split_if_512_bytes_are_left() {
    let mut allocator = default();
    let [hole, _] = blocks(&mut allocator, [1536, MIB]);
    allocator.free(hole);
    let [low, high] = blocks(&mut allocator, [1024, 512]);
    assert_eq!(
        [low.address, high.address],
        [hole.address, hole.address + 1024]
    );
}

#[test]
fn large_chunks_are_split_if_more_than_1_mib_is_left() {
    for (left, splits) in [(MIB, false), (MIB + 512, true)] {
        let mut allocator = default();
        // A segment of 20 MiB, so that the chunk is not a segment.
        let [hole, _] = blocks(&mut allocator, [4 * MIB, 5 * MIB]);
        allocator.free(hole);
        allocator.alloc(4 * MIB - left).unwrap();
        let free = allocator.chunks.free();
        let free: Vec<u64> = free
            .map(|record| allocator.chunks.get(record).bytes)
            .collect();
        assert_eq!(free.contains(&left), splits, "{left} bytes: {free:?}");
    }
}

#[test]
fn a_freed_block_joins_its_neighbours() {
    for mut allocator in [default(), expandable(None)] {
        let [a, b, c] = blocks(&mut allocator, [2 * MIB, 2 * MIB, 2 * MIB]);
        for slot in [a, c, b] {
            allocator.free(slot);
        }
        let [all] = blocks(&mut allocator, [20 * MIB]);
        assert_eq!(
            (all.address, allocator.reserved_bytes()),
            (a.address, 20 * MIB)
        );
    }
}

#[test]
fn chunks_from_the_split_limit_on_are_not_split_and_not_for_smaller_requests() {
    let mut allocator = with("max_split_size_mb:64", None);
    let [oversize] = blocks(&mut allocator, [64 * MIB]);
    allocator.free(oversize);
    let [smaller] = blocks(&mut allocator, [30 * MIB]);
    assert_ne!(smaller.address, oversize.address);
    assert_eq!(allocator.reserved_bytes(), 94 * MIB);
    let [again] = blocks(&mut allocator, [64 * MIB]);
    assert_eq!(again.address, oversize.address);
}

#[test]
fn an_oversize_request_takes_a_chunk_less_than_20_mib_larger() {
    for (more, taken) in [(20 * MIB - 512, true), (20 * MIB, false)] {
        let mut allocator = with("max_split_size_mb:64", None);
        let [oversize] = blocks(&mut allocator, [100 * MIB]);
        allocator.free(oversize);
        let [slot] = blocks(&mut allocator, [100 * MIB - more]);
        assert_eq!(slot.address == oversize.address, taken, "{more} bytes");
        let whole = allocator.chunks.get(slot.handle).is_whole();
        assert!(whole, "an oversize chunk is not split");
    }
    let wide = "max_split_size_mb:64,max_non_split_rounding_mb:30";
    let mut allocator = with(wide, None);
    let [oversize] = blocks(&mut allocator, [100 * MIB]);
    allocator.free(oversize);
    let [slot] = blocks(&mut allocator, [75 * MIB]);
    assert_eq!(slot.address, oversize.address);
}

#[test]
fn a_full_device_gets_all_whole_segments_back_before_a_refusal() {
    let mut allocator = with("", Some(100 * MIB));
    let [a, b, rest, small] = blocks(&mut allocator, [30 * MIB, 30 * MIB, 5 * MIB, KIB]);
    assert_eq!(allocator.alloc(40 * MIB), None, "18 MiB are left");
    for slot in [a, b] {
        allocator.free(slot);
    }
    allocator.alloc(40 * MIB).unwrap();
    assert_eq!(
        (allocator.reserved_bytes(), allocator.driver_frees()),
        (62 * MIB, 2)
    );
    // A partly used segment stays.
    assert_eq!(allocator.alloc(50 * MIB), None);
    assert_eq!(
        (allocator.reserved_bytes(), allocator.driver_frees()),
        (62 * MIB, 2)
    );
    allocator.free(rest);
    allocator.free(small);
    allocator.alloc(50 * MIB).unwrap();
    assert_eq!(allocator.reserved_bytes(), 90 * MIB);
}

#[test]
fn with_a_split_limit_only_what_makes_room_goes_back() {
    let settings = "max_split_size_mb:32";
    // Releases the smallest segment that is large enough.
    let mut allocator = with(settings, Some(300 * MIB));
    let [a, b, c] = blocks(&mut allocator, [60 * MIB, 100 * MIB, 140 * MIB]);
    for slot in [a, b, c] {
        allocator.free(slot);
    }
    allocator.alloc(81 * MIB).unwrap();
    assert_eq!(
        allocator.driver_frees(),
        0,
        "the chunk of 100 MiB is not too large"
    );
    allocator.alloc(70 * MIB).unwrap();
    assert_eq!(
        (allocator.reserved_bytes(), allocator.driver_frees()),
        (230 * MIB, 1)
    );

    // Otherwise releases the largest ones, until they are enough.
    let mut allocator = with(settings, Some(300 * MIB));
    let [a, b, c, small] = blocks(&mut allocator, [60 * MIB, 80 * MIB, 100 * MIB, KIB]);
    for slot in [a, b, c, small] {
        allocator.free(slot);
    }
    allocator.alloc(150 * MIB).unwrap();
    assert_eq!(
        (allocator.reserved_bytes(), allocator.driver_frees()),
        (212 * MIB, 2)
    );

    // If they are not enough, all cached memory is released.
    let mut allocator = with(settings, Some(300 * MIB));
    let [a, b, small] = blocks(&mut allocator, [60 * MIB, 80 * MIB, KIB]);
    for slot in [a, b, small] {
        allocator.free(slot);
    }
    allocator.alloc(298 * MIB + KIB).unwrap();
    assert_eq!(
        (allocator.reserved_bytes(), allocator.driver_frees()),
        (300 * MIB, 3)
    );
}

#[test]
fn above_the_threshold_segments_idle_for_longer_than_the_average_go_back() {
    let held_after = |settings: &str, device_bytes: Option<u64>| {
        let mut allocator = with(settings, device_bytes);
        let [old, young, split, small] = blocks(&mut allocator, [30 * MIB, 32 * MIB, 4 * MIB, KIB]);
        for slot in [small, old] {
            allocator.free(slot);
        }
        // Ten large requests, which the segment of 20 MiB serves.
        for _ in 0..10 {
            let slot = allocator.alloc(2 * MIB).unwrap();
            allocator.free(slot);
        }
        allocator.free(young);
        let _ = split;
        allocator.alloc(40 * MIB).unwrap();
        (allocator.reserved_bytes() / MIB, allocator.driver_frees())
    };
    // 84 MiB are held, and 40 are requested.
    assert_eq!(held_after("", Some(1000 * MIB)), (124, 0));
    let half = "garbage_collection_threshold:0.5";
    assert_eq!(
        held_after(half, Some(168 * MIB)),
        (124, 0),
        "84 of 168 MiB is not above"
    );
    assert_eq!(
        held_after(half, Some(166 * MIB)),
        (94, 1),
        "the old one is enough"
    );
    let fifth = "garbage_collection_threshold:0.2";
    assert_eq!(
        held_after(fifth, Some(200 * MIB)),
        (62, 2),
        "the young one in a second round"
    );
    assert_eq!(
        held_after(half, None),
        (124, 0),
        "a part of no limit is none"
    );
    let growing = "garbage_collection_threshold:0.2,expandable_segments:True";
    assert_eq!(held_after(growing, Some(200 * MIB)).1, 0, "pages stay");
}
