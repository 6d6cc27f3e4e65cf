//! Vectors grown by `push`, which measures reallocation.

use std::hint::black_box;

use crate::clock::{Clock, Live, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of elements in one vector of 64 MiB.
const NUMBERS: u32 = 8 << 20;
const TIMES: u64 = 3;

/// The numbers of vectors that grow side by side, of bursts, and of pushes to one vector in a burst.
const VECTORS: u32 = 4096;
const BURSTS: u32 = 600_000;
const BURST: u32 = 16;

/// One vector alone.
pub fn vec(scale: Scale) -> Outcome {
    let numbers = scale.of(NUMBERS) as u64;
    let mut tally = Tally::default();
    let mut live = None;
    let clock = Clock::start();
    for time in 0..TIMES {
        let mut vector = Vec::new();
        for number in 0..numbers {
            vector.push(black_box(number ^ time));
        }
        live = Some(Live::look(numbers * size_of::<u64>() as u64));
        tally.wrote((0..numbers).fold(0, |sum, number| sum.wrapping_add(number ^ time)));
        tally.read(
            vector
                .iter()
                .fold(0, |sum, &number| sum.wrapping_add(number)),
        );
    }
    clock.stop(TIMES * numbers, tally.answer()).with_live(live)
}

/// Many vectors side by side, of unknown final length.
pub fn vecs(scale: Scale) -> Outcome {
    let bursts = scale.of(BURSTS);
    let mut random = Random::new(4096);
    let mut tally = Tally::default();
    let clock = Clock::start();
    let mut vectors: Vec<Vec<u32>> = vec![Vec::new(); scale.of(VECTORS)];
    for _ in 0..bursts {
        // Two random numbers are drawn, so that a few vectors grow long and many stay short.
        let below = random.below(vectors.len()) + 1;
        let index = random.below(below);
        let stamp = random.next() as u32;
        for number in 0..BURST {
            vectors[index].push(stamp ^ number);
            tally.wrote(u64::from(stamp ^ number));
        }
    }
    for number in vectors.iter().flatten() {
        tally.read(u64::from(*number));
    }
    drop(vectors);
    clock.stop(bursts as u64 * u64::from(BURST), tally.answer())
}
