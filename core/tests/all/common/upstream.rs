//! TensorFlow 1.15's BFC over a [`Source`], with the methods of the [`Pool`] over ours, and the trait of both
//! ([`Alike`]).

use std::cell::RefCell;

use larder_core::{
    Addr, AddrRange, AllocError, BestFit, Block, BlockAllocator, Cause, ChunkHandle, FreeError,
    Grant, OutOfMemory, PoolStats, RegionConfig, Rejected, Request, Stats, StreamPoint,
};
use larder_model::tensorflow::Bfc;
use larder_model::tensorflow::bfc::Chunk;

use super::{LimitChange, MIB, Picture, Pool, Source, Tuple, range, tuple_of};

/// The observable state of upstream's: counters, regions, chunks.
#[derive(Clone, PartialEq, Debug)]
pub struct UpstreamPicture {
    pub stats: Stats,
    pub regions: Vec<AddrRange>,
    pub chunks: Vec<(Addr, Chunk)>,
}

/// Upstream's BFC over a [`Source`].
pub struct Upstream {
    pub bfc: Bfc,
    pub source: Source,
}

/// The block as the tests pass it on; the number of the allocation is its handle.
fn block_of(bfc: &Bfc, addr: Addr) -> Block {
    let (range, used) = bfc.block(addr).expect("a block in use");
    let handle = ChunkHandle::new(used.id as u32).expect("ids begin at 1");
    Block::outside(range, handle)
}

impl Upstream {
    pub fn over(bfc: Bfc, source: Source) -> Self {
        Self { bfc, source }
    }

    /// Creates one with growth: regions double from 1 MiB.
    pub fn new(limit_bytes: u64) -> Self {
        Self::over(Bfc::new(limit_bytes), Source::new())
    }

    /// Without growth: the first region is the limit.
    pub fn at_once(limit_bytes: u64) -> Self {
        let bfc = Bfc::new(limit_bytes).with_first_region(limit_bytes);
        Self::over(bfc, Source::new())
    }

    /// Giving free regions back before it fails.
    pub fn collecting(limit_bytes: u64) -> Self {
        Self::over(Bfc::new(limit_bytes).collecting(), Source::new())
    }

    /// An allocator that is handed its regions `(start, bytes)`.
    pub fn with_regions(limit_bytes: u64, regions: &[(u64, u64)]) -> Self {
        let mut pool = Self::new(limit_bytes);
        for (start, bytes) in regions {
            pool.bfc.add_region(range(*start, *bytes));
        }
        pool
    }

    #[track_caller]
    pub fn check(&self) {
        check(&self.bfc);
    }

    pub fn alloc_freed_by(&mut self, bytes: u64, count: u64) -> Option<Block> {
        let range = self.bfc.alloc_freed_by(&self.source, bytes, count)?;
        self.check();
        Some(block_of(&self.bfc, range.start()))
    }

    #[track_caller]
    pub fn free_at(&mut self, block: Block, count: u64) {
        self.bfc.free_at(block.addr(), count);
        self.check();
    }

    pub fn picture(&self) -> UpstreamPicture {
        picture_of_upstream(&self.bfc)
    }
}

pub fn picture_of_upstream(bfc: &Bfc) -> UpstreamPicture {
    UpstreamPicture {
        stats: bfc.stats(),
        regions: bfc.regions().collect(),
        chunks: bfc.chunks().collect(),
    }
}

/// The chunks cover the regions, neighbours that may be joined are, and the counters are their sums.
#[track_caller]
pub fn check(bfc: &Bfc) {
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

/// Upstream's as one side of a `Vmem`.
pub struct UpstreamSide(pub RefCell<Upstream>);

impl BlockAllocator for UpstreamSide {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let bytes = request.bytes;
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let out = OutOfMemory::of(Cause::Limit, bytes);
        let block = self.0.borrow_mut().try_alloc(bytes);
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
        self.0.borrow_mut().free(block);
        Ok(())
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.0.borrow().requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.0.borrow().allocation_id(block)
    }

    fn stats(&self) -> Stats {
        self.0.borrow().stats()
    }
}

/// The calls of cases that hold for both upstream's and ours.
pub trait Alike {
    fn source(&self) -> &Source;
    fn try_alloc(&mut self, bytes: u64) -> Option<Block>;
    fn free(&mut self, block: Block);
    fn adjust(&mut self, limit_bytes: u64) -> LimitChange;
    fn stats(&self) -> Stats;
    fn clear_stats(&mut self);
    fn pool_stats(&mut self) -> PoolStats;
    fn requested_bytes(&self, block: &Block) -> Option<u64>;
    fn allocation_id(&self, block: &Block) -> Option<u64>;
    /// Sizes of the regions in address order.
    fn region_bytes(&self) -> Vec<u64>;
    /// `(address, bytes)` of the free chunks in address order.
    fn free_chunks(&self) -> Vec<(u64, u64)>;
    fn trim(&mut self) -> u64;

