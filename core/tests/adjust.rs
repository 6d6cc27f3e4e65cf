//! Conformance with SPEC 7.2: the adjuster's sequences A, B and C number by number, the vmem cases
//! of 7.1 they rest on, and how ours (`Shrink::Pending`) differs from upstream (`Shrink::Clamp`).
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod common;

use common::upstream::round256;
use common::{Call, GIB, KIB, MIB, Picture, Pool, Random, Source, Tuple, at_once};
use std::num::NonZeroU32;

use larder_core::{Addr, BfcConfig, Block, FixedRange, Growth, PoolStats, Request, Shrink};

// The vmem allocator of SPEC 7.1, as far as the sequences need it --------------------------------

/// Which side served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Device,
    Host,
}

/// Device first, then host; both BFCs of TensorFlow.
struct Vmem {
    device: Pool,
    host: Pool,
}

impl Vmem {
    fn new(device: BfcConfig, host_limit: u64) -> Self {
        Self {
            device: Pool::new(device),
            host: Pool::over(
                BfcConfig::tensorflow(host_limit),
                Source::from_address(0x1_0000_0000),
                common::RECORDS,
            ),
        }
    }

    /// As the sequences begin: growth on both sides, 1 GiB of host memory.
    fn growing(device_limit: u64) -> Self {
        Self::new(BfcConfig::tensorflow(device_limit), GIB)
    }

    fn try_alloc(&mut self, bytes: u64) -> Option<(Side, Block)> {
        if let Some(block) = self.device.try_alloc(bytes) {
            return Some((Side::Device, block));
        }
        Some((Side::Host, self.host.try_alloc(bytes)?))
    }

    /// On the side that is expected, with the statistics of that side after it; the other side's
    /// do not change, and its pool not by one chunk.
    #[track_caller]
    fn alloc(&mut self, bytes: u64, side: Side, expected: Tuple) -> Block {
        let before = self.other(side);
        let (served, block) = self.try_alloc(bytes).expect("one side has memory");
        assert_eq!(served, side);
        assert_eq!(self.tuple(side), expected);
        assert_eq!(self.other(side), before);
        block
    }

    fn other(&self, side: Side) -> Picture {
        match side {
            Side::Device => self.host.picture(),
            Side::Host => self.device.picture(),
        }
    }

    fn tuple(&self, side: Side) -> Tuple {
        match side {
            Side::Device => self.device.tuple(),
            Side::Host => self.host.tuple(),
        }
    }

    /// The wrapper's statistics: the device's, with the sum of both peaks.
    fn joint(&self) -> Tuple {
        let (device, host) = (self.device.tuple(), self.host.tuple());
        (device.0, device.1, device.2 + host.2, device.3)
    }

    /// Frees device blocks; the device's statistics after it.
    #[track_caller]
    fn free(&mut self, blocks: impl IntoIterator<Item = Block>, expected: Tuple) {
        let before = self.host.picture();
        self.device.free_all(blocks);
        assert_eq!(self.device.tuple(), expected);
        assert_eq!(self.host.picture(), before);
    }

    /// Adjusts the device; the limit answered and the regions left. No statistic changes.
    #[track_caller]
    fn adjust(&mut self, limit_mib: u64, answer_mib: u64, regions_mib: &[u64]) {
        let (tuple, host) = (self.device.tuple(), self.host.picture());
        let change = self.device.adjust(limit_mib * MIB);
        assert_eq!(
            (change.limit_bytes, change.excess_bytes),
            (answer_mib * MIB, 0)
        );
        assert_eq!(self.device.region_mib(), regions_mib);
        assert_eq!(self.device.tuple(), tuple);
        assert_eq!(self.host.picture(), host);
    }
}

#[test]
fn s7_1_a_host_limit_of_1025_mib_serves_what_the_device_cannot_and_1024_mib_does_not() {
    for (host_limit, served) in [(1025 * MIB, true), (1024 * MIB, false)] {
        let mut vmem = Vmem::new(at_once(GIB), host_limit);
        assert!(vmem.device.try_alloc(GIB + 1024).is_none());
        assert_eq!(vmem.try_alloc(GIB + 1024).is_some(), served);
    }
}

