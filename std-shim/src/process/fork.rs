//! Fork handlers. Before a fork every lock is taken, so that the child finds nothing half done;
//! after the fork all locks are released, in the parent and in the child. The child then frees the
//! heaps of threads that do not exist in it. Decorators have handlers of their own.
//!
//! # Invariants
//! * FORK1 slow allocations, frees and resizes, and steps of the purge work, wait for a fork under
//!   way before they take a lock ([`wait_for_fork`](Process::wait_for_fork)). Otherwise busy
//!   threads would take each lock again before the forking thread, which they woke, got a
//!   processor. A thread that holds a lock never waits for a fork: the fork waits for that lock.

use larder_core::Wait;
use larder_core::sync::{LockWord, Ordering};

use super::{PROCESS, Process};
use crate::os::{Forks, Os, wake_all};
use crate::step;
use crate::thread::wait::{OF_HEAP, Sleep};
use crate::thread::with_local;

/// Number of locks whose sleepers are woken only when all locks are released.
const DEFERRED_WAKES: usize = 64;

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
        // Relaxed, both: there is no other thread.
        PROCESS.forks.0.store(0, Ordering::Relaxed);
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
    /// Takes every lock, for a fork. Waits for calls under way; later ones wait for the fork (FORK1).
    ///
    /// # Safety
    /// The calling thread holds none of the locks, and calls nothing of this process before
    /// [`unlock_all`](Self::unlock_all).
    pub(crate) unsafe fn lock_all(&'static self) {
        // Relaxed: see `wait_for_fork`.
        self.forks.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the locks are released in `unlock_all`.
        unsafe {
            self.work.word().keep::<Sleep>();
            self.each_lock(&mut LockWord::keep::<Sleep>);
        }
    }

    /// Releases the locks of [`lock_all`](Self::lock_all), in the parent or the child. Only then
    /// wakes threads that sleep for them, because a woken thread may get this thread's processor.
    ///
    /// # Safety
    /// The calling thread called `lock_all`.
    pub(crate) unsafe fn unlock_all(&'static self) {
        let mut awaited: [Option<&LockWord>; DEFERRED_WAKES] = [None; DEFERRED_WAKES];
        let mut places = awaited.iter_mut();
        let mut release = |lock: &'static LockWord| {
            if lock.release_kept() {
                match places.next() {
                    Some(place) => *place = Some(lock),
                    None => lock.wake_one::<Sleep>(),
                }
            }
        };
        // SAFETY: only this thread keeps locks, because it holds `work`, which comes last.
        unsafe {
            self.each_lock(&mut release);
            release(self.work.word());
        }
        // Relaxed: as in `lock_all`.
        self.forks.0.fetch_sub(1, Ordering::Relaxed);
        (awaited.iter().flatten()).for_each(|lock| lock.wake_one::<Sleep>());
        wake_all(&self.forks.0);
    }

    /// Waits while a fork is under way, until one has ended or another has begun. One load if there
    /// is none. The caller holds no lock (FORK1).
    #[inline]
    pub(crate) fn wait_for_fork(&self) {
        // Relaxed: a hint, since locks keep a fork and the caller apart.
        let forks = self.forks.0.load(Ordering::Relaxed);
        if forks > 0 {
            self.sleep_for_fork(forks);
        }
    }

    #[cold]
    #[inline(never)]
    fn sleep_for_fork(&self, forks: u32) {
        #[cfg(test)]
        self.waits_for_forks.fetch_add(1, Ordering::Relaxed);
        // Other handlers of the forking thread may allocate.
        let may_go_on = Sleep::<OF_HEAP>::keeps_locks();
        // Relaxed: as in `wait_for_fork`.
        while !may_go_on && self.forks.0.load(Ordering::Relaxed) == forks {
            Sleep::<OF_HEAP>::sleep(&self.forks.0, forks);
        }
    }

    /// Runs `f` for every lock except `work`, in the order of docs/ARCHITECTURE.md. While `adding`
    /// is held no arena is added, and while `settings` is held no heap of steps.
    ///
    /// # Safety
    /// `f` releases a lock only if this thread has taken it.
    unsafe fn each_lock(&'static self, f: &mut dyn FnMut(&'static LockWord)) {
        // SAFETY: the caller's `f` releases only what this thread has taken.
        unsafe {
            self.pool.each_lock(f);
            f(self.meta.word());
            f(self.step_heaps.settings.word());
            self.step_heaps.iter().for_each(|heap| f(heap.lock()));
            f(self.adding.word());
            self.arenas().for_each(|arena| arena.each_lock(f));
            f(self.mappings.table.word());
            f(self.hardened.word());
            f(self.guard_pages.lock());
        }
    }
}
