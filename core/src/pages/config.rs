//! The policies of a paged allocator, as data.

use crate::error::ConfigError;
use crate::units::{AddrRange, Granule};

/// The cost of physical memory, which decides when pages move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Held memory has a cost, for example because several processes share a device. Idle pages move before new ones
    /// are created, as long as the pool has made few driver calls for the memory that it holds. After more calls, pages
    /// move only if memory is short.
    Billed,
    /// The process may use this many bytes at no cost. No page moves before all of them are held, and no more are held.
    /// A lower limit takes precedence.
    Budget(u64),
    /// Pages never move. Memory is created where it is needed, in the middle of the range sooner than at its end, and
    /// idle memory elsewhere is released when the limit requires it. This is for a process heap, where create and map
    /// are a commit, and unmap and release are a decommit.
    InPlace,
}

/// All policies of a [`PagePool`](super::PagePool).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageConfig {
    /// Every chunk is a multiple of this many bytes; a power of two.
    pub granule_bytes: u64,
    /// Maximum bytes to hold.
    pub limit_bytes: u64,
    /// The addresses, which are already reserved. There should be twice as many as the bytes that may be held, or four
    /// times as many if programs vary a lot. The start and the length are multiples of the page size.
    pub addresses: AddrRange,
    /// Page size: the minimum size that the driver maps, 2 MiB on most devices; a multiple of the granule.
    pub page_bytes: u64,
    /// When pages move.
    pub backing: Backing,
    /// Idle memory is released only until this many bytes are held. This does not apply when memory is released to make
    /// room for other memory.
    pub floor_bytes: u64,
    /// The unit in which held memory is compared with driver calls: a larger unit leads to fewer calls. The default is
    /// 20 MiB, the size that PyTorch's expandable segments create and map at once.
    pub unit_bytes: u64,
}

impl PageConfig {
    /// Creates a default configuration: pages of 2 MiB, no floor.
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

    /// Checks the fields. Returns the number of granules in a page and the number of pages of addresses.
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
