//! Small tables, and a backend that records the ranges in use.

use std::collections::BTreeMap;
use std::sync::Mutex;

use larder_core::prmalloc::{
    PlanCapacity, PlannedPoolConfig, Planner, PlannerConfig, TensorPool, Window,
};
use larder_core::{Addr, AddrRange, Align, GrowRequest, SubAllocError, SubAllocator};

/// A size that gets a bin.
pub(crate) const SIZE: u64 = 40_000;

const RECORDS: usize = 4;

/// Explores every interleaving of `model` with at most three preemptions.
pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = crate::explore::bounded();
    // Planning alone makes more accesses than loom's default allows.
    builder.max_branches = 20_000;
    builder.check(model);
}

const ROOM: PlanCapacity = PlanCapacity {
    stats: RECORDS,
    bins: RECORDS,
    blocks: RECORDS,
    virtuals: RECORDS,
    small: false,
};

/// Creates a planner that records from step 0, for `max` + 1 rounds.
pub(crate) fn planner(max: i64) -> Planner {
    Planner::new(config(max), ROOM).unwrap()
}

fn config(max: i64) -> PlannerConfig {
    PlannerConfig::default().with_window(Window {
        start: 0,
        stable: i64::MAX,
        max,
    })
}

pub(crate) type Pool = TensorPool<Device>;

/// Creates a pool that plans at the end of its first step.
pub(crate) fn pool() -> Pool {
    let config = PlannedPoolConfig {
        planner: config(0),
        replan: None,
        ..PlannedPoolConfig::new()
    };
    TensorPool::new(config, ROOM, 5, Device::default()).unwrap()
}

/// Creates a pool that serves from a plan of `blocks` blocks of [`SIZE`].
pub(crate) fn planned_pool(blocks: usize) -> Pool {
    let pool = pool();
    let step = pool.start();
    play(&pool, blocks);
    pool.end_step(step).unwrap();
    assert!(pool.serving().is_some());
    pool
}

/// Allocates `blocks` blocks and frees them.
pub(crate) fn play(pool: &Pool, blocks: usize) {
    let blocks: Vec<Addr> = (0..blocks).map(|_| alloc(pool)).collect();
    blocks.into_iter().for_each(|block| free(pool, block));
}

/// Allocates a block, and checks that its memory is held.
pub(crate) fn alloc(pool: &Pool) -> Addr {
    let block = pool.alloc(SIZE, Align::ONE).unwrap();
    pool.backend().must_hold(block);
    block
}

/// Frees a block, and checks that its memory was held until then.
pub(crate) fn free(pool: &Pool, block: Addr) {
    pool.backend().must_hold(block);
    pool.free(block).unwrap();
}

/// A backend that grants ascending ranges and records the ranges in use. Its lock is not part of the models.
#[derive(Default)]
pub(crate) struct Device(Mutex<(u64, BTreeMap<u64, u64>)>);

impl Device {
    fn must_hold(&self, block: Addr) {
        let state = self.0.lock().unwrap();
        let range = state.1.range(..=block.get()).next_back();
        let inside = range.is_some_and(|(start, bytes)| block.get() + SIZE <= start + bytes);
        assert!(inside, "the memory of a block in use has been released");
    }

    pub(crate) fn out_bytes(&self) -> u64 {
        self.0.lock().unwrap().1.values().sum()
    }
}

impl SubAllocator for Device {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let mut state = self.0.lock().unwrap();
        let start = (state.0 + (1 << 20)).next_multiple_of(request.align.bytes());
        state.0 = start + request.bytes;
        state.1.insert(start, request.bytes);
        AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let held = self.0.lock().unwrap().1.remove(&range.start().get());
        assert_eq!(held, Some(range.bytes()), "given back once");
        Ok(())
    }
}
