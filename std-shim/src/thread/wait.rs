//! [`Sleep`]: how threads wait for the heap's locks.

use larder_core::Wait;
use larder_core::sync::{AtomicU32, AtomicUsize, Ordering};

use super::tls;
use crate::os;

/// Waits for a lock by spinning for a few microseconds, then by sleeping until the holder wakes a sleeper:
/// the holder may have lost the processor, or be in a system call.
pub(crate) struct Sleep;

/// How often a thread slept for a lock.
static SLEEPS: AtomicU32 = AtomicU32::new(0);

/// The thread that keeps locks across a fork, told by the address of its thread-local part; 0 for none.
/// Written by whoever keeps some, so by one thread at a time.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// How many groups of locks it keeps.
static GROUPS: AtomicUsize = AtomicUsize::new(0);

impl Sleep {
    /// A number that changes whenever a thread sleeps for any lock, for whoever takes one again and
    /// again and could keep the others out.
    pub(crate) fn count() -> u32 {
        // Relaxed: a hint.
        SLEEPS.load(Ordering::Relaxed)
    }

    /// Says that the calling thread keeps a group of locks from now on, for a fork, or is about to unlock
    /// one. It holds one of them at least.
    pub(crate) fn keep_locks(keeps: bool) {
        // Relaxed: only the thread itself finds its own address here, and locks order the rest.
        let groups = GROUPS.load(Ordering::Relaxed);
        let groups = if keeps {
            groups + 1
        } else {
            groups.saturating_sub(1)
        };
        GROUPS.store(groups, Ordering::Relaxed);
        let thread = if groups > 0 { this_thread() } else { 0 };
        FORKING.store(thread, Ordering::Relaxed);
    }
}

/// A number that no other running thread has.
fn this_thread() -> usize {
    tls::local().addr()
}

impl Wait for Sleep {
    const SLEEPS: bool = true;

    fn wait() {
        core::hint::spin_loop();
    }

    fn sleep(word: &AtomicU32, seen: u32) {
        SLEEPS.fetch_add(1, Ordering::Relaxed);
        os::sleep_while(word, seen);
    }

    fn wake(word: &AtomicU32) {
        os::wake_one(word);
    }

    const KEEPS_LOCKS: Option<fn() -> bool> =
        Some(|| FORKING.load(Ordering::Relaxed) == this_thread());
}
