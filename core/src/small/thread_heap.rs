//! [`ThreadHeap`]: a thread cache, a span set and a remote-free queue, owned by one thread at a time; [`HeapPool`]:
//! all heaps, parked or owned.
//!
//! A heap is never freed: a span names the same owner for its whole life, and remote frees find the owner's queue
//! without asking whether the thread still runs. A thread that ends parks its heap and its thread cache; the next
//! thread that starts adopts both. There are therefore as many heaps as the largest number of threads that ever ran at
//! the same time.
//!
//! If very many threads run at the same time, a set for each would cost a page for each size class and thread. So some
//! heaps are *secondary*: they have a thread cache of their own and share the set of a *primary* heap with its owner
//! and other secondary heaps. A thread that gets a secondary heap gets the primary that the fewest threads use. If
//! another thread keeps that set locked, perhaps because it lost its processor, a call uses the set of another primary:
//! every set serves every cache.
//!
//! # Invariants
//! * HEAP1 a heap stays in the pool's list of all heaps once it has entered it.
//! * HEAP2 a heap is parked or has one owner: the thread that created it or got it from the pool.
//! * HEAP3 the set of a heap is touched only under the heap's lock: by owners of this heap and of others, by threads
//!   that trim or count, and by the fork handlers.
//! * HEAP4 the thread cache belongs to the owner alone and needs no lock. The exception is the bins of the long classes
//!   and the large blocks, which other threads may have taken under the heap's own lock (CACHE3); when the owner takes
//!   that lock, it has these back, and while it has entered `long`, they cannot be taken. `owned` says under that lock
//!   whether there is an owner. While there is none, the cache is touched under the lock.
//! * HEAP5 a secondary heap stays secondary, and its set stays empty. The thread that takes a secondary heap writes the
//!   heap's primary under the secondary heap's own lock, while the heap has no owner. The owner reads the primary
//!   without the lock.
//! * HEAP6 `threads` of a primary heap counts, under the pool's lock, the owned heaps that use its set.
//! * HEAP7 after a fork, the caches of threads that do not run in the child are `uncounted`: their lists are whole
//!   (CACHE2), but their counts may be wrong. The thread that takes the heap or its idle cache counts it first.
//!
//! Lock order: the holder of a heap's lock never takes the pool's; a secondary heap's lock comes before its
//! primary's.

mod pool;

use core::cell::UnsafeCell;
use core::ptr;

use super::large_cache::{ENTRIES, EntryWords};
use super::remote::RemoteQueue;
use super::span_set::{Policy, SpanSet};
use super::thread_cache::ThreadCache;
use crate::sync::{Cell, Locked, Spin, Wait};

pub use self::pool::HeapPool;

/// The parts of a heap that its lock protects.
#[derive(Debug)]
struct Parts {
    /// Spans and transfer caches.
    set: SpanSet,
    /// Whether the cache has an owner (HEAP4).
    owned: bool,
    /// Whether the cache must be counted before it is used (HEAP7).
    uncounted: bool,
    /// The hash of the first blocks in the bins of the long classes at the last call of `with_lost_bins`.
    first_long: usize,
    /// The entries of the large blocks at that call.
    large: EntryWords,
}

/// The parts of a thread cache that its owner has lost (CACHE3) and has not used for some time.
#[derive(Debug)]
pub struct LostBins {
    pub(super) cache: *mut ThreadCache,
    /// Whether the bins of the long classes are among them.
    pub(super) long: bool,
    /// The entries of the large blocks among them.
    pub(super) large: EntryWords,
}

impl Parts {
    const fn new(policy: Policy) -> Self {
        Self {
            set: SpanSet::new(policy),
            owned: true,
            uncounted: false,
            first_long: 0,
            large: [0; ENTRIES],
        }
    }

    /// Counts the heap's cache if that is due (HEAP7), which is O(blocks in the cache).
    fn count(&mut self, cache: &mut ThreadCache) {
        if core::mem::take(&mut self.uncounted) {
            // SAFETY: the lists are whole (CACHE2), and the cache belongs to the caller.
            unsafe { cache.recount(self.set.links()) };
        }
    }
}

// SAFETY: the cache's pointers lead to free blocks that belong to the cache and move with it.
unsafe impl Send for ThreadCache {}

