//! An allocator over a [`Source`] whose invariants are checked after every call.

use super::{MIB, RECORDS, Source, point, range};
use larder_core::{
    AllocError, BestFit, Block, BlockAllocator, Chunk, ChunkInfo, ChunkState, EventNumber,
    FreeError, Grant, Growth, RegionConfig, RegionInfo, RegionPool, Rejected, Report, Request,
    Resize, ResizeError, Shared, Stats, StreamId,
};

/// The four numbers of TensorFlow's statistics (CONFORMANCE 0.2).
pub type Tuple = (u64, u64, u64, u64);

/// All that can be seen of an allocator, for "nothing has changed".
#[derive(PartialEq, Debug)]
pub struct Picture {
    pub stats: Stats,
    pub report: Report,
    pub chunks: Vec<ChunkInfo>,
    pub regions: Vec<RegionInfo>,
    pub dump: String,
}

/// The outcome of a new limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitChange {
    /// The limit in force.
    pub limit_bytes: u64,
    /// Bytes held above it.
    pub excess_bytes: u64,
}

/// A BFC over a [`Source`]; every call is followed by a walk over the invariants.
pub struct Pool {
    pub shared: Shared<RegionPool<'static>, Source>,
}

pub fn table(records: usize) -> &'static mut [Chunk] {
    Box::leak(vec![Chunk::VACANT; records].into_boxed_slice())
}

impl Pool {
    pub fn new(config: RegionConfig) -> Self {
        Self::over(config, Source::new(), RECORDS)
    }

    pub fn over(config: RegionConfig, source: Source, records: usize) -> Self {
        let pool = RegionPool::new(config, table(records)).expect("the configuration is good");
        Self {
            shared: Shared::new(pool, source),
        }
    }

    /// Ours with several regions: it grows by MiB, over a source that leaves gaps.
    pub fn of_regions(limit_bytes: u64) -> Self {
        Self::new(ranged(MIB, limit_bytes))
    }

    /// An allocator that is handed its regions `(start, bytes)`.
    pub fn with_regions(config: RegionConfig, regions: &[(u64, u64)]) -> Self {
        let mut pool = Self::new(config);
        for (start, bytes) in regions {
            pool.add_region(*start, *bytes);
        }
        pool
    }
}

/// Returns our configuration with growth by units of `unit_bytes`.
pub fn ranged(unit_bytes: u64, limit_bytes: u64) -> RegionConfig {
    let ahead_divisor = None;
    RegionConfig {
        growth: Growth::Range {
            unit_bytes,
            ahead_divisor,
        },
        ..RegionConfig::new(limit_bytes)
    }
}

/// Ours taking the whole limit with the first region.
pub fn at_once(limit_bytes: u64) -> RegionConfig {
    ranged(limit_bytes, limit_bytes)
}

impl Pool {
    #[track_caller]
    pub fn check(&self) {
        self.shared.with(|pool| {
            if let Err(violation) = pool.check_invariants() {
                panic!("{violation}\n{}", pool.dump());
            }
        });
    }

    #[track_caller]
    pub fn add_region(&mut self, start: u64, bytes: u64) {
        self.shared
            .get_mut()
            .add_region(range(start, bytes))
            .expect("a good region");
        self.check();
    }

    #[track_caller]
    pub fn try_grant(&mut self, request: &Request) -> Result<Grant, AllocError> {
        let result = self.shared.alloc(request);
        self.check();
        result
    }

    /// The request as TensorFlow knows it: bytes, and a block or null.
    #[track_caller]
    pub fn try_alloc(&mut self, bytes: u64) -> Option<Block> {
        let grant = self.try_grant(&Request::new(bytes)).ok()?;
        assert_eq!(grant.wait, None, "one stream never waits");
        Some(grant.block)
    }

    #[track_caller]
    pub fn grant(&mut self, request: &Request) -> Grant {
        match self.try_grant(request) {
            Ok(grant) => grant,
            Err(error) => panic!("{error}\n{}", self.shared.get_mut().dump()),
        }
    }

    #[track_caller]
    pub fn alloc(&mut self, bytes: u64) -> Block {
        self.grant(&Request::new(bytes)).block
    }

