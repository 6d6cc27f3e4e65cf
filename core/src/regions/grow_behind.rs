//! Grows a block into new memory from a sub-allocator. This is possible if, between the block and the end of the newest
//! region of a growing range, there are only free chunks that the block may take. The missing memory is then requested,
//! once, directly after that end. A range elsewhere is of no use to the block and is released.

use super::RegionPool;
use super::config::Growth;
use super::grow::GrowTicket;
use crate::best_fit::BestFit;
use crate::block::{Block, Resize};
use crate::engine::Need;
use crate::error::{RegionError, Rejected, ResizeError};
use crate::units::AddrRange;

/// The state of a resize over a sub-allocator.
pub(super) enum ResizeStep {
    Done(Result<Block, Rejected<ResizeError>>),
    /// Request the ticket's memory from the sub-allocator.
    Grow(GrowTicket, Block),
}

/// The outcome of a request for a range after a block.
pub(super) enum Placed {
    /// The range was committed.
    Committed(CommitOutcome),
    /// The range is of no use to the block and is not held. The ticket still counts.
    Elsewhere(GrowTicket, Block),
}

/// The effect of a commit on the block for which it was made.
pub(crate) struct CommitOutcome {
    pub(crate) result: Result<Block, Rejected<ResizeError>>,
    /// The range, if it could not be held.
    pub(crate) rejected: Option<Rejected<RegionError, AddrRange>>,
}

impl RegionPool<'_> {
    /// Resizes from held memory, or returns a ticket to request more.
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

    /// Decides how much memory to request so that the block can have its new size, for which there is no room now.
    fn plan_growth_behind(
        &mut self,
        block: &Block,
        to: &Resize,
    ) -> Result<GrowTicket, ResizeError> {
        let (link, size) = self.chunks.judge_resize(block, to)?;
        let chunk = self.chunks.chunk(link);
        let region = chunk.region();
        let missing = size.saturating_sub(chunk.size);
        let behind = self.chunks.usable_behind(link, missing, to.stream);
        let grows = matches!(self.config.growth, Growth::Range { .. })
            && self.chunks.newest_region() == Some(region);
        // If a ticket is already issued, its range will take the place at the end, and another request waits for that
        // range.
        if !grows || !behind.to_end || self.tickets > 0 {
            return Err(ResizeError::NoRoom);
        }
        if self.chunks.vacant_records() == 0 {
            return Err(ResizeError::TableFull);
        }
        let need = Need {
            size: missing - behind.size,
            align: 1,
        };
        let held = self.chunks.chunk(self.chunks.newest_end()).end();
        let most_bytes = self.chunks.granule().bytes_of(u32::MAX - held);
        let least_bytes = self
            .least_growth(need, 0)
            .filter(|least| *least <= most_bytes)
            .ok_or(ResizeError::NoRoom)?;
        if least_bytes > self.chunks.available_bytes(0) {
            return Err(ResizeError::Limit);
        }
        let bytes = self.growth_above(least_bytes);
        if bytes > most_bytes {
            return Ok(self.issue(least_bytes, least_bytes));
        }
        Ok(self.issue(bytes, least_bytes))
    }

    /// If `range`, which the sub-allocator granted, serves the block, holds the range and resizes the block.
    pub(super) fn commit_behind(
        &mut self,
        ticket: GrowTicket,
        range: AddrRange,
        block: Block,
        to: &Resize,
    ) -> Placed {
        self.chunks.note_given_again(range);
        // The commit refuses a range that overlaps held memory, which must not be released.
        if !self.serves_behind(range, &block, to) && !self.chunks.overlaps(range) {
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
    ) -> CommitOutcome {
        let rejected = self.commit(ticket, range).err();
        let result = self.resize(block, *to).map_err(|refused| {
            let error = match rejected.as_ref().map(|rejected| rejected.error) {
                Some(RegionError::Limit) => ResizeError::Limit,
                Some(RegionError::TableFull) => ResizeError::TableFull,
                _ => refused.error,
            };
            Rejected { error, ..refused }
        });
        CommitOutcome { result, rejected }
    }

    /// Returns whether the range begins where the block's region ends, and only memory that the block may take lies in
    /// between.
    fn serves_behind(&self, range: AddrRange, block: &Block, to: &Resize) -> bool {
        let (Ok((link, size)), Some(granules)) = (
            self.chunks.judge_resize(block, to),
            self.chunks.granule().count_up(range.bytes()),
        ) else {
            return false;
        };
        let chunk = self.chunks.chunk(link);
        let missing = size.saturating_sub(chunk.size);
        self.region_to_extend(range, granules) == Some(chunk.region())
            && self.chunks.usable_behind(link, missing, to.stream).to_end
    }
}
