//! Taking memory: from a request to a used chunk.
//!
//! When a chunk is cut, the block at its front gets a new record and the rest keeps the old one,
//! so that a rest that stays in its size class touches no bin at all.

use super::Bfc;
use super::chunk::{Chunk, Link};
use super::config::Growth;
use super::free::Stored;
use super::memory::Memory;
use super::search::{Found, Need};
use crate::block::{Block, ChunkHandle, Grant, Request};
use crate::error::{AllocError, Cause};
use crate::units::Addr;

impl<M: Memory> Bfc<'_, M> {
    /// Gives memory from the regions held, or says why not; never asks for more.
    ///
    /// For growth see [`advance`](Self::advance). O(1) while no other stream has chunks with a point and the
    /// alignment is at most the granule; otherwise at most one look at four chunks of each size class,
    /// and before failing one at all free chunks.
    ///
    /// # Errors
    /// [`AllocError`]; no block has been given then, but free chunks may have been joined. The
    /// cause of an [`OutOfMemory`](crate::OutOfMemory) is [`Cause::Held`] or [`Cause::Fixed`]
    /// unless the limit or the free memory itself is the matter.
    #[inline]
    pub fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        let need = self.need(request)?;
        match self.search_now(need, request) {
            Some(found) => self.take(found, need, request),
            None => self.alloc_slowly(request),
        }
    }

    /// Gives the block that FIT1 and FIT2 find, or `None` if they find none. O(1), as [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`AllocError`] for requests that no memory would help, and for a full table.
    #[inline]
    pub fn alloc_now(&mut self, request: &Request) -> Result<Option<Grant>, AllocError> {
        let need = self.need(request)?;
        match self.search_now(need, request) {
            Some(found) => self.take(found, need, request).map(Some),
            None => Ok(None),
        }
    }

    /// Gives the block that FIT1 and FIT2 find, if there is one that needs no wait: as
    /// [`alloc`](Self::alloc), without the reasons and without looking any further. O(1).
    // As `alloc_at_near`.
    #[inline(always)]
    pub fn alloc_at_once(&mut self, request: &Request) -> Option<Block> {
        let need = self.need(request).ok()?;
        let found = self.search_now(need, request)?;
        if found.wait.is_some() {
            return None;
        }
        let split = self.table.at(found.link).size > found.padding + need.size;
        if !self.has_records(found.padding, split) {
            return None;
        }
        let used = self.cut(found.link, found.padding, split.then_some(need.size))?;
        Some(self.mark_used(used, request.bytes))
    }

    /// FIT1 and FIT2, on whatever is joined by now, if memory is known to be behind what they find.
    #[inline]
    pub(super) fn search_now(&mut self, need: Need, request: &Request) -> Option<Found> {
        self.streams.meet(request.stream);
        let found = self.search(need, request)?;
        self.is_backed(&found).then_some(found)
    }

    /// Whether memory is known to be behind all of a chunk.
    #[inline]
    pub(super) fn is_backed(&self, found: &Found) -> bool {
        !M::HOLLOW || !self.table.at(found.link).is_hollow()
    }

    /// The last resorts before an error: join what streams have left, look at everything.
    #[cold]
    fn alloc_slowly(&mut self, request: &Request) -> Result<Grant, AllocError> {
        let need = self.need(request)?;
        let mut found = self.search_fully(need, request, u32::MAX);
        if found.is_some_and(|found| !self.is_backed(&found)) {
            found = self.search_backed(need, request);
        }
        match found {
            Some(found) => self.take(found, need, request),
            None => {
                let growth = match self.config.growth {
                    Growth::Fixed => Cause::Fixed,
                    Growth::Range { .. } => Cause::Held,
                };
                Err(self.out_of_memory(need, request, growth))
            }
        }
    }

    /// FIT1 and FIT2; again after clearing and joining what streams have left, if any have; then FIT3 and FIT4.
    /// Each of these but the first search looks at so many chunks at most.
    pub(super) fn search_fully(
        &mut self,
        need: Need,
        request: &Request,
        looks: u32,
    ) -> Option<Found> {
        if let Some(found) = self.search(need, request) {
            return Some(found);
        }
        if self.streams.with_point() > 0 && self.streams.moved() {
            // Of regions the order of the lists is promised word by word.
            if M::HOLLOW {
                self.sweep_some(looks);
            } else {
                self.sweep();
            }
            if let Some(found) = self.search(need, request) {
                return Some(found);
            }
        }
        self.search_everything(need, request, looks)
            .or_else(|| self.join_for(need, request, looks, false))
    }

    /// Whether the block would pass a limit that was lowered below what is held.
    #[inline]
    pub(super) fn exceeds_limit(&self, need: Need) -> bool {
        self.shrinking && {
            let live = self.counters.live + u64::from(need.size);
            live * self.granule.bytes() > self.limit_bytes
        }
    }

    /// What is held or the limit has changed.
    pub(super) fn note_limit(&mut self) {
        self.shrinking = self.reserved_bytes() > self.limit_bytes;
    }

    pub(super) fn table_full(&self) -> AllocError {
        AllocError::TableFull {
            records: self.table.capacity(),
        }
    }

    /// The request in granules, after its stream is known to be there.
    pub(super) fn meet(&mut self, request: &Request) -> Result<Need, AllocError> {
        self.streams.meet(request.stream);
        self.need(request)
    }

    /// The request in granules.
    #[inline]
    pub(super) fn need(&self, request: &Request) -> Result<Need, AllocError> {
        if request.bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let too_large = AllocError::TooLarge {
            requested_bytes: request.bytes,
        };
        let size = self.granule.count_up(request.bytes).ok_or(too_large)?;
        let over = request
            .align
            .log2()
            .saturating_sub(self.granule.align().log2());
        // Size and padding together must be countable.
        let align = 1u32.checked_shl(over).ok_or(too_large)?;
        size.checked_add(align - 1).ok_or(too_large)?;
        Ok(Need { size, align })
    }

    /// Turns the chunk found into a block.
    #[inline]
    pub(super) fn take(
        &mut self,
        found: Found,
        need: Need,
        request: &Request,
    ) -> Result<Grant, AllocError> {
        let Found {
            link,
            padding,
            wait,
        } = found;
        let split = self.table.at(link).size > padding + need.size;
        if !self.has_records(padding, split) {
            return Err(self.table_full());
        }
        let used = self.cut(link, padding, split.then_some(need.size));
        let used = used.ok_or_else(|| self.table_full())?;
        Ok(Grant {
            block: self.mark_used(used, request.bytes),
            wait,
        })
    }

    /// Whether there are records enough to cut a block out of a free chunk, but for the one that
    /// [`cut_front`](Self::cut_front) takes first of all.
    #[inline]
    fn has_records(&self, padding: u32, split: bool) -> bool {
        padding == 0 || self.table.available() > u32::from(split)
    }

    /// Cuts a block out of a free chunk, behind `padding` granules that stay free: of `size`
    /// granules, or of all that is left. `None`, and nothing is changed, if there is no record;
    /// with padding the caller has counted them.
    #[inline]
    pub(super) fn cut(&mut self, link: Link, padding: u32, size: Option<u32>) -> Option<Link> {
        match size {
            _ if padding > 0 => self.cut_padding(link, padding, size),
            Some(size) => self.cut_front(link, size),
            None => {
                self.take_whole(link);
                Some(link)
            }
        }
    }

    /// Takes a free chunk out of its bin or the wilderness slot.
    #[inline]
    pub(super) fn unlist(&mut self, link: Link) {
        if self.wilderness == link {
            self.wilderness = Link::NIL;
        } else {
            let size = self.table.at(link).size;
            self.bins.remove(&mut self.table, link, size);
        }
    }

    /// Puts a free chunk in its bin, or in the wilderness slot if it ends the newest region.
    #[inline]
    pub(super) fn list(&mut self, link: Link) {
        if self.ends_newest_region(link) {
            self.wilderness = link;
        } else {
            self.bins.insert(&mut self.table, link);
        }
    }

    #[inline]
    pub(super) fn ends_newest_region(&self, link: Link) -> bool {
        let chunk = self.table.at(link);
        chunk.next.is_nil() && self.newest_region == Some(chunk.region())
    }

    /// A free chunk becomes a block as it is.
    fn take_whole(&mut self, link: Link) {
        let point = self.table.at(link).point();
        if point.is_some() {
            self.streams.count(point, None);
        }
        self.unlist(link);
    }

    /// Cuts `size` granules off the front of a free chunk; the rest keeps record and place.
    #[inline]
    fn cut_front(&mut self, link: Link, size: u32) -> Option<Link> {
        let old = *self.table.at(link);
        let mut front = Chunk::new(old.start, size, old.region());
        front.prev = old.prev;
        front.next = link;
        let used = self.table.insert(front)?;
        self.link_after(old.prev, used, &front);
        let rest = self.table.at_mut(link);
        rest.start += size;
        rest.size -= size;
        rest.prev = used;
        if self.wilderness != link {
            self.bins.resized(&mut self.table, link, old.size);
        }
        Some(used)
    }

    /// Leaves `padding` granules of a free chunk in front, cuts a block of `size` granules behind
    /// them (all there is for `None`), and lists what is left behind it.
    fn cut_padding(&mut self, link: Link, padding: u32, size: Option<u32>) -> Option<Link> {
        let old = *self.table.at(link);
        self.unlist(link);
        let size = size.unwrap_or(old.size - padding);
        let mut middle = Chunk::new(old.start + padding, size, old.region());
        middle.prev = link;
        middle.next = old.next;
        let used = self.table.insert(middle)?;
        let front = self.table.at_mut(link);
        front.size = padding;
        front.next = used;
        self.link_before(old.next, used, &middle);
        self.list(link);
        let rest = old.size - padding - size;
        if rest > 0 {
            self.insert_rest(used, rest, &old)?;
        }
        Some(used)
    }

    /// Makes the last `rest` granules of what `old` was a free chunk behind `used`.
    fn insert_rest(&mut self, used: Link, rest: u32, old: &Chunk) -> Option<()> {
        let link = self.split_off(used, rest, old, old.point())?;
        if M::HOLLOW {
            self.table.at_mut(link).join_hollow(old);
        }
        self.list(link);
        Some(())
    }

    /// Makes the last `rest` granules of what `old` was a free chunk behind `used`, with this point and
    /// in no list yet. The size of `used` is the caller's affair.
    pub(super) fn split_off(
        &mut self,
        used: Link,
        rest: u32,
        old: &Chunk,
        point: Stored,
    ) -> Option<Link> {
        let mut chunk = Chunk::new(old.end() - rest, rest, old.region());
        chunk.set_free();
        chunk.set_point(point);
        chunk.prev = used;
        chunk.next = old.next;
        let link = self.table.insert(chunk)?;
        self.streams.count(None, point);
        self.table.at_mut(used).next = link;
        self.link_before(old.next, link, &chunk);
        Some(link)
    }

    /// Enters `new` as what follows `prev`, or as the first of its region.
    #[inline]
    pub(super) fn link_after(&mut self, prev: Link, new: Link, chunk: &Chunk) {
        if prev.is_some() {
            self.table.at_mut(prev).next = new;
        } else {
            self.regions.get_mut(chunk.region()).set_first(new.0);
        }
    }

    /// Enters `new` as what precedes `next`, or as the last of its region.
    #[inline]
    pub(super) fn link_before(&mut self, next: Link, new: Link, chunk: &Chunk) {
        if next.is_some() {
            self.table.at_mut(next).prev = new;
        } else {
            self.regions.get_mut(chunk.region()).set_last(new.0);
        }
    }

    /// Makes an unlisted chunk used, counts it, and gives the block.
    #[inline]
    pub(super) fn mark_used(&mut self, link: Link, requested_bytes: u64) -> Block {
        let size = self.table.at(link).size;
        let bytes = self.granule.bytes_of(size);
        let slack_bytes = bytes - requested_bytes;
        let counters = &mut self.counters;
        counters.last_id += 1;
        counters.live += u64::from(size);
        counters.peak_live = counters.peak_live.max(counters.live);
        counters.largest = counters.largest.max(size);
        counters.slack_bytes += slack_bytes;
        let id = counters.last_id;
        let addr = self.addr_of(link);
        // Less than a granule, and that fits 32 bits (units.rs).
        self.table.at_mut(link).set_used(slack_bytes as u32, id);
        Block::new(
            Addr::new(addr),
            bytes,
            ChunkHandle::from_link(link.0),
            self.table.owner(),
        )
    }
}
