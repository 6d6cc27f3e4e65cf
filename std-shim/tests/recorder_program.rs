//! Whole programs on a recorder as their global allocator, with this crate's heap below.
//!
//! The allocator is the sample's own (`examples/record.rs`), so the sample is tested as well. The
//! test harness allocates beside the programs; blocks of 64 KiB and more are only theirs.
#![allow(clippy::unwrap_used)] // helpers of tests

mod recorder_support;
#[path = "../examples/record.rs"]
mod sample;

use std::collections::HashMap;
use std::hint::black_box;
use std::thread;

use larder_trace::{Event, Trace};
use recorder_support::{Scene, Sums, is_child};
use recorder_support::{alloc as a, free as f, step as s};

#[test]
fn the_sample_leaves_the_trace_that_its_vectors_say() {
    let test = "the_sample_leaves_the_trace_that_its_vectors_say";
    if is_child(test) {
        return sample::main();
    }
    let scene = Scene::new(test).with("LARDER_RECORD_FROM", "64KiB");
    scene.run_well();
    let trace = scene.trace();
    // Whether a vector grew in place is the heap's choice, so both ways are right.
    let mut expected = vec![a(0, 1 << 20)];
    let mut sums = Sums::default();
    sums.add(1 << 20);
    let mut id = 1;
    for (number, rows) in (0..).zip([40, 25, 60, 40]) {
        let bytes = rows * 1000 * 4;
        expected.extend([s(number), a(id, bytes), a(id + 1, bytes), f(id)]);
        let moved = [a(id + 2, 2 * bytes), f(id + 1), f(id + 2)];
        let stayed = [f(id + 1), a(id + 2, 2 * bytes), f(id + 2)];
        let found = trace.events().get(expected.len()..).unwrap_or_default();
        expected.extend(if found.starts_with(&stayed) {
            stayed
        } else {
            moved
        });
        id += 3;
    }
    expected.extend([f(0), s(4)]);
    assert_eq!(trace.events(), expected);
}

/// What each thread does: sizes that say which thread and round they belong to.
fn work(thread: usize) {
    let mut kept = Vec::new();
    for round in 0..50 {
        let bytes = 100_000 + thread * 1000 + round;
        let block = vec![0_u8; bytes];
        if round % 5 == 0 {
            kept.push(block);
        }
    }
}

