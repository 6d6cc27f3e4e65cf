//! Which sizes a pool keeps: a hash table of rings.
//!
//! All kept buffers of one size form a ring, `same_older` from newest to oldest and then round. A slot
//! holds the newest of one size, 0 for none; slots are probed in order from a size's home, and a
//! removal closes the gap, so that no tombstones pile up. At most half of the slots are taken.
//! O(1) expected.

use super::buffer::Buffers;

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
    pub(super) fn newest(&self, buffers: &Buffers<'_>, bytes: u64) -> Option<u32> {
        let newest = self.slot(self.place(buffers, bytes));
        (newest != 0).then_some(newest)
    }

    /// Enters a buffer as the newest of its size.
    #[inline]
    pub(super) fn insert(&mut self, buffers: &mut Buffers<'_>, link: u32) {
        let place = self.place(buffers, buffers.at(link).bytes);
        let newest = self.slot(place);
        let (older, newer) = if newest == 0 {
            (link, link)
        } else {
            let oldest = buffers.at(newest).same_newer;
            buffers.at_mut(newest).same_newer = link;
            buffers.at_mut(oldest).same_older = link;
            (newest, oldest)
        };
        let record = buffers.at_mut(link);
        record.same_older = older;
        record.same_newer = newer;
        self.set(place, link);
    }

    /// Takes a buffer out of its size.
    #[inline]
    pub(super) fn remove(&mut self, buffers: &mut Buffers<'_>, link: u32) {
        let record = *buffers.at(link);
        let place = self.place(buffers, record.bytes);
        if record.same_older == link {
            self.close_gap(buffers, place);
            return;
        }
        buffers.at_mut(record.same_newer).same_older = record.same_older;
        buffers.at_mut(record.same_older).same_newer = record.same_newer;
        if self.slot(place) == link {
            self.set(place, record.same_older);
        }
    }

    /// Where a size would stand if nothing were in its way.
    fn home(&self, bytes: u64) -> usize {
        // Fibonacci hashing; the high half of the product with the length needs no division.
        let hash = bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 == self.slots.len() {
            0
        } else {
            place + 1
        }
    }

    /// How many steps along the probing order lie from `from` to `to`.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.slots.len() - from
        }
    }

    fn slot(&self, place: usize) -> u32 {
        self.slots.get(place).copied().unwrap_or(0)
    }

    fn set(&mut self, place: usize, link: u32) {
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = link;
        }
    }

    /// Where a size stands, or the empty slot where it would.
    pub(super) fn place(&self, buffers: &Buffers<'_>, bytes: u64) -> usize {
        let mut place = self.home(bytes);
        // At most half of the slots are taken, so the walk ends.
        while self.slot(place) != 0 && buffers.at(self.slot(place)).bytes != bytes {
            place = self.after(place);
        }
        place
    }

    /// Empties a slot: entries behind it move up unless that would put them before their home.
    fn close_gap(&mut self, buffers: &Buffers<'_>, mut gap: usize) {
        let mut place = self.after(gap);
        while self.slot(place) != 0 {
            let home = self.home(buffers.at(self.slot(place)).bytes);
            if self.distance(home, place) >= self.distance(gap, place) {
                self.set(gap, self.slot(place));
                gap = place;
            }
            place = self.after(place);
        }
        self.set(gap, 0);
    }
}
