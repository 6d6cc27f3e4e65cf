//! The real allocator and its model: each operation goes to both, and every answer, chunk, region, counter and call to
//! the sub-allocator is compared.

use larder_core::{
    AddrRange, AllocError, BestFit, Block, BlockAllocator, Chunk, ChunkState, EventNumber,
    FreeError, Grant, PoolStats, RawBlock, RegionConfig, RegionError, RegionPool, Rejected,
    Request, Resize, ResizeError, Shared, Stats, StreamId, StreamPoint,
};

use crate::bfc::ModelError;
use crate::source::Call;
use crate::uses::Uses;
use crate::{ModelBfc, Source};

/// The answer of both, or their first difference.
pub type Played<T> = Result<T, String>;

/// The real allocator and its model, the memory that streams may still use, and the calls to the sub-allocators.
pub struct Pair<'t> {
    real: Shared<RegionPool<'t>, Source>,
    model: ModelBfc,
    uses: Uses,
    calls: Vec<Call>,
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, real: &T, model: &T) -> Played<()> {
    if real == model {
        return Ok(());
    }
    Err(format!("{what}: real {real:?}, model {model:?}"))
}

impl<'t> Pair<'t> {
    /// Creates both allocators with these policies, equally long tables and equal sub-allocators.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(config: RegionConfig, table: &'t mut [Chunk], source: &Source) -> Self {
        let records = table.len();
        let pool = RegionPool::new(config, table).expect("a valid configuration");
        Self {
            real: Shared::new(pool, source.clone()),
            model: ModelBfc::new(config, records, source.clone()),
            uses: Uses::default(),
            calls: Vec::new(),
        }
    }

    /// Returns the model.
    pub fn model(&self) -> &ModelBfc {
        &self.model
    }

    /// Returns the real pool, for questions that the model does not answer.
    pub fn real(&mut self) -> &mut RegionPool<'t> {
        self.real.get_mut()
    }

    /// Calls `f` on both sub-allocators.
    pub fn sources(&self, f: impl Fn(&Source)) {
        f(self.real.source());
        f(self.model.source());
    }

    /// Returns the bytes held from the sub-allocator.
    pub fn out_bytes(&self) -> u64 {
        self.real.source().out_bytes()
    }

    /// Returns the calls to the sub-allocator since they were last taken.
    pub fn take_calls(&mut self) -> Vec<Call> {
        core::mem::take(&mut self.calls)
    }

    /// Allocates on both.
    ///
    /// # Errors
    /// The first difference.
    pub fn alloc(&mut self, request: &Request) -> Played<Result<Grant, AllocError>> {
        let answer = self.real.alloc(request);
        let point = |point: StreamPoint| (point.stream.number(), point.event.number());
        let seen = match &answer {
            Ok(grant) => {
                let block = &grant.block;
                Ok((block.addr().get(), block.bytes(), grant.wait.map(point)))
            }
            Err(error) => Err(ModelError::from(*error)),
        };
        let model = self.model.alloc(request);
        if let Ok(grant) = &answer {
            self.uses.granted(grant, request)?;
        }
        self.answered("alloc", answer, &seen, &model)
    }

    /// Allocates at a given address.
    ///
    /// # Errors
    /// The first difference.
    pub fn alloc_at(
        &mut self,
        place: AddrRange,
        stream: Option<u8>,
    ) -> Played<Result<Block, AllocError>> {
        let real = self.real.get_mut();
        let answer = real.alloc_at(place, None, stream.map(StreamId::new));
        let seen = match &answer {
            Ok(block) => Ok(block.addr().get()),
            Err(error) => Err(ModelError::from(*error)),
        };
        let model = self.model.alloc_at(place, stream);
        if let Ok(block) = &answer {
            self.uses.taken(block.range(), stream)?;
        }
        self.answered("alloc_at", answer, &seen, &model)
    }

    /// Frees a block that the stream of `point` uses until its event.
    ///
    /// # Errors
    /// The first difference.
    pub fn free(
        &mut self,
        block: Block,
        point: Option<(u8, u64)>,
    ) -> Played<Result<(), Rejected<FreeError>>> {
        let range = block.range();
        let restored = self.restored(&block);
        same("block_from_raw", &restored.as_ref(), &Ok(&block))?;
        let at = point.map(|(stream, event)| StreamPoint {
            stream: StreamId::new(stream),
            event: EventNumber::new(event),
        });
        let answer = self.real.free_at(block, at);
        let seen = answer.as_ref().map_err(|rejected| rejected.error).copied();
        let model = self.model.free(range.start().get(), point);
        if seen.is_ok() {
            self.uses.freed(range, point);
        }
        self.answered("free", answer, &seen, &model)
    }

    /// Resizes a block. With `over`, the sub-allocator may be called too.
    ///
    /// # Errors
    /// The first difference.
    pub fn resize(
        &mut self,
        block: Block,
        to: Resize,
        over: bool,
    ) -> Played<Result<Block, Rejected<ResizeError>>> {
        // A second value for the block, with its size before the resize.
        let before = self.restored(&block);
        let before = before.map_err(|error| format!("block_from_raw: {error}"))?;
        let addr = block.addr().get();
        let (answer, model) = if over {
            let answer = self.real.resize(block, to);
            (answer, self.model.resize_over(addr, &to))
        } else {
            let answer = self.real.get_mut().resize(block, to);
            (answer, self.model.resize(addr, &to))
        };
        let (block, seen) = match &answer {
            Ok(block) => (block, Ok(block.bytes())),
            Err(rejected) => (&rejected.value, Err(rejected.error)),
        };
        let place = |block: &Block| (block.addr(), block.handle());
        same("place", &place(block), &place(&before))?;
        // The former value is still valid exactly if the size is the same.
        let ours = self.real.requested_bytes(&before).is_some();
        same("former value", &ours, &(before == *block))?;
        self.uses.resized(&before, block, &to)?;
        self.answered("resize", answer, &seen, &model)
    }

    fn restored(&mut self, block: &Block) -> Result<Block, FreeError> {
        let (addr, handle) = (block.addr(), block.handle());
        self.real
            .get_mut()
            .block_from_raw(RawBlock { addr, handle })
    }

    /// Completes the events of `stream` up to `event`.
    ///
    /// # Errors
    /// The first difference.
    pub fn complete(&mut self, stream: u8, event: u64) -> Played<()> {
        self.real
            .complete(StreamId::new(stream), EventNumber::new(event));
        self.model.complete(stream, event);
        self.uses.completed(stream, event);
        self.compare()
    }

    /// Adds a region.
    ///
    /// # Errors
    /// The first difference.
    pub fn add_region(&mut self, range: AddrRange) -> Played<Result<(), RegionError>> {
        let answer = self.real.get_mut().add_region(range);
        let answer = answer.map_err(|rejected| rejected.error);
        let model = self.model.add_region(range);
        if answer.is_ok() {
            self.sources(|source| source.hand_out(range));
        }
        self.answered("add_region", answer, &answer, &model)
    }

    /// Sets the limit and releases memory above it. Returns the bytes that are still held above it.
    ///
    /// # Errors
    /// The first difference.
    pub fn adjust(&mut self, limit: u64) -> Played<u64> {
        let excess = self.real.adjust(limit);
        self.model.adjust(limit);
        let left = self.model.stats().reserved_bytes.saturating_sub(limit);
        self.answered("adjust", excess, &excess, &left)
    }

    /// Sets the limit and releases nothing.
    ///
    /// # Errors
    /// The first difference.
    pub fn set_limit(&mut self, limit: u64) -> Played<()> {
        self.real.get_mut().set_limit(limit);
        self.model.set_limit(limit);
        self.compare()
    }

    /// Releases all free memory. Returns the bytes released.
    ///
    /// # Errors
    /// The first difference.
    pub fn trim(&mut self) -> Played<u64> {
        let released = self.real.trim();
        let model = self.model.trim();
        self.answered("trim", released, &released, &model)
    }

    /// Returns the reserved and the stable bytes.
    ///
    /// # Errors
    /// The first difference.
    pub fn pool_stats(&mut self) -> Played<PoolStats> {
        let stats = self.real.pool_stats();
        let model = self.model.pool_stats();
        self.answered("pool_stats", stats, &stats, &model)
    }

    /// Restarts the counters.
    ///
    /// # Errors
    /// The first difference.
    pub fn clear_stats(&mut self) -> Played<()> {
        let mut by_hand = self.stats();
        by_hand.clear();
        self.real.clear_stats();
        self.model.clear_stats();
        same("cleared", &self.stats(), &by_hand)?;
        self.compare()
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.real.stats()
    }

    /// Compares an answer, and then everything else that is visible of both.
    fn answered<T, U: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        answer: T,
        real: &U,
        model: &U,
    ) -> Played<T> {
        same(what, real, model)?;
        self.compare()?;
        Ok(answer)
    }

    fn compare(&mut self) -> Played<()> {
        let real = self.real.get_mut();
        real.check_invariants()
            .map_err(|violation| format!("{violation}\n{}", real.dump()))?;
        same("stats", &self.real.stats(), &self.model.stats())?;
        let (mut chunks, mut regions) = (Vec::new(), Vec::new());
        let real = self.real.get_mut();
        real.for_each_chunk(|chunk| chunks.push((chunk.range, chunk.state)));
        real.for_each_region(|region| regions.push(region.range));
        same("chunks", &chunks, &self.model.chunks().collect())?;
        same("regions", &regions, &self.model.regions().collect())?;
        let calls = self.real.source().take_log();
        same("calls", &calls, &self.model.source().take_log())?;
        let granule = self.real.get_mut().config().granule_bytes;
        if calls
            .iter()
            .any(|call| !call.bytes().is_multiple_of(granule))
        {
            return Err(format!("not whole granules: {calls:?}"));
        }
        self.calls.extend(calls);
        same(
            "bytes lent",
            &self.out_bytes(),
            &self.real.stats().reserved_bytes,
        )
    }
}

/// The part of a chunk that [`Pair`] compares.
pub(crate) type SeenChunk = (AddrRange, ChunkState);
