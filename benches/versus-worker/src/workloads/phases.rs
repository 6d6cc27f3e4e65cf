//! One thread allocates many blocks, then another frees them all, and so on.

use std::sync::mpsc::channel;
use std::thread;

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

const BLOCKS: u32 = 50_000;
const PHASES: usize = 40;

/// The threads take turns, so only one runs at a time.
pub fn phases(scale: Scale) -> Outcome {
    let blocks = scale.of(BLOCKS);
    let mut random = Random::new(50);
    let mut written = Tally::default();
    let clock = Clock::start();
    let (full, to_free) = channel::<Vec<Block>>();
    let (empty, to_fill) = channel::<Vec<Block>>();
    let freeing = thread::spawn(move || {
        let mut read = Tally::default();
        while let Ok(mut slots) = to_free.recv() {
            for block in slots.drain(..) {
                read.read(block.finish());
            }
            if empty.send(slots).is_err() {
                break;
            }
        }
        read
    });
    let mut slots = Some(Vec::with_capacity(blocks));
    for _ in 0..PHASES {
        // The other thread ends before this one only if it fails, which its join reports.
        let Some(mut batch) = slots.take() else { break };
        for _ in 0..blocks {
            let bytes = random.within(16, 512);
            batch.push(Block::new(bytes, written.wrote(random.next())));
        }
        if full.send(batch).is_err() {
            break;
        }
        slots = to_fill.recv().ok();
    }
    drop((slots, full));
    match freeing.join() {
        Ok(read) => written.join(&read),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    clock.stop((blocks * PHASES) as u64, written.answer())
}
