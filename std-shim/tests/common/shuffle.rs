//! [`shuffle`]: threads that allocate, resize, pass on and free blocks at random.

use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;

use super::{Held, Random};

/// All threads have ended and all blocks are freed when this returns.
pub fn shuffle(threads: usize, operations: usize, seed: u64) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for (number, receiver) in receivers.into_iter().enumerate() {
            let senders = senders.clone();
            let start = &start;
            scope.spawn(move || {
                let mut random = Random::new(seed * 1000 + number as u64 * 77 + 5);
                let mut held: Vec<Held> = Vec::new();
                start.wait();
                for _ in 0..operations {
                    held.extend(receiver.try_iter().take(4));
                    if held.len() < 100 || random.next(2) == 0 && held.len() < 300 {
                        held.push(Held::random(&mut random));
                        continue;
                    }
                    let mut one = held.swap_remove(random.next(held.len()));
                    match random.next(3) {
                        0 => drop(one),
                        1 => senders[random.next(threads)].send(one).unwrap_or_default(),
                        _ => {
                            one.resize(random.size());
                            held.push(one);
                        }
                    }
                }
                drop(senders);
                held.extend(receiver.try_iter());
            });
        }
        drop(senders);
    });
}