/// A heap for one thread at a time.
#[repr(C, align(128))]
pub struct ThreadHeap<W: Wait = Spin> {
    /// This field is the first, so that its address is the heap's. It is alone in its cache lines, which belong to the
    /// owner.
    cache: UnsafeCell<ThreadCache>,
    remote_queue: Apart<RemoteQueue>,
    parts: Locked<Parts, W>,
    /// The primary of a secondary heap, otherwise null (HEAP5).
    primary: Cell<*const ThreadHeap<W>>,
    secondary: bool,
    /// The pool's links and a count of threads (HEAP6), under the pool's lock.
    parked: Cell<*const ThreadHeap<W>>,
    is_parked: Cell<bool>,
    all: Cell<*const ThreadHeap<W>>,
    primaries: Cell<*const ThreadHeap<W>>,
    threads: Cell<u32>,
}

/// A value in cache lines of its own.
#[repr(align(128))]
struct Apart<T>(T);

// SAFETY: the remote-free queue is atomic, the parts are locked, the links belong to the pool and are under its lock,
// and the cache belongs to one thread (HEAP4).
unsafe impl<W: Wait> Sync for ThreadHeap<W> {}

impl<W: Wait> Default for ThreadHeap<W> {
    fn default() -> Self {
        Self::new(Policy::BALANCED)
    }
}

impl<W: Wait> ThreadHeap<W> {
    /// Creates a heap without spans, owned by the caller.
    #[cfg(not(larder_loom))]
    pub const fn new(policy: Policy) -> Self {
        Self {
            cache: UnsafeCell::new(ThreadCache::new()),
            remote_queue: Apart(RemoteQueue::new()),
            parts: Locked::new(Parts::new(policy)),
            primary: Cell::new(ptr::null()),
            secondary: false,
            parked: Cell::new(ptr::null()),
            is_parked: Cell::new(false),
            all: Cell::new(ptr::null()),
            primaries: Cell::new(ptr::null()),
            threads: Cell::new(0),
        }
    }

    /// Creates a heap without spans, owned by the caller.
    #[cfg(larder_loom)]
    pub fn new(policy: Policy) -> Self {
        Self {
            cache: UnsafeCell::new(ThreadCache::new()),
            remote_queue: Apart(RemoteQueue::new()),
            parts: Locked::new(Parts::new(policy)),
            primary: Cell::new(ptr::null()),
            secondary: false,
            parked: Cell::new(ptr::null()),
            is_parked: Cell::new(false),
            all: Cell::new(ptr::null()),
            primaries: Cell::new(ptr::null()),
            threads: Cell::new(0),
        }
    }

    /// Sets the policy of a heap, and whether it is secondary. This must be called before the heap enters a pool. The
    /// caller owns a secondary heap only once it has entered a pool.
    pub fn prepare(&mut self, policy: Policy, secondary: bool) {
        self.parts.get_mut().set.set_policy(policy);
        self.secondary = secondary;
    }

    /// Returns whether the heap uses the set of another heap.
    pub const fn is_secondary(&self) -> bool {
        self.secondary
    }

    /// Returns the heap whose set this heap uses: itself, or its primary.
    ///
    /// # Safety
    /// The caller owns the heap, or holds its lock (HEAP5).
    unsafe fn primary(&self) -> &Self {
        // SAFETY: no thread writes the primary while the caller owns the heap or holds its lock (HEAP5).
        let primary = unsafe { Cell::read(&raw const self.primary) };
        // SAFETY: heaps are never freed (HEAP1).
        unsafe { primary.as_ref() }.unwrap_or(self)
    }

    /// Returns the queue in which other threads announce frees of this heap's blocks. The queue's address identifies
    /// the heap.
    pub const fn remote_queue(&self) -> &RemoteQueue {
        &self.remote_queue.0
    }

    /// Returns the cache, which belongs to the owner (HEAP4).
    #[inline]
    pub const fn cache(&self) -> *mut ThreadCache {
        self.cache.get()
    }

    /// Runs `f` with the heap's own set, under the heap's lock (HEAP3). The caller need not own the heap. The set of a
    /// secondary heap is empty. The first argument of `f` is the `owner` that the set's functions expect.
    ///
    /// # Safety
    /// `f` leaves the set where it is: spans name its heap as their owner.
    #[inline]
    pub unsafe fn with<R>(&self, f: impl FnOnce(*const RemoteQueue, &mut SpanSet) -> R) -> R {
        self.parts
            .with(|parts| f(self.remote_queue(), &mut parts.set))
    }

    /// Runs `f` with the heap's own set, if the heap's lock is free or becomes free within a few microseconds.
    fn try_with<R>(&self, f: impl FnOnce(*const RemoteQueue, &mut SpanSet) -> R) -> Option<R> {
        (self.parts).try_with(|parts| f(self.remote_queue(), &mut parts.set))
    }

