//! Every error value of the core: when it comes, its numbers, that nothing has changed then, and
//! what it tells the reader to do. Also look-ups by address, wanted places, alignments, and
//! sub-allocators that break their promises.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::{Call, GIB, KIB, MIB, Pool, Random, Source, assert_disjoint, range, stamp, table};
use larder_core::{
    Addr, AddressIndex, Align, AllocError, Attempt, Bfc, BfcAllocator, BfcConfig, Block,
    BlockAllocator, Cause, Chunk, ChunkHandle, ConfigError, Epoch, FreeError, Granule, Growth,
    HashIndex, MAX_REGIONS, OutOfMemory, PageIndex, RawBlock, RegionError, Request, Split, Step,
    SubAllocError, Violation,
};

const BASE: u64 = 0x10_0000;
const GRANULE: u64 = 256;

/// No growth, and no region is given away to make room for one.
const FIXED: BfcConfig = BfcConfig {
    collect_regions: false,
    ..BfcConfig::fixed()
};

fn fixed(granules: u64) -> Pool {
    Pool::with_regions(FIXED, &[(BASE, granules * GRANULE)])
}

fn ranged(limit: u64) -> BfcConfig {
    BfcConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..BfcConfig::new(limit)
    }
}

/// The refusal of a request, after which nothing has changed.
#[track_caller]
fn refused(pool: &mut Pool, request: &Request) -> AllocError {
    pool.unchanged(|pool| pool.try_grant(request))
        .expect_err("no memory")
}

#[track_caller]
fn out_of_memory(pool: &mut Pool, request: &Request) -> OutOfMemory {
    match refused(pool, request) {
        AllocError::OutOfMemory(out) => out,
        other => panic!("{other}"),
    }
}

/// Limit, reserved, live, free, largest free, pending.
fn numbers(out: &OutOfMemory) -> [u64; 6] {
    [
        out.limit_bytes,
        out.reserved_bytes,
        out.live_bytes,
        out.free_bytes,
        out.largest_free_bytes,
        out.pending_bytes,
    ]
}

// AllocError ------------------------------------------------------------------------------------

#[test]
fn zero_bytes_are_refused_with_every_alignment_and_lane() {
    let mut pool = fixed(4);
    for align in [1, 256, 1 << 63] {
        let request = Request::new(0).aligned(Align::new(align).expect("a power of two"));
        assert_eq!(refused(&mut pool, &request), AllocError::ZeroSize);
    }
}

#[test]
fn sizes_and_alignments_past_what_32_bits_count_are_too_large() {
    let most = u64::from(u32::MAX) * GRANULE;
    let align = |log2: u32| Align::new(1 << log2).expect("a power of two");
    for config in [FIXED, BfcConfig::default(), BfcConfig::tensorflow(u64::MAX)] {
        let mut pool = Pool::new(config);
        for request in [
            Request::new(u64::MAX),
            Request::new(u64::MAX - 255),
            Request::new(1 << 63),
            Request::new(most + 1),
            Request::new(1).aligned(align(63)),
            Request::new(1).aligned(align(40)),
            Request::new(u64::MAX).aligned(align(63)),
        ] {
            let requested_bytes = request.bytes;
            let expected = AllocError::TooLarge { requested_bytes };
            assert_eq!(refused(&mut pool, &request), expected, "{request:?}");
        }
        assert_eq!(pool.source.take_log(), [], "nobody was asked");
    }
}

#[test]
fn the_largest_region_serves_a_request_for_all_of_it_and_one_byte_more_is_too_large() {
    let most = u64::from(u32::MAX) * GRANULE;
    for bytes in [most - GRANULE, most] {
        let mut pool = Pool::with_regions(FIXED, &[(1 << 40, most)]);
        let block = pool.alloc(bytes);
        assert_eq!(block.bytes(), bytes);
        pool.free(block);
    }
    let mut pool = Pool::with_regions(FIXED, &[(1 << 40, most)]);
    let requested_bytes = most + 1;
    let expected = AllocError::TooLarge { requested_bytes };
    assert_eq!(refused(&mut pool, &Request::new(requested_bytes)), expected);
}

#[test]
fn a_full_table_refuses_to_split_and_serves_again_after_a_free() {
    for config in [FIXED, BfcConfig::tensorflow(u64::MAX)] {
        // The sink, two blocks and the rest.
        let mut pool = Pool::over(config, Source::new(), 4);
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
        assert_eq!(pool.bfc.report().vacant_records, 2);
    }
}

#[test]
fn a_full_table_cannot_grow_and_asks_nobody() {
    // The sink and two blocks that are whole regions.
    let mut pool = Pool::over(ranged(GIB), Source::new(), 3);
    let [a, b] = [0, 1].map(|_| pool.alloc(64 * KIB));
    pool.source.take_log();
    let full = AllocError::TableFull { records: 2 };
    assert_eq!(refused(&mut pool, &Request::new(1)), full);
    assert_eq!(pool.source.take_log(), []);
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
    for config in [ranged(128 * KIB), BfcConfig::tensorflow(128 * KIB)] {
        let mut pool = Pool::new(config);
        let _block = pool.alloc(128 * KIB);
        let out = out_of_memory(&mut pool, &Request::new(300));
        assert_eq!(
            (out.cause, out.requested_bytes, out.rounded_bytes),
            (Cause::Limit, 300, 512)
        );
        assert_eq!(numbers(&out), [128 * KIB, 128 * KIB, 128 * KIB, 0, 0, 0]);
    }
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
    for config in [ranged(GIB), BfcConfig::tensorflow(GIB)] {
        let mut pool = Pool::new(config);
        let _block = pool.alloc(60 * KIB);
        let reserved = pool.reserved_bytes();
        pool.source.refuse_grows.set(u32::MAX);
        let out = out_of_memory(&mut pool, &Request::new(2 * MIB));
        assert_eq!(
            (out.cause, out.rounded_bytes),
            (Cause::SubAllocator, 2 * MIB)
        );
        let free = reserved - 60 * KIB;
        assert_eq!(numbers(&out), [GIB, reserved, 60 * KIB, free, free, 0]);
    }
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
    // The end was free and is joined with what is pending.
    assert_eq!(
        numbers(&out)[..4],
        [u64::MAX, 4 * GRANULE, GRANULE, 3 * GRANULE]
    );
    assert_eq!(out.pending_bytes, 3 * GRANULE);
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
    assert_eq!(pool.source.take_log(), []);
}

