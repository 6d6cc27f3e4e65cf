//! `AllocError`: each refusal of a request with its cause and numbers.

use super::{BASE, FIXED, GRANULE, fixed, numbers, out_of_memory, ranged, refused};
use crate::common::{GIB, KIB, MIB, Pool, Source};
use larder_core::{
    Align, AllocError, BestFit, Block, Cause, Growth, MAX_REGIONS, RegionConfig, Request,
    SubAllocError,
};

#[test]
fn zero_bytes_are_refused_with_every_alignment_and_stream() {
    let mut pool = fixed(4);
    for align in [1, 256, 1 << 63] {
        let request = Request::new(0).aligned(Align::new(align).expect("a power of two"));
        assert_eq!(refused(&mut pool, &request), AllocError::ZeroSize);
    }
}

#[test]
fn sizes_and_alignments_past_what_32_bits_count_are_too_large() {
    let max = u64::from(u32::MAX) * GRANULE;
    let align = |log2: u32| Align::new(1 << log2).expect("a power of two");
    for config in [FIXED, RegionConfig::default()] {
        let mut pool = Pool::new(config);
        for request in [
            Request::new(u64::MAX),
            Request::new(u64::MAX - 255),
            Request::new(1 << 63),
            Request::new(max + 1),
            Request::new(1).aligned(align(63)),
            Request::new(1).aligned(align(40)),
            Request::new(u64::MAX).aligned(align(63)),
        ] {
            let requested_bytes = request.bytes;
            let expected = AllocError::TooLarge { requested_bytes };
            assert_eq!(refused(&mut pool, &request), expected, "{request:?}");
        }
        assert_eq!(pool.source().take_log(), [], "nobody was asked");
    }
}

#[test]
fn the_largest_region_serves_a_request_for_all_of_it_and_one_byte_more_is_too_large() {
    let max = u64::from(u32::MAX) * GRANULE;
    for bytes in [max - GRANULE, max] {
        let mut pool = Pool::with_regions(FIXED, &[(1 << 40, max)]);
        let block = pool.alloc(bytes);
        assert_eq!(block.bytes(), bytes);
        pool.free(block);
    }
    let mut pool = Pool::with_regions(FIXED, &[(1 << 40, max)]);
    let requested_bytes = max + 1;
    let expected = AllocError::TooLarge { requested_bytes };
    assert_eq!(refused(&mut pool, &Request::new(requested_bytes)), expected);
}

#[test]
fn a_full_table_refuses_to_split_and_serves_again_after_a_free() {
    // The sink, two blocks and the rest.
    let mut pool = Pool::over(FIXED, Source::new(), 4);
    pool.add_region(BASE, 16 * GRANULE);
    let a = pool.alloc(GRANULE);
    let b = pool.alloc(GRANULE);
    let full = AllocError::TableFull { records: 3 };
    assert_eq!(refused(&mut pool, &Request::new(GRANULE)), full);
    let align = Align::new(8 * GRANULE).expect("a power of two");
    assert_eq!(
        refused(&mut pool, &Request::new(GRANULE).aligned(align)),
        full
    );
    let rest = pool.alloc(14 * GRANULE);
    assert_eq!(rest.bytes(), 14 * GRANULE, "a whole chunk needs no record");
    pool.free(b);
    let b = pool.alloc(GRANULE);
    pool.free_all([a, b, rest]);
    assert_eq!(pool.free_chunks(), [(BASE, 16 * GRANULE)]);
    assert_eq!(pool.shared.get_mut().report().vacant_records, 2);
}

#[test]
fn a_full_table_cannot_grow_and_asks_nobody() {
    // The sink and two blocks that are whole regions.
    let mut pool = Pool::over(ranged(GIB), Source::new(), 3);
    let [a, b] = [0, 1].map(|_| pool.alloc(64 * KIB));
    pool.source().take_log();
    let full = AllocError::TableFull { records: 2 };
    assert_eq!(refused(&mut pool, &Request::new(1)), full);
    assert_eq!(pool.source().take_log(), []);
    pool.free_all([a, b]);
    assert_eq!(
        refused(&mut pool, &Request::new(1)),
        full,
        "no record for a rest"
    );
    assert!(pool.try_alloc(64 * KIB).is_some());
}

