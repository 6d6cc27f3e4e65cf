//! [`Slab`]: the records of a table, the links to them, and the list of vacant records.
//!
//! A link is a number from 1 up; 0 names no record. The table is lent, or is the slab's own ([`SlabOver`]). A table
//! does not grow. With an operating system, the caller reserves addresses for the largest table, and pages get memory
//! when they are first touched; without one, it lends a static slice, and may lend a longer one later. So the slab
//! writes no record before it is used.
//!
//! # Invariants
//! * SLAB1 a reserved record ([`Record::KEPT_BACK`]) is never in use. It is the *sink*, to which link 0 and invalid
//!   links lead, so that lists need no branch for "no neighbour".
//! * SLAB2 each record with a link below `fresh` is either in use or in the vacant list once. Records from `fresh`
//!   upwards were never touched. They may contain records of an earlier owner of the table, so a link from outside is
//!   first compared with `fresh` ([`Slab::knows`]).
//! * SLAB3 `vacant` is the length of the vacant list.
//!
//! All operations are O(1), except those that walk the records.

use core::ops::DerefMut;

use crate::block::AllocatorId;
#[cfg(feature = "alloc")]
use crate::error::ConfigError;
#[cfg(feature = "alloc")]
use crate::table::fixed_vec::FixedVec;

/// An element of a [`Slab`].
pub(crate) trait Record: Sized {
    /// The type that names this kind of record.
    type Link: Copy + From<u32> + Into<u32>;

    /// Number of reserved records at the front of a table: 1 for a sink (SLAB1), or 0.
    const KEPT_BACK: u32 = 1;

    /// An empty record.
    const VACANT: Self;

    /// Returns the link after this record in the vacant list, or 0 if there is none.
    fn next_vacant(&self) -> u32;

    /// Sets the link after this record in the vacant list.
    fn set_next_vacant(&mut self, link: u32);
}

/// A record of a table that begins with the sink.
pub(crate) trait Sink: Record + 'static {
    /// Returns the record that is read for a link outside the table. It is a static, because a branch to a static is
    /// cheaper than the selection of a constant.
    fn nil() -> &'static Self;
}

/// The records of a lent table.
pub(crate) type Slab<'t, R> = SlabOver<&'t mut [R]>;

/// The records of a table `T`.
pub(crate) struct SlabOver<T> {
    records: T,
    /// First link that was never used.
    fresh: u32,
    /// Head of the vacant list, and its length.
    vacant_head: u32,
    vacant: u32,
    owner: u32,
}

/// Maximum number of records in a table. The last number is excluded, so that a link plus one does not overflow.
pub(crate) const MAX_RECORDS: usize = u32::MAX as usize - 1;

/// Returns the records that links can name.
fn nameable<R>(records: &mut [R]) -> &mut [R] {
    let count = records.len().min(MAX_RECORDS);
    records.split_at_mut(count).0
}

impl<'t, R: Record> Slab<'t, R> {
    /// Creates a slab without records in use. Of a table with more records than links can name, the rest is ignored. A
    /// table that has no room for a record has a [`capacity`](Self::capacity) of 0.
    pub(crate) fn new(records: &'t mut [R]) -> Self {
        Self::over(nameable(records))
    }

    /// Moves the records to another table if it has room for more, and otherwise changes nothing. O(records).
    pub(crate) fn move_to(&mut self, records: &'t mut [R]) {
        let (records, count) = (nameable(records), self.records.len());
        if records.len() > count {
            records[..count].swap_with_slice(self.records);
            self.records = records;
        }
    }
}

#[cfg(feature = "alloc")]
impl<R: Record> SlabOver<FixedVec<R>> {
    /// Creates a slab over `count` records of its own, at most as many as links can name.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for them.
    pub(crate) fn with_records(count: usize) -> Result<Self, ConfigError> {
        let records = FixedVec::filled_with(count.min(MAX_RECORDS), || R::VACANT)?;
        Ok(Self::over(records))
    }
}

impl<T: DerefMut<Target = [R]>, R: Record> SlabOver<T> {
    fn over(mut records: T) -> Self {
        const { assert!(size_of::<R>() >= AllocatorId::TABLE_UNIT_BYTES) };
        let AllocatorId(owner) = AllocatorId::of_table(records.as_ptr().addr());
        if R::KEPT_BACK > 0
            && let Some(sink) = records.first_mut()
        {
            *sink = R::VACANT;
        }
        Self {
            records,
            fresh: 1,
            vacant_head: 0,
            vacant: 0,
            owner,
        }
    }

