//! PR-1: the vectors V1 to V9, with the blocks of each bin, for upstream and for ours.

use larder_core::prmalloc::Interval;
use larder_model::prmalloc::{Fit, Plans};

use crate::golden;
use crate::prmalloc::books::{AnyPlans, planned, plans};

/// The player of the vectors, with the lives (begin, end, bytes) of the current one.
struct Player(Vec<(u64, u64, u64)>);

/// Describes plans: the bytes of each, the best, and the bins of the 4 KiB plan.
fn described(plans: impl AnyPlans) -> String {
    let [small, middle, large] = plans.totals();
    let (best, bytes) = plans.best();
    assert_eq!(bytes, plans.memory_bytes(best));
    let bins = plans.layout(Interval::KiB4).into_iter();
    let bins = bins.map(|(class, blocks, lenders)| match lenders[..] {
        [] => format!("; bin {class} has {blocks}"),
        _ => format!("; bin {class} has {blocks} and borrows of {lenders:?}"),
    });
    format!(
        "{small} {middle} {large}; {best:?}{}",
        bins.collect::<String>()
    )
}

impl golden::Player for Player {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn carry_out(&mut self, operation: &str, words: &[&str]) -> String {
        match operation {
            "lives" => {
                let life = |text: &str| {
                    let mut numbers = text.split(':').map(|number| number.parse().unwrap());
                    [(); 3].map(|()| numbers.next().unwrap()).into()
                };
                self.0 = words.iter().map(|text| life(text)).collect();
                String::new()
            }
            "upstream" => described(planned(Plans::new(Fit::CPU, false), false, &self.0)),
            "gpu" => described(planned(Plans::new(Fit::GPU, false), false, &self.0)),
            "ours" => described(planned(plans(), true, &self.0)),
            other => panic!("no operation is {other}"),
        }
    }
}

golden::cases! {
    Player, "prmalloc/scripts/vectors.txt":
    pr_1_v1_disjoint_lives_share_a_block,
    pr_1_v2_overlapping_lives_do_not,
    pr_1_v3_touching_lives_are_an_overlap_upstream_and_none_here,
    pr_1_v4_a_smaller_bin_borrows_from_a_larger_one,
    pr_1_v5_own_blocks_first_then_borrowed_ones,
    pr_1_v6_bins_above_32_mib_lend_and_borrow_as_others_do,
    pr_1_v7_the_first_fit_anomaly_that_makes_8_kib_win,
    pr_1_v8_the_one_that_makes_16_kib_win,
    pr_1_v9_the_order_of_frees_costs_a_block,
}
