//! An allocator over a [`Source`] whose invariants are walked after every call.

use super::{MIB, RECORDS, Source, point, range};
use larder_core::{
    AllocError, Bfc, BfcConfig, Block, Chunk, ChunkInfo, ChunkState, EventNumber, FreeError, Grant,
    Growth, RegionInfo, Rejected, Report, Request, Resize, ResizeError, Stats, StreamId,
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

/// What became of a new limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitChange {
    /// The limit in force.
    pub limit_bytes: u64,
    /// Bytes held above it.
    pub excess_bytes: u64,
}

/// A BFC over a [`Source`]; every call is followed by a walk over the invariants.
pub struct Pool {
    pub bfc: Bfc<'static>,
    pub source: Source,
}

pub fn table(records: usize) -> &'static mut [Chunk] {
    Box::leak(vec![Chunk::VACANT; records].into_boxed_slice())
}

impl Pool {
    pub fn new(config: BfcConfig) -> Self {
        Self::over(config, Source::new(), RECORDS)
    }

    pub fn over(config: BfcConfig, source: Source, records: usize) -> Self {
        let bfc = Bfc::new(config, table(records)).expect("the configuration is good");
        Self { bfc, source }
    }

    /// Ours with several regions: it grows by MiB, over a source that leaves gaps.
    pub fn of_regions(limit_bytes: u64) -> Self {
        Self::new(ranged(MIB, limit_bytes))
    }

    /// An allocator that is handed its regions `(start, bytes)`.
    pub fn with_regions(config: BfcConfig, regions: &[(u64, u64)]) -> Self {
        let mut pool = Self::new(config);
        for (start, bytes) in regions {
            pool.add_region(*start, *bytes);
        }
        pool
    }
}

/// Ours growing by units of so many bytes.
pub fn ranged(unit_bytes: u64, limit_bytes: u64) -> BfcConfig {
    let ahead_divisor = None;
    BfcConfig {
        growth: Growth::Range {
            unit_bytes,
            ahead_divisor,
        },
        ..BfcConfig::new(limit_bytes)
    }
}

/// Ours taking the whole limit with the first region.
pub fn at_once(limit_bytes: u64) -> BfcConfig {
    ranged(limit_bytes, limit_bytes)
}

impl Pool {
    #[track_caller]
    pub fn check(&self) {
        if let Err(violation) = self.bfc.check_invariants() {
            panic!("{violation}\n{}", self.bfc.dump());
        }
    }

    #[track_caller]
    pub fn add_region(&mut self, start: u64, bytes: u64) {
        self.bfc
            .add_region(range(start, bytes))
            .expect("a good region");
        self.check();
    }

    #[track_caller]
    pub fn try_grant(&mut self, request: &Request) -> Result<Grant, AllocError> {
        let result = self.bfc.alloc_over(&self.source, request);
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
            Err(error) => panic!("{error}\n{}", self.bfc.dump()),
        }
    }

    #[track_caller]
    pub fn alloc(&mut self, bytes: u64) -> Block {
        self.grant(&Request::new(bytes)).block
    }

    #[track_caller]
    pub fn free(&mut self, block: Block) {
        self.bfc.free(block).expect("a block of this pool");
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
        let result = self.bfc.free_after(block, point(stream, event));
        self.check();
        result
    }

    /// From the memory held only.
    #[track_caller]
    pub fn resize(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        let result = self.bfc.resize(block, to);
        self.check();
        result
    }

    #[track_caller]
    pub fn resize_over(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        let result = self.bfc.resize_over(&self.source, block, to);
        self.check();
        result
    }

    #[track_caller]
    pub fn complete(&mut self, stream: u8, event: u64) {
        self.bfc
            .complete(StreamId::new(stream), EventNumber::new(event));
        self.check();
    }

    #[track_caller]
    pub fn adjust(&mut self, limit_bytes: u64) -> LimitChange {
        let excess_bytes = self.bfc.adjust_over(&self.source, limit_bytes);
        self.check();
        assert_eq!(self.bfc.stats().limit_bytes, limit_bytes);
        LimitChange {
            limit_bytes,
            excess_bytes,
        }
    }

    #[track_caller]
    pub fn trim(&mut self) -> u64 {
        let released = self.bfc.trim_over(&self.source);
        self.check();
        released
    }

    pub fn tuple(&self) -> Tuple {
        tuple_of(&self.bfc.stats())
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.bfc.stats().reserved_bytes
    }

    pub fn regions(&self) -> Vec<RegionInfo> {
        regions_of(&self.bfc)
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
        chunks_of(&self.bfc)
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
        picture_of(&self.bfc)
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

fn chunks_of(bfc: &Bfc<'_>) -> Vec<ChunkInfo> {
    let mut chunks = Vec::new();
    bfc.for_each_chunk(|chunk| chunks.push(chunk));
    chunks
}

pub fn regions_of(bfc: &Bfc<'_>) -> Vec<RegionInfo> {
    let mut regions = Vec::new();
    bfc.for_each_region(|region| regions.push(region));
    regions
}

pub fn picture_of(bfc: &Bfc<'_>) -> Picture {
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
