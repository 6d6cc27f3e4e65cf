//! Calls from the cold paths of allocations and frees, and the purge thread.

use core::ffi::c_void;
use core::ptr;

use super::purger::{Next, tick_ms};
use crate::os::background::{be_ordinary, coarse_ms, name_thread, sleep_ns, start_thread};
use crate::process::PROCESS;

/// Bytes counted as freed for a thread that ends. Most threads leave less.
const THREAD_BYTES: usize = 64 << 10;

/// Counts memory that was freed beyond the caches, and wakes the purge thread if it is enough.
/// Called by a thread that holds no lock and does not use its part. Neither waits nor calls other
/// code (PURGE3).
#[inline]
pub(crate) fn after_free(bytes: usize) {
    if PROCESS.purger.counts() {
        count_freed(bytes);
    }
}

#[cold]
#[inline(never)]
fn count_freed(bytes: usize) {
    PROCESS.purger.freed(bytes, &PROCESS.tuning);
}

/// Counts the memory that an ending thread leaves as freed. Called by that thread.
pub(crate) fn thread_ended() {
    after_free(THREAD_BYTES);
    PROCESS.purger.wake_if_alone();
}

/// Starts the purge thread if one is wanted, and does a step of the due work. Called after the cold
/// path has found a block of `bytes` bytes and before the program touches it, by a thread that
/// holds no lock and does not use its part.
#[inline]
pub(crate) fn after_alloc(bytes: usize) {
    let purger = &PROCESS.purger;
    if purger.wants_thread() {
        start();
    }
    if purger.is_inline() || purger.has_work() || PROCESS.memory_limit.is_due() {
        work(bytes);
    }
}

#[cold]
#[inline(never)]
fn work(bytes: usize) {
    PROCESS.work(bytes, coarse_ms());
}

#[cold]
#[inline(never)]
fn start() {
    // The system may allocate during the call; that allocation does not start another thread.
    if PROCESS.purger.begin_start() && !start_thread(run) {
        PROCESS.purger.refused();
        // Two ticks: the first ages young memory, the second returns it.
        PROCESS.purger.owe_ticks(2, coarse_ms());
    }
}

/// Runs the purge thread: ticks until nothing is idle, then waits, or ends if too little is in use.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    be_ordinary();
    name_thread();
    let (purger, tuning) = (&PROCESS.purger, &PROCESS.tuning);
    let mut due = coarse_ms();
    while !purger.ends(tuning) {
        let (now, tick) = (coarse_ms(), tick_ms(tuning));
        // A long tick does not delay the next one, but the next one never follows immediately.
        due = due.saturating_add(tick).max(now.saturating_add(tick / 4));
        sleep_ns((due - now).saturating_mul(1_000_000));
        if purger.ends(tuning) {
            break;
        }
        PROCESS.tick();
        match purger.rest(look) {
            Next::Tick => {}
            Next::Wait => {
                purger.wait(tick);
                due = coarse_ms();
            }
            Next::End => break,
        }
    }
    ptr::null_mut()
}

fn look() -> Next {
    match PROCESS.has_idle() {
        true => Next::Tick,
        false => PROCESS.purger.next(PROCESS.live_bytes()),
    }
}
