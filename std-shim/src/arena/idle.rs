//! Giving the memory of free chunks back to the system, a few at a time, while others allocate.
//!
//! Free memory that is dirty is *idle*. It is *young* until the next tick of the clock by which idle
//! memory goes home ([`Arena::age`]); one tick later it is discarded. So memory in constant reuse
//! never goes, without a time kept anywhere: a free sets a mark, a tick clears them all.
//!
//! # Invariants
//! * A4 whoever discards holds the memory as a block meanwhile, and `discarding` from before he takes
//!   it until it is free again: a process that forks takes that lock, so its child never has a block
//!   that nobody frees.
//! * A5 young marks are hints: what is lost or left over makes memory go a tick earlier or later.
//!
//! What is held at a time is short against what the BFC has, and for the time of one system call.

use larder_core::sync::Ordering;
use larder_core::{
    Addr, AddrRange, Bfc, Block, BlockAllocator, ChunkHandle, ChunkState, PageIndex,
};

use super::Arena;
use crate::os::Os;

/// Chunks looked at and pieces taken under the BFC's lock in one go.
const MOST_LOOKS: usize = 128;
const MOST_PIECES: usize = 16;
/// A piece is at most so long, and no more are taken when so much is held.
const MOST_BYTES: usize = 4 << 20;

type Books = Bfc<'static, PageIndex<'static>>;

/// Which idle memory is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    All,
    NotYoung,
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

    /// Gives the memory of everything free back to the system: the end of the range as a whole, what
    /// lies between blocks by discarding its pages. Returns the bytes.
    pub(crate) fn trim(&self) -> u64 {
        let given = self.growing.with(|()| self.bfc.trim());
        given + self.discard(Idle::All)
    }

    /// One tick: discards what has been idle since the last one at least, and ages the rest. Returns
    /// the bytes. O(chunks + granules / 64).
    pub(crate) fn age(&self) -> u64 {
        let given = self.discard(Idle::NotYoung);
        let aged = self.young.take(self.start.addr(), self.held_bytes()) > 0;
        // Relaxed: read by the thread that ticks, or under its locks.
        self.ripens.store(u8::from(aged), Ordering::Relaxed);
        given
    }

    /// Whether something was freed since the last tick but one, so that ticks are due. Whoever freed
    /// it before this was called is seen: the BFC's lock orders both. O(granules / 64).
    pub(crate) fn has_idle(&self) -> bool {
        let start = self.start.addr();
        let all = start..start + self.held_bytes();
        let ripens = self.ripens.load(Ordering::Relaxed) > 0;
        ripens || self.young.next_stretch(None, all, MOST_BYTES).is_some()
    }

    /// Idle bytes. O(chunks).
    pub(crate) fn idle_bytes(&self) -> u64 {
        let (mut bytes, mut walk) = (0, Walk::new());
        while !walk.ended {
            self.bfc.with(|bfc| {
                self.look(bfc, &mut walk, Idle::All, |range, _| {
                    bytes += range.bytes();
                    true
                });
            });
        }
        bytes
    }

    fn held_bytes(&self) -> usize {
        self.bfc.stats().reserved_bytes as usize
    }

    /// Discards idle memory, a few pieces at a time: they are taken, discarded without the BFC's
    /// lock, and freed.
    fn discard(&self, which: Idle) -> u64 {
        let (mut given, mut walk) = (0, Walk::new());
        while !walk.ended {
            given += self
                .discarding
                .with(|()| self.discard_some(&mut walk, which));
        }
        given
    }

    /// The caller holds `discarding`.
    fn discard_some(&self, walk: &mut Walk, which: Idle) -> u64 {
        let mut given = 0;
        for block in self.take_some(walk, which).into_iter().flatten() {
            let (start, bytes) = (self.pointer(block.addr()), block.bytes() as usize);
            // SAFETY: committed, and ours alone while we hold the block.
            if unsafe { self.os.discard(start, bytes) } {
                self.marks.clear(start.addr(), bytes);
                given += bytes as u64;
            }
            self.bfc.free(block).ok();
        }
        given
    }

    /// Takes the next idle pieces.
    fn take_some(&self, walk: &mut Walk, which: Idle) -> [Option<Block>; MOST_PIECES] {
        self.bfc.with(|bfc| {
            let mut pieces = [None; MOST_PIECES];
            let (mut count, mut bytes) = (0, 0);
            self.look(bfc, walk, which, |range, near| {
                pieces[count] = Some((range, near));
                count += 1;
                bytes += range.bytes() as usize;
                count < MOST_PIECES && bytes < MOST_BYTES
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
        bfc: &Books,
        walk: &mut Walk,
        which: Idle,
        mut f: impl FnMut(AddrRange, ChunkHandle) -> bool,
    ) {
        let young = match which {
            Idle::All => None,
            Idle::NotYoung => Some(&self.young),
        };
        let (mut looks, from, near) = (0, walk.from, walk.near);
        walk.ended = true;
        bfc.chunks_from(from, near, |chunk| {
            walk.near = Some(chunk.handle);
            let end = chunk.range.end();
            if let ChunkState::Free { .. } = chunk.state {
                walk.from = walk.from.max(chunk.range.start());
                let rest = |walk: &Walk| walk.from.get() as usize..end.get() as usize;
                while let Some(found) = self.marks.next_stretch(young, rest(walk), MOST_BYTES) {
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
            walk.ended = looks < MOST_LOOKS;
            walk.ended
        });
    }
}
