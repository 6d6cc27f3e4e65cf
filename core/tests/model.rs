//! Random operations beside the slow, obvious model, which predicts every answer exactly.

use larder_core::{BackOff, BfcConfig, Coalesce, Fit, Growth, Shrink, Split};
use larder_model::{Op, Random, Source, run_bfc};

/// A policy with a small granule count, so that ties and exhaustion happen.
fn small(config: BfcConfig) -> BfcConfig {
    BfcConfig {
        growth: match config.growth {
            Growth::Range { ahead_divisor, .. } => Growth::Range {
                unit_bytes: 16 * 256,
                ahead_divisor,
            },
            Growth::Doubling { .. } => Growth::Doubling {
                first_bytes: 8 * 256,
            },
            Growth::Fixed => Growth::Fixed,
        },
        ..config
    }
}

/// Runs many seeds of one configuration, over small and large tables and devices.
fn many(config: BfcConfig, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Random::new(seed);
        let records = [4, 12, 40, 400][random.below(4) as usize];
        let bytes = [1 << 14, 1 << 18, 1 << 24, 1 << 40][random.below(4) as usize];
        let start = 256 * (1 + random.below(1 << 20));
        let limit_bytes = match random.below(3) {
            0 => bytes / 2 / 256 * 256 + 128,
            _ => u64::MAX,
        };
        let config = BfcConfig {
            limit_bytes,
            ..config
        };
        let operations = 200 + random.below(200);
        let ops = (0..operations).map(|_| Op::random(&mut random));
        if let Err(mismatch) = run_bfc(config, records, &Source::new(start, bytes), ops) {
            panic!("seed {seed}, {records} records, {bytes} bytes, {config:?}: {mismatch}");
        }
    }
}

#[test]
fn the_default_answers_as_the_model_predicts() {
    many(small(BfcConfig::default()), 0..400);
}

#[test]
fn the_default_with_large_units_answers_as_the_model_predicts() {
    many(BfcConfig::default(), 0..100);
}

#[test]
fn tensorflow_answers_as_the_model_predicts() {
    many(small(BfcConfig::tensorflow(u64::MAX)), 1000..1400);
    many(BfcConfig::tensorflow(u64::MAX), 1400..1500);
}

#[test]
fn tensorflow_with_region_collection_answers_as_the_model_predicts() {
    let config = BfcConfig {
        collect_regions: true,
        ..BfcConfig::tensorflow(u64::MAX)
    };
    many(small(config), 2000..2400);
}

#[test]
fn every_mixture_of_policies_answers_as_the_model_predicts() {
    for seed in 0..600 {
        let mut random = Random::new(seed << 32);
        let mut pick = |n: u64| random.below(n);
        let config = BfcConfig {
            granule_bytes: 256,
            split: match pick(3) {
                0 => Split::TwiceOrWaste {
                    waste_bytes: 3 * 256,
                },
                1 => Split::TwiceOrWaste {
                    waste_bytes: 1 << 20,
                },
                _ => Split::Always,
            },
            growth: match pick(3) {
                0 => Growth::Doubling {
                    first_bytes: 256 << pick(6),
                },
                1 => Growth::Range {
                    unit_bytes: 256 * (1 + pick(20)),
                    ahead_divisor: std::num::NonZeroU32::new(1 + pick(8) as u32),
                },
                _ => Growth::Range {
                    unit_bytes: 256 * (1 + pick(20)),
                    ahead_divisor: None,
                },
            },
            fit: match pick(4) {
                0 => Fit::Exact,
                n => Fit::Near { scan: n as u32 },
            },
            tail_last: pick(2) == 0,
            coalesce: [Coalesce::SameLane, Coalesce::Settled][pick(2) as usize],
            back_off: [BackOff::Least, BackOff::Once][pick(2) as usize],
            collect_regions: pick(2) == 0,
            shrink: [Shrink::Pending, Shrink::Clamp][pick(2) as usize],
            limit_bytes: u64::MAX,
        };
        many(config, seed..seed + 1);
    }
}
