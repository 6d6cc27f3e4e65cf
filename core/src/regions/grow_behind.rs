//! A block that grows over a sub-allocator: if all that lies behind it is free chunks that it may take, up to the end of
//! the newest region of a growing range, what is missing is asked for, right behind that end, once. A range that lies
//! elsewhere is of no use to the block and goes back.

use super::RegionPool;
use super::config::Growth;
use super::grow::GrowTicket;
use crate::best_fit::BestFit;
use crate::block::{Block, Resize};
use crate::engine::Need;
use crate::error::{RegionError, Rejected, ResizeError};
use crate::units::AddrRange;

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
pub(crate) struct Committed {
    pub(crate) result: Result<Block, Rejected<ResizeError>>,
    /// The range could not be held.
    pub(crate) rejected: Option<Rejected<RegionError, AddrRange>>,
}

impl RegionPool<'_> {
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
        let (link, size) = self.chunks.judge_resize(block, to)?;
        let chunk = self.chunks.table.at(link);
        let region = chunk.region();
        let missing = size.saturating_sub(chunk.size);
        let behind = self.chunks.usable_behind(link, missing, to.stream);
        let grows = matches!(self.config.growth, Growth::Range { .. })
            && self.chunks.newest_region == Some(region);
        // What is in flight already will lie there, and somebody waits for it.
        if !grows || !behind.to_end || self.tickets > 0 {
            return Err(ResizeError::NoRoom);
        }
        if self.chunks.table.available() == 0 {
            return Err(ResizeError::TableFull);
        }
        let need = Need {
            size: missing - behind.size,
            align: 1,
        };
        let countable = u32::MAX - self.chunks.regions.get(region).granules();
        let least_bytes = self
            .least_growth(need, 0)
            .filter(|least| *least <= self.chunks.granule.bytes_of(countable))
            .ok_or(ResizeError::NoRoom)?;
        if least_bytes > self.available_bytes() {
            return Err(ResizeError::Limit);
        }
        let bytes = self.growth_above(least_bytes);
        if bytes > self.chunks.granule.bytes_of(countable) {
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
        if !self.serves_behind(range, &block, to)
            && !self.chunks.regions.overlaps(range, self.chunks.granule)
        {
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
            self.chunks.judge_resize(block, to),
            self.chunks.granule.count_up(range.bytes()),
        ) else {
            return false;
        };
        let chunk = self.chunks.table.at(link);
        let missing = size.saturating_sub(chunk.size);
        self.region_to_enlarge(range, granules) == Some(chunk.region())
            && self.chunks.usable_behind(link, missing, to.stream).to_end
    }
}