#[test]
fn s7_1_no_dups_through_the_fallback_stay_on_the_device() {
    let mut vmem = Vmem::new(at_once(GIB), GIB);
    let blocks: Vec<Block> = (1..1024)
        .map(|bytes| match vmem.try_alloc(bytes) {
            Some((Side::Device, block)) => block,
            other => panic!("{other:?}"),
        })
        .collect();
    common::assert_disjoint(&blocks);
    assert_eq!(vmem.joint(), (1023, 654_336, 654_336, 1024));
    vmem.free(blocks, (1023, 0, 654_336, 1024));
    assert_eq!(vmem.joint(), (1023, 0, 654_336, 1024));
}

#[test]
fn s7_1_out_of_device_memory_goes_to_the_host_and_clearing_keeps_what_is_in_use() {
    let m = 512 * MIB;
    let mut vmem = Vmem::new(at_once(GIB), GIB);
    let _block = vmem.alloc(m, Side::Device, (1, m, m, m));
    assert!(vmem.device.try_alloc(m + 1024).is_none());
    let _block = vmem.alloc(m + 1024, Side::Host, (1, m + 1024, m + 1024, m + 1024));
    assert_eq!(vmem.joint(), (1, m, 2 * m + 1024, m));
    vmem.device.bfc.clear_stats();
    vmem.host.bfc.clear_stats();
    assert_eq!(vmem.device.tuple(), (0, m, m, 0));
    assert_eq!(vmem.host.tuple(), (0, m + 1024, m + 1024, 0));
    assert_eq!(vmem.joint(), (0, m, 2 * m + 1024, 0));
}

// The sequences ---------------------------------------------------------------------------------

const M: u64 = MIB;
const K400: u64 = 400 * KIB;
const K800: u64 = 800 * KIB;

#[test]
fn s7_2_sequence_a_shrinking_to_2_mib_sends_what_no_longer_fits_to_the_host() {
    let mut vmem = Vmem::growing(GIB);
    let _first = vmem.alloc(700 * KIB, Side::Device, (1, M, M, M));
    let b = vmem.alloc(2 * M, Side::Device, (2, 3 * M, 3 * M, 2 * M));
    let c = vmem.alloc(K400, Side::Device, (3, 3 * M + K400, 3 * M + K400, 2 * M));
    let d = vmem.alloc(K400, Side::Device, (4, 3 * M + K800, 3 * M + K800, 2 * M));
    assert_eq!(vmem.device.region_mib(), [1, 2, 4]);
    vmem.free([b, c, d], (4, M, 3 * M + K800, 2 * M));
    vmem.device.source.take_log();
    vmem.adjust(2, 2, &[1]);
    let calls = [Call::Release(2 * M), Call::Release(4 * M)];
    assert_eq!(vmem.device.source.take_log(), calls);
    let _e = vmem.alloc(2 * M, Side::Host, (1, 2 * M, 2 * M, 2 * M));
    assert_eq!(vmem.device.tuple(), (4, M, 3 * M + K800, 2 * M));
    let _f = vmem.alloc(8 * M, Side::Host, (2, 10 * M, 10 * M, 8 * M));
    assert_eq!(vmem.device.tuple(), (4, M, 3 * M + K800, 2 * M));
    assert_eq!(vmem.joint(), (4, M, 13 * M + K800, 2 * M));
    assert_eq!(
        vmem.device.source.take_log(),
        [],
        "the limit was enough to know"
    );
}

/// 700 KiB, 20 MiB, 400 KiB, 400 KiB: how B and C begin.
fn begin_b_and_c(vmem: &mut Vmem) -> [Block; 4] {
    let blocks = [
        vmem.alloc(700 * KIB, Side::Device, (1, M, M, M)),
        vmem.alloc(20 * M, Side::Device, (2, 33 * M, 33 * M, 32 * M)),
        vmem.alloc(
            K400,
            Side::Device,
            (3, 33 * M + K400, 33 * M + K400, 32 * M),
        ),
        vmem.alloc(
            K400,
            Side::Device,
            (4, 33 * M + K800, 33 * M + K800, 32 * M),
        ),
    ];
    assert_eq!(vmem.device.region_mib(), [1, 32, 32]);
    blocks
}

