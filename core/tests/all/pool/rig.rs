//! Pools with an observable sub-allocator: upstream's and ours behind one trait, for tests that hold for both.

use std::cell::Cell;
use std::collections::VecDeque;

use larder_core::pool::{Pool, PoolConfig, PoolCounters, PoolStep};
use larder_core::{
    Addr, AddrRange, Align, AllocError, Block, GrowRequest, Request, SubAllocError, SubAllocator,
};
use larder_model::tensorflow::pool::{NO_ROUNDING, PoolAllocator, PoolBlock};

/// Ours with a limit that does not rise.
pub fn fixed(limit_buffers: u32) -> PoolConfig {
    PoolConfig {
        max_buffers: 0,
        ..PoolConfig::new(limit_buffers, u64::MAX)
    }
}

/// Upstream's with `auto_resize`, and without.
pub fn upstream_growing(limit_buffers: u32) -> Upstream {
    PoolAllocator::new("pool", limit_buffers, true, NO_ROUNDING, Counted::default()).unwrap()
}

pub fn upstream_fixed(limit_buffers: u32) -> Upstream {
    PoolAllocator::new(
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

/// Calls of a sub-allocator and their bytes, as upstream counts them.
#[derive(Clone, Copy, Default)]
pub struct Calls {
    pub grows: u64,
    pub grown_bytes: u64,
    pub releases: u64,
    pub released_bytes: u64,
}

/// A pool, ours or upstream's.
pub trait AnyPool {
    type Block;

    fn try_alloc(&mut self, bytes: u64, align: u64) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block);
    fn clear(&mut self);
    fn addr(block: &Self::Block) -> Addr;
    fn bytes(block: &Self::Block) -> u64;
    fn counters(&self) -> PoolCounters;
    fn limit(&self) -> u32;
    fn idle(&self) -> u32;
    fn calls(&self) -> Calls;
    /// Walks what is to hold after every call.
    fn check(&self);

    #[track_caller]
    fn alloc(&mut self, bytes: u64) -> Self::Block {
        self.try_alloc(bytes, 4).expect("memory")
    }

    /// A pair: allocated and freed.
    #[track_caller]
    fn pair(&mut self, bytes: u64) {
        let block = self.alloc(bytes);
        self.free(block);
    }

    /// Allocates that many blocks of a size.
    fn burst(&mut self, blocks: usize, bytes: u64) -> VecDeque<Self::Block> {
        (0..blocks).map(|_| self.alloc(bytes)).collect()
    }
}

/// A sub-allocator that counts, and gives addresses that are aligned to no more than was asked for.
#[derive(Default)]
pub struct Counted {
    next: Cell<u64>,
    calls: Cell<Calls>,
}

impl Counted {
    fn place(&self, request: GrowRequest) -> AddrRange {
        let align = request.align.bytes();
        let next = self.next.get().max(0x10_0000);
        let start = next.next_multiple_of(2 * align) + align;
        let range = AddrRange::new(Addr::new(start), request.bytes).unwrap();
        self.next.set(range.end().get());
        range
    }

    fn grew(&self, bytes: u64) {
        let mut calls = self.calls.get();
        calls.grows += 1;
        calls.grown_bytes += bytes;
        self.calls.set(calls);
    }

    fn released(&self, bytes: u64) {
        let mut calls = self.calls.get();
        calls.releases += 1;
        calls.released_bytes += bytes;
        self.calls.set(calls);
    }
}

impl SubAllocator for Counted {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        self.grew(request.bytes);
        Ok(self.place(request))
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.released(range.bytes());
        Ok(())
    }
}

pub type Upstream = PoolAllocator<Counted>;

impl AnyPool for Upstream {
    type Block = PoolBlock;

    fn try_alloc(&mut self, bytes: u64, to: u64) -> Option<PoolBlock> {
        PoolAllocator::alloc(self, bytes, align(to))
    }

    fn free(&mut self, block: PoolBlock) {
        PoolAllocator::free(self, block);
    }

    fn clear(&mut self) {
        PoolAllocator::clear(self);
    }

    fn addr(block: &PoolBlock) -> Addr {
        block.addr
    }

    fn bytes(block: &PoolBlock) -> u64 {
        block.bytes()
    }

    fn counters(&self) -> PoolCounters {
        PoolAllocator::counters(self)
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

/// Ours, whose tickets are carried out here; invariants are walked after every call.
pub struct Rig {
    pub pool: Pool,
    source: Counted,
}

impl Rig {
    pub fn new(config: PoolConfig) -> Self {
        Self {
            pool: Pool::new(config, 1 << 14).expect("a good configuration"),
            source: Counted::default(),
        }
    }

    pub fn drain(&mut self) {
        while let Some(ticket) = self.pool.take_leaving() {
            self.source.released(ticket.bytes());
            self.pool.released(ticket);
        }
    }
}

impl AnyPool for Rig {
    type Block = Block;

    fn try_alloc(&mut self, bytes: u64, to: u64) -> Option<Block> {
        let request = Request::new(bytes).aligned(align(to));
        match self.pool.alloc(&request) {
            Ok(PoolStep::Ready(grant)) => Some(grant.block),
            Ok(PoolStep::Grow(ticket)) => {
                self.source.grew(ticket.bytes());
                let range = self.source.place(ticket.request());
                Some(self.pool.commit(ticket, range).expect("a good range").block)
            }
            Err(AllocError::ZeroSize) => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[track_caller]
    fn free(&mut self, block: Block) {
        self.pool.free(block).expect("a block of this pool");
        self.drain();
    }

    fn clear(&mut self) {
        self.pool.clear();
        self.drain();
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
        self.source.calls.get()
    }

    #[track_caller]
    fn check(&self) {
        if let Err(violation) = self.pool.check_invariants() {
            panic!("{violation}");
        }
    }
}
