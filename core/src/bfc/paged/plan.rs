//! A plan of driver calls: when one is made, and what its end means.
//!
//! A plan owns what it touches from the moment it is built: the chunks of its *target*, the place
//! of the block (moving if mapped, filling if unmapped), and the *sources*, the mapped chunks whose
//! handles it moves, reuses or releases (moving). No two plans share a chunk, a handle or a page.
//! Building needs every chunk record that the plan will ever need, so that neither its success nor
//! its failure can want for one.
//!
//! Success: the memory of the sources is at the target, their places are unmapped, their old mappings
//! are cached. Failure: every chunk is as before; but free chunks may have been cut where unmapped addresses
//! were added at the end of the range, and cached mappings that were in the way are gone.

use super::place::{Candidates, Idle, Spot};
use super::steps::{MappingList, Phase};
use super::table::{HandleState, MappingState};
use super::{Backing, Bfc, Link, Paged, State};
use crate::bfc::Step;
use crate::bfc::index::AddressIndex;
use crate::bfc::search::Need;
use crate::block::{ChunkHandle, Grant, Request};
use crate::error::{AllocError, Cause};
use crate::stream::{StreamId, StreamPoint};
use crate::units::{Addr, AddrRange};

/// The place asked for.
#[derive(Clone, Copy, Debug)]
struct At {
    start: Addr,
    /// A chunk close to it.
    near: Option<ChunkHandle>,
    /// Memory that the request's stream still uses serves too.
    on_stream: bool,
}

/// How far one allocation has come. Belongs to the thread that allocates.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttempt {
    request: Request,
    /// Where the block must begin.
    place: Option<At>,
    /// Plans of this attempt that were refused.
    refusals: u8,
    /// Cached mappings were unmapped for it.
    forgot: bool,
}

impl From<Request> for PagedAttempt {
    fn from(request: Request) -> Self {
        Self::new(request)
    }
}

impl PagedAttempt {
    /// The start of an allocation.
    pub const fn new(request: Request) -> Self {
        Self {
            request,
            place: None,
            refusals: 0,
            forgot: false,
        }
    }

    /// The start of an allocation at exactly this place, for plans, which lay out blocks ahead of
    /// time; `near` is a chunk from which to look for it. Answers [`AllocError::PlaceTaken`] if
    /// some of the place is in use, by queued work of whichever stream too, or does not start on a
    /// granule.
    pub const fn at(range: AddrRange, near: Option<ChunkHandle>) -> Self {
        let mut attempt = Self::new(Request::new(range.bytes()));
        attempt.place = Some(At {
            start: range.start(),
            near,
            on_stream: false,
        });
        attempt
    }

    /// The start of an allocation at exactly this place for use on `stream`, whose own queued work may use
    /// the place still; see [`Bfc::alloc_at_on`](crate::bfc::Bfc::alloc_at_on).
    pub const fn at_on(range: AddrRange, near: Option<ChunkHandle>, stream: StreamId) -> Self {
        let mut attempt = Self::new(Request::new(range.bytes()).on(stream));
        attempt.place = Some(At {
            start: range.start(),
            near,
            on_stream: true,
        });
        attempt
    }

    /// What is asked for.
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// A plan of this attempt failed. The next one moves all it can; there is no third.
    pub const fn plan_failed(&mut self) {
        self.refusals = self.refusals.saturating_add(1);
    }
}

/// Driver calls to make, and leave to make them: what they touch belongs to the plan.
///
/// Comes back by [`Bfc::finish`] after the last call; one that is dropped keeps what it
/// touches for good.
#[derive(Debug)]
#[must_use = "what a plan touches is out of use until it is finished"]
pub struct PagePlan {
    pub(super) phase: Phase,
    /// To unmap: cached mappings in the way, and all mappings of handles to release.
    pub(super) unmaps: MappingList,
    /// To reuse, then to map by address.
    pub(super) maps: MappingList,
    /// First chunk of the target, and the granule behind its last one.
    pub(super) target: Link,
    pub(super) behind: u32,
    /// The block's granules.
    pub(super) start: u32,
    pub(super) end: u32,
    request: Option<Request>,
    /// Bytes to create, and how many of them count as under way.
    pub(super) creating: u64,
    pub(super) departed: u64,
    pub(super) releasing: u64,
    /// Bytes released so far.
    pub(super) released: u64,
    pub(super) owner: u32,
    /// What is created comes in few pieces: it is there to stay.
    pub(super) coarse: bool,
}

