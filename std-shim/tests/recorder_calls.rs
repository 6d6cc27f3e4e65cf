//! The trace of calls of a recorder, line by line.
//!
//! This program's own allocator is not recorded: each child calls a recorder itself, so every
//! event is known. The reader of traces is the one of `larder replay`.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "recorder_support/blocks.rs"]
mod blocks;
mod recorder_support;

use std::alloc::System;
use std::fs;
use std::io;
use std::sync::LazyLock;

use blocks::{Block, Bump, Handing, InPlace, ROOM};
use blocks::{alloc, alloc_zeroed, free, resize, sized, try_alloc, try_resize};
use larder::Recorder;
use recorder_support::{Scene, Sums, is_child};
use recorder_support::{alloc as a, free as f, step as s};

const EXIT: &str = "# recording ended: the program exits";

#[test]
fn each_call_is_one_event_with_the_size_that_was_asked_for() {
    let test = "each_call_is_one_event_with_the_size_that_was_asked_for";
    if is_child(test) {
        let heap = Recorder::new(System);
        let one = alloc(&heap, 1);
        let two = alloc_zeroed(&heap, 5_000_000);
        free(&heap, one);
        alloc(&heap, 17);
        return free(&heap, two);
    }
    let scene = Scene::new(test);
    scene.run_well();
    let trace = scene.trace();
    let expected = [a(0, 1), a(1, 5_000_000), f(0), a(2, 17), f(1)];
    assert_eq!(trace.events(), expected);
    assert_eq!(scene.last_line(), EXIT);
    let header = |key: &str| {
        trace
            .header()
            .iter()
            .find(|line| line.0 == key)
            .unwrap()
            .1
            .as_str()
    };
    assert_eq!(header("from_bytes"), "1");
    if cfg!(target_os = "linux") {
        assert!(header("name").starts_with("recorder_calls"));
    }
}

#[test]
fn the_same_program_writes_the_same_trace_again_over_a_longer_file() {
    let test = "the_same_program_writes_the_same_trace_again_over_a_longer_file";
    if is_child(test) {
        return random_calls(&Recorder::new(System), 7, 500);
    }
    let scene = Scene::new(test);
    scene.run_well();
    let first = scene.text();
    fs::write(scene.path("program.trace"), format!("{first}{first}")).unwrap();
    scene.run_well();
    assert_eq!(scene.text(), first);
}

#[test]
fn without_the_variable_nothing_is_written_or_said() {
    let test = "without_the_variable_nothing_is_written_or_said";
    if is_child(test) {
        let heap = Recorder::new(System);
        heap.step();
        free(&heap, alloc(&heap, 100));
        return heap.flush();
    }
    let scene = Scene::new(test).with("LARDER_RECORD", "");
    scene.run_well();
    assert_eq!(fs::read_dir(scene.path("")).unwrap().count(), 0);
}

#[test]
fn the_variable_says_from_which_size_on_blocks_are_recorded() {
    let test = "the_variable_says_from_which_size_on_blocks_are_recorded";
    if is_child(test) {
        let heap = Recorder::new(System);
        let below = alloc(&heap, 1023);
        let at = alloc(&heap, 1024);
        let above = alloc(&heap, 1025);
        free(&heap, below);
        free(&heap, at);
        let grown = resize(&heap, alloc(&heap, 10), 3000);
        let shrunk = resize(&heap, above, 20);
        free(&heap, shrunk);
        return free(&heap, grown);
    }
    let scene = Scene::new(test).with("LARDER_RECORD_FROM", "1KiB");
    scene.run_well();
    let expected = [a(0, 1024), a(1, 1025), f(0), a(2, 3000), f(1), f(2)];
    assert_eq!(scene.trace().events(), expected);
    assert!(scene.text().contains("\n# from_bytes: 1024\n"));
}

