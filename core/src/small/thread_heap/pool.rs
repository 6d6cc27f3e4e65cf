//! [`HeapPool`]: all heaps of a process, including the parked ones, which have no thread. The invariants are those of
//! `thread_heap`.

use core::ptr;

use super::ThreadHeap;
use crate::sync::{Cell, Locked, Spin, Wait};

/// The heads of the lists that the pool's lock protects: heaps without a thread, all heaps, and heaps with a set of
/// their own.
struct Heads<W: Wait> {
    parked: *const ThreadHeap<W>,
    parked_secondaries: *const ThreadHeap<W>,
    all: *const ThreadHeap<W>,
    primaries: *const ThreadHeap<W>,
    primary_count: usize,
}

impl<W: Wait> Heads<W> {
    const NONE: Self = Self {
        parked: ptr::null(),
        parked_secondaries: ptr::null(),
        all: ptr::null(),
        primaries: ptr::null(),
        primary_count: 0,
    };

    /// Adds a heap to the list of all heaps (HEAP1).
    fn enter(&mut self, heap: &ThreadHeap<W>) {
        // SAFETY: the heap is not in the list yet, so no thread reads its link.
        unsafe { Cell::write(&raw const heap.all, self.all) };
        self.all = heap;
    }

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

    /// Returns the primary heap that the fewest threads use. O(primary heaps).
    fn quietest(&self) -> Option<&'static ThreadHeap<W>> {
        let mut found: Option<(&ThreadHeap<W>, u32)> = None;
        let mut at = self.primaries;
        // SAFETY: heaps are never freed (HEAP1).
        while let Some(primary) = unsafe { at.as_ref() } {
            // SAFETY: the pool's lock is held (HEAP6).
            let threads = unsafe { Cell::read(&raw const primary.threads) };
            if found.is_none_or(|(_, fewest)| threads < fewest) {
                found = Some((primary, threads));
            }
            // SAFETY: the link was written before the primary heap was in the list.
            at = unsafe { Cell::read(&raw const primary.primaries) };
        }
        found.map(|(primary, _)| primary)
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
pub struct HeapPool<W: Wait = Spin>(Locked<Heads<W>, W>);

impl<W: Wait> HeapPool<W> {
    /// Creates a pool without heaps.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self(Locked::new(Heads::NONE))
    }

    /// Creates a pool without heaps.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self(Locked::new(Heads::NONE))
    }

    /// Adds a new heap with a set of its own, which the caller owns.
    ///
    /// # Safety
    /// The caller created the heap, no other thread uses it, and it has entered no pool.
    pub unsafe fn enter(&self, heap: &'static ThreadHeap<W>) {
        self.0.with(|heads| {
            heads.enter(heap);
            // SAFETY: the heap is not in the list yet, so no thread reads its link.
            unsafe { Cell::write(&raw const heap.primaries, heads.primaries) };
            heads.primaries = heap;
            heads.primary_count += 1;
            Heads::count(heap, true);
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
        let primary = self.0.with(|heads| {
            let primary = heads.quietest()?;
            heads.enter(heap);
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
        self.0.with(|heads| {
            Heads::count(primary, false);
            heads.push(heap);
        });
    }

    /// Adopts a parked heap with a set of its own, if there is one, as its last owner left it.
    pub fn adopt(&self) -> Option<&'static ThreadHeap<W>> {
        let heap = self.0.with(|heads| {
            let heap = heads.pop(false)?;
            Heads::count(heap, true);
            Some(heap)
        })?;
        heap.take(ptr::null());
        Some(heap)
    }

    /// Adopts a parked secondary heap, if there is one, with the primary that the fewest threads use.
    pub fn adopt_secondary(&self) -> Option<&'static ThreadHeap<W>> {
        let (heap, primary) = self.0.with(|heads| {
            let primary = heads.quietest()?;
            let heap = heads.pop(true)?;
            Heads::count(primary, true);
            Some((heap, primary))
        })?;
        heap.take(primary);
        Some(heap)
    }

    /// Returns the number of heaps with a set of their own.
    pub fn primaries(&self) -> usize {
        self.0.with(|heads| heads.primary_count)
    }

    /// Returns the number of heaps with an owner. O(heaps with a set of their own).
    pub fn owned(&self) -> u32 {
        self.0.with(|heads| {
            let (mut owned, mut at) = (0, heads.primaries);
            // SAFETY: heaps are never freed (HEAP1).
            while let Some(primary) = unsafe { at.as_ref() } {
                // SAFETY: the pool's lock is held (HEAP6).
                owned += unsafe { Cell::read(&raw const primary.threads) };
                // SAFETY: the link was written before the primary heap was in the list.
                at = unsafe { Cell::read(&raw const primary.primaries) };
            }
            owned
        })
    }

    /// Returns the newest heap, or null; the others follow through [`ThreadHeap::older`].
    pub fn all(&self) -> *const ThreadHeap<W> {
        self.0.with(|heads| heads.all)
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
            let is_parked = self.0.with(|_| {
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

    /// Runs `f` for every heap, newest first, while the pool's lock is not held.
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
    /// Locks the pool and every heap, for a fork, until [`unlock_all`](Self::unlock_all).
    ///
    /// # Safety
    /// The caller's thread holds none of these locks, and takes none before it unlocks.
    pub unsafe fn lock_all(&self) {
        // SAFETY: this thread does not hold the pool's lock, and unlocks it with `unlock_all`.
        unsafe { self.0.lock_across_fork() };
        for secondaries in [true, false] {
            self.each_locked(|heap| {
                if heap.secondary == secondaries {
                    // SAFETY: this thread holds no heap's lock, and unlocks with `unlock_all`. Secondary heaps are
                    // locked before primary ones, as everywhere.
                    unsafe { heap.parts.lock_across_fork() };
                }
            });
        }
    }

    /// Releases the locks of [`lock_all`](Self::lock_all), in the parent or the child.
    ///
    /// # Safety
    /// The caller's thread called `lock_all`, in this process or before the fork.
    pub unsafe fn unlock_all(&self) {
        // SAFETY: this thread took the pool's lock and each heap's lock with `lock_all`, itself or before the fork.
        self.each_locked(|heap| unsafe { heap.parts.unlock_across_fork() });
        // SAFETY: this thread locked the pool with `lock_all`, itself or before the fork.
        unsafe { self.0.unlock_across_fork() };
    }

    /// Runs `f` for every heap; the caller holds the pool's lock.
    fn each_locked(&self, f: impl Fn(&ThreadHeap<W>)) {
        // SAFETY: the caller's thread holds the lock through `lock_across_fork`.
        let mut at = unsafe { self.0.peek() }.all;
        // SAFETY: heaps are never freed (HEAP1).
        while let Some(heap) = unsafe { at.as_ref() } {
            f(heap);
            at = heap.older();
        }
    }
}

impl<W: Wait> Default for HeapPool<W> {
    fn default() -> Self {
        Self::new()
    }
}
