//! The interface that an allocator needs to be replayed.
//!
//! A contender works on numbers. It returns addresses on a device that it simulates, and never
//! touches memory at them.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_core::steps::{StepStats, Steps};
use larder_core::{Addr, Block, ChunkHandle, RawBlock};
use serde::Serialize;

use crate::snapshot::Span;

/// A block of a contender: its address, and the handle by which the contender finds its own record
/// of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ContenderBlock {
    /// First address of the block.
    pub(crate) address: u64,
    /// The contender's own identifier of the block.
    pub(crate) handle: u32,
}

impl ContenderBlock {
    /// Converts a block of the core.
    pub(crate) fn of(block: Block) -> Self {
        let RawBlock { addr, handle } = block.into_raw();
        Self {
            address: addr.get(),
            handle: handle.get(),
        }
    }

    /// Returns the block of the core.
    pub(crate) fn raw(self) -> Option<RawBlock> {
        let addr = Addr::new(self.address);
        ChunkHandle::new(self.handle).map(|handle| RawBlock { addr, handle })
    }
}

/// Calls of a driver that maps pages, by kind; refused ones do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct DriverCalls {
    pub(crate) create: u64,
    pub(crate) map: u64,
    pub(crate) unmap: u64,
    pub(crate) release: u64,
    pub(crate) set_access: u64,
}

impl DriverCalls {
    /// Returns the sum of all calls.
    pub(crate) const fn total(&self) -> u64 {
        self.create + self.map + self.unmap + self.release + self.set_access
    }
}

/// Number of calls of a driver by function name, for functions that were called.
pub(crate) type CallsByName = BTreeMap<String, u64>;

/// Subtracts `times` times the calls in `before` from those in `now`; names with no calls left are
/// dropped.
pub(crate) fn beyond(now: &CallsByName, before: &CallsByName, times: u64) -> CallsByName {
    let rest = now.iter().map(|(name, calls)| {
        let taken = before.get(name).copied().unwrap_or(0);
        (
            name.clone(),
            calls.saturating_sub(taken.saturating_mul(times)),
        )
    });
    rest.filter(|(_, calls)| *calls > 0).collect()
}

/// How the blocks of steps were served, for contenders that plan; sums over all passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct StepFigures {
    /// Steps whose requests are those of a known shape, from first to last.
    pub(crate) known_steps: u64,
    /// Bytes allocated at a plan's place.
    pub(crate) hit_bytes: u64,
    /// Bytes that have a place in the plan and were allocated elsewhere.
    pub(crate) missed_bytes: u64,
    /// Bytes in steps without a plan.
    pub(crate) unplanned_bytes: u64,
    /// Allocations that differed from the shape followed.
    pub(crate) deviations: u64,
    /// Shapes laid out.
    pub(crate) layouts: u64,
    /// Layouts not used because they would have needed more memory than is held.
    pub(crate) rejected: u64,
}

impl From<StepStats> for StepFigures {
    fn from(stats: StepStats) -> Self {
        Self {
            known_steps: stats.known_steps,
            hit_bytes: stats.hit_bytes,
            missed_bytes: stats.missed_bytes,
            unplanned_bytes: stats.unplanned_bytes,
            deviations: stats.deviations,
            layouts: stats.layouts,
            rejected: stats.rejected,
        }
    }
}

/// An allocator in a replay.
pub(crate) trait Contender {
    /// Allocates a block of at least `bytes` (never 0), or returns `None` if it does not fit. Live
    /// blocks never overlap.
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock>;

    /// Allocates a block of at least `bytes` for work on a stream, on which it is freed as well, or
    /// returns `None` if it does not fit. Contenders without streams treat all as one.
    fn alloc_on(&mut self, _stream: u8, bytes: u64) -> Option<ContenderBlock> {
        self.alloc(bytes)
    }

    /// Frees a live block that [`alloc`](Self::alloc) returned. The replay never frees a block
    /// twice.
    fn free(&mut self, slot: ContenderBlock);

    /// Returns the bytes held from the device now, live or not.
    fn reserved_bytes(&self) -> u64;

    /// Returns the number of successful allocations on the device.
    fn driver_allocations(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.create)
    }

    /// Returns the number of releases to the device.
    fn driver_frees(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.release)
    }

    /// Returns the maximum bytes held so far, also in the middle of a call; `None` if that never
    /// exceeds the maximum of [`reserved_bytes`](Self::reserved_bytes) after each call.
    fn max_reserved_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the calls of the driver so far, for contenders whose device maps pages.
    fn driver_calls(&self) -> Option<DriverCalls> {
        None
    }

    /// Returns the time spent in the calls of a simulated driver, which is not the allocator's
    /// work.
    fn driver_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the driver it runs on, `real` or `stand-in`; `None` if its device is simulated.
    fn driver(&self) -> Option<&'static str> {
        None
    }

    /// Returns the calls of that driver since the contender was made, as far as they are known: on
    /// the stand-in all calls, successful or not, that make and free blocks and end steps.
    fn calls_by_name(&self) -> Option<CallsByName> {
        None
    }

    /// Returns how the blocks of steps were served, for contenders that plan.
    fn steps(&self) -> Option<StepFigures> {
        None
    }

    /// Returns the memory held from the device now, by address and without overlap, each live block
    /// a piece of its own where its granted size is known; `None` for contenders that do not report
    /// it.
    fn held(&self) -> Option<Vec<Span>> {
        None
    }

    /// Returns the bytes that the plan in use needs, for contenders that plan and while they follow
    /// one.
    fn planned_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the learned steps, for contenders whose plans can be saved.
    fn planner(&mut self) -> Option<&mut Steps<'static>> {
        None
    }

    /// Ends a step of the program, and begins the next.
    fn end_step(&mut self) {}

    /// Begins the whole trace again, without live blocks. Contenders that plan release their memory
    /// and expect the first step, so that a pass shows the needs of a program that knows its steps
    /// from the start.
    fn start_over(&mut self) {}

    /// Makes the contender report its live blocks to its device from now on, so that the device can
    /// check them. Called before the first block, and never in a timed pass.
    fn judge(&mut self) {}

    /// Describes the first rule of its device that the contender broke.
    fn broken_rule(&self) -> Option<String> {
        None
    }
}

/// A contender's name, description and constructor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContenderSpec {
    /// Name for `--allocator` and in tables.
    pub(crate) name: &'static str,
    /// One line that describes it.
    pub(crate) about: &'static str,
    /// Builds a new contender on a device of `device_bytes`, or without limit.
    pub(crate) build: fn(device_bytes: Option<u64>) -> Box<dyn Contender>,
}
