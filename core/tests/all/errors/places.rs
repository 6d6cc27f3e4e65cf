//! Alignments are honoured wherever the regions and the further memory lie.

use crate::common::{
    BASE, GIB, GRANULE, KIB, MIB, Pool, UNIT, assert_disjoint, contiguous, ranged,
};
use larder_core::{Align, BestFit, RegionConfig, Request};

fn aligned(bytes: u64, log2: u32) -> Request {
    Request::new(bytes).aligned(Align::new(1 << log2).expect("a power of two"))
}

#[test]
fn every_alignment_up_to_1_mib_is_honoured_over_odd_regions_and_nothing_is_lost() {
    let bases = [GRANULE, 3 * GRANULE, BASE + 7 * GRANULE];
    for base in bases.into_iter().chain([(1 << 44) - GRANULE]) {
        let bytes = 4 * MIB;
        let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(base, bytes)]);
        let mut blocks = Vec::new();
        for log2 in (8..=20).rev().chain(8..=20) {
            let request = aligned(700, log2);
            let block = pool.try_grant(&request).expect("room").block;
            assert!(block.addr().is_aligned(request.align), "{block:?}");
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
    for (gap, most_calls) in [(3 * GRANULE, 2), (0, 1)] {
        for first in [GRANULE, 5 * GRANULE] {
            let source = contiguous();
            source.skip(first);
            source.leave_gaps(gap);
            let mut pool = Pool::over(ranged(UNIT, GIB), source, 256);
            for log2 in [8, 12, 16, 20, 20, 18, 9] {
                let request = aligned(100 * KIB, log2);
                pool.source().take_log();
                let block = pool.try_grant(&request).expect("room").block;
                assert!(block.addr().is_aligned(request.align));
                let calls = pool.source().take_log();
                assert!(calls.len() <= most_calls, "{calls:?} for {request:?}");
            }
        }
    }
}
