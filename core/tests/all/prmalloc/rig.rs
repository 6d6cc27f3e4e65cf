//! Our pool and upstream's, over a backend that counts calls, refuses on demand and checks releases.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use larder_core::prmalloc::{
    Interval, PlanCapacity, PlanError, PlannedPoolConfig, PoolCounts, TensorPool, Window,
};
use larder_core::{
    Addr, AddrRange, Align, AllocError, FreeError, GrowRequest, SubAllocError, SubAllocator,
};
use larder_model::prmalloc as upstream;
use larder_model::prmalloc::Form;
pub use larder_model::prmalloc::{AnyPool, CountedBackend, InUse, until_planned};

use crate::prmalloc::books::{align, room};

/// The backend's first address.
pub const FIRST: u64 = 1 << 40;

/// A backend whose addresses ascend, with gaps, so that none is given twice.
pub struct Mock {
    next: AtomicU64,
    pub capacity_bytes: AtomicU64,
    pub refuse_releases: AtomicU32,
    grows: AtomicU64,
    releases: AtomicU64,
    out: Mutex<BTreeMap<u64, u64>>,
}

impl Mock {
    pub fn new() -> Self {
        Self {
            next: AtomicU64::new(FIRST),
            capacity_bytes: AtomicU64::new(u64::MAX),
            refuse_releases: AtomicU32::new(0),
            grows: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            out: Mutex::new(BTreeMap::new()),
        }
    }
}

impl CountedBackend for Mock {
    fn calls(&self) -> (u64, u64) {
        let count = |calls: &AtomicU64| calls.load(Ordering::SeqCst);
        (count(&self.grows), count(&self.releases))
    }

    fn out_bytes(&self) -> u64 {
        self.out.lock().unwrap().values().sum()
    }
}

impl SubAllocator for Mock {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        assert!(request.bytes > 0 && request.bytes.is_multiple_of(request.align.bytes()));
        let mut out = self.out.lock().unwrap();
        let held: u64 = out.values().sum();
        let capacity = self.capacity_bytes.load(Ordering::SeqCst);
        if held
            .checked_add(request.bytes)
            .is_none_or(|held| held > capacity)
        {
            return Err(SubAllocError);
        }
        // The start is aligned to no more than the requested alignment.
        let step = request.align.bytes();
        let start = self.next.load(Ordering::SeqCst).next_multiple_of(2 * step) + step;
        let range = AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)?;
        self.next.store(range.end().get() + 64, Ordering::SeqCst);
        out.insert(start, request.bytes);
        self.grows.fetch_add(1, Ordering::SeqCst);
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let left = self.refuse_releases.load(Ordering::SeqCst);
        if left > 0 {
            self.refuse_releases.store(left - 1, Ordering::SeqCst);
            return Err(SubAllocError);
        }
        let held = self.out.lock().unwrap().remove(&range.start().get());
        assert_eq!(
            held,
            Some(range.bytes()),
            "only what is out comes back, whole"
        );
        self.releases.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

pub type Pool = TensorPool<Mock>;

/// Returns our pool with room for `stats` stats and for enough records.
pub fn pool_with(config: PlannedPoolConfig, small: bool, stats: usize) -> Pool {
    let records = stats.min(4096);
    let room = PlanCapacity {
        small,
        ..room(stats, records)
    };
    TensorPool::new(config, room, 2 * records, Mock::new()).unwrap()
}

pub fn pool(config: PlannedPoolConfig) -> Pool {
    pool_with(config, false, 1 << 10)
}

/// A window that plans after two repeating steps.
pub const SOON: Window = Window {
    start: 0,
    stable: 0,
    max: 50,
};

/// Returns the default with a unit of 64 bytes, which plans soon and never again.
pub fn soon() -> PlannedPoolConfig {
    let mut config = PlannedPoolConfig::new();
    config.planner.window = SOON;
    config.unit = align(64);
    config.replan = None;
    config
}

pub trait OverMock: AnyPool + Sync {
    fn backend(&self) -> &Mock;
}

impl OverMock for Pool {
    fn backend(&self) -> &Mock {
        TensorPool::backend(self)
    }
}

impl OverMock for Upstream {
    fn backend(&self) -> &Mock {
        self.backend
    }
}

/// Upstream's pool, which threads share behind one lock.
pub struct Upstream {
    pool: Mutex<upstream::TensorPool<&'static Mock>>,
    backend: &'static Mock,
}

pub fn upstream(form: Form, small: bool) -> Upstream {
    let backend: &Mock = Box::leak(Box::new(Mock::new()));
    Upstream {
        pool: Mutex::new(upstream::TensorPool::new(form, small, backend)),
        backend,
    }
}

/// Returns upstream's CPU form, which plans after two repeating steps.
pub fn upstream_soon() -> Upstream {
    let Window { start, stable, max } = SOON;
    let form = Form {
        window: upstream::Window::Stable { start, stable, max },
        ..Form::CPU
    };
    upstream(form, false)
}

impl Upstream {
    pub fn virtuals_of(&self, class: u64) -> usize {
        let pool = self.pool.lock().unwrap();
        let plan = pool.planner().plans().of(Interval::KiB4);
        plan.bins[&class].virtuals.len()
    }
}

impl AnyPool for Upstream {
    fn alloc(&self, bytes: u64, align: Align) -> Result<Addr, AllocError> {
        self.pool.lock().unwrap().alloc(bytes, align)
    }

    fn free(&self, addr: Addr) -> Result<(), FreeError> {
        self.pool.lock().unwrap().free(addr)
    }

    fn in_step(&self, run: &mut dyn FnMut()) -> Result<(), PlanError> {
        let before = self.pool.lock().unwrap().start();
        run();
        self.pool.lock().unwrap().stop().and(before)
    }

    fn counts(&self) -> PoolCounts {
        self.pool.lock().unwrap().counts()
    }

    fn is_planned(&self) -> bool {
        self.pool.lock().unwrap().is_planned()
    }

    fn planned_bytes(&self) -> u64 {
        self.pool.lock().unwrap().planner().plans().best().bytes
    }

    fn reset(&self) {
        self.pool.lock().unwrap().reset();
    }

    fn backend_calls(&self) -> (u64, u64) {
        self.backend.calls()
    }

    fn backend_bytes(&self) -> u64 {
        self.backend.out_bytes()
    }
}

/// Runs steps with `ops` until the pool serves from a plan.
#[track_caller]
pub fn planned<P: AnyPool>(pool: P, ops: &str) -> P {
    until_planned(&pool, ops);
    pool
}

#[track_caller]
pub fn planned_pool(config: PlannedPoolConfig, ops: &str) -> Pool {
    planned(pool(config), ops)
}
