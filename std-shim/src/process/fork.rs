//! Fork handlers. Before a fork every lock is taken, so that the child finds nothing half done;
//! after the fork all locks are released, in the parent and in the child. The child then frees the
//! heaps of threads that do not exist in it. Decorators have handlers of their own.

use larder_core::sync::Ordering;

use super::{PROCESS, Process};
use crate::os::{Forks, Os};
use crate::step;
use crate::thread::wait::{OF_HEAP, Sleep};
use crate::thread::with_local;

/// The fork handlers of the process heap.
pub(crate) struct ProcessForks;

impl Forks for ProcessForks {
    unsafe fn before_fork() {
        // SAFETY: the thread is in `fork` and holds no lock of ours.
        unsafe { PROCESS.lock_all() };
        // Fork handlers that were registered before ours run after this one, and may allocate.
        Sleep::<OF_HEAP>::keep_locks(true);
    }

    unsafe fn after_fork() {
        Sleep::<OF_HEAP>::keep_locks(false);
        // SAFETY: locked by before_fork.
        unsafe { PROCESS.unlock_all() };
    }

    unsafe fn in_child() {
        // SAFETY: the child's thread holds the locks, as in the parent, because of `before_fork`.
        unsafe { Self::after_fork() };
        // SAFETY: called by the system inside `fork`.
        let mine = unsafe { with_local(|local| local.heap()) };
        // SAFETY: this is the only thread of the child, whose memory is a copy of the parent's.
        unsafe { PROCESS.pool.park_orphans(mine) };
        // Relaxed: there is no other thread.
        PROCESS.forked.store(1, Ordering::Relaxed);
        step::in_child();
        PROCESS.memory_limit.in_child();
        PROCESS.purger.in_child(usize::from(!mine.is_null()));
        for arena in PROCESS.arenas() {
            arena.in_child();
        }
    }
}

impl<O: Os> Process<O> {
    /// Takes every lock, for a fork.
    ///
    /// # Safety
    /// The calling thread holds none of them, and calls nothing of this process before
    /// [`unlock_all`](Self::unlock_all).
    pub(crate) unsafe fn lock_all(&'static self) {
        // SAFETY: this thread holds none of the locks, and takes them in the order of
        // docs/ARCHITECTURE.md. While `adding` is held no arena is added, and while `settings` is
        // held no heap of steps.
        unsafe {
            self.work.lock_across_fork();
            self.pool.lock_all();
            self.meta.lock_across_fork();
            self.adding.lock_across_fork();
            self.arenas().for_each(|arena| arena.lock_across_fork());
            self.mappings.table.lock_across_fork();
            self.hardened.lock_across_fork();
            self.guard_pages.lock_across_fork();
            self.step_heaps.settings.lock_across_fork();
            self.step_heaps
                .iter()
                .for_each(|heap| heap.lock_across_fork());
        }
    }

    /// Releases the locks of [`lock_all`](Self::lock_all), in the parent or the child.
    ///
    /// # Safety
    /// The calling thread called `lock_all`.
    pub(crate) unsafe fn unlock_all(&'static self) {
        // SAFETY: each lock is this thread's because of `lock_all`; the last lock taken is
        // released first.
        unsafe {
            self.step_heaps
                .iter()
                .for_each(|heap| heap.unlock_across_fork());
            self.step_heaps.settings.unlock_across_fork();
            self.guard_pages.unlock_across_fork();
            self.hardened.unlock_across_fork();
            self.mappings.table.unlock_across_fork();
            self.arenas().for_each(|arena| arena.unlock_across_fork());
            self.adding.unlock_across_fork();
            self.meta.unlock_across_fork();
            self.pool.unlock_all();
            self.work.unlock_across_fork();
        }
    }
}
