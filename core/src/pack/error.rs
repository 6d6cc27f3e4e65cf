//! Why lifetimes cannot be packed.

use core::fmt;

/// Why a [`Packer`](super::Packer) was not created. Indices are those of the given lifetimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PackError {
    /// Two lifetimes that meet are pinned to places that overlap. Pin at most one of them.
    PinsOverlap {
        /// Index of the first lifetime.
        first: usize,
        /// Index of the second lifetime.
        second: usize,
    },
    /// A pinned offset is not a multiple of the requested alignment.
    PinMisaligned {
        /// Index of the lifetime.
        index: usize,
    },
    /// The sizes, stacked with their alignments, exceed 2^62 bytes.
    TooLarge,
    /// A table is shorter than [`PackSizes`](super::PackSizes) requires for the lifetimes.
    TableTooShort {
        /// The field of [`PackTables`](super::PackTables).
        table: &'static str,
        /// The required length.
        needed: usize,
    },
    /// There are more than 2^31 lifetimes.
    TooMany,
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PinsOverlap { first, second } => write!(
                f,
                "lifetimes {first} and {second} meet and are pinned to places that overlap; pin at most one of them"
            ),
            Self::PinMisaligned { index } => write!(
                f,
                "lifetime {index} is pinned to an offset that is no multiple of its alignment"
            ),
            Self::TooLarge => f.write_str("the sizes add up to more than 2^62 bytes"),
            Self::TableTooShort { table, needed } => {
                write!(f, "the table `{table}` needs at least {needed} records")
            }
            Self::TooMany => f.write_str("more than 2^31 lifetimes"),
        }
    }
}

impl core::error::Error for PackError {}
