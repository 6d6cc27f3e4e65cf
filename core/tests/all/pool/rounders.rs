//! Rounding of sizes.

use larder_core::Align;
use larder_core::pool::PoolConfig;
use larder_model::tensorflow::pool::{NO_ROUNDING, POWER_OF_TWO};

use super::rig::fixed;

/// Returns a configuration with `1 << steps_log2` sizes per doubling.
fn classes(steps_log2: u8) -> PoolConfig {
    PoolConfig {
        steps_log2,
        align: Align::ONE,
        ..fixed(4)
    }
}

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
        assert_eq!(POWER_OF_TWO(bytes), Some(rounded));
        assert_eq!(NO_ROUNDING(bytes), Some(bytes));
        assert_eq!(classes(0).buffer_bytes(bytes, Align::ONE), Some(rounded));
    }
}

#[test]
fn s2_7_0_and_more_than_64_bits_are_values() {
    let check = |largest: u64, round: &dyn Fn(u64) -> Option<u64>| {
        assert_eq!(round(0), Some(0));
        assert_eq!(round(largest), Some(largest));
        if largest < u64::MAX {
            assert_eq!(round(largest + 1), None, "{largest}");
        }
    };
    let ours = |steps_log2| move |bytes| classes(steps_log2).buffer_bytes(bytes, Align::ONE);
    check(u64::MAX, &NO_ROUNDING);
    check(1 << 63, &POWER_OF_TWO);
    check(1 << 63, &ours(0));
    check(7 << 61, &ours(2));
}

#[test]
fn s2_10_classes_waste_no_more_than_their_share_and_never_fall() {
    for steps_log2 in 0..=8 {
        let round = |bytes| classes(steps_log2).buffer_bytes(bytes, Align::ONE).unwrap();
        let mut last = 0;
        for bytes in 1..20_000u64 {
            let rounded = round(bytes);
            assert!(rounded >= bytes && rounded >= last);
            assert!(
                (rounded - bytes) << steps_log2 < bytes,
                "{bytes} with {steps_log2}"
            );
            assert_eq!(round(rounded), rounded);
            last = rounded;
        }
    }
}
