//! What the conformance tests share: a sub-allocator that logs its calls and refuses on demand
//! ([`Source`]), and an allocator over it whose invariants are walked after every call ([`Pool`]).
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod upstream;

use std::cell::{Cell, RefCell};

use larder_core::{
    Addr, AddrRange, AddressIndex, AllocError, Bfc, BfcConfig, Block, Chunk, ChunkInfo, ChunkState,
    Epoch, FreeRejected, Grant, GrowRequest, Growth, Lane, LimitChange, NoIndex, RegionInfo,
    Report, Request, Stamp, Stats, SubAllocError, SubAllocator,
};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Records of a pool's table unless a test says otherwise.
pub const RECORDS: usize = 1 << 13;

/// A call that reached the sub-allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Bytes asked for and given.
    Grow(u64),
    /// Bytes asked for and refused.
    GrowRefused(u64),
    /// Bytes taken back.
    Release(u64),
    /// Bytes that were to go back and were refused.
    ReleaseRefused(u64),
}

type Answer = Box<dyn FnMut(GrowRequest) -> Result<AddrRange, SubAllocError>>;

/// A sub-allocator whose addresses ascend, with a gap between any two answers unless it is
/// `contiguous`. Never gives an address twice, so that no region is ever taken for a former one.
pub struct Source {
    next: Cell<u64>,
    pub gap_bytes: Cell<u64>,
    /// Gives the wished address when it is free.
    pub contiguous: Cell<bool>,
    /// Most bytes out at a time.
    pub capacity_bytes: Cell<u64>,
    /// Refuses that many grow calls.
    pub refuse_grows: Cell<u32>,
    /// Refuses that many release calls.
    pub refuse_releases: Cell<u32>,
    /// Answers instead of the rules above, without any check.
    answer: RefCell<Option<Answer>>,
    /// What is out: disjoint, not adjacent, `(start, end)`, ascending.
    out: RefCell<Vec<(u64, u64)>>,
    log: RefCell<Vec<Call>>,
}

impl Source {
    pub fn new() -> Self {
        Self::from_address(0x7000_0000_0000)
    }

    pub fn from_address(first: u64) -> Self {
        Self {
            next: Cell::new(first),
            gap_bytes: Cell::new(64 * KIB),
            contiguous: Cell::new(false),
            capacity_bytes: Cell::new(u64::MAX),
            refuse_grows: Cell::new(0),
            refuse_releases: Cell::new(0),
            answer: RefCell::new(None),
            out: RefCell::new(Vec::new()),
            log: RefCell::new(Vec::new()),
        }
    }

    /// The same, giving what lies behind what it gave.
    pub fn contiguous() -> Self {
        let source = Self::new();
        source.contiguous.set(true);
        source
    }

    /// From now on answers by `f`; `None` from the start of the program on means by rule.
    pub fn answer_by(
        &self,
        f: impl FnMut(GrowRequest) -> Result<AddrRange, SubAllocError> + 'static,
    ) {
        *self.answer.borrow_mut() = Some(Box::new(f));
    }

    pub fn answer_by_rule(&self) {
        *self.answer.borrow_mut() = None;
    }

    /// The calls since the last time this was asked.
    pub fn take_log(&self) -> Vec<Call> {
        self.log.take()
    }

    pub fn out_bytes(&self) -> u64 {
        self.out
            .borrow()
            .iter()
            .map(|(start, end)| end - start)
            .sum()
    }

    fn is_out(&self, start: u64, end: u64) -> bool {
        self.out.borrow().iter().any(|o| o.0 < end && start < o.1)
    }

    fn give(&self, range: AddrRange) {
        let (mut start, mut end) = (range.start().get(), range.end().get());
        assert!(!self.is_out(start, end), "the fake gave an address twice");
        let mut out = self.out.borrow_mut();
        out.retain(|o| {
            let touches = o.1 == start || o.0 == end;
            if touches {
                start = start.min(o.0);
                end = end.max(o.1);
            }
            !touches
        });
        out.push((start, end));
        out.sort_unstable();
    }

    fn by_rule(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        if self.refuse_grows.get() > 0 {
            self.refuse_grows.set(self.refuse_grows.get() - 1);
            return Err(SubAllocError);
        }
        if request.bytes > self.capacity_bytes.get().saturating_sub(self.out_bytes()) {
            return Err(SubAllocError);
        }
        let wished = request.at.map(Addr::get).filter(|at| {
            self.contiguous.get() && !self.is_out(*at, at.saturating_add(request.bytes))
        });
        let align = request.align.bytes();
        let start = wished
            .unwrap_or_else(|| (self.next.get() + self.gap_bytes.get()).next_multiple_of(align));
        let range = AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)?;
        self.next.set(self.next.get().max(range.end().get()));
        self.give(range);
        Ok(range)
    }
}