#[test]
fn a_program_may_name_file_and_size_itself() {
    let test = "a_program_may_name_file_and_size_itself";
    if is_child(test) {
        let heap = Recorder::to(System, c"chosen.trace", 100);
        alloc(&heap, 99);
        alloc(&heap, 100);
        return;
    }
    let scene = Scene::new(test);
    scene.run_well();
    assert!(!scene.path("program.trace").exists());
    fs::rename(scene.path("chosen.trace"), scene.path("program.trace")).unwrap();
    assert_eq!(scene.trace().events(), [a(0, 100)]);
}

#[test]
fn a_realloc_that_moves_has_both_blocks_live_and_one_in_place_never() {
    let test = "a_realloc_that_moves_has_both_blocks_live_and_one_in_place_never";
    if is_child(test) {
        let moving = Recorder::new(Bump::new());
        let block = alloc(&moving, 100);
        free(&moving, resize(&moving, block, 200));
        let fixed = Recorder::new(InPlace);
        let block = resize(&fixed, alloc(&fixed, 300), 400);
        return free(&fixed, resize(&fixed, block, 50));
    }
    let scene = Scene::new(test);
    scene.run_well();
    let moved = [a(0, 100), a(1, 200), f(0), f(1)];
    let stayed = [a(2, 300), f(2), a(3, 400), f(3), a(4, 50), f(4)];
    assert_eq!(scene.trace().events(), [&moved[..], &stayed].concat());
}

#[test]
fn what_fails_or_changes_nothing_is_not_recorded() {
    let test = "what_fails_or_changes_nothing_is_not_recorded";
    if is_child(test) {
        let heap = Recorder::new(InPlace);
        assert!(try_alloc(&heap, ROOM + 1).is_none());
        let block = alloc(&heap, 300);
        assert!(try_resize(&heap, block, ROOM + 1).is_none());
        let block = resize(&heap, block, 300);
        alloc(&heap, 5);
        return free(&heap, block);
    }
    let scene = Scene::new(test);
    scene.run_well();
    assert_eq!(scene.trace().events(), [a(0, 300), a(1, 5), f(0)]);
}

#[test]
fn blocks_from_before_the_recording_are_passed_over() {
    let test = "blocks_from_before_the_recording_are_passed_over";
    if is_child(test) {
        let before = [alloc(&System, 100), alloc(&System, 200)];
        let heap = Recorder::new(System);
        free(&heap, before[0]);
        let grown = resize(&heap, before[1], 9000);
        return free(&heap, grown);
    }
    let scene = Scene::new(test);
    scene.run_well();
    assert_eq!(scene.trace().events(), [a(0, 9000), f(0)]);
}

/// A recorder over an allocator whose every freed block is at once a new one of 64 bytes.
static HANDING: LazyLock<Recorder<Handing>> = LazyLock::new(|| {
    Recorder::new(Handing::new(|| {
        alloc(&*HANDING, 64);
    }))
});

#[test]
fn an_address_taken_at_once_by_another_is_freed_in_the_trace_before_it_is_allocated() {
    let test = "an_address_taken_at_once_by_another_is_freed_in_the_trace_before_it_is_allocated";
    if is_child(test) {
        return free(&*HANDING, alloc(&*HANDING, 100));
    }
    let scene = Scene::new(test);
    scene.run_well();
    assert_eq!(scene.trace().events(), [a(0, 100), f(0), a(1, 64)]);
}

#[test]
fn an_address_taken_at_once_by_another_in_a_realloc_is_not_mistaken() {
    let test = "an_address_taken_at_once_by_another_in_a_realloc_is_not_mistaken";
    if is_child(test) {
        let block = alloc(&*HANDING, 100);
        let moved = resize(&*HANDING, block, 200);
        assert_ne!(moved.start, block.start);
        // The other's block lies where the first one lay.
        let heap = Recorder::new(Bump::new());
        let layout = sized(64);
        return free(&heap, Block { layout, ..block });
    }
    let scene = Scene::new(test);
    scene.run_well();
    let expected = [a(0, 100), a(1, 64), a(2, 200), f(0), f(1)];
    assert_eq!(scene.trace().events(), expected);
}