#[test]
fn s7_2_sequence_b_shrinking_to_exactly_what_is_in_use_and_growing_again() {
    let mut vmem = Vmem::growing(GIB);
    let [a, _b, c, d] = begin_b_and_c(&mut vmem);
    let peak = 33 * M + K800;
    vmem.free([c, d, a], (4, 32 * M, peak, 32 * M));
    vmem.device.source.take_log();
    vmem.adjust(32, 32, &[32]);
    assert_eq!(
        vmem.device.source.take_log(),
        [Call::Release(M), Call::Release(32 * M)]
    );
    let _e = vmem.alloc(20 * M, Side::Host, (1, 32 * M, 32 * M, 32 * M));
    assert_eq!(vmem.device.tuple(), (4, 32 * M, peak, 32 * M));
    let _f = vmem.alloc(32 * M, Side::Host, (2, 64 * M, 64 * M, 32 * M));
    vmem.adjust(2048, 2048, &[32]);
    let _g = vmem.alloc(20 * M, Side::Device, (5, 64 * M, 64 * M, 32 * M));
    assert_eq!(
        vmem.device.source.take_log(),
        [Call::Grow(32 * M)],
        "256 doubled back to 32 MiB"
    );
    assert_eq!(vmem.joint(), (5, 64 * M, 128 * M, 32 * M));
}

#[test]
fn s7_2_sequence_c_the_limit_goes_down_and_up_and_stays_at_what_is_held() {
    let mut vmem = Vmem::growing(4 * GIB);
    let [a, b, c, d] = begin_b_and_c(&mut vmem);
    let peak = 33 * M + K800;
    vmem.free([b, a], (4, K800, peak, 32 * M));
    vmem.adjust(32, 32, &[32]);
    assert_eq!(vmem.device.tuple(), (4, K800, peak, 32 * M));
    let _h1 = vmem.alloc(32 * M, Side::Host, (1, 32 * M, 32 * M, 32 * M));
    let e = vmem.alloc(12 * M, Side::Device, (5, 12 * M + K800, peak, 32 * M));
    let f = vmem.alloc(2 * M, Side::Device, (6, 14 * M + K800, peak, 32 * M));
    let _h2 = vmem.alloc(32 * M, Side::Host, (2, 64 * M, 64 * M, 32 * M));

    vmem.adjust(256, 256, &[32]);
    let peak = 142 * M + K800;
    let _g = vmem.alloc(128 * M, Side::Device, (7, peak, peak, 128 * M));
    let peak = 144 * M + K800;
    let h = vmem.alloc(2 * M, Side::Device, (8, peak, peak, 128 * M));
    let _h3 = vmem.alloc(512 * M, Side::Host, (3, 576 * M, 576 * M, 512 * M));
    vmem.free([f, h, e, c, d], (8, 128 * M, peak, 128 * M));
    let _i = vmem.alloc(2 * M, Side::Device, (9, 130 * M, peak, 128 * M));

    vmem.device.source.take_log();
    vmem.adjust(160, 160, &[32, 128]);
    assert_eq!(
        vmem.device.source.take_log(),
        [],
        "nothing need be released"
    );
    assert_eq!(vmem.device.tuple(), (9, 130 * M, peak, 128 * M));
    let _h4 = vmem.alloc(32 * M, Side::Host, (4, 608 * M, 608 * M, 512 * M));

    vmem.adjust(2048, 2048, &[32, 128]);
    let _j = vmem.alloc(2 * M, Side::Device, (10, 132 * M, peak, 128 * M));
    let k = vmem.alloc(16 * M, Side::Device, (11, 160 * M, 160 * M, 128 * M));
    vmem.free([k], (11, 132 * M, 160 * M, 128 * M));
    vmem.device.source.take_log();
    vmem.adjust(128, 160, &[32, 128]);
    assert_eq!(vmem.device.tuple(), (11, 132 * M, 160 * M, 128 * M));
    assert_eq!(vmem.device.source.take_log(), [], "both regions are in use");
}

// Upstream's rules one by one -------------------------------------------------------------------

#[test]
fn s7_2_the_limit_may_rise_at_any_time_and_lowering_above_what_is_held_releases_nothing() {
    let mut pool = Pool::tensorflow(2 * MIB);
    let _first = pool.alloc(MIB);
    assert!(pool.try_alloc(2 * MIB).is_none());
    pool.adjust(3 * MIB);
    let block = pool.alloc(2 * MIB);
    pool.free(block);
    pool.source.take_log();
    for limit in [GIB, 4 * MIB, 3 * MIB + 1, 3 * MIB, u64::MAX, 3 * MIB] {
        assert_eq!(pool.adjust(limit).limit_bytes, limit);
        assert_eq!(
            pool.region_mib(),
            [1, 2],
            "free memory stays within {limit}"
        );
    }
    assert_eq!(pool.source.take_log(), []);
}

