//! [`Sleep`]: how threads wait for the heap's locks.

use larder_core::Wait;
use larder_core::sync::{AtomicU32, AtomicUsize, Ordering};

use super::tls;
use crate::os;

/// Waits for a lock by spinning for a few microseconds, then by sleeping until the holder wakes a sleeper:
/// the holder may have lost the processor, or be in a system call. `GROUP` says with which other locks a fork takes it.
pub(crate) struct Sleep<const GROUP: usize = OF_HEAP>;

/// The locks of the heap, and those of scopes: each group has fork handlers of its own.
pub(crate) const OF_HEAP: usize = 0;
pub(crate) const OF_SCOPES: usize = 1;
const GROUPS: usize = 2;

/// How often a thread slept for a lock.
static SLEEPS: AtomicU32 = AtomicU32::new(0);

/// By group, the thread that keeps its locks across a fork, told by the address of its thread-local part; 0 for none.
/// Written by a thread that has all of them.
static KEEPERS: [AtomicUsize; GROUPS] = [const { AtomicUsize::new(0) }; GROUPS];

impl Sleep {
    /// A number that changes whenever a thread sleeps for any lock, for whoever takes one again and
    /// again and could keep the others out.
    pub(crate) fn count() -> u32 {
        // Relaxed: a hint.
        SLEEPS.load(Ordering::Relaxed)
    }
}

impl<const GROUP: usize> Sleep<GROUP> {
    /// Says that the calling thread keeps the group's locks from now on, for a fork, or is about to unlock them. It has
    /// all of them.
    pub(crate) fn keep_locks(keeps: bool) {
        let thread = if keeps { this_thread() } else { 0 };
        // Relaxed: only the thread itself finds its own address here, and locks order the rest.
        Self::keeper().store(thread, Ordering::Relaxed);
    }

    /// Whether the calling thread keeps the group's locks.
    fn keeps_locks() -> bool {
        Self::keeper().load(Ordering::Relaxed) == this_thread()
    }

    const fn keeper() -> &'static AtomicUsize {
        &KEEPERS[GROUP]
    }
}

/// A number that no other running thread has.
fn this_thread() -> usize {
    tls::local().addr()
}

impl<const GROUP: usize> Wait for Sleep<GROUP> {
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

    const KEEPS_LOCKS: Option<fn() -> bool> = Some(Self::keeps_locks);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_that_fork_at_once_keep_each_its_own_locks() {
        Sleep::<OF_HEAP>::keep_locks(true);
        let other = std::thread::spawn(|| {
            Sleep::<OF_SCOPES>::keep_locks(true);
            let kept = [
                Sleep::<OF_HEAP>::keeps_locks(),
                Sleep::<OF_SCOPES>::keeps_locks(),
            ];
            Sleep::<OF_SCOPES>::keep_locks(false);
            kept
        });
        assert_eq!(other.join().unwrap(), [false, true]);
        assert!(Sleep::<OF_HEAP>::keeps_locks());
        Sleep::<OF_HEAP>::keep_locks(false);
    }
}
