//! The parts of the process heap that are there once for each process or thread: the shared state,
//! the thread's own, and how both learn that a thread ends or the process forks.
//!
//! The thread's part is a constant without a destructor, so it can be used at any moment of a
//! thread's life, before `main` and inside destructors of other thread-local values too. That a
//! thread ends is told by a destructor of a pthread key, which runs after those of Rust.

use std::cell::UnsafeCell;

use larder_core::Locked;

use crate::arena::Yield;
use crate::local::Local;
use crate::os::Native;
use crate::process::Process;
use crate::step;

/// Addresses to reserve at first. They cost nothing; where the system refuses, fewer are taken.
const ARENA_BYTES: usize = if usize::BITS >= 64 {
    64 << 30
} else {
    256 << 20
};

/// The heap of this process.
pub(crate) static PROCESS: Process<Native> = Process::new(Native, ARENA_BYTES);

thread_local! {
    static LOCAL: UnsafeCell<Local> = const { UnsafeCell::new(Local::new()) };
}

/// Runs `f` with the thread's part. `f` must not come back here.
///
/// # Safety
/// Not called from a signal handler that may have interrupted the heap, nor from inside `f`.
#[inline(always)]
pub(crate) unsafe fn with_local<R>(f: impl FnOnce(&mut Local) -> R) -> R {
    LOCAL.with(|local| {
        // SAFETY: the thread's own, and the caller promises that nobody else uses it now.
        f(unsafe { &mut *local.get() })
    })
}

/// The key whose destructor tells that a thread ends; `Err` if the system has no key left.
static KEY: Locked<Option<Result<libc::pthread_key_t, ()>>, Yield> = Locked::new(None);

/// Arranges for the calling thread's heap to be parked when it ends; whether that was possible.
pub(crate) fn at_thread_exit() -> bool {
    let key = KEY.with(|key| *key.get_or_insert_with(make_key));
    let Ok(key) = key else {
        return false;
    };
    // Any value that is not null makes the destructor run.
    let some = (&raw const KEY).cast();
    // SAFETY: the key exists.
    unsafe { libc::pthread_setspecific(key, some) == 0 }
}

/// Once in the life of a process.
fn make_key() -> Result<libc::pthread_key_t, ()> {
    // SAFETY: the handlers are functions of this library, which is never unloaded while its heap
    // is in use. If they cannot be registered, a child of a threaded process may hang: nothing
    // that could be done about it here.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    let mut key = 0;
    // SAFETY: the key goes into a variable of ours.
    match unsafe { libc::pthread_key_create(&mut key, Some(end_of_thread)) } {
        0 => Ok(key),
        _ => Err(()),
    }
}

extern "C" fn end_of_thread(_: *mut libc::c_void) {
    step::end_of_thread();
    // SAFETY: called by the C library between two calls of the program.
    unsafe { with_local(|local| local.end(&PROCESS)) };
}

extern "C" fn before_fork() {
    // SAFETY: the thread is in `fork` and holds no lock of ours.
    unsafe { KEY.lock_across_fork() };
    // SAFETY: the same.
    unsafe { PROCESS.lock_all() };
}

extern "C" fn after_fork() {
    // SAFETY: locked by before_fork.
    unsafe { PROCESS.unlock_all() };
    // SAFETY: the same.
    unsafe { KEY.unlock_across_fork() };
}

extern "C" fn in_child() {
    after_fork();
    // SAFETY: called by the C library inside `fork`.
    let mine = unsafe { with_local(|local| local.heap()) };
    // SAFETY: this is the only thread of the child, whose memory is a copy of the parent's.
    unsafe { PROCESS.pool.park_orphans(mine) };
    step::in_child();
}

const _: () = assert!(size_of::<Local>() < 1600, "thread-local memory is scarce");
const _: () = assert!(!std::mem::needs_drop::<Local>());
