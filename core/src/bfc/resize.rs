//! Changing a block's size where it is: its first address, handle and number stay.
//!
//! * A smaller block keeps its front. The rest is cut off and freed as a block there would be: it joins what [`free`](super::free) says.
//! * A larger block takes the free chunks right behind it, as many as are needed, in the order of
//!   their addresses, each of which no stream uses any more or only the block's. What is left of the
//!   last stays free with its record and its point.
//! * Over a sub-allocator: if all that lies behind the block is such chunks up to the end of the
//!   newest region of a growing range, what is missing is asked for, right behind that end, once.
//!   A range that lies elsewhere is of no use to the block and goes back.
//!
//! A resize names no stream, except by the point of an end that it cuts off.

use super::Bfc;
use super::chunk::Link;
use super::config::Growth;
use super::free::Stored;
use super::grow::GrowTicket;
use super::memory::{Memory, Regions};
use super::search::Need;
use crate::block::{Block, Resize};
use crate::error::{RegionError, Rejected, ResizeError};
use crate::stream::{StreamId, StreamPoint};
use crate::units::AddrRange;

/// The free chunks right behind a block that it may grow into.
struct Behind {
    /// Granules of those that are needed, or of all if they do not suffice.
    size: u32,
    /// All of the region behind the block is such chunks, and they do not suffice.
    to_end: bool,
}

/// How far a resize over a sub-allocator has come.
pub(super) enum ResizeStep {
    Done(Result<Block, Rejected<ResizeError>>),
    /// The sub-allocator has to be asked.
    Grow(GrowTicket, Block),
}

/// What becomes of a range that was asked for to lie behind a block.
pub(super) enum Placed {
    /// It was committed.
    Committed(Committed),
    /// It is of no use to the block and is not held; the ticket still counts.
    Elsewhere(GrowTicket, Block),
}

/// What a commit did to the block it was meant for.
pub(super) struct Committed {
    pub(super) result: Result<Block, Rejected<ResizeError>>,
    /// The range could not be held.
    pub(super) rejected: Option<Rejected<RegionError, AddrRange>>,
}

