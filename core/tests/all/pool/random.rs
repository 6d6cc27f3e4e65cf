//! Random operations beside the slow, obvious model, which predicts every address and counter.

use larder_model::{Random, run_pool};

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
    for preset in 0..3 {
        (0..200).for_each(|seed| {
            run(seed, 300, |mut head| {
                head[0] = preset;
                head
            });
        });
    }
}

/// Long enough for a thousand evictions, again and again. Nothing but allocations and frees, so that
/// no clear begins the counters anew.
#[test]
fn s2_5_upstreams_test_of_both_rates_decides_as_the_model_predicts() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let mut head: [u8; 8] = bytes(&mut random);
        (head[0], head[6], head[7]) = (0, 7, 39);
        let ops = (0..30_000).map(|number| {
            let mut op: [u8; 4] = bytes(&mut random);
            op[0] = if number % 2 == 0 { 0 } else { 7 };
            op
        });
        if let Err(mismatch) = run_pool(head, ops) {
            panic!("seed {seed}: {mismatch}");
        }
    }
}
