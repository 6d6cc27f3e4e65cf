//! Giving memory back: from a block to the largest free chunk its neighbours allow.
//!
//! A freed chunk joins a free neighbour by enlarging the neighbour's record in place, so that a
//! neighbour that stays in its size class touches no bin. For the order of the lists (N3) this
//! means: what is joined keeps the place of the lower neighbour, else of the upper one, if it stays
//! in that one's class; otherwise, and always while stamps decide what joins, it enters its class
//! at the front. (They decide once two lanes were named, after fresh memory was left apart, and
//! under [`Coalesce::Settled`].) B2 says which neighbours may stay apart, and the joined chunk carries
//!
//! * no stamp if no lane uses either part any more;
//! * the later stamp if the same lane uses both;
//! * the stamp of the part still in use, as long as only one lane was ever named. With several, a
//!   part that is in use and one that is not stay apart: a small block of one lane must not make
//!   all the free memory beside it wait for that lane.

use super::Bfc;
use super::chunk::Link;
use super::config::Coalesce;
use super::index::AddressIndex;
use crate::block::Block;
use crate::error::{FreeError, FreeRejected};
use crate::lane::{Epoch, Lane, Stamp};
use crate::units::Addr;

/// A stamp as a free chunk stores it.
pub(super) type Stored = Option<(Lane, u32)>;

