//! Our allocator over a [`Source`]. Every call is followed by a check of the invariants.

use super::{BASE, GRANULE, RECORDS, Source, apart, point, range};
use larder_core::{
    AllocError, BestFit, Block, BlockAllocator, Chunk, ChunkInfo, ChunkState, FreeError, Grant,
    GrowTicket, Growth, Progress, RawBlock, RegionAttempt, RegionConfig, RegionInfo, RegionPlan,
    RegionPool, Rejected, Report, Request, Shared, Stats,
};

/// Everything observable about an allocator, to check that nothing has changed.
#[derive(PartialEq, Debug)]
pub(crate) struct Picture {
    stats: Stats,
    report: Report,
    chunks: Vec<ChunkInfo>,
    regions: Vec<RegionInfo>,
    dump: String,
}

pub(crate) struct Pool {
    pub(crate) shared: Shared<RegionPool<'static>, Source>,
}

pub(crate) fn table(records: usize) -> &'static mut [Chunk] {
    Box::leak(vec![Chunk::VACANT; records].into_boxed_slice())
}

pub(crate) fn ranged(unit_bytes: u64, limit_bytes: u64) -> RegionConfig {
    let ahead_divisor = None;
    RegionConfig {
        growth: Growth::Range {
            unit_bytes,
            ahead_divisor,
        },
        ..RegionConfig::new(limit_bytes)
    }
}

/// Returns a configuration whose first region takes the whole limit.
pub(crate) fn at_once(limit_bytes: u64) -> RegionConfig {
    ranged(limit_bytes, limit_bytes)
}

impl Pool {
    pub(crate) fn new(config: RegionConfig) -> Self {
        Self::over(config, apart(), RECORDS)
    }

    pub(crate) fn over(config: RegionConfig, source: Source, records: usize) -> Self {
        let pool = RegionPool::new(config, table(records)).expect("the configuration is good");
        Self {
            shared: Shared::new(pool, source),
        }
    }

    /// Creates an allocator with the given regions `(start, bytes)`.
    pub(crate) fn with_regions(config: RegionConfig, regions: &[(u64, u64)]) -> Self {
        let mut pool = Self::new(config);
        for (start, bytes) in regions {
            pool.add_region(*start, *bytes);
        }
        pool
    }

    /// Creates an allocator that does not grow, with one region of `granules` granules.
    pub(crate) fn fixed(granules: u64) -> Self {
        Self::with_regions(RegionConfig::fixed(), &[(BASE, granules * GRANULE)])
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        self.shared.with(|pool| {
            if let Err(violation) = pool.check_invariants() {
                panic!("{violation}\n{}", pool.dump());
            }
        });
    }

    #[track_caller]
    pub(crate) fn add_region(&mut self, start: u64, bytes: u64) {
        let added = self.shared.get_mut().add_region(range(start, bytes));
        added.expect("a good region");
        self.check();
    }

    #[track_caller]
    pub(crate) fn try_grant(&mut self, request: &Request) -> Result<Grant, AllocError> {
        let result = self.shared.alloc(request);
        self.check();
        result
    }

    #[track_caller]
    pub(crate) fn alloc(&mut self, bytes: u64) -> Block {
        match self.try_grant(&Request::new(bytes)) {
            Ok(grant) => grant.block,
            Err(error) => panic!("{error}\n{}", self.shared.get_mut().dump()),
        }
    }

    /// Takes the next step of an attempt, which must be a growth, and returns its ticket.
    #[track_caller]
    pub(crate) fn growth(&mut self, attempt: &mut RegionAttempt) -> GrowTicket {
        let progress = self.shared.get_mut().advance(attempt);
        self.check();
        match progress {
            Progress::Plan(RegionPlan::Grow(ticket)) => ticket,
            other => panic!("growth was expected, not {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn free(&mut self, block: Block) {
        self.shared.free(block).expect("a block of this pool");
        self.check();
    }

    #[track_caller]
    pub(crate) fn free_all(&mut self, blocks: impl IntoIterator<Item = Block>) {
        for block in blocks {
            self.free(block);
        }
    }

    /// Returns a second `Block` for a block in use.
    #[track_caller]
    pub(crate) fn second(&mut self, block: &Block) -> Block {
        let (addr, handle) = (block.addr(), block.handle());
        let second = self
            .shared
            .get_mut()
            .block_from_raw(RawBlock { addr, handle });
        second.expect("in use")
    }

    /// Expects the pool not to know a block. Its frees return the block and change nothing.
    #[track_caller]
    pub(crate) fn refuses_free(&mut self, block: Block) -> Block {
        let pool = self.shared.get_mut();
        let sizes = (pool.requested_bytes(&block), pool.allocation_id(&block));
        assert_eq!(sizes, (None, None));
        let range = block.range();
        let free = |block| move |pool: &mut Self| pool.shared.get_mut().free(block);
        let rejected: Rejected<FreeError> = self.unchanged(free(block)).expect_err("unknown");
        assert_eq!(rejected.error, FreeError::Unknown);
        let block = rejected.value;
        let rejected = self
            .unchanged(|pool| pool.shared.get_mut().free_after(block, point(1, 1)))
            .expect_err("unknown");
        assert_eq!(
            (rejected.error, rejected.value.range()),
            (FreeError::Unknown, range)
        );
        rejected.value
    }

    pub(crate) fn source(&self) -> &Source {
        self.shared.source()
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.shared.stats().reserved_bytes
    }

    /// Returns `(address, bytes)` of the free chunks, in address order.
    pub(crate) fn free_chunks(&self) -> Vec<(u64, u64)> {
        let mut free = Vec::new();
        self.shared.with(|pool| {
            pool.for_each_chunk(|chunk| {
                if let ChunkState::Free { .. } = chunk.state {
                    free.push((chunk.range.start().get(), chunk.range.bytes()));
                }
            });
        });
        free
    }

    pub(crate) fn picture(&self) -> Picture {
        let (mut chunks, mut regions) = (Vec::new(), Vec::new());
        self.shared.with(|pool| {
            pool.for_each_chunk(|chunk| chunks.push(chunk));
            pool.for_each_region(|region| regions.push(region));
            Picture {
                stats: pool.stats(),
                report: pool.report(),
                chunks,
                regions,
                dump: pool.dump().to_string(),
            }
        })
    }

    /// Runs `f` and asserts that it changes nothing observable.
    #[track_caller]
    pub(crate) fn unchanged<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.picture();
        let result = f(self);
        self.check();
        assert_eq!(before, self.picture(), "an error has changed something");
        result
    }
}
