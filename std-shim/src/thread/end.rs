//! The end of a thread: the system calls `end_of_thread` for each thread that has set the *exit
//! key*. The thread's step ends, its heap is parked for the next thread, and the purger counts the
//! memory that the thread leaves.
//!
//! On Linux, the key is made and the fork handlers are registered when the program or the library
//! begins, or at the first allocation if that comes earlier. So no free requests the key from the C
//! library, and fork handlers that the program registers run before the heap's handler takes its
//! locks. No lock is held while registering, because the system may allocate. The library is pinned
//! when it begins, never by an allocation: an earlier allocation belongs to a library that was
//! loaded with the program and is never unloaded.

use core::cell::UnsafeCell;

use larder_core::sync::{AtomicU32, Ordering};

use super::attach::{attach_now, with_local};
#[cfg(all(target_os = "linux", not(miri)))]
use crate::os::pin_library;
use crate::os::{Key, ThreadEnds, make_key, set_key, watch_forks};
use crate::process::PROCESS;
use crate::process::fork::ProcessForks;
use crate::purge;
use crate::step;

const UNMADE: u32 = 0;
const MAKING: u32 = 1;
const MADE: u32 = 2;

/// The key that reports the ends of threads. Written once, by the thread that changes `state` to
/// `MAKING`, and read once it is `MADE`.
struct ExitKey {
    state: AtomicU32,
    /// `None` if the system has no key left.
    key: UnsafeCell<Option<Key>>,
}

// SAFETY: `state` orders the one write of the key before all reads.
unsafe impl Sync for ExitKey {}

static EXIT_KEY: ExitKey = ExitKey {
    state: AtomicU32::new(UNMADE),
    key: UnsafeCell::new(None),
};

/// Whether the system reports a thread's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExitHook {
    Yes,
    /// The system has no key left.
    Never,
    /// Another thread is making the key.
    NotYet,
}

/// Makes the exit key and registers the fork handlers, unless that was done before.
#[inline]
pub(crate) fn prepare() {
    // Relaxed: `at_thread_exit` loads the state again with acquire before it reads the key.
    if EXIT_KEY.state.load(Ordering::Relaxed) == UNMADE {
        prepare_first();
    }
}

#[cold]
fn prepare_first() {
    let begins = (EXIT_KEY.state)
        // Relaxed: no data is read after this.
        .compare_exchange(UNMADE, MAKING, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok();
    if !begins {
        return;
    }
    watch_forks::<ProcessForks>();
    let key = make_key::<HeapOfThread>();
    // SAFETY: this thread alone changed the state to MAKING, and nothing reads the key before it is
    // MADE.
    unsafe { *EXIT_KEY.key.get() = key };
    // Release: the key is written.
    EXIT_KEY.state.store(MADE, Ordering::Release);
}

/// Prepares when the program or the library begins, before its own constructors.
#[cfg(all(target_os = "linux", not(miri)))]
#[used]
#[unsafe(link_section = ".init_array.00001")]
static BEGIN: extern "C" fn() = begin;

#[cfg(all(target_os = "linux", not(miri)))]
extern "C" fn begin() {
    prepare();
    // Pinned here and not by an allocation, because the loader's functions may belong to a tool
    // that allocates under its own lock.
    pin_library();
}

/// Requests a report of the calling thread's end.
pub(super) fn at_thread_exit() -> ExitHook {
    prepare();
    // Acquire: the key is written.
    if EXIT_KEY.state.load(Ordering::Acquire) != MADE {
        return ExitHook::NotYet;
    }
    // SAFETY: the key is made, and is not written any more.
    match unsafe { *EXIT_KEY.key.get() } {
        Some(key) if set_key(key) => ExitHook::Yes,
        _ => ExitHook::Never,
    }
}

/// Requests a report of the calling thread's end, whether or not the thread gets a heap.
pub(crate) fn tell_of_end() {
    attach_now();
    at_thread_exit();
}

/// The calling thread's part of the heap, when the thread ends.
struct HeapOfThread;

impl ThreadEnds for HeapOfThread {
    unsafe fn end_of_thread() {
        step::end_of_thread();
        // SAFETY: called by the system between two calls of the program.
        unsafe { with_local(|local| local.end(&PROCESS)) };
        purge::thread_ended();
    }
}
