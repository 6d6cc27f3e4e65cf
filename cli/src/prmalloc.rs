//! Contenders that plan from recorded steps: the tensor pool, and upstream's as the model has it, over
//! a driver that gives exactly what it is asked for.
//!
//! One stream, logical ticks. The recorded traces have few steps, so the window is scaled down: the
//! first step is skipped, the next two are recorded, and the plan serves from then on. What the plan
//! has no block for, and everything before it, is an allocation of the driver.

use std::cell::RefCell;

use larder_core::lifetime::prmalloc::{
    AllocStat, BinRecord, BlockRecord, LiveRecord, OpenStep, PlanTables, PlannedPoolConfig,
    PolicyTables, PoolBin, PoolBlock, PoolTables, PoolVirtual, TensorPool, VirtualRecord, Window,
};
use larder_core::{Addr, AddrRange, Align, GrowRequest, SubAllocError, SubAllocator};
use larder_model::prmalloc as upstream;
use larder_model::prmalloc::Form;

use crate::peers::Device;
use crate::replay::{Contender, Slot, Spare};

/// The first step counted, and rounds after which the plan is made.
const WINDOW: Window = Window {
    start: 1,
    stable: 0,
    max: 1,
};

/// The steps that the GPU form records: 1 and 2.
const UPSTREAM_WINDOW: upstream::Window = upstream::Window::EachStart { start: 1, stop: 3 };

/// Alignment of every block, as in TensorFlow.
const ALIGN: Align = Align::new(64).unwrap();

/// First address of the device; not 0, so that a forgotten base would show.
const BASE: u64 = 1 << 40;

/// Blocks freed in a step at most, far more than any trace has.
const STATS: usize = 1 << 17;
/// Bins, and blocks and virtual blocks of a plan, at most.
const BINS: usize = 1 << 13;
const BLOCKS: usize = 1 << 16;

/// The core's, which plans again when steps change.
pub(crate) fn prmalloc(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let mut config = PlannedPoolConfig::new();
    config.planner.window = WINDOW;
    let pool = TensorPool::new(config, TABLES.take(new_tables), Driver::new(device_bytes));
    let step = Some(pool.start());
    Box::new(Planned {
        pool: Some(pool),
        step,
    })
}

/// Upstream's GPU form, which plans once.
pub(crate) fn prmalloc_upstream(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let form = Form {
        window: UPSTREAM_WINDOW,
        ..Form::GPU
    };
    let mut pool = upstream::TensorPool::new(form, true, Driver::new(device_bytes));
    // Nothing is recorded, so there is no plan yet.
    pool.start().ok();
    Box::new(Upstream(pool))
}

/// A driver that counts.
struct Driver(RefCell<Device>);

impl Driver {
    fn new(device_bytes: Option<u64>) -> Self {
        Self(RefCell::new(Device::new(device_bytes)))
    }

    /// Whether the bytes that a pool counts are those of the device.
    fn broken_rule(&self, counted: u64) -> Option<String> {
        let held = self.0.borrow().used_bytes;
        (counted != held)
            .then(|| format!("{counted} bytes are counted as reserved, the device gave {held}"))
    }
}

impl SubAllocator for Driver {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        // Whole units from a whole unit on, and no trace wants more than a unit's alignment.
        let start = self.0.borrow_mut().allocate(request.bytes);
        let start = start.and_then(|start| start.checked_add(BASE));
        let range = start.and_then(|start| AddrRange::new(Addr::new(start), request.bytes));
        range.ok_or(SubAllocError)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.0.borrow_mut().release(range.bytes());
        Ok(())
    }
}

/// A pool of the core, as a contender.
struct Planned {
    /// Always there, except while it is dropped.
    pool: Option<TensorPool<'static, Driver>>,
    step: Option<OpenStep>,
}

impl Planned {
    fn device<R>(&self, f: impl FnOnce(&Device) -> R) -> Option<R> {
        let pool = self.pool.as_ref()?;
        Some(f(&pool.backend().0.borrow()))
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            TABLES.give(pool.into_parts().0);
        }
    }
}

impl Contender for Planned {
    fn alloc(&mut self, bytes: u64) -> Option<Slot> {
        let address = self.pool.as_ref()?.alloc(bytes, ALIGN).ok()?.get();
        Some(Slot { address, handle: 0 })
    }

    fn free(&mut self, slot: Slot) {
        let freed = self
            .pool
            .as_ref()
            .is_some_and(|pool| pool.free(Addr::new(slot.address)).is_ok());
        assert!(freed, "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        self.pool
            .as_ref()
            .map_or(0, |pool| pool.counts().reserved_bytes())
    }

    fn driver_allocations(&self) -> u64 {
        self.device(|device| device.allocations).unwrap_or(0)
    }

    fn driver_frees(&self) -> u64 {
        self.device(|device| device.frees).unwrap_or(0)
    }

    fn end_step(&mut self) {
        if let (Some(pool), Some(step)) = (self.pool.as_ref(), self.step.take()) {
            // Without room for a plan the pool goes on as before.
            let _ = pool.end_step(step);
            self.step = Some(pool.start());
        }
    }

    fn broken_rule(&self) -> Option<String> {
        let pool = self.pool.as_ref()?;
        pool.backend().broken_rule(pool.counts().reserved_bytes())
    }
}

/// Upstream's pool, as a contender.
struct Upstream(upstream::TensorPool<Driver>);

impl Contender for Upstream {
    fn alloc(&mut self, bytes: u64) -> Option<Slot> {
        let address = self.0.alloc(bytes, ALIGN).ok()?.get();
        Some(Slot { address, handle: 0 })
    }

    fn free(&mut self, slot: Slot) {
        let freed = self.0.free(Addr::new(slot.address)).is_ok();
        assert!(freed, "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        self.0.counts().reserved_bytes()
    }

    fn driver_allocations(&self) -> u64 {
        self.0.backend().0.borrow().allocations
    }

    fn driver_frees(&self) -> u64 {
        self.0.backend().0.borrow().frees
    }

    fn end_step(&mut self) {
        // Without room for a plan the pool goes on as before.
        self.0.stop().ok();
        self.0.start().ok();
    }

    fn broken_rule(&self) -> Option<String> {
        self.0.backend().broken_rule(self.reserved_bytes())
    }
}

static TABLES: Spare<PoolTables<'static>> = Spare::new();

fn new_tables() -> PoolTables<'static> {
    PoolTables {
        pending: vec![AllocStat::VACANT; STATS].leak(),
        plans: PlanTables {
            stats: vec![AllocStat::VACANT; STATS].leak(),
            order: vec![0; STATS].leak(),
            policies: [policy(), policy(), policy()],
            small: Some(policy()),
        },
        bins: [(); 2].map(|()| leaked(BINS, PoolBin::vacant)),
        blocks: [(); 2].map(|()| leaked(BLOCKS, PoolBlock::vacant)),
        virtuals: [(); 2].map(|()| leaked(STATS, PoolVirtual::vacant)),
        live: vec![LiveRecord::VACANT; STATS].leak(),
    }
}

fn policy() -> PolicyTables<'static> {
    PolicyTables {
        bins: vec![BinRecord::VACANT; BINS].leak(),
        blocks: vec![BlockRecord::VACANT; BLOCKS].leak(),
        virtuals: vec![VirtualRecord::VACANT; STATS].leak(),
        members: vec![0; STATS].leak(),
    }
}

fn leaked<T>(records: usize, vacant: fn() -> T) -> &'static [T] {
    Vec::leak((0..records).map(|_| vacant()).collect())
}
