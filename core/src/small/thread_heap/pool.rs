//! [`HeapPool`]: all heaps of a process, including the parked ones, which have no thread. The invariants are those of
//! `thread_heap`.

use core::ptr;

use super::ThreadHeap;
use crate::small::remote::RemoteQueue;
use crate::small::span_set::SpanSet;
use crate::small::thread_cache::ThreadCache;
#[cfg(not(larder_loom))]
use crate::sync::LockWord;
use crate::sync::{AtomicPtr, Cell, Locked, Ordering, Spin, Wait};

/// The heads of the lists of heaps without a thread, which the pool's lock protects.
struct Heads<W: Wait> {
    parked: *const ThreadHeap<W>,
    parked_secondaries: *const ThreadHeap<W>,
}

impl<W: Wait> Heads<W> {
    const NONE: Self = Self {
        parked: ptr::null(),
        parked_secondaries: ptr::null(),
    };

    /// Adds a heap that no longer has an owner to the parked ones.
    fn push(&mut self, heap: &ThreadHeap<W>) {
        let parked = match heap.secondary {
            true => &mut self.parked_secondaries,
            false => &mut self.parked,
        };
        // SAFETY: no thread reads the link of a heap that is not parked, and the pool's lock is held.
        unsafe { Cell::write(&raw const heap.parked, *parked) };
        // SAFETY: the pool's lock is held.
        unsafe { Cell::write(&raw const heap.is_parked, true) };
        *parked = heap;
    }

    /// Takes the heap that was parked last.
    fn pop(&mut self, secondary: bool) -> Option<&'static ThreadHeap<W>> {
        let parked = match secondary {
            true => &mut self.parked_secondaries,
            false => &mut self.parked,
        };
        // SAFETY: heaps are never freed (HEAP1).
        let heap = unsafe { parked.as_ref() }?;
        // SAFETY: links are read and written under the pool's lock.
        *parked = unsafe { Cell::read(&raw const heap.parked) };
        // SAFETY: `is_parked` is read and written under the pool's lock.
        unsafe { Cell::write(&raw const heap.is_parked, false) };
        Some(heap)
    }

    /// Adds a thread to a primary heap's count, or subtracts one (HEAP6).
    fn count(primary: &ThreadHeap<W>, more: bool) {
        // SAFETY: the pool's lock is held (HEAP6).
        let threads = unsafe { Cell::read(&raw const primary.threads) };
        let threads = match more {
            true => threads + 1,
            false => threads.saturating_sub(1),
        };
        // SAFETY: the pool's lock is held (HEAP6).
        unsafe { Cell::write(&raw const primary.threads, threads) };
    }
}

// SAFETY: the heaps are shared anyway (they are Sync) and never freed.
unsafe impl<W: Wait> Send for Heads<W> {}

/// All heaps of a process, parked or owned.
pub struct HeapPool<W: Wait = Spin> {
    heads: Locked<Heads<W>, W>,
    /// The newest heap and the newest one with a set of its own, or null; the others follow through links that never
    /// change. Written under the pool's lock.
    all: AtomicPtr<ThreadHeap<W>>,
    primaries: AtomicPtr<ThreadHeap<W>>,
}

impl<W: Wait> HeapPool<W> {
    /// Creates a pool without heaps.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self {
            heads: Locked::new(Heads::NONE),
            all: AtomicPtr::new(ptr::null_mut()),
            primaries: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Creates a pool without heaps.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self {
            heads: Locked::new(Heads::NONE),
            all: AtomicPtr::new(ptr::null_mut()),
            primaries: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the heaps with a set of their own, newest first.
    fn each_primary(&self) -> impl Iterator<Item = &'static ThreadHeap<W>> {
        // Acquire: sees the heap and its link as they were when the heap entered the list.
        let newest = self.primaries.load(Ordering::Acquire).cast_const();
        // SAFETY: heaps are never freed (HEAP1).
        core::iter::successors(unsafe { newest.as_ref() }, |heap| {
            // SAFETY: the link was written before the heap was in the list.
            let older = unsafe { Cell::read(&raw const heap.primaries) };
            // SAFETY: heaps are never freed (HEAP1).
            unsafe { older.as_ref() }
        })
    }

