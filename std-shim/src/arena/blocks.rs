//! Large blocks of an arena: allocated, freed, and resized where they are.

use core::ptr::NonNull;

use larder_core::{
    Addr, Align, BestFit, Block, BlockAllocator, ChunkState, Grant, PageIndex, Progress,
    RegionAttempt, RegionPlan, Rejected, Request, ResizeError,
};

use super::{Arena, ArenaBfc, Held};
use crate::os::Os;

impl<O: Os> Arena<O> {
    /// A block from memory that is held already, if the lock can be had without sleeping.
    pub(crate) fn alloc_held(&self, bytes: usize, align: usize) -> Held<NonNull<u8>> {
        let Some((_, request)) = self.requests(bytes, align) else {
            return Held::Full;
        };
        match self.with_bfc_soon(|bfc| held_memory(bfc, &request)) {
            None => Held::Busy,
            Some(None) => Held::Full,
            Some(Some(grant)) => match self.given(grant.block) {
                Some(block) => Held::Found(block),
                None => Held::Full,
            },
        }
    }

    /// A block that the BFC gave.
    fn given(&self, block: Block) -> Option<NonNull<u8>> {
        self.lengths.set(block.addr().get() as usize, block.bytes());
        self.index.enter(&block);
        NonNull::new(self.pointer(block.into_raw().addr))
    }

    /// A block of `bytes` bytes, for which the arena grows if it must.
    pub(crate) fn alloc(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let (exact, request) = self.requests(bytes, align)?;
        let grant = match self.with_bfc(|bfc| held_memory(bfc, &request)) {
            Some(grant) => grant,
            None => self.growing.with(|()| {
                self.count_vacant();
                let grown = self.bfc.alloc(&request);
                grown.or_else(|_| self.bfc.alloc(&exact)).ok()
            })?,
        };
        self.given(grant.block)
    }

    /// What a block must be, and what it should be.
    fn requests(&self, bytes: usize, align: usize) -> Option<(Request, Request)> {
        let exact = Request::new(bytes.max(1) as u64).aligned(Align::new(align as u64)?);
        let request = exact.aligned(Align::new(align.max(self.residency.spacing(bytes)) as u64)?);
        Some((exact, request))
    }

    /// Takes a block back, at most `bytes` of which may have been written; `false` if none starts
    /// there. The lock is held once. Who cannot have it without sleeping leaves the block to the next holder,
    /// and `true` is the answer.
    pub(crate) fn free(&self, block: *mut u8, bytes: usize) -> bool {
        // For what is no block the marks may not be there (TABLE2).
        if self.bytes_at(block).is_none() {
            return false;
        }
        self.mark_freed(block.addr(), bytes);
        self.free_in_bfc(block)
    }

    /// Takes a block out of the BFC, whose memory is marked; `false` if none starts there.
    pub(super) fn free_in_bfc(&self, block: *mut u8) -> bool {
        if !self.lengths.forget(block.addr()) {
            return false;
        }
        match self.with_bfc_soon(|bfc| free_at(bfc, self.index, block)) {
            Some(freed) => freed,
            None => {
                // Its first words hold a link until then.
                self.mark_freed(block.addr(), 1);
                // SAFETY: a block of this arena, committed, and given up by the caller.
                unsafe { self.deferred.push(block) };
                true
            }
        }
    }

    /// Takes the memory of a block away that nobody uses any more; whether that went well.
    pub(crate) fn discard_held(&self, block: *mut u8) -> bool {
        let bytes = self.bytes_at(block).unwrap_or(0) as usize;
        // SAFETY: a block is committed, and this one the caller's, who gives it up.
        let done = bytes > 0 && unsafe { self.os.discard(block, bytes) };
        if done {
            self.marks.clear(block.addr(), bytes);
            self.split.clear_whole(block.addr(), bytes);
        }
        done
    }

    /// Changes a block's length in place; whether that was possible.
    pub(crate) fn resize(&self, block: *mut u8, old_bytes: usize, new_bytes: usize) -> bool {
        if self.bytes_at(block) == Some(self.granted_bytes(new_bytes)) {
            return true;
        }
        if new_bytes < old_bytes {
            // What is cut off becomes free.
            self.mark_freed(block.addr(), old_bytes);
        }
        // Either way the block stays under its address.
        let to = new_bytes as u64;
        let resized = self.with_bfc(|bfc| {
            let held = block_at(bfc, self.index, block)?;
            Some(bfc.resize(held, to))
        });
        let resized = match resized {
            Some(Err(Rejected {
                value: block,
                error: ResizeError::NoRoom,
            })) => self.growing.with(|()| {
                if self.is_last(&block) {
                    self.count_vacant();
                }
                self.bfc.resize(block, to)
            }),
            Some(resized) => resized,
            None => return false,
        };
        resized.is_ok_and(|held| {
            self.lengths.set(block.addr(), held.bytes());
            true
        })
    }

    /// Whether nothing used lies behind a block, so that it grows where memory is committed.
    fn is_last(&self, held: &Block) -> bool {
        self.with_bfc(|bfc| {
            let mut is_last = true;
            bfc.chunks_from(held.range().end(), Some(held.handle()), |chunk| {
                is_last &= matches!(chunk.state, ChunkState::Free { .. });
                is_last
            });
            is_last
        })
    }
}

/// The block that starts at an address.
fn block_at(bfc: &ArenaBfc, index: PageIndex<'_>, addr: *mut u8) -> Option<Block> {
    let found = index.find(Addr::new(addr.addr() as u64))?;
    bfc.block_from_raw(found).ok()
}

/// Frees the block that starts at an address; returns `false` if none does.
pub(super) fn free_at(bfc: &mut ArenaBfc, index: PageIndex<'_>, addr: *mut u8) -> bool {
    let block = block_at(bfc, index, addr);
    block.is_some_and(|block| bfc.free(block).is_ok())
}

/// A block from what is committed already.
fn held_memory(bfc: &mut ArenaBfc, request: &Request) -> Option<Grant> {
    match bfc.advance(&mut RegionAttempt::new(*request)) {
        Progress::Ready(grant) => return Some(grant),
        Progress::Plan(RegionPlan::Grow(ticket)) => bfc.abort(ticket),
        Progress::Plan(RegionPlan::Release(ticket)) => bfc.release_refused(ticket),
        Progress::Failed(_) => {}
    }
    None
}