impl<I: AddressIndex> Bfc<'_, I> {
    /// Takes a block back that nothing uses any more. O(1) and one step for each free neighbour
    /// that stamps kept apart and no longer do: amortised over the frees that left them.
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

    /// Frees the block that starts at an address, for doors whose frees bring nothing else: finds
    /// it by the address index and gives its granted size. The promise is that of
    /// [`block_from_addr`](Self::block_from_addr). Costs one look-up more than
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if no block starts there, or there is no index; nothing has changed
    /// then.
    #[inline]
    pub fn free_addr(&mut self, addr: Addr) -> Result<u64, FreeError> {
        let link = self.link_at(addr).ok_or(FreeError::Unknown)?;
        let bytes = self.granule.bytes_of(self.table.at(link).size);
        self.give(link, None);
        Ok(bytes)
    }

    /// Takes a block back that work queued on `stamp.lane` may use until `stamp.epoch`. Cost as [`free`](Self::free).
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours, or the epoch lies more than
    /// [`Epoch::WINDOW`] ahead of what the lane has completed; nothing has changed then.
    #[inline]
    pub fn free_after(&mut self, block: Block, stamp: Stamp) -> Result<(), FreeRejected> {
        let Some(stored) = self.stored(stamp) else {
            let error = FreeError::EpochTooFar;
            return Err(FreeRejected { block, error });
        };
        let Some(link) = self.link_of(&block) else {
            let error = FreeError::Unknown;
            return Err(FreeRejected { block, error });
        };
        match stored {
            Some(stored) => {
                self.lanes.meet(stamp.lane);
                if self.stamps_decide() {
                    self.give(link, Some(stored));
                } else {
                    self.give_in_order(link, stored);
                }
            }
            None => self.give(link, None),
        }
        Ok(())
    }

    /// The stamp as a chunk stores it, none if its epoch is completed; `None` if that lies too far
    /// ahead.
    pub(super) fn stored(&self, stamp: Stamp) -> Option<Stored> {
        let frontier = self.lanes.frontier(stamp.lane);
        let ahead = stamp.epoch.number().saturating_sub(frontier);
        // The low half is enough within the window (E1).
        let stored = (ahead > 0).then_some((stamp.lane, stamp.epoch.number() as u32));
        (ahead <= Epoch::WINDOW).then_some(stored)
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
            self.lanes.count(None, stamp);
        }
        self.join_and_list(link);
    }

    /// The same while there is one lane only: whatever is free joins, and carries the latest stamp.
    #[inline]
    fn give_in_order(&mut self, link: Link, (lane, epoch): (Lane, u32)) {
        self.leave_index(link);
        let chunk = self.table.at(link);
        let (prev, next) = (chunk.prev, chunk.next);
        self.counters.live -= u64::from(chunk.size);
        self.counters.slack_bytes -= u64::from(chunk.slack_bytes());
        let (mut latest, mut absorbed) = (epoch, 0);
        let mut is_free = |link: Link| {
            let chunk = self.table.at(link);
            if chunk.is_free()
                && let Some((_, theirs)) = chunk.stamp()
            {
                absorbed += 1;
                // Within half of all numbers of each other (E1).
                if theirs.wrapping_sub(latest).cast_signed() > 0 {
                    latest = theirs;
                }
            }
            chunk.is_free()
        };
        let (prev_free, next_free) = (is_free(prev), is_free(next));
        self.lanes.count_joined(lane, absorbed);
        let stamp = Some((lane, latest));
        // A record that is joined to another one vanishes as it is.
        if prev_free {
            if next_free {
                self.unlist(next);
                self.absorb_next(link, next);
            }
            self.join_into_previous(prev, link);
            self.table.at_mut(prev).set_stamp(stamp);
        } else if next_free {
            self.join_into_next(link, next);
            self.table.at_mut(next).set_stamp(stamp);
        } else {
            self.table.at_mut(link).set_free();
            self.table.at_mut(link).set_stamp(stamp);
            self.list(link);
        }
    }

    /// Joins an unlisted free chunk with its free neighbours and lists the result.
    #[inline]
    pub(super) fn join_and_list(&mut self, link: Link) {
        if self.lanes.stamped() > 0 {
            return self.join_with_stamps(link);
        }
        self.join_all(link);
    }

    /// Joins with whatever is free, and no stamps to care for.
    #[inline]
    fn join_all(&mut self, link: Link) {
        let chunk = self.table.at(link);
        let (prev, next) = (chunk.prev, chunk.next);
        let next_free = self.table.at(next).is_free();
        if self.table.at(prev).is_free() {
            if next_free {
                self.unlist(next);
                self.absorb_next(link, next);
            }
            self.join_into_previous(prev, link);
        } else if next_free {
            self.join_into_next(link, next);
        } else {
            self.list(link);
        }
    }

    /// If there is one lane only, whatever is free joins as well: the survivor takes the stamp.
    fn join_with_stamps(&mut self, link: Link) {
        if self.stamps_decide() {
            return self.join_stamped(link);
        }
        let chunk = self.table.at(link);
        let (prev, next) = (chunk.prev, chunk.next);
        let (prev_free, next_free) = (self.table.at(prev).is_free(), self.table.at(next).is_free());
        match (prev_free, next_free) {
            (true, true) => {
                self.join_stamps(link, next);
                self.join_stamps(prev, link);
            }
            (true, false) => {
                self.join_stamps(prev, link);
            }
            (false, true) => {
                self.join_stamps(next, link);
            }
            (false, false) => {}
        }
        self.join_all(link);
    }

    /// Whether stamps may keep free neighbours apart: not while there is one lane only, the usual
    /// case of a program with one stream.
    fn stamps_decide(&self) -> bool {
        self.apart || self.config.coalesce == Coalesce::Settled || self.lanes.many()
    }

    /// The same where stamps decide. Joining may settle a stamp and so let the next neighbour
    /// join too; a stamp that a join brings comes from the side joined first, so one pass up and
    /// one down find all.
    fn join_stamped(&mut self, link: Link) {
        let mut link = link;
        loop {
            let next = self.table.at(link).next;
            if !self.table.at(next).is_free() || !self.join_stamps(link, next) {
                break;
            }
            self.unlist(next);
            self.absorb_next(link, next);
        }
        loop {
            let prev = self.table.at(link).prev;
            if !self.table.at(prev).is_free() || !self.join_stamps(prev, link) {
                break;
            }
            self.unlist(prev);
            self.absorb_next(prev, link);
            link = prev;
        }
        self.list(link);
    }

    /// Whether two free neighbours may be one; if so, `link` takes the stamp of the result and
    /// `other` loses its own.
    fn join_stamps(&mut self, link: Link, other: Link) -> bool {
        let (mine, theirs) = (self.table.at(link).stamp(), self.table.at(other).stamp());
        let mine_pending = self.lanes.pending(mine).is_some();
        let theirs_pending = self.lanes.pending(theirs).is_some();
        let result = match (mine, theirs) {
            _ if !mine_pending && !theirs_pending => None,
            _ if self.config.coalesce == Coalesce::Settled => return false,
            // What nobody uses is everybody's and stays so, if there is anybody else.
            _ if mine_pending != theirs_pending && self.lanes.many() => return false,
            _ if !theirs_pending => mine,
            _ if !mine_pending => theirs,
            (Some(a), Some(b)) if a.0 == b.0 => Some(self.later(a, b)),
            _ => return false,
        };
        self.restamp(link, result);
        self.restamp(other, None);
        true
    }

    /// Of two stored stamps of one lane the later.
    fn later(&self, a: (Lane, u32), b: (Lane, u32)) -> (Lane, u32) {
        if self.lanes.ahead(a.0, a.1) >= self.lanes.ahead(b.0, b.1) {
            a
        } else {
            b
        }
    }

    /// Replaces the stamp of a free chunk and counts it.
    pub(super) fn restamp(&mut self, link: Link, stamp: Stored) {
        let chunk = self.table.at_mut(link);
        let before = chunk.stamp();
        if before != stamp {
            chunk.set_stamp(stamp);
            self.lanes.count(before, stamp);
        }
    }

    /// An unlisted free chunk becomes the front of the listed one behind it.
    fn join_into_next(&mut self, link: Link, next: Link) {
        let chunk = *self.table.at(link);
        let result = self.table.at_mut(next);
        let old_size = result.size;
        result.start = chunk.start;
        result.size += chunk.size;
        result.prev = chunk.prev;
        self.link_after(chunk.prev, next, &chunk);
        self.table.remove(link);
        if self.tail != next {
            self.bins.resized(&mut self.table, next, old_size);
        }
    }

    /// An unlisted free chunk becomes the end of the listed one in front of it.
    fn join_into_previous(&mut self, prev: Link, link: Link) {
        let old_size = self.table.at(prev).size;
        self.absorb_next(prev, link);
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
        if self.lanes.stamped() > 0 {
            for place in 0..self.regions.len() {
                let first = self.first_of_region(place);
                self.sweep_region(first);
            }
        }
        self.lanes.set_swept();
        self.apart = false;
    }

    /// First chunk of the region at this place in address order.
    pub(super) fn first_of_region(&self, place: usize) -> Link {
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
    pub(super) fn settle(&mut self, link: Link) {
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

    /// Joins free neighbours although their lane still uses them, those freed first before others,
    /// until a chunk of `size` granules is made. The result carries the latest epoch of its parts;
    /// neighbours that two different lanes use stay apart. O(chunks x stamped chunks): there is no
    /// queue, and this is the last resort of one policy.
    pub(super) fn force_merge(&mut self, size: u32) {
        let mut last = None;
        while let Some((turn, link)) = self.oldest_stamped_after(last) {
            last = Some(turn);
            self.force_join_behind(link);
            let prev = self.table.at(link).prev;
            let joined = if self.force_join_behind(prev) {
                prev
            } else {
                link
            };
            if self.table.at(joined).size >= size {
                return;
            }
        }
    }

    /// The stamped free chunk whose turn, by how soon its epoch completes and then by address, is
    /// the next one.
    fn oldest_stamped_after(&self, last: Option<(i64, u64)>) -> Option<((i64, u64), Link)> {
        let mut oldest = None;
        for id in self.regions.ids() {
            let mut link = Link(self.regions.get(id).first());
            while link.is_some() {
                let chunk = self.table.at(link);
                if let (true, Some((lane, epoch))) = (chunk.is_free(), chunk.stamp()) {
                    let turn = (self.lanes.ahead(lane, epoch), self.addr_of(link));
                    let found = last.is_none_or(|last| turn > last)
                        && oldest.is_none_or(|(least, _)| turn < least);
                    oldest = if found { Some((turn, link)) } else { oldest };
                }
                link = chunk.next;
            }
        }
        oldest
    }

    /// Joins a free chunk with the free one behind it unless two lanes use them.
    pub(super) fn force_join_behind(&mut self, link: Link) -> bool {
        let next = self.table.at(link).next;
        if !self.table.at(link).is_free() || !self.table.at(next).is_free() {
            return false;
        }
        let stamp = match (self.table.at(link).stamp(), self.table.at(next).stamp()) {
            (Some(a), Some(b)) if a.0 == b.0 => Some(self.later(a, b)),
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