    #[track_caller]
    fn alloc(&mut self, bytes: u64) -> Block {
        self.try_alloc(bytes).expect("there is memory")
    }

    fn free_all(&mut self, blocks: Vec<Block>) {
        blocks.into_iter().for_each(|block| self.free(block));
    }

    fn tuple(&self) -> Tuple {
        tuple_of(&self.stats())
    }

    fn reserved_bytes(&self) -> u64 {
        self.stats().reserved_bytes
    }

    fn region_mib(&self) -> Vec<u64> {
        self.region_bytes()
            .iter()
            .map(|bytes| bytes / MIB)
            .collect()
    }

    /// The request is refused, and nothing can be seen of it.
    #[track_caller]
    fn refuses_unchanged(&mut self, bytes: u64) {
        let seen = |pool: &Self| (pool.stats(), pool.region_bytes(), pool.free_chunks());
        let before = seen(self);
        assert!(self.try_alloc(bytes).is_none());
        assert_eq!(seen(self), before);
    }
}

impl Alike for Upstream {
    fn source(&self) -> &Source {
        &self.source
    }

    fn try_alloc(&mut self, bytes: u64) -> Option<Block> {
        self.alloc_freed_by(bytes, 0)
    }

    #[track_caller]
    fn free(&mut self, block: Block) {
        self.free_at(block, 0);
    }

    fn adjust(&mut self, limit_bytes: u64) -> LimitChange {
        let limit_bytes = self.bfc.adjust(&self.source, limit_bytes);
        self.check();
        assert_eq!(limit_bytes, self.bfc.stats().limit_bytes);
        let excess_bytes = 0;
        LimitChange {
            limit_bytes,
            excess_bytes,
        }
    }

    fn stats(&self) -> Stats {
        self.bfc.stats()
    }

    fn clear_stats(&mut self) {
        self.bfc.clear_stats();
    }

    fn pool_stats(&mut self) -> PoolStats {
        self.bfc.pool_stats()
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        let (_, used) = self.bfc.block(block.addr())?;
        Some(used.requested_bytes)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        let (_, used) = self.bfc.block(block.addr())?;
        Some(used.id)
    }

    fn region_bytes(&self) -> Vec<u64> {
        self.bfc.regions().map(|region| region.bytes()).collect()
    }

    fn free_chunks(&self) -> Vec<(u64, u64)> {
        let free = self.bfc.chunks().filter(|(_, chunk)| chunk.used.is_none());
        free.map(|(addr, chunk)| (addr.get(), chunk.bytes))
            .collect()
    }

    fn trim(&mut self) -> u64 {
        self.bfc.release_free_regions(&self.source)
    }
}

impl Alike for Pool {
    fn source(&self) -> &Source {
        self.source()
    }

    fn try_alloc(&mut self, bytes: u64) -> Option<Block> {
        Self::try_alloc(self, bytes)
    }

    #[track_caller]
    fn free(&mut self, block: Block) {
        Self::free(self, block);
    }

    fn adjust(&mut self, limit_bytes: u64) -> LimitChange {
        Self::adjust(self, limit_bytes)
    }

    fn stats(&self) -> Stats {
        self.shared.stats()
    }

    fn clear_stats(&mut self) {
        self.shared.get_mut().clear_stats();
        self.check();
    }

    fn pool_stats(&mut self) -> PoolStats {
        let stats = self.shared.get_mut().pool_stats();
        self.check();
        stats
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.shared.requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.shared.allocation_id(block)
    }

    fn region_bytes(&self) -> Vec<u64> {
        Self::region_bytes(self)
    }

    fn free_chunks(&self) -> Vec<(u64, u64)> {
        Self::free_chunks(self)
    }

    fn trim(&mut self) -> u64 {
        Self::trim(self)
    }
}

/// Upstream's and ours, each growing region by region.
pub fn both(limit_bytes: u64) -> [Box<dyn Alike>; 2] {
    let (upstream, ours) = (Upstream::new(limit_bytes), Pool::of_regions(limit_bytes));
    [Box::new(upstream), Box::new(ours)]
}

/// Upstream's and ours, each taking the whole limit with the first region.
pub fn both_at_once(limit_bytes: u64) -> [Box<dyn Alike>; 2] {
    let upstream = Upstream::at_once(limit_bytes);
    let ours = Pool::new(super::at_once(limit_bytes));
    [Box::new(upstream), Box::new(ours)]
}

/// Upstream's and ours, each handed these regions `(start, bytes)`.
pub fn both_with_regions(regions: &[(u64, u64)]) -> [Box<dyn Alike>; 2] {
    let upstream = Upstream::with_regions(u64::MAX, regions);
    let ours = Pool::with_regions(RegionConfig::fixed(), regions);
    for (start, bytes) in regions {
        upstream.source.hand_out(range(*start, *bytes));
        ours.source().hand_out(range(*start, *bytes));
    }
    [Box::new(upstream), Box::new(ours)]
}
