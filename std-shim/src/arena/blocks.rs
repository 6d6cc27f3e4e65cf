//! Large blocks of an arena: allocated, freed, and resized in place.

use core::ptr::NonNull;

use larder_core::small::MAX_LARGE_BYTES;
use larder_core::{
    Addr, AddrRange, Align, BestFit, Block, BlockAllocator, ChunkState, Grant, PageIndex, Progress,
    RegionAttempt, RegionPlan, Rejected, Request, ResizeError,
};

use super::lengths::{Cacheable, MAX_GRANULES};
use super::{Arena, ArenaPool, ClaimOutcome};
use crate::os::Os;
use crate::safety::check;

impl<O: Os> Arena<O> {
    /// Allocates a block from committed memory, if that needs no sleep for the lock.
    pub(crate) fn alloc_held(&self, bytes: usize, align: usize) -> ClaimOutcome<NonNull<u8>> {
        let Some((_, request)) = self.requests(bytes, align) else {
            return ClaimOutcome::Full;
        };
        match self.with_bfc_soon(|pool| held_memory(pool, &request)) {
            None => ClaimOutcome::Busy,
            Some(None) => ClaimOutcome::Full,
            Some(Some(grant)) => match self.given(grant.block) {
                Some(block) => ClaimOutcome::Found(block),
                None => ClaimOutcome::Full,
            },
        }
    }

    /// Records a block that the BFC allocated. Returns its pointer.
    fn given(&self, block: Block) -> Option<NonNull<u8>> {
        self.lengths.set(block.addr().get() as usize, block.bytes());
        self.index.enter(&block);
        NonNull::new(self.pointer(block.into_raw().addr))
    }

    /// Allocates a block of `bytes` bytes. Grows the arena if necessary.
    pub(crate) fn alloc(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let (exact, request) = self.requests(bytes, align)?;
        let grant = match self.with_pool(|pool| held_memory(pool, &request)) {
            Some(grant) => grant,
            None => self.growing.with(|()| {
                self.count_vacant();
                let grown = self.pool.alloc(&request);
                grown.or_else(|_| self.pool.alloc(&exact)).ok()
            })?,
        };
        self.given(grant.block)
    }

    /// Returns the exact request of a block, and the preferred one.
    fn requests(&self, bytes: usize, align: usize) -> Option<(Request, Request)> {
        if self.granted_bytes(bytes) / self.granule.bytes() > MAX_GRANULES {
            return None;
        }
        let exact = Request::new(bytes.max(1) as u64).aligned(Align::new(align as u64)?);
        let request = exact.aligned(Align::new(align.max(self.residency.spacing(bytes)) as u64)?);
        Some((exact, request))
    }

    /// Frees a block. Returns `false` if no block starts there. Takes the lock once; if it would
    /// have to sleep for the lock, leaves the block to the next holder and returns `true`.
    pub(crate) fn free(&self, block: *mut u8) -> bool {
        // If no block starts at the address, the marks may not be committed (TABLE2).
        let Some(bytes) = self.bytes_at(block) else {
            return false;
        };
        self.mark_freed(block.addr(), bytes as usize);
        self.free_in_bfc(block)
    }

    /// Frees a block that was cached; `idle` is set if it has already been idle for long. Returns
    /// its length.
    pub(crate) fn free_cached(&self, block: *mut u8, idle: bool) -> usize {
        self.lengths.request(block.addr(), MAX_LARGE_BYTES);
        let bytes = self.bytes_at(block).unwrap_or(0) as usize;
        match idle {
            true => self.mark_idle(block.addr(), bytes),
            false => self.mark_freed(block.addr(), bytes),
        }
        self.free_in_bfc(block);
        bytes
    }

    /// Returns the block that starts at an address, to be cached.
    #[inline(always)]
    pub(crate) fn cacheable(&self, block: *mut u8) -> Option<Cacheable> {
        self.lengths.cacheable(block.addr())
    }

