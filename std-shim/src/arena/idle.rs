//! Giving the memory of free chunks back to the system, a few at a time, while others allocate.
//!
//! Free memory that is dirty is *idle*. It is *young* until the next tick of the clock by which idle
//! memory goes back ([`Arena::age`]); one tick later it is discarded. So memory in constant reuse
//! never goes, without a time kept anywhere: a free sets a mark, a tick clears them all.
//!
//! # Invariants
//! * IDLE1 whoever discards holds the memory as a block meanwhile, and holds `discarding` from before that
//!   until the memory is free again: a process that forks takes that lock, so its child never has a
//!   block that nobody frees.
//! * IDLE2 young marks are hints: what is lost or left over makes memory go a tick earlier or later.
//!
//! What is held at a time is short against what the BFC has, and for the time of one system call.

use larder_core::sync::Ordering;
use larder_core::{Addr, AddrRange, Block, BlockAllocator, ChunkHandle, ChunkState};

use super::marks::Marks;
use super::residency::SHORT;
use super::{Arena, ArenaBfc, GROWTH_BYTES};
use crate::os::Os;
use crate::os::background::sleep_ns;
use crate::thread::wait::Sleep;

/// Chunks looked at and pieces taken under the BFC's lock in one go.
const MAX_LOOKS: usize = 128;
const MAX_PIECES: usize = 16;
/// A piece is at most so long, and no more are taken when so much is held.
const MAX_BYTES: usize = 4 << 20;

/// Between two goes, if somebody waited during the first: long enough for that thread to come in.
pub(crate) const PAUSE_NS: u64 = 10_000;

/// Which idle memory is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// Everything free: the system may have put pages where nothing was written.
    Free,
    /// What may have been written.
    Dirty,
    /// What may have been written, and has been free for a tick at least.
    NotYoung,
    /// Everything that has been free for a tick at least.
    Old,
}

/// Where a walk over the chunks stands.
struct Walk {
    from: Addr,
    near: Option<ChunkHandle>,
    ended: bool,
}

impl Walk {
    const fn new() -> Self {
        Self {
            from: Addr::new(0),
            near: None,
            ended: false,
        }
    }
}

impl<O: Os> Arena<O> {
    /// Marks memory that becomes free: dirty, and young.
    pub(super) fn mark_freed(&self, addr: usize, bytes: usize) {
        self.marks.set(addr, bytes);
        self.young.set(addr, bytes);
    }

    /// Gives the memory of everything free back to the system, and what lies free at the end of the range
    /// altogether. Returns the bytes that were in memory.
    pub(crate) fn trim(&self) -> u64 {
        let which = match self.may_be_filled() {
            true => Idle::Free,
            false => Idle::Dirty,
        };
        let given = self.discard(which, u64::MAX);
        self.with_bfc(|_| ());
        self.growing.with(|()| self.bfc.trim());
        given
    }

    /// Gives free memory back, however young, little more than `most` bytes; how many of it were in memory.
    pub(crate) fn discard_dirty(&self, most: u64) -> u64 {
        self.discard(Idle::Dirty, most)
    }

    /// One tick: discards what has been idle since the last one at least, and ages the rest; `decommits` an
    /// idle end of the range, too. Returns the bytes that were in memory. O(chunks + granules / 64).
    pub(crate) fn age(&self, decommits: bool) -> u64 {
        let again = self.again.swap(0, Ordering::Relaxed) > 0;
        let given = self.discard(if again { Idle::Old } else { Idle::NotYoung }, u64::MAX);
        if decommits && !self.ends_young() {
            self.growing.with(|()| self.bfc.trim());
        }
        let aged = self.young.take(self.start.addr(), self.held_bytes()) > 0;
        // Relaxed: read by the thread that ticks, or under its locks.
        self.expires.store(u8::from(aged), Ordering::Relaxed);
        given
    }

