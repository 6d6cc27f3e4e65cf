//! Memory that is being released to the sub-allocator: a *leaving* chunk, which is the end of a region or all of it. It
//! is in no list, and still counts as reserved.
//!
//! The caller passes the memory to the sub-allocator without holding a lock, and then reports the outcome. If another
//! thread's growth gets the same addresses before this report, the growth itself counts as the report, and the chunk is
//! dropped. The late report then has no effect, because no chunk has its number any longer.

use super::Chunks;
use super::chunk::{Link, State};
use super::region::RegionId;
use crate::block::AllocatorId;
use crate::units::{Addr, AddrRange};

/// A range that is being released to the sub-allocator. The release ends with
/// [`RegionPool::released`](crate::RegionPool::released) or
/// [`RegionPool::release_refused`](crate::RegionPool::release_refused).
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the range is out of use until the outcome is reported"]
pub struct ReleaseTicket {
    range: AddrRange,
    link: Link,
    /// Number of this release.
    id: u64,
    /// The allocator that issued the ticket.
    owner: AllocatorId,
}

impl ReleaseTicket {
    /// Returns the range to pass to the sub-allocator.
    pub const fn range(&self) -> AddrRange {
        self.range
    }
}

impl Chunks<'_> {
    /// Returns, in address order, the free chunks that no work uses and that are whole regions.
    pub(crate) fn free_regions(&self) -> impl Iterator<Item = Link> {
        let firsts = self.regions.ids().map(|id| self.regions.get(id).first);
        firsts.filter(|link| {
            let chunk = self.table.at(*link);
            chunk.is_free() && chunk.next.is_nil() && chunk.point().is_none()
        })
    }

    /// Returns whether the sub-allocator refused to take back memory of the chunk's region.
    pub(crate) fn is_refused(&self, link: Link) -> bool {
        self.regions.get(self.table.at(link).region()).refused
    }

    /// Allows regions that the sub-allocator refused to be offered again.
    pub(crate) fn forget_refusals(&mut self) {
        self.regions.forget_refusals();
    }

    /// Marks a listed free chunk at the end of its region as leaving, and issues its ticket.
    pub(crate) fn leave(&mut self, link: Link) -> ReleaseTicket {
        self.unlist(link);
        self.set_leaving(link)
    }

    /// Marks the last `size` granules of a chunk as leaving. The chunk must be free and listed, have no point, and be
    /// at the end of its region. The rest stays free. Returns `None` if there is no record.
    pub(crate) fn leave_end(&mut self, end: Link, size: u32) -> Option<ReleaseTicket> {
        let old = *self.table.at(end);
        let link = self.split_off(end, size, &old, None)?;
        self.unlist(end);
        self.table.at_mut(end).size -= size;
        self.list(end);
        Some(self.set_leaving(link))
    }

    fn set_leaving(&mut self, link: Link) -> ReleaseTicket {
        self.counters.releases += 1;
        let id = self.counters.releases;
        let chunk = self.table.at_mut(link);
        chunk.set_leaving(id);
        self.counters.leaving += u64::from(chunk.size);
        ReleaseTicket {
            range: AddrRange::of_chunk(Addr::new(self.addr_of(link)), self.bytes_of(link)),
            link,
            id,
            owner: self.id(),
        }
    }

    /// Drops a chunk that has left, if the ticket is valid.
    pub(crate) fn released(&mut self, ticket: &ReleaseTicket) {
        if self.honours(ticket) {
            self.drop_leaving(ticket.link);
        }
    }

    /// If the ticket is valid, makes the chunk, which could not leave, free again, and marks its region as refused.
    pub(crate) fn release_refused(&mut self, ticket: &ReleaseTicket) {
        if !self.honours(ticket) {
            return;
        }
        let chunk = self.table.at_mut(ticket.link);
        chunk.set_free();
        self.counters.leaving -= u64::from(chunk.size);
        self.regions.get_mut(chunk.region()).refused = true;
        self.join_and_list(ticket.link);
    }

    /// Ends the release of every range inside `range`. The sub-allocator has granted `range` again, so it has already
    /// taken those ranges back. Nothing changes if `range` overlaps other held memory. O(regions x ranges taken back).
    pub(crate) fn note_given_again(&mut self, range: AddrRange) {
        let arrived = |id| self.is_leaving_from(id, range.start());
        if !self.regions.under(range, self.granule).all(arrived) {
            return;
        }
        while let Some(id) = self.first_under(range) {
            self.drop_leaving(self.regions.get(id).last);
        }
    }

    fn first_under(&self, range: AddrRange) -> Option<RegionId> {
        self.regions.under(range, self.granule).next()
    }

    /// Returns whether all memory of the region from `start` on is leaving. A leaving chunk is always the end of a
    /// region.
    fn is_leaving_from(&self, id: RegionId, start: Addr) -> bool {
        let last = self.regions.get(id).last;
        let chunk = self.table.at(last);
        let covered = chunk.prev.is_nil() || self.addr_of(last) <= start.get();
        chunk.state() == State::Leaving && covered
    }

    /// Returns whether this engine issued the ticket, and the release has not ended.
    fn honours(&self, ticket: &ReleaseTicket) -> bool {
        ticket.owner == self.id()
            && self.table.knows(ticket.link)
            && self.table.at(ticket.link).state() == State::Leaving
            && self.table.at(ticket.link).id() == ticket.id
    }

    /// Removes a leaving chunk, and its region if the chunk was all of it.
    fn drop_leaving(&mut self, link: Link) {
        let chunk = *self.table.at(link);
        self.counters.leaving -= u64::from(chunk.size);
        self.unhold(u64::from(chunk.size));
        self.table.remove(link);
        let (id, last) = (chunk.region(), chunk.prev);
        if last.is_nil() {
            self.regions.remove(id);
            if self.newest_region == Some(id) {
                self.newest_region = None;
            }
            return;
        }
        let region = self.regions.get_mut(id);
        region.granules = chunk.start;
        region.last = last;
        self.table.at_mut(last).next = Link::NIL;
        if self.table.at(last).is_free() && self.ends_newest_region(last) {
            let size = self.table.at(last).size;
            self.bins.remove(&mut self.table, last, size);
            self.wilderness = last;
        }
    }
}
