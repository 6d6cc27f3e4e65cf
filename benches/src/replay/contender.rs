//! What an allocator must offer to be replayed.
//!
//! A contender works on numbers: it hands out addresses on a device that it
//! simulates, and never touches memory at them.

use std::collections::BTreeMap;

use larder_core::lifetime::StepStats;
use serde::Serialize;

/// A block handed out by a contender: where it is, and how the contender finds
/// its own record of it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// First address of the block.
    pub address: u64,
    /// The contender's own name for the block; whatever it likes.
    pub handle: u32,
}

/// Calls of a driver that maps pages, by kind; refused ones do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DriverCalls {
    /// Pieces of memory created.
    pub create: u64,
    /// Mappings made.
    pub map: u64,
    /// Mappings undone.
    pub unmap: u64,
    /// Pieces of memory released.
    pub release: u64,
    /// Ranges made accessible.
    pub set_access: u64,
}

impl DriverCalls {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.create + self.map + self.unmap + self.release + self.set_access
    }
}

/// Calls of a driver by the names of its functions; none that was not called.
pub type CallsByName = BTreeMap<String, u64>;

/// How the blocks of steps were served, for contenders that plan; sums over all passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct StepFigures {
    /// Steps that asked for what a known shape asks for, from first to last.
    pub known_steps: u64,
    /// Bytes given at a plan's place.
    pub hit_bytes: u64,
    /// Bytes that have a place in the plan and did not get it.
    pub missed_bytes: u64,
    /// Bytes in steps that no plan knows.
    pub unplanned_bytes: u64,
    /// Allocations that differed from the shape followed.
    pub deviations: u64,
    /// Shapes laid out.
    pub layouts: u64,
    /// Layouts that were not used because they would have needed more than is held.
    pub rejected: u64,
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
pub trait Contender {
    /// The name it is known by in tables; the same as its spec's.
    fn name(&self) -> &'static str;

    /// A block of at least `bytes` (never 0), or `None` if it does not fit.
    /// Live blocks never overlap.
    fn alloc(&mut self, bytes: u64) -> Option<Slot>;

    /// Takes back a live block that [`alloc`](Self::alloc) returned. The replay
    /// never frees a block twice.
    fn free(&mut self, slot: Slot);

    /// Bytes held from the device now, live or not.
    fn reserved_bytes(&self) -> u64;

    /// How often the device was asked, with success, for memory.
    fn driver_allocations(&self) -> u64;

    /// How often memory was given back to the device.
    fn driver_frees(&self) -> u64;

    /// The most bytes ever held, also in the middle of a call; `None` if that never differs from
    /// [`reserved_bytes`](Self::reserved_bytes) after some call.
    fn max_reserved_bytes(&self) -> Option<u64> {
        None
    }

    /// Calls of the driver so far, for contenders whose device maps pages.
    fn driver_calls(&self) -> Option<DriverCalls> {
        None
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

    /// Learns the plans that another run saved.
    ///
    /// # Errors
    /// Why it cannot, in words.
    fn load_plans(&mut self, _program: u64, _plans: &[u8]) -> Result<(), String> {
        Err("it does not plan".to_owned())
    }

    /// What it learned, for another run; `None` if it does not plan.
    fn save_plans(&self, _program: u64) -> Option<Vec<u8>> {
        None
    }

    /// A step of the program ends, and the next one begins.
    fn end_step(&mut self) {}

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
pub struct ContenderSpec {
    /// What `--allocator` takes and tables show.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// Builds a fresh one on a device of so many bytes, or without limit.
    pub build: fn(device_bytes: Option<u64>) -> Box<dyn Contender>,
}
