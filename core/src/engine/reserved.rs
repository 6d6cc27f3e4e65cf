//! Reserved addresses: chunks that no search finds. Only the owner of the reservation places blocks there. The memory in
//! reserved chunks is idle, as in free chunks, so [`pages`](crate::pages) may move it away.
//!
//! A filling chunk, which a plan owns, becomes reserved; and for a block, a part of a reserved chunk becomes a filling
//! chunk. Like a free chunk, a reserved chunk may have a point and may be hollow. It joins only reserved neighbours of
//! the same reservation: so the first chunk of a reservation keeps its record, whatever is committed, and a walk from
//! there meets no chunk of another reservation.

use core::ops::Range;

use super::Chunks;
use super::chunk::{Link, State};
use super::free::Stored;
use super::search::Candidate;
use crate::block::{AllocatorId, Block, ChunkHandle};
use crate::error::{FreeError, Rejected};
use crate::stream::{StreamId, StreamPoint};
use crate::table::list;
use crate::units::{Addr, AddrRange};

/// Reserved addresses. Their first chunk keeps its record as long as they are reserved (BFC10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reservation {
    pub(crate) range: AddrRange,
    first: ChunkHandle,
    owner: AllocatorId,
}

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

    /// Makes a filling chunk a reservation.
    pub(crate) fn reserve(&mut self, link: Link) -> Reservation {
        self.table.at_mut(link).set_first();
        self.set_reserved(link, None);
        Reservation {
            range: self.range_of(link),
            first: ChunkHandle::from_link(link.0),
            owner: self.id(),
        }
    }

    /// Frees a block whose addresses stay reserved, as [`free_after`](Self::free_after) does.
    ///
    /// # Errors
    /// The errors of [`free_after`](Self::free_after), and if the block is not inside the reservation.
    pub(crate) fn free_reserved(
        &mut self,
        reservation: &Reservation,
        block: Block,
        point: Option<StreamPoint>,
    ) -> Result<(), Rejected<FreeError>> {
        let is_inside = self.is_part(reservation, block.range());
        let Some(link) = self.link_of(&block).filter(|_| is_inside) else {
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
        let chunk = self.table.at(link);
        let (size, slack_bytes) = (chunk.size, chunk.slack_bytes());
        self.counters.live -= u64::from(size);
        self.counters.slack_bytes -= u64::from(slack_bytes);
        self.set_reserved(link, stored);
        Ok(())
    }

    /// Makes an unlisted chunk a reserved one with this point, joins it, and lists the result. O(1), amortised as for a
    /// free.
    pub(crate) fn set_reserved(&mut self, link: Link, point: Stored) {
        self.table.at_mut(link).set_state(State::Reserved);
        self.set_stored(link, point);
        let mut link = link;
        loop {
            let next = self.table.at(link).next;
            if !self.are_alike(link, next) || !self.join_points(link, next) {
                break;
            }
            self.unlist_reserved(next);
            self.absorb_next(link, next);
        }
        loop {
            let prev = self.table.at(link).prev;
            if !self.are_alike(prev, link) || !self.join_points(prev, link) {
                break;
            }
            self.unlist_reserved(prev);
            self.absorb_next(prev, link);
            link = prev;
        }
        self.list_reserved(link);
    }

    fn is_part(&self, reservation: &Reservation, part: AddrRange) -> bool {
        reservation.owner == self.id() && reservation.range.contains(part)
    }

    fn range_of(&self, link: Link) -> AddrRange {
        AddrRange::of_chunk(Addr::new(self.addr_of(link)), self.bytes_of(link))
    }

    /// Returns the chunk of a reservation in which a part of it starts, and the granules before the part. O(chunks of the
    /// reservation); O(1) at the reserved chunk that was listed last, which a commit or decommit leaves next to its place.
    fn chunk_of(&self, reservation: &Reservation, part: AddrRange) -> Option<Candidate> {
        if !self.is_part(reservation, part) {
            return None;
        }
        let newest = ChunkHandle::new(self.reserved.0);
        let newest = newest.filter(|_| reservation.range.contains(self.range_of(self.reserved)));
        self.chunk_at(part, newest.or(Some(reservation.first)))
    }

    /// Returns the reserved chunk that holds `size` granules of a reservation, from the start of `part` on; adjacent
    /// reserved chunks are joined. At most one stream may still use them: if it is not `stream`, the candidate has its
    /// point. O(chunks of the reservation).
    pub(crate) fn find_reserved(
        &mut self,
        reservation: &Reservation,
        part: AddrRange,
        size: u32,
        stream: StreamId,
    ) -> ReservedPlace {
        let Some(found) = self.chunk_of(reservation, part) else {
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

    /// Frees the addresses of a reservation for all requests, with the memory there. Returns `None`, and changes nothing,
    /// if a block is there. O(chunks of the reservation).
    pub(crate) fn free_addresses(&mut self, reservation: &Reservation) -> Option<()> {
        let first = self.chunk_of(reservation, reservation.range)?.link;
        let size = self.granule.count_up(reservation.range.bytes())?;
        let end = self.table.at(first).start.checked_add(size)?;
        let mut last = first;
        while self.table.at(last).is_reserved() && self.table.at(last).end() < end {
            last = self.table.at(last).next;
        }
        if !self.table.at(last).is_reserved() || self.table.at(last).end() != end {
            return None;
        }
        let mut link = first;
        loop {
            let chunk = *self.table.at(link);
            self.unlist_reserved(link);
            self.set_stored(link, None);
            // Freed, the chunk may join the free one in front of it, but no reserved one.
            self.free_filling(link, chunk.is_hollow(), chunk.point());
            if link == last {
                return Some(());
            }
            link = chunk.next;
        }
    }

    /// Returns the first reserved chunk of a range that starts at a multiple of the granule. `near` is the chunk where
    /// the last search stopped, which may no longer exist, and becomes the one where this search stops. O(chunks between
    /// `near` and the chunk found, or the end of the range); O(1) if no chunk is reserved.
    pub(crate) fn first_reserved(
        &self,
        range: AddrRange,
        near: &mut Option<ChunkHandle>,
    ) -> Option<AddrRange> {
        if self.reserved.is_nil() {
            return None;
        }
        let mut link = self.chunk_at(range, *near)?.link;
        while link.is_some() && self.addr_of(link) < range.end().get() {
            self.streams.look();
            *near = Some(ChunkHandle::from_link(link.0));
            if self.table.at(link).is_reserved() {
                return Some(self.range_of(link));
            }
            link = self.table.at(link).next;
        }
        None
    }
}