#[test]
fn threads_of_a_program_leave_each_of_their_blocks_once_allocated_and_once_freed() {
    let test = "threads_of_a_program_leave_each_of_their_blocks_once_allocated_and_once_freed";
    if is_child(test) {
        let threads: Vec<_> = (0..4)
            .map(|number| thread::spawn(move || work(number)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        return;
    }
    let scene = Scene::new(test).with("LARDER_RECORD_FROM", "64KiB");
    scene.run_well();
    let mut times = HashMap::new();
    let mut live = HashMap::new();
    for event in scene.trace().events() {
        match *event {
            Event::Alloc { id, bytes } => {
                *times.entry(bytes).or_insert(0) += 1;
                live.insert(id, bytes);
            }
            Event::Free { id } => assert!(live.remove(&id).is_some()),
            Event::Step { .. } => unreachable!("nobody marks a step"),
        }
    }
    assert!(live.is_empty(), "{live:?}");
    let sizes =
        (0..4_u64).flat_map(|thread| (0..50).map(move |round| 100_000 + thread * 1000 + round));
    assert_eq!(times, sizes.map(|bytes| (bytes, 1)).collect());
}

/// A block of the program's, whatever the optimiser thinks of it.
fn buffer(bytes: u64) -> Vec<u8> {
    black_box(vec![1; usize::try_from(bytes).unwrap()])
}

/// A step of the trainer: its blocks say which one it is. Another thread has a step meanwhile.
fn train(number: u64) {
    let _step = larder::step();
    let activations = buffer(100_000 + number);
    let gradients = buffer(200_000 + number);
    drop(activations);
    let loader = thread::spawn(move || {
        let _step = larder::step();
        drop(buffer(300_000 + number));
    });
    loader.join().unwrap();
    drop(gradients);
}

#[test]
fn steps_of_the_heap_are_steps_of_the_trace() {
    let test = "steps_of_the_heap_are_steps_of_the_trace";
    if is_child(test) {
        let weights = buffer(1 << 20);
        let trainer = thread::spawn(|| {
            (0..3).for_each(train);
            drop(buffer(400_000));
            train(3);
        });
        trainer.join().unwrap();
        drop(buffer(500_000));
        return drop(weights);
    }
    let scene = Scene::new(test).with("LARDER_RECORD_FROM", "64KiB");
    scene.run_well();
    let trace = scene.trace();
    // What stands between the third and the fourth has a number too.
    let expected: Vec<(u32, Vec<u64>)> = (0..)
        .zip([0, 1, 2, 4])
        .map(|(made, number)| {
            let sizes = [100_000, 200_000, 300_000];
            (number, sizes.map(|bytes| bytes + made).to_vec())
        })
        .collect();
    assert_eq!(sizes_by_step(&trace), expected);
    assert_eq!(u64::from(trace.allocations()), 4 * 3 + 3);
}

/// What each step of a trace allocates, by number; not what stands between two.
fn sizes_by_step(trace: &Trace) -> Vec<(u32, Vec<u64>)> {
    let mut steps = Vec::new();
    let mut inside = false;
    for event in trace.events() {
        match *event {
            Event::Step { number } => {
                inside = !trace.is_between_steps(number);
                steps.extend(inside.then(|| (number, Vec::new())));
            }
            Event::Alloc { bytes, .. } if inside => steps.last_mut().unwrap().1.push(bytes),
            _ => {}
        }
    }
    // The last mark only ends the last step.
    steps.retain(|(_, sizes)| !sizes.is_empty());
    steps
}

#[test]
fn threads_that_have_steps_at_once_leave_a_good_trace() {
    let test = "threads_that_have_steps_at_once_leave_a_good_trace";
    const STEPS: u64 = 200;
    const THREADS: u64 = 4;
    if is_child(test) {
        let play = |thread: u64| {
            for number in 0..STEPS {
                let _step = larder::step_keyed(thread);
                drop(buffer(100_000 + number));
            }
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|own| thread::spawn(move || play(own)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        return;
    }
    let scene = Scene::new(test).with("LARDER_RECORD_FROM", "64KiB");
    scene.run_well();
    let trace = scene.trace();
    assert_eq!(u64::from(trace.allocations()), THREADS * STEPS);
    let marks = trace.events().iter().filter_map(|event| match *event {
        Event::Step { number } => Some(number),
        _ => None,
    });
    let steps = marks
        .filter(|number| !trace.is_between_steps(*number))
        .count() as u64;
    // All of one thread's and the mark that ends the last; those of others once it has ended.
    assert!((STEPS..=THREADS * STEPS + 1).contains(&steps), "{steps}");
}

#[test]
fn every_block_of_a_real_program_can_be_recorded() {
    let test = "every_block_of_a_real_program_can_be_recorded";
    if is_child(test) {
        let mut words = std::collections::BTreeMap::<String, Vec<usize>>::new();
        for number in 0..20_000_usize {
            words
                .entry(format!("{:x}", number * 7919 % 4099))
                .or_default()
                .push(number);
        }
        let threads: Vec<_> = (0..4)
            .map(|number| thread::spawn(move || work(number)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        return assert_eq!(words.len(), 4099);
    }
    let scene = Scene::new(test);
    scene.run_well();
    let sums = Sums::of(&scene.trace());
    // One key and at least one vector for each word, and the blocks of the threads.
    assert!(sums.allocs > 2 * 4099 + 200, "{sums:?}");
    assert!(sums.peak_bytes < sums.bytes);
}