#[test]
fn at_the_limit_the_cause_is_the_limit_with_its_numbers() {
    let mut pool = Pool::new(ranged(128 * KIB));
    let _block = pool.alloc(128 * KIB);
    let out = out_of_memory(&mut pool, &Request::new(300));
    assert_eq!(
        (out.cause, out.requested_bytes, out.rounded_bytes),
        (Cause::Limit, 300, 512)
    );
    assert_eq!(numbers(&out), [128 * KIB, 128 * KIB, 128 * KIB, 0, 0, 0]);
}

#[test]
fn a_limit_lowered_below_what_is_held_is_a_limit_too() {
    let mut pool = Pool::new(ranged(GIB));
    let _block = pool.alloc(128 * KIB);
    pool.adjust(KIB);
    let out = out_of_memory(&mut pool, &Request::new(1));
    assert_eq!(out.cause, Cause::Limit);
    assert_eq!(numbers(&out), [KIB, 128 * KIB, 128 * KIB, 0, 0, 0]);
}

#[test]
fn a_sub_allocator_that_refuses_is_the_cause_with_its_numbers() {
    let mut pool = Pool::new(ranged(GIB));
    let _block = pool.alloc(60 * KIB);
    let reserved = pool.reserved_bytes();
    pool.source().refuse_grows.set(u32::MAX);
    let out = out_of_memory(&mut pool, &Request::new(2 * MIB));
    assert_eq!(
        (out.cause, out.rounded_bytes),
        (Cause::SubAllocator, 2 * MIB)
    );
    let free = reserved - 60 * KIB;
    assert_eq!(numbers(&out), [GIB, reserved, 60 * KIB, free, free, 0]);
}

#[test]
fn enough_bytes_in_pieces_are_fragmentation_with_its_numbers() {
    let mut pool = fixed(6);
    let mut blocks: Vec<Block> = (0..6).map(|_| pool.alloc(GRANULE)).collect();
    for i in [4, 2, 1] {
        pool.free(blocks.remove(i));
    }
    let out = out_of_memory(&mut pool, &Request::new(3 * GRANULE - 1));
    let rounded = 3 * GRANULE;
    assert_eq!(
        (out.cause, out.rounded_bytes),
        (Cause::Fragmentation, rounded)
    );
    assert_eq!(out.requested_bytes, rounded - 1);
    let expected = [u64::MAX, 6 * GRANULE, rounded, rounded, 2 * GRANULE, 0];
    assert_eq!(numbers(&out), expected);
}

#[test]
fn free_memory_that_queued_work_uses_is_pending_with_its_numbers() {
    let mut pool = fixed(4);
    let _block = pool.alloc(GRANULE);
    let block = pool.alloc(2 * GRANULE);
    pool.free_after(block, 1, 5);
    let out = out_of_memory(&mut pool, &Request::new(2 * GRANULE).without_wait());
    assert_eq!(out.cause, Cause::Pending);
    // The end was free; it is everybody's and stays apart from what is pending.
    assert_eq!(
        numbers(&out)[..4],
        [u64::MAX, 4 * GRANULE, GRANULE, 3 * GRANULE]
    );
    assert_eq!(out.pending_bytes, 2 * GRANULE);
    pool.complete(1, 5);
    assert!(
        pool.try_grant(&Request::new(2 * GRANULE).without_wait())
            .is_ok()
    );
}

#[test]
fn a_free_chunk_that_alignment_rules_out_is_not_pending_because_another_is() {
    let mut pool = fixed(8);
    let blocks: Vec<Block> = (0..8).map(|_| pool.alloc(GRANULE)).collect();
    for (i, block) in blocks.into_iter().enumerate() {
        match i {
            1..4 => pool.free(block),
            7 => pool.free_after(block, 1, 5),
            _ => {}
        }
    }
    // Granules 1 to 3 are free and hold no address that is a multiple of 8 granules.
    let align = Align::new(8 * GRANULE).expect("a power of two");
    let out = out_of_memory(&mut pool, &Request::new(2 * GRANULE).aligned(align));
    assert_ne!(out.cause, Cause::Pending, "waiting will not help");
}

