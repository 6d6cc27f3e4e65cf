//! What runs when a thread ends: the system calls `end_of_thread`, once the thread has asked for that by the
//! *exit key*. The thread's step ends, its heap is parked for the next thread, and the purger hears of what it left.

use larder_core::Locked;

use super::attach::{attach, with_local};
use super::wait::Sleep;
use crate::os::{Key, ThreadEnds, make_key, pin_library, set_key, watch_forks};
use crate::process::PROCESS;
use crate::process::fork::ProcessForks;
use crate::purge;
use crate::step;

/// By which threads tell of their end; an inner `None` if the system has no key left.
pub(crate) static EXIT_KEY: Locked<Option<Option<Key>>, Sleep> = Locked::new(None);

/// The key, made by the first that asks, who also has forks wait for the heap's locks. The library is pinned
/// then, when no lock is held: the loader may allocate.
pub(crate) fn exit_key() -> Option<Key> {
    let mut is_first = false;
    let key = EXIT_KEY.with(|key| {
        *key.get_or_insert_with(|| {
            is_first = true;
            watch_forks::<ProcessForks>();
            make_key::<HeapOfThread>()
        })
    });
    if is_first {
        pin_library();
    }
    key
}

/// Has the calling thread's end told; whether that was possible.
pub(super) fn at_thread_exit() -> bool {
    exit_key().is_some_and(set_key)
}

/// Has the calling thread's end told, with a heap or without.
pub(crate) fn tell_of_end() {
    attach();
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
