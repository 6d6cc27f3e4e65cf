//! Regions: the ranges held from a sub-allocator, and the table that names them.
//!
//! A region is a unit of growth and of release. The table has a fixed capacity, [`MAX_REGIONS`], and two parts. The
//! first is a slot for each [`RegionId`], which is stable while the region exists and is stored in every chunk. The
//! second is the IDs in address order, for releases in address order, look-ups by address, and dumps.
//!
//! Invariants:
//! * REGION1 `order` holds exactly the IDs of occupied slots, sorted by base address.
//! * REGION2 no two regions overlap.
//!
//! The table is protected by the lock of the allocator to which it belongs.

use heapless::Vec;

use super::chunk::Link;
use crate::units::{Addr, AddrRange, Granule};

/// Maximum number of regions that one allocator holds at a time. A growing range needs one region, and doubling reaches
/// 2^40 bytes in 20 regions. 256 regions (6 KiB of table) leave room for sub-allocators that can only provide pieces.
/// In the model checker there are fewer, because its stacks have no room for such a table.
pub const MAX_REGIONS: usize = if cfg!(larder_loom) { 8 } else { 256 };

/// The number of a region in its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct RegionId(u16);

impl RegionId {
    pub(super) const fn from_raw(number: u16) -> Self {
        Self(number)
    }

    /// Returns the region's number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// One held range. A slot of zeros is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Region {
    pub(super) base: u64,
    pub(super) granules: u32,
    /// The chunk at the base. Nil only in an empty slot.
    pub(super) first: Link,
    /// The chunk at the end.
    pub(super) last: Link,
    /// Whether the sub-allocator refused to take back the region's memory in the current pass.
    pub(super) refused: bool,
}

impl Region {
    pub(super) fn range(&self, granule: Granule) -> Option<AddrRange> {
        AddrRange::new(Addr::new(self.base), granule.bytes_of(self.granules))
    }
}

/// All regions of one allocator.
pub(super) struct RegionTable {
    slots: [Region; MAX_REGIONS],
    pub(super) order: Vec<RegionId, MAX_REGIONS>,
    /// The empty region that is returned for an invalid ID.
    empty: Region,
}

impl RegionTable {
    pub(super) const fn new() -> Self {
        const EMPTY: Region = Region {
            base: 0,
            granules: 0,
            first: Link::NIL,
            last: Link::NIL,
            refused: false,
        };
        Self {
            slots: [EMPTY; MAX_REGIONS],
            order: Vec::new(),
            empty: EMPTY,
        }
    }

    /// Returns the IDs in address order.
    pub(super) fn ids(&self) -> impl DoubleEndedIterator<Item = RegionId> + '_ {
        self.order.iter().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    #[inline]
    pub(super) fn get(&self, id: RegionId) -> &Region {
        self.slots.get(usize::from(id.0)).unwrap_or(&self.empty)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: RegionId) -> &mut Region {
        match self.slots.get_mut(usize::from(id.0)) {
            Some(region) => region,
            None => &mut self.empty,
        }
    }

    /// Forgets which regions the sub-allocator refused to take back.
    pub(super) fn forget_refusals(&mut self) {
        for region in &mut self.slots {
            region.refused = false;
        }
    }

    /// Returns the ID of the region that holds `addr`. O(log regions).
    pub(super) fn find(&self, addr: u64, granule: Granule) -> Option<RegionId> {
        let behind = self.order.partition_point(|id| self.get(*id).base <= addr);
        let id = *self.order.get(behind.checked_sub(1)?)?;
        let region = self.get(id);
        (addr - region.base < granule.bytes_of(region.granules)).then_some(id)
    }

    /// Returns whether `range` shares a byte with any region. O(log regions).
    pub(super) fn overlaps(&self, range: AddrRange, granule: Granule) -> bool {
        let end = range.end().get();
        let behind = self.order.partition_point(|id| self.get(*id).base < end);
        behind
            .checked_sub(1)
            .and_then(|i| self.order.get(i))
            .is_some_and(|id| {
                self.get(*id)
                    .range(granule)
                    .is_some_and(|held| held.overlaps(range))
            })
    }

    /// Returns the IDs of the regions that share a byte with `range`, in address order. O(regions).
    pub(super) fn under(
        &self,
        range: AddrRange,
        granule: Granule,
    ) -> impl Iterator<Item = RegionId> + '_ {
        self.ids().filter(move |id| {
            let held = self.get(*id).range(granule);
            held.is_some_and(|held| held.overlaps(range))
        })
    }

    /// Adds a region whose only chunk is `chunk`. Returns `None` if the table is full.
    pub(super) fn insert(&mut self, base: u64, granules: u32, chunk: Link) -> Option<RegionId> {
        let free = self.slots.iter().position(|slot| slot.first.is_nil())?;
        let id = RegionId(u16::try_from(free).ok()?);
        let place = self
            .order
            .partition_point(|other| self.get(*other).base < base);
        self.order.insert(place, id).ok()?;
        *self.get_mut(id) = Region {
            base,
            granules,
            first: chunk,
            last: chunk,
            refused: false,
        };
        Some(id)
    }

    /// Empties the slot of a region.
    pub(super) fn remove(&mut self, id: RegionId) {
        self.order.retain(|other| *other != id);
        *self.get_mut(id) = Region::default();
    }
}

const _: () = assert!(MAX_REGIONS <= u16::MAX as usize + 1);

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, bytes: u64) -> AddrRange {
        AddrRange::new(Addr::new(start), bytes).unwrap()
    }

    #[test]
    fn regions_are_found_by_any_address_inside_and_by_none_outside() {
        let granule = Granule::DEFAULT;
        let mut table = RegionTable::new();
        let high = table.insert(0x10000, 4, Link(1)).unwrap();
        let low = table.insert(0x1000, 4, Link(2)).unwrap();
        assert_eq!(table.ids().collect::<Vec<_, 4>>().as_slice(), &[low, high]);
        assert_eq!(table.find(0xfff, granule), None);
        assert_eq!(table.find(0x1000, granule), Some(low));
        assert_eq!(table.find(0x13ff, granule), Some(low));
        assert_eq!(table.find(0x1400, granule), None);
        assert_eq!(table.find(0x10000, granule), Some(high));
        assert!(table.overlaps(range(0xf00, 0x101), granule));
        assert!(!table.overlaps(range(0xf00, 0x100), granule));
        assert!(!table.overlaps(range(0x1400, 0x100), granule));
        assert!(table.overlaps(range(0x1300, 0x10000), granule));
        table.remove(low);
        assert_eq!(table.find(0x1000, granule), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_full_table_refuses_and_a_removed_slot_serves_again() {
        let mut table = RegionTable::new();
        for i in 0..MAX_REGIONS as u64 {
            assert!(table.insert(i * 0x1000, 1, Link(1)).is_some());
        }
        assert_eq!(table.len(), MAX_REGIONS);
        assert_eq!(table.insert(1 << 40, 1, Link(1)), None);
        let id = table.find(0x5000, Granule::DEFAULT).unwrap();
        table.remove(id);
        assert_eq!(table.insert(1 << 40, 1, Link(1)), Some(id));
    }
}