impl PagePlan {
    pub(super) const fn new(owner: u32) -> Self {
        Self {
            phase: Phase::Begin,
            unmaps: MappingList::EMPTY,
            maps: MappingList::EMPTY,
            target: Link::NIL,
            behind: 0,
            start: 0,
            end: 0,
            request: None,
            creating: 0,
            departed: 0,
            releasing: 0,
            released: 0,
            owner,
            coarse: false,
        }
    }

    /// Whether every call was made and none refused. A plan that succeeded and gives no block made
    /// room for another one.
    pub const fn succeeded(&self) -> bool {
        matches!(self.phase, Phase::Agreed)
    }

    /// Bytes of memory that the driver took back so far.
    pub const fn released_bytes(&self) -> u64 {
        self.released
    }

    /// Bytes counted as under way that have come to be held.
    pub(super) const fn departing(&self) -> u64 {
        self.creating - self.departed
    }
}

/// Why no plan can be made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bar {
    /// The chunk table has no record for it.
    Table,
    /// The tables of pages have none.
    Pages,
    Memory(Cause),
}

impl<I: AddressIndex> Bfc<'_, I, Paged<'_>> {
    /// Goes on with an allocation.
    pub(super) fn step_pages(&mut self, attempt: &mut PagedAttempt) -> Step<PagePlan> {
        let request = attempt.request;
        let need = match self.meet(&request) {
            Ok(need) => need,
            Err(error) => return Step::Failed(error),
        };
        if let Some(at) = attempt.place {
            return self.step_at(attempt, need, at);
        }
        if let Some(found) = self.search_fully(need, &request) {
            return match self.take(found, need, &request) {
                Ok(grant) => Step::Ready(grant),
                Err(error) => Step::Failed(error),
            };
        }
        if attempt.refusals > 1 || self.exceeds_limit(need) {
            // The driver said no, unless it was a limit lowered meanwhile.
            let cause = if self.room_bytes() == 0 {
                Cause::Limit
            } else {
                Cause::SubAllocator
            };
            return self.failed(need, &request, Bar::Memory(cause));
        }
        let planned = match self.plan_for(need, &request, attempt.refusals > 0) {
            // Cached mappings use the records: those of some are enough for this attempt.
            Err(Bar::Pages) if !attempt.forgot => {
                attempt.forgot = true;
                self.plan_forgetting().ok_or(Bar::Pages)
            }
            planned => planned,
        };
        self.begin_plan(planned, need, &request)
    }

    /// The plan, or its outcome if it needs no call.
    fn begin_plan(
        &mut self,
        planned: Result<PagePlan, Bar>,
        need: Need,
        request: &Request,
    ) -> Step<PagePlan> {
        match planned {
            Ok(mut plan) => {
                if self.next_step(&mut plan).is_some() {
                    return Step::Plan(plan);
                }
                match self.finish(plan) {
                    Some(grant) => Step::Ready(grant),
                    None => self.failed(need, request, Bar::Memory(Cause::Limit)),
                }
            }
            Err(bar) => self.failed(need, request, bar),
        }
    }

    /// Goes on with an allocation at one place.
    fn step_at(&mut self, attempt: &mut PagedAttempt, need: Need, at: At) -> Step<PagePlan> {
        let request = attempt.request;
        let range = AddrRange::of_chunk(at.start, request.bytes);
        let taken = if at.on_stream {
            self.alloc_at_on(range, at.near, request.stream)
        } else {
            self.alloc_at_near(range, at.near)
        };
        match taken {
            Ok(block) => return Step::Ready(Grant { block, wait: None }),
            Err(AllocError::PlaceTaken) => {}
            Err(error) => return Step::Failed(error),
        }
        if attempt.refusals > 1 {
            return self.failed(need, &request, Bar::Memory(Cause::SubAllocator));
        }
        // Only what no queued work uses, as in a `Bfc`, if nobody said on which stream the block will be.
        let user = at.on_stream.then_some(&request);
        let idle = self.find_idle(user);
        let Some(spot) = self.spot_at(range, need, at.near, user) else {
            return Step::Failed(AllocError::PlaceTaken);
        };
        let plan = PagePlan::new(self.table.owner());
        let planned = self.build(plan, spot, need, &request, idle, attempt.refusals > 0);
        self.begin_plan(planned, need, &request)
    }

