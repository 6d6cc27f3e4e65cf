//! Shrinking: the choice of memory to release. (The release itself is in `engine/leaving.rs`.)

use super::RegionPool;
use super::config::Growth;
use crate::engine::{Link, ReleaseTicket};
use crate::stats::PoolStats;

impl RegionPool<'_> {
    /// Allows the releases that the sub-allocator refused to be tried again. Setting a new limit also does this.
    pub fn forget_refusals(&mut self) {
        self.chunks.forget_refusals();
    }

    /// Returns a piece of memory to release now. Repeated calls lower the held bytes by `wanted_bytes`, piece by piece.
    /// Returns `None` once enough memory is leaving or no more is free.
    ///
    /// Whole free regions go first: the smallest that suffices, otherwise the largest. Under [`Growth::Range`] the
    /// newest region is last and gives only as many units of its free end as are wanted. A refused region is not
    /// offered again until [`forget_refusals`](Self::forget_refusals). Memory that queued work still uses stays.
    /// O(regions), after a sweep of O(chunks) if any free chunk carries a point.
    pub fn take_releasable(&mut self, wanted_bytes: u64) -> Option<ReleaseTicket> {
        let wanted = self.still_wanted(wanted_bytes)?;
        let cuttable = match self.config.growth {
            Growth::Range { .. } => self.chunks.newest_end(),
            Growth::Fixed => Link::NIL,
        };
        match self.free_region_but(cuttable, wanted) {
            Some(link) => Some(self.chunks.leave(link)),
            None => self.cut_free_end(wanted),
        }
    }

    /// Returns a whole free region to release, which may be the newest, for a sub-allocator that takes back whole
    /// ranges only. Order, cost and refusals are those of [`take_releasable`](Self::take_releasable).
    pub fn take_releasable_region(&mut self, wanted_bytes: u64) -> Option<ReleaseTicket> {
        let wanted = self.still_wanted(wanted_bytes)?;
        let link = self.free_region_but(Link::NIL, wanted)?;
        Some(self.chunks.leave(link))
    }

    /// Returns a ticket for the first wholly free region in address order, which is then leaving. Does not sweep.
    pub(super) fn take_free_region(&mut self) -> Option<ReleaseTicket> {
        let is_offered = |link: &Link| !self.chunks.is_refused(*link);
        let link = self.chunks.free_regions().find(is_offered)?;
        Some(self.chunks.leave(link))
    }

    /// Sweeps and returns the bytes to release in addition to those that are leaving, or `None` if these suffice.
    fn still_wanted(&mut self, wanted_bytes: u64) -> Option<u64> {
        let wanted = wanted_bytes.saturating_sub(self.chunks.leaving_bytes());
        (wanted > 0).then(|| {
            self.chunks.sweep();
            wanted
        })
    }

    /// Returns the free region to release first, among all regions except the one whose chunk is `cuttable`.
    fn free_region_but(&self, cuttable: Link, wanted_bytes: u64) -> Option<Link> {
        let free = self.chunks.free_regions();
        let free = free.filter(|link| *link != cuttable && !self.chunks.is_refused(*link));
        free.min_by_key(|link| {
            let bytes = self.chunks.bytes_of(*link);
            match bytes.checked_sub(wanted_bytes) {
                Some(excess) => (false, excess),
                None => (true, u64::MAX - bytes),
            }
        })
    }

    /// Cuts whole units off the free end of the newest range.
    fn cut_free_end(&mut self, wanted_bytes: u64) -> Option<ReleaseTicket> {
        let Growth::Range { unit_bytes, .. } = self.config.growth else {
            return None;
        };
        let end = self.chunks.newest_end();
        let chunk = *self.chunks.chunk(end);
        if !chunk.is_free() || chunk.point().is_some() || self.chunks.is_refused(end) {
            return None;
        }
        let free_bytes = self.chunks.bytes_of(end);
        if chunk.prev.is_nil() && wanted_bytes >= free_bytes {
            return Some(self.chunks.leave(end));
        }
        let units = (free_bytes / unit_bytes).min(wanted_bytes.div_ceil(unit_bytes));
        let size = self.chunks.granule().count_up(units * unit_bytes)?;
        match size {
            0 => None,
            _ if size == chunk.size => Some(self.chunks.leave(end)),
            _ => self.chunks.leave_end(end, size),
        }
    }

    /// Ends the release of a range that the sub-allocator took: it is no longer held. A ticket of another allocator
    /// changes nothing, nor does one whose range has been granted again. O(regions).
    pub fn released(&mut self, ticket: ReleaseTicket) {
        self.chunks.released(&ticket);
    }

    /// Ends a release that the sub-allocator refused: the range is free memory of the pool again, and its region is not
    /// offered again in this pass. A ticket of another allocator changes nothing.
    pub fn release_refused(&mut self, ticket: ReleaseTicket) {
        self.chunks.release_refused(&ticket);
    }

    /// Returns the held bytes and the stable bytes, to which the limit could be lowered now. Bytes are stable if a
    /// block or queued work uses part of their region; in a range that grows at its end, the free units there can be
    /// released. O(chunks).
    pub(super) fn stats_of_regions(&mut self) -> PoolStats {
        self.chunks.sweep();
        let pool_bytes = self.chunks.reserved_bytes();
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes - self.free_region_bytes() - self.free_end_bytes(),
        }
    }

    /// Returns the bytes of wholly free regions.
    pub(super) fn free_region_bytes(&self) -> u64 {
        let free = self.chunks.free_regions();
        free.map(|link| self.chunks.bytes_of(link)).sum()
    }

    /// Returns the bytes of whole units at the free end of the newest range, if that region has other chunks.
    fn free_end_bytes(&self) -> u64 {
        let Growth::Range { unit_bytes, .. } = self.config.growth else {
            return 0;
        };
        let end = self.chunks.newest_end();
        let chunk = self.chunks.chunk(end);
        if !chunk.is_free() || chunk.point().is_some() || chunk.prev.is_nil() {
            return 0;
        }
        self.chunks.bytes_of(end) / unit_bytes * unit_bytes
    }
}
