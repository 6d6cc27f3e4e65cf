//! [`Process`]: everything the threads of a process share: arenas, heaps, and the way to both.
//!
//! # Invariants
//! * O1 arenas are entered in order and never leave; an entry is written once, before the count
//!   that covers it.
//! * O2 is in `mappings`, which has the blocks that lie in no arena.
//!
//! # Locks, in the order in which a thread may want them
//! The pool's → a secondary heap's → a heap's → `meta` → `adding` →
//! `discarding` and `growing` of an arena → a BFC's; `settings` of steps →
//! a step heap's, and the mappings', which want no other. All but the pool's
//! and the BFCs' are held across system calls that get or discard memory: only the heap's own thread,
//! `trim`, `stats`, the purger and a fork want a heap's, only new heaps want `meta`, and only growth the others.

mod heaps;
mod mappings;
mod steps;

use std::alloc::Layout;
use std::ptr::{self, NonNull};

use larder_core::Locked;
use larder_core::small::{HeapPool, Pages, SizeClass, Span, SpanMemory, ThreadHeap};
use larder_core::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::arena::{Arena, GROWTH_BYTES, Grown, Held, MOVE_LEAST_BYTES, SLICE_BYTES};
use crate::config::Tuning;
use crate::os::{FIRST_ARENA_BYTES, Os};
use crate::purge::Purger;
use crate::settings::StepSettings;
use crate::step_heap::StepHeap;
use crate::waiting::Sleep;
use mappings::Mappings;

/// Blocks of up to this size share spans of one slice, larger ones of eight.
const SMALL_SPAN_BLOCK: usize = 8 << 10;
const LARGE_SPAN_BYTES: usize = 8 * SLICE_BYTES;

/// So many arenas are made where threads find the locks of the others taken, and their holders asleep.
const SPARE_ARENAS: usize = 4;
/// From here on a block is a mapping of its own: a part of the addresses that an arena has.
const MAPPING_LEAST_BYTES: usize = FIRST_ARENA_BYTES / 64;
/// Where addresses are scarce, from this part of the first arena on: what is freed leaves no hole there.
const SCARCE_PART: usize = 16;
/// Most arenas. The first is large; more are needed only where the system refuses large ones.
const MAX_ARENAS: usize = 64;
/// Where the quartering of a refused reservation ends.
const MIN_ARENA_BYTES: usize = 4 << 20;
/// Where addresses are scarce so many are always left, for the program's own maps and stacks.
const SPARED_BYTES: usize = 16 << 20;
/// Heaps are laid in pieces of this size.
const META_BYTES: usize = 64 << 10;

pub(crate) type Heap = ThreadHeap<Sleep>;

/// Heaps with sets of their own for each processor. More threads than that at once share them.
const PRIMARIES_PER_PROCESSOR: usize = 4;

/// Memory for heaps, handed out and never taken back.
struct Meta {
    at: *mut u8,
    left: usize,
    /// All that was ever got.
    bytes: usize,
}

// SAFETY: the memory belongs to the value.
unsafe impl Send for Meta {}

/// Smaller blocks, and blocks of just this size, are never part of a step, so that they need not ask
/// for one.
pub(crate) const STEP_LEAST_BYTES: usize = 32 << 10;
/// Threads that have steps at the same time.
const MAX_STEP_HEAPS: usize = 16;
/// Where the quartering of a refused range for steps ends.
const MIN_STEP_BYTES: usize = 64 << 20;

/// The heaps of steps: entered in order, as arenas are (O1).
struct StepHeaps<O: Os> {
    heaps: [AtomicPtr<StepHeap<O>>; MAX_STEP_HEAPS],
    count: AtomicUsize,
    /// Steps begun, as far as they are counted.
    begun: AtomicU64,
    /// How many of them have no effect.
    skipped: AtomicU64,
    /// How the next ones are made; held while one is made.
    settings: Locked<StepSettings, Sleep>,
}

/// What the threads of a process share.
pub(crate) struct Process<O: Os> {
    os: O,
    /// What the program chose.
    pub(crate) tuning: Tuning,
    pub(crate) purger: Purger,
    /// What is asked for first.
    arena_bytes: usize,
    arenas: [AtomicPtr<Arena<O>>; MAX_ARENAS],
    mappings: Mappings,
    count: AtomicUsize,
    /// Arenas are added by one thread at a time.
    adding: Locked<(), Sleep>,
    pub(crate) pool: HeapPool<Sleep>,
    meta: Locked<Meta, Sleep>,
    /// How many heaps have sets of their own at most; 0 until it is known.
    max_primaries: AtomicUsize,
    steps: StepHeaps<O>,
}

