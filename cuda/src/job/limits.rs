//! Outcomes of the limits that control files order.

use larder_control::BusId;
use larder_core::limits::LimitAnswer;

pub(super) type Adjusted = Result<Adjustment, NoDevice>;

/// Outcome of a GPU's limit.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Adjustment {
    /// The GPU.
    pub gpu: BusId,
    /// The limit that the control file gives, in bytes.
    pub limit_bytes: u64,
    /// The ceiling, if it is lower than that and is the limit instead.
    pub ceiling_bytes: Option<u64>,
    /// The part of each allocator on the GPU, in the order in which the job manages them; never empty.
    pub parts: Vec<LimitPart>,
}

/// An allocator's part of a GPU's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitPart {
    /// The allocator's limit, in bytes.
    pub limit_bytes: u64,
    /// Whether it holds more.
    pub answer: LimitAnswer,
}

impl Adjustment {
    /// Returns whether every allocator holds no more than its limit.
    pub fn is_met(&self) -> bool {
        let is_met = |part: &LimitPart| part.answer == LimitAnswer::Applied;
        self.parts.iter().all(is_met)
    }
}

/// A control file limits a GPU on which the job manages no allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no device at {gpu}: add it, or correct the control file")]
#[non_exhaustive]
pub struct NoDevice {
    /// The GPU that the file names.
    pub gpu: BusId,
}
