//! Steps of a program whose heap is Larder's.

use std::sync::{Mutex, MutexGuard, mpsc};
use std::thread;

use larder::{StepSettings, StepsInUse};

#[global_allocator]
static HEAP: larder::Larder = larder::Larder::new();

/// The counters are the process's, so the tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|lock| lock.into_inner())
}

/// A buffer that knows what it was filled with.
struct Filled(Vec<u64>);

impl Filled {
    fn new(bytes: usize, seed: u64) -> Self {
        Self((0..bytes as u64 / 8).map(|at| at ^ seed).collect())
    }

    fn check(&self, seed: u64) {
        for (at, word) in (0..).zip(&self.0) {
            assert_eq!(*word, at ^ seed);
        }
    }
}

/// A step of so many layers whose activations live until the way back.
fn train(layers: u64, bytes: usize) {
    let mut activations = Vec::new();
    for layer in 0..layers {
        let scratch = Filled::new(bytes * 2, layer ^ 0xA5);
        activations.push(Filled::new(bytes + layer as usize * 4096, layer));
        scratch.check(layer ^ 0xA5);
    }
    while let Some(activation) = activations.pop() {
        let layer = activations.len() as u64;
        let gradient = Filled::new(bytes * 3, layer ^ 0x5A);
        activation.check(layer);
        gradient.check(layer ^ 0x5A);
    }
}

fn repeat(times: u64, step: impl Fn(u64)) -> larder::Stats {
    let before = HEAP.stats();
    for time in 0..times {
        let _step = larder::step();
        step(time);
    }
    let mut stats = HEAP.stats();
    stats.steps.known_steps -= before.steps.known_steps;
    stats.steps.hits -= before.steps.hits;
    stats.steps.misses -= before.steps.misses;
    stats
}

#[test]
fn a_step_that_repeats_is_served_from_its_plan() {
    let _turn = turn();
    thread::spawn(|| {
        let stats = repeat(5, |_| train(8, 100_000));
        assert_eq!(stats.steps.known_steps, 4);
        // 24 buffers a step, from the third on: the second is only watched.
        assert!(stats.steps.hits >= 3 * 24, "{:?}", stats.steps);
        assert_eq!(stats.steps.misses, 0);
    })
    .join()
    .unwrap();
}

#[test]
fn shapes_that_alternate_are_both_planned() {
    let _turn = turn();
    thread::spawn(|| {
        let stats = repeat(12, |time| train(4 + time % 3, 150_000));
        assert!(stats.steps.known_steps >= 9, "{:?}", stats.steps);
        assert_eq!(stats.steps.misses, 0);
    })
    .join()
    .unwrap();
}

#[test]
fn blocks_may_outlive_their_step_and_be_freed_elsewhere() {
    let _turn = turn();
    let (send, receive) = mpsc::channel::<(u64, Filled)>();
    let worker = thread::spawn(move || {
        for (seed, kept) in receive {
            kept.check(seed);
        }
    });
    thread::spawn(move || {
        repeat(20, |time| {
            train(3, 90_000);
            send.send((time, Filled::new(200_000, time))).unwrap();
            train(3, 70_000);
        });
    })
    .join()
    .unwrap();
    worker.join().unwrap();
}

#[test]
fn threads_have_steps_of_their_own_and_more_than_there_are_heaps_for() {
    let _turn = turn();
    let threads: Vec<_> = (0..24)
        .map(|thread| {
            thread::spawn(move || {
                for _ in 0..4 {
                    let _step = larder::step_keyed(thread % 5);
                    train(2 + thread % 3, 60_000);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_step_inside_a_step_is_part_of_it() {
    let _turn = turn();
    thread::spawn(|| {
        let stats = repeat(3, |_| {
            let inner = larder::step();
            train(2, 100_000);
            drop(inner);
            train(2, 100_000);
        });
        assert_eq!(stats.steps.known_steps, 2);
    })
    .join()
    .unwrap();
}

#[test]
fn a_buffer_that_grows_in_a_step_keeps_its_contents() {
    let _turn = turn();
    thread::spawn(|| {
        repeat(4, |_| {
            let mut words = Vec::new();
            for at in 0..200_000u64 {
                words.push(at);
            }
            assert!((0..).zip(&words).all(|(at, word)| at == *word));
            words.truncate(3000);
            words.shrink_to_fit();
            assert!((0..).zip(&words).all(|(at, word)| at == *word));
            let zeros = vec![0u8; 1 << 20];
            assert!(zeros.iter().all(|byte| *byte == 0));
        });
    })
    .join()
    .unwrap();
}

#[test]
fn a_thread_that_forgets_to_end_its_step_leaves_its_heap_to_others() {
    let _turn = turn();
    for _ in 0..40 {
        thread::spawn(|| {
            std::mem::forget(larder::step());
            train(2, 50_000);
        })
        .join()
        .unwrap();
    }
    thread::spawn(|| {
        let stats = repeat(3, |_| train(5, 77_777));
        assert_eq!(stats.steps.known_steps, 2, "it still gets a heap");
    })
    .join()
    .unwrap();
}

#[test]
fn what_lies_idle_goes_back_when_asked() {
    let _turn = turn();
    thread::spawn(|| {
        repeat(2, |_| train(4, 2 << 20));
        assert!(HEAP.trim() > 0);
        repeat(2, |_| train(4, 2 << 20));
    })
    .join()
    .unwrap();
}

#[test]
fn settings_come_before_the_first_step() {
    let _turn = turn();
    thread::spawn(|| repeat(1, |_| train(1, 50_000)))
        .join()
        .unwrap();
    assert_eq!(StepSettings::new().apply(), Err(StepsInUse));
    assert!(StepsInUse.to_string().contains("before the first"));
}
