//! Resizing a block in place. The block keeps its first address, its handle and its number.
//!
//! * A smaller block keeps its front. The end is cut off and freed as if it were a block, and joins its neighbours as
//!   described in [`free`](super::free).
//! * A larger block takes as many free chunks directly after it as it needs, in address order. No stream except the
//!   block's own may still use them. The remainder of the last chunk stays free, with its record and its point.
//!
//! A resize names no stream, except by the point of the end that is cut off.

use super::Chunks;
use super::chunk::Link;
use super::free::Stored;
use super::search::Need;
use crate::block::{Block, Resize};
use crate::error::{Rejected, ResizeError};
use crate::stream::{StreamId, StreamPoint};

/// The free chunks directly after a block into which the block may grow.
pub(crate) struct Behind {
    /// Total granules of the chunks needed, or of all usable chunks if they do not suffice.
    pub(crate) size: u32,
    /// Whether these chunks reach the end of the region, but do not suffice.
    pub(crate) to_end: bool,
}

impl Chunks<'_> {
    /// Resizes the block without moving it, from held memory. O(1), plus one step for each free chunk that the block
    /// grows into.
    pub(crate) fn resize(
        &mut self,
        block: Block,
        to: &Resize,
    ) -> Result<Block, Rejected<ResizeError>> {
        match self.try_resize(&block, to) {
            Ok(link) => Ok(self.block_of(link)),
            Err(error) => Err(Rejected::new(block, error)),
        }
    }

    fn try_resize(&mut self, block: &Block, to: &Resize) -> Result<Link, ResizeError> {
        let (link, size) = self.judge_resize(block, to)?;
        let point = match to.used_until {
            Some(event) => self
                .stored(StreamPoint {
                    stream: to.stream,
                    event,
                })
                .ok_or(ResizeError::EventTooFar)?,
            None => None,
        };
        if size > self.table.at(link).size {
            self.take_behind(link, size, to.stream)?;
        } else {
            self.cut_end(link, size, point)?;
        }
        self.set_requested(link, to.bytes);
        Ok(link)
    }

    /// Returns the block's chunk and its new size in granules.
    pub(crate) fn judge_resize(
        &self,
        block: &Block,
        to: &Resize,
    ) -> Result<(Link, u32), ResizeError> {
        let link = self.link_of(block).ok_or(ResizeError::Unknown)?;
        if to.bytes == 0 {
            return Err(ResizeError::ZeroSize);
        }
        let size = self.granule.count_up(to.bytes);
        Ok((link, size.ok_or(ResizeError::TooLarge)?))
    }

    /// Enlarges a used chunk to `size` granules, with the free chunks after it.
    fn take_behind(&mut self, link: Link, size: u32, stream: StreamId) -> Result<(), ResizeError> {
        let held = self.table.at(link).size;
        let missing = size - held;
        if self.exceeds_limit(Need {
            size: missing,
            align: 1,
        }) {
            return Err(ResizeError::Limit);
        }
        let behind = self.usable_behind(link, missing, stream);
        if behind.size < missing {
            return Err(ResizeError::NoRoom);
        }
        while self.table.at(link).size < size {
            self.take_next(link, size);
        }
        let counters = &mut self.counters;
        counters.live += u64::from(missing);
        counters.peak_live = counters.peak_live.max(counters.live);
        counters.largest = counters.largest.max(size);
        Ok(())
    }

    /// Enlarges a used chunk by the free chunk after it, or by as much of that chunk as is needed for `size` granules.
    /// The remainder keeps its record and its point. It also keeps its place in the list if its class does not change.
    fn take_next(&mut self, link: Link, size: u32) {
        let next = self.table.at(link).next;
        let old_size = self.table.at(next).size;
        let wanted = size - self.table.at(link).size;
        if old_size <= wanted {
            self.set_stored(next, None);
            self.unlist(next);
            self.absorb_next(link, next);
            return;
        }
        let rest = self.table.at_mut(next);
        rest.start += wanted;
        rest.size -= wanted;
        if self.wilderness != next {
            self.bins.resized(&mut self.table, next, old_size);
        }
        self.table.at_mut(link).size += wanted;
    }

    /// Returns the chunks after `link` into which a block used on `stream` may grow, up to `missing` granules.
    pub(crate) fn usable_behind(&self, link: Link, missing: u32, stream: StreamId) -> Behind {
        let mut next = self.table.at(link).next;
        let mut size = 0;
        while size < missing {
            let chunk = self.table.at(next);
            let pending = self.streams.pending(chunk.point());
            let is_barred = pending.is_some_and(|point| point.stream != stream);
            if !chunk.is_free() || is_barred || chunk.is_hollow() {
                break;
            }
            // The chunks are in one region, so the sum fits 32 bits.
            size += chunk.size;
            next = chunk.next;
        }
        Behind {
            size,
            to_end: next.is_nil() && size < missing,
        }
    }

    /// Shortens a used chunk to `size` granules and frees the end.
    fn cut_end(&mut self, link: Link, size: u32, point: Stored) -> Result<(), ResizeError> {
        let old = *self.table.at(link);
        let rest = old.size - size;
        if rest == 0 {
            return Ok(());
        }
        let end = self.split_off(link, rest, &old, point);
        let end = end.ok_or(ResizeError::TableFull)?;
        self.table.at_mut(link).size = size;
        self.counters.live -= u64::from(rest);
        if let Some((stream, _)) = point {
            self.streams.note(stream);
        }
        self.join_and_list(end);
        Ok(())
    }

    /// Records the requested size of a used chunk.
    fn set_requested(&mut self, link: Link, requested_bytes: u64) {
        let chunk = self.table.at_mut(link);
        let slack_bytes = self.granule.bytes_of(chunk.size) - requested_bytes;
        self.counters.slack_bytes -= u64::from(chunk.slack_bytes());
        self.counters.slack_bytes += slack_bytes;
        // The slack is less than a granule, so it fits 32 bits (units.rs).
        chunk.set_slack_bytes(slack_bytes as u32);
    }
}
