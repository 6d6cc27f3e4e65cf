//! A small server. Threads replace blocks in slots. A thread that ends hands its slots to a successor, which then
//! frees blocks of other threads.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

const SLOTS: u32 = 5000;
/// Number of replacements by one thread.
const LIFE: u32 = 20_000;
/// Number of threads that follow each other in one lane. With more lanes, each thread does less.
const THREADS: usize = 200;

/// Slots that one thread hands to the next.
struct Estate {
    lane: usize,
    slots: Vec<Block>,
    tally: Tally,
}

/// Runs the workload with this number of lanes.
pub fn larson(lanes: usize, scale: Scale) -> Outcome {
    let (slots, life) = (scale.of(SLOTS), scale.of(LIFE));
    let successions = THREADS / lanes;
    let clock = Clock::start();
    let (sender, receiver) = mpsc::channel();
    let begin = |estate: Estate, seed: usize| -> JoinHandle<()> {
        let sender = sender.clone();
        thread::spawn(move || {
            let estate = live(estate, life, seed as u64);
            // The receiver outlives every thread.
            let _ = sender.send(estate);
        })
    };
    let mut threads: Vec<JoinHandle<()>> = Vec::with_capacity(lanes);
    for lane in 0..lanes {
        threads.push(begin(first_estate(lane, slots), lane * successions));
    }
    let mut begun = vec![1; lanes];
    let mut tally = Tally::default();
    let mut ended = 0;
    while ended < lanes {
        let Ok(estate) = receiver.recv() else { break };
        let lane = estate.lane;
        if begun[lane] == successions {
            for block in estate.slots {
                tally.read(block.finish());
            }
            tally.join(&estate.tally);
            ended += 1;
            continue;
        }
        let successor = begin(estate, lane * successions + begun[lane]);
        begun[lane] += 1;
        join(std::mem::replace(&mut threads[lane], successor));
    }
    threads.into_iter().for_each(join);
    let operations = lanes * (slots + successions * life);
    clock.stop(operations as u64, tally.answer())
}

fn first_estate(lane: usize, slots: usize) -> Estate {
    let mut random = Random::new(!(lane as u64));
    let mut tally = Tally::default();
    let slots = (0..slots).map(|_| draw(&mut random, &mut tally)).collect();
    Estate { lane, slots, tally }
}

fn live(mut estate: Estate, life: usize, seed: u64) -> Estate {
    let mut random = Random::new(seed);
    for _ in 0..life {
        let slot = random.below(estate.slots.len());
        let block = draw(&mut random, &mut estate.tally);
        let old = std::mem::replace(&mut estate.slots[slot], block);
        estate.tally.read(old.finish());
    }
    estate
}

fn draw(random: &mut Random, tally: &mut Tally) -> Block {
    let bytes = random.within(8, 1024);
    Block::new(bytes, tally.wrote(random.next()))
}

/// # Panics
/// If the thread panicked; with `panic = "abort"` the process has ended by then.
fn join(thread: JoinHandle<()>) {
    assert!(thread.join().is_ok(), "a thread failed");
}
