//! TensorFlow 1.15's BFC over a [`Source`]. Every call is followed by a check of the invariants.

use std::cell::RefCell;

use larder_core::{
    Addr, AllocError, Block, BlockAllocator, Cause, ChunkHandle, FreeError, Grant, OutOfMemory,
    Rejected, Request, Stats, StreamPoint,
};
use larder_model::tensorflow::Bfc;

use super::Source;

pub(crate) struct Upstream {
    pub(crate) bfc: Bfc,
    pub(crate) source: Source,
}

/// Returns the block at an address. Its handle is the number of the allocation.
fn block_of(bfc: &Bfc, addr: Addr) -> Block {
    let (range, used) = bfc.block(addr).expect("a block in use");
    let handle = ChunkHandle::new(used.id as u32).expect("ids begin at 1");
    Block::outside(range, handle)
}

impl Upstream {
    pub(crate) fn over(bfc: Bfc, source: Source) -> Self {
        Self { bfc, source }
    }

    #[track_caller]
    pub(crate) fn alloc_freed_by(&mut self, bytes: u64, count: u64) -> Option<Block> {
        let range = self.bfc.alloc_freed_by(&self.source, bytes, count)?;
        check(&self.bfc);
        Some(block_of(&self.bfc, range.start()))
    }

    #[track_caller]
    pub(crate) fn free_at(&mut self, block: Block, count: u64) {
        self.bfc.free_at(block.addr(), count);
        check(&self.bfc);
    }

    /// Sets the limit. Returns the limit in force.
    #[track_caller]
    pub(crate) fn adjust(&mut self, limit_bytes: u64) -> u64 {
        let limit_bytes = self.bfc.adjust(&self.source, limit_bytes);
        check(&self.bfc);
        assert_eq!(limit_bytes, self.bfc.stats().limit_bytes);
        limit_bytes
    }

    /// Returns the requested size and the allocation number of a block in use.
    pub(crate) fn sizes(&self, block: &Block) -> Option<(u64, u64)> {
        let (_, used) = self.bfc.block(block.addr())?;
        Some((used.requested_bytes, used.id))
    }

    /// Returns `(address, bytes)` of the free chunks, in address order.
    pub(crate) fn free_chunks(&self) -> Vec<(u64, u64)> {
        let free = self.bfc.chunks().filter(|(_, chunk)| chunk.used.is_none());
        free.map(|(addr, chunk)| (addr.get(), chunk.bytes))
            .collect()
    }

    /// Returns everything observable: counters, regions and chunks.
    pub(crate) fn picture(&self) -> String {
        let regions: Vec<_> = self.bfc.regions().collect();
        let chunks: Vec<_> = self.bfc.chunks().collect();
        format!("{:?}\n{regions:?}\n{chunks:?}", self.bfc.stats())
    }
}

/// Checks that the chunks cover the regions, that no two neighbours could be joined, and that the counters are the sums
/// over the chunks.
#[track_caller]
fn check(bfc: &Bfc) {
    let mut chunks = bfc.chunks().peekable();
    let (mut live, mut requested, mut held) = (0, 0, 0);
    for region in bfc.regions() {
        held += region.bytes();
        let mut at = region.start().get();
        let mut joinable = false;
        while let Some((start, chunk)) = chunks.next_if(|(start, _)| *start < region.end()) {
            assert_eq!(start.get(), at, "the chunks cover the region");
            at += chunk.bytes;
            let may_join = chunk.used.is_none() && chunk.freed_at == 0;
            assert!(!(joinable && may_join), "free neighbours at {start}");
            joinable = may_join;
            if let Some(used) = chunk.used {
                live += chunk.bytes;
                requested += used.requested_bytes;
            }
        }
        assert_eq!(at, region.end().get());
    }
    assert_eq!(chunks.next(), None);
    let stats = bfc.stats();
    let counted = (
        stats.live_bytes,
        stats.requested_bytes,
        stats.reserved_bytes,
    );
    assert_eq!(counted, (live, requested, held));
}

/// Upstream's allocator as one side of a `Vmem`.
pub(crate) struct UpstreamSide(pub(crate) RefCell<Upstream>);

impl BlockAllocator for UpstreamSide {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let bytes = request.bytes;
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let out = OutOfMemory::of(Cause::Limit, bytes);
        let block = self.0.borrow_mut().alloc_freed_by(bytes, 0);
        let block = block.ok_or(AllocError::OutOfMemory(out))?;
        Ok(Grant { block, wait: None })
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        let error = match point {
            Some(_) => Some(FreeError::NoStreams),
            None if self.allocation_id(&block).is_none() => Some(FreeError::Unknown),
            None => None,
        };
        if let Some(error) = error {
            return Err(Rejected::new(block, error));
        }
        self.0.borrow_mut().free_at(block, 0);
        Ok(())
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.0.borrow().sizes(block).map(|sizes| sizes.0)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.0.borrow().sizes(block).map(|sizes| sizes.1)
    }

    fn stats(&self) -> Stats {
        self.0.borrow().bfc.stats()
    }
}
