//! Blocks that flow in one direction. Collections that change threads are in `programs`.

use std::alloc::Layout;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;

use crate::common::{Held, Random};

fn block(size: usize, fill: u8) -> Held {
    Held::new(Layout::from_size_align(size, 8).unwrap(), fill, false)
}

#[test]
fn what_one_thread_makes_and_another_frees_arrives_whole() {
    let (sender, receiver) = mpsc::sync_channel::<Held>(64);
    let consumer = thread::spawn(move || receiver.into_iter().filter(Held::is_whole).count());
    let mut random = Random::new(11);
    for _ in 0..40_000 {
        let size = random.next(3000) + 1;
        sender.send(block(size, 1)).unwrap();
    }
    drop(sender);
    assert_eq!(consumer.join().unwrap(), 40_000);
}

#[test]
fn phases_of_allocation_here_and_freeing_there_keep_every_block_apart() {
    const THREADS: usize = 4;
    let turn = Barrier::new(THREADS);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::channel::<Vec<Held>>()).unzip();
    thread::scope(|scope| {
        for (number, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(number + 1) % THREADS].clone();
            let turn = &turn;
            scope.spawn(move || {
                let mut random = Random::new(number as u64 + 31);
                for phase in 0..30 {
                    // The same few classes in every thread, so that all free lists mix.
                    let fill = (number * 50 + phase + 1) as u8;
                    let made = (0..600).map(|_| block([24, 100, 700, 9000][random.next(4)], fill));
                    next.send(made.collect()).unwrap();
                    turn.wait();
                    // Dropping checks every byte.
                    drop(receiver.recv().unwrap());
                    turn.wait();
                }
            });
        }
    });
}

#[test]
fn large_blocks_that_a_trim_takes_from_threads_stay_apart() {
    const THREADS: usize = 3;
    let left = AtomicUsize::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let left = &left;
            scope.spawn(move || {
                let mut random = Random::new(number as u64 + 71);
                let mut blocks: [Option<Held>; 4] = Default::default();
                for round in 0..1500 {
                    let place = &mut blocks[random.next(4)];
                    // Dropping checks every byte.
                    *place = match place {
                        Some(_) => None,
                        None => {
                            let bytes = 140_000 + random.next(4) * 16_000;
                            let layout = Layout::from_size_align(bytes, 8).unwrap();
                            Some(Held::new(layout, number as u8 + 1, round % 5 == 0))
                        }
                    };
                }
                drop(blocks);
                left.fetch_sub(1, Ordering::Release);
            });
        }
        while left.load(Ordering::Acquire) > 0 {
            crate::HEAP.trim();
        }
    });
}
