//! Blocks that always flow in one direction, or whole collections that change threads.

use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap};
use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;

use crate::common::{Held, Random};

/// A block of an odd size that names who made it.
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
fn blocks_of_threads_that_have_ended_are_whole_and_can_be_freed_and_resized() {
    let (sender, receiver) = mpsc::channel();
    for round in 0..40 {
        let sender = sender.clone();
        let made = thread::spawn(move || {
            let mut random = Random::new(round + 1);
            sender.send(
                (0..200)
                    .map(|_| Held::random(&mut random))
                    .collect::<Vec<_>>(),
            )
        });
        made.join().unwrap().unwrap();
    }
    drop(sender);
    let mut random = Random::new(5);
    for mut blocks in receiver {
        for held in blocks.iter_mut().step_by(3) {
            held.resize(random.next(5000) + 1);
        }
    }
}

type Tree = BTreeMap<u64, Vec<String>>;

fn tree(number: u64) -> Tree {
    (0..300)
        .map(|key| (key * number, vec![format!("{number}/{key}"); 4]))
        .collect()
}

#[test]
fn scoped_threads_drop_each_others_collections() {
    let mut trees: Vec<Tree> = Vec::new();
    for round in 0..20 {
        trees = thread::scope(|scope| {
            let workers: Vec<_> = (1..=4)
                .map(|number| {
                    let old = trees.pop();
                    scope.spawn(move || {
                        if let Some(old) = old {
                            // Made by another thread one round ago, dropped here.
                            let step = *old.keys().nth(1).unwrap();
                            assert_eq!(old, tree(step));
                        }
                        tree(number + round)
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
    }
    assert_eq!(trees.len(), 4);
}

#[test]
fn a_map_that_grows_in_one_thread_and_shrinks_in_another_keeps_its_entries() {
    let mut map: HashMap<u64, Box<[u8]>> = HashMap::new();
    for round in 0..20u64 {
        map = thread::spawn(move || {
            for key in 0..2000 {
                map.insert(
                    key * 20 + round,
                    vec![round as u8; key as usize % 500].into(),
                );
            }
            map
        })
        .join()
        .unwrap();
        map = thread::spawn(move || {
            map.retain(|key, _| key % 3 != round % 3);
            map.shrink_to_fit();
            map
        })
        .join()
        .unwrap();
    }
    assert!(map.iter().all(|(key, value)| {
        value.len() as u64 == key / 20 % 500
            && value.iter().all(|&byte| u64::from(byte) == key % 20)
    }));
    assert!(!map.is_empty());
}
