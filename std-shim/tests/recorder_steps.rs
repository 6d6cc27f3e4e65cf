//! The trace of the heap's steps: `larder::step`, recorded.
//!
//! Each child calls a recorder itself, as in `recorder_calls`, so every event is known. The heap below is the
//! system's: steps are recorded for any heap.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "recorder_support/blocks.rs"]
mod blocks;
mod recorder_support;

use std::alloc::System;

use blocks::{alloc, free};
use larder::Recorder;
use recorder_support::{Scene, is_child};
use recorder_support::{alloc as a, free as f, step as s};

/// A step of this thread with one block of so many bytes.
fn step_with(heap: &Recorder<System>, bytes: usize) {
    let _step = larder::step();
    free(heap, alloc(heap, bytes));
}

#[test]
fn steps_of_the_heap_are_marked_where_they_begin_and_end() {
    let test = "steps_of_the_heap_are_marked_where_they_begin_and_end";
    if is_child(test) {
        let heap = Recorder::new(System);
        alloc(&heap, 1);
        step_with(&heap, 10);
        step_with(&heap, 20);
        alloc(&heap, 2);
        {
            let _step = larder::step_keyed(7);
            step_with(&heap, 30);
            step_with(&heap, 40);
        }
        return;
    }
    let scene = Scene::new(test);
    scene.run_well();
    let trace = scene.trace();
    let steps = [s(0), a(1, 10), f(1), s(1), a(2, 20), f(2), s(2), a(3, 2)];
    let keyed = [s(3), a(4, 30), f(4), a(5, 40), f(5), s(4)];
    let expected = [&[a(0, 1)], &steps[..], &keyed[..]].concat();
    assert_eq!(trace.events(), expected);
    let between = (0..5).filter(|number| trace.is_between_steps(*number));
    assert_eq!(between.collect::<Vec<_>>(), [2]);
}

#[test]
fn a_step_that_began_before_the_first_block_is_marked() {
    let test = "a_step_that_began_before_the_first_block_is_marked";
    if is_child(test) {
        let heap = Recorder::new(System);
        let step = larder::step();
        free(&heap, alloc(&heap, 10));
        drop(step);
        return step_with(&heap, 20);
    }
    let scene = Scene::new(test);
    scene.run_well();
    let expected = [s(0), a(0, 10), f(0), s(1), a(1, 20), f(1), s(2)];
    assert_eq!(scene.trace().events(), expected);
}

#[test]
fn a_step_that_a_panic_ends_is_marked_as_ended() {
    let test = "a_step_that_a_panic_ends_is_marked_as_ended";
    if is_child(test) {
        std::panic::set_hook(Box::new(|_| ()));
        let heap = Recorder::new(System);
        let caught = std::panic::catch_unwind(|| {
            let _step = larder::step();
            alloc(&heap, 10);
            panic!("in a step");
        });
        assert!(caught.is_err());
        alloc(&heap, 20);
        return;
    }
    let scene = Scene::new(test);
    scene.run_well();
    let trace = scene.trace();
    assert_eq!(trace.events(), [s(0), a(0, 10), s(1), a(1, 20), s(2)]);
    assert!(trace.is_between_steps(1));
}

#[test]
fn a_thread_that_ends_inside_its_step_hands_the_marks_on() {
    let test = "a_thread_that_ends_inside_its_step_hands_the_marks_on";
    if is_child(test) {
        let heap = &Recorder::new(System);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                std::mem::forget(larder::step());
                free(heap, alloc(heap, 10));
                let other = scope.spawn(|| step_with(heap, 20));
                other.join().unwrap();
            });
            first.join().unwrap();
        });
        return step_with(heap, 30);
    }
    let scene = Scene::new(test);
    scene.run_well();
    let first = [s(0), a(0, 10), f(0), a(1, 20), f(1)];
    let second = [s(1), a(2, 30), f(2), s(2)];
    assert_eq!(scene.trace().events(), [&first[..], &second].concat());
}

#[test]
fn steps_without_a_recording_leave_nothing() {
    let test = "steps_without_a_recording_leave_nothing";
    if is_child(test) {
        let heap = Recorder::new(System);
        step_with(&heap, 100);
        return step_with(&heap, 100);
    }
    let scene = Scene::new(test).with("LARDER_RECORD", "");
    scene.run_well();
    assert_eq!(std::fs::read_dir(scene.path("")).unwrap().count(), 0);
}
