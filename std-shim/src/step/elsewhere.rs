//! [`Elsewhere`]: the blocks of the current step that lie outside its reserve, by their addresses.

use larder_core::Zeroed;
use larder_core::steps::Tag;

/// A place for one block.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    addr: usize,
    tag: Tag,
    /// Number of the step that wrote the slot. For other steps the slot is vacant, so a table of
    /// zeros has no block.
    step: u32,
    is_live: bool,
}

// SAFETY: numbers and a bool that is false.
unsafe impl Zeroed for Slot {}

/// A hash table of blocks with linear probing. Its slots follow the addresses, so a program with
/// few large blocks touches few pages.
pub(crate) struct Elsewhere {
    /// Twice as many slots as blocks may be entered in a step; a power of two.
    slots: &'static mut [Slot],
    shift: u32,
    step: u32,
    entered: usize,
}

impl Elsewhere {
    /// Creates a table without blocks from slots of zero bytes. Blocks start at multiples of the
    /// unit with this binary logarithm.
    pub(super) const fn new(slots: &'static mut [Slot], shift: u32) -> Self {
        Self {
            slots,
            shift,
            step: 0,
            entered: 0,
        }
    }

    /// Forgets all blocks. O(1).
    pub(super) fn clear(&mut self) {
        self.step = self.step.wrapping_add(1);
        if self.step == 0 {
            self.slots.iter_mut().for_each(|slot| slot.step = 0);
            self.step = 1;
        }
        self.entered = 0;
    }

    /// Returns the slots of this address, in the order in which they are searched.
    fn probe(&self, addr: usize) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len().wrapping_sub(1);
        let first = addr >> self.shift;
        (0..=mask).map(move |distance| first.wrapping_add(distance) & mask)
    }

    /// Enters a block. Does nothing if the table is half full.
    pub(super) fn enter(&mut self, addr: usize, tag: Tag) {
        if self.entered >= self.slots.len() / 2 {
            return;
        }
        let step = self.step;
        let mut probe = self.probe(addr);
        let free = probe.find(|at| {
            let slot = &self.slots[*at];
            slot.step != step || !slot.is_live || slot.addr == addr
        });
        if let Some(at) = free {
            self.entered += usize::from(self.slots[at].step != step);
            self.slots[at] = Slot {
                addr,
                tag,
                step,
                is_live: true,
            };
        }
    }

    /// Removes the block that starts at an address. Returns its tag.
    pub(super) fn remove(&mut self, addr: usize) -> Option<Tag> {
        let step = self.step;
        let mut probe = self.probe(addr);
        let mut used = |at: &usize| self.slots[*at].step == step;
        let at = probe.by_ref().take_while(&mut used);
        let mut at = at.filter(|at| self.slots[*at].addr == addr && self.slots[*at].is_live);
        let at = at.next()?;
        self.slots[at].is_live = false;
        Some(self.slots[at].tag)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::tests::random::Random;

    use super::*;

    const UNIT: usize = 1 << 14;

    fn table(len: usize) -> Elsewhere {
        let slot = Slot {
            addr: 0,
            tag: Tag::NONE,
            step: 0,
            is_live: false,
        };
        let mut table = Elsewhere::new(vec![slot; len].leak(), UNIT.trailing_zeros());
        table.clear();
        table
    }

    #[test]
    fn blocks_are_found_until_they_are_freed_or_the_step_ends() {
        let mut random = Random(1);
        let mut table = table(64);
        for _ in 0..200 {
            let mut live = HashSet::new();
            for _ in 0..random.next(30) {
                let addr = (1 + random.next(40)) * UNIT;
                if random.next(3) > 0 {
                    if live.insert(addr) {
                        table.enter(addr, Tag::NONE);
                    }
                } else {
                    assert_eq!(table.remove(addr).is_some(), live.remove(&addr));
                }
            }
            table.clear();
        }
    }

    #[test]
    fn a_table_that_is_half_full_takes_no_more() {
        let mut table = table(8);
        for at in 1..=8 {
            table.enter(at * UNIT, Tag::NONE);
        }
        let found = (1..=8).filter(|at| table.remove(at * UNIT).is_some());
        assert_eq!(found.count(), 4);
    }

    #[test]
    fn steps_are_told_apart_when_their_number_starts_over() {
        let mut table = table(8);
        table.step = u32::MAX;
        table.enter(UNIT, Tag::NONE);
        table.clear();
        assert_eq!((table.step, table.remove(UNIT)), (1, None));
    }
}