    /// Records that a cached block serves a request of `bytes` bytes.
    #[inline(always)]
    pub(crate) fn request(&self, block: *mut u8, bytes: usize) {
        self.lengths.request(block.addr(), bytes);
    }

    /// Zeroes a block that was cached, as [`zero`](Self::zero) does, since any of it may have been
    /// written.
    ///
    /// # Safety
    /// The block is the caller's and `bytes` long.
    pub(crate) unsafe fn zero_cached(&self, block: *mut u8, bytes: usize) {
        self.marks.set(block.addr(), bytes);
        // SAFETY: the block is the caller's and that long.
        unsafe { self.zero(block, bytes) };
    }

    /// Frees a block, whose memory is already marked, in the BFC. Returns `false` if no block
    /// starts there.
    pub(super) fn free_in_bfc(&self, block: *mut u8) -> bool {
        if !self.lengths.forget(block.addr()) {
            return false;
        }
        match self.with_bfc_soon(|pool| free_at(pool, self.index, block)) {
            Some(freed) => freed,
            None => {
                // The block's first word holds a link until the BFC frees the block.
                self.mark_freed(block.addr(), 1);
                // SAFETY: a committed block of this arena, given up by the caller.
                unsafe { self.deferred.push(block) };
                true
            }
        }
    }

    /// Allocates a reserve from committed memory, if that needs no sleep for the lock. No block
    /// starts there for a free or a resize.
    pub(crate) fn reserve_held(&self, bytes: usize) -> ClaimOutcome<NonNull<u8>> {
        let request = Request::new(bytes as u64);
        match self.with_bfc_soon(|pool| held_memory(pool, &request)) {
            None => ClaimOutcome::Busy,
            Some(None) => ClaimOutcome::Full,
            Some(Some(grant)) => self.reserved(grant),
        }
    }

    /// Allocates a reserve. Grows the arena if necessary.
    pub(crate) fn reserve_grown(&self, bytes: usize) -> Option<NonNull<u8>> {
        let request = Request::new(bytes as u64);
        let grant = self.growing.with(|()| {
            self.count_vacant();
            self.pool.alloc(&request)
        });
        match self.reserved(grant.ok()?) {
            ClaimOutcome::Found(start) => Some(start),
            ClaimOutcome::Full | ClaimOutcome::Busy => None,
        }
    }

    fn reserved(&self, grant: Grant) -> ClaimOutcome<NonNull<u8>> {
        self.index.enter(&grant.block);
        let start = NonNull::new(self.pointer(grant.block.into_raw().addr));
        start.map_or(ClaimOutcome::Full, ClaimOutcome::Found)
    }

    /// Frees a reserve of `bytes` bytes except for the blocks in it, which become blocks of the
    /// arena. The blocks are given by their distances from its start and their lengths, in the order
    /// of their addresses. O(blocks).
    pub(crate) fn end_reserve(
        &self,
        start: *mut u8,
        bytes: usize,
        blocks: impl Iterator<Item = (usize, usize)>,
    ) {
        self.mark_freed(start.addr(), bytes);
        let mut blocks = blocks.peekable();
        // The reserve shrinks to what lies before the first block, or to the block at its start.
        let first = blocks.next_if(|(offset, _)| *offset == 0);
        let before = first.or_else(|| blocks.peek().map(|(offset, _)| (0, *offset)));
        let ended = self.with_pool(|pool| {
            let mut held = block_at(pool, self.index, start)?;
            if let Some((_, bytes)) = before {
                held = pool.resize(held, bytes as u64).ok()?;
            }
            let mut near = held.handle();
            for (offset, bytes) in blocks {
                let addr = Addr::new((start.addr() + offset) as u64);
                let range = AddrRange::new(addr, bytes as u64)?;
                let block = pool.alloc_at(range, Some(near), None).ok()?;
                near = block.handle();
                self.lengths.set(block.addr().get() as usize, block.bytes());
                self.index.enter(&block);
            }
            match first {
                Some(_) => self.lengths.set(start.addr(), held.bytes()),
                None => pool.free(held).ok()?,
            }
            Some(())
        });
        if ended.is_none() {
            // The memory was used, so it is free now, and the tables have a record for each granule.
            check::fail(b"larder: the blocks that a step left lie in memory that is not free\n");
        }
    }

