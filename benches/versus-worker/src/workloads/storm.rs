//! Short-lived threads, whose start and end cost time.

use std::thread::{self, JoinHandle};

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of threads in a full run, one after another.
const IN_TURN: u32 = 4000;
/// Number of waves of threads in a full run, and number of threads in a wave.
const WAVES: u32 = 20;
const WAVE: usize = 64;

/// Number of blocks that a thread allocates. It frees every other one.
const BLOCKS: usize = 400;
const MAX_BYTES: usize = 2048;

/// The blocks that a thread leaves to others.
type Remains = (Vec<Block>, Tally);

pub fn in_turn(scale: Scale) -> Outcome {
    let threads = scale.of(IN_TURN);
    let mut tally = Tally::default();
    let clock = Clock::start();
    for seed in 0..threads {
        bury(begin(seed), &mut tally);
    }
    clock.stop(threads as u64, tally.answer())
}

pub fn at_once(scale: Scale) -> Outcome {
    let waves = scale.of(WAVES);
    let mut tally = Tally::default();
    let clock = Clock::start();
    for wave in 0..waves {
        let threads: Vec<_> = (0..WAVE)
            .map(|number| begin(wave * WAVE + number))
            .collect();
        for thread in threads {
            bury(thread, &mut tally);
        }
    }
    clock.stop((waves * WAVE) as u64, tally.answer())
}

fn begin(seed: usize) -> JoinHandle<Remains> {
    thread::spawn(move || {
        let mut random = Random::new(seed as u64);
        let mut tally = Tally::default();
        let mut kept = Vec::with_capacity(BLOCKS / 2);
        for number in 0..BLOCKS {
            let bytes = random.within(8, MAX_BYTES);
            let block = Block::new(bytes, tally.wrote(random.next()));
            if number % 2 == 0 {
                kept.push(block);
            } else {
                tally.read(block.finish());
            }
        }
        (kept, tally)
    })
}

/// Frees the blocks that the thread left.
fn bury(thread: JoinHandle<Remains>, tally: &mut Tally) {
    match thread.join() {
        Ok((blocks, part)) => {
            tally.join(&part);
            for block in blocks {
                tally.read(block.finish());
            }
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