    pub(crate) fn into_records(self) -> T {
        self.records
    }

    /// Returns a number that no other allocator has at the same time: the table's place in memory, unless a number was
    /// set.
    #[inline]
    pub(crate) const fn owner(&self) -> u32 {
        self.owner
    }

    /// Sets the number that new blocks and tickets carry.
    pub(crate) const fn set_owner(&mut self, id: AllocatorId) {
        self.owner = id.0;
    }

    /// Returns whether the current owner of the table has ever used the record.
    #[inline]
    pub(crate) fn knows(&self, link: R::Link) -> bool {
        link.into() < self.fresh
    }

    /// Returns the number of records that can be in use.
    pub(crate) fn capacity(&self) -> u32 {
        // The constructor limited the length of the table to 32 bits.
        (self.records.len() as u32).saturating_sub(R::KEPT_BACK)
    }

    /// Returns the number of records in use.
    pub(crate) const fn in_use(&self) -> u32 {
        self.fresh - 1 - self.vacant
    }

    /// Returns the number of records that can still be inserted.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        // The rest of the table, without the sink. It is not negative (SLAB2).
        (self.records.len() as u32 + 1 - R::KEPT_BACK) - self.fresh + self.vacant
    }

    /// Returns the number of records that were ever in use. Their links begin with 1.
    pub(crate) const fn used(&self) -> u32 {
        self.fresh - 1
    }

    /// Returns the links of all records that were ever in use, including those now vacant.
    pub(crate) fn links(&self) -> impl Iterator<Item = R::Link> + use<T, R> {
        (1..self.fresh).map(R::Link::from)
    }

    /// Returns the record with a link, vacant or not.
    #[inline]
    pub(crate) fn get(&self, link: R::Link) -> Option<&R> {
        self.records.get(place::<R>(link.into()))
    }

    /// Returns the record with a link, vacant or not.
    #[cfg(feature = "alloc")]
    #[inline]
    pub(crate) fn get_mut(&mut self, link: R::Link) -> Option<&mut R> {
        self.records.get_mut(place::<R>(link.into()))
    }

    /// Adds a record. Returns `None` if all records are in use.
    #[inline]
    pub(crate) fn insert(&mut self, record: R) -> Option<R::Link> {
        let vacant = self.vacant_head;
        if vacant != 0 {
            let place = self.writable(vacant.into());
            let slot = self.records.get_mut(place)?;
            self.vacant_head = slot.next_vacant();
            self.vacant -= 1;
            *slot = record;
            return Some(vacant.into());
        }
        let fresh = self.fresh;
        *self.records.get_mut(place::<R>(fresh))? = record;
        self.fresh += 1;
        Some(fresh.into())
    }

    /// Removes a record that is in use.
    #[inline]
    pub(crate) fn remove(&mut self, link: R::Link) {
        let next = self.vacant_head;
        let place = self.writable(link);
        if let Some(record) = self.records.get_mut(place) {
            *record = R::VACANT;
            record.set_next_vacant(next);
            self.vacant_head = link.into();
            self.vacant += 1;
        }
    }

    /// Returns the place of the record with a link, or the place of the sink, if there is one, for an invalid link.
    #[inline]
    fn writable(&self, link: R::Link) -> usize {
        let place = place::<R>(link.into());
        if R::KEPT_BACK == 0 || place < self.records.len() {
            place
        } else {
            0
        }
    }

    /// Returns whether SLAB2 and SLAB3 hold. `is_vacant` must recognise records that are not in use. O(records).
    pub(crate) fn is_sound(&self, is_vacant: impl Fn(&R) -> bool) -> bool {
        let records = self.links().filter_map(|link| self.get(link));
        let vacant = records.filter(|record| is_vacant(record)).count();
        let mut link = self.vacant_head;
        for _ in 0..self.vacant {
            let record = self.get(link.into());
            let record = record.filter(|record| link < self.fresh && is_vacant(record));
            let Some(record) = record else { return false };
            link = record.next_vacant();
        }
        link == 0 && vacant == self.vacant as usize
    }
}

impl<T: DerefMut<Target = [R]>, R: Sink> SlabOver<T> {
    /// Returns the record with a link, the sink for link 0, or an empty record for an invalid link.
    #[inline]
    pub(crate) fn at(&self, link: R::Link) -> &R {
        self.get(link).unwrap_or(R::nil())
    }

