//! Pages that are mapped and unmapped.

use super::*;

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
    // 5 MiB of the second page are left after the blocks, fewer than in the hole, but they can
    // grow.
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
    // Pages 0, 1 and 3 lie wholly in free chunks; the rest of page 2 is used again.
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
    // The 60 MiB below the wall and the addresses above the blocks are unmapped.
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
    // The request was tried twice, since the whole cache was released in between.
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
