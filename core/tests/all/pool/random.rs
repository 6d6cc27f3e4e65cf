//! Random operations: our pool compared with the slow, obvious model, which predicts every address and counter, and
//! upstream's pool compared with its rule in whole numbers.

use larder_model::{Random, run_pool};

use super::rig::{AnyPool, counters, upstream_growing};

fn bytes<const N: usize>(random: &mut Random) -> [u8; N] {
    std::array::from_fn(|_| random.next_u64() as u8)
}

fn run(seed: u64, operations: usize, head: impl Fn([u8; 8]) -> [u8; 8]) {
    let mut random = Random::new(seed);
    let head = head(bytes(&mut random));
    let ops: Vec<[u8; 4]> = (0..operations).map(|_| bytes(&mut random)).collect();
    if let Err(mismatch) = run_pool(head, ops) {
        panic!("seed {seed}: {mismatch}");
    }
}

#[test]
fn every_mixture_of_policies_answers_as_the_model_predicts() {
    (0..1500).for_each(|seed| run(seed, 300, |head| head));
}

#[test]
fn both_presets_answer_as_the_model_predicts() {
    for preset in 0..2 {
        (0..200).for_each(|seed| {
            run(seed, 300, |mut head| {
                head[0] = preset;
                head
            });
        });
    }
}

/// The runs are long enough for a thousand evictions several times, and have no clears, which would reset the counters.
#[test]
fn s2_5_upstreams_test_of_both_rates_decides_as_whole_numbers_predict() {
    let (mut tests, mut raises) = (0, 0);
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let mut limit = 1 + random.below(8) as u32;
        let mut pool = upstream_growing(limit);
        let mut out = Vec::new();
        for number in 0..30_000 {
            if number % 2 == 0 || out.is_empty() {
                let bytes = random.below(12) * [1, 16, 100, 256][random.below(4) as usize];
                out.extend(pool.try_alloc(bytes, 1));
                continue;
            }
            let mut expected = pool.counters();
            let is_full = pool.idle() == pool.limit();
            pool.free(out.swap_remove(random.index(out.len())));
            expected.put += 1;
            expected.evicted += u64::from(is_full);
            if is_full && expected.evicted.is_multiple_of(1000) {
                tests += 1;
                let asked = expected.allocated + expected.from_pool;
                if expected.evicted * 500 > expected.put && expected.allocated * 500 > asked {
                    raises += 1;
                    limit = if limit < 100 { 100 } else { limit * 11 / 10 };
                    expected = counters(0, 0, 0, 0);
                }
            }
            assert_eq!(
                (pool.limit(), pool.counters()),
                (limit, expected),
                "seed {seed}"
            );
        }
    }
    assert!(tests > 5 && raises > 0, "{tests} tests, {raises} raises");
}
