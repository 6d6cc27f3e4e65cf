//! What threads of the program tell the purger on their slow paths, and the purge thread.

use core::ffi::c_void;
use core::ptr;

use super::purger::{Next, tick_ms};
use crate::os::background::{be_ordinary, coarse_ms, name_thread, sleep_ns, start_thread};
use crate::process::PROCESS;

/// What a thread that ends is counted with: mostly it leaves less.
const THREAD_BYTES: usize = 64 << 10;

/// Told after memory was freed past the caches, by a thread that holds no lock and has left its part. Neither waits nor
/// calls out (PURGE3).
#[inline]
pub(crate) fn freed(bytes: usize) {
    if PROCESS.purger.counts() {
        freed_unseen(bytes);
    }
}

#[cold]
#[inline(never)]
fn freed_unseen(bytes: usize) {
    PROCESS.purger.freed(bytes, &PROCESS.tuning);
}

/// Told when a thread ends, by that thread: what it leaves counts as freed.
pub(crate) fn thread_ended() {
    freed(THREAD_BYTES);
    PROCESS.purger.wake_if_alone();
}

/// Told after a block of so many bytes was found, before the program touches it, by a thread that holds no lock and has
/// left its part: starts the purge thread if it is wanted, and does a step of what there is to do.
#[inline]
pub(crate) fn found(bytes: usize) {
    let purger = &PROCESS.purger;
    if purger.wants_thread() {
        start();
    }
    if purger.is_inline() || purger.has_work() || PROCESS.within.is_due() {
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
    // The system may allocate meanwhile, and does not come here again.
    if PROCESS.purger.begin_start() && !start_thread(run) {
        PROCESS.purger.refused();
        // Twice: what is young grows old, and goes.
        PROCESS.purger.owe_ticks(2, coarse_ms());
    }
}

/// The purge thread: ticks until nothing is idle, then waits, or ends where too little is in use.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    be_ordinary();
    name_thread();
    let (purger, tick) = (&PROCESS.purger, tick_ms(&PROCESS.tuning));
    let mut due = coarse_ms();
    loop {
        let now = coarse_ms();
        // A tick that took long does not put the next one off, but never comes at once.
        due = due.saturating_add(tick).max(now.saturating_add(tick / 4));
        sleep_ns((due - now).saturating_mul(1_000_000));
        PROCESS.tick();
        match purger.rest(look) {
            Next::Tick => {}
            Next::Wait => {
                purger.wait(tick);
                due = coarse_ms();
            }
            Next::End => return ptr::null_mut(),
        }
    }
}

fn look() -> Next {
    match PROCESS.has_idle() {
        true => Next::Tick,
        false => PROCESS.purger.next(PROCESS.live_bytes()),
    }
}