#[test]
fn steps_are_numbered_and_the_exit_closes_the_last() {
    let test = "steps_are_numbered_and_the_exit_closes_the_last";
    if is_child(test) {
        let heap = Recorder::new(System);
        let kept = alloc(&heap, 1000);
        for _ in 0..2 {
            heap.step();
            free(&heap, alloc(&heap, 10));
        }
        return free(&heap, kept);
    }
    let scene = Scene::new(test);
    scene.run_well();
    let expected = [
        a(0, 1000),
        s(0),
        a(1, 10),
        f(1),
        s(1),
        a(2, 10),
        f(2),
        f(0),
        s(2),
    ];
    assert_eq!(scene.trace().events(), expected);
}

/// Allocates, frees and resizes at random, and says what that adds up to.
fn random_calls(heap: &impl std::alloc::GlobalAlloc, seed: u64, calls: usize) {
    let mut random = Random(seed);
    let mut sums = Sums::default();
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..calls {
        let doubling = random.below(18);
        let bytes = 1 + random.below(1 << doubling);
        match random.below(5) {
            0..=2 => {
                live.push(alloc(heap, bytes));
                sums.add(bytes as u64);
            }
            choice if !live.is_empty() => {
                let index = random.below(live.len());
                let block = live.swap_remove(index);
                let before = block.layout.size() as u64;
                if choice == 3 {
                    free(heap, block);
                    sums.take(before);
                    continue;
                }
                let resized = resize(heap, block, bytes);
                live.push(resized);
                if resized.start != block.start {
                    sums.add(bytes as u64);
                    sums.take(before);
                } else if bytes as u64 != before {
                    sums.take(before);
                    sums.add(bytes as u64);
                }
            }
            _ => {}
        }
    }
    sums.say();
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

#[test]
fn a_long_trace_adds_up_to_what_the_program_counted_itself() {
    let test = "a_long_trace_adds_up_to_what_the_program_counted_itself";
    if is_child(test) {
        return random_calls(&Recorder::new(System), 11, 60_000);
    }
    let scene = Scene::new(test);
    let child = scene.run_well();
    let sums = Sums::of(&scene.trace());
    assert_eq!(sums, Sums::said_by(&child));
    // Long enough for many writes and a table that grew more than once.
    assert!(scene.text().len() > 10 * 64 * 1024);
    assert!(sums.allocs - sums.frees > 10_000);
}

#[test]
fn memory_of_one_recorder_freed_through_another_is_the_same_block() {
    let test = "memory_of_one_recorder_freed_through_another_is_the_same_block";
    if is_child(test) {
        let one = Recorder::new(System);
        let other = Recorder::to(System, c"other.trace", 1000);
        let block = alloc(&one, 40);
        return free(&other, block);
    }
    let scene = Scene::new(test);
    scene.run_well();
    assert_eq!(scene.trace().events(), [a(0, 40), f(0)]);
    assert!(!scene.path("other.trace").exists());
}

#[test]
fn the_reason_of_a_failed_call_survives_a_recording_that_fails_too() {
    let test = "the_reason_of_a_failed_call_survives_a_recording_that_fails_too";
    if is_child(test) {
        let heap = Recorder::new(System);
        // SAFETY: no file has this number.
        unsafe { libc::close(-1) };
        let block = alloc(&heap, 100);
        let reason = io::Error::last_os_error().raw_os_error();
        assert_eq!(reason, Some(libc::EBADF));
        return free(&heap, block);
    }
    let scene = Scene::new(test).with("LARDER_RECORD", "/no/such/folder/program.trace");
    let child = scene.run();
    assert!(child.0.status.success(), "{child:?}");
    assert_eq!(child.stderr().lines().count(), 1);
}