    /// A plan that unmaps cached mappings, a quarter of all records at most, so that others can
    /// be mapped. O(mappings).
    fn plan_forgetting(&mut self) -> Option<PagePlan> {
        let mut plan = PagePlan::new(self.table.owner());
        let mut left = (self.memory.pages.mappings.capacity() + 1).div_ceil(4);
        for mapping in self.memory.pages.mappings.links() {
            if left > 0 && self.can_unmap(mapping) {
                self.memory.pages.mapping_mut(mapping).state = MappingState::Leaving;
                self.push(&mut plan.unmaps, mapping);
                left -= 1;
            }
        }
        if !plan.unmaps.first.is_some() {
            return None;
        }
        self.memory.plans += 1;
        Some(plan)
    }

    fn failed(&mut self, need: Need, request: &Request, bar: Bar) -> Step<PagePlan> {
        Step::Failed(match bar {
            Bar::Table => self.table_full(),
            Bar::Pages => AllocError::PagesFull {
                handles: self.memory.pages.handles.capacity(),
                mappings: self.memory.pages.mappings.capacity(),
            },
            Bar::Memory(cause) => self.out_of_memory(need, request, cause),
        })
    }

    /// A plan whose success serves the request.
    fn plan_for(&mut self, need: Need, request: &Request, squeeze: bool) -> Result<PagePlan, Bar> {
        let mut bar = Bar::Memory(Cause::Addresses);
        let in_place = self.memory.config.backing == Backing::InPlace;
        for reach in [Candidates::End, Candidates::Anywhere] {
            if (squeeze || in_place) && reach == Candidates::End {
                continue;
            }
            let idle = self.find_idle(Some(request));
            let Some(spot) = self.find_spot(need, request, idle, reach) else {
                continue;
            };
            let plan = PagePlan::new(self.table.owner());
            match self.build(plan, spot, need, request, idle, squeeze) {
                Ok(plan) => return Ok(plan),
                Err(Bar::Memory(cause)) => bar = Bar::Memory(cause),
                Err(full) => return Err(full),
            }
        }
        Err(bar)
    }

    /// A plan that puts memory behind unmapped addresses of a layout by giving a block there. Its memory
    /// is to stay, so it is created in few pieces.
    pub(super) fn plan_backing(
        &mut self,
        unmapped: AddrRange,
        layout: AddrRange,
        stream: Option<StreamId>,
    ) -> Option<PagePlan> {
        let request = Request::new(unmapped.bytes()).on(stream.unwrap_or(StreamId::MAIN));
        let need = self.need(&request).ok()?;
        // Without a stream only what no queued work uses: the block is free again at once, without a
        // point. And nothing of the layout itself, which is to have memory everywhere.
        let user = stream.is_some().then_some(&request);
        let idle = self.find_idle(user);
        self.unmark_idle_in(layout, idle);
        let spot = self.spot_at(unmapped, need, None, user)?;
        let mut plan = PagePlan::new(self.table.owner());
        plan.coarse = true;
        self.build(plan, spot, need, &request, idle, false).ok()
    }

    fn build(
        &mut self,
        mut plan: PagePlan,
        spot: Spot,
        need: Need,
        request: &Request,
        idle: Idle,
        squeeze: bool,
    ) -> Result<PagePlan, Bar> {
        plan.request = Some(*request);
        (plan.start, plan.end) = (spot.start, spot.start + need.size);
        self.memory.plans += 1;
        let built = self
            .take_target(&mut plan, spot)
            .ok_or(Bar::Table)
            .and_then(|()| {
                self.reuse_and_clear(&mut plan)?;
                self.back_target(&mut plan, idle, need.size, squeeze)
            });
        if let Err(bar) = built {
            self.abandon(plan);
            return Err(bar);
        }
        plan.phase = Phase::Begin;
        Ok(plan)
    }

