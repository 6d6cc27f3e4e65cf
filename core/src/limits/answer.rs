//! The immediate answer to a new limit.

use super::BudgetError;

/// The answer to a new limit, which is returned without waiting. From then on nothing is granted above a limit that is
/// in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a limit may not be met yet, or not be in force at all"]
pub enum LimitAnswer {
    /// The limit is in force, and no bytes are held above it.
    Applied,
    /// The limit is in force. `bytes` are held above it, and are released as blocks are freed.
    Deferred {
        /// Bytes held above the limit, more than 0.
        bytes: u64,
    },
    /// The limit is not in force; nothing has changed.
    Refused(BudgetError),
}

impl LimitAnswer {
    /// Returns `Applied` if nothing is held above the limit, otherwise `Deferred`.
    pub const fn with_excess(bytes: u64) -> Self {
        match bytes {
            0 => Self::Applied,
            bytes => Self::Deferred { bytes },
        }
    }
}