    /// Returns the bins of the long classes and the large blocks to the owner, if they were taken (CACHE3).
    ///
    /// # Safety
    /// The caller owns the heap.
    pub unsafe fn restore_long(&self) {
        // SAFETY: the cache is the heap's own, so it is valid.
        let long = unsafe { ThreadCache::long(self.cache.get()) };
        self.parts.with(|_| long.restore());
    }

    /// Runs `f` with the heap's cache, and with the set of its last primary, if the heap has no owner now. This is for
    /// threads that trim or count. A cache left over from a fork is used only if `at_once` is set, because each block
    /// that is touched costs a copy of its page.
    ///
    /// # Safety
    /// `f` leaves the set and the cache where they are.
    pub unsafe fn with_idle_cache<R>(
        &self,
        at_once: bool,
        f: impl FnOnce(*const RemoteQueue, &mut SpanSet, &mut ThreadCache) -> R,
    ) -> Option<R> {
        self.parts.with(|parts| {
            if parts.owned || parts.uncounted && !at_once {
                return None;
            }
            // SAFETY: the heap has no owner, so the holder of its lock has the cache (HEAP4).
            let cache = unsafe { &mut *self.cache.get() };
            parts.count(cache);
            Some(self.with_set(parts, |owner, set| f(owner, set, cache)))
        })
    }

    /// Runs `f` with the long bins and the large blocks of an owner that works elsewhere or sleeps, and with the set of
    /// its primary. In the cache, `f` may touch nothing else (CACHE3). Bins and blocks that the owner has used since the
    /// last call are left to it, unless `at_once` is set. Returns `None` if there is nothing else, if the owner is using
    /// any of them, or if `barrier` could not make all threads of the process execute a barrier.
    ///
    /// # Safety
    /// `f` leaves the set and the cache where they are; `barrier` returns `true` only if all threads executed a
    /// barrier.
    pub unsafe fn with_lost_bins<R>(
        &self,
        at_once: bool,
        barrier: impl FnOnce() -> bool,
        f: impl FnOnce(*const RemoteQueue, &mut SpanSet, LostBins) -> R,
    ) -> Option<R> {
        self.parts.with(|parts| {
            let cache = self.cache.get();
            // SAFETY: the cache is the heap's own, so it is valid.
            let (first, mut large) = unsafe {
                (
                    ThreadCache::first_long(cache),
                    ThreadCache::large_words(cache),
                )
            };
            let is_idle = core::mem::replace(&mut parts.first_long, first) == first;
            let seen = core::mem::replace(&mut parts.large, large);
            if !at_once {
                for (word, seen) in large.iter_mut().zip(seen) {
                    *word *= usize::from(*word == seen);
                }
            }
            let long = first != 0 && (is_idle || at_once);
            if !parts.owned || !long && large == [0; ENTRIES] {
                return None;
            }
            let lost = LostBins { cache, long, large };
            // SAFETY: the cache is the heap's own, so it is valid.
            let revoked = unsafe { ThreadCache::long(cache) }.revoke(barrier);
            revoked.then(|| self.with_set(parts, |owner, set| f(owner, set, lost)))
        })
    }

    /// Runs `f`, which leaves the set where it is, with the set of the heap's primary. `parts` proves that the caller
    /// holds the heap's lock.
    fn with_set<R>(
        &self,
        parts: &mut Parts,
        f: impl FnOnce(*const RemoteQueue, &mut SpanSet) -> R,
    ) -> R {
        if !self.secondary {
            return f(self.remote_queue(), &mut parts.set);
        }
        // SAFETY: the caller holds the heap's own lock (HEAP5).
        let primary = unsafe { self.primary() };
        // SAFETY: the caller's `f` leaves the set where it is.
        unsafe { primary.with(f) }
    }

    /// Takes a heap that no other thread can take. A secondary heap gets `primary`.
    fn take(&self, primary: *const Self) {
        // If another thread is trimming the heap, this waits for it.
        self.parts.with(|parts| {
            // SAFETY: the lock is held, and the heap has no owner (HEAP5).
            unsafe { Cell::write(&raw const self.primary, primary) };
            // SAFETY: the heap has no owner, so the holder of its lock has the cache (HEAP4).
            let cache = unsafe { &mut *self.cache.get() };
            parts.count(cache);
            cache.pass_on();
            parts.owned = true;
        });
    }

    fn disown(&self) {
        self.parts.with(|parts| parts.owned = false);
    }

    /// Returns the heap that entered the pool before this one, or null; the list begins with the pool's
    /// [`all`](HeapPool::all).
    pub fn older(&self) -> *const Self {
        // SAFETY: the link was written once, before the heap was in the list (HEAP1).
        unsafe { Cell::read(&raw const self.all) }
    }
}
