//! Returning the memory of free chunks to the system, a few chunks at a time, while other threads
//! allocate.
//!
//! Free memory that is dirty is *idle*. It is *young* until the next tick ([`Arena::age_some`]);
//! one tick later it is discarded. So memory in constant reuse is never discarded, and nothing
//! carries a time stamp: a free sets a mark, and a tick clears all marks.
//!
//! # Invariants
//! * IDLE1 a thread that discards memory holds it as a block, and holds `discarding` from before it
//!   takes that block until the memory is free again. A process that forks takes that lock, so its
//!   child never has such a block, which no thread would free.
//! * IDLE2 young marks are hints: a lost or stale one discards memory a tick earlier or later.
//!
//! A thread holds little of the BFC's memory at a time, and only for the time of one system call.

use larder_core::sync::Ordering;
use larder_core::{Addr, AddrRange, BestFit, Block, BlockAllocator, ChunkHandle, ChunkState};

use super::marks::Marks;
use super::residency::SHORT;
use super::{Arena, ArenaPool, GROWTH_BYTES};
use crate::os::Os;
use crate::os::background::sleep_ns;
use crate::purge::LOOK_COST;
use crate::thread::wait::Sleep;

/// Maximum number of chunks scanned and pieces taken under the BFC's lock at a time.
const MAX_LOOKS: usize = 128;
const MAX_PIECES: usize = 16;
/// Maximum length of a piece in bytes. No more pieces are taken once all pieces together have this
/// length.
const MAX_BYTES: usize = 4 << 20;
/// No more pieces are taken once this number of huge pages must be split for them.
const MAX_SPLITS: usize = 2;

/// Bytes returned at the cost of one block; and the cost in blocks of splitting a huge page, which
/// takes 155 microseconds.
const GIVEN_BYTES: u64 = 4 << 10;
const SPLIT_COST: usize = 1024;

/// Pause, in nanoseconds, between two steps if another thread waited during the first: long enough
/// for that thread to take the lock.
pub(crate) const PAUSE_NS: u64 = 10_000;

/// Bytes whose young marks one step of a tick clears, in about 10 microseconds.
const CLEARED_BYTES: usize = 1 << 30;

/// The idle memory that a walk finds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleKind {
    /// All free memory, because the system may have put pages where nothing has been written.
    Free,
    /// Memory that may have been written.
    Dirty,
    /// Memory that may have been written, and has been free for at least one tick.
    NotYoung,
    /// All memory that has been free for at least one tick.
    Old,
}

/// Memory returned to the system.
#[derive(Clone, Copy, Default)]
pub(crate) struct Given {
    /// Bytes that were resident.
    pub(crate) bytes: u64,
    /// Huge pages that were split to return it.
    splits: usize,
}

impl Given {
    /// Returns the cost of splitting the huge pages, in blocks.
    pub(crate) const fn split_cost(&self) -> usize {
        self.splits * SPLIT_COST
    }

    /// Returns the cost of the walk step that returned this, in blocks.
    pub(crate) const fn go_cost(&self) -> usize {
        LOOK_COST + (self.bytes / GIVEN_BYTES) as usize + self.split_cost()
    }
}

/// Progress of a walk over the chunks of an arena.
pub(crate) struct ArenaWalk {
    from: Addr,
    near: Option<ChunkHandle>,
    ended: bool,
    /// Whether the system is asked which pages are resident; `None` until that is known. Each call
    /// of the program resets this, because the program may install a filter between two calls.
    asks: Option<bool>,
}

/// Progress of a tick of an arena.
pub(crate) enum Aging {
    /// The tick has not begun.
    New,
    /// Idle memory is being discarded.
    Discarding(IdleKind, ArenaWalk),
    /// Young marks are being cleared, beginning at this offset. The flag is set if any mark was
    /// found before the offset.
    Clearing(usize, bool),
}

impl ArenaWalk {
    pub(crate) const fn new() -> Self {
        Self {
            from: Addr::new(0),
            near: None,
            ended: false,
            asks: None,
        }
    }
}

impl<O: Os> Arena<O> {
    /// Marks memory that becomes free: dirty, and young.
    pub(super) fn mark_freed(&self, addr: usize, bytes: usize) {
        self.marks.set(addr, bytes);
        self.young.set(addr, bytes);
    }

