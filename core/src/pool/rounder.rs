//! [`Rounder`]: which sizes a pool tells apart.
//!
//! A pool gives a buffer again to a request of its size only. Coarser sizes hit more often and
//! waste more of each buffer.

use crate::units::{Align, round_up};

/// How sizes are rounded before the pool compares them. Data; O(1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounder {
    /// Not at all.
    Exact,
    /// To the next power of two: less than half of a buffer is wasted.
    PowerOfTwo,
    /// To the next multiple.
    Multiple(Align),
    /// To `1 << steps_log2` sizes a doubling: less than `1 / (1 << steps_log2)` of the size is added.
    /// Sizes that have no finer steps stay.
    Classes {
        /// Logarithm of the sizes a doubling, taken as 31 at most.
        steps_log2: u8,
    },
}

impl Rounder {
    /// The size that serves `bytes`; `None` if it is more than 64 bits can say. 0 stays 0.
    ///
    /// ```
    /// use larder_core::pool::Rounder;
    /// assert_eq!(Rounder::PowerOfTwo.round(41_234), Some(65_536));
    /// assert_eq!(Rounder::PowerOfTwo.round((1 << 63) + 1), None);
    /// assert_eq!(Rounder::Classes { steps_log2: 2 }.round(1025), Some(1280));
    /// ```
    pub const fn round(self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }
        match self {
            Self::Exact => Some(bytes),
            Self::PowerOfTwo => bytes.checked_next_power_of_two(),
            Self::Multiple(align) => round_up(bytes, align),
            Self::Classes { steps_log2 } => {
                let steps_log2 = if steps_log2 > 31 {
                    31
                } else {
                    steps_log2 as u32
                };
                // A power of two is its own class, so the doubling is that of the byte before.
                let doubling = match (bytes - 1).checked_ilog2() {
                    Some(doubling) => doubling,
                    None => 0,
                };
                match Align::new(1 << doubling.saturating_sub(steps_log2)) {
                    Some(step) => round_up(bytes, step),
                    None => None,
                }
            }
        }
    }
}