    /// Returns the primary heap that the fewest threads use. O(primary heaps).
    fn quietest(&self, _: &Heads<W>) -> Option<&'static ThreadHeap<W>> {
        self.each_primary().min_by_key(|primary| {
            // SAFETY: the pool's lock is held, as the heads show (HEAP6).
            unsafe { Cell::read(&raw const primary.threads) }
        })
    }

    /// Runs `f` once with a set for the heap's owner, under that set's lock (HEAP3): the set of the heap's primary,
    /// unless another thread keeps that one locked. The owner has the whole cache until `f` returns (HEAP4).
    ///
    /// Waits only while other threads keep the sets of all primaries locked, or, if the bins of the long classes were
    /// taken, the heap or its primary. O(primary heaps) attempts.
    ///
    /// # Safety
    /// The caller owns the heap, which belongs to this pool; `f` leaves the set where it is.
    #[inline]
    pub unsafe fn with_set<R>(
        &self,
        heap: &ThreadHeap<W>,
        mut f: impl FnMut(*const RemoteQueue, &mut SpanSet) -> R,
    ) -> R {
        // SAFETY: the cache is the heap's own, so it is valid.
        let long = unsafe { ThreadCache::long(heap.cache()) };
        if !heap.secondary {
            let own = heap.try_with(|owner, set| {
                long.restore();
                f(owner, set)
            });
            if let Some(result) = own {
                return result;
            }
        }
        if !long.enter() {
            return heap.parts.with(|parts| {
                long.restore();
                heap.with_set(parts, &mut f)
            });
        }
        // SAFETY: the caller owns the heap (HEAP5).
        let result = self.with_any_set(unsafe { heap.primary() }, &mut f);
        long.leave();
        result
    }

    /// Runs `f`, which leaves the set where it is, once with the set of `primary`, or with another one that is not
    /// locked.
    fn with_any_set<R>(
        &self,
        primary: &ThreadHeap<W>,
        f: &mut impl FnMut(*const RemoteQueue, &mut SpanSet) -> R,
    ) -> R {
        if let Some(result) = primary.try_with(&mut *f) {
            return result;
        }
        for other in self.each_primary() {
            if let Some(result) = other.try_with(&mut *f) {
                return result;
            }
        }
        // SAFETY: the caller's `f` leaves the set where it is.
        unsafe { primary.with(f) }
    }

    /// Adds a new heap to a list. The caller holds the pool's lock.
    fn add(
        list: &AtomicPtr<ThreadHeap<W>>,
        link: &Cell<*const ThreadHeap<W>>,
        heap: &'static ThreadHeap<W>,
    ) {
        // Relaxed: written under the lock.
        let older = list.load(Ordering::Relaxed).cast_const();
        // SAFETY: the heap is not in the list yet, so no thread reads its link.
        unsafe { Cell::write(link, older) };
        // Release: a thread that finds the heap sees the heap and its link.
        list.store(ptr::from_ref(heap).cast_mut(), Ordering::Release);
    }

    /// Adds a new heap with a set of its own, which the caller owns.
    ///
    /// # Safety
    /// The caller created the heap, no other thread uses it, and it has entered no pool.
    pub unsafe fn enter(&self, entered: &'static ThreadHeap<W>) {
        self.heads.with(|_| {
            Self::add(&self.all, &entered.all, entered);
            Self::add(&self.primaries, &entered.primaries, entered);
            Heads::count(entered, true);
        });
    }

    /// Adds a new secondary heap, which the caller owns from then on. Returns `None` if there is no primary heap for
    /// it.
    ///
    /// # Safety
    /// The caller created the heap, no other thread uses it, and it has entered no pool.
    pub unsafe fn enter_secondary(
        &self,
        heap: &'static ThreadHeap<W>,
    ) -> Option<&'static ThreadHeap<W>> {
        let primary = self.heads.with(|heads| {
            let primary = self.quietest(heads)?;
            Self::add(&self.all, &heap.all, heap);
            Heads::count(primary, true);
            Some(primary)
        })?;
        heap.take(primary);
        Some(heap)
    }

    /// Parks a heap, with the blocks in its cache.
    ///
    /// # Safety
    /// The caller owns the heap, which belongs to this pool, and no longer uses it.
    pub unsafe fn park(&self, heap: &'static ThreadHeap<W>) {
        // SAFETY: the caller owns the heap (HEAP5).
        let primary = unsafe { heap.primary() };
        heap.disown();
        self.heads.with(|heads| {
            Heads::count(primary, false);
            heads.push(heap);
        });
    }

    /// Adopts a parked heap with a set of its own, if there is one, as its last owner left it.
    pub fn adopt(&self) -> Option<&'static ThreadHeap<W>> {
        let heap = self.heads.with(|heads| {
            let heap = heads.pop(false)?;
            Heads::count(heap, true);
            Some(heap)
        })?;
        heap.take(ptr::null());
        Some(heap)
    }

    /// Adopts a parked secondary heap, if there is one, with the primary that the fewest threads use.
    pub fn adopt_secondary(&self) -> Option<&'static ThreadHeap<W>> {
        let (heap, primary) = self.heads.with(|heads| {
            let primary = self.quietest(heads)?;
            let heap = heads.pop(true)?;
            Heads::count(primary, true);
            Some((heap, primary))
        })?;
        heap.take(primary);
        Some(heap)
    }

    /// Returns the number of heaps with a set of their own. O(that number).
    pub fn primaries(&self) -> usize {
        self.each_primary().count()
    }

    /// Returns the number of heaps with an owner. O(heaps with a set of their own).
    pub fn owned(&self) -> u32 {
        self.heads.with(|_| {
            let threads = |primary: &ThreadHeap<W>| {
                // SAFETY: the pool's lock is held (HEAP6).
                unsafe { Cell::read(&raw const primary.threads) }
            };
            self.each_primary().map(threads).sum()
        })
    }

    /// Returns the newest heap, or null; the others follow through [`ThreadHeap::older`].
    pub fn all(&self) -> *const ThreadHeap<W> {
        // Acquire: sees the heap and its link as they were when the heap entered the list.
        self.all.load(Ordering::Acquire)
    }

    /// Parks, in the child of a fork, every heap whose thread does not run there: all heaps except `mine`. Blocks that
    /// a thread was moving when the process forked, at most a few lists, stay lost. O(heaps). No block is touched,
    /// because touching one would cost the child a page.
    ///
    /// # Safety
    /// No other thread runs in this process, and the heaps' memory is as it was when the process
    /// forked.
    pub unsafe fn park_orphans(&self, mine: *const ThreadHeap<W>) {
        self.for_each(|heap| {
            let is_parked = self.heads.with(|_| {
                // SAFETY: the pool's lock is held.
                unsafe { Cell::read(&raw const heap.is_parked) }
            });
            if ptr::eq(heap, mine) || is_parked {
                return;
            }
            heap.parts.with(|parts| parts.uncounted = true);
            // SAFETY: no other thread runs, so the heap belongs to this thread.
            unsafe { self.park(heap) };
        });
    }

    /// Runs `f` for every heap, newest first.
    pub fn for_each(&self, mut f: impl FnMut(&'static ThreadHeap<W>)) {
        let mut at = self.all();
        // SAFETY: heaps are never freed (HEAP1).
        while let Some(heap) = unsafe { at.as_ref() } {
            f(heap);
            at = heap.older();
        }
    }
}

#[cfg(not(larder_loom))]
impl<W: Wait> HeapPool<W> {
    /// Runs `f` for the locks of the pool and of all heaps, in the lock order, for a fork. While the first of them is
    /// held, no heap is added.
    ///
    /// # Safety
    /// `f` releases a lock only if this thread has taken it.
    pub unsafe fn each_lock<'a>(&'a self, f: &mut dyn FnMut(&'a LockWord)) {
        // SAFETY: the caller's `f` releases only what this thread has taken.
        f(unsafe { self.heads.word() });
        for secondaries in [true, false] {
            self.for_each(|heap| {
                if heap.secondary == secondaries {
                    // SAFETY: as above.
                    f(unsafe { heap.parts.word() });
                }
            });
        }
    }
}

impl<W: Wait> Default for HeapPool<W> {
    fn default() -> Self {
        Self::new()
    }
}
