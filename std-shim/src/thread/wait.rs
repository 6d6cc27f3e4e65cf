//! [`Sleep`]: how threads wait for the heap's locks.

use larder_core::Wait;
use larder_core::sync::{AtomicU32, AtomicUsize, Ordering};

use super::tls;
use crate::os;

/// Waits for a lock by spinning for a few microseconds, and then by sleeping until the holder wakes
/// a sleeper, because the holder may have lost the processor or be in a system call. A fork takes
/// the locks of one `GROUP` together.
pub(crate) struct Sleep<const GROUP: usize = OF_HEAP>;

/// The groups of locks: those of the heap and those of scopes, each with its own fork handlers.
pub(crate) const OF_HEAP: usize = 0;
pub(crate) const OF_SCOPES: usize = 1;
const GROUPS: usize = 2;

/// Number of times that any thread has slept for a lock.
static SLEEPS: AtomicU32 = AtomicU32::new(0);

/// For each group, the thread that keeps the group's locks across a fork, identified by the address
/// of its thread-local part; 0 for none. Written by a thread that holds all locks of the group.
static KEEPERS: [AtomicUsize; GROUPS] = [const { AtomicUsize::new(0) }; GROUPS];

impl Sleep {
    /// Returns a number that changes whenever a thread sleeps for any lock. It is for a thread that
    /// takes a lock again and again and could starve others.
    pub(crate) fn count() -> u32 {
        // Relaxed: a hint.
        SLEEPS.load(Ordering::Relaxed)
    }
}

impl<const GROUP: usize> Sleep<GROUP> {
    /// Sets whether the calling thread keeps the group's locks, for a fork. Called with all of them
    /// held, after locking and before unlocking.
    pub(crate) fn keep_locks(keeps: bool) {
        let thread = if keeps { this_thread() } else { 0 };
        // Relaxed: only the thread itself finds its own address here, and locks order the rest.
        Self::keeper().store(thread, Ordering::Relaxed);
    }

    /// Returns whether the calling thread keeps the group's locks.
    pub(crate) fn keeps_locks() -> bool {
        Self::keeper().load(Ordering::Relaxed) == this_thread()
    }

    const fn keeper() -> &'static AtomicUsize {
        &KEEPERS[GROUP]
    }
}

/// Returns a number that no other running thread has.
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
