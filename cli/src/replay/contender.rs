//! The interface of an allocator that can be replayed.
//!
//! A contender works on numbers. It returns addresses on a device that it simulates, and never
//! accesses memory there.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_core::steps::{StepStats, Steps};
use larder_core::{Addr, Block, ChunkHandle, RawBlock};
use serde::Serialize;

use crate::snapshot::Span;

/// A contender's block: its address, and the handle by which the contender finds its record of the
/// block.
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

/// Calls of a driver that maps pages, by kind. Refused calls do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct DriverCalls {
    pub(crate) create: u64,
    pub(crate) map: u64,
    pub(crate) unmap: u64,
    pub(crate) release: u64,
    pub(crate) set_access: u64,
}

impl DriverCalls {
    /// Returns the number of all calls.
    pub(crate) const fn total(&self) -> u64 {
        self.create + self.map + self.unmap + self.release + self.set_access
    }
}

/// The number of a driver's calls by function name, for functions that were called.
pub(crate) type CallsByName = BTreeMap<String, u64>;

/// Subtracts the calls in `before`, multiplied by `times`, from the calls in `now`. Names without
/// remaining calls are dropped.
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

/// How a contender that plans served the blocks of steps; sums over all passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct StepFigures {
    /// Steps with exactly the requests of a known shape.
    pub(crate) known_steps: u64,
    /// Bytes allocated at the place that a plan has for them.
    pub(crate) hit_bytes: u64,
    /// Bytes that have a place in a plan but were allocated elsewhere.
    pub(crate) missed_bytes: u64,
    /// Bytes in steps without a plan.
    pub(crate) unplanned_bytes: u64,
    /// Allocations that differed from the expected shape.
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

    /// Allocates a block of at least `bytes` for work on a stream, or returns `None` if it does not
    /// fit. The block is freed on the same stream. Contenders without streams ignore the stream.
    fn alloc_on(&mut self, _stream: u8, bytes: u64) -> Option<ContenderBlock> {
        self.alloc(bytes)
    }

    /// Frees a live block that [`alloc`](Self::alloc) returned. The replay never frees a block
    /// twice.
    fn free(&mut self, slot: ContenderBlock);

    /// Returns the bytes held from the device now, including bytes that are not live.
    fn reserved_bytes(&self) -> u64;

    /// Returns the number of successful allocations on the device.
    fn driver_allocations(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.create)
    }

    /// Returns the number of releases to the device.
    fn driver_frees(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.release)
    }

    /// Returns the maximum bytes held so far, even during a call. `None` means that
    /// [`reserved_bytes`](Self::reserved_bytes) after each call never misses the maximum.
    fn max_reserved_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the driver calls so far, if the contender's device maps pages.
    fn driver_calls(&self) -> Option<DriverCalls> {
        None
    }

    /// Returns the time spent in calls of a simulated driver, which does not count as the
    /// allocator's work.
    fn driver_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the driver on which the contender runs, `real` or `stand-in`; `None` if its device
    /// is simulated.
    fn driver(&self) -> Option<&'static str> {
        None
    }

    /// Returns the calls of that driver since the contender was created, if they are known. On the
    /// stand-in, these are all calls, successful or not, that allocate or free blocks or end steps.
    fn calls_by_name(&self) -> Option<CallsByName> {
        None
    }

    /// Returns how the blocks of steps were served, if the contender plans.
    fn steps(&self) -> Option<StepFigures> {
        None
    }

    /// Returns the memory held from the device now, in address order and without overlaps. A live
    /// block whose granted size is known is a piece of its own. `None` if the contender does not
    /// report its memory.
    fn held(&self) -> Option<Vec<Span>> {
        None
    }

    /// Returns the bytes that the plan in use needs; `None` if the contender follows no plan.
    fn planned_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the learned steps, if the contender's plans can be saved.
    fn planner(&mut self) -> Option<&mut Steps<'static>> {
        None
    }

    /// Ends a step of the program, and begins the next.
    fn end_step(&mut self) {}

    /// Begins the whole trace again, without live blocks. Contenders that plan release their memory
    /// and expect the first step, so that the next pass shows the memory of a program whose steps
    /// are known from the start.
    fn start_over(&mut self) {}

    /// Makes the contender report its blocks to its device, so that the device can check them.
    /// Called before the first block, and never in a timed pass.
    fn judge(&mut self) {}

    /// Describes the first rule of its device that the contender broke, if any.
    fn broken_rule(&self) -> Option<String> {
        None
    }
}

/// A contender's name, description and constructor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContenderSpec {
    /// The name in `--allocator` and in tables.
    pub(crate) name: &'static str,
    /// One line that describes the contender.
    pub(crate) about: &'static str,
    /// Builds a new contender on a device of `device_bytes`, or without a limit.
    pub(crate) build: fn(device_bytes: Option<u64>) -> Box<dyn Contender>,
}