#[test]
fn a_full_region_table_is_the_cause_and_one_released_region_makes_room() {
    let config = BfcConfig {
        growth: Growth::Range {
            unit_bytes: GRANULE,
            ahead_divisor: None,
        },
        ..BfcConfig::new(GIB)
    };
    let mut pool = Pool::new(config);
    let mut blocks: Vec<Block> = (0..MAX_REGIONS).map(|_| pool.alloc(GRANULE)).collect();
    assert_eq!(pool.regions().len(), MAX_REGIONS);
    pool.source.take_log();
    let out = out_of_memory(&mut pool, &Request::new(GRANULE));
    let all = MAX_REGIONS as u64 * GRANULE;
    assert_eq!(
        (out.cause, numbers(&out)),
        (Cause::Regions, [GIB, all, all, 0, 0, 0])
    );
    assert_eq!(pool.source.take_log(), [], "nobody was asked");
    pool.free(blocks.swap_remove(77));
    assert_eq!(pool.trim(), GRANULE);
    assert!(pool.try_alloc(GRANULE).is_some());
}

/// Without growth a collected region never comes back, so collecting serves nobody.
#[test]
fn without_growth_no_region_is_given_away_for_a_request_that_cannot_be_served() {
    let mut pool = Pool::with_regions(BfcConfig::fixed(), &[(BASE, 4 * GRANULE)]);
    pool.source.answer_by(|_| Err(SubAllocError));
    let out = out_of_memory(&mut pool, &Request::new(5 * GRANULE));
    assert_eq!((out.cause, pool.source.take_log()), (Cause::Fixed, vec![]));
    assert!(pool.try_alloc(4 * GRANULE).is_some());
}

/// The unit makes the missing half of a unit a whole one, which the limit does not hold; giving
/// the free region away first does not change that.
#[test]
fn no_region_is_collected_for_a_request_whose_units_pass_the_limit_all_the_same() {
    let mut pool = Pool::new(ranged(96 * KIB));
    let block = pool.alloc(64 * KIB);
    pool.free(block);
    pool.source.take_log();
    let out = out_of_memory(&mut pool, &Request::new(80 * KIB));
    assert_eq!((out.cause, pool.source.take_log()), (Cause::Limit, vec![]));
}