    /// Undoes a plan of which no call was made yet.
    pub(super) fn abandon(&mut self, mut plan: PagePlan) {
        self.fail_plan(&mut plan);
        // Nothing was mapped or created, so there is nothing to call.
        let call = self.next_step(&mut plan);
        debug_assert!(call.is_none(), "an abandoned plan wants a call: {call:?}");
        self.finish(plan);
    }

    /// Ends a plan after its last call: the block, if it was for one and no call was refused.
    ///
    /// A plan that has calls left is undone as far as that needs none; the rest of what it touched
    /// stays out of use. A plan of another allocator changes nothing.
    pub fn finish(&mut self, plan: PagePlan) -> Option<Grant> {
        let mut plan = plan;
        if plan.owner != self.table.owner() || self.next_step(&mut plan).is_some() {
            return None;
        }
        self.memory.plans = self.memory.plans.saturating_sub(1);
        self.growth.arrive(plan.departed);
        if !plan.succeeded() {
            self.restore_target(&plan);
            return None;
        }
        self.commit_plan(&plan)
    }

    fn commit_plan(&mut self, plan: &PagePlan) -> Option<Grant> {
        let mut mapping = plan.maps.first;
        // What uses the moved memory still: all of it on the request's stream.
        let mut latest: Option<StreamPoint> = None;
        while mapping.is_some() {
            let record = *self.memory.pages.mapping(mapping);
            let handle = *self.memory.pages.handle(record.handle);
            if handle.active.is_some() {
                let source = Link(handle.source);
                let point = self.streams.pending(self.table.at(source).point());
                let old = self.memory.pages.mapping_mut(handle.active);
                old.state = MappingState::Cached;
                old.set_point(point);
                if latest.is_none_or(|latest| point.is_some_and(|point| point.event > latest.event))
                {
                    latest = point;
                }
                self.empty(source);
            }
            let record = self.memory.pages.handle_mut(record.handle);
            record.active = mapping;
            record.state = HandleState::Live;
            let record = self.memory.pages.mapping_mut(mapping);
            record.state = MappingState::Active;
            record.set_point(None);
            mapping = record.chain;
        }
        let counters = &mut self.counters;
        counters.reserved += plan.creating / self.granule.bytes();
        counters.peak_reserved = counters.peak_reserved.max(counters.reserved);
        self.note_limit();
        self.commit_target(plan, latest)
    }

    /// A source loses its memory: its addresses are unmapped.
    pub(super) fn empty(&mut self, link: Link) {
        self.set_stored(link, None);
        self.table.at_mut(link).set_state(State::Unmapped);
        self.join_unmapped(link);
    }

    /// The parts under the block become one used chunk, the others free ones, which work up to
    /// `latest` may still use.
    fn commit_target(&mut self, plan: &PagePlan, latest: Option<StreamPoint>) -> Option<Grant> {
        let point = latest.and_then(|latest| self.stored(latest).flatten());
        let (mut link, mut block) = (plan.target, Link::NIL);
        while link.is_some() {
            let chunk = *self.table.at(link);
            // What follows the last part may be joined to it.
            let next = if chunk.end() < plan.behind {
                chunk.next
            } else {
                Link::NIL
            };
            self.set_stored(link, None);
            if chunk.start < plan.start || chunk.start >= plan.end {
                self.table.at_mut(link).set_free();
                self.set_stored(link, point);
                self.join_and_list(link);
            } else if block.is_nil() {
                block = link;
            } else {
                self.absorb_next(block, link);
            }
            link = next;
        }
        let request = plan.request?;
        Some(Grant {
            block: self.mark_used(block, request.bytes),
            wait: None,
        })
    }

    /// The parts become what they were.
    fn restore_target(&mut self, plan: &PagePlan) {
        let mut link = plan.target;
        while link.is_some() {
            let chunk = *self.table.at(link);
            self.restore(link);
            // What follows the last part may have been joined to it.
            link = if chunk.end() < plan.behind {
                chunk.next
            } else {
                Link::NIL
            };
        }
    }

    /// A chunk of a plan becomes free or unmapped again.
    pub(super) fn restore(&mut self, link: Link) {
        if self.state(link) == State::Filling {
            self.table.at_mut(link).set_state(State::Unmapped);
            return self.join_unmapped(link);
        }
        let chunk = self.table.at_mut(link);
        chunk.set_state(State::Free);
        self.join_and_list(link);
    }
}
