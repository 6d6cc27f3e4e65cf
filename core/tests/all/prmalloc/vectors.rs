//! PR-1: the vectors V1 to V9, with the blocks of each bin, and our results for them.

use larder_core::prmalloc::Interval;
use larder_model::prmalloc::{Fit, Plans};

use crate::prmalloc::books::{AnyPlans, Layout, MIB, planned, plans};

type Stats = &'static [(u64, u64, u64)];

const V1: Stats = &[(0, 10, 131_136), (20, 30, 131_136), (40, 50, 131_136)];
const V2: Stats = &[(0, 10, 131_136), (5, 15, 131_136)];
const V3: Stats = &[(0, 10, 131_136), (10, 20, 131_136)];
const V4: Stats = &[(0, 10, 65_600), (20, 30, 40_064)];
const V5: Stats = &[
    (0, 10, 40_064),
    (2, 12, 65_600),
    (11, 20, 40_064),
    (13, 22, 40_064),
];
const V6: Stats = &[
    (0, 10, 64 * MIB + 64),
    (20, 30, 40 * MIB + 64),
    (25, 35, 100_064),
];
const V7: Stats = &[
    (6, 7, 41_000),
    (6, 13, 41_000),
    (12, 15, 53_300),
    (14, 17, 45_100),
];
const V8: Stats = &[
    (0, 5, 41_000),
    (2, 7, 49_200),
    (6, 13, 33_000),
    (12, 19, 41_000),
];
const V9: Stats = &[
    (2, 5, 40_064),
    (4, 11, 40_064),
    (12, 13, 40_064),
    (10, 15, 40_064),
];

/// Upstream's answer: totals, best policy and the layout of the 4 KiB plan.
#[track_caller]
fn upstream(stats: Stats, expected: [u64; 3], best: Interval, bins: Layout) {
    let plans = planned(Plans::new(Fit::CPU, false), false, stats);
    assert_eq!(plans.totals(), expected);
    assert_eq!(AnyPlans::best(&plans), (best, expected[best as usize]));
    assert_eq!(plans.layout(Interval::KiB4), bins);
}

/// Ours.
#[track_caller]
fn corrected(stats: Stats, expected: [u64; 3], bins: Layout) {
    let plans = planned(plans(), true, stats);
    assert_eq!(plans.totals(), expected);
    assert_eq!(plans.layout(Interval::KiB4), bins);
}

#[test]
fn pr_1_v1_disjoint_lives_share_a_block() {
    let totals = [135_168, 139_264, 147_456];
    upstream(V1, totals, Interval::KiB4, vec![(24, 1, vec![])]);
    corrected(V1, totals, vec![(24, 1, vec![])]);
}

#[test]
fn pr_1_v2_overlapping_lives_do_not() {
    let totals = [270_336, 278_528, 294_912];
    upstream(V2, totals, Interval::KiB4, vec![(24, 2, vec![])]);
    corrected(V2, totals, vec![(24, 2, vec![])]);
}

#[test]
fn pr_1_v3_touching_lives_are_an_overlap_upstream_and_none_here() {
    let twice = [270_336, 278_528, 294_912];
    upstream(V3, twice, Interval::KiB4, vec![(24, 2, vec![])]);
    corrected(V3, [135_168, 139_264, 147_456], vec![(24, 1, vec![])]);
}

#[test]
fn pr_1_v4_a_smaller_bin_borrows_from_a_larger_one() {
    let totals = [69_632, 73_728, 81_920];
    let bins = vec![(1, 0, vec![8]), (8, 1, vec![])];
    upstream(V4, totals, Interval::KiB4, bins.clone());
    corrected(V4, totals, bins);
}

#[test]
fn pr_1_v5_own_blocks_first_then_borrowed_ones() {
    let totals = [110_592, 114_688, 131_072];
    let bins = vec![(1, 1, vec![8]), (8, 1, vec![])];
    upstream(V5, totals, Interval::KiB4, bins.clone());
    corrected(V5, totals, bins);
}

#[test]
fn pr_1_v6_bins_above_32_mib_lend_and_borrow_as_others_do() {
    let totals = [67_215_360, 67_223_552, 67_239_936];
    let bins = vec![
        (16, 1, vec![]),
        (10_232, 0, vec![16_376]),
        (16_376, 1, vec![]),
    ];
    upstream(V6, totals, Interval::KiB4, bins.clone());
    corrected(V6, totals, bins);
}

#[test]
fn pr_1_v7_the_first_fit_anomaly_that_makes_8_kib_win() {
    let bins = vec![(2, 1, vec![3]), (3, 1, vec![]), (5, 1, vec![])];
    upstream(V7, [151_552, 106_496, 114_688], Interval::KiB8, bins);
    // Among lives that begin together the longer goes first, and the anomaly is gone.
    let bins = vec![(2, 0, vec![3, 5]), (3, 1, vec![]), (5, 1, vec![])];
    corrected(V7, [106_496, 106_496, 114_688], bins);
}

#[test]
fn pr_1_v8_the_one_that_makes_16_kib_win() {
    let bins = vec![(0, 1, vec![]), (2, 1, vec![]), (4, 1, vec![])];
    let totals = [135_168, 147_456, 114_688];
    upstream(V8, totals, Interval::KiB16, bins.clone());
    corrected(V8, totals, bins);
}

#[test]
fn pr_1_v9_the_order_of_frees_costs_a_block() {
    upstream(
        V9,
        [122_880, 122_880, 147_456],
        Interval::KiB4,
        vec![(1, 3, vec![])],
    );
    corrected(V9, [81_920, 81_920, 98_304], vec![(1, 2, vec![])]);
    let gpu = planned(Plans::new(Fit::GPU, false), false, V9);
    assert_eq!(gpu.totals()[0], 81_920);
}
