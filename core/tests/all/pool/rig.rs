//! Pools with an observable sub-allocator: upstream's and ours behind one trait, for tests of both.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU32;

use larder_core::pool::{Pool, PoolAllocator, PoolConfig, PoolCounters};
use larder_core::{
    Addr, AddrRange, Align, Block, BlockAllocator, GrowRequest, Request, SubAllocError,
    SubAllocator,
};
use larder_model::tensorflow::pool::{self as upstream, NO_ROUNDING, POWER_OF_TWO, PoolBlock};

use super::player::Scripted;
use crate::golden::{number, option};

/// The sub-allocator's first address.
pub const FIRST: u64 = 0x10_0000;

/// Returns a configuration whose limit does not rise.
pub fn fixed(limit_buffers: u32) -> PoolConfig {
    PoolConfig {
        max_buffers: 0,
        ..PoolConfig::new(limit_buffers, u64::MAX)
    }
}

pub fn upstream_growing(limit_buffers: u32) -> Upstream {
    upstream::PoolAllocator::new("pool", limit_buffers, true, NO_ROUNDING, Counted::default())
        .unwrap()
}

pub fn upstream_fixed(limit_buffers: u32) -> Upstream {
    upstream::PoolAllocator::new(
        "pool",
        limit_buffers,
        false,
        NO_ROUNDING,
        Counted::default(),
    )
    .unwrap()
}

pub fn counters(from_pool: u64, put: u64, allocated: u64, evicted: u64) -> PoolCounters {
    let mut counters = PoolCounters::default();
    counters.from_pool = from_pool;
    counters.put = put;
    counters.allocated = allocated;
    counters.evicted = evicted;
    counters
}

pub fn align(bytes: u64) -> Align {
    Align::new(bytes).unwrap()
}

/// The calls of a sub-allocator and their bytes, as upstream counts them.
#[derive(Clone, Copy, Default)]
pub struct Calls {
    pub grows: u64,
    pub grown_bytes: u64,
    pub releases: u64,
    pub released_bytes: u64,
}

pub trait AnyPool {
    type Block;

    /// Allocates a block, or returns the text of the refusal.
    fn try_alloc(&mut self, bytes: u64, align: u64) -> Result<Self::Block, String>;
    fn free(&mut self, block: Self::Block);
    fn clear(&mut self);
    fn addr(block: &Self::Block) -> Addr;
    fn bytes(block: &Self::Block) -> u64;
    fn counters(&self) -> PoolCounters;
    fn limit(&self) -> u32;
    fn idle(&self) -> u32;
    fn calls(&self) -> Calls;
    /// Checks the invariants, if the pool has any.
    fn check(&self);

    #[track_caller]
    fn alloc(&mut self, bytes: u64) -> Self::Block {
        self.try_alloc(bytes, 4).expect("memory")
    }

    #[track_caller]
    fn pair(&mut self, bytes: u64) {
        let block = self.alloc(bytes);
        self.free(block);
    }

    fn burst(&mut self, blocks: usize, bytes: u64) -> VecDeque<Self::Block> {
        (0..blocks).map(|_| self.alloc(bytes)).collect()
    }
}

/// A sub-allocator that counts its calls and aligns addresses to no more than requested.
#[derive(Default)]
pub struct Counted {
    next: Cell<u64>,
    calls: Cell<Calls>,
    /// The number of growths that are still to be refused.
    refused_grows: Cell<u64>,
    refused_releases: Cell<u64>,
}

/// Returns whether a call is refused, and reduces `left` if so.
fn refuses(left: &Cell<u64>) -> bool {
    let was = left.get();
    left.set(was.saturating_sub(1));
    was > 0
}

impl SubAllocator for Counted {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        if refuses(&self.refused_grows) {
            return Err(SubAllocError);
        }
        let mut calls = self.calls.get();
        calls.grows += 1;
        calls.grown_bytes += request.bytes;
        self.calls.set(calls);
        let align = request.align.bytes();
        let next = self.next.get().max(FIRST);
        let start = next.next_multiple_of(2 * align) + align;
        let range = AddrRange::new(Addr::new(start), request.bytes).unwrap();
        self.next.set(range.end().get());
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        if refuses(&self.refused_releases) {
            return Err(SubAllocError);
        }
        let mut calls = self.calls.get();
        calls.releases += 1;
        calls.released_bytes += range.bytes();
        self.calls.set(calls);
        Ok(())
    }
}

pub type Upstream = upstream::PoolAllocator<Counted>;

impl AnyPool for Upstream {
    type Block = PoolBlock;

    fn try_alloc(&mut self, bytes: u64, to: u64) -> Result<PoolBlock, String> {
        let block = upstream::PoolAllocator::alloc(self, bytes, align(to));
        block.ok_or_else(|| "none".into())
    }

