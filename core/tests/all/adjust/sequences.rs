//! AntMan's sequences A, B and C number by number: the device's limit changes while [`Vmem`] serves
//! from both sides, each TensorFlow's.
//!
//! [`Vmem`]: larder_model::antman::Vmem

use crate::adjust::sides::UpstreamSides;
use crate::common::{GIB, KIB, MIB};
use larder_core::{Block, Placement};
use larder_model::Call;

const M: u64 = MIB;
const K400: u64 = 400 * KIB;
const K800: u64 = 800 * KIB;

#[test]
fn am_2_sequence_a_shrinking_to_2_mib_sends_what_no_longer_fits_to_the_host() {
    let vmem = UpstreamSides::upstream(GIB);
    let _first = vmem.alloc(700 * KIB, Placement::Device, (1, M, M, M));
    let b = vmem.alloc(2 * M, Placement::Device, (2, 3 * M, 3 * M, 2 * M));
    let c = vmem.alloc(
        K400,
        Placement::Device,
        (3, 3 * M + K400, 3 * M + K400, 2 * M),
    );
    let d = vmem.alloc(
        K400,
        Placement::Device,
        (4, 3 * M + K800, 3 * M + K800, 2 * M),
    );
    assert_eq!(vmem.region_mib(), [1, 2, 4]);
    vmem.free([b, c, d], (4, M, 3 * M + K800, 2 * M));
    vmem.device_log();
    vmem.adjust(2, 2, &[1]);
    let calls = [Call::Release(2 * M), Call::Release(4 * M)];
    assert_eq!(vmem.device_log(), calls);
    let _e = vmem.alloc(2 * M, Placement::Host, (1, 2 * M, 2 * M, 2 * M));
    assert_eq!(vmem.tuple(Placement::Device), (4, M, 3 * M + K800, 2 * M));
    let _f = vmem.alloc(8 * M, Placement::Host, (2, 10 * M, 10 * M, 8 * M));
    assert_eq!(vmem.tuple(Placement::Device), (4, M, 3 * M + K800, 2 * M));
    assert_eq!(vmem.antman(), (4, M, 13 * M + K800, 2 * M));
    assert_eq!(vmem.device_log(), [], "the limit was enough to know");
}

/// 700 KiB, 20 MiB, 400 KiB, 400 KiB: how B and C begin.
fn begin_b_and_c(vmem: &UpstreamSides) -> [Block; 4] {
    let blocks = [
        vmem.alloc(700 * KIB, Placement::Device, (1, M, M, M)),
        vmem.alloc(20 * M, Placement::Device, (2, 33 * M, 33 * M, 32 * M)),
        vmem.alloc(
            K400,
            Placement::Device,
            (3, 33 * M + K400, 33 * M + K400, 32 * M),
        ),
        vmem.alloc(
            K400,
            Placement::Device,
            (4, 33 * M + K800, 33 * M + K800, 32 * M),
        ),
    ];
    assert_eq!(vmem.region_mib(), [1, 32, 32]);
    blocks
}

#[test]
fn am_2_sequence_b_shrinking_to_exactly_what_is_in_use_and_growing_again() {
    let vmem = UpstreamSides::upstream(GIB);
    let [a, _b, c, d] = begin_b_and_c(&vmem);
    let peak = 33 * M + K800;
    vmem.free([c, d, a], (4, 32 * M, peak, 32 * M));
    vmem.device_log();
    vmem.adjust(32, 32, &[32]);
    assert_eq!(vmem.device_log(), [Call::Release(M), Call::Release(32 * M)]);
    let _e = vmem.alloc(20 * M, Placement::Host, (1, 32 * M, 32 * M, 32 * M));
    assert_eq!(vmem.tuple(Placement::Device), (4, 32 * M, peak, 32 * M));
    let _f = vmem.alloc(32 * M, Placement::Host, (2, 64 * M, 64 * M, 32 * M));
    vmem.adjust(2048, 2048, &[32]);
    let _g = vmem.alloc(20 * M, Placement::Device, (5, 64 * M, 64 * M, 32 * M));
    assert_eq!(
        vmem.device_log(),
        [Call::Grow(32 * M)],
        "256 doubled back to 32 MiB"
    );
    assert_eq!(vmem.antman(), (5, 64 * M, 128 * M, 32 * M));
}

#[test]
fn am_2_sequence_c_the_limit_goes_down_and_up_and_stays_at_what_is_held() {
    let vmem = UpstreamSides::upstream(4 * GIB);
    let [a, b, c, d] = begin_b_and_c(&vmem);
    let peak = 33 * M + K800;
    vmem.free([b, a], (4, K800, peak, 32 * M));
    vmem.adjust(32, 32, &[32]);
    assert_eq!(vmem.tuple(Placement::Device), (4, K800, peak, 32 * M));
    let _h1 = vmem.alloc(32 * M, Placement::Host, (1, 32 * M, 32 * M, 32 * M));
    let e = vmem.alloc(12 * M, Placement::Device, (5, 12 * M + K800, peak, 32 * M));
    let f = vmem.alloc(2 * M, Placement::Device, (6, 14 * M + K800, peak, 32 * M));
    let _h2 = vmem.alloc(32 * M, Placement::Host, (2, 64 * M, 64 * M, 32 * M));

    vmem.adjust(256, 256, &[32]);
    let peak = 142 * M + K800;
    let _g = vmem.alloc(128 * M, Placement::Device, (7, peak, peak, 128 * M));
    let peak = 144 * M + K800;
    let h = vmem.alloc(2 * M, Placement::Device, (8, peak, peak, 128 * M));
    let _h3 = vmem.alloc(512 * M, Placement::Host, (3, 576 * M, 576 * M, 512 * M));
    vmem.free([f, h, e, c, d], (8, 128 * M, peak, 128 * M));
    let _i = vmem.alloc(2 * M, Placement::Device, (9, 130 * M, peak, 128 * M));

    vmem.device_log();
    vmem.adjust(160, 160, &[32, 128]);
    assert_eq!(vmem.device_log(), [], "nothing need be released");
    assert_eq!(vmem.tuple(Placement::Device), (9, 130 * M, peak, 128 * M));
    let _h4 = vmem.alloc(32 * M, Placement::Host, (4, 608 * M, 608 * M, 512 * M));

    vmem.adjust(2048, 2048, &[32, 128]);
    let _j = vmem.alloc(2 * M, Placement::Device, (10, 132 * M, peak, 128 * M));
    let k = vmem.alloc(16 * M, Placement::Device, (11, 160 * M, 160 * M, 128 * M));
    vmem.free([k], (11, 132 * M, 160 * M, 128 * M));
    vmem.device_log();
    vmem.adjust(128, 160, &[32, 128]);
    assert_eq!(
        vmem.tuple(Placement::Device),
        (11, 132 * M, 160 * M, 128 * M)
    );
    assert_eq!(vmem.device_log(), [], "both regions are in use");
}