#[test]
fn s7_2_regions_are_released_in_address_order_until_enough_is_free() {
    let mut pool = Pool::tensorflow(GIB);
    let blocks = [1, 2, 4, 8].map(|mib| pool.alloc(mib * MIB));
    pool.free_all(blocks);
    pool.source.take_log();
    assert_eq!(pool.adjust(14 * MIB).limit_bytes, 14 * MIB);
    assert_eq!(
        pool.source.take_log(),
        [Call::Release(MIB)],
        "15 held, 1 too many"
    );
    assert_eq!(pool.adjust(13 * MIB + 1).limit_bytes, 13 * MIB + 1);
    assert_eq!(pool.source.take_log(), [Call::Release(2 * MIB)]);
    assert_eq!(pool.adjust(0).limit_bytes, 0);
    assert_eq!(
        pool.source.take_log(),
        [Call::Release(4 * MIB), Call::Release(8 * MIB)]
    );
    assert!(pool.try_alloc(1).is_none());
}

#[test]
fn s7_2_a_shrink_that_fails_keeps_what_it_freed_and_clamps_the_limit() {
    let mut pool = Pool::tensorflow(GIB);
    let [a, b, c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free(a);
    pool.free(c);
    let change = pool.adjust(MIB);
    assert_eq!((change.limit_bytes, change.excess_bytes), (2 * MIB, 0));
    assert_eq!(pool.region_mib(), [2]);
    // Upstream forgets it: what comes home later stays held.
    pool.free(b);
    assert_eq!(pool.region_mib(), [2]);
    assert_eq!(pool.bfc.stats().limit_bytes, 2 * MIB);
}

/// Bytes asked for by the next growth after a shrink to `limit` that leaves `held_mib` held.
fn step_after_shrink(limit: u64, held_mib: u64) -> u64 {
    let mut pool = Pool::tensorflow(GIB);
    let free = pool.alloc(MIB);
    let _used = (held_mib > 0).then(|| pool.alloc(held_mib * MIB));
    pool.free(free);
    pool.adjust(limit);
    assert_eq!(pool.reserved_bytes(), held_mib * MIB);
    pool.adjust(GIB);
    pool.source.take_log();
    let _one = pool.alloc(1);
    match pool.source.take_log()[..] {
        [Call::Grow(bytes)] => bytes,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn s7_2_growth_restarts_after_a_release_from_the_room_left_at_most_1_mib() {
    assert_eq!(step_after_shrink(2 * MIB, 2), 256, "T equals the limit");
    assert_eq!(step_after_shrink(2 * MIB + 1, 2), 256);
    assert_eq!(step_after_shrink(2 * MIB + 257, 2), 512);
    assert_eq!(step_after_shrink(2 * MIB + 700 * KIB, 2), 700 * KIB);
    assert_eq!(step_after_shrink(3 * MIB - 1, 2), MIB);
    assert_eq!(
        step_after_shrink(MIB, 2),
        MIB,
        "the original's subtraction wraps"
    );
    assert_eq!(step_after_shrink(0, 0), 256);
    assert_eq!(step_after_shrink(MIB - 1, 0), MIB);
    assert_eq!(step_after_shrink(5000, 0), round256(5000));
}

#[test]
fn s7_2_without_a_release_pass_the_step_is_kept() {
    let mut pool = Pool::tensorflow(GIB);
    let _block = pool.alloc(20 * MIB);
    pool.adjust(32 * MIB);
    pool.adjust(GIB);
    pool.source.take_log();
    let _block = pool.alloc(20 * MIB);
    assert_eq!(pool.source.take_log(), [Call::Grow(32 * MIB)]);
}

#[test]
fn s7_2_stable_is_the_sum_of_regions_with_something_in_use() {
    let mut pool = Pool::tensorflow(GIB);
    assert_eq!(pool.bfc.pool_stats(), PoolStats::default());
    let a = pool.alloc(MIB);
    let b = pool.alloc(2 * MIB);
    let c = pool.alloc(256);
    let stats = |pool: &mut Pool| {
        let stats = pool.bfc.pool_stats();
        pool.check();
        (stats.pool_bytes / MIB, stats.stable_bytes / MIB)
    };
    assert_eq!(stats(&mut pool), (7, 7));
    pool.free(b);
    assert_eq!(stats(&mut pool), (7, 5));
    pool.free(a);
    assert_eq!(stats(&mut pool), (7, 4), "256 bytes hold 4 MiB");
    pool.free(c);
    assert_eq!(stats(&mut pool), (7, 0));
}

/// A heap after some hundred random allocations and frees.
fn random_heap(config: BfcConfig, seed: u64) -> (Pool, Vec<Block>) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut pool = Pool::new(config);
    let mut live = Vec::new();
    for _ in 0..200 {
        if random.below(3) > 0 {
            let log2 = 8 + random.below(16);
            live.extend(pool.try_alloc(1 + random.below(1 << log2)));
        } else if !live.is_empty() {
            let i = random.below(live.len() as u64) as usize;
            pool.free(live.swap_remove(i));
        }
    }
    let keep = random.below(1 + live.len() as u64 / 8) as usize;
    pool.free_all(live.split_off(keep));
    (pool, live)
}

#[test]
fn am_4_stable_is_what_shrinking_to_0_leaves_for_every_random_heap() {
    for shrink in [Shrink::Clamp, Shrink::Pending] {
        for seed in 0..40 {
            let config = BfcConfig {
                shrink,
                ..BfcConfig::tensorflow(256 * MIB)
            };
            let (mut pool, live) = random_heap(config, seed);
            let stable = pool.bfc.pool_stats().stable_bytes;
            let change = pool.adjust(0);
            assert_eq!(pool.reserved_bytes(), stable);
            assert_eq!(change.limit_bytes + change.excess_bytes, stable);
            pool.free_all(live);
            pool.adjust(0);
            assert_eq!((pool.reserved_bytes(), pool.source.out_bytes()), (0, 0));
        }
    }
}

// Ours against upstream -------------------------------------------------------------------------

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
fn s9_5_nothing_grows_above_a_pending_limit_but_what_is_held_is_used_on() {
    let mut pool = Pool::new(pending(GIB));
    let [a, b] = [4, 4].map(|mib| pool.alloc(mib * MIB));
    pool.adjust(4 * MIB);
    pool.source.take_log();
    pool.free(a);
    let again = pool.alloc(4 * MIB);
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

#[test]
fn s7_2_records_of_released_regions_are_used_again_over_10_000_rounds() {
    for shrink in [Shrink::Clamp, Shrink::Pending] {
        let config = BfcConfig {
            shrink,
            ..BfcConfig::tensorflow(GIB)
        };
        // The sink and three chunks: two blocks and what they leave.
        let mut pool = Pool::over(config, Source::new(), 4);
        for round in 0..10_000u64 {
            let a = pool.alloc(256);
            let b = pool.alloc(100 * KIB);
            pool.free_all([a, b]);
            let limit = if round % 2 == 0 { 0 } else { 100 };
            assert_eq!(pool.adjust(limit).limit_bytes, limit);
            assert_eq!(
                (pool.reserved_bytes(), pool.bfc.report().vacant_records),
                (0, 3)
            );
            pool.adjust(GIB);
        }
        assert_eq!(pool.source.out_bytes(), 0);
    }
}

#[test]
fn s7_2_records_of_trimmed_ends_are_used_again_over_1000_rounds() {
    let config = BfcConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..BfcConfig::new(GIB)
    };
    let mut pool = Pool::over(config, Source::contiguous(), 4);
    let _anchor = pool.alloc(256);
    for _ in 0..1000 {
        let block = pool.alloc(MIB);
        pool.free(block);
        assert_eq!(pool.trim(), MIB);
        assert_eq!(pool.region_bytes(), [64 * KIB]);
        assert_eq!(pool.bfc.report().vacant_records, 1);
    }
}

#[test]
fn s7_2_a_refused_release_leaves_everything_usable() {
    for shrink in [Shrink::Clamp, Shrink::Pending] {
        let config = BfcConfig {
            shrink,
            ..BfcConfig::tensorflow(GIB)
        };
        let mut pool = Pool::new(config);
        let blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
        pool.free_all(blocks);
        let before = pool.picture();
        pool.source.refuse_releases.set(u32::MAX);
        let change = pool.adjust(0);
        assert_eq!(change.limit_bytes + change.excess_bytes, 7 * MIB);
        assert_eq!(pool.trim(), 0);
        pool.bfc.set_limit(GIB);
        pool.check();
        assert_eq!(pool.picture(), before);
        let blocks = [4, 2, 1].map(|mib| pool.alloc(mib * MIB));
        assert_eq!(pool.reserved_bytes(), 7 * MIB, "all of it serves again");
        pool.free_all(blocks);
        pool.source.refuse_releases.set(0);
        assert_eq!(pool.trim(), 7 * MIB);
    }
}

#[test]
fn s7_2_a_release_refused_in_the_middle_keeps_what_went_before_it() {
    let mut pool = Pool::tensorflow(GIB);
    let blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free_all(blocks);
    let ticket = pool
        .bfc
        .take_releasable(u64::MAX)
        .expect("the first is free");
    assert_eq!(ticket.range().bytes(), MIB);
    pool.check();
    assert!(
        pool.try_alloc(MIB).is_some(),
        "others serve while it is on its way"
    );
    pool.bfc.released(ticket);
    pool.check();
    let ticket = pool
        .bfc
        .take_releasable(u64::MAX)
        .expect("the 4 MiB are free");
    assert_eq!(ticket.range().bytes(), 4 * MIB);
    pool.bfc.release_refused(ticket);
    pool.check();
    assert_eq!(pool.region_mib(), [2, 4]);
    assert!(pool.try_alloc(4 * MIB).is_some());
}

// A range that grows at its end -----------------------------------------------------------------

/// Ours, in units of 64 KiB, over memory that continues.
fn ranged(limit: u64) -> Pool {
    let config = BfcConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..BfcConfig::new(limit)
    };
    Pool::over(config, Source::contiguous(), 256)
}

#[test]
fn ours_trimming_gives_back_whole_units_of_the_free_end() {
    let mut pool = ranged(GIB);
    let a = pool.alloc(100 * KIB);
    let b = pool.alloc(300 * KIB);
    assert_eq!(pool.region_bytes(), [448 * KIB]);
    assert_eq!(pool.trim(), 0, "48 KiB are no unit");
    pool.free(b);
    pool.source.take_log();
    assert_eq!(
        pool.trim(),
        320 * KIB,
        "5 of the 5.4 units behind the first block"
    );
    assert_eq!(pool.source.take_log(), [Call::Release(320 * KIB)]);
    assert_eq!(pool.region_bytes(), [128 * KIB]);
    let b = pool.alloc(300 * KIB);
    assert_eq!(
        pool.region_bytes(),
        [448 * KIB],
        "it grows where it was cut"
    );
    pool.free_all([a, b]);
    assert_eq!(pool.trim(), 448 * KIB);
    assert_eq!((pool.regions().len(), pool.source.out_bytes()), (0, 0));
}

#[test]
fn ours_a_lowered_limit_cuts_no_more_units_than_it_needs() {
    let mut pool = ranged(GIB);
    let _a = pool.alloc(64 * KIB);
    let b = pool.alloc(10 * 64 * KIB);
    pool.free(b);
    pool.source.take_log();
    assert_eq!(pool.adjust(9 * 64 * KIB).excess_bytes, 0);
    assert_eq!(pool.region_bytes(), [9 * 64 * KIB]);
    assert_eq!(pool.adjust(8 * 64 * KIB + 1).excess_bytes, 0);
    assert_eq!(pool.region_bytes(), [8 * 64 * KIB], "a unit is not cut");
    assert_eq!(pool.adjust(0).excess_bytes, 64 * KIB);
}

/// SPEC 7.10: prefer what meets the goal with the least excess.
#[test]
fn ours_a_wholly_free_range_gives_the_units_asked_for_and_keeps_the_rest() {
    let mut pool = ranged(GIB);
    let block = pool.alloc(10 * 64 * KIB);
    pool.free(block);
    assert_eq!(pool.adjust(9 * 64 * KIB).excess_bytes, 0);
    assert_eq!(pool.region_bytes(), [9 * 64 * KIB]);
}

#[test]
fn ours_a_cut_that_is_refused_rejoins_the_end() {
    let mut pool = ranged(GIB);
    // 11 units; behind the first half of one, ten and a half are free and ten can go.
    let _a = pool.alloc(32 * KIB);
    let b = pool.alloc(640 * KIB);
    pool.free(b);
    let before = pool.picture();
    pool.source.take_log();
    pool.source.refuse_releases.set(1);
    assert_eq!(pool.trim(), 0);
    assert_eq!(pool.source.take_log(), [Call::ReleaseRefused(640 * KIB)]);
    assert_eq!(pool.picture(), before);
    let block = pool.alloc(672 * KIB);
    assert_eq!(pool.reserved_bytes(), 704 * KIB);
    pool.free(block);
}

#[test]
fn ours_while_a_cut_is_on_its_way_the_limit_counts_it_and_growth_goes_elsewhere() {
    let mut pool = ranged(704 * KIB);
    let _a = pool.alloc(64 * KIB);
    let b = pool.alloc(640 * KIB);
    pool.free(b);
    let ticket = pool.bfc.take_releasable(320 * KIB).expect("five units");
    pool.check();
    assert!(
        pool.bfc.take_releasable(320 * KIB).is_none(),
        "that much is on its way"
    );
    assert_eq!(pool.reserved_bytes(), 704 * KIB);
    assert!(
        pool.try_alloc(384 * KIB).is_none(),
        "320 KiB are left, and the limit is full"
    );
    let block = pool.alloc(320 * KIB);
    assert_eq!(pool.bfc.report().leaving_bytes, 320 * KIB);
    pool.bfc.released(ticket);
    pool.check();
    assert_eq!(pool.reserved_bytes(), 384 * KIB);
    pool.free(block);
    assert_eq!(pool.bfc.report().leaving_bytes, 0);
}

#[test]
fn ours_a_full_table_cannot_cut_but_loses_nothing() {
    let config = BfcConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..BfcConfig::new(GIB)
    };
    // The sink and two chunks.
    let mut pool = Pool::over(config, Source::contiguous(), 3);
    let a = pool.alloc(256);
    let b = pool.try_alloc(63 * KIB);
    assert!(b.is_none(), "no record for the rest");
    assert_eq!(pool.trim(), 0);
    pool.free(a);
    assert_eq!(pool.trim(), pool.bfc.stats().peak_reserved_bytes);
}

