//! [`Ids`]: the id of each live block by its address.
//!
//! A hash table with open addressing in memory of its own, straight from the system, so that the
//! recorder never comes back to the allocator it watches. At most half of the slots are used;
//! a search goes from an address's home slot upwards (around the end) to the first vacant one.

use super::os::{Pages, Zeroes};

/// Slots of the first table; it doubles from there.
const FIRST_SLOTS: usize = 1 << 12;

/// One block, or none.
#[derive(Clone, Copy)]
struct Slot {
    /// The block's address; 0 where there is none, since no block lies there.
    addr: usize,
    id: u32,
}

// SAFETY: both fields are plain numbers.
unsafe impl Zeroes for Slot {}

/// The system has no memory for a larger table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// The live blocks: which id stands for an address.
///
/// Invariants:
/// * I1: the number of slots is 0 or a power of two, and `live` of them, at most half, are used.
/// * I2: no slot between an address's home and the slot it lies in is vacant.
pub(super) struct Ids {
    slots: Pages<Slot>,
    live: usize,
}

impl Ids {
    pub(super) const fn new() -> Self {
        Self {
            slots: Pages::NONE,
            live: 0,
        }
    }

    /// Notes that the block at `addr` is `id`. Gives the id that was noted there, of a block
    /// that must have gone unseen.
    pub(super) fn insert(&mut self, addr: usize, id: u32) -> Result<Option<u32>, NoMemory> {
        if (self.live + 1) * 2 > self.slots.values().len() {
            self.grow()?;
        }
        let before = put(self.slots.values(), Slot { addr, id });
        self.live += usize::from(before.is_none());
        Ok(before)
    }

    /// Forgets the block at `addr` and gives its id.
    pub(super) fn remove(&mut self, addr: usize) -> Option<u32> {
        let slots = self.slots.values();
        let mut hole = find(slots, addr)?;
        let id = slots.get(hole)?.id;
        self.live -= 1;
        // Whoever was pushed past the hole moves into it, so that I2 holds without it.
        let mut at = hole;
        loop {
            at = next(slots, at);
            let Some(&slot) = slots.get(at).filter(|slot| slot.addr != 0) else {
                break;
            };
            let pushed_by = at.wrapping_sub(home(slots, slot.addr)) & mask(slots);
            let behind_hole = at.wrapping_sub(hole) & mask(slots);
            if pushed_by >= behind_hole {
                set(slots, hole, slot);
                hole = at;
            }
        }
        set(slots, hole, Slot { addr: 0, id: 0 });
        Some(id)
    }

    fn grow(&mut self) -> Result<(), NoMemory> {
        let count = (self.slots.values().len() * 2).max(FIRST_SLOTS);
        let mut larger = Pages::map(count).ok_or(NoMemory)?;
        for slot in self.slots.values().iter().filter(|slot| slot.addr != 0) {
            put(larger.values(), *slot);
        }
        self.slots = larger;
        Ok(())
    }
}

/// What keeps an index inside the table (I1); a table of none is never asked.
fn mask(slots: &[Slot]) -> usize {
    slots.len().wrapping_sub(1)
}

/// Where the search for `addr` begins. Blocks are aligned, so the low bits of an address say
/// little: multiplying by 2^64 / golden ratio gathers the others in the upper bits.
fn home(slots: &[Slot], addr: usize) -> usize {
    let spread = (addr as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let upper = spread.wrapping_shr(u64::BITS - slots.len().trailing_zeros());
    upper as usize & mask(slots)
}

fn next(slots: &[Slot], at: usize) -> usize {
    at.wrapping_add(1) & mask(slots)
}

fn set(slots: &mut [Slot], at: usize, slot: Slot) {
    if let Some(place) = slots.get_mut(at) {
        *place = slot;
    }
}

/// The slot of `addr`, if it is there.
fn find(slots: &[Slot], addr: usize) -> Option<usize> {
    if slots.is_empty() {
        return None;
    }
    let mut at = home(slots, addr);
    loop {
        match slots.get(at)?.addr {
            0 => return None,
            found if found == addr => return Some(at),
            _ => at = next(slots, at),
        }
    }
}

/// Puts a block into a table with a vacant slot and gives the id that stood for its address.
fn put(slots: &mut [Slot], new: Slot) -> Option<u32> {
    let mut at = home(slots, new.addr);
    loop {
        let slot = slots.get_mut(at)?;
        if slot.addr == 0 || slot.addr == new.addr {
            let before = (slot.addr != 0).then_some(slot.id);
            *slot = new;
            return before;
        }
        at = next(slots, at);
    }
}

#[cfg(test)]
#[path = "ids_tests.rs"]
mod tests;
