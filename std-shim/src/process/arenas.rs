//! The arenas of a process: the order in which they are searched, and when one is added.
//!
//! # Invariants
//! * PROC1 arenas are entered in order and never removed; an entry is written once, before the
//!   count that covers it.

use core::ptr;

use larder_core::small::{LARGE_UNIT, MAX_LARGE_BYTES, SizeClass};
use larder_core::sync::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use super::Process;
use crate::arena::{Arena, ClaimOutcome, GROWTH_BYTES, SLICE_BYTES};
use crate::os::Os;

/// Up to this number of arenas, another one is added when a thread finds the locks of all arenas
/// held by sleeping holders.
const SPARE_ARENAS: usize = 4;
/// Maximum number of arenas. The first is large, so more are needed only if the system refuses
/// large ones.
pub(super) const MAX_ARENAS: usize = 64;
/// A refused reservation is quartered repeatedly, down to this many bytes.
const MIN_ARENA_BYTES: usize = 4 << 20;
/// Bytes of the first arena where commits count as used. It is short, so that long blocks have
/// their own mappings, whose memory no longer counts once the blocks are freed.
const COUNTED_ARENA_BYTES: usize = if usize::BITS >= 64 { 1 << 30 } else { 64 << 20 };
/// Bytes of address space left to the program where addresses are scarce: the stack of a thread and
/// a little more.
const SPARED_BYTES: usize = 9 << 20;
/// Further bytes left if the heap is hardened, for the tables of its blocks.
const SPARED_FOR_TABLES_BYTES: usize = 8 << 20;

/// The part of the first arena's state that a free by address reads; nearly all blocks lie in that
/// arena. Written once, by the thread that adds the arena; alone in its cache line.
#[repr(align(64))]
pub(super) struct FirstArena {
    start: AtomicUsize,
    /// Number of slices; 0 until there is an arena.
    slices: AtomicUsize,
    classes: AtomicPtr<AtomicU8>,
}

