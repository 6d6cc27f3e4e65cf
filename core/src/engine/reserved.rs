//! Reserved addresses: chunks that no search finds. Only the owner of the reservation places blocks there. The memory in
//! reserved chunks is idle, as in free chunks, so [`pages`](crate::pages) may move it away.
//!
//! A filling chunk, which a plan owns, becomes reserved; and for a block, a part of a reserved chunk becomes a filling
//! chunk. Like a free chunk, a reserved chunk may have a point and may be hollow. It joins reserved neighbours only.

use core::ops::Range;

use super::Chunks;
use super::chunk::{Link, State};
use super::free::Stored;
use super::search::Candidate;
use crate::block::Block;
use crate::error::{FreeError, Rejected};
use crate::stream::{StreamId, StreamPoint};
use crate::table::list;
use crate::units::AddrRange;

/// The state of a place among reserved addresses.
pub(crate) enum ReservedPlace {
    /// No block is there.
    Free(Candidate),
    /// The work of two streams still uses it.
    InUse,
    /// Not all of it is reserved, or a block is there.
    NotReserved,
}

impl Chunks<'_> {
    /// Returns the reserved chunk after `link` in their list, or the newest one for nil.
    pub(crate) fn next_reserved(&self, link: Link) -> Link {
        if link.is_nil() {
            self.reserved
        } else {
            self.table.at(link).next_free()
        }
    }

    /// Puts a reserved chunk in the list (BFC10).
    pub(super) fn list_reserved(&mut self, link: Link) {
        list::push(&mut self.table, self.reserved, link);
        self.reserved = link;
    }

    /// Removes a reserved chunk from the list.
    pub(super) fn unlist_reserved(&mut self, link: Link) {
        if let Some(first) = list::unlink(&mut self.table, link) {
            self.reserved = first;
        }
    }

    /// Makes a filling chunk reserved. O(1), amortised as for a free.
    pub(crate) fn reserve_filling(&mut self, link: Link, hollow: bool, point: Stored) {
        let chunk = self.table.at_mut(link);
        chunk.set_free();
        chunk.set_hollow(hollow);
        self.set_reserved(link, point);
    }

    /// Frees a block whose addresses stay reserved, as [`free_after`](Self::free_after) does.
    ///
    /// # Errors
    /// The errors of [`free_after`](Self::free_after).
    pub(crate) fn free_reserved(
        &mut self,
        block: Block,
        point: Option<StreamPoint>,
    ) -> Result<(), Rejected<FreeError>> {
        let Some(link) = self.link_of(&block) else {
            return Err(Rejected::new(block, FreeError::Unknown));
        };
        let stored = match point {
            None => None,
            Some(point) => match self.stored(point) {
                Some(stored) => stored,
                None => return Err(Rejected::new(block, FreeError::EventTooFar)),
            },
        };
        if let Some((stream, _)) = stored {
            self.streams.note(stream);
        }
        let chunk = self.table.at_mut(link);
        let (size, slack_bytes) = (chunk.size, chunk.slack_bytes());
        chunk.set_free();
        self.counters.live -= u64::from(size);
        self.counters.slack_bytes -= u64::from(slack_bytes);
        self.set_reserved(link, stored);
        Ok(())
    }

    /// Makes an unlisted chunk that is free or reserved a reserved one with this point, joins it, and lists the result.
    pub(super) fn set_reserved(&mut self, link: Link, point: Stored) {
        self.table.at_mut(link).set_state(State::Reserved);
        self.set_stored(link, point);
        let mut link = link;
        loop {
            let next = self.table.at(link).next;
            if !self.table.at(next).is_reserved() || !self.join_points(link, next) {
                break;
            }
            self.unlist_reserved(next);
            self.absorb_next(link, next);
        }
        loop {
            let prev = self.table.at(link).prev;
            if !self.table.at(prev).is_reserved() || !self.join_points(prev, link) {
                break;
            }
            self.unlist_reserved(prev);
            self.absorb_next(prev, link);
            link = prev;
        }
        self.list_reserved(link);
    }

    /// Returns the reserved chunk in which a range starts, and the granules before it. O(reserved chunks).
    fn reserved_at(&self, range: AddrRange) -> Option<Candidate> {
        let start = range.start().get();
        let mut link = self.reserved;
        while link.is_some() {
            if let Some(offset) = start.checked_sub(self.addr_of(link))
                && offset < self.bytes_of(link)
            {
                return Some(Candidate {
                    link,
                    padding: self.granule.count_up(offset)?,
                    wait: None,
                });
            }
            link = self.table.at(link).next_free();
        }
        None
    }

    /// Returns the reserved chunk that holds `size` granules from the start of `range`; adjacent reserved chunks are
    /// joined. At most one stream may still use them: if it is not `stream`, the candidate has its point. O(reserved
    /// chunks).
    pub(crate) fn find_reserved(
        &mut self,
        range: AddrRange,
        size: u32,
        stream: StreamId,
    ) -> ReservedPlace {
        let Some(found) = self.reserved_at(range) else {
            return ReservedPlace::NotReserved;
        };
        let start = self.table.at(found.link).start + found.padding;
        let Some(end) = start.checked_add(size) else {
            return ReservedPlace::NotReserved;
        };
        let (mut link, mut joins, mut user) = (found.link, 0_u32, None::<StreamPoint>);
        loop {
            let chunk = self.table.at(link);
            if !chunk.is_reserved() {
                return ReservedPlace::NotReserved;
            }
            if let Some(point) = self.streams.pending(chunk.point()) {
                if user.is_some_and(|user| user.stream != point.stream) {
                    return ReservedPlace::InUse;
                }
                if user.is_none_or(|user| user.event < point.event) {
                    user = Some(point);
                }
            }
            if chunk.end() >= end {
                break;
            }
            joins += 1;
            link = chunk.next;
        }
        self.join_next(found.link, joins);
        ReservedPlace::Free(Candidate {
            wait: user.filter(|user| user.stream != stream),
            ..found
        })
    }

    /// Cuts the granules `target` out of a reserved chunk, as one filling chunk. Returns `None`, and changes nothing,
    /// if there are too few records. O(1).
    pub(crate) fn cut_reserved(&mut self, link: Link, target: Range<u32>) -> Option<Link> {
        let chunk = *self.table.at(link);
        let rest = chunk.end() - target.end;
        let cuts = u32::from(chunk.start < target.start) + u32::from(rest > 0);
        if self.table.available() < cuts {
            return None;
        }
        if rest > 0 {
            let behind = self.split_off(link, rest, &chunk, chunk.point())?;
            self.table.at_mut(link).size -= rest;
            let record = self.table.at_mut(behind);
            record.join_hollow(&chunk);
            record.set_state(State::Reserved);
            self.list_reserved(behind);
        }
        let mut found = link;
        if chunk.start < target.start {
            let front = *self.table.at(link);
            let size = target.end - target.start;
            found = self.split_off(link, size, &front, None)?;
            self.table.at_mut(link).size -= size;
        } else {
            self.unlist_reserved(link);
            self.set_stored(link, None);
        }
        self.set_filling(found);
        Some(found)
    }

    /// Frees reserved addresses for all requests, with the memory there. Returns `None`, and changes nothing, if not
    /// all of them are reserved, or if there are too few records. O(reserved chunks).
    pub(crate) fn free_addresses(&mut self, range: AddrRange) -> Option<()> {
        let found = self.reserved_at(range)?;
        let mut start = self.table.at(found.link).start + found.padding;
        let end = start.checked_add(self.granule.count_up(range.bytes())?)?;
        let mut last = found.link;
        while self.table.at(last).is_reserved() && self.table.at(last).end() < end {
            last = self.table.at(last).next;
        }
        // Another reservation may be on either side, in the same chunk.
        if !self.table.at(last).is_reserved() || self.table.available() < 2 {
            return None;
        }
        let mut link = found.link;
        loop {
            let chunk = *self.table.at(link);
            let target = start..end.min(chunk.end());
            start = target.end;
            let cut = self.cut_reserved(link, target)?;
            // Freed, the chunk may join the free one in front of it, but no reserved one.
            let next = self.table.at(cut).next;
            self.free_filling(cut, chunk.is_hollow(), chunk.point());
            if start == end {
                return Some(());
            }
            link = next;
        }
    }
}
