//! Requested places and alignments: valid addresses, and the addresses given instead.

use super::{BASE, FIXED, GRANULE, fixed, out_of_memory, ranged};
use crate::common::{GIB, KIB, MIB, Pool, Source, assert_disjoint, range};
use larder_core::{Align, AllocError, BestFit, Block, Cause, Request};

#[test]
fn a_wanted_place_is_cut_out_of_the_front_the_middle_and_the_end() {
    for (first, granules, left) in [
        (0, 2, vec![(2, 6)]),
        (3, 2, vec![(0, 3), (5, 3)]),
        (6, 2, vec![(0, 6)]),
        (0, 8, vec![]),
        (1, 7, vec![(0, 1)]),
    ] {
        let mut pool = Pool::with_regions(FIXED, &[(BASE, 8 * GRANULE)]);
        let place = range(BASE + first * GRANULE, granules * GRANULE - 1);
        let block = pool
            .shared
            .get_mut()
            .alloc_at(place, None, None)
            .expect("all is free");
        pool.check();
        assert_eq!(block.addr(), place.start());
        assert_eq!(block.bytes(), granules * GRANULE, "rounded up");
        assert_eq!(
            pool.shared.get_mut().requested_bytes(&block),
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
    // Free are 1, 2, 4, the wilderness 6 and 7, and a region of its own from 8 to 11.
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
        let result = pool.unchanged(|pool| pool.shared.get_mut().alloc_at(place, None, None));
        assert_eq!(result, Err(AllocError::PlaceTaken), "{place:?}");
    }
    for (first, granules) in [(1, 2), (4, 1), (7, 1), (6, 1), (9, 2)] {
        let place = range(BASE + first * GRANULE, granules * GRANULE);
        let block = pool
            .shared
            .get_mut()
            .alloc_at(place, None, None)
            .expect("free");
        pool.check();
        assert_eq!(block.range(), place);
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
            assert!(pool.shared.get_mut().alloc_at(place, None, None).is_ok());
            pool.check();
        } else {
            let full = AllocError::TableFull {
                records: records as u32 - 1,
            };
            assert_eq!(
                pool.unchanged(|pool| pool.shared.get_mut().alloc_at(place, None, None)),
                Err(full)
            );
        }
    }
}

#[test]
fn a_wanted_place_that_was_taken_serves_after_it_is_freed() {
    let mut pool = fixed(4);
    let place = range(BASE + GRANULE, GRANULE);
    let block = pool
        .shared
        .get_mut()
        .alloc_at(place, None, None)
        .expect("free");
    assert_eq!(
        pool.unchanged(|pool| pool.shared.get_mut().alloc_at(place, None, None)),
        Err(AllocError::PlaceTaken)
    );
    pool.free(block);
    assert!(pool.shared.get_mut().alloc_at(place, None, None).is_ok());
    pool.check();
}

#[test]
fn every_alignment_up_to_1_mib_is_honoured_over_odd_regions_and_nothing_is_lost() {
    for base in [
        GRANULE,
        3 * GRANULE,
        BASE + 7 * GRANULE,
        (1 << 44) - GRANULE,
    ] {
        let bytes = 4 * MIB;
        let mut pool = Pool::with_regions(FIXED, &[(base, bytes)]);
        let mut blocks = Vec::new();
        for log2 in (8..=20).rev().chain(8..=20) {
            let align = Align::new(1 << log2).expect("a power of two");
            let block = pool.grant(&Request::new(700).aligned(align)).block;
            assert!(block.addr().is_aligned(align), "{block:?}");
            blocks.push(block);
        }
        assert_disjoint(&blocks);
        let report = pool.shared.get_mut().report();
        assert_eq!(report.live_bytes + report.free_bytes, bytes);
        pool.free_all(blocks);
        assert_eq!(pool.free_chunks(), [(base, bytes)]);
    }
}

#[test]
fn an_aligned_request_grows_by_enough_wherever_the_memory_lies() {
    for contiguous in [false, true] {
        for first in [GRANULE, BASE + 5 * GRANULE] {
            let source = Source::from_address(first);
            source.gap_bytes.set(3 * GRANULE);
            source.contiguous.set(contiguous);
            let mut pool = Pool::over(ranged(GIB), source, 256);
            for log2 in [8, 12, 16, 20, 20, 18, 9] {
                let align = Align::new(1 << log2).expect("a power of two");
                let request = Request::new(100 * KIB).aligned(align);
                pool.source().take_log();
                let block = pool.grant(&request).block;
                assert!(block.addr().is_aligned(align));
                let calls = pool.source().take_log();
                let max = if contiguous { 1 } else { 2 };
                assert!(calls.len() <= max, "{calls:?} for {request:?}");
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