impl FirstArena {
    pub(super) const fn none() -> Self {
        Self {
            start: AtomicUsize::new(0),
            slices: AtomicUsize::new(0),
            classes: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn enter<O: Os>(&self, arena: &Arena<O>) {
        let classes = arena.classes();
        self.start.store(arena.start_addr(), Ordering::Relaxed);
        self.classes
            .store(classes.as_ptr().cast_mut(), Ordering::Relaxed);
        // Release: the other two are written.
        self.slices.store(classes.len(), Ordering::Release);
    }
}

impl<O: Os> Process<O> {
    /// Returns the class of a block in a span of the first arena, [`SizeClass::NONE`] for other
    /// addresses of that arena, and `None` outside.
    #[inline(always)]
    pub(crate) fn class_in_first(&'static self, block: *mut u8) -> Option<SizeClass> {
        let first = &self.first;
        // Relaxed, all three: a thread that holds a block of the arena got it from a thread that
        // saw all three written (ARENA1).
        let start = first.start.load(Ordering::Relaxed);
        let slice = block.addr().wrapping_sub(start) / SLICE_BYTES;
        if slice >= first.slices.load(Ordering::Relaxed) {
            return None;
        }
        let class = first.classes.load(Ordering::Relaxed).wrapping_add(slice);
        // SAFETY: an entry of a table that is never released: the slice is below the length.
        let entry = unsafe { &*class }.load(Ordering::Relaxed);
        Some(SizeClass::from_entry(entry))
    }

    /// Iterates over the arenas, oldest first.
    pub(crate) fn arenas(&'static self) -> impl Iterator<Item = &'static Arena<O>> {
        // Acquire: the entries below the count are written (PROC1).
        let count = self.arena_count.load(Ordering::Acquire);
        self.arenas.iter().take(count).filter_map(|entry| {
            // SAFETY: PROC1: arenas are never freed. Relaxed: the count published the entry.
            unsafe { entry.load(Ordering::Relaxed).as_ref() }
        })
    }

    /// Returns the arena that contains an address. Nearly all blocks lie in the first one.
    #[inline(always)]
    pub(crate) fn arena_of(&'static self, block: *mut u8) -> Option<&'static Arena<O>> {
        // SAFETY: PROC1: arenas are never freed. Acquire: the arena is written, though the count
        // may not cover it yet.
        let first = unsafe { self.arenas[0].load(Ordering::Acquire).as_ref() };
        match first {
            Some(first) if first.contains(block) => Some(first),
            _ => self.arena_beyond_first(block),
        }
    }

    #[cold]
    #[inline(never)]
    fn arena_beyond_first(&'static self, block: *mut u8) -> Option<&'static Arena<O>> {
        self.arenas().skip(1).find(|arena| arena.contains(block))
    }

    /// Tries `held`, which allocates `bytes` bytes and neither grows nor sleeps, on every arena.
    pub(super) fn find_held<T>(
        &'static self,
        bytes: usize,
        held: impl Fn(&'static Arena<O>) -> ClaimOutcome<T>,
    ) -> ClaimOutcome<T> {
        let mut answer = ClaimOutcome::Full;
        for arena in self.arenas() {
            match held(arena) {
                ClaimOutcome::Full => {}
                ClaimOutcome::Busy => answer = ClaimOutcome::Busy,
                found => {
                    self.purger.taken(bytes, &self.tuning);
                    return found;
                }
            }
        }
        answer
    }

    /// Tries `held` on every arena; then tries `grow`, which may sleep, on an arena whose lock is
    /// free, on all arenas, and on a new arena that has room for `bytes` bytes.
    pub(super) fn find_in_arenas<T>(
        &'static self,
        bytes: usize,
        held: impl Fn(&'static Arena<O>) -> ClaimOutcome<T>,
        grow: impl Fn(&'static Arena<O>) -> Option<T>,
    ) -> Option<T> {
        self.purger.taken(bytes, &self.tuning);
        let grow = |arena: &'static Arena<O>| {
            let found = grow(arena);
            if found.is_some() {
                self.note_growth();
            }
            found
        };
        let seen = self.arena_count.load(Ordering::Acquire);
        let (mut full, mut busy) = (None, false);
        for arena in self.arenas() {
            match held(arena) {
                ClaimOutcome::Found(found) => return Some(found),
                ClaimOutcome::Full => full = full.or(Some(arena)),
                ClaimOutcome::Busy => busy = true,
            }
        }
        if busy && let Some(found) = full.or_else(|| self.spare_arena()).and_then(&grow) {
            return Some(found);
        }
        if let Some(found) = self.arenas().find_map(&grow) {
            return Some(found);
        }
        self.adding.with(|()| {
            // Another thread may have added an arena since.
            if let Some(found) = self.arenas().skip(seen).find_map(&grow) {
                return Some(found);
            }
            // If an arena has addresses left, the system has refused memory: more addresses do not
            // help.
            if self.arenas().any(|arena| arena.room() >= bytes as u64) {
                return None;
            }
            grow(self.add_arena(bytes)?)
        })
    }

    /// Reports the committed bytes to the purger, if growth triggers a purge.
    pub(super) fn note_growth(&'static self) {
        if self.tuning.makes_up() {
            let held = self.arenas().map(|arena| arena.numbers().1).sum();
            self.purger.grew(held, self.os.coarse_ms());
        }
    }

    /// Adds an arena, for threads that find the locks of all other arenas taken.
    #[cold]
    fn spare_arena(&'static self) -> Option<&'static Arena<O>> {
        self.adding.with(|()| {
            let may = self.arena_count.load(Ordering::Relaxed) < SPARE_ARENAS && !self.is_scarce();
            may.then(|| self.add_arena(0)).flatten()
        })
    }

    /// Returns whether the first arena is shorter than configured: the system granted fewer
    /// addresses, or commits count.
    pub(super) fn is_scarce(&'static self) -> bool {
        let first = self.arenas().next();
        first.is_some_and(|arena| arena.bytes() < self.arena_bytes)
    }

    /// Reserves another arena. The caller holds `adding`.
    fn add_arena(&'static self, bytes: usize) -> Option<&'static Arena<O>> {
        let count = self.arena_count.load(Ordering::Relaxed);
        let entry = self.arenas.get(count)?;
        // Room for the block, its alignment and the granule's rounding.
        let least = bytes
            .checked_add(2 * SLICE_BYTES)?
            .max(MIN_ARENA_BYTES)
            .checked_next_multiple_of(GROWTH_BYTES)?;
        if count == 0 {
            // Asked once, because a program may not be allowed to open files later.
            let counts = self.os.counts_commits();
            self.counts_commits
                .store(u8::from(counts), Ordering::Relaxed);
            // The first barrier takes long once the process has several threads.
            let processors = match self.os.barrier() {
                true => self.os.processors(),
                false => 0,
            };
            self.large_units.store(
                (MAX_LARGE_BYTES / LARGE_UNIT * processors) as u32,
                Ordering::Relaxed,
            );
        }
        let arena = self.reserve(least)?;
        // Release: the arena is written (see `arena_of`).
        entry.store(ptr::from_ref(arena).cast_mut(), Ordering::Release);
        if count == 0 {
            self.first.enter(arena);
        }
        // Release: the entry and the arena are written (PROC1).
        self.arena_count.store(count + 1, Ordering::Release);
        Some(arena)
    }

    /// Reserves as much as the system allows, from the configured size down to `least`. Where
    /// commits count, it starts with less: with [`COUNTED_ARENA_BYTES`], or the total of all arenas
    /// if that is more.
    fn reserve(&'static self, least: usize) -> Option<&'static Arena<O>> {
        let most = match self.counts_commits() {
            true => self
                .arenas()
                .map(Arena::bytes)
                .sum::<usize>()
                .max(COUNTED_ARENA_BYTES),
            false => usize::MAX,
        };
        let mut bytes = self.arena_bytes.min(most).max(least);
        if let Some(arena) = Arena::reserve(&self.os, &self.tuning, bytes) {
            return Some(arena);
        }
        while bytes > least {
            bytes = (bytes / 4).max(least) & !(GROWTH_BYTES - 1);
            if !self.leaves_some(bytes) {
                continue;
            }
            // Addresses are scarce, so most of the remaining addresses are left to the program.
            let modest = (bytes / 4).max(least) & !(GROWTH_BYTES - 1);
            if let Some(arena) = Arena::reserve(&self.os, &self.tuning, modest) {
                return Some(arena);
            }
        }
        None
    }

    /// Returns whether `bytes` bytes of addresses can be reserved and some are left, for the
    /// program's own maps and stacks.
    pub(super) fn leaves_some(&'static self, bytes: usize) -> bool {
        // A reservation of partial pages could not be released entirely.
        let whole = |bytes: usize| bytes.checked_next_multiple_of(self.os.page_bytes());
        let spared = match self.tuning.is_hardened() {
            true => SPARED_BYTES + SPARED_FOR_TABLES_BYTES,
            false => SPARED_BYTES,
        };
        let Some(probe_bytes) = bytes.checked_add(spared).and_then(whole) else {
            return false;
        };
        let Some(probe) = self.os.reserve(probe_bytes, SLICE_BYTES) else {
            return false;
        };
        // SAFETY: reserved just now, not used.
        unsafe { self.os.release(probe.as_ptr(), probe_bytes) };
        true
    }
}
