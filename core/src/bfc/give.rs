//! Giving memory back: from a block to the largest free chunk its neighbours allow.
//!
//! A freed chunk joins a free neighbour by enlarging the neighbour's record in place, so that a
//! neighbour that stays in its size class touches no bin. B2 says which neighbours may stay apart.

use super::Bfc;
use super::chunk::Link;
use super::config::Coalesce;
use super::index::AddressIndex;
use crate::block::Block;
use crate::error::{FreeError, FreeRejected};
use crate::lane::{Epoch, Lane, Stamp};

/// A stamp as a free chunk stores it.
type Stored = Option<(Lane, u32)>;

impl<I: AddressIndex> Bfc<'_, I> {
    /// Takes a block back that nothing uses any more. O(1).
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours; nothing has changed then.
    #[inline]
    pub fn free(&mut self, block: Block) -> Result<(), FreeRejected> {
        match self.link_of(&block) {
            Some(link) => {
                self.give(link, None);
                Ok(())
            }
            None => Err(FreeRejected {
                block,
                error: FreeError::Unknown,
            }),
        }
    }

    /// Takes a block back that work queued on `stamp.lane` may use until `stamp.epoch`. O(1).
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours, or the epoch lies more than
    /// [`Epoch::WINDOW`] ahead of what the lane has completed; nothing has changed then.
    pub fn free_after(&mut self, block: Block, stamp: Stamp) -> Result<(), FreeRejected> {
        let frontier = self.lanes.frontier(stamp.lane);
        let ahead = stamp.epoch.number().saturating_sub(frontier);
        if ahead > Epoch::WINDOW {
            let error = FreeError::EpochTooFar;
            return Err(FreeRejected { block, error });
        }
        let Some(link) = self.link_of(&block) else {
            let error = FreeError::Unknown;
            return Err(FreeRejected { block, error });
        };
        // The low half is enough within the window (E1).
        let stored = (ahead > 0).then_some((stamp.lane, stamp.epoch.number() as u32));
        self.give(link, stored);
        Ok(())
    }

    #[inline]
    fn give(&mut self, link: Link, stamp: Stored) {
        self.leave_index(link);
        let chunk = self.table.at_mut(link);
        let slack_bytes = chunk.slack_bytes();
        let size = chunk.size;
        chunk.set_free();
        self.counters.live -= u64::from(size);
        self.counters.slack_bytes -= u64::from(slack_bytes);
        if stamp.is_some() {
            self.table.at_mut(link).set_stamp(stamp);
            self.counters.stamped += 1;
        }
        self.join_and_list(link);
    }

    /// Joins an unlisted free chunk with its free neighbours and lists the result.
    #[inline]
    pub(super) fn join_and_list(&mut self, link: Link) {
        let chunk = self.table.at(link);
        let (prev, next) = (chunk.prev, chunk.next);
        let joins_next = self.table.at(next).is_free() && self.join_stamps(link, next);
        let joins_prev = self.table.at(prev).is_free() && self.join_stamps(link, prev);
        match (joins_prev, joins_next) {
            (false, false) => self.list(link),
            (false, true) => self.join_into_next(link, next),
            (true, false) => self.join_into_previous(prev, link),
            (true, true) => {
                self.unlist(next);
                self.absorb_next(link, next);
                self.join_into_previous(prev, link);
            }
        }
    }

    /// Whether two free neighbours may be one; if so, `link` takes the stamp of the result and
    /// `other` loses its own.
    #[inline]
    fn join_stamps(&mut self, link: Link, other: Link) -> bool {
        if self.counters.stamped == 0 {
            return true;
        }
        self.join_pending_stamps(link, other)
    }

    fn join_pending_stamps(&mut self, link: Link, other: Link) -> bool {
        let (mine, theirs) = (self.table.at(link).stamp(), self.table.at(other).stamp());
        let mine_pending = self.lanes.pending(mine).is_some();
        let theirs_pending = self.lanes.pending(theirs).is_some();
        let result = match (mine, theirs) {
            _ if !mine_pending && !theirs_pending => None,
            _ if self.config.coalesce == Coalesce::Settled => return false,
            _ if !theirs_pending => mine,
            _ if !mine_pending => theirs,
            (Some((lane, a)), Some((other_lane, b))) if lane == other_lane => {
                let later = self.lanes.ahead(lane, a) >= self.lanes.ahead(lane, b);
                Some((lane, if later { a } else { b }))
            }
            _ => return false,
        };
        self.restamp(link, result);
        self.restamp(other, None);
        true
    }

    /// Replaces the stamp of a free chunk and counts it.
    pub(super) fn restamp(&mut self, link: Link, stamp: Stored) {
        let chunk = self.table.at_mut(link);
        let had = chunk.stamp().is_some();
        chunk.set_stamp(stamp);
        self.counters.stamped -= u32::from(had);
        self.counters.stamped += u32::from(stamp.is_some());
    }

    /// An unlisted free chunk becomes the front of the listed one behind it.
    fn join_into_next(&mut self, link: Link, next: Link) {
        let chunk = *self.table.at(link);
        let result = self.table.at_mut(next);
        let old_size = result.size;
        result.start = chunk.start;
        result.size += chunk.size;
        result.prev = chunk.prev;
        if chunk.stamp().is_some() {
            result.set_stamp(chunk.stamp());
        }
        self.link_after(chunk.prev, next, &chunk);
        self.table.remove(link);
        if self.tail != next {
            self.bins.resized(&mut self.table, next, old_size);
        }
    }

    /// An unlisted free chunk becomes the end of the listed one in front of it.
    fn join_into_previous(&mut self, prev: Link, link: Link) {
        let stamp = self.table.at(link).stamp();
        let old_size = self.table.at(prev).size;
        self.absorb_next(prev, link);
        if stamp.is_some() {
            self.table.at_mut(prev).set_stamp(stamp);
        }
        if self.ends_tail_region(prev) {
            self.bins.remove(&mut self.table, prev, old_size);
            self.tail = prev;
        } else {
            self.bins.resized(&mut self.table, prev, old_size);
        }
    }

    /// Enlarges a chunk by the one behind it, whose record becomes vacant. Lists are not touched.
    #[inline]
    pub(super) fn absorb_next(&mut self, link: Link, next: Link) {
        let behind = *self.table.at(next);
        let chunk = self.table.at_mut(link);
        chunk.size += behind.size;
        chunk.next = behind.next;
        self.link_before(behind.next, link, &behind);
        self.table.remove(next);
    }

    /// Clears the stamps of completed epochs and joins what they kept apart, region by region in
    /// address order. O(chunks) if any free chunk is stamped, else O(1).
    pub(super) fn sweep(&mut self) {
        if self.counters.stamped > 0 {
            for place in 0..self.regions.len() {
                let first = self.first_of_region(place);
                self.sweep_region(first);
            }
        }
        self.lanes.set_swept();
    }

    /// First chunk of the region at this place in address order.
    fn first_of_region(&self, place: usize) -> Link {
        let id = self.regions.ids().nth(place);
        id.map_or(Link::NIL, |id| Link(self.regions.get(id).first()))
    }

    fn sweep_region(&mut self, first: Link) {
        let mut link = first;
        while link.is_some() {
            if self.table.at(link).is_free() {
                self.settle(link);
                self.join_all_behind(link);
            }
            link = self.table.at(link).next;
        }
    }

    /// Clears the stamp of a free chunk if its epoch is completed.
    fn settle(&mut self, link: Link) {
        let stamp = self.table.at(link).stamp();
        if stamp.is_some() && self.lanes.pending(stamp).is_none() {
            self.restamp(link, None);
        }
    }

    /// Enlarges a listed free chunk by all it may join behind it. If there is any, it enters its
    /// bin anew, at the front.
    fn join_all_behind(&mut self, link: Link) {
        loop {
            let next = self.table.at(link).next;
            if !self.table.at(next).is_free() {
                return;
            }
            self.settle(next);
            if !self.join_stamps(link, next) {
                return;
            }
            self.unlist(link);
            self.unlist(next);
            self.absorb_next(link, next);
            self.list(link);
        }
    }

    /// Joins free neighbours although their lane still uses them, in address order, until a chunk
    /// of `size` granules is made. The result carries the latest epoch of its parts; neighbours
    /// that two different lanes use stay apart.
    pub(super) fn force_merge(&mut self, size: u32) {
        for place in 0..self.regions.len() {
            let mut link = self.first_of_region(place);
            while link.is_some() {
                while self.force_join_behind(link) {
                    if self.table.at(link).size >= size {
                        return;
                    }
                }
                link = self.table.at(link).next;
            }
        }
    }

    /// Joins a free chunk with the free one behind it unless two lanes use them.
    fn force_join_behind(&mut self, link: Link) -> bool {
        let next = self.table.at(link).next;
        if !self.table.at(link).is_free() || !self.table.at(next).is_free() {
            return false;
        }
        let stamp = match (self.table.at(link).stamp(), self.table.at(next).stamp()) {
            (Some((lane, a)), Some((other, b))) if lane == other => {
                let later = self.lanes.ahead(lane, a) >= self.lanes.ahead(lane, b);
                Some((lane, if later { a } else { b }))
            }
            (Some(_), Some(_)) => return false,
            (one, other) => one.or(other),
        };
        self.restamp(link, stamp);
        self.restamp(next, None);
        self.unlist(link);
        self.unlist(next);
        self.absorb_next(link, next);
        self.list(link);
        true
    }
}
