//! What runs when a thread ends: the system calls `end_of_thread`, once the thread has asked for that by the
//! *exit key*. The thread's step ends, its heap is parked for the next thread, and the purger hears of what it left.
//!
//! The key is made and forks are watched when the program or the library begins, on Linux, or at the first allocation
//! before: then no free asks the C library for it, and fork handlers that the program registers run before the heap's
//! takes its locks. No lock is held meanwhile, as the system may allocate. The library is pinned when it begins, never by
//! an allocation: one that comes before belongs to a library that was loaded with the program and is never unloaded.

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

/// The key by which threads tell of their end. Written once, by whoever changes `state` to `MAKING`, and read once it
/// is `MADE`.
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

/// Whether the system tells of a thread's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Yes,
    /// The system has no key left.
    Never,
    /// Another thread makes the key just now.
    NotYet,
}

/// Makes the exit key if nobody has, and has forks wait for the heap's locks.
#[inline]
pub(crate) fn prepare() {
    // Relaxed: whoever reads the key looks again.
    if EXIT_KEY.state.load(Ordering::Relaxed) == UNMADE {
        prepare_first();
    }
}

#[cold]
fn prepare_first() {
    let begins = (EXIT_KEY.state)
        // Relaxed: nothing is read on the strength of it.
        .compare_exchange(UNMADE, MAKING, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok();
    if !begins {
        return;
    }
    watch_forks::<ProcessForks>();
    let key = make_key::<HeapOfThread>();
    // SAFETY: this thread alone changed the state to MAKING, and nobody reads the key before it is MADE.
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
    // Not by an allocation: the loader's functions may be those of a tool that allocates under a lock of its own.
    pin_library();
}

/// Has the calling thread's end told.
pub(super) fn at_thread_exit() -> Told {
    prepare();
    // Acquire: the key is written.
    if EXIT_KEY.state.load(Ordering::Acquire) != MADE {
        return Told::NotYet;
    }
    // SAFETY: the key is made, and is not written any more.
    match unsafe { *EXIT_KEY.key.get() } {
        Some(key) if set_key(key) => Told::Yes,
        _ => Told::Never,
    }
}

/// Has the calling thread's end told, with a heap or without.
pub(crate) fn tell_of_end() {
    attach_now();
    at_thread_exit();
}

/// What the calling thread has of the heap, when it ends.
struct HeapOfThread;

impl ThreadEnds for HeapOfThread {
    unsafe fn end_of_thread() {
        step::end_of_thread();
        // SAFETY: called by the system between two calls of the program.
        unsafe { with_local(|local| local.end(&PROCESS)) };
        purge::thread_ended();
    }
}
