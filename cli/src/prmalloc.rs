//! Contenders that plan from recorded steps: the tensor pool, and the model of upstream's pool.
//! Both run over a driver that returns exactly the requested bytes.
//!
//! There is one stream, and ticks are logical. The recorded traces have few steps, so the window is
//! scaled down: the first step is skipped, the next two are recorded, and the plan serves from then
//! on. Allocations made before there is a plan, or for which it has no block, go to the driver.

use std::cell::RefCell;

use larder_core::prmalloc::{
    OpenStep, PlanCapacity, PlannedPoolConfig, PlannerConfig, TensorPool, Window,
};
use larder_core::{Addr, AddrRange, Align, GrowRequest, SubAllocError, SubAllocator};
use larder_model::prmalloc as upstream;
use larder_model::prmalloc::Form;

use crate::peers::SimulatedDevice;
use crate::replay::{Contender, ContenderBlock};

/// The step at which recording begins, and the number of rounds after which the plan is made.
const WINDOW: Window = Window {
    start: 1,
    stable: 0,
    max: 1,
};

/// The steps that the GPU form records: 1 and 2.
const UPSTREAM_WINDOW: upstream::Window = upstream::Window::EachStart { start: 1, stop: 3 };

/// Alignment of every block, as in TensorFlow.
const ALIGN: Align = Align::new(64).unwrap();

/// First address of the device. It is not 0, so that a forgotten base shows.
const BASE: u64 = 1 << 40;

/// Maximum number of blocks freed in a step and of blocks in use, far more than any trace has.
const STATS: usize = 1 << 17;

/// Maximum size of a plan.
const ROOM: PlanCapacity = PlanCapacity {
    stats: STATS,
    bins: 1 << 13,
    blocks: 1 << 16,
    virtuals: STATS,
    small: true,
};

/// Builds the core's pool, which plans again when steps change.
#[expect(clippy::expect_used, reason = "a replay ends without its tables")]
pub(crate) fn prmalloc(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let mut config = PlannedPoolConfig::new();
    config.planner = PlannerConfig::new().with_window(WINDOW);
    let pool = TensorPool::new(config, ROOM, STATS, CountingDriver::new(device_bytes));
    let pool = pool.expect("a replay has memory for its tables");
    let step = Some(pool.start());
    Box::new(PlannedContender { pool, step })
}

/// Builds upstream's GPU form, which plans once.
pub(crate) fn prmalloc_upstream(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let form = Form {
        window: UPSTREAM_WINDOW,
        ..Form::GPU
    };
    let mut pool = upstream::TensorPool::new(form, true, CountingDriver::new(device_bytes));
    // No step is recorded, so there is no plan yet.
    pool.start().ok();
    Box::new(Upstream(pool))
}

/// A driver that counts bytes and calls.
struct CountingDriver(RefCell<SimulatedDevice>);

impl CountingDriver {
    fn new(device_bytes: Option<u64>) -> Self {
        Self(RefCell::new(SimulatedDevice::new(device_bytes)))
    }

    /// Describes the difference between the pool's count of bytes and the device's, if there is
    /// one.
    fn broken_rule(&self, counted: u64) -> Option<String> {
        let held = self.0.borrow().used_bytes;
        (counted != held)
            .then(|| format!("{counted} bytes are counted as reserved, the device gave {held}"))
    }
}

impl SubAllocator for CountingDriver {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        // Requests and addresses are multiples of a unit, and no trace needs a larger alignment
        // than that.
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
struct PlannedContender {
    pool: TensorPool<CountingDriver>,
    step: Option<OpenStep>,
}

impl Contender for PlannedContender {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let address = self.pool.alloc(bytes, ALIGN).ok()?.get();
        Some(ContenderBlock { address, handle: 0 })
    }

    fn free(&mut self, slot: ContenderBlock) {
        let freed = self.pool.free(Addr::new(slot.address)).is_ok();
        assert!(freed, "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        self.pool.counts().reserved_bytes()
    }

    fn driver_allocations(&self) -> u64 {
        self.pool.backend().0.borrow().allocations
    }

    fn driver_frees(&self) -> u64 {
        self.pool.backend().0.borrow().frees
    }

    fn end_step(&mut self) {
        if let Some(step) = self.step.take() {
            // If there is no room for a plan, the pool continues as before.
            let _ = self.pool.end_step(step);
            self.step = Some(self.pool.start());
        }
    }

    fn broken_rule(&self) -> Option<String> {
        self.pool.backend().broken_rule(self.reserved_bytes())
    }
}

/// Upstream's pool, as a contender.
struct Upstream(upstream::TensorPool<CountingDriver>);

impl Contender for Upstream {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let address = self.0.alloc(bytes, ALIGN).ok()?.get();
        Some(ContenderBlock { address, handle: 0 })
    }

    fn free(&mut self, slot: ContenderBlock) {
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
        // If there is no room for a plan, the pool continues as before.
        self.0.stop().ok();
        self.0.start().ok();
    }

    fn broken_rule(&self) -> Option<String> {
        self.0.backend().broken_rule(self.reserved_bytes())
    }
}
