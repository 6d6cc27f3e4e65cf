//! Finding blocks by address alone, for front ends whose frees bring nothing but a pointer.
//!
//! Chosen by type, so that an allocator whose blocks carry their handle pays nothing. An index
//! maps the first address of each used chunk to its handle and knows nothing else; addresses of
//! handles are asked of the allocator, so an entry is the handle's four bytes.

use crate::table::probe;
use crate::units::{Addr, Granule};

/// Maps first addresses of used chunks to handles. `address_of` gives the address of a handle that
/// was inserted and not removed.
///
/// Implemented by [`NoIndex`], [`PageIndex`] and [`HashIndex`]; a front end may bring its own.
pub trait AddressIndex: Send {
    /// Whether the index can hold `records` blocks of an allocator with this granule.
    fn holds(&self, records: u32, granule: Granule) -> bool;

    /// Empties the index, for its first use.
    fn clear(&mut self);

    /// Whether a block at this address is indexed at all.
    fn covers(&self, addr: u64) -> bool;

    /// Enters a handle under its address, which is not in the index.
    fn insert(&mut self, addr: u64, handle: u32, address_of: impl Fn(u32) -> u64);

    /// Removes a handle that is in the index under this address.
    fn remove(&mut self, addr: u64, handle: u32, address_of: impl Fn(u32) -> u64);

    /// The handle under this address.
    fn find(&self, addr: u64, address_of: impl Fn(u32) -> u64) -> Option<u32>;
}

/// No index: blocks are freed by value only. Costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoIndex;

impl AddressIndex for NoIndex {
    fn holds(&self, _: u32, _: Granule) -> bool {
        true
    }

    fn clear(&mut self) {}

    fn covers(&self, _: u64) -> bool {
        false
    }

    #[inline]
    fn insert(&mut self, _: u64, _: u32, _: impl Fn(u32) -> u64) {}

    #[inline]
    fn remove(&mut self, _: u64, _: u32, _: impl Fn(u32) -> u64) {}

    fn find(&self, _: u64, _: impl Fn(u32) -> u64) -> Option<u32> {
        None
    }
}

/// One entry of four bytes for each page of a reserved range of addresses. O(1), one access.
///
/// Pages are the granules of the allocator, so each starts at most one block. Addresses outside
/// the range are not indexed and not found.
#[derive(Debug)]
pub struct PageIndex<'t> {
    base: u64,
    page_shift: u32,
    /// The entries are known to be 0, so that the first clearing has nothing to do.
    zeroed: bool,
    entries: &'t mut [u32],
}

impl<'t> PageIndex<'t> {
    /// An index of pages of `page` bytes from `base` up, one for each entry lent.
    pub const fn new(base: Addr, page: Granule, entries: &'t mut [u32]) -> Self {
        Self {
            base: base.get(),
            page_shift: page.align().log2(),
            zeroed: false,
            entries,
        }
    }

    /// An index over entries that are all 0, as fresh pages of an operating system are. None of them is
    /// read or written until a block needs its entry, so untouched pages stay untouched.
    ///
    /// If an entry is not 0 after all, no wrong block comes of it: what is found is compared with
    /// the chunk table, and a handle that is not that of a used chunk at the address is
    /// refused. Only [`Bfc::check_invariants`](super::Bfc::check_invariants) may stumble over it
    /// (BFC9).
    pub const fn zeroed(base: Addr, page: Granule, entries: &'t mut [u32]) -> Self {
        Self {
            base: base.get(),
            page_shift: page.align().log2(),
            zeroed: true,
            entries,
        }
    }

    fn place(&self, addr: u64) -> Option<usize> {
        usize::try_from(addr.checked_sub(self.base)? >> self.page_shift).ok()
    }
}

impl AddressIndex for PageIndex<'_> {
    fn holds(&self, _: u32, granule: Granule) -> bool {
        granule.align().log2() >= self.page_shift && self.base.is_multiple_of(granule.bytes())
    }

    fn clear(&mut self) {
        if !core::mem::take(&mut self.zeroed) {
            clear(self.entries);
        }
    }

    fn covers(&self, addr: u64) -> bool {
        self.place(addr).is_some_and(|i| i < self.entries.len())
    }

    fn insert(&mut self, addr: u64, handle: u32, _: impl Fn(u32) -> u64) {
        if let Some(entry) = self.place(addr).and_then(|i| self.entries.get_mut(i)) {
            *entry = handle;
        }
    }

    fn remove(&mut self, addr: u64, _: u32, _: impl Fn(u32) -> u64) {
        if let Some(entry) = self.place(addr).and_then(|i| self.entries.get_mut(i)) {
            *entry = 0;
        }
    }

    fn find(&self, addr: u64, address_of: impl Fn(u32) -> u64) -> Option<u32> {
        let handle = *self.entries.get(self.place(addr)?)?;
        (handle != 0 && address_of(handle) == addr).then_some(handle)
    }
}