#[test]
fn ours_growth_ahead_is_cut_at_the_limit_and_a_refused_one_asks_for_the_least_that_helps() {
    const UNIT: u64 = 64 * KIB;
    let config = BfcConfig {
        growth: Growth::Range {
            unit_bytes: UNIT,
            ahead_divisor: NonZeroU32::new(2),
        },
        ..BfcConfig::new(20 * UNIT)
    };
    let mut pool = Pool::over(config, Source::contiguous(), 256);
    let grown = |pool: &mut Pool, units: u64| {
        let _block = pool.alloc(units * UNIT);
        pool.source.take_log()
    };
    assert_eq!(grown(&mut pool, 10), [Call::Grow(10 * UNIT)]);
    assert_eq!(
        grown(&mut pool, 1),
        [Call::Grow(5 * UNIT)],
        "half of what is held, ahead"
    );
    assert_eq!(grown(&mut pool, 4), [], "it was ahead");
    pool.source.refuse_grows.set(1);
    let calls = [Call::GrowRefused(5 * UNIT), Call::Grow(UNIT)];
    assert_eq!(
        grown(&mut pool, 1),
        calls,
        "7.5 units ahead are cut at the limit"
    );
    pool.source.refuse_grows.set(u32::MAX);
    let result = pool.unchanged(|pool| pool.try_alloc(UNIT));
    assert!(result.is_none());
    let calls = [Call::GrowRefused(4 * UNIT), Call::GrowRefused(UNIT)];
    assert_eq!(pool.source.take_log(), calls);
    pool.source.refuse_grows.set(0);
    assert_eq!(grown(&mut pool, 4), [Call::Grow(4 * UNIT)]);
    assert!(pool.try_alloc(1).is_none());
}

/// `trim`: "gives everything back that is free in whole regions". A `FixedRange` takes only the
/// end of what is out, so the first region is refused until the last has gone.
#[test]
fn a_region_that_cannot_go_back_does_not_keep_the_others() {
    for shrink in [Shrink::Clamp, Shrink::Pending] {
        let config = BfcConfig {
            shrink,
            ..BfcConfig::tensorflow(GIB)
        };
        let mut pool = Pool::new(config);
        let source = FixedRange::new(common::range(0x10_0000, 64 * MIB));
        let blocks = [1, 2, 4].map(|mib| {
            let grant = pool.bfc.alloc_over(&source, &Request::new(mib * MIB));
            grant.expect("room").block
        });
        assert_eq!(blocks[0].addr(), Addr::new(0x10_0000));
        pool.free_all(blocks);
        while pool.bfc.trim_over(&source) > 0 {
            pool.check();
        }
        assert_eq!(source.used_bytes(), 0);
    }
}