impl<O: Os> Process<O> {
    /// A process without memory, whose first arena will have `arena_bytes` bytes if the system
    /// lets it.
    pub(crate) const fn new(os: O, arena_bytes: usize) -> Self {
        Self {
            os,
            tuning: Tuning::new(),
            purger: Purger::new(),
            arena_bytes,
            arenas: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_ARENAS],
            mappings: Mappings::new(),
            count: AtomicUsize::new(0),
            adding: Locked::new(()),
            pool: HeapPool::new(),
            meta: Locked::new(Meta {
                at: ptr::null_mut(),
                left: 0,
                bytes: 0,
            }),
            max_primaries: AtomicUsize::new(0),
            steps: StepHeaps {
                heaps: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_STEP_HEAPS],
                count: AtomicUsize::new(0),
                begun: AtomicU64::new(0),
                skipped: AtomicU64::new(0),
                settings: Locked::new(StepSettings::new()),
            },
        }
    }

    /// All arenas, oldest first.
    pub(crate) fn arenas(&'static self) -> impl Iterator<Item = &'static Arena<O>> {
        // Acquire: the entries below the count are written (O1).
        let count = self.count.load(Ordering::Acquire);
        self.arenas.iter().take(count).filter_map(|entry| {
            // SAFETY: O1: arenas live for ever. Relaxed: the count published the entry.
            unsafe { entry.load(Ordering::Relaxed).as_ref() }
        })
    }

    /// The arena an address lies in.
    #[inline]
    pub(crate) fn arena_of(&'static self, block: *mut u8) -> Option<&'static Arena<O>> {
        self.arenas().find(|arena| arena.contains(block))
    }

    /// Tries `held` on every arena, which neither grows nor sleeps.
    fn find_held<T>(&'static self, held: impl Fn(&'static Arena<O>) -> Held<T>) -> Held<T> {
        let mut answer = Held::Full;
        for arena in self.arenas() {
            match held(arena) {
                Held::Full => {}
                Held::Busy => answer = Held::Busy,
                found => return found,
            }
        }
        answer
    }

    /// Tries `held` on every arena; then `grow`, which may sleep, on one whose lock is not taken, on all of
    /// them, and on a new one that has room for `bytes`.
    fn find_in_arenas<T>(
        &'static self,
        bytes: usize,
        held: impl Fn(&'static Arena<O>) -> Held<T>,
        grow: impl Fn(&'static Arena<O>) -> Option<T>,
    ) -> Option<T> {
        let seen = self.count.load(Ordering::Acquire);
        let (mut full, mut busy) = (None, false);
        for arena in self.arenas() {
            match held(arena) {
                Held::Found(found) => return Some(found),
                Held::Full => full = full.or(Some(arena)),
                Held::Busy => busy = true,
            }
        }
        if busy && let Some(found) = full.or_else(|| self.spare_arena()).and_then(&grow) {
            return Some(found);
        }
        if let Some(found) = self.arenas().find_map(&grow) {
            return Some(found);
        }
        self.adding.with(|()| {
            // Another thread may have added one meanwhile.
            if let Some(found) = self.arenas().skip(seen).find_map(&grow) {
                return Some(found);
            }
            // Where addresses are left the system has refused memory: more addresses do not help.
            if self.arenas().any(|arena| arena.room() >= bytes as u64) {
                return None;
            }
            grow(self.add_arena(bytes)?)
        })
    }

    /// One more arena, for threads that find the locks of all others taken.
    #[cold]
    fn spare_arena(&'static self) -> Option<&'static Arena<O>> {
        self.adding.with(|()| {
            let may = self.count.load(Ordering::Relaxed) < SPARE_ARENAS && !self.is_scarce();
            may.then(|| self.add_arena(0)).flatten()
        })
    }

    /// Whether the system gave fewer addresses than were asked for first.
    fn is_scarce(&'static self) -> bool {
        let first = self.arenas().next();
        first.is_some_and(|arena| arena.bytes() < self.arena_bytes)
    }

    /// From how many bytes on a block is a mapping of its own.
    fn mapping_least_bytes(&'static self) -> usize {
        match self.arenas().next() {
            Some(first) if first.bytes() < self.arena_bytes => {
                (first.bytes() / SCARCE_PART).max(MOVE_LEAST_BYTES)
            }
            _ => MAPPING_LEAST_BYTES,
        }
    }

    /// Reserves one more arena. The caller holds `adding`.
    fn add_arena(&'static self, bytes: usize) -> Option<&'static Arena<O>> {
        let count = self.count.load(Ordering::Relaxed);
        let entry = self.arenas.get(count)?;
        // Room for the block, its alignment and the granule's rounding.
        let least = bytes
            .checked_add(2 * SLICE_BYTES)?
            .max(MIN_ARENA_BYTES)
            .checked_next_multiple_of(GROWTH_BYTES)?;
        let arena = self.reserve(least)?;
        entry.store(ptr::from_ref(arena).cast_mut(), Ordering::Relaxed);
        // Release: the entry and the arena are written (O1).
        self.count.store(count + 1, Ordering::Release);
        Some(arena)
    }

    /// Reserves as much as the system gives, from the configured size down to `least`.
    fn reserve(&'static self, least: usize) -> Option<&'static Arena<O>> {
        let mut bytes = self.arena_bytes.max(least);
        if let Some(arena) = Arena::reserve(&self.os, &self.tuning, bytes) {
            return Some(arena);
        }
        while bytes > least {
            bytes = (bytes / 4).max(least) & !(GROWTH_BYTES - 1);
            if !self.leaves_some(bytes) {
                continue;
            }
            // Addresses are scarce then: most of what there is stays with the program.
            let modest = (bytes / 4).max(least) & !(GROWTH_BYTES - 1);
            if let Some(arena) = Arena::reserve(&self.os, &self.tuning, modest) {
                return Some(arena);
            }
        }
        None
    }

    /// Whether so many addresses can be had and some are left then, for the program's own maps and stacks.
    fn leaves_some(&'static self, bytes: usize) -> bool {
        let Some(probe_bytes) = bytes.checked_add(SPARED_BYTES) else {
            return false;
        };
        let Some(probe) = self.os.reserve(probe_bytes, SLICE_BYTES) else {
            return false;
        };
        // SAFETY: reserved just now, not used.
        unsafe { self.os.release(probe.as_ptr(), probe_bytes) };
        true
    }

    /// A block without a class, from memory that is held already.
    pub(crate) fn alloc_held(&'static self, bytes: usize, align: usize) -> Held<NonNull<u8>> {
        if bytes >= self.mapping_least_bytes() {
            return Held::Busy;
        }
        self.find_held(|arena| arena.alloc_held(bytes, align))
    }

    /// A block without a class.
    pub(crate) fn alloc_large(&'static self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if bytes > isize::MAX as usize {
            return None;
        }
        let in_arenas = || self.alloc_in_arenas(bytes, align);
        let mapping = || self.alloc_mapping(bytes, align);
        match bytes < self.mapping_least_bytes() {
            true => in_arenas().or_else(mapping),
            // What is no mapping may find room between other blocks.
            false => mapping().or_else(in_arenas),
        }
    }

    /// A block in an arena.
    fn alloc_in_arenas(&'static self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        // An arena that could never hold it is not searched.
        let may = |arena: &Arena<O>| arena.bytes() >= bytes;
        self.find_in_arenas(
            bytes.checked_add(align)?,
            |arena| match may(arena) {
                true => arena.alloc_held(bytes, align),
                false => Held::Full,
            },
            |arena| may(arena).then(|| arena.alloc(bytes, align)).flatten(),
        )
    }

    fn alloc_mapping(&'static self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if self.is_scarce() && !self.leaves_some(bytes) {
            return None;
        }
        // A place that an arena lost to the system stays unused: blocks there would count as the arena's.
        let is_apart = |block: &NonNull<u8>| self.arena_of(block.as_ptr()).is_none();
        let block = (0..2)
            .filter_map(|_| self.mappings.alloc(&self.os, bytes, align))
            .find(is_apart)?;
        if self.tuning.huge_above() == u64::MAX {
            // SAFETY: mapped just now. Refused, it has the pages it would have had.
            unsafe { self.os.advise_short(block.as_ptr(), bytes) };
        }
        Some(block)
    }

    /// Zeroes what is not known to be zero of a block without a class that was given just now.
    ///
    /// # Safety
    /// The block is the caller's and that long.
    pub(crate) unsafe fn zero_large(&'static self, block: *mut u8, bytes: usize) {
        // A mapping reads as zero.
        if let Some(arena) = self.arena_of(block) {
            // SAFETY: the caller's promise.
            unsafe { arena.zero(block, bytes) };
        }
    }

    /// Changes the length of a block without a class where it is; whether that was possible.
    pub(crate) fn resize_large(
        &'static self,
        block: *mut u8,
        old_bytes: usize,
        new_bytes: usize,
    ) -> bool {
        if let Some(arena) = self.arena_of(block) {
            return arena.resize(block, old_bytes, new_bytes);
        }
        // SAFETY: the caller's block, whose end is given up; it stays under its address.
        let shrunk = || unsafe { self.mappings.resize(&self.os, block, new_bytes, None) };
        new_bytes <= old_bytes && shrunk().is_some()
    }

    /// A longer block without a class in place of one, with its contents, where pages can be moved.
    /// `None` if they cannot; then nothing has happened.
    ///
    /// # Safety
    /// The block is the caller's, that long, and used by nobody meanwhile.
    pub(crate) unsafe fn grow_elsewhere(
        &'static self,
        block: *mut u8,
        layout: Layout,
        new_bytes: usize,
    ) -> Option<Grown> {
        if layout.size() < MOVE_LEAST_BYTES || new_bytes > isize::MAX as usize {
            return None;
        }
        let Some(arena) = self.arena_of(block) else {
            if self.is_scarce() && !self.leaves_some(new_bytes.saturating_sub(layout.size())) {
                return None;
            }
            let align = Some(layout.align());
            // SAFETY: the caller's promise.
            let grown = unsafe { self.mappings.resize(&self.os, block, new_bytes, align) };
            return grown.map(|block| Grown {
                block,
                idle_bytes: 0,
            });
        };
        let mapping = match new_bytes < self.mapping_least_bytes() {
            true => None,
            false => self.alloc_mapping(new_bytes, layout.align()),
        };
        let Some(to) = mapping else {
            // SAFETY: the caller's promise.
            return unsafe {
                arena.grow_elsewhere(block, layout.size(), new_bytes, layout.align())
            };
        };
        // SAFETY: the caller's promise, and a block that is longer.
        unsafe { arena.leave(block, to.as_ptr(), layout.size()) };
        Some(Grown {
            block: to,
            idle_bytes: 0,
        })
    }

    /// Takes a block without a class back; `false` if it is none of ours.
    pub(crate) fn free_large(&'static self, block: *mut u8, bytes: usize) -> bool {
        match self.arena_of(block) {
            Some(arena) => arena.free(block, bytes),
            None => self.mappings.free(&self.os, block),
        }
    }

    /// Length of a block that is a mapping of its own.
    pub(crate) fn mapping_at(&'static self, block: *mut u8) -> Option<usize> {
        self.mappings.bytes_at(block)
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.os.page_bytes()
    }

    /// Bytes of the arenas and of the ranges of steps that are in memory; 0 where the system does not say.
    pub(crate) fn resident_bytes(&'static self) -> u64 {
        let arenas = self.arenas().filter_map(Arena::resident_bytes);
        let steps = self.step_heaps().filter_map(StepHeap::resident_bytes);
        arenas.chain(steps).sum()
    }

    /// Bytes of all mappings.
    pub(crate) fn mapped_bytes(&'static self) -> u64 {
        self.mappings.bytes()
    }

    /// Whether so many bytes could be had if all idle memory came back.
    pub(crate) fn could_hold(&'static self, bytes: usize) -> bool {
        self.arenas().any(|arena| arena.bytes() >= bytes)
    }

    /// Empties every transfer cache and parked heap, and gives idle memory back to the system. Returns the bytes that
    /// were in memory, with those that a tick gives back meanwhile.
    pub(crate) fn trim(&'static self) -> u64 {
        let before = self.purger.purged_bytes();
        if self.arenas().any(Arena::may_be_filled) {
            self.each_heap_looks_again();
        }
        // The first pass sends blocks back that lie in the caches of others, the second receives them.
        for _ in 0..2 {
            self.flush_idle_caches();
            self.trim_heaps();
        }
        for arena in self.arenas() {
            self.purger.count_purged(arena.trim());
        }
        let given = self.purger.purged_bytes().saturating_sub(before);
        given + self.step_heaps().map(StepHeap::trim).sum::<u64>()
    }
}

impl<O: Os> Process<O> {
    /// Takes every lock, for a fork.
    ///
    /// # Safety
    /// The calling thread holds none of them, and calls nothing of this process before
    /// [`unlock_all`](Self::unlock_all).
    pub(crate) unsafe fn lock_all(&'static self) {
        // SAFETY: the caller's promise, here and below; in the order of the list above.
        unsafe { self.pool.lock_all() };
        // SAFETY: the caller's promise.
        unsafe { self.meta.lock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.adding.lock_across_fork() };
        for arena in self.arenas() {
            // SAFETY: the caller's promise. No arena is added while `adding` is ours.
            unsafe { arena.lock_across_fork() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.mappings.lock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.steps.settings.lock_across_fork() };
        for heap in self.step_heaps() {
            // SAFETY: the caller's promise. No heap is added while `settings` is ours.
            unsafe { heap.lock_across_fork() };
        }
    }

    /// Ends what [`lock_all`](Self::lock_all) began, in the parent or the child.
    ///
    /// # Safety
    /// The calling thread called `lock_all`.
    pub(crate) unsafe fn unlock_all(&'static self) {
        for heap in self.step_heaps() {
            // SAFETY: the caller's promise, here and below.
            unsafe { heap.unlock_across_fork() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.steps.settings.unlock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.mappings.unlock_across_fork() };
        for arena in self.arenas() {
            // SAFETY: the caller's promise, here and below.
            unsafe { arena.unlock_across_fork() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.adding.unlock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.meta.unlock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.pool.unlock_all() };
    }
}

/// A process as the place where spans come from.
pub(crate) struct PagesOf<O: Os>(pub(crate) &'static Process<O>);

// SAFETY: promise 1: blocks of BFCs over ranges that do not overlap, committed; records lie in
// tables that stay. Promise 2: A1.
unsafe impl<O: Os> Pages for PagesOf<O> {
    fn span_bytes(&self, class: SizeClass) -> usize {
        span_bytes(class)
    }

    fn alloc_span(&mut self, bytes: usize) -> Option<SpanMemory> {
        // With room for the alignment.
        self.0.find_in_arenas(
            bytes + SLICE_BYTES,
            |arena| arena.alloc_held_span(bytes),
            |arena| arena.alloc_span(bytes),
        )
    }

    fn alloc_held_span(&mut self, bytes: usize) -> Option<SpanMemory> {
        match self.0.find_held(|arena| arena.alloc_held_span(bytes)) {
            Held::Found(memory) => Some(memory),
            Held::Full => None,
            // Another arena rather than a wait.
            Held::Busy => self.alloc_span(bytes),
        }
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        // SAFETY: the caller's promise.
        unsafe { self.give_span(span, false) };
    }

    fn page_bytes(&self) -> usize {
        self.0.os.page_bytes()
    }

    unsafe fn discard(&mut self, start: *mut u8, bytes: usize) {
        if let Some(arena) = self.0.arena_of(start) {
            // SAFETY: committed with the span, and the caller's promise.
            self.0
                .purger
                .count_purged(unsafe { arena.discard_hole(start, bytes) });
        }
    }

    #[inline]
    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        self.0.arena_of(block)?.span_of(block)
    }

    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.alloc_in_arenas(bytes, align)
    }

    unsafe fn free_block(&mut self, block: *mut u8) {
        let Some(arena) = self.0.arena_of(block) else {
            return;
        };
        let bytes = arena.bytes_at(block).unwrap_or(0);
        arena.free(block, bytes as usize);
    }
}

impl<O: Os> PagesOf<O> {
    /// Takes the memory of a span back that has been idle for long.
    ///
    /// # Safety
    /// `span` is the record of a span from `alloc_span` with no used block (S5).
    pub(crate) unsafe fn free_idle_span(&mut self, span: *mut Span) {
        // SAFETY: the caller's promise.
        unsafe { self.give_span(span, true) };
    }

    /// # Safety
    /// `span` is the record of a span from `alloc_span` with no used block (S5).
    unsafe fn give_span(&mut self, span: *mut Span, idle: bool) {
        // SAFETY: the record of a span in use.
        let base = unsafe { Span::shape(span) }.base;
        if let Some(arena) = self.0.arena_of(base) {
            // SAFETY: the caller's promise.
            unsafe { arena.free_span(span, idle) };
        }
    }
}

/// Length of a span for a class.
pub(crate) const fn span_bytes(class: SizeClass) -> usize {
    if class.block_bytes() <= SMALL_SPAN_BLOCK {
        SLICE_BYTES
    } else {
        LARGE_SPAN_BYTES
    }
}
