//! [`ThreadHeap`]: a thread cache, a span set and a remote-free queue, owned by one thread at a time;
//! [`HeapPool`]: the heaps that have no thread just now.
//!
//! A heap is never freed: a span names its owner for life, and remote frees find the owner's queue
//! without asking whether the thread still runs. A thread that ends parks its heap with the thread
//! cache it had; the next thread that starts adopts both. Threads that come and go therefore cost as
//! many heaps as ever ran at once.
//!
//! Where very many run at once, a set for each would cost a page for each size class and thread. So
//! some heaps are *secondary*: they have a thread cache of their own and share the set of a *primary*
//! heap with its owner and other secondary heaps. A thread that gets a secondary heap gets the primary that
//! fewest threads use.
//!
//! # Invariants
//! * HEAP1 a heap is in the pool's list of all heaps from its first to the last day.
//! * HEAP2 a heap is parked or has one owner. Owner is whoever got it from the pool or made it.
//! * HEAP3 the set of a heap is touched under its lock only: by the owner, by owners of its secondary
//!   heaps, by whoever trims or counts, and by the fork handlers.
//! * HEAP4 the thread cache is the owner's alone and needs no lock, but for the bins of the long classes, which others
//!   may have taken under the heap's own lock (CACHE3); an owner who takes that lock has them back. `owned` says under
//!   it that there is an owner. While there is none, the cache is touched under that lock.
//! * HEAP5 a secondary heap stays one for ever, and its set stays empty. Whoever takes it writes its primary
//!   under the secondary's own lock, while it has no owner; the owner reads it without.
//! * HEAP6 `threads` of a primary heap counts, under the pool's lock, the owned heaps that use its set.
//! * HEAP7 after a fork the caches of threads that did not come along are `uncounted`: their lists are
//!   whole (CACHE2), their counts are not. Whoever takes the heap or its idle cache counts it first.
//!
//! Lock order: who holds a heap's lock never wants the pool's; a secondary heap's lock comes before its
//! primary's.

mod pool;

use core::cell::UnsafeCell;
use core::ptr;

use super::pages::Pages;
use super::remote::RemoteQueue;
use super::set::{Policy, SpanSet};
use super::thread_cache::ThreadCache;
use crate::sync::{Cell, Locked, Spin, Wait};

pub use self::pool::HeapPool;

/// What a heap's lock protects.
#[derive(Debug)]
struct Parts {
    /// Spans and transfer caches.
    set: SpanSet,
    /// Whether the cache is an owner's (HEAP4).
    owned: bool,
    /// Whether the cache must be counted before it is used (HEAP7).
    uncounted: bool,
    /// What lay first in the bins of the long classes when somebody wanted them last.
    first_long: usize,
}

impl Parts {
    const fn new(policy: Policy) -> Self {
        Self {
            set: SpanSet::new(policy),
            owned: true,
            uncounted: false,
            first_long: 0,
        }
    }

    /// Counts the heap's cache, if that is due (HEAP7). O(blocks in them) then.
    fn count(&mut self, cache: &mut ThreadCache) {
        if core::mem::take(&mut self.uncounted) {
            // SAFETY: the lists are whole (CACHE2), and the caller has the cache.
            unsafe { cache.recount(self.set.links()) };
        }
    }
}

// SAFETY: the cache's pointers lead to free blocks that belong to the cache and move with it.
unsafe impl Send for ThreadCache {}

/// A heap for one thread at a time.
#[repr(C, align(128))]
pub struct ThreadHeap<W: Wait = Spin> {
    /// First, so that their address is the heap's, and the owner's alone in their cache lines.
    cache: UnsafeCell<ThreadCache>,
    remote_queue: Apart<RemoteQueue>,
    parts: Locked<Parts, W>,
    /// Of a secondary heap its primary, or null (HEAP5).
    primary: Cell<*const ThreadHeap<W>>,
    secondary: bool,
    /// Links of the pool, under its lock, and a number (HEAP6).
    parked: Cell<*const ThreadHeap<W>>,
    is_parked: Cell<bool>,
    all: Cell<*const ThreadHeap<W>>,
    primaries: Cell<*const ThreadHeap<W>>,
    threads: Cell<u32>,
}

/// In cache lines of its own.
#[repr(align(128))]
struct Apart<T>(T);

// SAFETY: the remote-free queue is atomic, the parts are locked, the links are the pool's behind its lock, and
// the cache is one thread's (HEAP4).
unsafe impl<W: Wait> Sync for ThreadHeap<W> {}

impl<W: Wait> Default for ThreadHeap<W> {
    fn default() -> Self {
        Self::new(Policy::BALANCED)
    }
}

impl<W: Wait> ThreadHeap<W> {
    /// A heap without spans, which its maker owns.
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

    /// A heap without spans, which its maker owns.
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

    /// Makes it a secondary heap, if so, which its maker owns once it has entered a pool, and one that keeps so much. Before
    /// it enters a pool.
    pub fn prepare(&mut self, policy: Policy, secondary: bool) {
        self.parts.get_mut().set.set_policy(policy);
        self.secondary = secondary;
    }

    /// Whether it uses the set of another heap.
    pub const fn is_secondary(&self) -> bool {
        self.secondary
    }

    /// The heap whose set this heap uses: itself, or its primary.
    ///
    /// # Safety
    /// HEAP5: the caller owns the heap, or holds its lock.
    unsafe fn primary(&self) -> &Self {
        // SAFETY: HEAP5: nobody writes it meanwhile.
        let primary = unsafe { Cell::read(&raw const self.primary) };
        // SAFETY: HEAP1: heaps live for ever.
        unsafe { primary.as_ref() }.unwrap_or(self)
    }

