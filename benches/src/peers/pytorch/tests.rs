//! Each published rule by itself, and all of them together on random requests.

use larder_model::Random;

use super::chunks::State;
use super::{Pytorch, PytorchConfig};
use crate::replay::{Contender, Slot};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn with(settings: &str, device_bytes: Option<u64>) -> Pytorch {
    Pytorch::new(PytorchConfig::parse(settings).unwrap(), device_bytes)
}

fn default() -> Pytorch {
    with("", None)
}

fn expandable(device_bytes: Option<u64>) -> Pytorch {
    with("expandable_segments:True", device_bytes)
}

/// One block of each size, lowest address first where they share a segment.
fn blocks<const N: usize>(allocator: &mut Pytorch, sizes: [u64; N]) -> [Slot; N] {
    sizes.map(|bytes| allocator.alloc(bytes).unwrap())
}

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
fn where_segments_grow_large_chunks_are_split_if_512_bytes_are_left() {
    let mut allocator = expandable(None);
    let [hole, _] = blocks(&mut allocator, [4 * MIB, 5 * MIB]);
    allocator.free(hole);
    let [slot] = blocks(&mut allocator, [4 * MIB - 512]);
    assert_eq!(slot.address, hole.address);
    assert_eq!(allocator.chunks.get(slot.handle).bytes, 4 * MIB - 512);
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
    // What is partly used stays.
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
    // The smallest that is enough.
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

    // Else the largest ones, until they are enough.
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

    // Where that does not do, all goes back.
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
    // 84 MiB are held, and 40 are asked for.
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

#[test]
fn pages_are_mapped_as_far_as_they_are_needed_and_counted_by_call() {
    let mut allocator = expandable(None);
    allocator.alloc(KIB).unwrap();
    assert_eq!(allocator.reserved_bytes(), 2 * MIB);
    let first = allocator.alloc(50 * MIB).unwrap();
    assert_eq!(allocator.reserved_bytes(), 62 * MIB);
    // The 10 MiB left of the third page are part of the next block.
    let second = allocator.alloc(25 * MIB).unwrap();
    assert_eq!(second.address, first.address + 50 * MIB);
    assert_eq!(allocator.reserved_bytes(), 82 * MIB);
    let calls = allocator.driver_calls().unwrap();
    assert_eq!((calls.create, calls.map, calls.set_access), (5, 5, 3));
    assert_eq!((calls.unmap, calls.release), (0, 0));
}

#[test]
fn a_chunk_that_can_grow_is_used_after_all_that_cannot() {
    let mut allocator = expandable(None);
    let [hole, _] = blocks(&mut allocator, [30 * MIB, 5 * MIB]);
    allocator.free(hole);
    // 5 MiB of the second page are left behind the blocks: fewer than in the hole, but they can grow.
    let [slot] = blocks(&mut allocator, [4 * MIB]);
    assert_eq!(slot.address, hole.address);
}

#[test]
fn a_full_device_gets_the_whole_pages_of_free_chunks_back() {
    let mut allocator = expandable(Some(104 * MIB));
    let [a, middle, b, end] = blocks(&mut allocator, [50 * MIB, 5 * MIB, 25 * MIB, 20 * MIB]);
    assert_eq!(allocator.reserved_bytes(), 100 * MIB);
    assert_eq!(allocator.alloc(30 * MIB), None);
    let calls = allocator.driver_calls().unwrap();
    assert_eq!((calls.map, calls.unmap), (5, 0), "nothing was free");
    allocator.free(a);
    allocator.free(b);
    // Pages 0, 1 and 3 lie in free chunks as a whole; what is left of page 2 is used again.
    let [low] = blocks(&mut allocator, [50 * MIB]);
    assert_eq!(low.address, a.address, "that much was free and mapped");
    allocator.free(low);
    let [high] = blocks(&mut allocator, [51 * MIB]);
    let calls = allocator.driver_calls().unwrap();
    assert_eq!((calls.map, calls.unmap), (8, 3));
    assert_eq!(
        high.address,
        120 * MIB,
        "no hole is as long: a second segment"
    );
    allocator.free(high);
    for slot in [middle, end] {
        allocator.free(slot);
    }
    allocator.chunks.check_invariants();
    let [all] = blocks(&mut allocator, [100 * MIB]);
    assert_eq!(
        (all.address, allocator.reserved_bytes()),
        (a.address, 100 * MIB)
    );
}

#[test]
fn pages_are_mapped_at_the_lowest_addresses_that_have_room() {
    let mut allocator = expandable(Some(104 * MIB));
    let [low, wall, _] = blocks(&mut allocator, [60 * MIB, 20 * MIB, 20 * MIB]);
    allocator.free(low);
    allocator.release_cached();
    assert_eq!(allocator.reserved_bytes(), 40 * MIB);
    // Unmapped are 60 MiB below the wall and what is above the blocks.
    let [first] = blocks(&mut allocator, [25 * MIB]);
    assert_eq!(first.address, low.address);
    // The 15 MiB that are left mapped are part of the next block.
    let [second] = blocks(&mut allocator, [30 * MIB]);
    assert_eq!(second.address, low.address + 25 * MIB);
    assert_eq!(allocator.reserved_bytes(), 100 * MIB);
    assert!(second.address + 30 * MIB <= wall.address);
}

#[test]
fn pages_that_do_not_all_fit_are_given_back_at_once() {
    let mut allocator = expandable(Some(70 * MIB));
    assert_eq!(allocator.alloc(80 * MIB), None);
    assert_eq!(allocator.reserved_bytes(), 0);
    let calls = allocator.driver_calls().unwrap();
    // Tried twice, since all that was cached went back in between.
    assert_eq!((calls.create, calls.release, calls.map), (6, 6, 0));
    assert_eq!(allocator.alloc(60 * MIB).unwrap().address, 0);
}

#[test]
fn a_request_beyond_all_addresses_asks_the_device_for_nothing() {
    for device_bytes in [Some(70 * MIB), None] {
        let mut allocator = expandable(device_bytes);
        assert_eq!(allocator.alloc(1 << 50), None);
        assert_eq!(allocator.driver_calls().unwrap().create, 0);
        assert_eq!(allocator.alloc(30 * MIB).unwrap().address, 0);
    }
}

#[test]
fn nothing_overlaps_and_all_that_is_live_is_held() {
    let settings = [
        "",
        "expandable_segments:True",
        "max_split_size_mb:24,garbage_collection_threshold:0.3",
        "roundup_power2_divisions:4,garbage_collection_threshold:0.6",
        "expandable_segments:True,max_split_size_mb:24,roundup_power2_divisions:8",
    ];
    for seed in 0..100 {
        for settings in settings {
            println!("seed {seed}, {settings:?}");
            random_run(seed, settings);
        }
    }
}

/// Requests of all sizes on three streams of a device that is full now and then.
fn random_run(seed: u64, settings: &str) {
    let mut random = Random::new(seed);
    let device_bytes = MIB * (40 + random.below(400));
    let mut allocator = with(settings, Some(device_bytes));
    let mut live: Vec<(Slot, u64)> = Vec::new();
    for _ in 0..400 {
        if random.below(9) < 5 {
            let log2 = 1 + random.below(27);
            let bytes = 1 + random.below(1 << log2);
            let stream = random.below(3) as u32;
            let slot = allocator.alloc_on(stream, bytes);
            live.extend(slot.map(|slot| (slot, bytes)));
        } else if !live.is_empty() {
            let which = random.below(live.len() as u64) as usize;
            allocator.free(live.swap_remove(which).0);
        }
        if random.below(100) == 0 {
            live.drain(..).for_each(|(slot, _)| allocator.free(slot));
        }
        judge(&allocator, &live, device_bytes);
    }
    live.drain(..).for_each(|(slot, _)| allocator.free(slot));
    allocator.release_cached();
    assert_eq!(
        allocator.reserved_bytes(),
        0,
        "all that is free can go back"
    );
}

fn judge(allocator: &Pytorch, live: &[(Slot, u64)], device_bytes: u64) {
    allocator.chunks.check_invariants();
    let mut places: Vec<(u64, u64)> = live
        .iter()
        .map(|(slot, bytes)| (slot.address, slot.address + bytes))
        .collect();
    places.sort_unstable();
    let overlap = places.windows(2).find(|pair| pair[0].1 > pair[1].0);
    assert_eq!(overlap, None);
    let held = allocator.held().unwrap();
    let bytes: u64 = held.iter().map(|span| span.end - span.start).sum();
    assert_eq!(bytes, allocator.reserved_bytes());
    assert!(bytes <= device_bytes);
    for &(slot, bytes) in live {
        let chunk = allocator.chunks.get(slot.handle);
        assert_eq!((chunk.state, chunk.address), (State::Used, slot.address));
        assert!(chunk.bytes >= bytes);
    }
}