impl<M: Memory> Bfc<'_, M> {
    /// Gives the block another size without moving it, from the memory held. The block that comes
    /// back replaces the one given; it starts at the same address and has the same handle and
    /// number.
    ///
    /// O(1), and one step for each free chunk behind the block that it grows into.
    ///
    /// ```
    /// use larder_core::{Addr, AddrRange, Bfc, BfcConfig, Chunk, Request, Resize};
    /// let mut table = [Chunk::VACANT; 8];
    /// let mut bfc = Bfc::new(BfcConfig::fixed(), &mut table)?;
    /// bfc.add_region(AddrRange::new(Addr::new(0x10000), 0x1000).unwrap())?;
    /// let block = bfc.alloc(&Request::new(1000))?.block;
    /// let block = bfc.resize(block, 0x1000)?;
    /// assert_eq!((block.addr(), block.bytes()), (Addr::new(0x10000), 0x1000));
    /// let block = bfc.resize(block, Resize::to(100))?;
    /// assert_eq!(bfc.stats().live_bytes, 256);
    /// # bfc.free(block)?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Gives the block back, and nothing has changed then; see [`ResizeError`].
    pub fn resize(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        match self.try_resize(&block, &to.into()) {
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

    /// The block's chunk and its new size in granules.
    fn judge_resize(&self, block: &Block, to: &Resize) -> Result<(Link, u32), ResizeError> {
        let link = self.link_of(block).ok_or(ResizeError::Unknown)?;
        if to.bytes == 0 {
            return Err(ResizeError::ZeroSize);
        }
        let size = self.granule.count_up(to.bytes);
        Ok((link, size.ok_or(ResizeError::TooLarge)?))
    }

    /// Enlarges a used chunk to `size` granules by what is free behind it.
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

    /// Enlarges a used chunk by the free one behind it, or by as much of that as brings it to
    /// `size` granules; the rest keeps record, point and, in its class, place.
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

    /// What lies behind a chunk for a block that is used on `stream`, up to `missing` granules.
    fn usable_behind(&self, link: Link, missing: u32, stream: StreamId) -> Behind {
        let mut next = self.table.at(link).next;
        let mut size = 0;
        while size < missing {
            let chunk = self.table.at(next);
            let pending = self.streams.pending(chunk.point());
            let is_barred = pending.is_some_and(|point| point.stream != stream);
            if !chunk.is_free() || is_barred || M::HOLLOW && chunk.is_hollow() {
                break;
            }
            // Chunks of one region: their sum is countable.
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
            self.streams.meet(stream);
        }
        self.join_and_list(end);
        Ok(())
    }

    /// Notes how much of a used chunk was asked for.
    fn set_requested(&mut self, link: Link, requested_bytes: u64) {
        let chunk = self.table.at_mut(link);
        let slack_bytes = self.granule.bytes_of(chunk.size) - requested_bytes;
        self.counters.slack_bytes -= u64::from(chunk.slack_bytes());
        self.counters.slack_bytes += slack_bytes;
        // Less than a granule, and that fits 32 bits (units.rs).
        chunk.set_slack_bytes(slack_bytes as u32);
    }
}

impl Bfc<'_, Regions> {
    /// Resizes from the memory held, or says what to ask the sub-allocator for.
    pub(super) fn resize_or_grow(&mut self, block: Block, to: &Resize) -> ResizeStep {
        let rejected = match self.resize(block, *to) {
            Err(rejected) if rejected.error == ResizeError::NoRoom => rejected,
            done => return ResizeStep::Done(done),
        };
        let block = rejected.value;
        match self.plan_growth_behind(&block, to) {
            Ok(ticket) => ResizeStep::Grow(ticket, block),
            Err(error) => ResizeStep::Done(Err(Rejected::new(block, error))),
        }
    }

    /// Decides how much to ask for so that the block, for which there is no room now, can have its
    /// new size.
    fn plan_growth_behind(
        &mut self,
        block: &Block,
        to: &Resize,
    ) -> Result<GrowTicket, ResizeError> {
        let (link, size) = self.judge_resize(block, to)?;
        let chunk = self.table.at(link);
        let region = chunk.region();
        let missing = size.saturating_sub(chunk.size);
        let behind = self.usable_behind(link, missing, to.stream);
        let grows = matches!(self.config.growth, Growth::Range { .. })
            && self.newest_region == Some(region);
        // What is in flight already will lie there, and somebody waits for it.
        if !grows || !behind.to_end || self.growth.in_flight() > 0 {
            return Err(ResizeError::NoRoom);
        }
        if self.table.available() == 0 {
            return Err(ResizeError::TableFull);
        }
        let need = Need {
            size: missing - behind.size,
            align: 1,
        };
        let countable = u32::MAX - self.regions.get(region).granules();
        let least_bytes = self
            .least_growth(need, 0)
            .filter(|least| *least <= self.granule.bytes_of(countable))
            .ok_or(ResizeError::NoRoom)?;
        if least_bytes > self.available_bytes() {
            return Err(ResizeError::Limit);
        }
        let bytes = self.growth_above(least_bytes);
        if bytes > self.granule.bytes_of(countable) {
            return Ok(self.issue(least_bytes, least_bytes));
        }
        Ok(self.issue(bytes, least_bytes))
    }

    /// The sub-allocator gave `range`: holds it if that serves the block, and resizes that.
    pub(super) fn commit_behind(
        &mut self,
        ticket: GrowTicket,
        range: AddrRange,
        block: Block,
        to: &Resize,
    ) -> Placed {
        self.note_given_again(range);
        // A range that overlaps what is held is refused by the commit, and must not go back.
        if !self.serves_behind(range, &block, to) && !self.regions.overlaps(range, self.granule) {
            return Placed::Elsewhere(ticket, block);
        }
        Placed::Committed(self.commit_and_resize(ticket, range, block, to))
    }

    /// Holds the range, wherever it lies, and resizes the block if that is possible now.
    pub(super) fn commit_and_resize(
        &mut self,
        ticket: GrowTicket,
        range: AddrRange,
        block: Block,
        to: &Resize,
    ) -> Committed {
        let rejected = self.commit(ticket, range).err();
        let result = self.resize(block, *to).map_err(|refused| {
            let error = match rejected.as_ref().map(|rejected| rejected.error) {
                Some(RegionError::Limit) => ResizeError::Limit,
                Some(RegionError::TableFull) => ResizeError::TableFull,
                _ => refused.error,
            };
            Rejected { error, ..refused }
        });
        Committed { result, rejected }
    }

    /// Whether the range lies right behind the block's region, and nothing but memory that the
    /// block may take lies between.
    fn serves_behind(&self, range: AddrRange, block: &Block, to: &Resize) -> bool {
        let (Ok((link, size)), Some(granules)) = (
            self.judge_resize(block, to),
            self.granule.count_up(range.bytes()),
        ) else {
            return false;
        };
        let chunk = self.table.at(link);
        let missing = size.saturating_sub(chunk.size);
        self.region_to_enlarge(range, granules) == Some(chunk.region())
            && self.usable_behind(link, missing, to.stream).to_end
    }
}
