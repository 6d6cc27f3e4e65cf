//! A recording and its process: threads, forks, exits and signals.
//!
//! Each child calls a recorder itself, as in `recorder_calls`, so every event is known.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "recorder_support/blocks.rs"]
mod blocks;
mod recorder_support;

use std::alloc::System;
use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use blocks::{Block, alloc, free, resize};
use larder::Recorder;
use larder_trace::Event;
use recorder_support::{Scene, Sums, is_child};
use recorder_support::{alloc as a, free as f};

const EXIT: &str = "# recording ended: the program exits";

static HEAP: Recorder<System> = Recorder::new(System);

/// Events enough for several writes.
const MANY: usize = 20_000;

fn allocate_many() {
    for _ in 0..MANY {
        alloc(&HEAP, 24);
    }
}

/// Waits for a child made by fork; whether it ended well.
fn ended_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` may be written.
    let found = unsafe { libc::waitpid(child, &raw mut status, 0) };
    found == child && status == 0
}

/// What a forked child does here: everything a recorder can be asked for, and an exit. A child
/// that hangs is ended by the alarm.
fn play_forked() -> ! {
    // SAFETY: sets a timer.
    unsafe { libc::alarm(300) };
    allocate_many();
    HEAP.step();
    let step = larder::step();
    free(&HEAP, alloc(&HEAP, 77));
    drop(step);
    HEAP.flush();
    // SAFETY: ends this process, its exit handlers included.
    unsafe { libc::exit(0) }
}

#[test]
fn a_forked_child_writes_nothing_into_its_parents_trace() {
    let test = "a_forked_child_writes_nothing_into_its_parents_trace";
    if is_child(test) {
        let block = alloc(&HEAP, 100);
        // SAFETY: the child calls nothing that needs the parent's other threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            free(&HEAP, block);
            play_forked();
        }
        assert!(ended_well(child));
        free(&HEAP, alloc(&HEAP, 200));
        return;
    }
    let scene = Scene::new(test);
    scene.run_well();
    assert_eq!(scene.trace().events(), [a(0, 100), a(1, 200), f(1)]);
    assert_eq!(scene.last_line(), EXIT);
}

#[cfg(target_os = "linux")]
#[test]
fn a_child_forked_behind_the_c_librarys_back_writes_nothing_either() {
    let test = "a_child_forked_behind_the_c_librarys_back_writes_nothing_either";
    if is_child(test) {
        alloc(&HEAP, 100);
        // SAFETY: a fork without its handlers; this thread holds no lock.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            play_forked();
        }
        assert!(ended_well(libc::pid_t::try_from(child).unwrap()));
        alloc(&HEAP, 200);
        return;
    }
    let scene = Scene::new(test);
    scene.run_well();
    assert_eq!(scene.trace().events(), [a(0, 100), a(1, 200)]);
}

/// Forks again and again while another thread allocates; each child allocates too.
fn fork_beside_a_thread() {
    let done = AtomicBool::new(false);
    alloc(&HEAP, 100);
    let well = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                free(&HEAP, alloc(&HEAP, 24));
            }
        });
        let well = (0..100).all(|_| {
            // SAFETY: the child only allocates, and the system's heap allows that.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: sets a timer, which ends a child that waits for ever.
                unsafe { libc::alarm(300) };
                free(&HEAP, alloc(&HEAP, 48));
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(0) };
            }
            ended_well(child)
        });
        done.store(true, Ordering::Relaxed);
        well
    });
    assert!(well);
}

#[test]
fn a_child_forked_while_another_thread_records_does_not_wait_for_it() {
    let test = "a_child_forked_while_another_thread_records_does_not_wait_for_it";
    if is_child(test) {
        return fork_beside_a_thread();
    }
    let scene = Scene::new(test);
    scene.run_well();
    let trace = scene.trace();
    let forked = |event: &Event| matches!(event, Event::Alloc { bytes: 48, .. });
    assert!(!trace.events().iter().any(forked));
    assert_eq!(Sums::of(&trace).live_bytes, 100);
}

#[test]
fn without_a_recording_a_forked_child_has_nobody_to_wait_for() {
    let test = "without_a_recording_a_forked_child_has_nobody_to_wait_for";
    if is_child(test) {
        return fork_beside_a_thread();
    }
    Scene::new(test).with("LARDER_RECORD", "").run_well();
}

#[test]
fn threads_leave_one_trace_in_which_every_free_has_its_alloc() {
    let test = "threads_leave_one_trace_in_which_every_free_has_its_alloc";
    if is_child(test) {
        // Blocks on their way to whoever frees them.
        let pool: Mutex<Vec<Block>> = Mutex::default();
        let sums = thread::scope(|scope| {
            let pool = &pool;
            let threads: Vec<_> = (0..4)
                .map(|number| scope.spawn(move || exchange(number, pool)))
                .collect();
            let parts = threads.into_iter().map(|thread| thread.join().unwrap());
            parts.fold((0, 0, 0), |all, one| {
                (all.0 + one.0, all.1 + one.1, all.2 + one.2)
            })
        });
        println!("\nallocs={}\nfrees={}\nbytes={}", sums.0, sums.1, sums.2);
        return;
    }
    let scene = Scene::new(test);
    let child = scene.run_well();
    let sums = Sums::of(&scene.trace());
    assert_eq!(sums.allocs, child.said("allocs"));
    assert_eq!(sums.frees, child.said("frees"));
    assert_eq!(sums.bytes, child.said("bytes"));
    assert_eq!(sums.live_bytes, 0);
    assert!(sums.allocs > 40_000);
}

/// Allocates, resizes, and frees what other threads allocated; gives allocs, frees and bytes. No
/// resize keeps the size, so each is an alloc and a free wherever it ends up.
fn exchange(number: usize, pool: &Mutex<Vec<Block>>) -> (u64, u64, u64) {
    let (mut calls, mut bytes) = (0, 0);
    for round in 0..10_000 {
        let size = 16 + (round * 37 + number * 11) % 3000;
        let mut block = alloc(&HEAP, size);
        calls += 1;
        bytes += size as u64;
        if round % 3 == 0 {
            block = resize(&HEAP, block, size + 500);
            calls += 1;
            bytes += size as u64 + 500;
        }
        pool.lock().unwrap().push(block);
        // What this thread has just put there is freed by whoever comes next.
        let first = pool.lock().unwrap().swap_remove(0);
        free(&HEAP, first);
    }
    (calls, calls, bytes)
}

#[test]
fn a_killed_program_leaves_whole_lines_and_all_up_to_its_last_flush() {
    let test = "a_killed_program_leaves_whole_lines_and_all_up_to_its_last_flush";
    if is_child(test) {
        allocate_many();
        HEAP.flush();
        alloc(&HEAP, 1);
        // SAFETY: ends this process at once.
        unsafe { libc::raise(libc::SIGKILL) };
        unreachable!();
    }
    let scene = Scene::new(test);
    assert_eq!(scene.run().0.status.signal(), Some(libc::SIGKILL));
    assert_eq!(scene.trace().allocations() as usize, MANY);
}

#[test]
fn a_killed_program_that_never_flushed_leaves_what_was_written_in_whole_lines() {
    let test = "a_killed_program_that_never_flushed_leaves_what_was_written_in_whole_lines";
    if is_child(test) {
        allocate_many();
        std::process::abort();
    }
    let scene = Scene::new(test);
    assert_eq!(scene.run().0.status.signal(), Some(libc::SIGABRT));
    let allocations = scene.trace().allocations() as usize;
    assert!(allocations > 0 && allocations < MANY);
}

/// Called at the exit after the recording has ended.
extern "C" fn late() {
    let step = larder::step();
    free(&HEAP, alloc(&HEAP, 5555));
    drop(step);
    HEAP.step();
    HEAP.flush();
}

#[test]
fn what_exit_handlers_do_after_the_end_is_left_out() {
    let test = "what_exit_handlers_do_after_the_end_is_left_out";
    if is_child(test) {
        // Handlers run in reverse: this one was there before the recording began.
        // SAFETY: `late` may be called from any thread.
        assert_eq!(unsafe { libc::atexit(late) }, 0);
        HEAP.step();
        alloc(&HEAP, 100);
        return;
    }
    let scene = Scene::new(test);
    scene.run_well();
    let events = [
        recorder_support::step(0),
        a(0, 100),
        recorder_support::step(1),
    ];
    assert_eq!(scene.trace().events(), events);
    assert_eq!(scene.last_line(), EXIT);
}
