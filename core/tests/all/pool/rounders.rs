//! Rounding of sizes.

use larder_core::Align;
use larder_core::pool::{PoolConfig, Rounder};

use super::rig::Rig;

#[test]
fn s2_7_powers_of_two_are_those_of_upstreams_table() {
    let table = [
        (1, 1),
        (2, 2),
        (9, 16),
        (16, 16),
        (41_234, 65_536),
        (65_535, 65_536),
        (65_536, 65_536),
    ];
    for (bytes, rounded) in table {
        assert_eq!(Rounder::PowerOfTwo.round(bytes), Some(rounded));
        assert_eq!(Rounder::Exact.round(bytes), Some(bytes));
    }
}

#[test]
fn s2_7_0_and_more_than_64_bits_are_values() {
    let page = Align::new(4096).unwrap();
    let all = [
        (Rounder::Exact, u64::MAX),
        (Rounder::PowerOfTwo, 1 << 63),
        (Rounder::Multiple(page), u64::MAX - 4095),
        (Rounder::Classes { steps_log2: 2 }, 7 << 61),
    ];
    for (rounder, largest) in all {
        assert_eq!(rounder.round(0), Some(0));
        assert_eq!(rounder.round(largest), Some(largest));
        if largest < u64::MAX {
            assert_eq!(rounder.round(largest + 1), None, "{rounder:?}");
        }
    }
}

#[test]
fn s2_10_classes_waste_no_more_than_their_share_and_never_fall() {
    for steps_log2 in 0..=8 {
        let rounder = Rounder::Classes { steps_log2 };
        let mut last = 0;
        for bytes in 1..20_000u64 {
            let rounded = rounder.round(bytes).unwrap();
            assert!(rounded >= bytes && rounded >= last);
            assert!(
                (rounded - bytes) << steps_log2 < bytes,
                "{bytes} of {rounder:?}"
            );
            assert_eq!(rounder.round(rounded), Some(rounded));
            last = rounded;
        }
    }
}

#[test]
fn s2_7_sizes_that_round_to_one_share_buffers() {
    let config = PoolConfig {
        rounder: Rounder::PowerOfTwo,
        ..PoolConfig::tensorflow(4)
    };
    let mut rig = Rig::new(config);
    rig.pair(100);
    rig.pair(112);
    assert_eq!(rig.grown_bytes, 128);
    rig.pair(113);
    assert_eq!(rig.grown_bytes, 128 + 256);
}
