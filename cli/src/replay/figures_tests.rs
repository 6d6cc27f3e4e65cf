//! The peers' ratios on the included traces are those published with the traces.
//!
//! The published ratios come from other models of the same rules, so agreement is evidence for
//! both.

use std::path::Path;

use crate::numbers::geometric_mean;
use crate::replay::script::ReplayScript;
use crate::replay::{CONTENDERS, ContenderBlock, ContenderSpec, Options, Outcome, Replay};
use larder_trace::Trace;

const NAMES: [&str; 6] = [
    "xla",
    "xla-one-region",
    "always-split",
    "pytorch",
    "pytorch-expandable",
    "power-of-two",
];

/// Peak reserved over peak live of each trace, in the order of [`NAMES`].
const FIGURES: [(&str, [f64; 6]); 8] = [
    ("bert_infer", [2.183, 1.211, 1.141, 1.518, 1.164, 2.339]),
    ("gpt2s_train", [1.373, 1.101, 1.003, 1.121, 1.007, 1.672]),
    ("gpt2s_varlen", [1.315, 1.022, 1.003, 1.244, 1.006, 2.208]),
    (
        "llama7b_decode_cat",
        [1.237, 1.018, 1.004, 1.003, 1.002, 1.341],
    ),
    ("lstm_train", [1.222, 1.003, 1.003, 1.024, 1.010, 1.519]),
    ("moe_train", [1.300, 1.027, 1.002, 1.192, 1.008, 1.875]),
    ("resnet50_train", [1.490, 1.026, 1.002, 1.202, 1.010, 1.597]),
    ("unet_train", [1.577, 1.020, 1.012, 1.096, 1.014, 1.385]),
];

/// The geometric means of the columns.
const MEANS: [f64; 6] = [1.437, 1.052, 1.020, 1.166, 1.026, 1.709];

/// Tolerance for figures with three decimals.
const TOLERANCE: f64 = 0.001;

fn load(name: &str) -> Trace {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/traces");
    Trace::load(&folder.join(format!("{name}.trace.zst"))).unwrap()
}

fn spec(name: &str) -> &'static ContenderSpec {
    CONTENDERS.iter().find(|spec| spec.name == name).unwrap()
}

fn run(trace: &Trace, name: &str, device_bytes: Option<u64>) -> Outcome {
    replay_once(spec(name), trace, &Options::new(device_bytes))
}

#[test]
fn peers_give_the_published_ratios_and_means() {
    let mut ratios = NAMES.map(|_| Vec::new());
    for (trace_name, figures) in FIGURES {
        let trace = load(trace_name);
        for ((name, figure), ratios) in NAMES.iter().zip(figures).zip(&mut ratios) {
            let outcome = run(&trace, name, None);
            let ratio = outcome.reserved_over_live().unwrap();
            assert!(outcome.completed, "{name} on {trace_name}");
            assert!(
                (ratio - figure).abs() <= TOLERANCE,
                "{name} on {trace_name}: {ratio:.4}"
            );
            ratios.push(ratio);
        }
    }
    for ((name, figure), ratios) in NAMES.iter().zip(MEANS).zip(ratios) {
        let mean = geometric_mean(ratios.into_iter()).unwrap();
        assert!((mean - figure).abs() <= TOLERANCE, "{name}: {mean:.4}");
    }
}

/// The smallest device over peak live, in steps of 0.1 % and in the order of [`FIGURES`]. The
/// published geometric means are 1.080 and 1.018.
const SMALLEST: [(&str, [f64; 8], f64); 2] = [
    (
        "pytorch",
        [1.224, 1.056, 1.061, 1.004, 1.015, 1.191, 1.015, 1.096],
        1.080,
    ),
    (
        "pytorch-expandable",
        [1.113, 1.007, 1.004, 1.003, 1.010, 1.008, 1.005, 1.004],
        1.018,
    ),
];

/// Tries only the next smaller step, because trying all of them takes minutes.
#[test]
fn pytorch_completes_on_the_published_smallest_devices() {
    let traces = FIGURES.map(|(name, _)| load(name));
    for (name, sizes, mean) in SMALLEST {
        for (trace, over_live) in traces.iter().zip(sizes) {
            let live = run(trace, "always-split", None).peak_live_bytes;
            let completes = |over_live: f64| {
                let device_bytes = (live as f64 * over_live) as u64;
                run(trace, name, Some(device_bytes)).completed
            };
            assert!(completes(over_live), "{name} on {}", trace.name());
            assert!(!completes(over_live - 0.001), "{name} on {}", trace.name());
        }
        let found = geometric_mean(sizes.into_iter()).unwrap();
        assert!((found - mean).abs() <= TOLERANCE, "{name}: {found:.4}");
    }
}

#[test]
fn driver_allocations_on_the_largest_trace_are_the_published_ones() {
    let trace = load("unet_train");
    for (name, allocations) in NAMES.iter().zip([14, 1, 1, 270, 1107, 3642]) {
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
        let outcome = run(&trace, "larder-no-moves", None);
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

/// Replays `trace` once, without the runs that only measure time.
fn replay_once(spec: &ContenderSpec, trace: &Trace, options: &Options) -> Outcome {
    let mut script = ReplayScript::of(trace, options.passes, options.repeat);
    let mut slots = vec![ContenderBlock::default(); script.places()];
    let replay = Replay::new(spec, &mut script, options, &|_| {}, &mut slots);
    let mut replay = replay.unwrap_or_else(|error| panic!("{error}"));
    let outcome = replay.sampled_run(options.device_bytes, &mut slots, None);
    outcome.unwrap_or_else(|error| panic!("{error}"))
}
