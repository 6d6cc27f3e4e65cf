//! Policies of a pool of regions.
//!
//! A configuration is read and checked once, at construction. Only the limit can change later.

use core::num::NonZeroU32;

use crate::error::ConfigError;
use crate::units::Granule;

/// The way in which memory is requested from the sub-allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// One range that grows at its end, in units, by the memory that is missing.
    ///
    /// Fragmentation of device memory comes mostly from separate regions; one range has no such fragmentation. If the
    /// sub-allocator grants a range that is not adjacent, it becomes a region of its own. With more than eight regions,
    /// each growth is at least an eighth of the held bytes.
    Range {
        /// Every growth is a multiple of this, e.g. the 2 MiB of a physical page of a device. A limit below this unit
        /// allows no growth.
        unit_bytes: u64,
        /// If set, every growth is at least the held bytes divided by this number. That makes fewer calls to the
        /// sub-allocator, and wastes at most this share of the held bytes.
        ahead_divisor: Option<NonZeroU32>,
    },
    /// The allocator does not grow: it has only regions added by hand.
    Fixed,
}

/// All policies of one allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionConfig {
    /// The unit of chunk sizes in bytes, a power of two.
    pub granule_bytes: u64,
    /// Growth policy.
    pub growth: Growth,
    /// Whether wholly free regions are released, and a larger one requested, before an allocation fails.
    pub collect_regions: bool,
    /// Maximum bytes to hold.
    pub limit_bytes: u64,
}

impl RegionConfig {
    /// Creates the default for memory that exists from the start: no growth.
    pub const fn fixed() -> Self {
        Self {
            growth: Growth::Fixed,
            ..Self::new(u64::MAX)
        }
    }

    /// Creates the default with a limit.
    pub const fn new(limit_bytes: u64) -> Self {
        Self {
            granule_bytes: Granule::DEFAULT.bytes(),
            growth: Growth::Range {
                unit_bytes: 2 << 20,
                ahead_divisor: None,
            },
            collect_regions: true,
            limit_bytes,
        }
    }

    /// Checks that the fields do not contradict each other, and returns the granule.
    pub(crate) const fn validate(&self) -> Result<Granule, ConfigError> {
        let Some(granule) = Granule::new(self.granule_bytes) else {
            return Err(ConfigError::Granule);
        };
        if let Growth::Range { unit_bytes, .. } = self.growth
            && (unit_bytes == 0 || !unit_bytes.is_multiple_of(granule.bytes()))
        {
            return Err(ConfigError::GrowthUnit);
        }
        Ok(granule)
    }
}

impl Default for RegionConfig {
    /// Creates the default without a limit.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}
