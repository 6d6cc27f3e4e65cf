//! Policies of a paged allocator, as data.

use crate::bfc::{BfcConfig, Growth};
use crate::error::ConfigError;
use crate::units::AddrRange;

/// What physical memory costs, and so when pages move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// What is held costs, as where several processes share a device: idle pages are moved before
    /// more is asked for. A size of request for which pages were moved in two
    /// [steps](super::PagedBfc::end_step) on end grows instead from then on, so that a program that
    /// repeats itself comes to rest.
    Billed,
    /// This many bytes are ours anyway: memory is created and nothing moves until three quarters of
    /// them are held; then as if billed, and at the budget everything moves that helps. The limit
    /// counts if it is lower.
    Budget(u64),
    /// Pages never move: memory is created where it is needed, in the middle of the range before
    /// its end, and idle memory elsewhere goes back when the limit asks for it. For a process heap,
    /// where create and map are a commit, unmap and release a decommit.
    InPlace,
}

/// All policies of a [`PagedBfc`](super::PagedBfc).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagedConfig {
    /// Granule, fit, coalescing and limit. Growth must be [`Growth::Fixed`]: memory comes by plans.
    pub bfc: BfcConfig,
    /// The addresses, reserved already. At least four times the memory that may be held; eight
    /// times where sizes vary from step to step. Start and length are multiples of the page.
    pub addresses: AddrRange,
    /// What the driver maps at least, 2 MiB on most devices; a multiple of the granule.
    pub page_bytes: u64,
    /// When pages move.
    pub backing: Backing,
    /// Idle memory is given back down to this much held, and no further; what makes room for other
    /// memory is not counted.
    pub floor_bytes: u64,
}

impl PagedConfig {
    /// Pages of 2 MiB, no floor, and the default of everything else.
    pub const fn new(addresses: AddrRange, backing: Backing) -> Self {
        Self {
            bfc: BfcConfig {
                collect_regions: false,
                ..BfcConfig::fixed()
            },
            addresses,
            page_bytes: 2 << 20,
            backing,
            floor_bytes: 0,
        }
    }

    /// Checks every relation; gives granules a page and pages of addresses.
    pub(super) fn validate(&self) -> Result<(u32, u32), ConfigError> {
        let granule = self.bfc.validate()?;
        if self.bfc.growth != Growth::Fixed {
            return Err(ConfigError::PagedGrowth);
        }
        let page = self.page_bytes / granule.bytes();
        let whole = |bytes: u64| bytes.is_multiple_of(self.page_bytes);
        if self.page_bytes == 0 || !self.page_bytes.is_multiple_of(granule.bytes()) {
            return Err(ConfigError::Page);
        }
        let page = u32::try_from(page).map_err(|_| ConfigError::Page)?;
        if !whole(self.addresses.start().get()) || !whole(self.addresses.bytes()) {
            return Err(ConfigError::Addresses);
        }
        if granule.count_up(self.addresses.bytes()).is_none() {
            return Err(ConfigError::Addresses);
        }
        let pages = self.addresses.bytes() / self.page_bytes;
        let pages = u32::try_from(pages).map_err(|_| ConfigError::Addresses)?;
        Ok((page, pages))
    }
}
