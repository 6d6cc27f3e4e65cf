//! Rounds of threads and forks: nothing is left behind and nothing hangs, with and without the heap's background
//! thread.
//!
//! 300 rounds; 10,000 with `LARDER_ROUNDS=all`. Nothing is timed: the number of heaps is bounded by the number of
//! threads, and the memory left at the end, once all idle memory is released, may not exceed what was left after half
//! of the rounds by more than [`SLACK_BYTES`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use crate::HEAP;
use crate::common::{KIB, MIB, is_long, resident_bytes};
use crate::forks::in_a_child;
use crate::runner::{Case, Variables};

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "rounds of threads that only free leave nothing behind",
        only_free,
    )
    .with(BACKGROUND),
    Case::new(
        "rounds of threads made and joined leave nothing behind",
        work,
    )
    .with(BACKGROUND),
    Case::new(
        "rounds of forks whose handlers wait for a lock whose holder allocates",
        fork,
    )
    .with(BACKGROUND),
];

const BACKGROUND: &[Variables] = &[
    &[("LARDER_BACKGROUND_PURGE", "no")],
    &[("LARDER_BACKGROUND_PURGE", "yes")],
];

/// Memory that the system and the heap keep, such as stacks: 200 bytes a round in the long form.
const SLACK_BYTES: u64 = MIB as u64;

const THREADS: usize = 4;

const SIZES: [usize; 7] = [8, 100, 900, 5000, 30 * KIB, 200 * KIB, 3 * MIB];

fn blocks() -> Vec<Vec<u8>> {
    SIZES.iter().map(|&size| vec![1; size]).collect()
}

/// Runs all rounds. With `threads` threads at work beside the main thread, there may be at most `threads + 1` heaps.
fn repeat(threads: usize, mut round: impl FnMut()) {
    let rounds = if is_long() { 10_000 } else { 300 };
    // The heap also releases idle memory by itself, at times that depend on the machine's load, so trim first.
    let mut half = || {
        (0..rounds / 2).for_each(|_| round());
        HEAP.trim();
        resident_bytes()
    };
    let (before, after) = (half(), half());
    let heaps = HEAP.stats().heaps;
    assert!(
        heaps <= threads as u64 + 1,
        "{heaps} heaps for {threads} threads"
    );
    assert!(
        after <= before + SLACK_BYTES,
        "{before} bytes after half of the rounds, {after} after all"
    );
}

/// Runs one thread for each value. All values exist before the first thread begins, so that every round needs the same
/// amount of memory.
fn run_each<T: Send + 'static>(values: [T; THREADS], run: fn(T)) {
    for thread in values.map(|value| thread::spawn(move || run(value))) {
        thread.join().unwrap();
    }
}

/// Threads that free what another thread allocated, and allocate nothing themselves except what starting them needs.
fn only_free() {
    repeat(THREADS, || {
        run_each([(); THREADS].map(|()| blocks()), drop);
    });
}

/// Threads that allocate at the same time.
fn work() {
    repeat(THREADS, || {
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

/// The thread that holds the lock while the process forks.
static HOLDER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// Waits for a lock whose holder allocates before it releases the lock. Registered before `main`.
pub(crate) extern "C" fn before_fork() {
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

pub(crate) extern "C" fn after_fork() {
    if IS_ON.load(Ordering::Relaxed) {
        let holder = HOLDER.lock().unwrap().take();
        holder.unwrap().join().unwrap();
    }
}

fn fork() {
    IS_ON.store(true, Ordering::Relaxed);
    // One thread besides the main thread: the lock's holder.
    repeat(1, || in_a_child(|| drop(blocks())));
}
