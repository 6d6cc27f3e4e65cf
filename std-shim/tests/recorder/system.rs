//! A recording and its process: threads, forks, exits and signals.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use larder_trace::Event;

use crate::blocks::{Block, alloc, free, resize};
use crate::common::Random;
use crate::scene::{Scene, Sums};
use crate::{HEAP, MANY, allocate_many};

pub(crate) const PARTS: &[(&str, fn())] = &[
    ("forks", || {
        let block = alloc(&HEAP, 100);
        // SAFETY: the child calls nothing that needs the parent's other threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            free(&HEAP, block);
            play_forked();
        }
        assert!(ended_well(child));
        free(&HEAP, alloc(&HEAP, 200));
    }),
    ("forks unseen", forks_unseen),
    ("forks beside a thread", forks_beside_a_thread),
    ("threads", exchange_blocks),
    ("flushes and is killed", || {
        allocate_many();
        HEAP.flush();
        alloc(&HEAP, 1);
        // SAFETY: ends this process at once.
        unsafe { libc::raise(libc::SIGKILL) };
    }),
    ("aborts", || {
        allocate_many();
        std::process::abort();
    }),
    ("exit handlers", || {
        // Handlers run in reverse order, and this one is older than the recording's.
        // SAFETY: `late` may be called from any thread.
        assert_eq!(unsafe { libc::atexit(late) }, 0);
        HEAP.step();
        alloc(&HEAP, 100);
    }),
    ("few random calls", || random_calls(7, 500)),
    ("random calls", || random_calls(11, 60_000)),
];

/// Allocates, frees and resizes at random, and prints the totals.
fn random_calls(seed: u64, calls: usize) {
    let mut random = Random::new(seed);
    let mut sums = Sums::default();
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..calls {
        let doubling = random.next(18);
        let bytes = 1 + random.next(1 << doubling);
        let choice = random.next(5);
        if choice < 3 {
            live.push(alloc(&HEAP, bytes));
            sums.add(bytes as u64);
            continue;
        }
        if live.is_empty() {
            continue;
        }
        let block = live.swap_remove(random.next(live.len()));
        let before = block.layout.size() as u64;
        if choice == 3 {
            free(&HEAP, block);
            sums.take(before);
            continue;
        }
        let resized = resize(&HEAP, block, bytes);
        live.push(resized);
        if resized.start != block.start {
            sums.add(bytes as u64);
            sums.take(before);
        } else if bytes as u64 != before {
            sums.take(before);
            sums.add(bytes as u64);
        }
    }
    println!("{sums:?}");
}

#[test]
fn the_same_program_writes_the_same_trace_again_over_a_longer_file() {
    let scene = Scene::new("few random calls");
    scene.run_well();
    let first = scene.text();
    fs::write(scene.path("program.trace"), format!("{first}{first}")).unwrap();
    scene.run_well();
    assert_eq!(scene.text(), first);
}

#[test]
fn a_long_trace_adds_up_to_what_the_program_counted_itself() {
    let scene = Scene::new("random calls");
    let child = scene.run_well();
    let sums = Sums::of(&scene.trace());
    child.assert_said(&sums);
    // Long enough for many writes and a table that grew more than once.
    assert!(scene.text().len() > 10 * 64 * 1024);
    assert!(sums.allocs - sums.frees > 10_000);
}

