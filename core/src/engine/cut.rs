//! Cutting a block out of a free chunk.
//!
//! When a chunk is cut, the block at its front gets a new record, and the remainder keeps the old record. So if the
//! remainder stays in its size class, no bin is touched.

use super::Chunks;
use super::chunk::{Chunk, Link};
use super::free::Stored;
use super::search::{Candidate, Need};
use crate::block::{Block, ChunkHandle, Grant, Request};
use crate::error::AllocError;
use crate::units::Addr;

impl Chunks<'_> {
    /// Returns the error of a table without a free record.
    pub(crate) fn table_full(&self) -> AllocError {
        AllocError::TableFull {
            records: self.table.capacity(),
        }
    }

    /// Converts the chunk found to a block.
    // Each pool has one fast path, into which this function and the search are inlined. If they were not, both results
    // would be passed through memory.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        found: Candidate,
        need: Need,
        request: &Request,
    ) -> Result<Grant, AllocError> {
        let Candidate {
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

    /// Returns whether there are enough records to cut a block out of a free chunk, not counting the record that
    /// [`cut_front`](Self::cut_front) takes first.
    #[inline]
    fn has_records(&self, padding: u32, split: bool) -> bool {
        padding == 0 || self.table.available() > u32::from(split)
    }

    /// Cuts a block out of a free chunk. The first `padding` granules stay free. The block has `size` granules, or all
    /// the rest of the chunk. Returns `None`, and changes nothing, if there is no record. With padding, the caller must
    /// have checked that there are enough records.
    #[inline(always)]
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

    /// Removes a free chunk from its bin or the wilderness slot.
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

    /// Takes a whole free chunk for a block.
    #[inline(always)]
    fn take_whole(&mut self, link: Link) {
        let point = self.table.at(link).point();
        if point.is_some() {
            self.streams.count(point, None);
        }
        self.unlist(link);
    }

    /// Cuts `size` granules off the front of a free chunk. The remainder keeps its record and its place in the list.
    #[inline(always)]
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

    /// Leaves the first `padding` granules of a free chunk free, cuts a block after them, and lists the remainder after
    /// the block. The block has `size` granules, or all the rest if `size` is `None`.
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

    /// Makes the last `rest` granules of `old` a free, listed chunk after `used`.
    fn insert_rest(&mut self, used: Link, rest: u32, old: &Chunk) -> Option<()> {
        let link = self.split_off(used, rest, old, old.point())?;
        self.table.at_mut(link).join_hollow(old);
        self.list(link);
        Some(())
    }

    /// Makes the last `rest` granules of `old` a free chunk after `used`, with this point, and in no list. The caller
    /// adjusts the size of `used`.
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

    /// Links `new` as the successor of `prev`, or as the first chunk of its region.
    #[inline]
    pub(super) fn link_after(&mut self, prev: Link, new: Link, chunk: &Chunk) {
        if prev.is_some() {
            self.table.at_mut(prev).next = new;
        } else {
            self.regions.get_mut(chunk.region()).first = new;
        }
    }

    /// Links `new` as the predecessor of `next`, or as the last chunk of its region.
    #[inline]
    pub(super) fn link_before(&mut self, next: Link, new: Link, chunk: &Chunk) {
        if next.is_some() {
            self.table.at_mut(next).prev = new;
        } else {
            self.regions.get_mut(chunk.region()).last = new;
        }
    }

    /// Marks an unlisted chunk as used, counts it, and returns its block.
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
        // The slack is less than a granule, so it fits 32 bits (units.rs).
        self.table.at_mut(link).set_used(slack_bytes as u32, id);
        Block::new(
            Addr::new(addr),
            bytes,
            ChunkHandle::from_link(link.0),
            self.table.owner(),
        )
    }
}
