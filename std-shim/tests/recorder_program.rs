//! Whole programs whose global allocator is a recorder over this crate's heap.
//!
//! The allocator is that of the sample `examples/record.rs`, so the sample is tested too. The test
//! harness also allocates, but no blocks of 64 KiB or more.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../examples/record.rs"]
mod sample;
#[path = "recorder/scene.rs"]
mod scene;

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::thread;

use larder_trace::{Event, Trace};
use scene::{Scene, Sums};

const PARTS: [(&str, fn()); 4] = [
    ("sample", sample::main),
    ("threads", || in_threads(work)),
    ("steps at once", || {
        in_threads(|thread| {
            for number in 0..STEPS {
                let _step = larder::step_keyed(thread);
                drop(buffer(100_000 + number));
            }
        });
    }),
    ("real program", real_program),
];

#[test]
#[ignore = "the other tests start it"]
fn plays_a_part() {
    let Some(part) = scene::part() else {
        return;
    };
    let (_, play) = PARTS.iter().find(|(name, _)| *name == part).unwrap();
    play();
}

/// Runs a part. Returns its trace of the blocks of 64 KiB and more.
fn trace_of(part: &str) -> Trace {
    let scene = Scene::new(part).with("LARDER_RECORD_FROM", "64KiB");
    scene.run_well();
    scene.trace()
}

#[test]
fn the_sample_leaves_the_trace_that_its_vectors_say() {
    let scene = Scene::new("sample").with("LARDER_RECORD_FROM", "64KiB");
    scene.run_well();
    let found = scene.events();
    let mut expected = "a 0 1048576".to_owned();
    for (number, rows) in [40, 25, 60, 40].into_iter().enumerate() {
        let (bytes, id) = (rows * 4000, 3 * number + 1);
        let (next, last, grown) = (id + 1, id + 2, 2 * bytes);
        expected += &format!(", s {number}, a {id} {bytes}, a {next} {bytes}, f {id}");
        let moved = format!(", a {last} {grown}, f {next}, f {last}");
        let stayed = format!(", f {next}, a {last} {grown}, f {last}");
        // The heap chooses whether a vector grows in place, so both traces are correct.
        let is_stayed = found.starts_with(&format!("{expected}{stayed}"));
        expected += if is_stayed { &stayed } else { &moved };
    }
    assert_eq!(found, expected + ", f 0, s 4");
}

const THREADS: u64 = 4;
const STEPS: u64 = 200;

fn in_threads(run: fn(u64)) {
    let threads: Vec<_> = (0..THREADS)
        .map(|number| thread::spawn(move || run(number)))
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The work of a thread; each size identifies its thread and round.
fn work(thread: u64) {
    let mut kept = Vec::new();
    for round in 0..50 {
        let block = buffer(100_000 + thread * 1000 + round);
        if round % 5 == 0 {
            kept.push(block);
        }
    }
}

#[test]
fn threads_of_a_program_leave_each_of_their_blocks_once_allocated_and_once_freed() {
    let trace = trace_of("threads");
    let mut times = HashMap::new();
    let mut live = HashMap::new();
    for event in trace.events() {
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

/// Allocates a block that the optimizer cannot remove.
fn buffer(bytes: u64) -> Vec<u8> {
    black_box(vec![1; usize::try_from(bytes).unwrap()])
}

#[test]
fn threads_that_have_steps_at_once_leave_a_good_trace() {
    let trace = trace_of("steps at once");
    assert_eq!(u64::from(trace.allocations()), THREADS * STEPS);
    let marks = trace.events().iter().filter_map(|event| match *event {
        Event::Step { number } => Some(number),
        _ => None,
    });
    let steps = marks
        .filter(|number| !trace.is_between_steps(*number))
        .count() as u64;
    // All steps of one thread, the mark that ends the last, and later steps of other threads.
    assert!((STEPS..=THREADS * STEPS + 1).contains(&steps), "{steps}");
}

fn real_program() {
    let mut words = BTreeMap::<String, Vec<usize>>::new();
    for number in 0..20_000_usize {
        let word = format!("{:x}", number * 7919 % 4099);
        words.entry(word).or_default().push(number);
    }
    in_threads(work);
    assert_eq!(words.len(), 4099);
}

#[test]
fn every_block_of_a_real_program_can_be_recorded() {
    let scene = Scene::new("real program");
    scene.run_well();
    let sums = Sums::of(&scene.trace());
    // A key and at least one vector for each word, and the threads' blocks.
    assert!(sums.allocs > 2 * 4099 + 200, "{sums:?}");
    assert!(sums.peak_bytes < sums.bytes);
}
