//! Random programs on several streams: with all waits, the result is that of doing everything in
//! the order of the program; with one wait left out, the race is found.

use super::gpu::{BYTES, Gpu};
use crate::numbers::Random;

const STREAMS: usize = 4;
const BUFFERS: usize = 5;
const STEPS: usize = 24;

/// One operation.
#[derive(Clone, Debug)]
struct Step {
    stream: usize,
    /// Copies from this buffer; fills without.
    from: Option<usize>,
    to: usize,
    at: usize,
    bytes: usize,
    value: u8,
    /// Earlier steps whose events it waits for.
    waits: Vec<usize>,
}

impl Step {
    fn draw(draw: &mut Random, value: usize) -> Self {
        let to = draw.below(BUFFERS);
        let from = (draw.below(3) > 0).then(|| (to + 1 + draw.below(BUFFERS - 1)) % BUFFERS);
        let at = draw.below(BYTES);
        Self {
            stream: draw.below(STREAMS),
            from,
            to,
            at,
            bytes: 1 + draw.below(BYTES - at),
            value: value as u8,
            waits: Vec::new(),
        }
    }

    /// Whether the two must be ordered.
    fn meets(&self, other: &Self) -> bool {
        let overlap = self.at < other.at + other.bytes && other.at < self.at + self.bytes;
        let writes = self.to == other.to;
        let reads = self.from == Some(other.to) || other.from == Some(self.to);
        overlap && (writes || reads)
    }
}

/// A program in which every two operations that meet are ordered.
fn program(seed: u64) -> Vec<Step> {
    let mut draw = Random::new(seed);
    let mut steps: Vec<Step> = Vec::new();
    // What is ordered before each step.
    let mut before: Vec<Vec<bool>> = Vec::new();
    for index in 0..STEPS {
        let mut step = Step::draw(&mut draw, index + 1);
        let mut known = vec![false; STEPS];
        if let Some(last) = (0..index).rev().find(|i| steps[*i].stream == step.stream) {
            learn(&mut known, &before[last], last);
        }
        for other in (0..index).rev() {
            if steps[other].meets(&step) && !known[other] {
                learn(&mut known, &before[other], other);
                step.waits.push(other);
            }
        }
        steps.push(step);
        before.push(known);
    }
    steps
}

fn learn(known: &mut [bool], before: &[bool], step: usize) {
    for (known, before) in known.iter_mut().zip(before) {
        *known |= before;
    }
    known[step] = true;
}

fn reference(steps: &[Step]) -> Vec<Vec<u8>> {
    let mut buffers = vec![vec![0; BYTES]; BUFFERS];
    for step in steps {
        let range = step.at..step.at + step.bytes;
        match step.from {
            Some(from) => {
                let source = buffers[from][range.clone()].to_vec();
                buffers[step.to][range].copy_from_slice(&source);
            }
            None => buffers[step.to][range].fill(step.value),
        }
    }
    buffers
}

fn run(gpu: &Gpu, steps: &[Step]) -> Vec<Vec<u8>> {
    for (index, step) in steps.iter().enumerate() {
        for wait in &step.waits {
            gpu.wait(step.stream, *wait);
        }
        match step.from {
            Some(from) => gpu.copy(step.to, from, step.at, step.bytes, step.stream),
            None => gpu.fill(step.to, step.at, step.bytes, step.value, step.stream),
        }
        gpu.record(index, step.stream);
    }
    gpu.finish()
}

#[test]
fn ten_thousand_ordered_programs_give_what_the_program_says() {
    let gpu = Gpu::new(STREAMS, BUFFERS, STEPS);
    for seed in 0..10_000 {
        let steps = program(seed);
        gpu.start(seed);
        assert_eq!(run(&gpu, &steps), reference(&steps), "seed {seed}");
        assert_eq!(gpu.findings(), "", "seed {seed}");
    }
}

#[test]
fn one_wait_left_out_is_found_and_often_shows() {
    let gpu = Gpu::new(STREAMS, BUFFERS, STEPS);
    let (mut tried, mut shown) = (0, 0);
    for seed in 0..500 {
        let mut steps = program(seed);
        let right = reference(&steps);
        // The last wait of a program is implied by nothing else.
        let Some(step) = steps.iter_mut().rev().find(|step| !step.waits.is_empty()) else {
            continue;
        };
        step.waits.pop();
        tried += 1;
        gpu.start(seed);
        shown += u32::from(run(&gpu, &steps) != right);
        assert!(gpu.findings().contains("race"), "seed {seed}");
    }
    assert!(tried > 400 && shown > 20, "{shown} of {tried} showed");
}