    /// Returns the record with a link, or the sink for link 0 and invalid links. The capacity must not be 0.
    #[inline]
    pub(crate) fn at_mut(&mut self, link: R::Link) -> &mut R {
        const { assert!(R::KEPT_BACK == 1) };
        let place = self.writable(link);
        &mut self.records[place]
    }
}

/// Returns the place of the record with a link. For a link that names no record, it is outside every table.
#[inline]
const fn place<R: Record>(link: u32) -> usize {
    (link as usize + R::KEPT_BACK as usize).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of 32 bytes: a number, and the vacant link.
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Plain<const KEPT: u32>([u32; 8]);

    impl<const KEPT: u32> Record for Plain<KEPT> {
        type Link = u32;
        const KEPT_BACK: u32 = KEPT;
        const VACANT: Self = Self([0; 8]);

        fn next_vacant(&self) -> u32 {
            self.0[1]
        }

        fn set_next_vacant(&mut self, link: u32) {
            self.0[1] = link;
        }
    }

    impl Sink for Plain<1> {
        fn nil() -> &'static Self {
            &Self([0; 8])
        }
    }

    fn record<const KEPT: u32>(number: u32) -> Plain<KEPT> {
        Plain([number; 8])
    }

    fn is_vacant<const KEPT: u32>(record: &Plain<KEPT>) -> bool {
        record.0[0] == 0
    }

    #[test]
    fn records_are_used_once_each_and_again_after_they_are_vacant() {
        let mut records = [record::<1>(9); 4];
        let mut slab = Slab::new(&mut records);
        assert_eq!((slab.capacity(), slab.available()), (3, 3));
        let links = [1, 2, 3].map(|number| slab.insert(record(number)));
        assert_eq!(links, [Some(1), Some(2), Some(3)]);
        assert_eq!((slab.insert(record(4)), slab.available()), (None, 0));
        slab.remove(2);
        slab.remove(3);
        assert!(slab.is_sound(is_vacant));
        assert_eq!((slab.in_use(), slab.links().count()), (1, 3));
        assert_eq!(slab.insert(record(5)), Some(3), "the last one first");
        assert_eq!(slab.insert(record(6)), Some(2));
        assert_eq!(slab.insert(record(7)), None);
        assert!(slab.is_sound(is_vacant) && slab.at(2) == &record(6));
    }

    #[test]
    fn without_a_sink_every_record_is_used() {
        let mut records = [record::<0>(9); 2];
        let mut slab = Slab::new(&mut records);
        assert_eq!(slab.capacity(), 2);
        assert_eq!(slab.insert(record(1)), Some(1));
        assert_eq!(slab.insert(record(2)), Some(2));
        assert_eq!(slab.insert(record(3)), None);
        assert_eq!(slab.get(1), Some(&record(1)));
        assert_eq!(
            (slab.get(0), slab.get(3), slab.get(u32::MAX)),
            (None, None, None)
        );
        slab.remove(0);
        slab.remove(7);
        assert_eq!(slab.in_use(), 2);
        assert_eq!(
            Slab::new(&mut [] as &mut [Plain<0>]).insert(record(1)),
            None
        );
    }

    #[test]
    fn a_table_is_taken_over_without_a_write_behind_its_first_record() {
        let mut records = [record::<1>(9); 64];
        let slab = Slab::new(&mut records);
        assert!(slab.knows(0) && !slab.knows(1));
        assert_eq!(records[0], Plain::VACANT);
        assert!(records[1..].iter().all(|left| *left == record(9)));
        let mut records = [record::<0>(9)];
        Slab::new(&mut records);
        assert_eq!(records[0], record(9));
    }

    #[test]
    fn a_foreign_link_reaches_the_sink_and_nothing_else() {
        let mut records = [Plain::<1>::VACANT; 2];
        let mut slab = Slab::new(&mut records);
        slab.at_mut(99).0[0] = 5;
        assert_eq!(
            (slab.at(99).0[0], slab.at(1).0[0], slab.at(0).0[0]),
            (0, 0, 5)
        );
        assert_eq!(slab.at(u32::MAX), &Plain::VACANT);
        assert_eq!(Slab::new(&mut [record::<1>(9)]).capacity(), 0);
        assert_eq!(Slab::new(&mut [] as &mut [Plain<1>]).capacity(), 0);
    }
}
