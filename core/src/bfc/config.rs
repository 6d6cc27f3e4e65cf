//! Policies of the BFC, as data.
//!
//! Mechanism (split, merge, link) is the same for all of them; a configuration is read at
//! construction, checked once, and never changes. Only the limit can change later.

use core::num::NonZeroU32;

use crate::error::ConfigError;
use crate::units::Granule;

/// When a chunk larger than the request is cut in two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// Always: a block is its request, rounded to granules.
    Always,
    /// TensorFlow's rule: only if the chunk is at least twice the rounded request, or at least
    /// `waste_bytes` larger. Otherwise the whole chunk is granted.
    TwiceOrWaste {
        /// From how much waste on a chunk is cut even if it is less than twice the request.
        waste_bytes: u64,
    },
}

/// How memory is asked of the sub-allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// One range that grows at its end by what is missing, in units.
    ///
    /// Fragmentation of device memory comes mostly from separate regions; one range has none of
    /// that. If the sub-allocator answers with a range that is not adjacent, it becomes a region
    /// of its own; with more than eight regions each growth is at least an eighth of what is held.
    Range {
        /// Every growth is a multiple of this, e.g. the 2 MiB of a physical page of a device. A
        /// limit below it allows no growth at all.
        unit_bytes: u64,
        /// If set, grow by at least the held bytes divided by this: fewer sub-allocator calls
        /// for at most that share of waste.
        ahead_divisor: Option<NonZeroU32>,
    },
    /// Regions that double, never joined: TensorFlow.
    Doubling {
        /// Size of the first region, at most; with the limit itself here all is taken at once.
        first_bytes: u64,
    },
    /// No growth: only regions added by hand.
    Fixed,
}

/// Which free chunk serves a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// The smallest that fits, the lowest address among equals. Cost: linear in the free chunks
    /// of one or two size classes.
    Exact,
    /// Among the first `scan` chunks of the request's class, else among the first `scan` of the
    /// next class that has any; a chunk of exactly the size is taken at once. O(1). The best chunk
    /// is missed where it stands behind `scan` others of its class that do not fit.
    Near {
        /// How many chunks of a class are looked at.
        scan: u32,
    },
}

/// Which free neighbours are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coalesce {
    /// If the same stream still uses both (the result carries the later event), or nobody uses
    /// either. In a program with one stream also if it uses one of them.
    SameStream,
    /// Only if no stream uses either; TensorFlow. Chunks wait unjoined for their event.
    Settled,
}

/// What happens when the sub-allocator refuses a growth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackOff {
    /// Ask for the least that helps, then fail.
    Least,
    /// Ask for 0.9 of it again and again down to the least, but only the first time in the
    /// allocator's life; TensorFlow.
    Once,
}

/// What a limit below the held bytes means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shrink {
    /// It is in force at once; what is above it can go back, call by call, as blocks come back.
    /// Regions go in the order of least excess, and the growth step is remembered.
    Pending,
    /// The limit stays at what is held if that cannot be given back at once. Regions go in
    /// address order, and the growth step restarts from at most 1 MiB; TensorFlow with AntMan.
    Clamp,
}

/// All policies of one allocator. `default()` is ours, [`tensorflow`](Self::tensorflow) is
/// TensorFlow 1.15's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BfcConfig {
    /// Every chunk is a multiple of this many bytes; a power of two.
    pub granule_bytes: u64,
    /// When chunks are cut.
    pub split: Split,
    /// How memory is asked for.
    pub growth: Growth,
    /// Which free chunk serves.
    pub fit: Fit,
    /// The free chunk at the end of the newest region is used only if nothing else fits, so that
    /// the range ends as early as it can (dlmalloc's wilderness).
    pub wilderness_last: bool,
    /// Which free neighbours are joined.
    pub coalesce: Coalesce,
    /// What is done when growth is refused.
    pub back_off: BackOff,
    /// Whether wholly free regions are given back, and one larger asked for, before failing.
    pub collect_regions: bool,
    /// What a limit below the held bytes means.
    pub shrink: Shrink,
    /// Most bytes to hold.
    pub limit_bytes: u64,
}

/// Most bytes a split policy may leave unused in one block.
const MAX_WASTE_BYTES: u64 = 1 << 31;

/// TensorFlow cuts a chunk that is this much larger than the request.
const TENSORFLOW_WASTE_BYTES: u64 = 128 << 20;

/// First region of TensorFlow 1.15 with growth allowed.
const TENSORFLOW_FIRST_BYTES: u64 = 1 << 20;

impl BfcConfig {
    /// How many chunks of a class the default looks at. On the recorded traces looking at 4 or
    /// at all of them reserves the same memory (docs/DECISIONS.md, 1).
    pub const DEFAULT_SCAN: u32 = 4;

    /// TensorFlow 1.15's allocator with growth allowed: first region of 1 MiB, doubling.
    ///
    /// Behaves as the original, its defects excepted: alignments above 256 bytes are honoured,
    /// the back-off always ends, and no record is lost when a region is released.
    pub const fn tensorflow(limit_bytes: u64) -> Self {
        Self {
            granule_bytes: Granule::DEFAULT.bytes(),
            split: Split::TwiceOrWaste {
                waste_bytes: TENSORFLOW_WASTE_BYTES,
            },
            growth: Growth::Doubling {
                first_bytes: TENSORFLOW_FIRST_BYTES,
            },
            fit: Fit::Exact,
            wilderness_last: false,
            coalesce: Coalesce::Settled,
            back_off: BackOff::Once,
            collect_regions: false,
            shrink: Shrink::Clamp,
            limit_bytes,
        }
    }

    /// The default over memory that is there from the start: no growth.
    pub const fn fixed() -> Self {
        Self {
            growth: Growth::Fixed,
            ..Self::new(u64::MAX)
        }
    }

    /// The default with a limit.
    pub const fn new(limit_bytes: u64) -> Self {
        Self {
            granule_bytes: Granule::DEFAULT.bytes(),
            split: Split::Always,
            growth: Growth::Range {
                unit_bytes: 2 << 20,
                ahead_divisor: None,
            },
            fit: Fit::Near {
                scan: Self::DEFAULT_SCAN,
            },
            wilderness_last: true,
            coalesce: Coalesce::SameStream,
            back_off: BackOff::Least,
            collect_regions: true,
            shrink: Shrink::Pending,
            limit_bytes,
        }
    }

    /// Checks every relation and gives the granule.
    pub(crate) const fn validate(&self) -> Result<Granule, ConfigError> {
        let Some(granule) = Granule::new(self.granule_bytes) else {
            return Err(ConfigError::Granule);
        };
        if let Growth::Range { unit_bytes, .. } = self.growth
            && (unit_bytes == 0 || !unit_bytes.is_multiple_of(granule.bytes()))
        {
            return Err(ConfigError::GrowthUnit);
        }
        if let Growth::Doubling { first_bytes: 0 } = self.growth {
            return Err(ConfigError::GrowthUnit);
        }
        if let Split::TwiceOrWaste { waste_bytes } = self.split
            && waste_bytes > MAX_WASTE_BYTES
        {
            return Err(ConfigError::SplitWaste);
        }
        if let Fit::Near { scan: 0 } = self.fit {
            return Err(ConfigError::Scan);
        }
        Ok(granule)
    }
}

impl Default for BfcConfig {
    /// Ours, without a limit.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

// Slack = below one granule, plus what the split policy leaves: it is stored in 32 bits.
const _: () = assert!(MAX_WASTE_BYTES + Granule::MAX_BYTES <= u32::MAX as u64);