/// Waits for a forked child. Returns whether it succeeded.
fn ended_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` may be written.
    let found = unsafe { libc::waitpid(child, &raw mut status, 0) };
    found == child && status == 0
}

/// Makes every call of a recorder in a forked child, and exits. An alarm ends a child that hangs.
fn play_forked() -> ! {
    // SAFETY: sets a timer.
    unsafe { libc::alarm(300) };
    allocate_many();
    HEAP.step();
    let step = larder::step();
    free(&HEAP, alloc(&HEAP, 77));
    drop(step);
    HEAP.flush();
    // SAFETY: ends this process after its exit handlers.
    unsafe { libc::exit(0) }
}

#[test]
fn a_forked_child_writes_nothing_into_its_parents_trace() {
    let scene = Scene::new("forks");
    scene.run_well();
    assert_eq!(scene.events(), "a 0 100, a 1 200, f 1");
    assert_eq!(scene.end(), "the program exits");
}

fn forks_unseen() {
    alloc(&HEAP, 100);
    #[cfg(target_os = "linux")]
    // SAFETY: a fork without fork handlers; this thread holds no lock.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    #[cfg(not(target_os = "linux"))]
    let child = -1;
    if child == 0 {
        play_forked();
    }
    assert!(ended_well(libc::pid_t::try_from(child).unwrap()));
    alloc(&HEAP, 200);
}

#[cfg(target_os = "linux")]
#[test]
fn a_child_forked_behind_the_c_librarys_back_writes_nothing_either() {
    let scene = Scene::new("forks unseen");
    scene.run_well();
    assert_eq!(scene.events(), "a 0 100, a 1 200");
}

/// Forks repeatedly while another thread allocates; each child allocates too.
fn forks_beside_a_thread() {
    let done = AtomicBool::new(false);
    alloc(&HEAP, 100);
    let well = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                free(&HEAP, alloc(&HEAP, 24));
            }
        });
        let well = (0..100).all(|_| {
            // SAFETY: the child only allocates, which the system's heap allows.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: sets a timer, which ends a child that hangs.
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
    let scene = Scene::new("forks beside a thread");
    scene.run_well();
    let trace = scene.trace();
    let forked = |event: &Event| matches!(event, Event::Alloc { bytes: 48, .. });
    assert!(!trace.events().iter().any(forked));
    assert_eq!(Sums::of(&trace).live_bytes, 100);
}

#[test]
fn without_a_recording_a_forked_child_has_nobody_to_wait_for() {
    let scene = Scene::new("forks beside a thread");
    scene.with("LARDER_RECORD", "").run_well();
}

fn exchange_blocks() {
    // Blocks that any of the threads may free.
    let pool: Mutex<Vec<Block>> = Mutex::default();
    let sums = thread::scope(|scope| {
        let pool = &pool;
        let start = |number| scope.spawn(move || exchange(number, pool));
        let threads: Vec<_> = (0..4).map(start).collect();
        let parts = threads.into_iter().map(|thread| thread.join().unwrap());
        parts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    });
    println!("{sums:?}");
}

/// Allocates, resizes, and frees blocks of all threads. Returns the number of allocations and their
/// bytes. A resize changes the size, so it counts as an allocation and a free even in place.
fn exchange(number: usize, pool: &Mutex<Vec<Block>>) -> (u64, u64) {
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
        // The block that this thread has just added is usually left for another thread.
        let first = pool.lock().unwrap().swap_remove(0);
        free(&HEAP, first);
    }
    (calls, bytes)
}

#[test]
fn threads_leave_one_trace_in_which_every_free_has_its_alloc() {
    let scene = Scene::new("threads");
    let child = scene.run_well();
    let sums = Sums::of(&scene.trace());
    child.assert_said((sums.allocs, sums.bytes));
    assert_eq!((sums.frees, sums.live_bytes), (sums.allocs, 0));
    assert!(sums.allocs > 40_000);
}

#[test]
fn a_killed_program_leaves_whole_lines_and_all_up_to_its_last_flush() {
    let scene = Scene::new("flushes and is killed");
    assert_eq!(scene.run().0.status.signal(), Some(libc::SIGKILL));
    assert_eq!(scene.trace().allocations() as usize, MANY);
}

#[test]
fn a_killed_program_that_never_flushed_leaves_what_was_written_in_whole_lines() {
    let scene = Scene::new("aborts");
    assert_eq!(scene.run().0.status.signal(), Some(libc::SIGABRT));
    let allocations = scene.trace().allocations() as usize;
    assert!((1..MANY).contains(&allocations), "{allocations}");
}

/// Called at exit after the recording has ended.
extern "C" fn late() {
    let step = larder::step();
    free(&HEAP, alloc(&HEAP, 5555));
    drop(step);
    HEAP.step();
    HEAP.flush();
}

#[test]
fn what_exit_handlers_do_after_the_end_is_left_out() {
    let scene = Scene::new("exit handlers");
    scene.run_well();
    assert_eq!(scene.events(), "s 0, a 0 100, s 1");
    assert_eq!(scene.end(), "the program exits");
}