    #[track_caller]
    pub fn free(&mut self, block: Block) {
        self.shared.free(block).expect("a block of this pool");
        self.check();
    }

    #[track_caller]
    pub fn free_all(&mut self, blocks: impl IntoIterator<Item = Block>) {
        for block in blocks {
            self.free(block);
        }
    }

    #[track_caller]
    pub fn free_after(&mut self, block: Block, stream: u8, event: u64) {
        self.try_free_after(block, stream, event)
            .expect("a block and a near event");
    }

    #[track_caller]
    pub fn try_free_after(
        &mut self,
        block: Block,
        stream: u8,
        event: u64,
    ) -> Result<(), Rejected<FreeError>> {
        let result = self
            .shared
            .get_mut()
            .free_after(block, point(stream, event));
        self.check();
        result
    }

    /// Resizes a block within the memory held.
    #[track_caller]
    pub fn resize(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        let result = self.shared.get_mut().resize(block, to);
        self.check();
        result
    }

    #[track_caller]
    pub fn resize_over(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        let result = self.shared.resize(block, to);
        self.check();
        result
    }

    #[track_caller]
    pub fn complete(&mut self, stream: u8, event: u64) {
        self.shared
            .complete(StreamId::new(stream), EventNumber::new(event));
        self.check();
    }

    #[track_caller]
    pub fn adjust(&mut self, limit_bytes: u64) -> LimitChange {
        let excess_bytes = self.shared.adjust(limit_bytes);
        self.check();
        assert_eq!(self.shared.stats().limit_bytes, limit_bytes);
        LimitChange {
            limit_bytes,
            excess_bytes,
        }
    }

    #[track_caller]
    pub fn trim(&mut self) -> u64 {
        let released = self.shared.trim();
        self.check();
        released
    }

    pub fn source(&self) -> &Source {
        self.shared.source()
    }

    pub fn tuple(&self) -> Tuple {
        tuple_of(&self.shared.stats())
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.shared.stats().reserved_bytes
    }

    pub fn regions(&self) -> Vec<RegionInfo> {
        self.shared.with(|pool| regions_of(pool))
    }

    /// Sizes of the regions in address order.
    pub fn region_bytes(&self) -> Vec<u64> {
        self.regions().iter().map(|r| r.range.bytes()).collect()
    }

    pub fn region_mib(&self) -> Vec<u64> {
        self.region_bytes()
            .iter()
            .map(|bytes| bytes / MIB)
            .collect()
    }

    pub fn chunks(&self) -> Vec<ChunkInfo> {
        self.shared.with(|pool| chunks_of(pool))
    }

    /// `(address, bytes)` of the free chunks in address order.
    pub fn free_chunks(&self) -> Vec<(u64, u64)> {
        let is_free = |c: &ChunkInfo| matches!(c.state, ChunkState::Free { .. });
        let place = |c: ChunkInfo| (c.range.start().get(), c.range.bytes());
        self.chunks()
            .into_iter()
            .filter(is_free)
            .map(place)
            .collect()
    }

    pub fn picture(&self) -> Picture {
        self.shared.with(|pool| picture_of(pool))
    }

    /// Runs `f` and asserts that nothing can be seen of it.
    #[track_caller]
    pub fn unchanged<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.picture();
        let result = f(self);
        self.check();
        assert_eq!(before, self.picture(), "an error has changed something");
        result
    }
}

fn chunks_of(bfc: &RegionPool<'_>) -> Vec<ChunkInfo> {
    let mut chunks = Vec::new();
    bfc.for_each_chunk(|chunk| chunks.push(chunk));
    chunks
}

pub fn regions_of(bfc: &RegionPool<'_>) -> Vec<RegionInfo> {
    let mut regions = Vec::new();
    bfc.for_each_region(|region| regions.push(region));
    regions
}

pub fn picture_of(bfc: &RegionPool<'_>) -> Picture {
    Picture {
        stats: bfc.stats(),
        report: bfc.report(),
        chunks: chunks_of(bfc),
        regions: regions_of(bfc),
        dump: bfc.dump().to_string(),
    }
}

pub fn tuple_of(stats: &Stats) -> Tuple {
    (
        stats.allocations,
        stats.live_bytes,
        stats.peak_live_bytes,
        stats.largest_bytes,
    )
}
