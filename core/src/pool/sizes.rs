//! Which sizes a pool keeps: a table of lists.
//!
//! All kept buffers of one size form a [list](crate::table::list), from newest to oldest. A slot holds the
//! newest of one size, 0 for none, and is found by [probing](crate::table::probe). At most half of the
//! slots are taken. O(1) expected.

use super::buffer::{Buffer, OfSize};
use crate::table::slab::Slab;
use crate::table::{list, probe};

pub(super) struct Sizes<'t> {
    slots: &'t mut [u32],
}

impl<'t> Sizes<'t> {
    /// An index in lent slots, of which the caller has seen that there are enough.
    pub(super) fn new(slots: &'t mut [u32]) -> Self {
        // Pages that were never touched stay untouched.
        for slot in slots.iter_mut().filter(|slot| **slot != 0) {
            *slot = 0;
        }
        Self { slots }
    }

    pub(super) const fn slots(&self) -> &[u32] {
        self.slots
    }

    /// The newest buffer of this size: its memory is warm, and the others can age.
    #[inline]
    pub(super) fn newest(&self, buffers: &Slab<'_, Buffer>, bytes: u64) -> Option<u32> {
        let place = probe::find(self.slots, bytes, size_in(buffers)).ok()?;
        self.slots.get(place).copied()
    }

    /// Enters a buffer as the newest of its size.
    #[inline]
    pub(super) fn insert(&mut self, buffers: &mut Slab<'_, Buffer>, link: u32) {
        let bytes = buffers.at(link).bytes;
        let (Ok(place) | Err(place)) = probe::find(self.slots, bytes, size_in(buffers));
        if let Some(slot) = self.slots.get_mut(place) {
            list::push::<OfSize, _>(buffers, *slot, link);
            *slot = link;
        }
    }

    /// Takes a buffer out of its size.
    #[inline]
    pub(super) fn remove(&mut self, buffers: &mut Slab<'_, Buffer>, link: u32) {
        let Some(newest) = list::unlink::<OfSize, _>(buffers, link) else {
            return;
        };
        let bytes = buffers.at(link).bytes;
        let Ok(place) = probe::find(self.slots, bytes, size_in(buffers)) else {
            return;
        };
        if newest == 0 {
            probe::remove(self.slots, place, 0, size_in(buffers));
        } else if let Some(slot) = self.slots.get_mut(place) {
            *slot = newest;
        }
    }
}

/// The size that a slot stands for.
fn size_in(buffers: &Slab<'_, Buffer>) -> impl Fn(&u32) -> Option<u64> {
    |slot| (*slot != 0).then(|| buffers.at(*slot).bytes)
}
