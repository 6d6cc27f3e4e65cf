//! The records of a pool's buffers, lent by the caller, and the lists they stand in.
//!
//! Record 0 is never a buffer: it is the sink of link 0, which means none. A foreign link reaches the
//! sink too, so no link causes a panic. Records from `fresh` up were never touched.

use crate::block::AllocatorId;
use crate::error::ConfigError;

/// What a buffer is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The record is no buffer.
    Vacant,
    /// The sub-allocator is being asked for it.
    Growing,
    /// The caller has a block of it.
    Out,
    /// Kept, and counted against the limits.
    Idle,
    /// Kept because the sub-allocator did not take it back.
    Stuck,
    /// To go back, and nobody is at it.
    Leaving,
    /// The sub-allocator is being asked to take it.
    Going,
}

/// What a pool knows of one buffer: a record of the table that the caller lends. 72 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// First address held from the sub-allocator.
    pub(super) start: u64,
    /// Bytes held there.
    pub(super) held_bytes: u64,
    /// Bytes asked for: the size by which the buffer is found.
    pub(super) bytes: u64,
    /// The block's first address, while it is out.
    pub(super) block: u64,
    /// Bytes requested for the block.
    pub(super) requested_bytes: u64,
    /// Number of the allocation.
    pub(super) id: u64,
    /// Neighbours in its list.
    pub(super) newer: u32,
    pub(super) older: u32,
    /// Neighbours in the ring of its size.
    pub(super) same_newer: u32,
    pub(super) same_older: u32,
    /// The step in which it became idle.
    pub(super) step: u32,
    pub(super) state: State,
}

static_assertions::const_assert_eq!(size_of::<Buffer>(), 72);
static_assertions::const_assert!(size_of::<Buffer>() >= AllocatorId::TABLE_UNIT_BYTES);

impl Buffer {
    /// A record that is no buffer.
    pub const VACANT: Self = Self {
        start: 0,
        held_bytes: 0,
        bytes: 0,
        block: 0,
        requested_bytes: 0,
        id: 0,
        newer: 0,
        older: 0,
        same_newer: 0,
        same_older: 0,
        step: 0,
        state: State::Vacant,
    };

    /// Granted bytes of its block: all behind the block's start.
    pub(super) const fn granted_bytes(&self) -> u64 {
        self.bytes - (self.block - self.start)
    }
}

/// Records in the order in which they came.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct List {
    pub(super) newest: u32,
    pub(super) oldest: u32,
    pub(super) count: u32,
}

/// What a link outside the table reads.
static NO_BUFFER: Buffer = Buffer::VACANT;

pub(super) struct Buffers<'t> {
    records: &'t mut [Buffer],
    fresh: u32,
    vacant: List,
    owner: u32,
}

impl<'t> Buffers<'t> {
    pub(super) fn new(records: &'t mut [Buffer]) -> Result<Self, ConfigError> {
        if records.len() < 2 || u32::try_from(records.len()).is_err() {
            return Err(ConfigError::Table);
        }
        if let Some(sink) = records.first_mut() {
            *sink = Buffer::VACANT;
        }
        Ok(Self {
            owner: AllocatorId::of_table(records.as_ptr().addr()).0,
            records,
            fresh: 1,
            vacant: List::default(),
        })
    }

    /// A number that no other allocator has at the same time.
    pub(super) const fn owner(&self) -> u32 {
        self.owner
    }

    /// First record never used: links below it may be buffers.
    pub(super) const fn fresh(&self) -> u32 {
        self.fresh
    }

    pub(super) const fn vacant(&self) -> List {
        self.vacant
    }

    /// Records that can be buffers.
    pub(super) fn capacity(&self) -> u32 {
        // The constructor checked that the length fits.
        (self.records.len() - 1) as u32
    }

    #[inline]
    pub(super) fn at(&self, link: u32) -> &Buffer {
        self.records.get(link as usize).unwrap_or(&NO_BUFFER)
    }

    #[inline]
    pub(super) fn at_mut(&mut self, link: u32) -> &mut Buffer {
        // A table has two records at least, so the sink is always there.
        let index = link as usize;
        let index = if index < self.records.len() { index } else { 0 };
        &mut self.records[index]
    }

    /// A record for `buffer`; `None` if all are in use. O(1).
    pub(super) fn insert(&mut self, buffer: Buffer) -> Option<u32> {
        let link = if self.vacant.count > 0 {
            let mut vacant = self.vacant;
            let link = self.pop_oldest(&mut vacant)?;
            self.vacant = vacant;
            link
        } else if (self.fresh as usize) < self.records.len() {
            let link = self.fresh;
            self.fresh += 1;
            link
        } else {
            return None;
        };
        *self.at_mut(link) = buffer;
        Some(link)
    }

    /// Empties a record that stands in no list. O(1).
    pub(super) fn remove(&mut self, link: u32) {
        *self.at_mut(link) = Buffer::VACANT;
        let mut vacant = self.vacant;
        self.push(&mut vacant, link);
        self.vacant = vacant;
    }

    /// Enters a record as the newest. O(1).
    #[inline]
    pub(super) fn push(&mut self, list: &mut List, link: u32) {
        let before = list.newest;
        let record = self.at_mut(link);
        record.older = before;
        record.newer = 0;
        if before == 0 {
            list.oldest = link;
        } else {
            self.at_mut(before).newer = link;
        }
        list.newest = link;
        list.count += 1;
    }

    /// Takes a record out of the list it stands in. O(1).
    #[inline]
    pub(super) fn unlink(&mut self, list: &mut List, link: u32) {
        let (newer, older) = (self.at(link).newer, self.at(link).older);
        if newer == 0 {
            list.newest = older;
        } else {
            self.at_mut(newer).older = older;
        }
        if older == 0 {
            list.oldest = newer;
        } else {
            self.at_mut(older).newer = newer;
        }
        list.count -= 1;
    }

    /// Takes the oldest record out. O(1).
    pub(super) fn pop_oldest(&mut self, list: &mut List) -> Option<u32> {
        let link = list.oldest;
        if link == 0 {
            return None;
        }
        self.unlink(list, link);
        Some(link)
    }
}