/// SPEC 8.6 compares with `limit - T + free`, which is below 0 here.
#[test]
fn s8_6_under_a_limit_below_what_is_held_no_region_is_collected_that_makes_no_room() {
    let config = BfcConfig {
        shrink: larder_core::Shrink::Pending,
        collect_regions: true,
        ..BfcConfig::tensorflow(8 * MIB)
    };
    let mut pool = Pool::new(config);
    let [a, b, _c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free_all([a, b]);
    pool.bfc.set_limit(MIB);
    pool.source.take_log();
    let out = out_of_memory(&mut pool, &Request::new(3 * MIB - GRANULE));
    assert_eq!(out.cause, Cause::Limit);
    assert_eq!(pool.source.take_log(), []);
}

// Wanted places ---------------------------------------------------------------------------------

#[test]
fn a_wanted_place_is_cut_out_of_the_front_the_middle_and_the_end() {
    for config in [FIXED, BfcConfig::tensorflow(u64::MAX)] {
        for (first, granules, left) in [
            (0, 2, vec![(2, 6)]),
            (3, 2, vec![(0, 3), (5, 3)]),
            (6, 2, vec![(0, 6)]),
            (0, 8, vec![]),
            (1, 7, vec![(0, 1)]),
        ] {
            let mut pool = Pool::with_regions(config, &[(BASE, 8 * GRANULE)]);
            let place = range(BASE + first * GRANULE, granules * GRANULE - 1);
            let block = pool.bfc.alloc_at(place).expect("all is free");
            pool.check();
            assert_eq!(block.addr(), place.start());
            assert_eq!(block.bytes(), granules * GRANULE, "rounded up");
            assert_eq!(
                pool.bfc.requested_bytes(&block),
                Some(granules * GRANULE - 1)
            );
            let free: Vec<(u64, u64)> = left
                .iter()
                .map(|(first, granules)| (BASE + first * GRANULE, granules * GRANULE))
                .collect();
            assert_eq!(pool.free_chunks(), free);
            pool.free(block);
            assert_eq!(pool.free_chunks(), [(BASE, 8 * GRANULE)]);
        }
    }
}

#[test]
fn a_place_that_is_not_wholly_in_one_free_chunk_is_taken() {
    let mut pool = fixed(8);
    let blocks: Vec<Block> = (0..6).map(|_| pool.alloc(GRANULE)).collect();
    for (i, block) in blocks.into_iter().enumerate() {
        if i == 1 || i == 2 || i == 4 {
            pool.free(block);
        }
    }
    pool.add_region(BASE + 8 * GRANULE, 4 * GRANULE);
    // Free are 1, 2, 4, the tail 6 and 7, and a region of its own from 8 to 11.
    for (start, bytes) in [
        (BASE, GRANULE),
        (BASE, 2 * GRANULE),
        (BASE + 2 * GRANULE, 2 * GRANULE),
        (BASE + 2 * GRANULE, 3 * GRANULE),
        (BASE + 3 * GRANULE, 1),
        (BASE + 5 * GRANULE, 2 * GRANULE),
        (BASE + 6 * GRANULE, 3 * GRANULE),
        (BASE + 10 * GRANULE, 2 * GRANULE + 1),
        (BASE + 12 * GRANULE, 1),
        (BASE - GRANULE, 2 * GRANULE),
        (BASE - 1, 1),
        (0, GRANULE),
        (BASE + GRANULE + 1, 1),
        (BASE + GRANULE + 128, 128),
        (u64::MAX - 256, 1),
        (BASE + 6 * GRANULE, 1 << 39),
    ] {
        let place = range(start, bytes);
        let result = pool.unchanged(|pool| pool.bfc.alloc_at(place));
        assert_eq!(result, Err(AllocError::PlaceTaken), "{place:?}");
    }
    for (first, granules) in [(1, 2), (4, 1), (7, 1), (6, 1), (9, 2)] {
        let place = range(BASE + first * GRANULE, granules * GRANULE);
        let block = pool.bfc.alloc_at(place).expect("free");
        pool.check();
        assert_eq!(block.range(), Some(place));
    }
}

#[test]
fn a_wanted_place_needs_records_for_what_is_cut_off() {
    for (records, first, granules, needed) in [
        (2, 0, 8, 0),
        (2, 0, 7, 1),
        (2, 1, 7, 1),
        (3, 1, 7, 1),
        (3, 1, 6, 2),
        (4, 1, 6, 2),
    ] {
        let mut pool = Pool::over(FIXED, Source::new(), records);
        pool.add_region(BASE, 8 * GRANULE);
        let place = range(BASE + first * GRANULE, granules * GRANULE);
        if needed <= records - 2 {
            assert!(pool.bfc.alloc_at(place).is_ok());
            pool.check();
        } else {
            let full = AllocError::TableFull {
                records: records as u32 - 1,
            };
            assert_eq!(pool.unchanged(|pool| pool.bfc.alloc_at(place)), Err(full));
        }
    }
}

#[test]
fn a_wanted_place_that_was_taken_serves_after_it_is_freed() {
    let mut pool = fixed(4);
    let place = range(BASE + GRANULE, GRANULE);
    let block = pool.bfc.alloc_at(place).expect("free");
    assert_eq!(
        pool.unchanged(|pool| pool.bfc.alloc_at(place)),
        Err(AllocError::PlaceTaken)
    );
    pool.free(block);
    assert!(pool.bfc.alloc_at(place).is_ok());
    pool.check();
}

// FreeError -------------------------------------------------------------------------------------

#[test]
fn a_double_free_through_raw_is_unknown_until_the_place_is_used_again() {
    let mut pool = fixed(4);
    let block = pool.alloc(GRANULE);
    let kept = pool.alloc(GRANULE);
    let raw = block.into_raw();
    let block = pool.bfc.block_from_raw(raw).expect("in use");
    assert_eq!((block.addr(), block.bytes()), (raw.addr, GRANULE));
    pool.free(block);
    let again = pool.unchanged(|pool| pool.bfc.block_from_raw(raw));
    assert_eq!(again, Err(FreeError::Unknown));
    pool.free(kept);
    assert_eq!(
        pool.bfc.block_from_raw(raw),
        Err(FreeError::Unknown),
        "merged away"
    );
}

#[test]
fn two_blocks_for_one_chunk_free_it_once() {
    let mut pool = fixed(4);
    let raw = pool.alloc(GRANULE).into_raw();
    let [one, two] = [0, 1].map(|_| pool.bfc.block_from_raw(raw).expect("in use"));
    pool.free(one);
    let rejected = pool
        .unchanged(|pool| pool.bfc.free(two))
        .expect_err("freed already");
    assert_eq!(
        (rejected.error, rejected.block.addr()),
        (FreeError::Unknown, raw.addr)
    );
    assert_eq!(pool.bfc.requested_bytes(&rejected.block), None);
    assert_eq!(pool.bfc.allocation_id(&rejected.block), None);
    let rejected = pool
        .unchanged(|pool| pool.bfc.free_after(rejected.block, stamp(1, 1)))
        .expect_err("freed already");
    assert_eq!(rejected.error, FreeError::Unknown);
}

#[test]
fn foreign_handles_and_wrong_addresses_are_unknown() {
    let mut pool = fixed(16);
    let blocks: Vec<Block> = (0..4).map(|_| pool.alloc(2 * GRANULE)).collect();
    let raws: Vec<RawBlock> = blocks.into_iter().map(Block::into_raw).collect();
    let mut wrong = Vec::new();
    for raw in &raws {
        let addr = raw.addr.get();
        for addr in [
            0,
            1,
            addr - 1,
            addr + 1,
            addr + GRANULE,
            addr + 2 * GRANULE,
            u64::MAX,
        ] {
            wrong.push((Addr::new(addr), raw.handle));
        }
        for number in [raw.handle.get() + 100, 1 << 20, u32::MAX] {
            wrong.push((raw.addr, ChunkHandle::new(number).expect("not 0")));
        }
        for other in raws.iter().filter(|other| other.handle != raw.handle) {
            wrong.push((raw.addr, other.handle));
        }
    }
    for (addr, handle) in wrong {
        let raw = RawBlock { addr, handle };
        let result = pool.unchanged(|pool| pool.bfc.block_from_raw(raw));
        assert_eq!(result, Err(FreeError::Unknown), "{raw:?}");
    }
    for raw in raws {
        let block = pool.bfc.block_from_raw(raw).expect("still in use");
        pool.free(block);
    }
    assert_eq!(ChunkHandle::new(0), None);
}

#[test]
fn a_block_of_another_allocator_comes_back() {
    let mut ours = fixed(4);
    let _own = ours.alloc(GRANULE);
    let mut other = Pool::with_regions(FIXED, &[(16 * BASE, 4 * GRANULE)]);
    let foreign = other.alloc(GRANULE);
    let addr = foreign.addr();
    assert_eq!(ours.bfc.requested_bytes(&foreign), None);
    let rejected = ours
        .unchanged(|pool| pool.bfc.free(foreign))
        .expect_err("foreign");
    assert_eq!(
        (rejected.error, rejected.block.addr()),
        (FreeError::Unknown, addr)
    );
    let rejected = ours
        .unchanged(|pool| pool.bfc.free_after(rejected.block, stamp(3, 1)))
        .expect_err("foreign");
    assert_eq!(
        (rejected.error, rejected.block.addr()),
        (FreeError::Unknown, addr)
    );
    other.free(rejected.block);
}

#[test]
fn an_epoch_too_far_gives_the_block_back() {
    let mut pool = fixed(4);
    let block = pool.alloc(GRANULE);
    let rejected = pool
        .unchanged(|pool| pool.bfc.free_after(block, stamp(1, Epoch::WINDOW + 1)))
        .expect_err("too far");
    assert_eq!(rejected.error, FreeError::EpochTooFar);
    pool.free(rejected.block);
}

// RegionError -----------------------------------------------------------------------------------

#[track_caller]
fn region_error(pool: &mut Pool, start: u64, bytes: u64) -> RegionError {
    let place = range(start, bytes);
    let rejected = pool
        .unchanged(|pool| pool.bfc.add_region(place))
        .expect_err("a bad region");
    assert_eq!(rejected.range, place, "it comes back");
    rejected.error
}

#[test]
fn regions_off_the_granule_are_misaligned_at_either_end() {
    let mut pool = fixed(4);
    for (start, bytes) in [
        (1, 256),
        (128, 256),
        (255, 257),
        (256, 255),
        (256, 257),
        (512, 1),
    ] {
        assert_eq!(
            region_error(&mut pool, start, bytes),
            RegionError::Misaligned
        );
    }
}

#[test]
fn regions_that_overlap_another_are_refused_and_those_that_touch_are_not() {
    for config in [FIXED, BfcConfig::new(u64::MAX)] {
        let (start, bytes) = (BASE, 4 * GRANULE);
        let regions = [(start, bytes), (start + 16 * GRANULE, bytes)];
        let mut pool = Pool::with_regions(config, &regions);
        for (first, granules) in [
            (0, 4),
            (1, 2),
            (0, 1),
            (3, 1),
            (3, 2),
            (3, 20),
            (15, 2),
            (19, 9),
        ] {
            let error = region_error(&mut pool, BASE + first * GRANULE, granules * GRANULE);
            assert_eq!(error, RegionError::Overlap, "{first} +{granules}");
        }
        let error = region_error(&mut pool, BASE - GRANULE, 2 * GRANULE);
        assert_eq!(error, RegionError::Overlap);
        let error = region_error(&mut pool, BASE - GRANULE, 64 * GRANULE);
        assert_eq!(error, RegionError::Overlap);
        pool.add_region(BASE - GRANULE, GRANULE);
        pool.add_region(BASE + 4 * GRANULE, 12 * GRANULE);
        pool.add_region(BASE + 20 * GRANULE, GRANULE);
        assert_eq!(pool.reserved_bytes(), 22 * GRANULE);
    }
}

#[test]
fn a_region_of_more_granules_than_32_bits_count_is_too_large() {
    let mut pool = Pool::new(FIXED);
    let most = u64::from(u32::MAX) * GRANULE;
    assert_eq!(
        region_error(&mut pool, 0, most + GRANULE),
        RegionError::TooLarge
    );
    assert_eq!(
        region_error(&mut pool, 0, u64::MAX - 255),
        RegionError::TooLarge
    );
    pool.add_region(0, most);
    // The largest size of all at the largest address of all.
    let mut pool = Pool::new(FIXED);
    let start = u64::MAX - 255 - most;
    pool.add_region(start, most);
    let block = pool.alloc(most - GRANULE);
    assert_eq!(block.addr().get(), start);
    pool.free(block);
}

#[test]
fn a_region_past_the_limit_is_refused_and_one_up_to_it_is_held() {
    let config = BfcConfig {
        limit_bytes: 8 * GRANULE + 100,
        ..FIXED
    };
    let mut pool = Pool::new(config);
    assert_eq!(
        region_error(&mut pool, BASE, 9 * GRANULE),
        RegionError::Limit
    );
    pool.add_region(BASE, 6 * GRANULE);
    assert_eq!(
        region_error(&mut pool, 2 * BASE, 3 * GRANULE),
        RegionError::Limit
    );
    pool.add_region(2 * BASE, 2 * GRANULE);
    assert_eq!(
        region_error(&mut pool, 3 * BASE, GRANULE),
        RegionError::Limit
    );
    pool.bfc.set_limit(GRANULE);
    assert_eq!(
        region_error(&mut pool, 3 * BASE, GRANULE),
        RegionError::Limit
    );
    pool.bfc.set_limit(u64::MAX);
    pool.add_region(3 * BASE, GRANULE);
}

#[test]
fn a_region_without_a_record_left_is_refused() {
    let mut pool = Pool::over(FIXED, Source::new(), 3);
    pool.add_region(BASE, 4 * GRANULE);
    let block = pool.alloc(GRANULE);
    assert_eq!(
        region_error(&mut pool, 2 * BASE, GRANULE),
        RegionError::TableFull
    );
    // The same where it would enlarge a region.
    let mut range_pool = Pool::over(ranged(u64::MAX), Source::new(), 3);
    range_pool.add_region(BASE, 4 * GRANULE);
    let _block = range_pool.alloc(GRANULE);
    let behind = BASE + 4 * GRANULE;
    assert_eq!(
        region_error(&mut range_pool, behind, GRANULE),
        RegionError::TableFull
    );
    pool.free(block);
    pool.add_region(2 * BASE, GRANULE);
}

#[test]
fn one_region_more_than_the_table_holds_is_refused() {
    let mut pool = Pool::new(FIXED);
    for i in 0..MAX_REGIONS as u64 {
        pool.bfc
            .add_region(range(i * 2 * GRANULE, GRANULE))
            .expect("room");
    }
    pool.check();
    let records = pool.bfc.report().vacant_records;
    assert_eq!(
        region_error(&mut pool, 1 << 40, GRANULE),
        RegionError::RegionsFull
    );
    assert_eq!(pool.bfc.report().vacant_records, records);
}

/// The ticket a request asks for.
fn ticket(pool: &mut Pool, attempt: &mut Attempt) -> larder_core::GrowTicket {
    let step = pool.bfc.step(attempt);
    pool.check();
    match step {
        Step::Grow(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_commit_is_refused_when_the_range_is_too_small_or_the_limit_was_lowered() {
    let mut pool = Pool::new(ranged(GIB));
    let mut attempt = Attempt::new(Request::new(100 * KIB));
    let before = pool.picture();
    for (bytes, limit, error) in [
        (128 * KIB - GRANULE, GIB, RegionError::TooSmall),
        (128 * KIB, 128 * KIB - 1, RegionError::Limit),
        (128 * KIB + 1, GIB, RegionError::Misaligned),
    ] {
        let ticket = ticket(&mut pool, &mut attempt);
        assert_eq!(
            (ticket.bytes(), ticket.least_bytes()),
            (128 * KIB, 128 * KIB)
        );
        pool.bfc.set_limit(limit);
        pool.check();
        let given = range(BASE, bytes);
        let rejected = pool.bfc.commit(ticket, given).expect_err("a bad range");
        pool.check();
        assert_eq!((rejected.error, rejected.range), (error, given));
        pool.bfc.set_limit(GIB);
        assert_eq!(
            pool.picture(),
            before,
            "the ticket is used up and counts no more"
        );
    }
    let ticket = ticket(&mut pool, &mut attempt);
    pool.bfc
        .commit(ticket, range(BASE, 128 * KIB))
        .expect("as asked");
    pool.check();
    assert!(matches!(pool.bfc.step(&mut attempt), Step::Ready(_)));
    pool.check();
}

#[test]
fn a_commit_is_refused_when_tables_have_filled_up_meanwhile() {
    let mut pool = Pool::over(ranged(GIB), Source::new(), 3);
    pool.add_region(BASE, 4 * GRANULE);
    let mut attempt = Attempt::new(Request::new(64 * KIB));
    let waiting = ticket(&mut pool, &mut attempt);
    let _block = pool.alloc(GRANULE);
    let rejected = pool
        .bfc
        .commit(waiting, range(16 * BASE, 64 * KIB))
        .expect_err("no record");
    pool.check();
    assert_eq!(rejected.error, RegionError::TableFull);

    let mut pool = Pool::new(BfcConfig {
        collect_regions: false,
        ..ranged(GIB)
    });
    for i in 1..MAX_REGIONS as u64 {
        pool.bfc
            .add_region(range(i * 2 * GRANULE, GRANULE))
            .expect("room");
    }
    let mut attempt = Attempt::new(Request::new(100 * KIB));
    let waiting = ticket(&mut pool, &mut attempt);
    pool.add_region(1 << 40, GRANULE);
    let rejected = pool
        .bfc
        .commit(waiting, range(1 << 41, 128 * KIB))
        .expect_err("no region");
    pool.check();
    assert_eq!(rejected.error, RegionError::RegionsFull);
    attempt.growth_rejected(rejected.error);
    match pool.bfc.step(&mut attempt) {
        Step::Failed(AllocError::OutOfMemory(out)) => assert_eq!(out.cause, Cause::Regions),
        other => panic!("{other:?}"),
    }
    pool.check();
}

#[test]
fn a_ticket_counts_against_the_limit_until_it_is_aborted() {
    let mut pool = Pool::new(ranged(128 * KIB));
    let mut attempt = Attempt::new(Request::new(64 * KIB));
    let [one, two] = [0, 1].map(|_| ticket(&mut pool, &mut attempt));
    let out = out_of_memory(&mut pool, &Request::new(1));
    assert_eq!(
        (out.cause, out.reserved_bytes),
        (Cause::Limit, 128 * KIB),
        "growth under way"
    );
    assert_eq!(region_error(&mut pool, BASE, GRANULE), RegionError::Limit);
    pool.bfc.abort(one);
    pool.check();
    pool.add_region(BASE, GRANULE);
    assert_eq!(
        pool.bfc.retry_smaller(two),
        None,
        "nothing smaller helps; it is aborted"
    );
    pool.check();
    assert_eq!(pool.bfc.excess_bytes(), 0);
    pool.add_region(16 * BASE, 128 * KIB - GRANULE);
}

// ConfigError -----------------------------------------------------------------------------------

fn config_error(config: BfcConfig) -> Option<ConfigError> {
    Bfc::new(config, table(4)).err()
}

#[test]
fn each_bad_setting_is_refused_and_its_limit_is_not() {
    let good = FIXED;
    for (granule_bytes, bad) in [
        (0, true),
        (1, false),
        (3, true),
        (255, true),
        (1 << 30, false),
        (1 << 31, true),
        (u64::MAX, true),
    ] {
        let config = BfcConfig {
            granule_bytes,
            ..good
        };
        assert_eq!(
            config_error(config),
            bad.then_some(ConfigError::Granule),
            "{granule_bytes}"
        );
    }
    let ranged = |unit_bytes| Growth::Range {
        unit_bytes,
        ahead_divisor: None,
    };
    for (growth, bad) in [
        (ranged(0), true),
        (ranged(255), true),
        (ranged(257), true),
        (ranged(256), false),
        (ranged(768), false),
        (Growth::Doubling { first_bytes: 0 }, true),
        (Growth::Doubling { first_bytes: 1 }, false),
    ] {
        let config = BfcConfig { growth, ..good };
        assert_eq!(
            config_error(config),
            bad.then_some(ConfigError::GrowthUnit),
            "{growth:?}"
        );
    }
    for (waste_bytes, bad) in [
        (0, false),
        (1 << 31, false),
        ((1 << 31) + 1, true),
        (u64::MAX, true),
    ] {
        let split = Split::TwiceOrWaste { waste_bytes };
        let config = BfcConfig { split, ..good };
        assert_eq!(
            config_error(config),
            bad.then_some(ConfigError::SplitWaste),
            "{waste_bytes}"
        );
    }
    for (scan, bad) in [(0, true), (1, false), (u32::MAX, false)] {
        let fit = larder_core::Fit::Near { scan };
        let config = BfcConfig { fit, ..good };
        assert_eq!(
            config_error(config),
            bad.then_some(ConfigError::Scan),
            "{scan}"
        );
    }
    for (records, bad) in [(0, true), (1, true), (2, false)] {
        let result = Bfc::new(good, table(records)).err();
        assert_eq!(result, bad.then_some(ConfigError::Table), "{records}");
    }
}

#[test]
fn granules_other_than_256_work_from_one_byte_to_1_gib() {
    for granule_bytes in [1, 16, 4096, 1 << 30] {
        let config = BfcConfig {
            granule_bytes,
            ..FIXED
        };
        let mut pool = Pool::new(config);
        pool.add_region(granule_bytes * 8, granule_bytes * 64);
        let blocks = [1, granule_bytes, granule_bytes + 1].map(|bytes| pool.alloc(bytes));
        let sizes = blocks.each_ref().map(Block::bytes);
        assert_eq!(sizes, [1, 1, 2].map(|n| n * granule_bytes));
        assert_disjoint(&blocks);
        pool.free_all(blocks);
        assert_eq!(
            pool.free_chunks(),
            [(granule_bytes * 8, granule_bytes * 64)]
        );
    }
}

fn slots(count: usize) -> &'static mut [u32] {
    Box::leak(vec![0; count].into_boxed_slice())
}

#[test]
fn an_index_too_small_for_the_table_is_refused() {
    let with = |count, records| {
        let index = HashIndex::new(slots(count));
        Bfc::with_index(FIXED, table(records), index).err()
    };
    // One record is kept back, so 9 make 8 chunks.
    assert_eq!(with(16, 9), None);
    assert_eq!(with(15, 9), Some(ConfigError::Index));
    assert_eq!(with(0, 2), Some(ConfigError::Index));
    let with = |page: u64, base: u64| {
        let page = Granule::new(page).expect("a power of two");
        let index = PageIndex::new(Addr::new(base), page, slots(4));
        Bfc::with_index(FIXED, table(9), index).err()
    };
    assert_eq!(with(256, 0), None);
    assert_eq!(with(16, 256), None);
    assert_eq!(
        with(512, 0),
        Some(ConfigError::Index),
        "two blocks could share a page"
    );
    assert_eq!(
        with(256, 128),
        Some(ConfigError::Index),
        "pages off the granule"
    );
}

// Blocks by address -----------------------------------------------------------------------------

fn random_addresses<I: AddressIndex>(mut pool: Pool<I>, seed: u64, covered: impl Fn(u64) -> bool) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut live: Vec<(Addr, u64)> = Vec::new();
    for _ in 0..400 {
        if random.below(2) == 0 {
            let bytes = 1 + random.below(8 * GRANULE);
            if let Ok(grant) = pool.try_grant(&Request::new(bytes)) {
                live.push((grant.block.addr(), grant.block.bytes()));
                drop(grant);
            }
        } else if !live.is_empty() {
            let i = random.below(live.len() as u64) as usize;
            if covered(live[i].0.get()) {
                let (addr, _) = live.swap_remove(i);
                let block = pool.bfc.block_from_addr(addr).expect("in use");
                pool.free(block);
                assert_eq!(pool.bfc.block_from_addr(addr), Err(FreeError::Unknown));
            }
        }
        for (addr, bytes) in &live {
            let found = pool.bfc.block_from_addr(*addr);
            if covered(addr.get()) {
                let block = found.expect("in use");
                assert_eq!((block.addr(), block.bytes()), (*addr, *bytes));
            } else {
                assert_eq!(found, Err(FreeError::Unknown));
            }
            for off in [1, GRANULE - 1] {
                let inside = Addr::new(addr.get() + off);
                assert_eq!(pool.bfc.block_from_addr(inside), Err(FreeError::Unknown));
            }
        }
        for (addr, _) in pool.free_chunks() {
            let found = pool.bfc.block_from_addr(Addr::new(addr));
            assert_eq!(found, Err(FreeError::Unknown));
        }
        for addr in [0, 1, u64::MAX, BASE - GRANULE] {
            let found = pool.bfc.block_from_addr(Addr::new(addr));
            assert_eq!(found, Err(FreeError::Unknown));
        }
    }
}

/// Two regions; the second lies outside of a page index over the first.
fn indexed<I: AddressIndex>(index: I) -> Pool<I> {
    let mut bfc = Bfc::with_index(FIXED, table(65), index).expect("it holds");
    for start in [BASE, 16 * BASE] {
        bfc.add_region(range(start, 128 * GRANULE))
            .expect("a good region");
    }
    let source = Source::new();
    Pool { bfc, source }
}

#[test]
fn a_hash_index_finds_each_block_by_its_first_address_and_nothing_else() {
    for seed in 0..8 {
        random_addresses(indexed(HashIndex::new(slots(128))), seed, |_| true);
    }
}

#[test]
fn a_page_index_finds_each_block_in_its_range_and_nothing_else() {
    for seed in 0..8 {
        let index = PageIndex::new(Addr::new(BASE), Granule::DEFAULT, slots(128));
        random_addresses(indexed(index), seed, |addr| addr < 16 * BASE);
    }
}

#[test]
fn without_an_index_no_address_is_found() {
    let mut pool = fixed(4);
    let block = pool.alloc(GRANULE);
    assert_eq!(
        pool.bfc.block_from_addr(block.addr()),
        Err(FreeError::Unknown)
    );
    pool.free(block);
}

#[test]
fn an_index_follows_blocks_through_shrinking_wanted_places_and_alignment() {
    let mut bfc =
        Bfc::with_index(ranged(GIB), table(65), HashIndex::new(slots(128))).expect("it holds");
    bfc.add_region(range(BASE + GRANULE, 64 * KIB))
        .expect("a good region");
    let mut pool = Pool {
        bfc,
        source: Source::contiguous(),
    };
    let place = range(BASE + 8 * GRANULE, 300);
    let at = pool.bfc.alloc_at(place).expect("free");
    pool.check();
    let align = Align::new(16 * KIB).expect("a power of two");
    let aligned = pool.grant(&Request::new(1000).aligned(align)).block;
    let large = pool.alloc(MIB);
    for block in [&at, &aligned, &large] {
        assert_eq!(pool.bfc.block_from_addr(block.addr()).as_ref(), Ok(block));
    }
    let addr = large.addr();
    pool.free(large);
    assert!(pool.trim() >= MIB - 64 * KIB);
    assert_eq!(pool.bfc.block_from_addr(addr), Err(FreeError::Unknown));
    pool.free_all([at, aligned]);
}

// Alignment -------------------------------------------------------------------------------------

#[test]
fn every_alignment_up_to_1_mib_is_honoured_over_odd_regions_and_nothing_is_lost() {
    for config in [FIXED, BfcConfig::tensorflow(u64::MAX)] {
        for base in [
            GRANULE,
            3 * GRANULE,
            BASE + 7 * GRANULE,
            (1 << 44) - GRANULE,
        ] {
            let bytes = 4 * MIB;
            let mut pool = Pool::with_regions(config, &[(base, bytes)]);
            let mut blocks = Vec::new();
            for log2 in (8..=20).rev().chain(8..=20) {
                let align = Align::new(1 << log2).expect("a power of two");
                let block = pool.grant(&Request::new(700).aligned(align)).block;
                assert!(block.addr().is_aligned(align), "{block:?}");
                blocks.push(block);
            }
            assert_disjoint(&blocks);
            let report = pool.bfc.report();
            assert_eq!(report.live_bytes + report.free_bytes, bytes);
            pool.free_all(blocks);
            assert_eq!(pool.free_chunks(), [(base, bytes)]);
        }
    }
}

#[test]
fn an_aligned_request_grows_by_enough_wherever_the_memory_lies() {
    for config in [ranged(GIB), BfcConfig::tensorflow(GIB)] {
        for contiguous in [false, true] {
            for first in [GRANULE, BASE + 5 * GRANULE] {
                let source = Source::from_address(first);
                source.gap_bytes.set(3 * GRANULE);
                source.contiguous.set(contiguous);
                let mut pool = Pool::over(config, source, 256);
                for log2 in [8, 12, 16, 20, 20, 18, 9] {
                    let align = Align::new(1 << log2).expect("a power of two");
                    let request = Request::new(100 * KIB).aligned(align);
                    pool.source.take_log();
                    let block = pool.grant(&request).block;
                    assert!(block.addr().is_aligned(align));
                    let calls = pool.source.take_log();
                    let most = if contiguous { 1 } else { 2 };
                    assert!(calls.len() <= most, "{calls:?} for {request:?}");
                }
            }
        }
    }
}

#[test]
fn an_aligned_place_that_fits_exactly_is_found() {
    // Behind three odd granules lie exactly the wanted ones.
    let mut pool = Pool::with_regions(FIXED, &[(BASE + 5 * GRANULE, 7 * GRANULE)]);
    let align = Align::new(8 * GRANULE).expect("a power of two");
    let grant = pool.grant(&Request::new(4 * GRANULE).aligned(align));
    assert_eq!(grant.block.addr().get(), BASE + 8 * GRANULE);
    assert_eq!(pool.free_chunks(), [(BASE + 5 * GRANULE, 3 * GRANULE)]);
    let mut pool = Pool::with_regions(FIXED, &[(BASE + 5 * GRANULE, 6 * GRANULE)]);
    let out = out_of_memory(&mut pool, &Request::new(4 * GRANULE).aligned(align));
    assert_eq!(out.cause, Cause::Fragmentation);
}

// Sub-allocators as they come -------------------------------------------------------------------

#[test]
fn answers_that_are_not_adjacent_become_regions_and_cost_at_most_two_calls() {
    let mut pool = Pool::new(ranged(GIB));
    let _small = pool.alloc(GRANULE);
    pool.source.take_log();
    // 63.75 KiB are free at the end, but what is asked for to go with them lies elsewhere.
    let _large = pool.alloc(96 * KIB);
    let calls = pool.source.take_log();
    assert!(calls.len() <= 2, "{calls:?}");
    assert!(pool.reserved_bytes() <= (64 + 128 + 128) * KIB);
    assert!(pool.regions().len() <= 3);
}

#[test]
fn a_source_that_is_adjacent_now_and_then_neither_hoards_nor_loses() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut pool = Pool::over(ranged(16 * MIB), Source::contiguous(), 1024);
        let mut live: Vec<Block> = Vec::new();
        for _ in 0..200 {
            pool.source.contiguous.set(random.below(2) == 0);
            match random.below(8) {
                0..4 => {
                    let log2 = random.below(20);
                    pool.source.take_log();
                    live.extend(pool.try_alloc(1 + random.below(1 << log2)));
                    let grows = pool.source.take_log();
                    let grows = grows.iter().filter(|call| matches!(call, Call::Grow(_)));
                    assert!(grows.count() <= 2);
                }
                4..7 if !live.is_empty() => {
                    let i = random.below(live.len() as u64) as usize;
                    pool.free(live.swap_remove(i));
                }
                _ => drop(pool.trim()),
            }
            assert_disjoint(&live);
            assert_eq!(pool.reserved_bytes(), pool.source.out_bytes());
        }
        pool.free_all(live);
        pool.trim();
        assert_eq!((pool.reserved_bytes(), pool.source.out_bytes()), (0, 0));
    }
}

