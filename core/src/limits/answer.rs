//! What a new limit means, said at once.

use super::BudgetError;

/// The answer to a new limit. It comes at once: nothing is waited for, and from the answer on nothing is
/// granted above a limit that is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a limit may not be met yet, or not be in force at all"]
pub enum LimitAnswer {
    /// In force, and met.
    Applied,
    /// In force. So many bytes are held above it: they go as blocks come back.
    Deferred {
        /// Bytes held above the limit, more than 0.
        bytes: u64,
    },
    /// Not in force, nothing has changed.
    Refused(BudgetError),
}

impl LimitAnswer {
    /// Applied if nothing is held above the limit, otherwise deferred.
    pub const fn with_excess(bytes: u64) -> Self {
        match bytes {
            0 => Self::Applied,
            bytes => Self::Deferred { bytes },
        }
    }
}
