//! One allocation over regions as a state machine without I/O.
//!
//! The driver calls [`RegionPool::advance`] under its lock, carries out the returned plan without the lock, reports the
//! outcome, and calls `advance` again:
//!
//! ```text
//!  Search --found--> Ready
//!    | nothing                       every stage falls through to the next
//!  Grow -> RegionPlan::Grow -commit--> Search anew (another thread may have been faster)
//!    | limit        '----refused----> Search anew, else Short
//!  Short: would releasing every wholly free region make room?
//!  Collect -> RegionPlan::Release ... for every wholly free region, if that makes room
//!  Regrow --> as Search and Grow, but the only stage after it is
//!  Fail
//! ```

use super::config::Growth;
use super::grow::{GrowTicket, GrowthBar};
use super::{RegionPlan, RegionPool};
use crate::best_fit::Progress;
use crate::block::Request;
use crate::engine::{Candidate, Need};
use crate::error::{AllocError, Cause, RegionError};

/// The state of one allocation. It belongs to the thread that allocates.
#[derive(Clone, Copy, Debug)]
pub struct RegionAttempt {
    request: Request,
    stage: Stage,
    /// The reason why growing was not possible, if known.
    cause: Cause,
    /// Whether memory was already requested.
    asked: bool,
    /// Whether a granted range has exceeded the limit.
    over_limit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Search,
    Short,
    Collect,
    Regrow,
    Fail,
}

impl RegionAttempt {
    /// Starts an allocation.
    pub const fn new(request: Request) -> Self {
        Self {
            request,
            stage: Stage::Search,
            cause: Cause::Fixed,
            asked: false,
            over_limit: false,
        }
    }

    /// Returns the request.
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// Notes that the range from the sub-allocator could not be accepted. If the limit was lowered meanwhile, the next
    /// step sees that and may request less, once. For any other reason, growing again would fail in the same way.
    pub const fn growth_rejected(&mut self, error: RegionError) {
        match error {
            RegionError::Limit if !self.over_limit => self.over_limit = true,
            RegionError::Limit => self.growth_failed(Cause::Limit),
            RegionError::RegionsFull => self.growth_failed(Cause::Regions),
            _ => self.growth_failed(Cause::Rejected(error)),
        }
    }

    const fn growth_failed(&mut self, cause: Cause) {
        self.cause = cause;
        self.stage = match self.stage {
            Stage::Search => Stage::Short,
            _ => Stage::Fail,
        };
    }
}

impl From<Request> for RegionAttempt {
    fn from(request: Request) -> Self {
        Self::new(request)
    }
}

impl RegionPool<'_> {
    /// Continues an allocation.
    pub(super) fn advance_attempt(&mut self, attempt: &mut RegionAttempt) -> Progress<RegionPlan> {
        let request = attempt.request;
        let need = match self.chunks.need_of(&request) {
            Ok(need) => need,
            Err(error) => return Progress::Failed(error),
        };
        if let Stage::Short | Stage::Fail = attempt.stage
            && let Some(found) = self.search_fully(need, &request)
        {
            // While the growth was being refused, another thread grew the pool or freed memory.
            return self.ready(found, need, &request);
        }
        match attempt.stage {
            Stage::Search | Stage::Regrow => self.advance_search(attempt, need),
            Stage::Short => self.advance_short(attempt, need),
            Stage::Collect => self.advance_collect(attempt, need),
            Stage::Fail => self.fail(attempt, need),
        }
    }

    /// Ends a ticket that the sub-allocator refused. Returns a smaller one to try immediately, or `None`. After `None`,
    /// continue with [`advance`](crate::BestFit::advance).
    pub fn growth_refused(
        &mut self,
        attempt: &mut RegionAttempt,
        ticket: GrowTicket,
    ) -> Option<GrowTicket> {
        let smaller = self.retry_smaller(ticket);
        if smaller.is_none() {
            attempt.growth_failed(Cause::SubAllocator);
        }
        smaller
    }

    fn advance_search(&mut self, attempt: &mut RegionAttempt, need: Need) -> Progress<RegionPlan> {
        let request = attempt.request;
        if let Some(found) = self.search_fully(need, &request) {
            return self.ready(found, need, &request);
        }
        match self.plan_growth(need, &request, !attempt.asked) {
            Ok(ticket) => {
                attempt.asked = true;
                Progress::Plan(RegionPlan::Grow(ticket))
            }
            Err(GrowthBar::Table) => Progress::Failed(self.chunks.table_full()),
            Err(GrowthBar::TooLarge) => Progress::Failed(AllocError::TooLarge {
                requested_bytes: request.bytes,
            }),
            Err(GrowthBar::Memory(cause)) => {
                attempt.cause = cause;
                match attempt.stage {
                    Stage::Search => self.advance_short(attempt, need),
                    _ => self.fail(attempt, need),
                }
            }
        }
    }

    fn advance_short(&mut self, attempt: &mut RegionAttempt, need: Need) -> Progress<RegionPlan> {
        if !self.collection_helps(attempt, need) {
            return self.fail(attempt, need);
        }
        attempt.stage = Stage::Collect;
        self.advance_collect(attempt, need)
    }

    fn advance_collect(&mut self, attempt: &mut RegionAttempt, need: Need) -> Progress<RegionPlan> {
        match self.take_free_region() {
            Some(ticket) => Progress::Plan(RegionPlan::Release(ticket)),
            None => {
                attempt.stage = Stage::Regrow;
                self.advance_search(attempt, need)
            }
        }
    }

    fn ready(&mut self, found: Candidate, need: Need, request: &Request) -> Progress<RegionPlan> {
        match self.chunks.take(found, need, request) {
            Ok(grant) => Progress::Ready(grant),
            Err(error) => Progress::Failed(error),
        }
    }

    fn fail(&mut self, attempt: &mut RegionAttempt, need: Need) -> Progress<RegionPlan> {
        attempt.stage = Stage::Fail;
        Progress::Failed(self.out_of_memory(need, &attempt.request, attempt.cause))
    }

    /// Returns whether releasing every wholly free region would make room for a new region that serves the request.
    fn collection_helps(&mut self, attempt: &RegionAttempt, need: Need) -> bool {
        if !self.config.collect_regions || self.config.growth == Growth::Fixed {
            return false;
        }
        self.chunks.sweep();
        self.forget_refusals();
        let free = self.free_region_bytes();
        let newest = self.chunks.newest_end();
        let newest_goes = self.chunks.free_regions().any(|link| link == newest);
        let end_bytes = if attempt.asked || newest_goes {
            0
        } else {
            self.usable_end_bytes(need, &attempt.request)
        };
        let room = self.chunks.available_bytes(free);
        free > 0
            && self
                .least_growth(need, end_bytes)
                .is_some_and(|least| least <= room)
    }
}
