//! Whole programs on a recorder as their global allocator, with this crate's heap below.
//!
//! The allocator is the sample's own (`examples/record.rs`), so the sample is tested as well. The
//! test harness allocates beside the programs; blocks of 64 KiB and more are only theirs.
#![allow(clippy::unwrap_used)] // helpers of tests

mod recorder_support;
#[path = "../examples/record.rs"]
mod sample;

use std::collections::HashMap;
use std::thread;

use larder_bench::trace::Event;
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
