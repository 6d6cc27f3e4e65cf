//! A pool whose tickets are carried out here, so that a test sees the sizes that upstream's
//! sub-allocator saw; invariants are walked after every call.

use std::collections::VecDeque;

use larder_core::pool::{Buffer, LimitGrowth, Pool, PoolConfig, PoolCounters, PoolStep};
use larder_core::{Addr, AddrRange, Align, Block, Request};

/// Upstream's without `auto_resize`.
pub fn fixed(limit_buffers: u32) -> PoolConfig {
    PoolConfig {
        growth: LimitGrowth::Never,
        ..PoolConfig::tensorflow(limit_buffers)
    }
}

pub fn counters(from_pool: u64, put: u64, allocated: u64, evicted: u64) -> PoolCounters {
    PoolCounters {
        from_pool,
        put,
        allocated,
        evicted,
    }
}

pub struct Rig {
    pub pool: Pool<'static>,
    next: u64,
    /// Calls of the sub-allocator and their bytes, as upstream counts them.
    pub grows: u64,
    pub grown_bytes: u64,
    pub releases: u64,
    pub released_bytes: u64,
}

pub fn tables(records: usize) -> (&'static mut [Buffer], &'static mut [u32]) {
    let buffers = vec![Buffer::VACANT; records + 1].into_boxed_slice();
    let slots = vec![0; 2 * (records + 1)].into_boxed_slice();
    (Box::leak(buffers), Box::leak(slots))
}

impl Rig {
    pub fn new(config: PoolConfig) -> Self {
        let (buffers, slots) = tables(1 << 14);
        Self {
            pool: Pool::new(config, buffers, slots).expect("a good configuration"),
            next: 0x10_0000,
            grows: 0,
            grown_bytes: 0,
            releases: 0,
            released_bytes: 0,
        }
    }

    #[track_caller]
    pub fn alloc_aligned(&mut self, bytes: u64, align: u64) -> Block {
        let request = Request::new(bytes).aligned(Align::new(align).unwrap());
        match self.pool.alloc(&request).expect("room in the table") {
            PoolStep::Ready(grant) => grant.block,
            PoolStep::Grow(ticket) => {
                self.grows += 1;
                self.grown_bytes += ticket.bytes();
                // Addresses that are aligned to no more than was asked for.
                let align = ticket.request().align.bytes();
                let start = self.next.next_multiple_of(2 * align) + align;
                let range = AddrRange::new(Addr::new(start), ticket.request().bytes).unwrap();
                self.next = range.end().get();
                self.pool.commit(ticket, range).expect("a good range").block
            }
        }
    }

    #[track_caller]
    pub fn alloc(&mut self, bytes: u64) -> Block {
        self.alloc_aligned(bytes, 4)
    }

    #[track_caller]
    pub fn free(&mut self, block: Block) {
        self.pool.free(block).expect("a block of this pool");
        self.drain();
    }

    /// A pair: allocated and freed.
    #[track_caller]
    pub fn pair(&mut self, bytes: u64) {
        let block = self.alloc(bytes);
        self.free(block);
    }

    pub fn drain(&mut self) {
        while let Some(ticket) = self.pool.take_leaving() {
            self.releases += 1;
            self.released_bytes += ticket.bytes();
            self.pool.released(ticket);
        }
    }

    #[track_caller]
    pub fn check(&self) {
        if let Err(violation) = self.pool.check_invariants() {
            panic!("{violation}");
        }
    }

    /// Allocates that many blocks of a size.
    pub fn burst(&mut self, blocks: usize, bytes: u64) -> VecDeque<Block> {
        (0..blocks).map(|_| self.alloc(bytes)).collect()
    }

    pub fn limit(&self) -> u32 {
        self.pool.report().limit_buffers
    }
}
