//! Random operations compared with the slow, obvious model, which predicts every answer exactly.

use larder_core::{Growth, RegionConfig};
use larder_model::{Op, Policies, Random, Source, run_bfc};

/// Runs one seed with policies that `change` may set; a failure names the seed.
fn run(seed: u64, change: impl Fn(RegionConfig) -> RegionConfig) {
    run_ops(seed, change, |op| op);
}

/// Runs a mixture of policies with operations that `map` may alter.
fn run_ops(seed: u64, change: impl Fn(RegionConfig) -> RegionConfig, map: impl Fn(Op) -> Op) {
    let mut random = Random::new(seed);
    let mut policies = Policies::random(&mut random);
    let limit_bytes = policies.config.limit_bytes;
    policies.config = RegionConfig {
        limit_bytes,
        ..change(policies.config)
    };
    let source = Source::new(policies.start, policies.bytes);
    let operations = 200 + random.below(200);
    let ops = (0..operations).map(|_| map(Op::random(&mut random)));
    if let Err(mismatch) = run_bfc(policies.config, policies.records, &source, ops) {
        panic!("seed {seed}, {policies:?}: {mismatch}");
    }
}

#[test]
fn every_mixture_of_policies_answers_as_the_model_predicts() {
    (0..1200).for_each(|seed| run(seed, |config| config));
}

/// The operation on stream 0, plain frees turned into frees that the stream still uses.
fn on_one_stream(op: Op) -> Op {
    match op {
        Op::Alloc {
            granules,
            less,
            align,
            flags,
            ..
        } => Op::Alloc {
            granules,
            less,
            align,
            stream: 0,
            flags,
        },
        Op::Free { which } => Op::FreeAfter {
            which,
            stream: 0,
            ahead: which as u8,
        },
        Op::FreeAfter { which, ahead, .. } => Op::FreeAfter {
            which,
            stream: 0,
            ahead,
        },
        Op::Complete { by, .. } => Op::Complete { stream: 0, by },
        Op::Resize {
            which,
            granules,
            less,
            how,
            ahead,
        } => Op::Resize {
            which,
            granules,
            less,
            how: how & !3,
            ahead,
        },
        other => other,
    }
}

#[test]
fn one_stream_answers_as_the_model_predicts() {
    (30_000..30_600).for_each(|seed| run_ops(seed, |config| config, on_one_stream));
}

#[test]
fn the_default_answers_as_the_model_predicts() {
    (10_000..10_100).for_each(|seed| run(seed, |_| RegionConfig::default()));
    let small_units = |_| RegionConfig {
        growth: Growth::Range {
            unit_bytes: 16 * 256,
            ahead_divisor: None,
        },
        ..RegionConfig::default()
    };
    (11_000..11_400).for_each(|seed| run(seed, small_units));
}

/// The operation, three in four frees turned into growths over the sub-allocator.
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
    (40_000..40_200).for_each(|seed| run_ops(seed, |config| config, mostly_growing));
    let one_range = |config| RegionConfig {
        growth: Growth::Range {
            unit_bytes: 16 * 256,
            ahead_divisor: None,
        },
        ..config
    };
    (41_000..41_200).for_each(|seed| run_ops(seed, one_range, mostly_growing));
    let on_one = |op| mostly_growing(on_one_stream(op));
    (42_000..42_100).for_each(|seed| run_ops(seed, one_range, on_one));
}