/// An allocator with one block, over a source that from now on answers with what `f` makes of the
/// wished bytes; more than 100 answers are taken for a hang.
fn broken(config: BfcConfig, f: fn(u64) -> (u64, u64)) -> (Pool, Rc<Cell<u32>>) {
    let mut pool = Pool::new(config);
    let _block = pool.alloc(64 * KIB);
    let calls = Rc::new(Cell::new(0));
    let counter = Rc::clone(&calls);
    pool.source.answer_by(move |request| {
        counter.set(counter.get() + 1);
        assert!(
            counter.get() < 100,
            "the same answer is asked for again and again"
        );
        let (start, bytes) = f(request.bytes);
        Ok(range(start, bytes))
    });
    (pool, calls)
}

fn growing_configs(limit: u64) -> [BfcConfig; 3] {
    [
        ranged(limit),
        BfcConfig::tensorflow(limit),
        BfcConfig {
            collect_regions: true,
            ..BfcConfig::tensorflow(limit)
        },
    ]
}

#[test]
fn a_sub_allocator_that_breaks_its_promises_is_an_error_and_nothing_is_lost() {
    type Answer = fn(u64) -> (u64, u64);
    let answers: [(&str, Answer); 5] = [
        ("too small", |bytes| (BASE, bytes / 4 / 256 * 256)),
        ("one granule too small", |_| (BASE, 2 * MIB - 256)),
        ("overlapping", |bytes| (0x7000_0001_0000, bytes)),
        ("misaligned", |bytes| (BASE + 128, bytes)),
        ("of a length off the granule", |bytes| (BASE, bytes + 1)),
    ];
    for config in growing_configs(GIB) {
        for (name, answer) in answers {
            println!("{name}");
            let (mut pool, calls) = broken(config, answer);
            let before = pool.picture();
            pool.source.take_log();
            let out = out_of_memory(&mut pool, &Request::new(2 * MIB));
            assert_eq!(out.cause, Cause::SubAllocator, "{name}");
            assert_eq!(pool.picture(), before);
            assert!(calls.get() <= 2, "{name}: {} calls", calls.get());
            // Each range that is not held goes back, unless blocks may live in it.
            let log = pool.source.take_log();
            let grown = log
                .iter()
                .filter(|call| matches!(call, Call::Grow(_)))
                .count();
            let released = log
                .iter()
                .filter(|call| matches!(call, Call::Release(_)))
                .count();
            let expected = if name == "overlapping" { 0 } else { grown };
            assert_eq!(released, expected, "{name}: {log:?}");
            pool.source.answer_by_rule();
            assert!(pool.try_alloc(2 * MIB).is_some(), "it serves again");
        }
    }
}

