//! The peers on the carried traces give the ratios published with the traces.
//!
//! Those figures come from other models of the same rules, so that agreement
//! says something about both.

use std::path::Path;

use crate::replay::{CONTENDERS, ContenderSpec, Options, Outcome, replay};
use larder_trace::Trace;

const NAMES: [&str; 4] = ["xla", "xla-one-region", "always-split", "power-of-two"];

/// Peak reserved / peak live by trace, in the order of [`NAMES`].
const FIGURES: [(&str, [f64; 4]); 8] = [
    ("bert_infer", [2.183, 1.211, 1.141, 2.339]),
    ("gpt2s_train", [1.373, 1.101, 1.003, 1.672]),
    ("gpt2s_varlen", [1.315, 1.022, 1.003, 2.208]),
    ("llama7b_decode_cat", [1.237, 1.018, 1.004, 1.341]),
    ("lstm_train", [1.222, 1.003, 1.003, 1.519]),
    ("moe_train", [1.300, 1.027, 1.002, 1.875]),
    ("resnet50_train", [1.490, 1.026, 1.002, 1.597]),
    ("unet_train", [1.577, 1.020, 1.012, 1.385]),
];

/// The figures have three decimals.
const TOLERANCE: f64 = 0.001;

fn load(name: &str) -> Trace {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    Trace::load(&folder.join(format!("{name}.trace.zst"))).unwrap()
}

fn spec(name: &str) -> &'static ContenderSpec {
    CONTENDERS.iter().find(|spec| spec.name == name).unwrap()
}

fn run(trace: &Trace, name: &str, device_bytes: Option<u64>) -> Outcome {
    replay(spec(name), trace, &Options::new(device_bytes)).unwrap()
}

fn check(traces: &[&str]) {
    for (trace_name, figures) in FIGURES.iter().filter(|(name, _)| traces.contains(name)) {
        let trace = load(trace_name);
        for (name, figure) in NAMES.iter().zip(figures) {
            let outcome = run(&trace, name, None);
            let ratio = outcome.reserved_over_live().unwrap();
            assert!(outcome.completed, "{name} on {trace_name}");
            assert!(
                (ratio - figure).abs() <= TOLERANCE,
                "{name} on {trace_name}: {ratio:.4}"
            );
        }
    }
}

#[test]
fn peers_give_the_published_ratios_on_the_small_traces() {
    check(&["bert_infer", "gpt2s_train", "resnet50_train"]);
}

#[test]
fn peers_give_the_published_ratios_on_the_large_traces() {
    check(&[
        "gpt2s_varlen",
        "llama7b_decode_cat",
        "lstm_train",
        "moe_train",
        "unet_train",
    ]);
}

#[test]
fn driver_allocations_on_the_largest_trace_are_the_published_ones() {
    let trace = load("unet_train");
    for (name, allocations) in NAMES.iter().zip([14, 1, 1, 3642]) {
        assert_eq!(
            run(&trace, name, None).driver_allocations,
            allocations,
            "{name}"
        );
    }
}

#[test]
fn peak_live_is_what_the_recorder_wrote_into_the_header() {
    for (name, _) in FIGURES
        .iter()
        .filter(|(name, _)| *name != "llama7b_decode_cat")
    {
        let trace = load(name);
        let (_, counts) = trace
            .header()
            .iter()
            .find(|(key, _)| key == "allocs")
            .unwrap();
        let promised = counts
            .split_whitespace()
            .skip_while(|word| *word != "peak_live_bytes:")
            .nth(1);
        let live = run(&trace, "power-of-two", None).peak_live_bytes;
        assert_eq!(promised, Some(live.to_string().as_str()), "{name}");
    }
}

#[test]
fn a_device_of_the_highest_address_used_is_enough_for_the_yardstick() {
    let trace = load("gpt2s_train");
    let needed = run(&trace, "always-split", None).peak_reserved_bytes;
    assert!(run(&trace, "always-split", Some(needed)).completed);
    assert!(!run(&trace, "always-split", Some(needed - 256)).completed);
}

#[test]
fn a_nearly_full_device_makes_power_of_two_give_its_cache_back() {
    let trace = load("gpt2s_train");
    let unlimited = run(&trace, "power-of-two", None);
    let tight = run(
        &trace,
        "power-of-two",
        Some(unlimited.peak_live_bytes / 2 * 3),
    );
    assert!(tight.completed);
    assert!(tight.driver_frees > 0 && tight.driver_allocations > unlimited.driver_allocations);
}

#[test]
fn larder_reserves_hardly_more_than_the_yardstick_on_every_trace() {
    let mut logarithms = 0.0;
    for (name, _) in FIGURES {
        let trace = load(name);
        let outcome = run(&trace, "larder", None);
        let ratio = outcome.reserved_over_live().unwrap();
        let yardstick = run(&trace, "always-split", None)
            .reserved_over_live()
            .unwrap();
        assert!(outcome.completed, "{name}");
        assert!(
            ratio <= yardstick + 0.003,
            "{name}: {ratio:.4}, yardstick {yardstick:.4}"
        );
        logarithms += ratio.ln();
    }
    let mean = (logarithms / FIGURES.len() as f64).exp();
    assert!(mean <= 1.021, "geometric mean {mean:.4}");
}

#[test]
fn growing_ahead_asks_the_device_less_often() {
    for name in ["gpt2s_train", "unet_train", "bert_infer"] {
        let trace = load(name);
        let ahead = run(&trace, "larder-ahead", None);
        let exact = run(&trace, "larder", None);
        assert!(
            ahead.driver_allocations < exact.driver_allocations,
            "{name}"
        );
        assert!(ahead.completed);
    }
}
