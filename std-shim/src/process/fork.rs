//! Fork handlers. Before a fork every lock is taken, so that the child finds nothing half done;
//! after the fork all locks are released, in the parent and in the child. The child then frees the
//! heaps of threads that do not exist in it. Decorators have handlers of their own.

use larder_core::sync::{LockWord, Ordering};

use super::{PROCESS, Process};
use crate::os::{Forks, Os};
use crate::step;
use crate::thread::wait::{OF_HEAP, Sleep};
use crate::thread::with_local;

/// Maximum number of times that a fork waits for one lock at a time.
const FORK_ATTEMPTS: u32 = 8;
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
    /// Takes every lock, for a fork. While another thread keeps one for long, because it grows the
    /// heap or has lost its processor, all others are free, unless this has happened several times.
    ///
    /// # Safety
    /// The calling thread holds none of the locks, and calls nothing of this process before
    /// [`unlock_all`](Self::unlock_all).
    pub(crate) unsafe fn lock_all(&'static self) {
        // SAFETY: the lock is released in `unlock_all`.
        unsafe { self.work.word() }.keep::<Sleep>();
        for _ in 0..FORK_ATTEMPTS {
            let mut busy = None;
            let mut try_keep = |lock: &'static LockWord| {
                if busy.is_none() && !lock.try_keep::<Sleep>() {
                    busy = Some(lock);
                }
            };
            // SAFETY: the locks are released in `release_kept`.
            unsafe { self.each_lock(&mut try_keep) };
            let Some(busy) = busy else { return };
            self.release_kept();
            busy.lock::<Sleep>();
            busy.unlock::<Sleep>();
        }
        // SAFETY: the locks are released in `unlock_all`.
        unsafe { self.each_lock(&mut LockWord::keep::<Sleep>) };
    }

    /// Releases the locks of [`lock_all`](Self::lock_all), in the parent or the child.
    ///
    /// # Safety
    /// The calling thread called `lock_all`.
    pub(crate) unsafe fn unlock_all(&'static self) {
        self.release_kept();
        // SAFETY: taken by `lock_all`.
        let work = unsafe { self.work.word() };
        if work.release_kept() {
            work.wake_one::<Sleep>();
        }
    }

    /// Releases all kept locks except `work`. Only then wakes threads that sleep for them, because a
    /// woken thread may get this thread's processor.
    fn release_kept(&'static self) {
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
        // SAFETY: only this thread keeps locks, because it holds `work`.
        unsafe { self.each_lock(&mut release) };
        (awaited.iter().flatten()).for_each(|lock| lock.wake_one::<Sleep>());
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
            f(self.adding.word());
            self.arenas().for_each(|arena| arena.each_lock(f));
            f(self.mappings.table.word());
            f(self.hardened.word());
            f(self.guard_pages.lock());
            f(self.step_heaps.settings.word());
            self.step_heaps.iter().for_each(|heap| f(heap.lock()));
        }
    }
}
