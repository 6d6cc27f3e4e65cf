//! The *target* of a plan that puts memory behind addresses: adjacent *filling* chunks, which are in no list.

use core::ops::Range;

use super::Chunks;
use super::chunk::{Link, State};
use super::free::Stored;
use crate::block::Block;

impl Chunks<'_> {
    /// Cuts the granules `target` out of a free chunk, as up to three filling chunks: `block`, which lies inside, and
    /// the rest on both sides. Returns the first chunk and the chunk of the block. Returns `None`, and changes nothing,
    /// if there are too few records.
    pub(crate) fn cut_target(
        &mut self,
        link: Link,
        target: Range<u32>,
        block: Range<u32>,
    ) -> Option<(Link, Link)> {
        let chunk = *self.table.at(link);
        // Up to two cuts take the target out of the chunk, and up to two divide it into three.
        let cuts = u32::from(chunk.start < target.start) + u32::from(target.end < chunk.end());
        let cuts = cuts + u32::from(target.start < block.start) + u32::from(block.end < target.end);
        if self.table.available() < cuts {
            return None;
        }
        let size = (target.end < chunk.end()).then_some(target.end - target.start);
        let first = self.cut(link, target.start - chunk.start, size)?;
        self.set_filling(first);
        let mut found = first;
        if target.start < block.start {
            found = self.split_filling(first, target.end - block.start)?;
        }
        if block.end < target.end {
            self.split_filling(found, target.end - block.end)?;
        }
        Some((first, found))
    }

    /// Makes the last `rest` granules of a filling chunk a new filling chunk.
    fn split_filling(&mut self, link: Link, rest: u32) -> Option<Link> {
        let old = *self.table.at(link);
        let behind = self.split_off(link, rest, &old, None)?;
        self.table.at_mut(link).size -= rest;
        self.set_filling(behind);
        Some(behind)
    }

    pub(super) fn set_filling(&mut self, link: Link) {
        let chunk = self.table.at_mut(link);
        chunk.set_point(None);
        chunk.set_hollow(true);
        chunk.set_state(State::Filling);
    }

    /// Frees the chunks of a target, from `first` up to the granule `behind`, except `block`. If `block` is nil, the
    /// chunks become hollow.
    pub(crate) fn free_target(&mut self, first: Link, behind: u32, block: Link, point: Stored) {
        let mut link = first;
        while link.is_some() {
            let chunk = *self.table.at(link);
            // The chunk after the last part may be joined to it.
            let next = if chunk.end() < behind {
                chunk.next
            } else {
                Link::NIL
            };
            if link != block {
                self.free_filling(link, block.is_nil(), point);
            }
            link = next;
        }
    }

    /// Marks a free chunk as hollow, or as having memory behind all of its pages.
    pub(crate) fn set_hollow(&mut self, link: Link, hollow: bool) {
        self.table.at_mut(link).set_hollow(hollow);
    }

    /// Makes a filling chunk a block. The first chunk of a reservation stays the first.
    pub(crate) fn use_filling(&mut self, link: Link, requested_bytes: u64) -> Block {
        let is_first = self.table.at(link).is_first();
        let block = self.mark_used(link, requested_bytes);
        if is_first {
            self.table.at_mut(link).set_first();
        }
        block
    }

    /// Frees a filling chunk, or a reserved one that is in no list and has no point.
    pub(crate) fn free_filling(&mut self, link: Link, hollow: bool, point: Stored) {
        let chunk = self.table.at_mut(link);
        chunk.set_free();
        chunk.set_hollow(hollow);
        self.set_stored(link, point);
        self.join_and_list(link);
    }
}