    /// Marks memory that becomes free and has been idle for long: dirty, and not young.
    pub(super) fn mark_idle(&self, addr: usize, bytes: usize) {
        self.marks.set(addr, bytes);
        self.young.clear(addr, bytes);
    }

    /// Returns the memory of all free chunks to the system, and decommits the free end of the
    /// range. Returns the bytes that were resident.
    pub(crate) fn trim(&self) -> u64 {
        let which = match self.may_be_filled() {
            true => IdleKind::Free,
            false => IdleKind::Dirty,
        };
        let given = self.discard(which);
        self.free_deferred();
        self.growing.with(|()| self.pool.trim());
        given
    }

    /// Frees the deferred blocks.
    fn free_deferred(&self) {
        while !self.deferred.is_empty() {
            self.with_pool(|_| ());
        }
    }

    /// Continues returning dirty free memory, however young: at most 16 pieces, a little more than
    /// 4 MiB, and three split huge pages. Returns the result, and whether there is more.
    pub(crate) fn discard_some_dirty(&self, walk: &mut ArenaWalk) -> (Given, bool) {
        walk.asks = None;
        let given = self.discard_some(walk, IdleKind::Dirty);
        (given, !walk.ended)
    }

    /// Does a step of a tick: discards memory that has been idle since the last tick, and ages the
    /// rest. With `decommits` it also decommits the end of the range if that is idle. Returns the
    /// result, and whether the tick has ended. A step is at most 128 chunks, 16 pieces, a little
    /// more than 4 MiB, three split huge pages, or the marks of 1 GiB.
    pub(crate) fn age_some(&self, aging: &mut Aging, decommits: bool) -> (Given, bool) {
        match aging {
            Aging::New => {
                let which = if self.residency.take_again() {
                    IdleKind::Old
                } else {
                    IdleKind::NotYoung
                };
                *aging = Aging::Discarding(which, ArenaWalk::new());
            }
            Aging::Discarding(which, walk) if !walk.ended => {
                let which = *which;
                walk.asks = None;
                return (self.discard_some(walk, which), false);
            }
            Aging::Discarding(..) => {
                if decommits && !self.ends_young() {
                    self.growing.with(|()| self.pool.trim());
                }
                *aging = Aging::Clearing(0, false);
            }
            Aging::Clearing(at, any) => {
                let bytes = CLEARED_BYTES.min(self.held_bytes().saturating_sub(*at));
                let found = self.young.take(self.start.addr() + *at, bytes) > 0;
                (*at, *any) = (*at + bytes, *any || found);
                if *at >= self.held_bytes() {
                    // Relaxed: read by the thread that ticks, or under its locks.
                    self.expires.store(u8::from(*any), Ordering::Relaxed);
                    return (Given::default(), true);
                }
            }
        }
        (Given::default(), false)
    }

    /// Discards unused pages of a span. Unless `asks` is set, counts all of them as resident.
    /// Returns `None` if the system refuses.
    ///
    /// # Safety
    /// The pages are committed and not used during the call.
    pub(crate) unsafe fn discard_hole(
        &self,
        start: *mut u8,
        bytes: usize,
        asks: bool,
    ) -> Option<Given> {
        let splits = self.count_splits(start.addr(), bytes);
        // SAFETY: the pages are committed and not used during the call.
        let bytes = unsafe { self.discard_range(start, bytes, bytes, asks) }?;
        Some(Given { bytes, splits })
    }

    /// Discards memory. Returns the bytes that were resident, or `dirty` if the system does not
    /// report them or is not asked. Returns `None` if the system refuses.
    ///
    /// # Safety
    /// The range is committed and not used during the call.
    unsafe fn discard_range(
        &self,
        start: *mut u8,
        bytes: usize,
        dirty: usize,
        asks: bool,
    ) -> Option<u64> {
        let ask = || {
            // SAFETY: the range is committed.
            unsafe { self.os.resident_bytes(start, bytes) }
        };
        let resident = asks.then(ask).flatten().unwrap_or(dirty) as u64;
        if self.splits() {
            // SAFETY: the range is committed.
            unsafe { self.os.split(start, bytes) };
        }
        // SAFETY: the range is committed and not used during the call.
        if !unsafe { self.os.discard(start, bytes) } {
            return None;
        }
        self.residency.count_given(resident);
        // A huge page that lies entirely in the range may be unsplit when it is faulted in again.
        self.split.clear_whole(start.addr(), bytes);
        Some(resident)
    }

