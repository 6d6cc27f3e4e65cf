//! [`BlockTable`]: a map from the addresses of live blocks to values.
//!
//! The table has [slots](larder_core::table::probe) in memory straight from the system, so that a
//! decorator never re-enters the allocator that it watches. At most half of the slots are used.

use core::ptr;

use larder_core::table::probe;

use crate::os::{Native, Os};

/// Number of slots of the first table: about one page. Each later table is twice as long.
const FIRST_SLOTS: usize = 1 << 8;

/// A slot of the table: it has a block or is vacant.
#[derive(Clone, Copy)]
struct TableSlot<V> {
    /// The block's address; 0 in a vacant slot, since no block has that address.
    addr: usize,
    value: V,
}

// SAFETY: an address is a plain number, and zeros are a value.
unsafe impl<V: Zeroes> Zeroes for TableSlot<V> {}

/// The system has no memory for a larger table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Some live blocks, and a value for each.
///
/// Invariant TABLE1: `live` slots, at most half of all, are used.
pub(crate) struct BlockTable<V: Zeroes> {
    slots: MappedValues<TableSlot<V>>,
    live: usize,
}

impl<V: Zeroes> BlockTable<V> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: MappedValues::NONE,
            live: 0,
        }
    }

    /// Returns whether the table is empty.
    pub(crate) const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Inserts `value` for the block at `addr`. Returns the previous value if the free of an
    /// earlier block there was not seen. O(1).
    ///
    /// # Errors
    /// If the table is full and the system has no memory for a larger one. Nothing is inserted
    /// then.
    pub(crate) fn insert(&mut self, addr: usize, value: V) -> Result<Option<V>, NoMemory> {
        if (self.live + 1) * 2 > self.slots.values().len() {
            self.grow()?;
        }
        let before = put(self.slots.values(), TableSlot { addr, value });
        self.live += usize::from(before.is_none());
        Ok(before)
    }

    /// Removes the block at `addr`. Returns its value. O(1).
    pub(crate) fn remove(&mut self, addr: usize) -> Option<V> {
        let slots = self.slots.values();
        let place = probe::find(slots, addr as u64, key_of).ok()?;
        let slot = *slots.get(place)?;
        probe::remove(slots, place, TableSlot { addr: 0, ..slot }, key_of);
        self.live -= 1;
        Some(slot.value)
    }

    /// Returns the value of the block at `addr`. O(1).
    pub(crate) fn get(&mut self, addr: usize) -> Option<V> {
        let slots = self.slots.values();
        let place = probe::find(slots, addr as u64, key_of).ok()?;
        slots.get(place).map(|slot| slot.value)
    }

    /// Returns the value of the block at `addr`, mutably. O(1).
    pub(crate) fn get_mut(&mut self, addr: usize) -> Option<&mut V> {
        let slots = self.slots.values();
        let place = probe::find(slots, addr as u64, key_of).ok()?;
        slots.get_mut(place).map(|slot| &mut slot.value)
    }

    /// Iterates over all blocks and their values, in no particular order. O(slots).
    pub(crate) fn entries(&mut self) -> impl Iterator<Item = (usize, V)> {
        let slots = self.slots.values().iter();
        slots
            .filter(|slot| slot.addr != 0)
            .map(|slot| (slot.addr, slot.value))
    }

    fn grow(&mut self) -> Result<(), NoMemory> {
        let count = (self.slots.values().len() * 2).max(FIRST_SLOTS);
        let mut larger = MappedValues::map(count).ok_or(NoMemory)?;
        for slot in self.slots.values().iter().filter(|slot| slot.addr != 0) {
            put(larger.values(), *slot);
        }
        self.slots = larger;
        Ok(())
    }
}

/// Returns the key of a slot.
fn key_of<V: Zeroes>(slot: &TableSlot<V>) -> Option<u64> {
    (slot.addr != 0).then_some(slot.addr as u64)
}

/// Puts a block into a table with a vacant slot. Returns the previous value of its address.
fn put<V: Zeroes>(slots: &mut [TableSlot<V>], new: TableSlot<V>) -> Option<V> {
    let found = probe::find(slots, new.addr as u64, key_of);
    let (Ok(place) | Err(place)) = found;
    let slot = slots.get_mut(place)?;
    let before = core::mem::replace(slot, new);
    found.is_ok().then_some(before.value)
}

/// Zeroed values in memory straight from the system, released when dropped.
///
/// Invariants:
/// * ZERO1: if `count` is not 0, `start` is aligned for `T` and begins `count` values that nothing
///   else refers to.
/// * ZERO2: the values are one range of `bytes` bytes, reserved by `map` and not yet released.
pub(crate) struct MappedValues<T: Zeroes> {
    start: *mut T,
    count: usize,
    bytes: usize,
}

/// A type with a value whose bytes are all 0.
///
/// # Safety
/// A value whose bytes are all 0 is a value of the type.
pub(crate) unsafe trait Zeroes: Copy + Send {}

// SAFETY: 0 is a number.
unsafe impl Zeroes for u8 {}
// SAFETY: 0 is a number.
unsafe impl Zeroes for u32 {}
// SAFETY: 0 is a number.
unsafe impl Zeroes for usize {}

// SAFETY: ZERO1: the values are reached through this alone, and `T` is `Send`.
unsafe impl<T: Zeroes> Send for MappedValues<T> {}

impl<T: Zeroes> MappedValues<T> {
    /// No values. The fields are all zeros, so that a static with this value takes no room in a
    /// program's file.
    pub(crate) const NONE: Self = Self {
        start: ptr::null_mut(),
        count: 0,
        bytes: 0,
    };

    /// Maps `count` zeroed values. Returns `None` if there is no memory, or the size is 0 or
    /// overflows.
    pub(crate) fn map(count: usize) -> Option<Self> {
        const { assert!(align_of::<T>() <= 4096, "a page is aligned for every value") };
        let page = Native.page_bytes();
        let bytes = count
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes > 0)?
            .checked_next_multiple_of(page)?;
        let start = Native.reserve(bytes, page)?.as_ptr();
        // SAFETY: the range reserved just now.
        if !unsafe { Native.commit(start, bytes) } {
            // SAFETY: the range reserved just now, not used.
            unsafe { Native.release(start, bytes) };
            return None;
        }
        Some(Self {
            start: start.cast(),
            count,
            bytes,
        })
    }

    /// Returns the values.
    pub(crate) const fn values(&mut self) -> &mut [T] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: ZERO1; fresh pages are zeroed, which is a value of `T`, and the borrow of `self`
        // keeps others away.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.count) }
    }
}

impl<T: Zeroes> Drop for MappedValues<T> {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: ZERO2; no borrow of the values outlives `self`.
            unsafe { Native.release(self.start.cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests;
