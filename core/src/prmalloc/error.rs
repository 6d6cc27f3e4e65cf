//! [`PlanError`]: why there is no plan.

use core::fmt;

use crate::ByteCount;

/// The reason why a round made no plan, or why a pool does not serve from the plan. The planner is then done, until it
/// is [reset](super::Planner::reset) or recording restarts ([`replan`](super::TensorPool::replan)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PlanError {
    /// More blocks were freed in a round than there is room for.
    StatsFull {
        /// Number of lives for which there was no room.
        lost: u64,
    },
    /// The plan has more size classes than there is room for.
    BinsFull,
    /// The plan has more blocks than there is room for.
    BlocksFull,
    /// The plan has more virtual blocks than there is room for.
    VirtualsFull,
    /// The planner was reset after the round became due.
    Outdated,
    /// The pool's backend has no memory for the slabs.
    OutOfMemory {
        /// Bytes that the plan needs.
        bytes: u64,
    },
    /// The plan needs more memory than the pool may take.
    AboveCap {
        /// Bytes that the plan needs.
        bytes: u64,
        /// Bytes that the pool may take.
        cap_bytes: u64,
    },
    /// There is no spare plan: two older plans have blocks in use or slabs that the backend refused to take back.
    Draining,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StatsFull { lost } => {
                write!(
                    f,
                    "{lost} recorded blocks found no record: make room for more stats"
                )
            }
            Self::BinsFull => f.write_str("more size classes than bins: make room for more"),
            Self::BlocksFull => f.write_str("more planned blocks than there is room for"),
            Self::VirtualsFull => f.write_str("more virtual blocks than there is room for"),
            Self::Outdated => {
                f.write_str("the planner was reset since the round was due: drop the round")
            }
            Self::OutOfMemory { bytes } => write!(
                f,
                "the backend has no {:#} for the plan: free memory and plan again",
                ByteCount(*bytes)
            ),
            Self::AboveCap { bytes, cap_bytes } => write!(
                f,
                "the plan needs {:#} and may take {:#}: raise the cap",
                ByteCount(*bytes),
                ByteCount(*cap_bytes)
            ),
            Self::Draining => {
                f.write_str("two plans have blocks in use: free those of the older one")
            }
        }
    }
}

impl core::error::Error for PlanError {}
