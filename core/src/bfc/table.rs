//! The chunk table: records lent by the caller, and which of them are in use.
//!
//! No growth code exists: with an operating system the caller reserves addresses for the largest
//! table and pages come on first touch; without one it lends a static slice.
//!
//! Invariants:
//! * T1 record 0 is never a chunk; it is the sink of [`Link::NIL`].
//! * T2 records `1..fresh` are chunks or stand in the vacant list (linked by `next`), each once;
//!   records from `fresh` up were never touched (they may hold what a former owner of the table
//!   left, so handles from outside are compared with `fresh` first).
//! * T3 `vacant` counts the list.
//!
//! Every record is reached through [`at`](ChunkTable::at) and [`at_mut`](ChunkTable::at_mut),
//! which answer a foreign link with the sink instead of a panic.

use super::chunk::{Chunk, Link};
use crate::block::AllocatorId;
use crate::error::ConfigError;

pub(crate) struct ChunkTable<'t> {
    records: &'t mut [Chunk],
    /// First record never used.
    fresh: u32,
    /// Head of the list of records used before and not now.
    vacant_head: Link,
    vacant: u32,
    owner: u32,
}

/// What a link outside the table reads.
static NIL_CHUNK: Chunk = Chunk::VACANT;

impl<'t> ChunkTable<'t> {
    pub(crate) fn new(records: &'t mut [Chunk]) -> Result<Self, ConfigError> {
        if records.len() < 2 || u32::try_from(records.len()).is_err() {
            return Err(ConfigError::Table);
        }
        if let Some(sink) = records.first_mut() {
            *sink = Chunk::VACANT;
        }
        const { assert!(size_of::<Chunk>() >= AllocatorId::TABLE_UNIT_BYTES) };
        let AllocatorId(owner) = AllocatorId::of_table(records.as_ptr().addr());
        Ok(Self {
            owner,
            records,
            fresh: 1,
            vacant_head: Link::NIL,
            vacant: 0,
        })
    }

    pub(crate) fn into_records(self) -> &'t mut [Chunk] {
        self.records
    }

    /// A number that no other allocator has at the same time: the table's place in memory, unless it
    /// was given another.
    #[inline]
    pub(crate) const fn owner(&self) -> u32 {
        self.owner
    }

    /// Blocks and tickets have this number from now on.
    pub(crate) const fn set_owner(&mut self, id: AllocatorId) {
        self.owner = id.0;
    }

    /// Whether the record was ever a chunk of this table's present owner.
    #[inline]
    pub(crate) const fn knows(&self, link: Link) -> bool {
        link.0 < self.fresh
    }

    /// Records that can be chunks.
    pub(crate) fn capacity(&self) -> u32 {
        // The constructor checked that the length fits.
        (self.records.len() - 1) as u32
    }

    /// Records that are chunks now.
    pub(crate) fn in_use(&self) -> u32 {
        self.fresh - 1 - self.vacant
    }

    /// Records that can still become chunks.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        self.capacity() - self.in_use()
    }

    #[inline]
    pub(crate) fn at(&self, link: Link) -> &Chunk {
        self.records.get(link.index()).unwrap_or(&NIL_CHUNK)
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, link: Link) -> &mut Chunk {
        // A table has two records at least, so the sink is always there.
        let index = if link.index() < self.records.len() {
            link.index()
        } else {
            0
        };
        &mut self.records[index]
    }

    /// Enters a chunk; `None` if every record is in use. O(1).
    #[inline]
    pub(crate) fn insert(&mut self, chunk: Chunk) -> Option<Link> {
        let link = if self.vacant_head.is_some() {
            let link = self.vacant_head;
            self.vacant_head = self.at(link).next;
            self.vacant -= 1;
            link
        } else if (self.fresh as usize) < self.records.len() {
            let link = Link(self.fresh);
            self.fresh += 1;
            link
        } else {
            return None;
        };
        *self.at_mut(link) = chunk;
        Some(link)
    }

    /// Empties a record. O(1).
    #[inline]
    pub(crate) fn remove(&mut self, link: Link) {
        let next = self.vacant_head;
        let record = self.at_mut(link);
        *record = Chunk::VACANT;
        record.next = next;
        self.vacant_head = link;
        self.vacant += 1;
    }

    /// Length of the vacant list, counted; `None` if a record in it is a chunk or the list does
    /// not end. For checks.
    pub(crate) fn count_vacant(&self) -> Option<u32> {
        let mut link = self.vacant_head;
        let mut count = 0;
        while link.is_some() {
            if link.0 >= self.fresh || count == self.fresh {
                return None;
            }
            if self.at(link).state() != super::chunk::State::Vacant {
                return None;
            }
            count += 1;
            link = self.at(link).next;
        }
        (count == self.vacant).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::RegionId;

    #[test]
    fn records_are_used_once_each_and_again_after_they_are_vacant() {
        let mut records = [Chunk::VACANT; 4];
        let mut table = ChunkTable::new(&mut records).unwrap();
        let chunk = Chunk::new(0, 1, RegionId::from_raw(0));
        let links = [(); 3].map(|()| table.insert(chunk).unwrap());
        assert_eq!(links, [Link(1), Link(2), Link(3)]);
        assert_eq!(table.insert(chunk), None);
        assert_eq!(table.available(), 0);
        table.remove(Link(2));
        assert_eq!(table.count_vacant(), Some(1));
        assert_eq!(table.insert(chunk), Some(Link(2)));
        assert_eq!(table.insert(chunk), None);
    }

    #[test]
    fn a_table_is_taken_over_without_a_write_behind_its_first_record() {
        let mut left_behind = Chunk::new(3, 5, RegionId::from_raw(7));
        left_behind.set_used(9, 11);
        let mut records = [left_behind; 64];
        ChunkTable::new(&mut records).unwrap();
        assert_eq!(records[0].state(), super::super::chunk::State::Vacant);
        let untouched = |chunk: &Chunk| (chunk.start, chunk.id()) == (3, 11) && chunk.is_used();
        assert!(records[1..].iter().all(untouched));
    }

    #[test]
    fn a_foreign_link_reaches_the_sink_and_nothing_else() {
        let mut records = [Chunk::VACANT; 2];
        let mut table = ChunkTable::new(&mut records).unwrap();
        table.at_mut(Link(99)).size = 5;
        assert_eq!(table.at(Link(99)).size, 0);
        assert_eq!(table.at(Link(1)).size, 0);
        assert!(matches!(ChunkTable::new(&mut []), Err(ConfigError::Table)));
        assert!(matches!(
            ChunkTable::new(&mut [Chunk::VACANT]),
            Err(ConfigError::Table)
        ));
    }
}