impl SubAllocator for Source {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        assert!(request.bytes > 0, "nobody asks for nothing");
        assert_eq!(request.bytes % request.align.bytes(), 0, "whole granules");
        let answer = match self.answer.borrow_mut().as_mut() {
            Some(answer) => answer(request),
            None => self.by_rule(request),
        };
        self.log.borrow_mut().push(match answer {
            Ok(_) => Call::Grow(request.bytes),
            Err(_) => Call::GrowRefused(request.bytes),
        });
        answer
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let (start, end) = (range.start().get(), range.end().get());
        if self.refuse_releases.get() > 0 {
            self.refuse_releases.set(self.refuse_releases.get() - 1);
            self.log
                .borrow_mut()
                .push(Call::ReleaseRefused(range.bytes()));
            return Err(SubAllocError);
        }
        self.log.borrow_mut().push(Call::Release(range.bytes()));
        if self.answer.borrow().is_some() {
            return Ok(());
        }
        let mut out = self.out.borrow_mut();
        let held = out.iter().position(|o| o.0 <= start && end <= o.1);
        let (from, to) = out.remove(held.expect("only what is out comes back"));
        out.extend([(from, start), (end, to)].into_iter().filter(|o| o.0 < o.1));
        out.sort_unstable();
        Ok(())
    }
}

/// The four numbers of TensorFlow's statistics (SPEC 0.2).
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

/// A BFC over a [`Source`]; every call is followed by a walk over the invariants.
pub struct Pool<I: AddressIndex = NoIndex> {
    pub bfc: Bfc<'static, I>,
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

    /// TensorFlow's with growth allowed.
    pub fn tensorflow(limit_bytes: u64) -> Self {
        Self::new(BfcConfig::tensorflow(limit_bytes))
    }

    /// TensorFlow's without growth: the first region is the limit.
    pub fn tensorflow_at_once(limit_bytes: u64) -> Self {
        Self::new(at_once(limit_bytes))
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

/// TensorFlow without growth.
pub fn at_once(limit_bytes: u64) -> BfcConfig {
    BfcConfig {
        growth: Growth::Doubling {
            first_bytes: limit_bytes,
        },
        ..BfcConfig::tensorflow(limit_bytes)
    }
}

pub fn range(start: u64, bytes: u64) -> AddrRange {
    AddrRange::new(Addr::new(start), bytes).expect("a range")
}

pub fn stamp(lane: u8, epoch: u64) -> Stamp {
    Stamp {
        lane: Lane::new(lane),
        epoch: Epoch::new(epoch),
    }
}

impl<I: AddressIndex> Pool<I> {
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
        assert_eq!(grant.wait, None, "one lane never waits");
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
    pub fn free_after(&mut self, block: Block, lane: u8, epoch: u64) {
        self.try_free_after(block, lane, epoch)
            .expect("a block and a near epoch");
    }

    #[track_caller]
    pub fn try_free_after(
        &mut self,
        block: Block,
        lane: u8,
        epoch: u64,
    ) -> Result<(), FreeRejected> {
        let result = self.bfc.free_after(block, stamp(lane, epoch));
        self.check();
        result
    }

    #[track_caller]
    pub fn complete(&mut self, lane: u8, epoch: u64) {
        self.bfc.complete(Lane::new(lane), Epoch::new(epoch));
        self.check();
    }

    #[track_caller]
    pub fn adjust(&mut self, limit_bytes: u64) -> LimitChange {
        let change = self.bfc.adjust_over(&self.source, limit_bytes);
        self.check();
        assert_eq!(change.limit_bytes, self.bfc.stats().limit_bytes);
        change
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
        let mut regions = Vec::new();
        self.bfc.for_each_region(|region| regions.push(region));
        regions
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
        let mut chunks = Vec::new();
        self.bfc.for_each_chunk(|chunk| chunks.push(chunk));
        chunks
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
        Picture {
            stats: self.bfc.stats(),
            report: self.bfc.report(),
            chunks: self.chunks(),
            regions: self.regions(),
            dump: self.bfc.dump().to_string(),
        }
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

pub fn tuple_of(stats: &Stats) -> Tuple {
    (
        stats.allocations,
        stats.live_bytes,
        stats.peak_live_bytes,
        stats.largest_bytes,
    )
}

/// Blocks are at different places and do not overlap.
#[track_caller]
pub fn assert_disjoint<'b>(blocks: impl IntoIterator<Item = &'b Block>) {
    let mut places: Vec<(u64, u64)> = blocks
        .into_iter()
        .map(|block| (block.addr().get(), block.addr().get() + block.bytes()))
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
}

/// A small generator of numbers (xorshift), so that a printed seed repeats a run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