    /// Returns whether huge pages that are discarded in part are split. They are split near a
    /// memory limit, where discarded pages must stop counting immediately.
    fn splits(&self) -> bool {
        self.residency.is_bounded() && self.tuning.huge_above() < u64::MAX
    }

    /// Counts the huge pages to be split for a discarded range: at most two, which the range covers
    /// in part and which are not marked as split. Marks them as split.
    fn count_splits(&self, start: usize, bytes: usize) -> usize {
        let ends = [start, start + bytes].into_iter();
        let ends = ends.filter(|end| self.splits() && !end.is_multiple_of(GROWTH_BYTES));
        ends.map(|end| self.split.insert(end)).sum()
    }

    /// Sets the committed bytes beyond which there are no huge pages; with such a bound, huge pages
    /// are split when they are discarded in part. `None` removes the bound.
    pub(crate) fn set_huge_until(&self, bytes: Option<u64>) {
        self.residency.set_huge_until(bytes);
    }

    /// Returns whether the system may put pages into discarded memory, as parts of huge pages. It
    /// does not do so if it was advised against huge pages.
    pub(crate) fn may_be_filled(&self) -> bool {
        self.tuning.huge_above() != u64::MAX && self.residency.advice() != SHORT
    }

    /// Renews the advice for huge pages according to the memory that is resident now. Returns
    /// whether the advice was withdrawn, here or since the last call. Makes up to a few dozen
    /// system calls if anything was discarded or the advice has already been withdrawn.
    pub(crate) fn review_advice(&self) -> bool {
        if self.residency.is_due() {
            self.growing.with(|()| {
                let end = self.start.addr() + self.held_bytes();
                self.pool.source().review(Addr::new(end as u64));
            });
        }
        self.residency.take_spans_again()
    }

    /// Returns whether anything has been freed since the tick before the last one, so that ticks
    /// are due. Sees every free that was done before the call, because the BFC's lock orders the
    /// two. O(granules / 64).
    pub(crate) fn has_idle(&self) -> bool {
        let start = self.start.addr();
        let all = start..start + self.held_bytes();
        let expires = self.expires.load(Ordering::Relaxed) > 0;
        let again = self.residency.looks_again();
        expires
            || again
            || !self.deferred.is_empty()
            || self.young.next_run(None, all, MAX_BYTES).is_some()
    }

    /// Returns the free bytes that may have been written. O(chunks).
    pub(crate) fn idle_bytes(&self) -> u64 {
        let (mut bytes, mut walk, mut more) = (0, ArenaWalk::new(), true);
        while more {
            let (some, is_more) = self.idle_some(&mut walk);
            (bytes, more) = (bytes + some, is_more);
        }
        bytes
    }

    /// Continues counting the free bytes that may have been written, over at most 128 chunks.
    /// Returns the bytes in those chunks, and whether there are more.
    pub(crate) fn idle_some(&self, walk: &mut ArenaWalk) -> (u64, bool) {
        let mut bytes = 0;
        self.with_pool(|pool| {
            self.look(pool, walk, IdleKind::Dirty, &mut 0, |range, _| {
                bytes += range.bytes();
                true
            });
        });
        (bytes, !walk.ended)
    }

    /// Returns whether any of the last memory of the range was freed since the last tick.
    fn ends_young(&self) -> bool {
        let held = self.held_bytes();
        let last = held.saturating_sub(GROWTH_BYTES)..held;
        let start = self.start.addr();
        let last = start + last.start..start + last.end;
        self.young.next_run(None, last, MAX_BYTES).is_some()
    }

    fn held_bytes(&self) -> usize {
        self.pool.stats().reserved_bytes as usize
    }

    /// Discards idle memory. Returns the bytes that were resident.
    fn discard(&self, which: IdleKind) -> u64 {
        let (mut given, mut walk) = (0, ArenaWalk::new());
        while !walk.ended {
            let sleeps = Sleep::count();
            given += self.discard_some(&mut walk, which).bytes;
            if Sleep::count() != sleeps {
                // Another thread waits for the lock, and this thread would take it first again and
                // again.
                sleep_ns(PAUSE_NS);
            }
        }
        given
    }

