//! [`LargeCache`]: the few large blocks that a thread freed last, so that it allocates them again in a few
//! instructions.
//!
//! The thread cache has it next to the bins and guards it with the lock of the long classes (CACHE3). An allocation
//! takes the first entry that is at most an eighth longer than requested; a free fills the first empty entry. Both look
//! at no more than [`ENTRIES`] words. The blocks in a full cache stay until a request fits none of them; the caller then
//! frees them all.
//!
//! # Invariants
//! * LARGE1 an entry is null, or the address of a free block that belongs to the cache. The low bits of the word, which
//!   are 0 in the address, hold the block's length in units, and a turn above it. So an entry is whole between any two
//!   instructions of its owner (CACHE2), and other threads can read its length as a hint.
//! * LARGE2 the turn of an entry is that of the free which filled it. So an entry that a later look finds unchanged has
//!   not been used in between, except once in [`TURNS`].
//! * LARGE3 `units` is the sum of the lengths, except in the child of a fork until the cache has been counted (HEAP7).

use core::cell::Cell;

use super::class::MAX_SMALL_BYTES;
use crate::sync::ListHead;

/// Lengths and addresses of large blocks are multiples of this.
pub const LARGE_UNIT: usize = 16 << 10;
/// Largest block that is cached, in bytes.
pub const MAX_LARGE_BYTES: usize = 8 << 20;
/// Maximum number of blocks in a cache.
pub(super) const ENTRIES: usize = 8;
/// Number of different turns.
const TURNS: u32 = 16;
const TURN_SHIFT: u32 = 10;
const UNITS_MASK: usize = (1 << TURN_SHIFT) - 1;

const _: () = assert!(MAX_LARGE_BYTES / LARGE_UNIT <= UNITS_MASK);
const _: () = assert!((TURNS as usize) << TURN_SHIFT == LARGE_UNIT);

/// The words of the entries at some time; 0 for an empty one.
pub(super) type EntryWords = [usize; ENTRIES];

/// A thread's cached large blocks.
#[derive(Debug)]
pub(super) struct LargeCache {
    entries: [ListHead<u8>; ENTRIES],
    /// Length of all blocks (LARGE3).
    pub(super) units: Cell<u32>,
    turn: Cell<u32>,
}

impl LargeCache {
    /// Creates an empty cache.
    pub(super) const fn new() -> Self {
        Self {
            entries: [const { ListHead::new(core::ptr::null_mut()) }; ENTRIES],
            units: Cell::new(0),
            turn: Cell::new(0),
        }
    }

    /// Takes a block of at least `units` units, more than 8, that is at most an eighth longer. Returns null if there is
    /// none.
    #[inline(always)]
    pub(super) fn take(&self, units: usize) -> *mut u8 {
        for entry in &self.entries {
            let word = entry.get();
            // The waste of an empty entry or a shorter block wraps around.
            let waste = (word.addr() & UNITS_MASK).wrapping_sub(units);
            if waste <= units / 8 {
                return self.take_entry(entry, word);
            }
        }
        core::ptr::null_mut()
    }

    /// Takes the block of an entry that holds `word`.
    #[inline(always)]
    fn take_entry(&self, entry: &ListHead<u8>, word: *mut u8) -> *mut u8 {
        entry.set(core::ptr::null_mut());
        self.units
            .set(self.units.get() - (word.addr() & UNITS_MASK) as u32);
        word.map_addr(|word| word & !(LARGE_UNIT - 1))
    }

    /// Adds a block of `units` units, if the cache then holds at most `max_units` and has an empty entry. Returns
    /// whether it does. Runs `record` before.
    #[inline(always)]
    pub(super) fn put(
        &self,
        block: *mut u8,
        units: u32,
        max_units: u32,
        record: impl FnOnce(),
    ) -> bool {
        let all = self.units.get() + units;
        if all > max_units {
            return false;
        }
        for entry in &self.entries {
            if entry.get().is_null() {
                record();
                let turn = self.turn.get();
                let low = (turn % TURNS) << TURN_SHIFT | units;
                entry.set(block.map_addr(|block| block | low as usize));
                self.turn.set(turn.wrapping_add(1));
                self.units.set(all);
                return true;
            }
        }
        false
    }

    /// Takes any block. Returns null if there is none.
    pub(super) fn evict(&self) -> *mut u8 {
        self.take_unused(&self.words())
    }

    /// Takes a block whose entry is as it was in `seen`. Returns null if there is none.
    pub(super) fn take_unused(&self, seen: &EntryWords) -> *mut u8 {
        for (entry, seen) in self.entries.iter().zip(seen) {
            let word = entry.get();
            if !word.is_null() && word.addr() == *seen {
                return self.take_entry(entry, word);
            }
        }
        core::ptr::null_mut()
    }

    /// Returns the entries. Their owner may be using them.
    pub(super) fn words(&self) -> EntryWords {
        core::array::from_fn(|place| self.entries[place].get().addr())
    }

    /// Returns the length of all blocks, in units.
    pub(super) const fn units(&self) -> u32 {
        self.units.get()
    }

    /// Counts the blocks, for a cache whose owner was stopped between two instructions.
    pub(super) fn recount(&self) {
        self.units.set(sum_units(&self.words()));
    }
}

/// Returns the length of all blocks, in units.
pub(super) fn sum_units(words: &EntryWords) -> u32 {
    words.iter().map(|word| (word & UNITS_MASK) as u32).sum()
}

const _: () = assert!(MAX_SMALL_BYTES / LARGE_UNIT == 8);

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    fn block(number: usize) -> *mut u8 {
        core::ptr::without_provenance_mut(number * LARGE_UNIT)
    }

    #[test]
    fn a_count_that_is_off_is_corrected_and_the_block_that_fits_is_taken() {
        let cache = LargeCache::new();
        for number in 1..=3 {
            assert!(cache.put(block(number), 8 + number as u32, u32::MAX, || ()));
        }
        cache.units.set(9);
        cache.recount();
        assert_eq!(cache.units(), 9 + 10 + 11);
        assert_eq!(cache.take(10), block(2));
        assert_eq!(cache.units(), 9 + 11);
    }

    #[test]
    fn the_longest_block_and_every_turn_fit_into_a_word() {
        let cache = LargeCache::new();
        let units = (MAX_LARGE_BYTES / LARGE_UNIT) as u32;
        for _ in 0..2 * TURNS {
            assert!(cache.put(block(5), units, units, || ()));
            assert!(!cache.put(block(1000), 9, units, || ()), "it is full");
            assert_eq!(cache.take(units as usize), block(5));
        }
        assert!(cache.take(9).is_null());
    }

    #[test]
    fn only_entries_that_have_not_changed_are_unused() {
        let cache = LargeCache::new();
        for number in 1..=3 {
            assert!(cache.put(block(number), 9, u32::MAX, || ()));
        }
        let seen = cache.words();
        let used = cache.take(9);
        assert!(cache.put(used, 9, u32::MAX, || ()));
        let unused = [cache.take_unused(&seen), cache.take_unused(&seen)];
        assert_eq!(unused, [block(2), block(3)]);
        assert!(cache.take_unused(&seen).is_null());
        assert_eq!(
            (cache.evict(), cache.evict()),
            (used, core::ptr::null_mut())
        );
    }
}
