//! [`ThreadHeap`]: a span set with a mailbox, owned by one thread at a time; [`HeapPool`]: those
//! that have no thread just now.
//!
//! A heap is never freed: a span names its owner for life, and remote frees find the mailbox
//! without asking whether the thread still runs. A thread that ends parks its heap with the bins
//! it had; the next thread that starts adopts both. Threads that come and go therefore cost as
//! many heaps as ever ran at once.
//!
//! # Invariants
//! * H1 a heap is in the pool's list of all heaps from its first to the last day.
//! * H2 a heap is parked or has one owner. Owner is whoever got it from `adopt` or made it.
//! * H3 the set of a heap is touched under its lock only, by the owner, by whoever trims or counts,
//!   and by the fork handlers.
//! * H4 the bins are the owner's alone and need no lock; `owned` says under the lock that there is
//!   one. While there is none, they are touched under the lock.
//!
//! Lock order: the pool's lock is never wanted by who holds a heap's.

use core::cell::UnsafeCell;
use core::ptr;

use super::bin::Bins;
use super::remote::Mailbox;
use super::set::{Policy, SpanSet};
use crate::sync::{Cell, Locked, Spin, Wait};

/// What a heap's lock protects.
#[derive(Debug)]
pub struct Parts {
    /// Spans and depots.
    pub set: SpanSet,
    /// Whether the bins are an owner's (H4).
    owned: bool,
}

// SAFETY: the bins' pointers lead to free blocks that belong to the bins and move with them.
unsafe impl Send for Bins {}

/// A heap for one thread at a time.
#[repr(C, align(128))]
pub struct ThreadHeap<W: Wait = Spin> {
    /// First, so that their address is the heap's, and the owner's alone in their cache lines.
    bins: UnsafeCell<Bins>,
    mailbox: Apart<Mailbox>,
    parts: Locked<Parts, W>,
    /// Links of the pool, under its lock.
    parked: Cell<*const ThreadHeap<W>>,
    all: Cell<*const ThreadHeap<W>>,
}

/// In cache lines of its own.
#[repr(align(128))]
struct Apart<T>(T);

// SAFETY: the mailbox is atomic, the parts are locked, the links are the pool's behind its lock, and
// the bins are one thread's (H4).
unsafe impl<W: Wait> Sync for ThreadHeap<W> {}

impl<W: Wait> Default for ThreadHeap<W> {
    fn default() -> Self {
        Self::new(Policy::BALANCED)
    }
}

impl<W: Wait> ThreadHeap<W> {
    /// A heap without spans, which its maker owns.
    pub fn new(policy: Policy) -> Self {
        Self {
            bins: UnsafeCell::new(Bins::EMPTY),
            mailbox: Apart(Mailbox::new()),
            parts: Locked::new(Parts {
                set: SpanSet::new(policy),
                owned: true,
            }),
            parked: Cell::new(ptr::null()),
            all: Cell::new(ptr::null()),
        }
    }

    /// Where others announce blocks of this heap's spans. Its address is the heap's identity.
    pub const fn mailbox(&self) -> &Mailbox {
        &self.mailbox.0
    }

    /// Where the bins are; the owner's to use (H4).
    #[inline]
    pub const fn bins(&self) -> *mut Bins {
        self.bins.get()
    }

    /// Runs `f` with the set, alone (H3). The first argument is what the set's verbs take as
    /// owner.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const Mailbox, &mut SpanSet) -> R) -> R {
        self.parts.with(|parts| f(self.mailbox(), &mut parts.set))
    }

    /// As [`with`](Self::with), and with the bins if the heap has no owner now: for whoever trims or
    /// counts.
    pub fn with_idle_bins<R>(
        &self,
        f: impl FnOnce(*const Mailbox, &mut SpanSet, Option<&mut Bins>) -> R,
    ) -> R {
        self.parts.with(|parts| {
            let bins = match parts.owned {
                true => None,
                // SAFETY: H4: without an owner they are ours while we hold the lock.
                false => unsafe { self.bins.get().as_mut() },
            };
            f(self.mailbox(), &mut parts.set, bins)
        })
    }

    fn set_owned(&self, owned: bool) {
        self.parts.with(|parts| parts.owned = owned);
    }

    /// The lock, for handlers that must hold it across a fork.
    pub const fn lock(&self) -> &Locked<Parts, W> {
        &self.parts
    }

    /// The heap made before this one, or null; from the pool's [`all`](HeapPool::all) on.
    pub fn older(&self) -> *const Self {
        // SAFETY: H1: written once, before the heap was in the list.
        unsafe { Cell::read(&raw const self.all) }
    }
}

struct Heads<W: Wait> {
    parked: *const ThreadHeap<W>,
    all: *const ThreadHeap<W>,
}

// SAFETY: the heaps are shared anyway (they are Sync) and live for ever.
unsafe impl<W: Wait> Send for Heads<W> {}

