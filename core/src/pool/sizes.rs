//! The sizes of a pool's cached buffers: a table of lists.
//!
//! All cached buffers of one size form a [list](crate::table::list), from newest to oldest. A slot holds the link of
//! the newest buffer of one size, or 0, and is found by [probing](crate::table::probe). At most half of the slots are
//! taken. All operations are expected O(1).

use super::buffer::{Buffers, OfSize};
use crate::error::ConfigError;
use crate::table::fixed_vec::FixedVec;
use crate::table::{list, probe};

pub(super) struct Sizes {
    slots: FixedVec<u32>,
}

impl Sizes {
    /// Creates an index of `buffers` buffers, with two slots for each buffer, and one more that stays vacant.
    pub(super) fn new(buffers: u32) -> Result<Self, ConfigError> {
        let slots = (buffers as usize).saturating_mul(2).saturating_add(1);
        Ok(Self {
            slots: FixedVec::filled_with(slots, || 0)?,
        })
    }

    pub(super) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the newest buffer of this size. Its memory is the most likely to be in caches, and the other buffers
    /// age.
    #[inline]
    pub(super) fn newest(&self, buffers: &Buffers, bytes: u64) -> Option<u32> {
        let place = probe::find(&self.slots, bytes, size_in(buffers)).ok()?;
        self.slots.get(place).copied()
    }

    /// Adds a buffer, as the newest of its size.
    #[inline]
    pub(super) fn insert(&mut self, buffers: &mut Buffers, link: u32) {
        let bytes = buffers.at(link).bytes;
        let (Ok(place) | Err(place)) = probe::find(&self.slots, bytes, size_in(buffers));
        if let Some(slot) = self.slots.get_mut(place) {
            list::push::<OfSize, _>(buffers, *slot, link);
            *slot = link;
        }
    }

    /// Removes a buffer from the list of its size.
    #[inline]
    pub(super) fn remove(&mut self, buffers: &mut Buffers, link: u32) {
        let Some(newest) = list::unlink::<OfSize, _>(buffers, link) else {
            return;
        };
        let bytes = buffers.at(link).bytes;
        let Ok(place) = probe::find(&self.slots, bytes, size_in(buffers)) else {
            return;
        };
        if newest == 0 {
            probe::remove(&mut self.slots, place, 0, size_in(buffers));
        } else if let Some(slot) = self.slots.get_mut(place) {
            *slot = newest;
        }
    }
}

/// Returns the size of the buffers in a slot.
fn size_in(buffers: &Buffers) -> impl Fn(&u32) -> Option<u64> {
    |slot| (*slot != 0).then(|| buffers.at(*slot).bytes)
}