    /// Discards the memory of pages in a span in which nothing is used. Returns the bytes that were in memory, all of
    /// them unless `asks`; `None` if the system refuses.
    ///
    /// # Safety
    /// The pages are committed, and nobody uses them meanwhile.
    pub(crate) unsafe fn discard_hole(
        &self,
        start: *mut u8,
        bytes: usize,
        asks: bool,
    ) -> Option<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.discard_range(start, bytes, bytes, asks) }
    }

    /// Discards memory; how many bytes of it were in memory, or `dirty` where the system does not say, or is not asked.
    /// `None` if it refuses.
    ///
    /// # Safety
    /// The range is committed, and nobody uses it meanwhile.
    unsafe fn discard_range(
        &self,
        start: *mut u8,
        bytes: usize,
        dirty: usize,
        asks: bool,
    ) -> Option<u64> {
        let ask = || {
            // SAFETY: the caller's promise.
            unsafe { self.os.resident_bytes(start, bytes) }
        };
        let resident = asks.then(ask).flatten().unwrap_or(dirty) as u64;
        // SAFETY: the caller's promise.
        if !unsafe { self.os.discard(start, bytes) } {
            return None;
        }
        self.residency.count_given(resident);
        Some(resident)
    }

    /// Whether the system may put pages where memory went back: as part of huge ones, unless it was told not to.
    pub(crate) fn may_be_filled(&self) -> bool {
        self.tuning.huge_above() != u64::MAX && self.residency.advice() != SHORT
    }

    /// Tells the system anew whether huge pages are wished for, by what is in memory now; whether that wish was
    /// taken back. Up to a few dozen system calls, if anything went back or the wish is taken back already.
    pub(crate) fn review_advice(&self) -> bool {
        let taken_back = self.residency.is_due()
            && self.growing.with(|()| {
                let end = self.start.addr() + self.held_bytes();
                self.bfc.source().review(Addr::new(end as u64))
            });
        if taken_back {
            // Relaxed: read by the thread that ticks, or under its locks.
            self.again.store(1, Ordering::Relaxed);
        }
        taken_back
    }

    /// Whether something was freed since the last tick but one, so that ticks are due. Whoever freed
    /// it before this was called is seen: the BFC's lock orders both. O(granules / 64).
    pub(crate) fn has_idle(&self) -> bool {
        let start = self.start.addr();
        let all = start..start + self.held_bytes();
        let expires = self.expires.load(Ordering::Relaxed) > 0;
        let again = self.again.load(Ordering::Relaxed) > 0;
        expires
            || again
            || !self.deferred.is_empty()
            || self.young.next_run(None, all, MAX_BYTES).is_some()
    }

    /// Bytes that are free and may have been written. O(chunks).
    pub(crate) fn idle_bytes(&self) -> u64 {
        let (mut bytes, mut walk) = (0, Walk::new());
        while !walk.ended {
            self.with_bfc(|bfc| {
                self.look(bfc, &mut walk, Idle::Dirty, |range, _| {
                    bytes += range.bytes();
                    true
                });
            });
        }
        bytes
    }

    /// Whether any of the last memory of the range was freed since the last tick.
    fn ends_young(&self) -> bool {
        let held = self.held_bytes();
        let last = held.saturating_sub(GROWTH_BYTES)..held;
        let start = self.start.addr();
        let last = start + last.start..start + last.end;
        self.young.next_run(None, last, MAX_BYTES).is_some()
    }

    fn held_bytes(&self) -> usize {
        self.bfc.stats().reserved_bytes as usize
    }

    /// Discards idle memory, a few pieces at a time: they are taken, discarded without the BFC's
    /// lock, and freed. Ends when `most` bytes have gone.
    fn discard(&self, which: Idle, most: u64) -> u64 {
        let (mut given, mut walk) = (0, Walk::new());
        let asks = !self.os.is_filtered();
        while !walk.ended && given < most {
            let sleeps = Sleep::count();
            given += self
                .discarding
                .with(|()| self.discard_some(&mut walk, which, asks));
            if Sleep::count() != sleeps {
                // Somebody waits, whom this thread would be ahead of again and again.
                sleep_ns(PAUSE_NS);
            }
        }
        given
    }

    /// The caller holds `discarding`.
    fn discard_some(&self, walk: &mut Walk, which: Idle, asks: bool) -> u64 {
        let mut given = 0;
        for block in self.take_some(walk, which).into_iter().flatten() {
            let (start, bytes) = (self.pointer(block.addr()), block.bytes() as usize);
            let dirty = self.marks.count(start.addr(), bytes) * self.marks.unit();
            // SAFETY: committed, and ours alone while we hold the block.
            if let Some(resident) = unsafe { self.discard_range(start, bytes, dirty, asks) } {
                self.marks.clear(start.addr(), bytes);
                given += resident;
            }
            self.bfc.free(block).ok();
        }
        given
    }

    /// Takes the next idle pieces.
    fn take_some(&self, walk: &mut Walk, which: Idle) -> [Option<Block>; MAX_PIECES] {
        self.with_bfc(|bfc| {
            let mut pieces = [None; MAX_PIECES];
            let (mut count, mut bytes) = (0, 0);
            self.look(bfc, walk, which, |range, near| {
                pieces[count] = Some((range, near));
                count += 1;
                bytes += range.bytes() as usize;
                count < MAX_PIECES && bytes < MAX_BYTES
            });
            pieces.map(|piece| {
                let (range, near) = piece?;
                bfc.alloc_at_near(range, Some(near)).ok()
            })
        })
    }

    /// Goes on with a walk over a few chunks and tells `f` the idle pieces, until it says `false`.
    fn look(
        &self,
        bfc: &ArenaBfc,
        walk: &mut Walk,
        which: Idle,
        mut f: impl FnMut(AddrRange, ChunkHandle) -> bool,
    ) {
        let unless_young = match which {
            Idle::NotYoung | Idle::Old => Some(&self.young),
            Idle::Free | Idle::Dirty => None,
        };
        let (mut looks, from, near) = (0, walk.from, walk.near);
        walk.ended = true;
        bfc.chunks_from(from, near, |chunk| {
            walk.near = Some(chunk.handle);
            let end = chunk.range.end();
            if let ChunkState::Free { .. } = chunk.state {
                walk.from = walk.from.max(chunk.range.start());
                let next = |walk: &Walk| {
                    let rest = walk.from.get() as usize..end.get() as usize;
                    match which {
                        Idle::Free | Idle::Old => {
                            Marks::next_gap(unless_young, rest, MAX_BYTES, self.marks.unit())
                        }
                        _ => self.marks.next_run(unless_young, rest, MAX_BYTES),
                    }
                };
                while let Some(found) = next(walk) {
                    walk.from = Addr::new(found.end as u64);
                    let piece = AddrRange::new(Addr::new(found.start as u64), found.len() as u64);
                    if !piece.is_none_or(|piece| f(piece, chunk.handle)) {
                        walk.ended = false;
                        return false;
                    }
                }
            }
            walk.from = end;
            looks += 1;
            walk.ended = looks < MAX_LOOKS;
            walk.ended
        });
    }
}
