//! Rounds of threads and forks in a program with this global allocator: nothing is left behind and nothing hangs,
//! with a thread of the heap's own and without.
//!
//! Each case runs in a process of its own. 300 rounds; 10,000 with `LARDER_ROUNDS=all`. Nothing is timed: the number
//! of heaps is bounded by the threads, and the memory left after all idle memory was released by that after half of
//! the rounds.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use common::{KIB, MIB, is_long, resident_bytes};
use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new().with_environment();

/// Set for a child: which case it is.
const CASE: &str = "HEAP_TEST_ROUNDS";

/// The system ends a child that hangs.
const LIMIT_SECONDS: libc::c_uint = 1200;

/// Memory that the system and the heap keep, such as a thread's stack: some 200 bytes a round in the long form.
const SLACK_BYTES: u64 = MIB as u64;

const THREADS: usize = 4;

const SIZES: [usize; 7] = [8, 100, 900, 5000, 30 * KIB, 200 * KIB, 3 * MIB];

fn rounds() -> usize {
    if is_long() { 10_000 } else { 300 }
}

fn blocks() -> Vec<Vec<u8>> {
    SIZES.iter().map(|&size| vec![1; size]).collect()
}

/// Makes all rounds. At most so many heaps are there for `threads` threads at work at once.
fn repeat(threads: usize, mut round: impl FnMut()) {
    // When idle memory goes back by itself depends on the load of the machine.
    let mut half = || {
        (0..rounds() / 2).for_each(|_| round());
        HEAP.trim();
        resident_bytes()
    };
    let (before, after) = (half(), half());
    let heaps = HEAP.stats().heaps;
    assert!(
        heaps <= threads as u64,
        "{heaps} heaps for {threads} threads"
    );
    assert!(
        after <= before + SLACK_BYTES,
        "{before} bytes after half of the rounds, {after} after all"
    );
}

/// Runs one thread for each value. All values are there before the first thread begins, so that each round needs as much.
fn run_each<T: Send + 'static>(values: [T; THREADS], run: fn(T)) {
    for thread in values.map(|value| thread::spawn(move || run(value))) {
        thread.join().unwrap();
    }
}

/// Threads that free what another one made, and allocate nothing of their own but what starts them.
fn only_free() {
    // The main thread of the test program waits, and has a heap, too.
    repeat(THREADS + 2, || {
        run_each([(); THREADS].map(|()| blocks()), drop);
    });
}

/// Threads that allocate at once.
fn work() {
    repeat(THREADS + 2, || {
        let all = Arc::new(Barrier::new(THREADS));
        run_each([(); THREADS].map(|()| Arc::clone(&all)), |all| {
            let held = blocks();
            all.wait();
            drop(held);
        });
    });
}

/// Whether the handlers below are active.
static IS_ON: AtomicBool = AtomicBool::new(false);

static LOCK: Mutex<()> = Mutex::new(());

/// The holder of the lock while the process forks.
static HOLDER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// Waits for a lock whose holder allocates before it lets go.
extern "C" fn before_fork() {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let (sender, receiver) = mpsc::channel();
    let holder = thread::spawn(move || {
        let held = LOCK.lock().unwrap();
        sender.send(()).unwrap();
        drop(blocks());
        drop(held);
    });
    receiver.recv().unwrap();
    drop(LOCK.lock().unwrap());
    *HOLDER.lock().unwrap() = Some(holder);
}

extern "C" fn after_fork() {
    if IS_ON.load(Ordering::Relaxed) {
        let holder = HOLDER.lock().unwrap().take();
        holder.unwrap().join().unwrap();
    }
}

/// Registers the handlers before the program begins.
extern "C" fn register() {
    // SAFETY: functions of the program.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), None) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

fn fork() {
    IS_ON.store(true, Ordering::Relaxed);
    // The one that forks, the main one, and the holder.
    repeat(3, || {
        // SAFETY: the child uses the heap, which is what is tested.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(blocks());
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our child, and a variable of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    });
}

const CASES: [(&str, fn()); 3] = [("free", only_free), ("work", work), ("fork", fork)];

/// Runs in a child; in the parent it does nothing.
#[test]
fn child() {
    let Ok(name) = env::var(CASE) else {
        return;
    };
    // SAFETY: has no conditions.
    unsafe { libc::alarm(LIMIT_SECONDS) };
    let (_, run) = CASES.iter().find(|case| case.0 == name).unwrap();
    run();
}

fn runs(case: &str) {
    for background in ["no", "yes"] {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]);
        command.env(CASE, case);
        let output = command
            .env("LARDER_BACKGROUND_PURGE", background)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{background}: {}\n{said}",
            output.status
        );
    }
}

#[test]
fn threads_that_only_free_leave_nothing_behind() {
    runs("free");
}

#[test]
fn threads_that_are_made_and_joined_leave_nothing_behind() {
    runs("work");
}

#[test]
fn fork_handlers_wait_for_a_lock_whose_holder_allocates() {
    runs("fork");
}
