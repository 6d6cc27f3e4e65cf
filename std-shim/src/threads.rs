//! The parts of the process heap that are there once for each process or thread: the shared state,
//! the thread's own, and how both learn that a thread ends or the process forks.
//!
//! The thread's part is a constant without a destructor, so it can be used at any moment of a
//! thread's life, before `main` and inside destructors of other thread-local values too. When a
//! thread ends the system tells ([`crate::os`]).

use larder_core::Locked;

use crate::local::Local;
use crate::os::{FIRST_ARENA_BYTES, Key, Moments, Native, make_key, pin_library, set_key};
use crate::process::Process;
use crate::purge;
use crate::step;
use crate::thread_part;
use crate::waiting::Sleep;

/// The heap of this process.
pub(crate) static PROCESS: Process<Native> = Process::new(Native, FIRST_ARENA_BYTES);

/// Runs `f` with the thread's part. `f` must not come back here.
///
/// # Safety
/// Not called from a signal handler that may have interrupted the heap, nor from inside `f`.
#[inline(always)]
pub(crate) unsafe fn with_local<R>(f: impl FnOnce(&mut Local) -> R) -> R {
    // SAFETY: the thread's own, and the caller promises that nobody else uses it now.
    f(unsafe { &mut *thread_part::local() })
}

/// By which threads tell of their end; an inner `None` if the system has no key left.
static KEY: Locked<Option<Option<Key>>, Sleep> = Locked::new(None);

/// The key, made by the first that asks. The library is pinned then, when no lock is held: the loader may
/// allocate.
fn key() -> Option<Key> {
    let mut is_first = false;
    let key = KEY.with(|key| {
        *key.get_or_insert_with(|| {
            is_first = true;
            make_key::<Heap>()
        })
    });
    if is_first {
        pin_library();
    }
    key
}

/// Arranges for the calling thread's heap to be parked when it ends; whether that was possible.
fn at_thread_exit() -> bool {
    key().is_some_and(set_key)
}

/// Gives the calling thread a heap, if it has none yet. Called before its first slow path, by no function
/// that has the thread's part: the system may allocate here.
#[inline]
pub(crate) fn attach() {
    // SAFETY: called by the verbs of the heap, which have left the thread's part; here and below.
    if let Some(heap) = unsafe { with_local(|local| local.begin_attach(&PROCESS)) } {
        let end_is_told = at_thread_exit();
        // SAFETY: called by the verbs of the heap, which have left the thread's part.
        unsafe { with_local(|local| local.attach(heap, end_is_told, &PROCESS)) };
    }
}

/// Has the calling thread's end told, with a heap or without.
pub(crate) fn tell_of_end() {
    attach();
    at_thread_exit();
}

/// Has forks wait for the heap's locks, for who uses its arenas and no thread's heap.
#[cfg(feature = "allocator-api2")]
pub(crate) fn watch_forks() {
    key();
}

/// The heap of the process at the moments that the system tells of.
struct Heap;

impl Moments for Heap {
    unsafe fn end_of_thread() {
        step::end_of_thread();
        // SAFETY: called by the system between two calls of the program.
        unsafe { with_local(|local| local.end(&PROCESS)) };
        purge::thread_ended();
    }

    unsafe fn before_fork() {
        // SAFETY: the thread is in `fork` and holds no lock of ours.
        unsafe { KEY.lock_across_fork() };
        // Fork handlers that were registered before ours run after this one, and may allocate.
        Sleep::keep_locks(true);
        // SAFETY: the thread is in `fork` and holds no lock of ours.
        unsafe { PROCESS.lock_all() };
    }

    unsafe fn after_fork() {
        // SAFETY: locked by before_fork.
        unsafe { PROCESS.unlock_all() };
        Sleep::keep_locks(false);
        // SAFETY: locked by before_fork.
        unsafe { KEY.unlock_across_fork() };
    }

    unsafe fn in_child() {
        // SAFETY: the caller's promise.
        unsafe { Self::after_fork() };
        // SAFETY: called by the system inside `fork`.
        let mine = unsafe { with_local(|local| local.heap()) };
        // SAFETY: this is the only thread of the child, whose memory is a copy of the parent's.
        unsafe { PROCESS.pool.park_orphans(mine) };
        step::in_child();
        PROCESS.purger.in_child();
        for arena in PROCESS.arenas() {
            arena.in_child();
        }
    }
}

const _: () = assert!(size_of::<Local>() <= 64, "thread-local memory is scarce");
const _: () = assert!(!std::mem::needs_drop::<Local>());
