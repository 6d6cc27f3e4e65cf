//! Shrinking: the limit at run time, and the choice of memory to release.
//!
//! Memory on its way back is a *leaving* chunk: out of every list, still counted as reserved. The caller passes it to
//! the sub-allocator without holding a lock and reports the outcome. If another thread's growth gets the same
//! addresses before that report, the growth itself is the report: the chunk is dropped then, and the late report,
//! whose number no chunk has any more, is void.

use super::RegionPool;
use super::config::Growth;
use crate::engine::RegionId;
use crate::engine::{Chunk, Link, State};
use crate::stats::PoolStats;
use crate::units::{Addr, AddrRange};

/// A range on its way back to the sub-allocator; returned by [`RegionPool::released`] or
/// [`RegionPool::release_refused`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the range is out of use until the outcome is reported"]
pub struct ReleaseTicket {
    range: AddrRange,
    link: Link,
    /// Number of this release.
    id: u64,
    /// The allocator that issued it.
    owner: u32,
}

impl ReleaseTicket {
    /// Returns the range to pass to the sub-allocator.
    pub const fn range(&self) -> AddrRange {
        self.range
    }
}

impl RegionPool<'_> {
    /// Allows a release that the sub-allocator refused to be retried. A new limit does this too.
    pub fn forget_refusals(&mut self) {
        self.chunks.regions.forget_refusals();
    }

    /// Returns a piece of memory to release now, to lower the held bytes by `wanted_bytes` piece by piece; `None`
    /// once enough is on its way or no more is free.
    ///
    /// Whole free regions go first: the smallest that suffices, otherwise the largest. Under [`Growth::Range`] the
    /// newest region is last and gives only as many units of its free end as are wanted. A refused region is not
    /// offered again until [`forget_refusals`](Self::forget_refusals). Memory that queued work still uses stays.
    /// O(regions), after a sweep of O(chunks) if any free chunk carries a point.
    pub fn take_releasable(&mut self, wanted_bytes: u64) -> Option<ReleaseTicket> {
        let leaving = self.chunks.counters.leaving * self.chunks.granule.bytes();
        let wanted = wanted_bytes
            .checked_sub(leaving)
            .filter(|bytes| *bytes > 0)?;
        self.chunks.sweep();
        let link = self
            .free_region(wanted)
            .or_else(|| self.cut_free_end(wanted))?;
        self.start_leaving(link)
    }

    /// Returns a whole free region to release, the newest one too, for a sub-allocator that takes back whole ranges
    /// only. Order, cost and refusals are those of [`take_releasable`](Self::take_releasable).
    pub fn take_releasable_region(&mut self, wanted_bytes: u64) -> Option<ReleaseTicket> {
        let leaving = self.chunks.counters.leaving * self.chunks.granule.bytes();
        let wanted = wanted_bytes
            .checked_sub(leaving)
            .filter(|bytes| *bytes > 0)?;
        self.chunks.sweep();
        let link = self.free_region_but(None, wanted)?;
        self.start_leaving(link)
    }

    /// Returns the first wholly free region in address order, on its way back; no sweep.
    pub(super) fn take_free_region(&mut self) -> Option<ReleaseTicket> {
        let link = self
            .chunks
            .regions
            .ids()
            .filter(|id| !self.chunks.regions.get(*id).refused())
            .find_map(|id| self.whole_free_chunk(id))?;
        self.start_leaving(link)
    }

    /// Marks a listed free chunk as leaving and issues its ticket.
    fn start_leaving(&mut self, link: Link) -> Option<ReleaseTicket> {
        self.chunks.unlist(link);
        self.chunks.counters.releases += 1;
        let id = self.chunks.counters.releases;
        let chunk = self.chunks.table.at_mut(link);
        chunk.set_leaving(id);
        let size = chunk.size;
        self.chunks.counters.leaving += u64::from(size);
        let addr = Addr::new(self.chunks.addr_of(link));
        Some(ReleaseTicket {
            range: AddrRange::of_chunk(addr, self.chunks.granule.bytes_of(size)),
            link,
            id,
            owner: self.chunks.table.owner(),
        })
    }

    /// Returns whether the ticket is this pool's and not yet returned.
    fn honours(&self, ticket: &ReleaseTicket) -> bool {
        ticket.owner == self.chunks.table.owner()
            && self.chunks.table.knows(ticket.link)
            && self.chunks.table.at(ticket.link).state() == State::Leaving
            && self.chunks.table.at(ticket.link).id() == ticket.id
    }

    /// Returns the chunk of the free region to release first.
    fn free_region(&self, wanted_bytes: u64) -> Option<Link> {
        let cuttable = match self.config.growth {
            Growth::Range { .. } => self.chunks.newest_region,
            Growth::Fixed => None,
        };
        self.free_region_but(cuttable, wanted_bytes)
    }

    /// Returns the chunk of the free region to release first, among all regions but `cuttable`.
    fn free_region_but(&self, cuttable: Option<RegionId>, wanted_bytes: u64) -> Option<Link> {
        let whole = self.chunks.regions.ids().filter(|id| Some(*id) != cuttable);
        let free = whole.filter_map(|id| {
            if self.chunks.regions.get(id).refused() {
                return None;
            }
            let link = self.whole_free_chunk(id)?;
            Some((
                link,
                self.chunks
                    .granule
                    .bytes_of(self.chunks.table.at(link).size),
            ))
        });
        let best = free.min_by_key(|(_, bytes)| match bytes.checked_sub(wanted_bytes) {
            Some(excess) => (false, excess),
            None => (true, u64::MAX - bytes),
        });
        best.map(|(link, _)| link)
    }

    /// Returns the chunk that is the whole region, if it is free and no work uses it.
    pub(super) fn whole_free_chunk(&self, id: RegionId) -> Option<Link> {
        let link = Link(self.chunks.regions.get(id).first());
        let chunk = self.chunks.table.at(link);
        (chunk.is_free() && chunk.next.is_nil() && chunk.point().is_none()).then_some(link)
    }

    /// Cuts whole units off the free end of the newest range.
    fn cut_free_end(&mut self, wanted_bytes: u64) -> Option<Link> {
        let Growth::Range { unit_bytes, .. } = self.config.growth else {
            return None;
        };
        let region = *self.chunks.regions.get(self.chunks.newest_region?);
        let end = Link(region.last());
        let chunk = *self.chunks.table.at(end);
        if region.refused() || !chunk.is_free() || chunk.point().is_some() {
            return None;
        }
        let free_bytes = self.chunks.granule.bytes_of(chunk.size);
        if chunk.prev.is_nil() && wanted_bytes >= free_bytes {
            return Some(end);
        }
        let units = (free_bytes / unit_bytes).min(wanted_bytes.div_ceil(unit_bytes));
        let size = self.chunks.granule.count_up(units * unit_bytes)?;
        if size == 0 || size == chunk.size {
            return (size > 0).then_some(end);
        }
        self.split_end(end, size)
    }

    /// Makes the last `size` granules of a listed free end a listed chunk of their own.
    fn split_end(&mut self, end: Link, size: u32) -> Option<Link> {
        let old = *self.chunks.table.at(end);
        let mut cut = Chunk::new(old.end() - size, size, old.region());
        cut.set_free();
        cut.prev = end;
        let link = self.chunks.table.insert(cut)?;
        self.chunks.unlist(end);
        let kept = self.chunks.table.at_mut(end);
        kept.size -= size;
        kept.next = link;
        self.chunks.regions.get_mut(old.region()).set_last(link.0);
        self.chunks.list(end);
        self.chunks.list(link);
        Some(link)
    }

    /// Ends the release of a range that the sub-allocator took: it is no longer held. A ticket of another allocator
    /// changes nothing, nor one whose range was granted again since. O(regions).
    pub fn released(&mut self, ticket: ReleaseTicket) {
        if self.honours(&ticket) {
            self.drop_leaving(ticket.link);
        }
    }

    /// Ends the release of every range inside `range`: the sub-allocator granted it again, so they have arrived.
    /// Nothing changes if the range overlaps other held memory. O(regions), times the ranges that have arrived.
    pub(super) fn note_given_again(&mut self, range: AddrRange) {
        let arrived = |id| self.is_leaving_from(id, range.start());
        if !self
            .chunks
            .regions
            .under(range, self.chunks.granule)
            .all(arrived)
        {
            return;
        }
        while let Some(id) = self.first_under(range) {
            self.drop_leaving(Link(self.chunks.regions.get(id).last()));
        }
    }

    fn first_under(&self, range: AddrRange) -> Option<RegionId> {
        self.chunks.regions.under(range, self.chunks.granule).next()
    }

    /// Returns whether all memory of the region from `start` on is leaving. A leaving chunk is always the end of a
    /// region.
    fn is_leaving_from(&self, id: RegionId, start: Addr) -> bool {
        let last = Link(self.chunks.regions.get(id).last());
        let chunk = self.chunks.table.at(last);
        let covered = chunk.prev.is_nil() || self.chunks.addr_of(last) <= start.get();
        chunk.state() == State::Leaving && covered
    }

    /// Removes a leaving chunk, and its region if that was all of it.
    fn drop_leaving(&mut self, link: Link) {
        let chunk = *self.chunks.table.at(link);
        self.chunks.counters.leaving -= u64::from(chunk.size);
        self.chunks.unhold(u64::from(chunk.size));
        self.chunks.table.remove(link);
        let id = chunk.region();
        if chunk.prev.is_nil() {
            self.chunks.regions.remove(id);
            if self.chunks.newest_region == Some(id) {
                self.chunks.newest_region = None;
            }
            return;
        }
        let region = self.chunks.regions.get_mut(id);
        region.set_granules(chunk.start);
        region.set_last(chunk.prev.0);
        let last = chunk.prev;
        self.chunks.table.at_mut(last).next = Link::NIL;
        if self.chunks.table.at(last).is_free() && self.chunks.ends_newest_region(last) {
            let size = self.chunks.table.at(last).size;
            self.chunks.bins.remove(&mut self.chunks.table, last, size);
            self.chunks.wilderness = last;
        }
    }

    /// Ends a release that the sub-allocator refused: the range is free and in use again, and its region is not
    /// offered any more in this pass. A ticket of another allocator changes nothing.
    pub fn release_refused(&mut self, ticket: ReleaseTicket) {
        if !self.honours(&ticket) {
            return;
        }
        let chunk = self.chunks.table.at_mut(ticket.link);
        chunk.set_free();
        let (id, size) = (chunk.region(), chunk.size);
        self.chunks.regions.get_mut(id).set_refused(true);
        self.chunks.counters.leaving -= u64::from(size);
        self.chunks.join_and_list(ticket.link);
    }

    /// Returns how far the limit could be lowered now: the held bytes, and those that cannot be released because a
    /// block or queued work uses part of their region. Of a range growing at its end, the free units there can be
    /// released. O(chunks).
    pub(super) fn stats_of_regions(&mut self) -> PoolStats {
        self.chunks.sweep();
        let stable: u64 = self
            .chunks
            .regions
            .ids()
            .filter(|id| self.whole_free_chunk(*id).is_none())
            .map(|id| {
                self.chunks
                    .granule
                    .bytes_of(self.chunks.regions.get(id).granules())
            })
            .sum();
        PoolStats {
            pool_bytes: self.chunks.reserved_bytes(),
            stable_bytes: stable - self.free_end_bytes(),
        }
    }

    /// Returns the bytes of whole units at the free end of the newest range, if that region has other chunks.
    fn free_end_bytes(&self) -> u64 {
        let Growth::Range { unit_bytes, .. } = self.config.growth else {
            return 0;
        };
        let Some(newest) = self.chunks.newest_region else {
            return 0;
        };
        let end = self
            .chunks
            .table
            .at(Link(self.chunks.regions.get(newest).last()));
        if !end.is_free() || end.point().is_some() || end.prev.is_nil() {
            return 0;
        }
        self.chunks.granule.bytes_of(end.size) / unit_bytes * unit_bytes
    }
}
