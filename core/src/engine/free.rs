//! Freeing: turns a block into the largest free chunk that its neighbours allow.
//!
//! A freed chunk joins a free neighbour by enlarging the neighbour's record in place. So if the neighbour stays in its
//! size class, no bin is touched. For the order of the lists (BIN3) this means: the joined chunk keeps the place of the
//! lower neighbour, or of the upper neighbour if no lower one joins, as long as it stays in that neighbour's class.
//! Otherwise, and always while points decide which chunks join, it enters its class at the front. (Points decide once
//! two streams were named, or after fresh memory was left apart.) BFC2 states which neighbours may stay apart. The
//! joined chunk carries
//!
//! * no point if no stream still uses either part;
//! * the later point if the same stream uses both;
//! * the point of the part still in use, as long as only one stream was ever named. With several streams, a part in use
//!   and a part out of use stay apart. Otherwise a small block of one stream could make all the free memory next to it
//!   wait for that stream.

use super::Chunks;
use super::chunk::Link;
use crate::block::Block;
use crate::error::{FreeError, Rejected};
use crate::stream::{EventNumber, StreamId, StreamPoint};

/// A point as a free chunk stores it.
pub(crate) type Stored = Option<(StreamId, u32)>;

impl Chunks<'_> {
    /// Frees a block that no work uses any longer. O(1), plus one step for each free neighbour that its point no longer
    /// keeps apart. These steps are amortised over the frees that left the neighbours.
    ///
    /// # Errors
    /// Returns the block if it does not belong to this pool; nothing has changed then.
    #[inline]
    pub(crate) fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        match self.link_of(&block) {
            Some(link) => {
                self.give(link, None);
                Ok(())
            }
            None => Err(Rejected {
                value: block,
                error: FreeError::Unknown,
            }),
        }
    }

    /// Frees a block that work queued on `point.stream` may use until `point.event`. The cost is that of
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// Returns the block if it does not belong to this pool, or if the event lies more than [`EventNumber::WINDOW`]
    /// ahead of the stream's last completed event; nothing has changed then.
    #[inline(always)]
    pub(crate) fn free_after(
        &mut self,
        block: Block,
        point: StreamPoint,
    ) -> Result<(), Rejected<FreeError>> {
        let Some(link) = self.link_of(&block) else {
            return Err(Rejected::new(block, FreeError::Unknown));
        };
        match self.stored(point) {
            Some(Some(stored)) => {
                self.streams.note(point.stream);
                if self.points_decide() {
                    self.give(link, Some(stored));
                } else {
                    self.give_in_order(link, stored);
                }
            }
            Some(None) => self.give(link, None),
            None => {
                return Err(Rejected::new(block, FreeError::EventTooFar));
            }
        }
        Ok(())
    }

    /// Returns the point of a free chunk, if queued work may still use the chunk.
    pub(crate) fn pending(&self, link: Link) -> Option<StreamPoint> {
        self.streams.pending(self.table.at(link).point())
    }

    /// Returns how many times a point, or a chunk next to another, was examined.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> &core::cell::Cell<usize> {
        &self.streams.looks
    }

    /// Returns whether all work up to the point is done.
    #[inline]
    pub(crate) fn is_completed(&self, point: StreamPoint) -> bool {
        point.event.number() <= self.streams.completed(point.stream)
    }

    /// Returns the point as a chunk stores it, which is no point if the event is completed. Returns `None` if the event
    /// lies too far ahead.
    #[inline]
    pub(crate) fn stored(&self, point: StreamPoint) -> Option<Stored> {
        let (number, completed) = (point.event.number(), self.streams.completed(point.stream));
        if number <= completed {
            return Some(None);
        }
        // The low half suffices within the window (EVENT1).
        (number - completed <= EventNumber::WINDOW).then_some(Some((point.stream, number as u32)))
    }

    // Inlined, like `take`.
    #[inline(always)]
    fn give(&mut self, link: Link, point: Stored) {
        let chunk = self.table.at_mut(link);
        let slack_bytes = chunk.slack_bytes();
        let size = chunk.size;
        chunk.set_free();
        self.counters.live -= u64::from(size);
        self.counters.slack_bytes -= u64::from(slack_bytes);
        if point.is_some() {
            self.table.at_mut(link).set_point(point);
            self.streams.count(None, point);
        }
        self.join_and_list(link);
    }

    /// Frees a chunk while there is only one stream. All free neighbours join, and the result carries the latest point.
    #[inline]
    fn give_in_order(&mut self, link: Link, (stream, event): (StreamId, u32)) {
        let chunk = self.table.at(link);
        let (prev, next) = (chunk.prev, chunk.next);
        self.counters.live -= u64::from(chunk.size);
        self.counters.slack_bytes -= u64::from(chunk.slack_bytes());
        // There is one more chunk with a point, and one fewer for each neighbour with a point that joins.
        let (mut latest, mut more) = (event, 1);
        let mut is_free = |link: Link| {
            let chunk = self.table.at(link);
            if chunk.is_free()
                && let Some((_, theirs)) = chunk.point()
            {
                more -= 1;
                // The difference of the events is less than half of the range of numbers (EVENT1).
                if theirs.wrapping_sub(latest).cast_signed() > 0 {
                    latest = theirs;
                }
            }
            chunk.is_free()
        };
        let (prev_free, next_free) = (is_free(prev), is_free(next));
        self.streams.count_more(stream, more);
        let point = Some((stream, latest));
        // A record that is joined to another becomes vacant without being written.
        if prev_free {
            if next_free {
                self.unlist(next);
                self.absorb_next(link, next);
            }
            self.join_into_previous(prev, link);
            self.table.at_mut(prev).set_point(point);
        } else if next_free {
            self.join_into_next(link, next);
            self.table.at_mut(next).set_point(point);
        } else {
            self.table.at_mut(link).set_free();
            self.table.at_mut(link).set_point(point);
            self.list(link);
        }
    }

    /// Joins an unlisted free chunk with its free neighbours and lists the result.
    #[inline]
    pub(super) fn join_and_list(&mut self, link: Link) {
        if self.streams.with_point() > 0 {
            return self.join_with_points(link);
        }
        self.join_all(link);
    }

    /// Joins all free neighbours. No chunk has a point.
    #[inline(always)]
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

    /// Joins while chunks have points. If there is only one stream, all free neighbours join, and the joined chunk
    /// takes the point.
    fn join_with_points(&mut self, link: Link) {
        if self.points_decide() {
            return self.join_with_point(link);
        }
        let chunk = self.table.at(link);
        let (prev, next) = (chunk.prev, chunk.next);
        let (prev_free, next_free) = (self.table.at(prev).is_free(), self.table.at(next).is_free());
        match (prev_free, next_free) {
            (true, true) => {
                self.join_points(link, next);
                self.join_points(prev, link);
            }
            (true, false) => {
                self.join_points(prev, link);
            }
            (false, true) => {
                self.join_points(next, link);
            }
            (false, false) => {}
        }
        self.join_all(link);
    }

    /// Returns whether points may keep free neighbours apart. Usually they do not, because there is only one stream.
    fn points_decide(&self) -> bool {
        self.apart || self.streams.many()
    }

    /// Joins while points decide. A join may clear a point, and the next neighbour can then join, too. If a join brings
    /// a point, the point comes from the side that was joined first, so one pass up and one pass down suffice.
    fn join_with_point(&mut self, link: Link) {
        let mut link = link;
        loop {
            let next = self.table.at(link).next;
            if !self.table.at(next).is_free() || !self.join_points(link, next) {
                break;
            }
            self.unlist(next);
            self.absorb_next(link, next);
        }
        loop {
            let prev = self.table.at(link).prev;
            if !self.table.at(prev).is_free() || !self.join_points(prev, link) {
                break;
            }
            self.unlist(prev);
            self.absorb_next(prev, link);
            link = prev;
        }
        self.list(link);
    }

    /// Returns whether two free neighbours may join. If so, `link` gets the point of the result, and `other` loses its
    /// point.
    pub(super) fn join_points(&mut self, link: Link, other: Link) -> bool {
        let (mine, theirs) = (self.table.at(link).point(), self.table.at(other).point());
        let mine_pending = self.streams.pending(mine).is_some();
        let theirs_pending = self.streams.pending(theirs).is_some();
        let result = match (mine, theirs) {
            _ if !mine_pending && !theirs_pending => None,
            // Memory that no stream uses can serve every stream, so it stays apart if there is more than one stream.
            _ if mine_pending != theirs_pending && self.streams.many() => return false,
            _ if !theirs_pending => mine,
            _ if !mine_pending => theirs,
            (Some(a), Some(b)) if a.0 == b.0 => Some(self.later(a, b)),
            _ => return false,
        };
        self.set_stored(link, result);
        self.set_stored(other, None);
        true
    }

    /// Returns the later of two stored points of one stream.
    pub(crate) fn later(&self, a: (StreamId, u32), b: (StreamId, u32)) -> (StreamId, u32) {
        if self.streams.ahead(a.0, a.1) >= self.streams.ahead(b.0, b.1) {
            a
        } else {
            b
        }
    }

    /// Replaces the point of a free chunk, and updates the counts of points.
    #[inline]
    pub(super) fn set_stored(&mut self, link: Link, point: Stored) {
        let chunk = self.table.at_mut(link);
        let before = chunk.point();
        if before != point {
            chunk.set_point(point);
            self.streams.count(before, point);
        }
    }

    /// Joins an unlisted free chunk to the front of the listed chunk after it.
    #[inline]
    fn join_into_next(&mut self, link: Link, next: Link) {
        let chunk = *self.table.at(link);
        let result = self.table.at_mut(next);
        let old_size = result.size;
        result.start = chunk.start;
        result.size += chunk.size;
        result.prev = chunk.prev;
        result.join_hollow(&chunk);
        self.link_after(chunk.prev, next, &chunk);
        self.table.remove(link);
        if self.wilderness != next {
            self.bins.resized(&mut self.table, next, old_size);
        }
    }

    /// Joins an unlisted free chunk to the end of the listed chunk before it.
    #[inline]
    fn join_into_previous(&mut self, prev: Link, link: Link) {
        let old_size = self.table.at(prev).size;
        self.absorb_next(prev, link);
        if self.ends_newest_region(prev) {
            self.bins.remove(&mut self.table, prev, old_size);
            self.wilderness = prev;
        } else {
            self.bins.resized(&mut self.table, prev, old_size);
        }
    }

    /// Enlarges a chunk by the chunk after it, whose record becomes vacant. Lists are not touched.
    #[inline]
    pub(super) fn absorb_next(&mut self, link: Link, next: Link) {
        let behind = *self.table.at(next);
        let chunk = self.table.at_mut(link);
        chunk.size += behind.size;
        chunk.next = behind.next;
        chunk.join_hollow(&behind);
        self.link_before(behind.next, link, &behind);
        self.table.remove(next);
    }

    /// Clears the points of completed events, and joins the chunks that these points kept apart, region by region in
    /// address order. O(chunks) if any free chunk carries a point, otherwise O(1).
    pub(crate) fn sweep(&mut self) {
        if self.streams.with_point() > 0 {
            for place in 0..self.regions.len() {
                let first = self.first_of_region(place);
                self.sweep_region(first);
            }
        }
        self.streams.set_swept();
        self.apart = false;
    }

    /// Clears the points of completed events, and joins the chunks that these points kept apart, in the order of the
    /// table. Examines at most `looks` records, starting where the last call ended.
    pub(crate) fn sweep_some(&mut self, looks: u32) {
        let records = self.table.used();
        if self.table.in_use() <= looks && looks < records {
            // Most of the records are vacant.
            return self.sweep();
        }
        for _ in 0..looks.min(records) {
            let link = self.streams.next_to_sweep(records).into();
            let chunk = self.table.at(link);
            // The records of used chunks have no point.
            if chunk.point().is_none() || self.streams.pending(chunk.point()).is_some() {
                continue;
            }
            if chunk.is_free() {
                self.set_stored(link, None);
                self.unlist(link);
                self.join_with_point(link);
            } else if chunk.is_reserved() {
                self.unlist_reserved(link);
                self.set_reserved(link, None);
            }
        }
        if records <= looks {
            self.streams.set_swept();
        }
    }

    /// Returns the first chunk of the region with this index in address order.
    pub(crate) fn first_of_region(&self, place: usize) -> Link {
        let id = self.regions.ids().nth(place);
        id.map_or(Link::NIL, |id| self.regions.get(id).first)
    }

    fn sweep_region(&mut self, first: Link) {
        let mut link = first;
        while link.is_some() {
            let chunk = self.table.at(link);
            if chunk.is_free() || chunk.is_reserved() {
                self.clear_point(link);
                self.join_all_behind(link);
            }
            link = self.table.at(link).next;
        }
    }

    /// Clears the point of a free chunk if its event is completed.
    pub(super) fn clear_point(&mut self, link: Link) {
        let point = self.table.at(link).point();
        if point.is_some() && self.streams.pending(point).is_none() {
            self.set_stored(link, None);
        }
    }

    /// Enlarges a listed chunk by all chunks after it that may join. If a free chunk grows, it is moved to the front of
    /// its bin.
    fn join_all_behind(&mut self, link: Link) {
        loop {
            let next = self.table.at(link).next;
            if !self.are_alike(link, next) {
                return;
            }
            self.clear_point(next);
            if !self.join_points(link, next) {
                return;
            }
            self.absorb_listed(link, next);
        }
    }

    /// Returns whether both chunks are free, or both are reserved and of the same reservation; `other` is behind `link`.
    pub(super) fn are_alike(&self, link: Link, other: Link) -> bool {
        let (one, other) = (self.table.at(link), self.table.at(other));
        one.is_free() && other.is_free() || one.is_reserved() && other.continues_reservation()
    }

    /// Enlarges a listed chunk by the listed one behind it, which is like it.
    fn absorb_listed(&mut self, link: Link, next: Link) {
        if self.table.at(link).is_reserved() {
            self.unlist_reserved(next);
            return self.absorb_next(link, next);
        }
        self.unlist(link);
        self.unlist(next);
        self.absorb_next(link, next);
        self.list(link);
    }

    /// Joins the next `count` chunks to a free or reserved chunk; all are like it, and at most one stream uses them.
    #[inline]
    pub(super) fn join_next(&mut self, link: Link, count: u32) {
        for _ in 0..count {
            self.clear_point(link);
            self.clear_point(self.table.at(link).next);
            self.force_join_behind(link);
        }
    }

    /// Joins a free or reserved chunk with the one after it if both are alike, unless two streams use them. Returns
    /// whether they were joined.
    pub(crate) fn force_join_behind(&mut self, link: Link) -> bool {
        let next = self.table.at(link).next;
        if !self.are_alike(link, next) {
            return false;
        }
        let point = match (self.table.at(link).point(), self.table.at(next).point()) {
            (Some(a), Some(b)) if a.0 == b.0 => Some(self.later(a, b)),
            (Some(_), Some(_)) => return false,
            (one, other) => one.or(other),
        };
        self.set_stored(link, point);
        self.set_stored(next, None);
        self.absorb_listed(link, next);
        true
    }
}
