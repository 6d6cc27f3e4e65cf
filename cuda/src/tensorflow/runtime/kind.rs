//! [`MemoryKind`]: the kind of memory at an address, known from the regions that allocators hold.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use larder_core::AddrRange;

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Place {
    /// The host.
    #[default]
    Cpu,
    /// A device.
    Gpu,
}

/// The kind of memory at an address. The default stands for unknown memory: host memory that is registered
/// with no device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemoryKind {
    /// Where it is.
    pub place: Place,
    /// The device, by the driver's ordinal; 0 for the host.
    pub index: u32,
    /// Whether a GPU may copy from and to it at full speed.
    pub gpu_registered: bool,
    /// Whether a network card can access it directly.
    pub nic_registered: bool,
}

impl MemoryKind {
    /// Returns the kind of device memory.
    pub const fn gpu(ordinal: u32) -> Self {
        Self {
            place: Place::Gpu,
            index: ordinal,
            gpu_registered: false,
            nic_registered: true,
        }
    }

    /// Returns the kind of pinned host memory.
    pub const fn pinned() -> Self {
        Self {
            place: Place::Cpu,
            index: 0,
            gpu_registered: true,
            nic_registered: false,
        }
    }
}

impl fmt::Display for MemoryKind {
    /// Writes the kind as TensorFlow does: `CPU 0, dma: 0, nic: 0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Place::Cpu => "CPU",
            Place::Gpu => "GPU",
        };
        let (dma, nic) = (u8::from(self.gpu_registered), u8::from(self.nic_registered));
        write!(f, "{place} {}, dma: {dma}, nic: {nic}", self.index)
    }
}

/// The regions of all allocators, and their kinds. No two overlap, since each is held by one sub-allocator.
///
/// The lock is held for a look-up or one change.
#[derive(Debug, Default)]
pub(crate) struct RegionMap(RwLock<BTreeMap<u64, KindRegion>>);

#[derive(Clone, Copy, Debug)]
struct KindRegion {
    end: u64,
    kind: MemoryKind,
}

impl RegionMap {
    /// Adds a region. Returns whether it is new. O(log regions).
    pub(crate) fn insert(&self, range: AddrRange, kind: MemoryKind) -> bool {
        let end = range.end().get();
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = map.insert(range.start().get(), KindRegion { end, kind });
        before.is_none_or(|before| before.end != end)
    }

    /// Returns whether exactly this region is held. O(log regions).
    pub(crate) fn has(&self, range: AddrRange) -> bool {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let region = map.get(&range.start().get());
        region.is_some_and(|region| region.end == range.end().get())
    }

    /// Removes a region. O(log regions).
    pub(crate) fn remove(&self, range: AddrRange) {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.remove(&range.start().get());
    }

    /// Returns the kind of memory at an address. O(log regions).
    pub(crate) fn find(&self, address: u64) -> Option<MemoryKind> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (_, region) = map.range(..=address).next_back()?;
        (address < region.end).then_some(region.kind)
    }

    /// Returns the number of regions.
    pub(crate) fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::Addr;

    fn range(start: u64, end: u64) -> AddrRange {
        AddrRange::new(Addr::new(start), end - start).unwrap()
    }

    #[test]
    fn an_address_inside_a_region_is_known_and_its_end_is_not() {
        let map = RegionMap::default();
        map.insert(range(0x1000, 0x2000), MemoryKind::gpu(3));
        assert_eq!(map.find(0xfff), None);
        assert_eq!(map.find(0x1000), Some(MemoryKind::gpu(3)));
        assert_eq!(map.find(0x1fff), Some(MemoryKind::gpu(3)));
        assert_eq!(map.find(0x2000), None);
    }

    #[test]
    fn a_region_is_new_once_and_goes_whole() {
        let map = RegionMap::default();
        assert!(map.insert(range(5, 6), MemoryKind::gpu(2)));
        assert!(map.insert(range(1, 5), MemoryKind::gpu(1)));
        assert!(!map.insert(range(1, 5), MemoryKind::gpu(1)), "held already");
        assert!(map.has(range(1, 5)));
        assert!(!map.has(range(1, 4)) && !map.has(range(2, 5)));
        map.remove(range(1, 5));
        assert!(!map.has(range(1, 5)));
        assert_eq!((map.find(4), map.len()), (None, 1));
        assert_eq!(map.find(5), Some(MemoryKind::gpu(2)));
    }

    #[test]
    fn the_words_are_those_of_upstream() {
        assert_eq!(MemoryKind::default().to_string(), "CPU 0, dma: 0, nic: 0");
        assert_eq!(MemoryKind::gpu(2).to_string(), "GPU 2, dma: 0, nic: 1");
        assert_eq!(MemoryKind::pinned().to_string(), "CPU 0, dma: 1, nic: 0");
    }
}
