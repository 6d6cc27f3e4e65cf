//! The sequences A, B and C of CONFORMANCE 7.2 over the vmem allocator of 7.1, device first, then host.

use crate::common::{self, Call, GIB, KIB, MIB, Picture, Pool, Source, Tuple, at_once};
use larder_core::{BfcConfig, Block};

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