/// A hash table with linear [probing](crate::table::probe): two slots of four bytes for each chunk, any
/// address.
///
/// O(1) expected at the load of one half that the size guarantees.
#[derive(Debug)]
pub struct HashIndex<'t> {
    slots: &'t mut [u32],
}

// An index costs at most eight bytes a chunk.
const _: () = assert!(2 * size_of::<u32>() <= 8);

/// Sets every entry to 0 and writes only where there is something else, so that pages that were
/// never touched stay untouched.
fn clear(entries: &mut [u32]) {
    for entry in entries.iter_mut().filter(|entry| **entry != 0) {
        *entry = 0;
    }
}

impl<'t> HashIndex<'t> {
    /// An index in lent slots, at least two for each record of the chunk table.
    pub const fn new(slots: &'t mut [u32]) -> Self {
        Self { slots }
    }
}

impl AddressIndex for HashIndex<'_> {
    fn holds(&self, records: u32, _: Granule) -> bool {
        self.slots.len() as u64 >= 2 * u64::from(records)
    }

    fn clear(&mut self) {
        clear(self.slots);
    }

    fn covers(&self, _: u64) -> bool {
        true
    }

    fn insert(&mut self, addr: u64, handle: u32, address_of: impl Fn(u32) -> u64) {
        if let Err(place) = probe::find(self.slots, addr, key_of(address_of))
            && let Some(slot) = self.slots.get_mut(place)
        {
            *slot = handle;
        }
    }

    fn remove(&mut self, addr: u64, _: u32, address_of: impl Fn(u32) -> u64) {
        if let Ok(place) = probe::find(self.slots, addr, key_of(&address_of)) {
            probe::remove(self.slots, place, 0, key_of(address_of));
        }
    }

    fn find(&self, addr: u64, address_of: impl Fn(u32) -> u64) -> Option<u32> {
        let place = probe::find(self.slots, addr, key_of(address_of)).ok()?;
        self.slots.get(place).copied()
    }
}

/// The address that a slot stands for.
fn key_of(address_of: impl Fn(u32) -> u64) -> impl Fn(&u32) -> Option<u64> {
    move |slot| (*slot != 0).then(|| address_of(*slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_index_at_full_load_finds_all_it_holds_and_nothing_else() {
        let mut slots = [0; 64];
        let mut index = HashIndex::new(&mut slots);
        assert!(index.holds(32, Granule::DEFAULT) && !index.holds(33, Granule::DEFAULT));
        let address = |handle: u32| u64::from(handle) * 0x1_0000;
        let mut seed = 1u32;
        let mut held = [false; 33];
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let handle = (seed >> 16) % 32 + 1;
            let known = &mut held[handle as usize];
            if *known {
                index.remove(address(handle), handle, address);
            } else {
                index.insert(address(handle), handle, address);
            }
            *known = !*known;
            for handle in 1..=32 {
                let expected = held[handle as usize].then_some(handle);
                assert_eq!(index.find(address(handle), address), expected);
            }
        }
    }

    #[test]
    fn a_page_index_ignores_what_lies_outside_its_range() {
        let mut entries = [0; 4];
        let page = Granule::new(4096).unwrap();
        let mut index = PageIndex::new(Addr::new(0x10000), page, &mut entries);
        let address = |handle: u32| 0x10000 + u64::from(handle - 1) * 4096;
        index.insert(address(1), 1, address);
        index.insert(address(4), 4, address);
        index.insert(address(5), 5, address);
        assert_eq!(index.find(0x10000, address), Some(1));
        assert_eq!(index.find(0x13000, address), Some(4));
        assert_eq!(
            index.find(0x13001, address),
            None,
            "not a block's first address"
        );
        assert_eq!(index.find(0x14000, address), None);
        assert_eq!(index.find(0xffff, address), None);
        index.remove(address(1), 1, address);
        assert_eq!(index.find(0x10000, address), None);
        assert!(!index.holds(1, Granule::DEFAULT));
    }

    #[test]
    fn entries_known_to_be_0_are_not_written_by_the_first_clearing_and_are_by_a_later_one() {
        // Not 0, so that a write shows.
        let mut entries = [7; 4];
        let page = Granule::new(4096).unwrap();
        let mut index = PageIndex::zeroed(Addr::new(0x10000), page, &mut entries);
        index.clear();
        assert_eq!(index.entries, [7; 4]);
        index.clear();
        assert_eq!(index.entries, [0; 4]);
        index.entries.fill(7);
        let mut index = PageIndex::new(Addr::new(0x10000), page, index.entries);
        index.clear();
        assert_eq!(index.entries, [0; 4]);
    }
}
