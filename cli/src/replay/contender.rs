//! What an allocator must offer to be replayed.
//!
//! A contender works on numbers: it hands out addresses on a device that it
//! simulates, and never touches memory at them.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_core::steps::{StepStats, Steps};
use larder_core::{Addr, Block, ChunkHandle, RawBlock};
use serde::Serialize;

use crate::snapshot::Span;

/// A block handed out by a contender: where it is, and how the contender finds
/// its own record of it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slot {
    /// First address of the block.
    pub(crate) address: u64,
    /// The contender's own name for the block; whatever it likes.
    pub(crate) handle: u32,
}

impl Slot {
    /// A block of the core.
    pub(crate) fn of(block: Block) -> Self {
        let RawBlock { addr, handle } = block.into_raw();
        Self {
            address: addr.get(),
            handle: handle.get(),
        }
    }

    /// The block of the core.
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
    /// All of them.
    pub(crate) const fn total(&self) -> u64 {
        self.create + self.map + self.unmap + self.release + self.set_access
    }
}

/// Calls of a driver by the names of its functions; none that was not called.
pub(crate) type CallsByName = BTreeMap<String, u64>;

/// What is in `now` beyond `times` times what is in `before`; nothing that is 0.
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
    /// Steps that asked for what a known shape asks for, from first to last.
    pub(crate) known_steps: u64,
    /// Bytes given at a plan's place.
    pub(crate) hit_bytes: u64,
    /// Bytes that have a place in the plan and did not get it.
    pub(crate) missed_bytes: u64,
    /// Bytes in steps that no plan knows.
    pub(crate) unplanned_bytes: u64,
    /// Allocations that differed from the shape followed.
    pub(crate) deviations: u64,
    /// Shapes laid out.
    pub(crate) layouts: u64,
    /// Layouts that were not used because they would have needed more than is held.
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
    /// A block of at least `bytes` (never 0), or `None` if it does not fit.
    /// Live blocks never overlap.
    fn alloc(&mut self, bytes: u64) -> Option<Slot>;

    /// A block of at least `bytes` for work on a stream, on which it is freed as well, or `None` if it does not fit.
    /// Contenders that know no streams take all of them for one.
    fn alloc_on(&mut self, _stream: u8, bytes: u64) -> Option<Slot> {
        self.alloc(bytes)
    }

    /// Takes back a live block that [`alloc`](Self::alloc) returned. The replay
    /// never frees a block twice.
    fn free(&mut self, slot: Slot);

    /// Bytes held from the device now, live or not.
    fn reserved_bytes(&self) -> u64;

    /// How often the device was asked, with success, for memory.
    fn driver_allocations(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.create)
    }

    /// How often memory was given back to the device.
    fn driver_frees(&self) -> u64 {
        self.driver_calls().map_or(0, |calls| calls.release)
    }

    /// The most bytes ever held, also in the middle of a call; `None` if that never differs from
    /// [`reserved_bytes`](Self::reserved_bytes) after some call.
    fn max_reserved_bytes(&self) -> Option<u64> {
        None
    }

    /// Calls of the driver so far, for contenders whose device maps pages.
    fn driver_calls(&self) -> Option<DriverCalls> {
        None
    }

    /// Time that was spent in the calls of a simulated driver, which is no work of the allocator's.
    fn driver_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Which driver it runs on, `real` or `stand-in`; `None` if its device is simulated.
    fn driver(&self) -> Option<&'static str> {
        None
    }

    /// Calls of that driver since the contender was made, as far as they are known: on the stand-in
    /// all, successful or not, of what makes and frees blocks and ends steps.
    fn calls_by_name(&self) -> Option<CallsByName> {
        None
    }

    /// How the blocks of steps were served, for contenders that plan.
    fn steps(&self) -> Option<StepFigures> {
        None
    }

    /// What is held from the device now, by address and without overlap, each live block a piece of its own
    /// where its granted size is known; `None` for contenders that do not say.
    fn held(&self) -> Option<Vec<Span>> {
        None
    }

    /// What the plan in use needs, for contenders that plan and while they follow one.
    fn planned_bytes(&self) -> Option<u64> {
        None
    }

    /// The steps it learned, for contenders whose plans can be saved.
    fn planner(&mut self) -> Option<&mut Steps<'static>> {
        None
    }

    /// A step of the program ends, and the next one begins.
    fn end_step(&mut self) {}

    /// The whole trace begins again, and no block is live. Contenders that plan give back what they hold and expect the
    /// first step, so that a pass shows what a program needs that knows its steps from the start.
    fn start_over(&mut self) {}

    /// Makes the contender report its live blocks to its device from now on, so that the device can check
    /// them. Called before the first block, and never in a timed pass.
    fn judge(&mut self) {}

    /// The first rule of its device that the contender broke, in words.
    fn broken_rule(&self) -> Option<String> {
        None
    }
}

/// How to build a contender, and what it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContenderSpec {
    /// What `--allocator` takes and tables show.
    pub(crate) name: &'static str,
    /// One line on what it is.
    pub(crate) about: &'static str,
    /// Builds a fresh one on a device of so many bytes, or without limit.
    pub(crate) build: fn(device_bytes: Option<u64>) -> Box<dyn Contender>,
}