    /// Discards the next idle pieces: takes them, discards them without the BFC's lock, and frees
    /// them. Not inlined, because the stacks of its callers may be small.
    #[inline(never)]
    fn discard_some(&self, walk: &mut ArenaWalk, which: IdleKind) -> Given {
        self.discarding.with(|()| {
            let (mut given, mut pieces) = (Given::default(), [const { None }; MAX_PIECES]);
            given.splits = self.take_some(walk, which, &mut pieces);
            for block in pieces.iter_mut().filter_map(Option::take) {
                let (start, bytes) = (self.pointer(block.addr()), block.bytes() as usize);
                let dirty = self.marks.count(start.addr(), bytes) * self.marks.unit();
                let asks = *walk.asks.get_or_insert_with(|| !self.os.is_filtered());
                // SAFETY: committed, and ours alone while we hold the block.
                if let Some(resident) = unsafe { self.discard_range(start, bytes, dirty, asks) } {
                    self.marks.clear(start.addr(), bytes);
                    given.bytes += resident;
                }
                self.pool.free(block).ok();
            }
            given
        })
    }

    /// Takes the next idle pieces, up to `pieces.len()`. Returns the number of huge pages to be
    /// split for them.
    fn take_some(
        &self,
        walk: &mut ArenaWalk,
        which: IdleKind,
        pieces: &mut [Option<Block>],
    ) -> usize {
        self.with_pool(|pool| {
            let (mut bytes, mut splits, mut looks) = (0, 0, 0);
            for place in pieces {
                let mut found = None;
                self.look(pool, walk, which, &mut looks, |range, near| {
                    found = Some((range, near));
                    false
                });
                let Some((range, near)) = found else {
                    break;
                };
                *place = pool.alloc_at(range, Some(near), None).ok();
                if place.is_some() {
                    splits +=
                        self.count_splits(range.start().get() as usize, range.bytes() as usize);
                }
                bytes += range.bytes() as usize;
                if bytes >= MAX_BYTES || splits >= MAX_SPLITS {
                    break;
                }
            }
            splits
        })
    }

    /// Continues a walk over a few chunks, counted in `looks`, and passes the idle pieces to `f`
    /// until it returns `false`.
    fn look(
        &self,
        pool: &ArenaPool,
        walk: &mut ArenaWalk,
        which: IdleKind,
        looks: &mut usize,
        mut f: impl FnMut(AddrRange, ChunkHandle) -> bool,
    ) {
        let unless_young = match which {
            IdleKind::NotYoung | IdleKind::Old => Some(&self.young),
            IdleKind::Free | IdleKind::Dirty => None,
        };
        let (from, near) = (walk.from, walk.near);
        walk.ended = true;
        pool.chunks_from(from, near, |chunk| {
            walk.near = Some(chunk.handle);
            let end = chunk.range.end();
            if let ChunkState::Free { .. } = chunk.state {
                walk.from = walk.from.max(chunk.range.start());
                let next = |walk: &ArenaWalk| {
                    let rest = walk.from.get() as usize..end.get() as usize;
                    match which {
                        IdleKind::Free | IdleKind::Old => {
                            Marks::next_gap(unless_young, rest, MAX_BYTES, self.marks.unit())
                        }
                        _ => self.marks.next_run(unless_young, rest, MAX_BYTES),
                    }
                };
                while let Some(mut found) = next(walk) {
                    // A long piece is not cut inside a huge page.
                    if found.len() >= MAX_BYTES && found.end < end.get() as usize {
                        found.end -= found.end % GROWTH_BYTES;
                    }
                    walk.from = Addr::new(found.end as u64);
                    let piece = AddrRange::new(Addr::new(found.start as u64), found.len() as u64);
                    if !piece.is_none_or(|piece| f(piece, chunk.handle)) {
                        walk.ended = false;
                        return false;
                    }
                }
            }
            walk.from = end;
            *looks += 1;
            walk.ended = *looks < MAX_LOOKS;
            walk.ended
        });
    }
}
