//! Random operations compared with the slow, obvious model, which predicts every answer exactly.

use std::ops::Range;

use larder_core::{Growth, RegionConfig};
use larder_model::{Op, Policies, Random, run_bfc};

use crate::common::{GRANULE, ranged};

/// Runs each seed with random policies and operations, which `change` and `map` may alter. A failure names the seed.
fn run(seeds: Range<u64>, change: impl Fn(&mut Policies), map: impl Fn(Op) -> Op) {
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut policies = Policies::random(&mut random);
        let limit_bytes = policies.config.limit_bytes;
        change(&mut policies);
        policies.config.limit_bytes = limit_bytes;
        let operations = 200 + random.below(200);
        let ops = (0..operations).map(|_| map(Op::random(&mut random)));
        if let Err(mismatch) = run_bfc(&policies, ops) {
            panic!("seed {seed}, {policies:?}: {mismatch}");
        }
    }
}

#[test]
fn every_mixture_of_policies_answers_as_the_model_predicts() {
    run(0..1200, |_| {}, |op| op);
}

#[test]
fn one_stream_answers_as_the_model_predicts() {
    run(30_000..30_600, |policies| policies.streams = 1, |op| op);
}

#[test]
fn the_default_answers_as_the_model_predicts() {
    let default = |policies: &mut Policies| policies.config = RegionConfig::default();
    run(10_000..10_100, default, |op| op);
    let small_units = |policies: &mut Policies| policies.config = ranged(16 * GRANULE, u64::MAX);
    run(11_000..11_400, small_units, |op| op);
}

/// Turns three in four frees into growths over the sub-allocator.
fn mostly_growing(op: Op) -> Op {
    match op {
        Op::Free { which } if which % 4 > 0 => Op::Resize {
            which: (which >> 8) as u8,
            granules: which >> 2 & 63,
            less: which as u8,
            how: 12 | (which >> 2 & 3) as u8,
            ahead: 0,
        },
        other => other,
    }
}

#[test]
fn blocks_that_grow_again_and_again_answer_as_the_model_predicts() {
    run(40_000..40_200, |_| {}, mostly_growing);
    let one_range = |policies: &mut Policies| {
        policies.config.growth = Growth::Range {
            unit_bytes: 16 * GRANULE,
            ahead_divisor: None,
        };
    };
    run(41_000..41_200, one_range, mostly_growing);
    let on_one_stream = |policies: &mut Policies| {
        one_range(policies);
        policies.streams = 1;
    };
    run(42_000..42_100, on_one_stream, mostly_growing);
}