    fn free(&mut self, block: PoolBlock) {
        upstream::PoolAllocator::free(self, block);
    }

    fn clear(&mut self) {
        upstream::PoolAllocator::clear(self);
    }

    fn addr(block: &PoolBlock) -> Addr {
        block.addr
    }

    fn bytes(block: &PoolBlock) -> u64 {
        block.bytes()
    }

    fn counters(&self) -> PoolCounters {
        upstream::PoolAllocator::counters(self)
    }

    fn limit(&self) -> u32 {
        self.limit_buffers()
    }

    fn idle(&self) -> u32 {
        self.idle_buffers() as u32
    }

    fn calls(&self) -> Calls {
        self.source().calls.get()
    }

    fn check(&self) {}
}

/// Our pool over a sub-allocator that counts.
pub struct Rig {
    pub pool: PoolAllocator<Counted>,
}

impl Rig {
    pub fn new(config: PoolConfig) -> Self {
        Self::with_records(config, 1 << 14)
    }

    pub fn with_records(config: PoolConfig, records: usize) -> Self {
        let pool = Pool::new(config, records).expect("a good configuration");
        Self {
            pool: PoolAllocator::new(pool, Counted::default()),
        }
    }

    pub fn end_steps(&self, count: u64) {
        for _ in 0..count {
            self.pool.end_step();
        }
    }
}

impl AnyPool for Rig {
    type Block = Block;

    fn try_alloc(&mut self, bytes: u64, to: u64) -> Result<Block, String> {
        let request = Request::new(bytes).aligned(align(to));
        let grant = self.pool.alloc(&request);
        grant
            .map(|grant| grant.block)
            .map_err(|error| format!("{error:?}"))
    }

    #[track_caller]
    fn free(&mut self, block: Block) {
        self.pool.free(block).expect("a block of this pool");
    }

    fn clear(&mut self) {
        self.pool.clear();
    }

    fn addr(block: &Block) -> Addr {
        block.addr()
    }

    fn bytes(block: &Block) -> u64 {
        block.bytes()
    }

    fn counters(&self) -> PoolCounters {
        self.pool.counters()
    }

    fn limit(&self) -> u32 {
        self.pool.report().limit_buffers
    }

    fn idle(&self) -> u32 {
        self.pool.report().idle_buffers
    }

    fn calls(&self) -> Calls {
        self.pool.source().calls.get()
    }

    #[track_caller]
    fn check(&self) {
        if let Err(violation) = self.pool.with(|pool| pool.check_invariants()) {
            panic!("{violation}");
        }
    }
}

impl Scripted for Upstream {
    fn make(words: &[&str]) -> Self {
        let rounder = if words.contains(&"powers-of-two") {
            POWER_OF_TWO
        } else {
            NO_ROUNDING
        };
        let grows = words.contains(&"grows");
        let limit = number(words[0]) as u32;
        upstream::PoolAllocator::new("pool", limit, grows, rounder, Counted::default()).unwrap()
    }

    fn own(&mut self, operation: &str, _: &[&str]) {
        panic!("no operation is {operation}");
    }
}

impl Scripted for Rig {
    fn make(words: &[&str]) -> Self {
        let option = |key| option(words, key).map(number);
        let bytes = option("bytes").unwrap_or(u64::MAX);
        let plain = PoolConfig::new(number(words[0]) as u32, bytes);
        let max = match words.contains(&"fixed") {
            true => Some(0),
            false => option("max"),
        };
        let age = option("age").and_then(|age| NonZeroU32::new(age as u32));
        let config = PoolConfig {
            max_buffers: max.map_or(plain.max_buffers, |max| max as u32),
            age_steps: age.or(plain.age_steps),
            align: option("align").map_or(plain.align, align),
            steps_log2: option("steps").map_or(plain.steps_log2, |steps| steps as u8),
            ..plain
        };
        let records = option("records").unwrap_or(1 << 14);
        Self::with_records(config, records as usize)
    }

    fn own(&mut self, operation: &str, words: &[&str]) {
        let (count, source) = (number(words[0]), self.pool.source());
        match operation {
            "steps" => self.end_steps(count),
            "limits" => {
                let set = self.pool.set_limits(count as u32, number(words[1]));
                set.unwrap();
            }
            "refuse-grows" => source.refused_grows.set(count),
            "refuse-releases" => source.refused_releases.set(count),
            other => panic!("no operation is {other}"),
        }
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.pool.allocation_id(block)
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let (report, stats) = (self.pool.report(), self.pool.stats());
        vec![
            ("idle bytes", report.idle_bytes),
            ("stuck", report.stuck_buffers.into()),
            ("held", stats.reserved_bytes),
            ("live", stats.live_bytes),
            ("requested", stats.requested_bytes),
        ]
    }
}
