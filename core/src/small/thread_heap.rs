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
//!
//! Lock order: the pool's lock is never wanted by who holds a heap's; a guest's comes before its
//! home's.

use core::cell::UnsafeCell;
use core::ptr;

use super::bin::Bins;
use super::pages::Pages;
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
    /// A guest's home, or null (H5).
    home: Cell<*const ThreadHeap<W>>,
    guest: bool,
    /// Links of the pool, under its lock, and a number (H6).
    parked: Cell<*const ThreadHeap<W>>,
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
            }),
            home: Cell::new(ptr::null()),
            guest,
            parked: Cell::new(ptr::null()),
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

struct Heads<W: Wait> {
    parked: *const ThreadHeap<W>,
    parked_guests: *const ThreadHeap<W>,
    all: *const ThreadHeap<W>,
    homes: *const ThreadHeap<W>,
    home_count: usize,
}

impl<W: Wait> Heads<W> {
    const NONE: Self = Self {
        parked: ptr::null(),
        parked_guests: ptr::null(),
        all: ptr::null(),
        homes: ptr::null(),
        home_count: 0,
    };

    /// Enters a heap into the list of all (H1).
    fn enter(&mut self, heap: &ThreadHeap<W>) {
        // SAFETY: the heap is not in the list yet, so nobody reads its link.
        unsafe { Cell::write(&raw const heap.all, self.all) };
        self.all = heap;
    }

    /// Enters a heap that has no owner any more.
    fn push(&mut self, heap: &ThreadHeap<W>) {
        let parked = match heap.guest {
            true => &mut self.parked_guests,
            false => &mut self.parked,
        };
        // SAFETY: the link of a heap that is not parked is read by nobody, and the pool's lock is held.
        unsafe { Cell::write(&raw const heap.parked, *parked) };
        *parked = heap;
    }

    /// Takes the heap that was parked last.
    fn pop(&mut self, guest: bool) -> Option<&'static ThreadHeap<W>> {
        let parked = match guest {
            true => &mut self.parked_guests,
            false => &mut self.parked,
        };
        // SAFETY: H1: heaps live for ever.
        let heap = unsafe { parked.as_ref() }?;
        // SAFETY: links are read and written under the pool's lock.
        *parked = unsafe { Cell::read(&raw const heap.parked) };
        Some(heap)
    }

    /// The home that fewest threads use. O(homes).
    fn quietest(&self) -> Option<&'static ThreadHeap<W>> {
        let mut found: Option<(&ThreadHeap<W>, u32)> = None;
        let mut at = self.homes;
        // SAFETY: H1: heaps live for ever.
        while let Some(home) = unsafe { at.as_ref() } {
            // SAFETY: H6: under the pool's lock.
            let threads = unsafe { Cell::read(&raw const home.threads) };
            if found.is_none_or(|(_, fewest)| threads < fewest) {
                found = Some((home, threads));
            }
            // SAFETY: written before the home was in the list.
            at = unsafe { Cell::read(&raw const home.homes) };
        }
        found.map(|(home, _)| home)
    }

    /// Counts a thread more or less at a home (H6).
    fn count(home: &ThreadHeap<W>, more: bool) {
        // SAFETY: H6: under the pool's lock.
        let threads = unsafe { Cell::read(&raw const home.threads) };
        let threads = match more {
            true => threads + 1,
            false => threads.saturating_sub(1),
        };
        // SAFETY: the same.
        unsafe { Cell::write(&raw const home.threads, threads) };
    }
}

// SAFETY: the heaps are shared anyway (they are Sync) and live for ever.
unsafe impl<W: Wait> Send for Heads<W> {}

/// All heaps of a process, and which of them are parked.
pub struct HeapPool<W: Wait = Spin>(Locked<Heads<W>, W>);

impl<W: Wait> HeapPool<W> {
    /// No heaps.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(Locked::new(Heads::NONE))
    }

    /// No heaps.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(Locked::new(Heads::NONE))
    }

    /// Enters a new heap with a set of its own, which the caller owns.
    pub fn enter(&self, heap: &'static ThreadHeap<W>) {
        self.0.with(|heads| {
            heads.enter(heap);
            // SAFETY: the heap is not in the list yet, so nobody reads its link.
            unsafe { Cell::write(&raw const heap.homes, heads.homes) };
            heads.homes = heap;
            heads.home_count += 1;
            Heads::count(heap, true);
        });
    }

    /// Enters a new guest, which the caller owns from now on if there is a home for it.
    pub fn enter_guest(&self, heap: &'static ThreadHeap<W>) -> Option<&'static ThreadHeap<W>> {
        let home = self.0.with(|heads| {
            let home = heads.quietest()?;
            heads.enter(heap);
            Heads::count(home, true);
            Some(home)
        })?;
        heap.take(home);
        Some(heap)
    }

    /// Gives up a heap, with what lies in its bins. The caller owns it.
    pub fn park(&self, heap: &'static ThreadHeap<W>) {
        // SAFETY: the caller owns it.
        let home = unsafe { heap.home() };
        heap.give_up();
        self.0.with(|heads| {
            Heads::count(home, false);
            heads.push(heap);
        });
    }

    /// Takes a parked heap with a set of its own, if there is one, as its last owner left it.
    pub fn adopt(&self) -> Option<&'static ThreadHeap<W>> {
        let heap = self.0.with(|heads| {
            let heap = heads.pop(false)?;
            Heads::count(heap, true);
            Some(heap)
        })?;
        heap.take(ptr::null());
        Some(heap)
    }

    /// Takes a parked guest, if there is one, and the home that fewest threads use.
    pub fn adopt_guest(&self) -> Option<&'static ThreadHeap<W>> {
        let (heap, home) = self.0.with(|heads| {
            let home = heads.quietest()?;
            let heap = heads.pop(true)?;
            Heads::count(home, true);
            Some((heap, home))
        })?;
        heap.take(home);
        Some(heap)
    }

    /// Heaps with a set of their own.
    pub fn homes(&self) -> usize {
        self.0.with(|heads| heads.home_count)
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
            // Ours as long as nobody else runs.
            self.park(heap);
        });
    }

    /// Whether the heap is parked. O(parked heaps).
    pub fn is_parked(&self, heap: &ThreadHeap<W>) -> bool {
        self.0.with(|heads| {
            let mut at = match heap.guest {
                true => heads.parked_guests,
                false => heads.parked,
            };
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
        for guests in [true, false] {
            self.each_locked(|heap| {
                if heap.guest == guests {
                    // SAFETY: the caller's promise; guests before homes.
                    unsafe { heap.parts.lock_across_fork() };
                }
            });
        }
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