#[test]
fn without_growth_the_cause_is_that() {
    let mut pool = fixed(2);
    let out = out_of_memory(&mut pool, &Request::new(3 * GRANULE));
    assert_eq!(out.cause, Cause::Fixed);
    assert_eq!(
        numbers(&out),
        [u64::MAX, 2 * GRANULE, 0, 2 * GRANULE, 2 * GRANULE, 0]
    );
    assert_eq!(pool.source().take_log(), []);
}

#[test]
fn a_full_region_table_is_the_cause_and_one_released_region_makes_room() {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: GRANULE,
            ahead_divisor: None,
        },
        ..RegionConfig::new(GIB)
    };
    // Added by hand: growth by itself takes larger steps long before the table is full.
    let places: Vec<(u64, u64)> = (0..MAX_REGIONS as u64)
        .map(|i| (0x10_0000 + i * 2 * GRANULE, GRANULE))
        .collect();
    let mut pool = Pool::with_regions(config, &places);
    let mut blocks: Vec<Block> = (0..MAX_REGIONS).map(|_| pool.alloc(GRANULE)).collect();
    assert_eq!(pool.regions().len(), MAX_REGIONS);
    pool.source().take_log();
    let out = out_of_memory(&mut pool, &Request::new(GRANULE));
    let all = MAX_REGIONS as u64 * GRANULE;
    assert_eq!(
        (out.cause, numbers(&out)),
        (Cause::Regions, [GIB, all, all, 0, 0, 0])
    );
    assert_eq!(pool.source().take_log(), [], "nobody was asked");
    pool.free(blocks.swap_remove(77));
    let ticket = pool
        .shared
        .get_mut()
        .take_releasable(u64::MAX)
        .expect("a free region");
    assert_eq!(ticket.range().bytes(), GRANULE);
    pool.shared.get_mut().released(ticket);
    pool.check();
    assert!(pool.try_alloc(GRANULE).is_some());
}

/// Without growth a collected region never comes back, so collecting serves nobody.
#[test]
fn without_growth_no_region_is_given_away_for_a_request_that_cannot_be_served() {
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(BASE, 4 * GRANULE)]);
    pool.source().answer_by(|_| Err(SubAllocError));
    let out = out_of_memory(&mut pool, &Request::new(5 * GRANULE));
    assert_eq!(
        (out.cause, pool.source().take_log()),
        (Cause::Fixed, vec![])
    );
    assert!(pool.try_alloc(4 * GRANULE).is_some());
}

/// The unit makes the missing half of a unit a whole one, which the limit does not hold; giving
/// the free region away first does not change that.
#[test]
fn no_region_is_collected_for_a_request_whose_units_pass_the_limit_all_the_same() {
    let mut pool = Pool::new(ranged(96 * KIB));
    let block = pool.alloc(64 * KIB);
    pool.free(block);
    pool.source().take_log();
    let out = out_of_memory(&mut pool, &Request::new(80 * KIB));
    assert_eq!(
        (out.cause, pool.source().take_log()),
        (Cause::Limit, vec![])
    );
}

/// CONFORMANCE 8.6 compares with `limit - T + free`, which is below 0 here.
#[test]
fn s8_6_under_a_limit_below_what_is_held_no_region_is_collected_that_makes_no_room() {
    let mut pool = Pool::of_regions(8 * MIB);
    let [a, b, _c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free_all([a, b]);
    pool.shared.get_mut().set_limit(MIB);
    pool.source().take_log();
    let out = out_of_memory(&mut pool, &Request::new(3 * MIB - GRANULE));
    assert_eq!(out.cause, Cause::Limit);
    assert_eq!(pool.source().take_log(), []);
}
