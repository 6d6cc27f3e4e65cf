//! Policies of a paged allocator, as data.

use crate::error::ConfigError;
use crate::units::{AddrRange, Granule};

/// The cost of physical memory, which decides when pages move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Held memory has a cost, as when several processes share a device: idle pages move before more are requested, as
    /// long as that takes fewer driver calls than memory of this size is worth. Beyond that, pages move only if memory
    /// is short.
    Billed,
    /// This many bytes belong to the process anyway: no page moves before they are held, and no more than that are
    /// held. A lower limit prevails.
    Budget(u64),
    /// Pages never move: memory is created where it is needed, in the middle of the range sooner than at its end, and
    /// idle memory elsewhere is released when the limit requires it. For a process heap, where create and map are a
    /// commit, and unmap and release are a decommit.
    InPlace,
}

/// All policies of a [`PagePool`](super::PagePool).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageConfig {
    /// Every chunk is a multiple of this many bytes; a power of two.
    pub granule_bytes: u64,
    /// Most bytes to hold.
    pub limit_bytes: u64,
    /// The addresses, reserved already: twice the memory that may be held, or four times as much if programs vary a
    /// lot. Start and length are multiples of the page.
    pub addresses: AddrRange,
    /// Minimum bytes that the driver maps, 2 MiB on most devices; a multiple of the granule.
    pub page_bytes: u64,
    /// When pages move.
    pub backing: Backing,
    /// Idle memory is released only down to this many held bytes; a release that makes room for other memory does not
    /// count.
    pub floor_bytes: u64,
    /// Memory of this size pays for two driver calls, in any order: it is the size that PyTorch's expandable segments
    /// create and map at once. 20 MiB, unless there should be fewer or more calls.
    pub unit_bytes: u64,
}

impl PageConfig {
    /// Creates the default: pages of 2 MiB, no floor.
    pub const fn new(addresses: AddrRange, backing: Backing) -> Self {
        Self {
            granule_bytes: Granule::DEFAULT.bytes(),
            limit_bytes: u64::MAX,
            addresses,
            page_bytes: 2 << 20,
            backing,
            floor_bytes: 0,
            unit_bytes: 20 << 20,
        }
    }

    /// Checks the fields against each other; returns the granules of a page and the pages of addresses.
    pub(super) fn validate(&self, granule: Granule) -> Result<(u32, u32), ConfigError> {
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