/// `SubAllocator` promises "at least as long as was asked", so a longer answer keeps the promise.
#[test]
fn an_answer_longer_than_asked_that_passes_the_limit_is_refused_without_a_hang() {
    for config in growing_configs(3 * MIB) {
        let (mut pool, calls) = broken(config, |_| (BASE, 4 * MIB));
        let before = pool.picture();
        let result = pool.try_grant(&Request::new(2 * MIB - 64 * KIB));
        assert!(
            matches!(result, Err(AllocError::OutOfMemory(_))),
            "{result:?}"
        );
        assert!(calls.get() <= 2);
        assert_eq!(pool.picture(), before);
    }
}

#[test]
fn an_answer_longer_than_asked_within_the_limit_is_held_whole() {
    for config in growing_configs(GIB) {
        let (mut pool, _) = broken(config, |bytes| (BASE, bytes + MIB));
        let before = pool.reserved_bytes();
        pool.source.take_log();
        let _block = pool.alloc(2 * MIB);
        let asked = match pool.source.take_log()[..] {
            [Call::Grow(bytes)] => bytes,
            ref other => panic!("{other:?}"),
        };
        assert_eq!(pool.reserved_bytes() - before, asked + MIB);
    }
}

#[test]
fn an_answer_shorter_than_asked_that_still_serves_is_held() {
    let (mut pool, _) = broken(BfcConfig::tensorflow(GIB), |_| (BASE, 1024));
    let before = pool.reserved_bytes();
    let fill = pool.free_chunks().iter().map(|chunk| chunk.1).sum::<u64>();
    let _fill = pool.alloc(fill);
    let block = pool.alloc(1000);
    assert_eq!((block.addr().get(), block.bytes()), (BASE, 1024));
    assert_eq!(pool.reserved_bytes(), before + 1024);
}

