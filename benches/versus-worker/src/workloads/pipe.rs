//! Producers allocate and consumers free, so every free is remote.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of blocks through all pipes in a full run.
const BLOCKS: u32 = 4_000_000;
const BATCH: usize = 256;
/// Maximum number of batches that wait in one pipe.
const WAITING: usize = 16;

/// Runs the workload with this number of pairs of threads.
pub fn pipe(pairs: usize, scale: Scale) -> Outcome {
    let batches = scale.of(BLOCKS).div_ceil(BATCH * pairs);
    let clock = Clock::start();
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(2 * pairs);
        for pair in 0..pairs {
            let (sender, receiver) = sync_channel(WAITING);
            threads.push(scope.spawn(move || produce(&sender, batches, pair as u64)));
            threads.push(scope.spawn(move || consume(&receiver)));
        }
        for thread in threads {
            match thread.join() {
                Ok(part) => tally.join(&part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    clock.stop((batches * BATCH * pairs) as u64, tally.answer())
}

fn produce(sender: &SyncSender<Vec<Block>>, batches: usize, seed: u64) -> Tally {
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    for _ in 0..batches {
        let mut batch = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let bytes = random.within(16, 512);
            batch.push(Block::new(bytes, tally.wrote(random.next())));
        }
        if sender.send(batch).is_err() {
            break;
        }
    }
    tally
}

fn consume(receiver: &Receiver<Vec<Block>>) -> Tally {
    let mut tally = Tally::default();
    while let Ok(batch) = receiver.recv() {
        for block in batch {
            tally.read(block.finish());
        }
    }
    tally
}
