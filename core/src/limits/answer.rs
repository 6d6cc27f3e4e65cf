//! What a new limit means, said at once.

use core::fmt;

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
    Refused(LimitRefusal),
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

/// Why a limit was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitRefusal {
    /// Below what was promised never to be taken.
    BelowFloor {
        /// What was promised.
        floor_bytes: u64,
    },
    /// The hard limit would lie below the soft one.
    BelowSoft {
        /// The soft limit.
        soft_bytes: u64,
    },
    /// There is no such budget.
    Unknown,
}

impl fmt::Display for LimitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BelowFloor { floor_bytes } => write!(
                f,
                "{floor_bytes} bytes were promised: lower the floor first, or take a higher limit"
            ),
            Self::BelowSoft { soft_bytes } => write!(
                f,
                "the soft limit is {soft_bytes} bytes: lower it too, or take a higher hard limit"
            ),
            Self::Unknown => f.write_str("there is no such budget: use one that the tree gave"),
        }
    }
}

impl core::error::Error for LimitRefusal {}