/// The unit rounds a request near the largest region past what a region can hold.
#[test]
fn a_request_that_its_unit_rounds_past_the_largest_region_is_served_or_refused_in_words() {
    let config = BfcConfig::new(u64::MAX);
    let mut pool = Pool::new(config);
    let bytes = u64::from(u32::MAX) * GRANULE - GRANULE;
    match pool.try_grant(&Request::new(bytes)) {
        Ok(grant) => assert_eq!(grant.block.bytes(), bytes),
        Err(AllocError::TooLarge { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

// Through the trait -----------------------------------------------------------------------------

#[test]
fn the_shared_allocator_gives_the_same_errors_and_answers() {
    let source = Source::contiguous();
    source.capacity_bytes.set(128 * KIB);
    let bfc = Bfc::new(ranged(GIB), table(64)).expect("a good configuration");
    let allocator: BfcAllocator<'_, _> = BfcAllocator::new(bfc, source);
    let check = || allocator.with(|bfc| bfc.check_invariants()).expect("sound");
    assert_eq!(allocator.alloc(&Request::new(0)), Err(AllocError::ZeroSize));
    let block = allocator.alloc(&Request::new(1000)).expect("room").block;
    check();
    assert_eq!(allocator.requested_bytes(&block), Some(1000));
    assert_eq!(allocator.allocation_id(&block), Some(1));
    let error = allocator.alloc(&Request::new(MIB)).expect_err("no room");
    check();
    assert!(matches!(error, AllocError::OutOfMemory(out) if out.cause == Cause::SubAllocator));
    let far = stamp(1, Epoch::WINDOW + 1);
    let rejected = allocator.free_after(block, far).expect_err("too far");
    assert_eq!(rejected.error, FreeError::EpochTooFar);
    allocator
        .free_after(rejected.block, stamp(1, 9))
        .expect("near");
    check();
    assert_eq!(allocator.trim(), 0, "still used");
    allocator.complete(larder_core::Lane::new(1), Epoch::new(9));
    assert_eq!(allocator.pool_stats().stable_bytes, 0);
    assert_eq!(allocator.adjust(0).excess_bytes, 0);
    check();
    assert_eq!(
        (
            allocator.stats().reserved_bytes,
            allocator.source().out_bytes()
        ),
        (0, 0)
    );
}

// In words --------------------------------------------------------------------------------------

/// Every `OutOfMemory`, one for each cause.
fn all_causes() -> Vec<OutOfMemory> {
    let limit = out_of_memory(&mut Pool::tensorflow(256), &Request::new(257));
    let mut exhausted = Pool::tensorflow(GIB);
    exhausted.source.refuse_grows.set(u32::MAX);
    let sub_allocator = out_of_memory(&mut exhausted, &Request::new(1));
    let mut pieces = fixed(3);
    let [a, _b, c] = [0, 1, 2].map(|_| pieces.alloc(GRANULE));
    pieces.free_all([a, c]);
    let fragmentation = out_of_memory(&mut pieces, &Request::new(2 * GRANULE));
    let mut queued = fixed(1);
    let block = queued.alloc(GRANULE);
    queued.free_after(block, 1, 1);
    let pending = out_of_memory(&mut queued, &Request::new(1).without_wait());
    let without_growth = out_of_memory(&mut fixed(1), &Request::new(257));
    vec![limit, sub_allocator, fragmentation, pending, without_growth]
}

#[test]
fn every_refused_allocation_says_what_to_do_and_the_numbers_to_judge_it_by() {
    let causes = all_causes();
    let words = [
        (Cause::Limit, "raise it or free blocks"),
        (Cause::SubAllocator, "sub-allocator"),
        (Cause::Fragmentation, "too small"),
        (Cause::Pending, "wait for it and try again"),
        (Cause::Fixed, "give it another region or free blocks"),
    ];
    for (out, (cause, advice)) in causes.into_iter().zip(words) {
        assert_eq!(out.cause, cause);
        let text = AllocError::OutOfMemory(out).to_string();
        assert!(text.contains(advice), "{text}");
        assert_eq!(text, out.to_string());
        for number in numbers(&out)
            .into_iter()
            .chain([out.requested_bytes, out.rounded_bytes])
        {
            assert!(text.contains(&number.to_string()), "{number} in {text}");
        }
    }
    let text = AllocError::TableFull { records: 77 }.to_string();
    assert!(
        text.contains("77") && text.contains("lend a larger table"),
        "{text}"
    );
    let text = AllocError::TooLarge {
        requested_bytes: 12_345,
    }
    .to_string();
    assert!(
        text.contains("12345") && text.contains("one region"),
        "{text}"
    );
    assert!(AllocError::ZeroSize.to_string().contains("zero bytes"));
    let text = AllocError::PlaceTaken.to_string();
    assert!(
        text.contains("one free chunk") && text.contains("granule"),
        "{text}"
    );
}

#[test]
fn every_other_error_says_what_is_wrong_and_what_to_do() {
    let text = FreeError::Unknown.to_string();
    assert!(
        text.contains("never allocated here or is freed already"),
        "{text}"
    );
    let text = FreeError::EpochTooFar.to_string();
    assert!(text.contains("report completed epochs"), "{text}");
    for (error, advice) in [
        (RegionError::Misaligned, "multiple of the granule"),
        (RegionError::Overlap, "held already"),
        (RegionError::TooLarge, "use a larger granule"),
        (RegionError::TooSmall, "smaller than what was asked for"),
        (RegionError::Limit, "pass the limit"),
        (RegionError::TableFull, "lend a larger table"),
        (RegionError::RegionsFull, "grow in larger steps"),
    ] {
        assert!(error.to_string().contains(advice), "{error}");
    }
    for (error, advice) in [
        (ConfigError::Granule, "power of two of at most 1 GiB"),
        (
            ConfigError::GrowthUnit,
            "multiple of the granule and not zero",
        ),
        (ConfigError::SplitWaste, "at most 2 GiB"),
        (ConfigError::Scan, "one chunk at least"),
        (ConfigError::Table, "from 2 to 2^32 - 1 records"),
        (ConfigError::Index, "two slots a record"),
    ] {
        assert!(error.to_string().contains(advice), "{error}");
    }
    assert!(SubAllocError.to_string().contains("refused"));
    let violation = Violation {
        invariant: "B3",
        chunk: 17,
    };
    assert_eq!(violation.to_string(), "invariant B3 broken at chunk 17");
    let mut pool = fixed(1);
    let rejected = pool
        .bfc
        .add_region(range(BASE, GRANULE))
        .expect_err("overlaps");
    let text = rejected.to_string();
    assert!(text.contains("256") && text.contains("0x100000") && text.contains("overlaps"));
    let block = pool.alloc(1);
    let rejected = pool
        .bfc
        .free_after(block, stamp(1, u64::MAX))
        .expect_err("far");
    let text = rejected.to_string();
    assert!(
        text.contains("0x100000") && text.contains("epoch"),
        "{text}"
    );
}

#[test]
fn errors_are_small_values() {
    assert!(size_of::<AllocError>() <= 80);
    assert!(size_of::<FreeError>() == 1 && size_of::<RegionError>() == 1);
    assert!(size_of::<ConfigError>() == 1);
    assert_eq!(size_of::<Block>(), 24);
    assert_eq!(size_of::<Chunk>(), 32);
}
