//! An independent check of a packing: slow, obvious, and without code shared with the packer.

use core::fmt;

use crate::pack::Lifetime;

/// A fault in a packing. Indices are those of the lifetimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Invalid {
    /// The number of offsets is not the number of lifetimes.
    Count {
        /// Number of lifetimes.
        lifetimes: usize,
        /// Number of offsets.
        offsets: usize,
    },
    /// Two blocks share a byte at some tick.
    Overlap {
        /// Index of the first lifetime.
        first: usize,
        /// Index of the second lifetime, later in the list.
        second: usize,
    },
    /// An offset is not a multiple of the requested alignment.
    Misaligned {
        /// Index of the lifetime.
        index: usize,
    },
    /// A pinned block lies elsewhere.
    PinMoved {
        /// Index of the lifetime.
        index: usize,
    },
    /// A block ends past the last `u64`.
    PastTheEnd {
        /// Index of the lifetime.
        index: usize,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count { lifetimes, offsets } => {
                write!(f, "{offsets} offsets for {lifetimes} lifetimes")
            }
            Self::Overlap { first, second } => {
                write!(f, "lifetimes {first} and {second} meet and share memory")
            }
            Self::Misaligned { index } => write!(f, "the offset of lifetime {index} is misaligned"),
            Self::PinMoved { index } => write!(f, "lifetime {index} is not where it is pinned"),
            Self::PastTheEnd { index } => write!(f, "lifetime {index} ends past 2^64"),
        }
    }
}

impl core::error::Error for Invalid {}

/// Returns the height of the packing that puts `lifetimes[i]` at `offsets[i]`. O(n²).
///
/// Lifetimes that are empty or have no bytes take no space, and their offsets do not matter.
///
/// # Errors
/// The first fault found.
pub fn validate(lifetimes: &[Lifetime], offsets: &[u64]) -> Result<u64, Invalid> {
    if lifetimes.len() != offsets.len() {
        return Err(Invalid::Count {
            lifetimes: lifetimes.len(),
            offsets: offsets.len(),
        });
    }
    let mut height = 0;
    for (index, (lifetime, &offset)) in lifetimes.iter().zip(offsets).enumerate() {
        if lifetime.bytes == 0 || lifetime.begin >= lifetime.end {
            continue;
        }
        if offset % lifetime.align.bytes() != 0 {
            return Err(Invalid::Misaligned { index });
        }
        if lifetime.pinned.is_some_and(|pin| pin != offset) {
            return Err(Invalid::PinMoved { index });
        }
        let Some(end) = offset.checked_add(lifetime.bytes) else {
            return Err(Invalid::PastTheEnd { index });
        };
        height = height.max(end);
        for (second, (other, &place)) in lifetimes.iter().zip(offsets).enumerate().skip(index + 1) {
            let together =
                lifetime.begin < other.end && other.begin < lifetime.end && other.begin < other.end;
            let apart = end <= place || place.saturating_add(other.bytes) <= offset;
            if together && other.bytes > 0 && !apart {
                return Err(Invalid::Overlap {
                    first: index,
                    second,
                });
            }
        }
    }
    Ok(height)
}
