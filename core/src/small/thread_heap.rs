//! [`ThreadHeap`]: a span set with a mailbox, owned by one thread at a time; [`HeapPool`]: those
//! that have no thread just now.
//!
//! A heap is never freed: a span names its owner for life, and remote frees find the mailbox
//! without asking whether the thread still runs. A thread that ends parks its heap with the bins
//! it had; the next thread that starts adopts both. Threads that come and go therefore cost as
//! many heaps as ever ran at once.
//!
//! Where very many run at once, a set for each would cost a page for each size class and thread. So
//! some heaps are *guests*: they have bins, and use the set of another heap, their *home*, together
//! with its owner and other guests. A guest's bins begin small ([`SpanSet::serve`]), and its home
//! is the one with the fewest threads at the moment when a thread gets the guest.
//!
//! # Invariants
//! * H1 a heap is in the pool's list of all heaps from its first to the last day.
//! * H2 a heap is parked or has one owner. Owner is whoever got it from the pool or made it.
//! * H3 the set of a heap is touched under its lock only, by the owner, by owners of its guests, by
//!   whoever trims or counts, and by the fork handlers.
//! * H4 the bins are the owner's alone and need no lock; `owned` says under the heap's own lock that
//!   there is one. While there is none, they are touched under that lock.
//! * H5 a guest is one for life, and its set stays empty. Which heap is its home is written under the
//!   guest's own lock while it has no owner, by whoever takes it; the owner reads it without.
//! * H6 `threads` of a home counts, under the pool's lock, the owned heaps that use its set.
//! * H7 after a fork the bins of threads that did not come along are `uncounted`: their lists are whole
//!   (L3), their counts are not. Whoever takes the heap or its idle bins counts them first.
//!
//! Lock order: the pool's lock is never wanted by who holds a heap's; a guest's comes before its
//! home's.

mod pool;

use core::cell::UnsafeCell;
use core::ptr;

use super::bin::Bins;
use super::pages::Pages;
use super::remote::Mailbox;
use super::set::{Policy, SpanSet};
use crate::sync::{Cell, Locked, Spin, Wait};

pub use self::pool::HeapPool;

/// What a heap's lock protects.
#[derive(Debug)]
pub struct Parts {
    /// Spans and depots.
    pub set: SpanSet,
    /// Whether the bins are an owner's (H4).
    owned: bool,
    /// Whether the bins must be counted before they are used (H7).
    uncounted: bool,
}

impl Parts {
    /// Counts the heap's bins, if that is due (H7). O(blocks in them) then.
    fn count(&mut self, bins: &mut Bins) {
        if core::mem::take(&mut self.uncounted) {
            // SAFETY: the lists are whole (L3), and the caller has the bins.
            unsafe { bins.recount() };
        }
    }
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
    /// A guest's home, or null (H5).
    home: Cell<*const ThreadHeap<W>>,
    guest: bool,
    /// Links of the pool, under its lock, and a number (H6).
    parked: Cell<*const ThreadHeap<W>>,
    is_parked: Cell<bool>,
    all: Cell<*const ThreadHeap<W>>,
    homes: Cell<*const ThreadHeap<W>>,
    threads: Cell<u32>,
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
        Self::of_kind(policy, false)
    }

    /// A heap that is a guest of others, which its maker owns once it has entered a pool.
    pub fn guest() -> Self {
        Self::of_kind(Policy::BALANCED, true)
    }

    fn of_kind(policy: Policy, guest: bool) -> Self {
        Self {
            bins: UnsafeCell::new(Bins::EMPTY),
            mailbox: Apart(Mailbox::new()),
            parts: Locked::new(Parts {
                set: SpanSet::new(policy),
                owned: true,
                uncounted: false,
            }),
            home: Cell::new(ptr::null()),
            guest,
            parked: Cell::new(ptr::null()),
            is_parked: Cell::new(false),
            all: Cell::new(ptr::null()),
            homes: Cell::new(ptr::null()),
            threads: Cell::new(0),
        }
    }

    /// Whether it uses the set of another heap.
    pub const fn is_guest(&self) -> bool {
        self.guest
    }

    /// Whose set this heap uses: its own, or that of its home.
    ///
    /// # Safety
    /// H5: the caller owns the heap, or holds its lock while it has no owner.
    unsafe fn home(&self) -> &Self {
        // SAFETY: H5: nobody writes it meanwhile.
        let home = unsafe { Cell::read(&raw const self.home) };
        // SAFETY: H1: heaps live for ever.
        unsafe { home.as_ref() }.unwrap_or(self)
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

    /// Runs `f` with the heap's own set, alone (H3), on behalf of no thread: that of a guest is empty.
    /// The first argument is what the set's verbs take as owner.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const Mailbox, &mut SpanSet) -> R) -> R {
        self.parts.with(|parts| f(self.mailbox(), &mut parts.set))
    }

    /// Runs `f` with the set that serves the heap's owner, alone (H3).
    ///
    /// # Safety
    /// The caller owns the heap.
    #[inline]
    pub unsafe fn with_home<R>(&self, f: impl FnOnce(*const Mailbox, &mut SpanSet) -> R) -> R {
        // SAFETY: the caller's promise.
        let home = unsafe { self.home() };
        home.with(|owner, set| {
            set.serve(self.guest);
            f(owner, set)
        })
    }

    /// Runs `f` with the bins if the heap has no owner now, and with the set that last served them: for
    /// whoever trims or counts.
    pub fn with_idle_bins<R>(
        &self,
        f: impl FnOnce(*const Mailbox, &mut SpanSet, &mut Bins) -> R,
    ) -> Option<R> {
        self.parts.with(|parts| {
            if parts.owned {
                return None;
            }
            // SAFETY: H4: without an owner they are ours while we hold the lock.
            let bins = unsafe { &mut *self.bins.get() };
            parts.count(bins);
            if !self.guest {
                return Some(f(self.mailbox(), &mut parts.set, bins));
            }
            // SAFETY: H5: without an owner, and we hold the lock.
            let home = unsafe { self.home() };
            Some(home.with(|owner, set| f(owner, set, bins)))
        })
    }

    /// Empties the owner's bins and has them begin small again, for one that is about to be parked.
    ///
    /// # Safety
    /// The caller owns the heap; `pages` is always the same.
    pub unsafe fn empty_bins(&self, pages: &mut impl Pages) {
        // SAFETY: H4: the caller's.
        let bins = unsafe { &mut *self.bins.get() };
        // SAFETY: the caller's promise.
        let flush = |owner, set: &mut SpanSet| unsafe { set.flush(owner, bins, pages) };
        // SAFETY: the caller owns the heap.
        unsafe { self.with_home(flush) };
        // SAFETY: H4: the caller's, and without a block.
        unsafe { self.bins.get().write(Bins::EMPTY) };
    }

    /// Takes the heap, which is in nobody's reach, with a home if it is a guest.
    fn take(&self, home: *const Self) {
        // Whoever trims it just now is waited for here.
        self.parts.with(|parts| {
            // SAFETY: H5: under the lock, without an owner.
            unsafe { Cell::write(&raw const self.home, home) };
            // SAFETY: H4: without an owner they are ours while we hold the lock.
            parts.count(unsafe { &mut *self.bins.get() });
            parts.owned = true;
        });
    }

    fn give_up(&self) {
        self.parts.with(|parts| parts.owned = false);
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