/// All heaps of a process, and which of them are parked.
pub struct HeapPool<W: Wait = Spin>(Locked<Heads<W>, W>);

impl<W: Wait> HeapPool<W> {
    const NONE: Heads<W> = Heads {
        parked: ptr::null(),
        all: ptr::null(),
    };

    /// No heaps.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(Locked::new(Self::NONE))
    }

    /// No heaps.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(Locked::new(Self::NONE))
    }

    /// Enters a new heap, which the caller owns.
    pub fn enter(&self, heap: &'static ThreadHeap<W>) {
        self.0.with(|heads| {
            // SAFETY: the heap is not in the list yet, so nobody reads its link.
            unsafe { Cell::write(&raw const heap.all, heads.all) };
            heads.all = heap;
        });
    }

    /// Gives up a heap, with what lies in its bins.
    pub fn park(&self, heap: &'static ThreadHeap<W>) {
        heap.set_owned(false);
        self.0.with(|heads| {
            // SAFETY: the link of a heap that is not parked is read by nobody, and we hold the
            // pool's lock.
            unsafe { Cell::write(&raw const heap.parked, heads.parked) };
            heads.parked = heap;
        });
    }

    /// Takes a parked heap, if there is one, as its last owner left it.
    pub fn adopt(&self) -> Option<&'static ThreadHeap<W>> {
        let heap = self.0.with(|heads| {
            // SAFETY: H1: heaps live for ever.
            let heap = unsafe { heads.parked.as_ref() }?;
            // SAFETY: links are read and written under the pool's lock.
            heads.parked = unsafe { Cell::read(&raw const heap.parked) };
            Some(heap)
        })?;
        // Whoever trims it just now is waited for here.
        heap.set_owned(true);
        Some(heap)
    }

    /// The newest heap, or null; the others follow by [`ThreadHeap::older`].
    pub fn all(&self) -> *const ThreadHeap<W> {
        self.0.with(|heads| heads.all)
    }

    /// In the child of a fork: parks every heap whose thread does not run there, that is all but
    /// `mine`. What a thread held in its hands when the process forked, a few lists at most, stays
    /// out.
    ///
    /// # Safety
    /// No other thread runs in this process, and the heaps' memory is as it was when the process
    /// forked.
    pub unsafe fn park_orphans(&self, mine: *const ThreadHeap<W>) {
        self.for_each(|heap| {
            if ptr::eq(heap, mine) || self.is_parked(heap) {
                return;
            }
            // SAFETY: the heap's thread does not run any more.
            let bins = unsafe { &mut *heap.bins() };
            // SAFETY: a list is whole at any moment, even if its count is not.
            unsafe { bins.recount() };
            self.park(heap);
        });
    }

    /// Whether the heap is parked. O(parked heaps).
    pub fn is_parked(&self, heap: &ThreadHeap<W>) -> bool {
        self.0.with(|heads| {
            let mut at = heads.parked;
            // SAFETY: H1: heaps live for ever.
            while let Some(parked) = unsafe { at.as_ref() } {
                if ptr::eq(parked, heap) {
                    return true;
                }
                // SAFETY: links are read under the pool's lock.
                at = unsafe { Cell::read(&raw const parked.parked) };
            }
            false
        })
    }

    /// Runs `f` for every heap there is, newest first. The pool's lock is not held meanwhile.
    pub fn for_each(&self, mut f: impl FnMut(&'static ThreadHeap<W>)) {
        let mut at = self.all();
        // SAFETY: H1: heaps live for ever.
        while let Some(heap) = unsafe { at.as_ref() } {
            f(heap);
            at = heap.older();
        }
    }
}

#[cfg(not(loom))]
impl<W: Wait> HeapPool<W> {
    /// Locks the pool and every heap, for a fork. Undone by [`unlock_all`](Self::unlock_all).
    ///
    /// # Safety
    /// The caller's thread holds none of these locks, and calls nothing that wants one before it
    /// unlocks.
    pub unsafe fn lock_all(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.lock_across_fork() };
        // SAFETY: the pool's lock is ours.
        self.each_locked(|heap| unsafe { heap.parts.lock_across_fork() });
    }

    /// Unlocks what [`lock_all`](Self::lock_all) locked, in the parent or the child.
    ///
    /// # Safety
    /// The caller's thread called `lock_all`, in this process or before the fork.
    pub unsafe fn unlock_all(&self) {
        // SAFETY: the pool's lock is ours, and so is each heap's.
        self.each_locked(|heap| unsafe { heap.parts.unlock_across_fork() });
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock_across_fork() };
    }

    /// Runs `f` for every heap; the pool's lock is the caller's already.
    fn each_locked(&self, f: impl Fn(&ThreadHeap<W>)) {
        // SAFETY: the caller's thread holds the lock by lock_across_fork.
        let mut at = unsafe { self.0.peek() }.all;
        // SAFETY: H1.
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