    /// Where others announce blocks of this heap's spans. Its address is the heap's identity.
    pub const fn remote_queue(&self) -> &RemoteQueue {
        &self.remote_queue.0
    }

    /// Where the cache is; the owner's to use (HEAP4).
    #[inline]
    pub const fn cache(&self) -> *mut ThreadCache {
        self.cache.get()
    }

    /// Runs `f` with the heap's own set, alone (HEAP3), on behalf of no thread; that of a secondary heap is empty.
    /// The first argument is what the set's verbs take as owner.
    ///
    /// # Safety
    /// `f` leaves the set where it is: spans name its heap as their owner.
    #[inline]
    pub unsafe fn with<R>(&self, f: impl FnOnce(*const RemoteQueue, &mut SpanSet) -> R) -> R {
        self.parts
            .with(|parts| f(self.remote_queue(), &mut parts.set))
    }

    /// Runs `f` with the set that serves the heap's owner, alone (HEAP3), who has the whole cache then and from then
    /// on (HEAP4).
    ///
    /// # Safety
    /// The caller owns the heap; `f` leaves the set where it is.
    #[inline]
    pub unsafe fn with_primary<R>(
        &self,
        f: impl FnOnce(*const RemoteQueue, &mut SpanSet) -> R,
    ) -> R {
        self.parts.with(|parts| {
            // SAFETY: the heap's own.
            unsafe { ThreadCache::long(self.cache.get()) }.restore();
            self.with_set(parts, f)
        })
    }

    /// Runs `f` with the cache if the heap has no owner now, and with the set that served it last: for
    /// whoever trims or counts. A cache that a fork left behind is taken if `at_once` only: each of its blocks costs
    /// a copy of its page.
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
            // SAFETY: HEAP4: without an owner they are ours while we hold the lock.
            let cache = unsafe { &mut *self.cache.get() };
            parts.count(cache);
            Some(self.with_set(parts, |owner, set| f(owner, set, cache)))
        })
    }

    /// Runs `f` with a cache whose owner is at work elsewhere or sleeps, and with the set that serves it; of the cache
    /// `f` may touch the bins of the long classes (CACHE3). `None` if nothing lies there, if the owner uses
    /// them just now, if it used them since the last call unless `at_once`, or if `barrier` could not have all threads
    /// of the process execute a barrier.
    ///
    /// # Safety
    /// `f` leaves the set and the cache where they are; `barrier` tells the truth.
    pub unsafe fn with_lost_bins<R>(
        &self,
        at_once: bool,
        barrier: impl FnOnce() -> bool,
        f: impl FnOnce(*const RemoteQueue, &mut SpanSet, *mut ThreadCache) -> R,
    ) -> Option<R> {
        self.parts.with(|parts| {
            let cache = self.cache.get();
            // SAFETY: the heap's own.
            let first = unsafe { ThreadCache::first_long(cache) };
            let is_idle = core::mem::replace(&mut parts.first_long, first) == first;
            if !parts.owned || first == 0 || !(is_idle || at_once) {
                return None;
            }
            // SAFETY: the heap's own.
            let long = unsafe { ThreadCache::long(cache) };
            let revoked = long.revoke(barrier);
            revoked.then(|| self.with_set(parts, |owner, set| f(owner, set, cache)))
        })
    }

    /// Runs `f`, which leaves the set where it is, with the set that serves the heap's owner or served its last one,
    /// whose lock `parts` shows to be ours.
    fn with_set<R>(
        &self,
        parts: &mut Parts,
        f: impl FnOnce(*const RemoteQueue, &mut SpanSet) -> R,
    ) -> R {
        if !self.secondary {
            return f(self.remote_queue(), &mut parts.set);
        }
        // SAFETY: HEAP5: we hold the heap's own lock.
        let primary = unsafe { self.primary() };
        // SAFETY: the caller's `f`, which leaves the set where it is.
        unsafe { primary.with(f) }
    }

    /// Empties the owner's cache.
    ///
    /// # Safety
    /// The caller owns the heap; `pages` is always the same.
    pub unsafe fn empty_cache(&self, pages: &mut impl Pages) {
        let flush = |owner, set: &mut SpanSet| {
            // SAFETY: HEAP4: the caller's, with the bins of the long classes since its lock is held.
            let cache = unsafe { &mut *self.cache.get() };
            // SAFETY: the set that serves the cache, with its own remote-free queue (HEAP3).
            unsafe { set.flush(owner, cache, pages) };
        };
        // SAFETY: the caller owns the heap.
        unsafe { self.with_primary(flush) };
    }

    /// Takes the heap, which is in nobody's reach; with its primary if it is a secondary heap.
    fn take(&self, primary: *const Self) {
        // Whoever trims it just now is waited for here.
        self.parts.with(|parts| {
            // SAFETY: HEAP5: under the lock, without an owner.
            unsafe { Cell::write(&raw const self.primary, primary) };
            // SAFETY: HEAP4: without an owner they are ours while we hold the lock.
            let cache = unsafe { &mut *self.cache.get() };
            parts.count(cache);
            cache.pass_on();
            parts.owned = true;
        });
    }

    fn give_up(&self) {
        self.parts.with(|parts| parts.owned = false);
    }

    /// The heap that entered the pool before this one, or null; from the pool's [`all`](HeapPool::all) on.
    pub fn older(&self) -> *const Self {
        // SAFETY: HEAP1: written once, before the heap was in the list.
        unsafe { Cell::read(&raw const self.all) }
    }
}