    /// Discards the memory of an unused block. Returns whether the system did.
    pub(crate) fn discard_held(&self, block: *mut u8) -> bool {
        let bytes = self.bytes_at(block).unwrap_or(0) as usize;
        // SAFETY: blocks are committed, and the caller gives this one up.
        let done = bytes > 0 && unsafe { self.os.discard(block, bytes) };
        if done {
            self.marks.clear(block.addr(), bytes);
            self.split.clear_whole(block.addr(), bytes);
        }
        done
    }

    /// Returns whether a block can be resized from one length to another without a change in the
    /// BFC. O(1), without a lock.
    pub(crate) fn has_room(&self, block: *mut u8, old_bytes: usize, new_bytes: usize) -> bool {
        let wanted = Some(self.granted_bytes(new_bytes));
        if self.lengths.requested(block.addr()) == wanted {
            return true;
        }
        // A block that was cached may be a little longer than requested.
        let grows = new_bytes >= old_bytes && wanted <= self.bytes_at(block);
        if grows {
            self.lengths.request(block.addr(), new_bytes);
        }
        grows
    }

    /// Resizes a block in place that has no room. Returns whether that was possible.
    pub(crate) fn resize(&self, block: *mut u8, new_bytes: usize) -> bool {
        let Some(held) = self.bytes_at(block) else {
            return false;
        };
        if self.granted_bytes(new_bytes) < held {
            // The end that is cut off becomes free.
            self.mark_freed(block.addr(), held as usize);
        }
        // Either way the block keeps its address.
        let to = new_bytes as u64;
        let resized = self.with_pool(|pool| {
            let held = block_at(pool, self.index, block)?;
            Some(pool.resize(held, to))
        });
        let resized = match resized {
            Some(Err(Rejected {
                value: block,
                error: ResizeError::NoRoom,
            })) => self.growing.with(|()| {
                if self.is_last(&block) {
                    self.count_vacant();
                }
                self.pool.resize(block, to)
            }),
            Some(resized) => resized,
            None => return false,
        };
        resized.is_ok_and(|held| {
            self.lengths.set(block.addr(), held.bytes());
            true
        })
    }

    /// Returns whether only free memory follows a block, so that the block can grow as memory is
    /// committed.
    fn is_last(&self, held: &Block) -> bool {
        self.with_pool(|pool| {
            let mut is_last = true;
            pool.chunks_from(held.range().end(), Some(held.handle()), |chunk| {
                is_last &= matches!(chunk.state, ChunkState::Free { .. });
                is_last
            });
            is_last
        })
    }
}

/// Returns the block that starts at an address.
fn block_at(pool: &ArenaPool, index: PageIndex<'_>, addr: *mut u8) -> Option<Block> {
    let found = index.find(Addr::new(addr.addr() as u64))?;
    pool.block_from_raw(found).ok()
}

/// Frees the block that starts at an address. Returns `false` if no block does.
pub(super) fn free_at(pool: &mut ArenaPool, index: PageIndex<'_>, addr: *mut u8) -> bool {
    let block = block_at(pool, index, addr);
    block.is_some_and(|block| pool.free(block).is_ok())
}

/// Allocates a block from committed memory.
fn held_memory(pool: &mut ArenaPool, request: &Request) -> Option<Grant> {
    match pool.advance(&mut RegionAttempt::new(*request)) {
        Progress::Ready(grant) => return Some(grant),
        Progress::Plan(RegionPlan::Grow(ticket)) => pool.abort(ticket),
        Progress::Plan(RegionPlan::Release(ticket)) => pool.release_refused(ticket),
        Progress::Failed(_) => {}
    }
    None
}
