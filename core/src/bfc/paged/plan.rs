//! A plan of driver calls: when one is made, and what its end means.
//!
//! A plan owns what it touches from the moment it is built: the chunks of its *target*, the block and what its first
//! and last page have beside it; the pages under them; and the handles that it moves, reuses or releases. The pages
//! where these lie have no memory from then on, for whoever finds them meanwhile. Building needs every record that
//! the plan will ever need, so that neither its success nor its failure can want for one.
//!
//! Success: the memory is at the target, the old mappings of what moved are cached. Failure: every chunk is as before,
//! but marked as hollow; the range may have grown by addresses without memory, and cached mappings that were in the way
//! are gone.

use super::idle::Wanted;
use super::page_calls::{MappingList, Phase};
use super::table::{HandleState, MappingState};
use super::{Bfc, Link, Paged};
use crate::bfc::Progress;
use crate::bfc::free::Stored;
use crate::bfc::search::{Found, LOOKS, LOOKS_BEFORE_GROWTH, Need};
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
    /// First chunk of the target, the granule behind its last one, and the chunk of the block.
    pub(super) target: Link,
    pub(super) behind: u32,
    pub(super) block: Link,
    /// What the free chunk had that the target was cut out of, and what the block waits for.
    pub(super) point: Stored,
    pub(super) wait: Option<StreamPoint>,
    request: Option<Request>,
    /// Bytes to create, and how many of them count as under way.
    pub(super) creating: u64,
    pub(super) departed: u64,
    pub(super) releasing: u64,
    /// Bytes released so far.
    pub(super) released: u64,
    pub(super) owner: u32,
    /// What is created comes in few pieces: it is there to stay.
    pub(super) of_layout: bool,
    /// The driver refused to undo a mapping of the target, whose addresses are of no use any more.
    pub(super) lost: bool,
}

impl PagePlan {
    pub(super) const fn new(owner: u32) -> Self {
        Self {
            phase: Phase::Begin,
            unmaps: MappingList::EMPTY,
            maps: MappingList::EMPTY,
            target: Link::NIL,
            behind: 0,
            block: Link::NIL,
            point: None,
            wait: None,
            request: None,
            creating: 0,
            departed: 0,
            releasing: 0,
            released: 0,
            owner,
            of_layout: false,
            lost: false,
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
    /// Another plan, or queued work, has a page of the place.
    Busy,
    Memory(Cause),
}

/// A place for a block, and what may be done for it.
#[derive(Clone, Copy)]
struct Spot<'r> {
    found: Found,
    need: Need,
    request: &'r Request,
    /// Whose idle memory may come to it: the request's own stream's, or what nobody uses.
    user: Option<&'r Request>,
    /// Pages behind it that are to get memory, too.
    ahead: u32,
    /// The driver has no more memory.
    squeeze: bool,
}

impl Bfc<'_, Paged<'_>> {
    /// Goes on with an allocation.
    pub(super) fn advance_pages(&mut self, attempt: &mut PagedAttempt) -> Progress<PagePlan> {
        let request = attempt.request;
        let need = match self.meet(&request) {
            Ok(need) => need,
            Err(error) => return Progress::Failed(error),
        };
        if attempt.refusals > 1 || self.exceeds_limit(need) {
            // The driver said no, unless it was a limit lowered meanwhile.
            let cause = if self.room_bytes() == 0 {
                Cause::Limit
            } else {
                Cause::SubAllocator
            };
            return self.failed(need, &request, Bar::Memory(cause));
        }
        let squeeze = attempt.refusals > 0;
        if squeeze {
            self.memory.refused_bytes = self.taken_bytes();
        }
        let progress = match attempt.place {
            Some(at) => self.advance_at(need, &request, at, squeeze),
            None => self.advance_anywhere(need, &request, squeeze),
        };
        match progress {
            Ok(progress) => progress,
            Err(Bar::Busy) if attempt.place.is_some() => Progress::Failed(AllocError::PlaceTaken),
            // Cached mappings use the records: those of some are enough for this attempt.
            Err(Bar::Pages) if !attempt.forgot => {
                attempt.forgot = true;
                match self.plan_forgetting() {
                    Some(plan) => Progress::Plan(plan),
                    None => self.failed(need, &request, Bar::Pages),
                }
            }
            Err(bar) => self.failed(need, &request, bar),
        }
    }

    /// The best place, wherever memory is; where memory is short, one that has some.
    fn advance_anywhere(
        &mut self,
        need: Need,
        request: &Request,
        squeeze: bool,
    ) -> Result<Progress<PagePlan>, Bar> {
        let pages = need.size.div_ceil(self.memory.page);
        let short = squeeze || pages > self.room_pages();
        if short && self.streams.with_point() > 0 && self.streams.moved() {
            self.sweep();
        }
        let looks = if short { u32::MAX } else { LOOKS_BEFORE_GROWTH };
        let (found, ahead) = match self.search_fully(need, request, looks) {
            Some(found) => (found, 0),
            None => self.grow_range(need, request, false).or_else(|bar| {
                let found = self.search_fully(need, request, u32::MAX);
                found.map(|found| (found, 0)).ok_or(bar)
            })?,
        };
        let place = Spot {
            found,
            need,
            request,
            user: Some(request),
            ahead,
            squeeze,
        };
        if short && let Some(progress) = self.advance_backed(place) {
            return progress;
        }
        match self.serve(place) {
            Err(Bar::Busy) => self.advance_elsewhere(place),
            Err(Bar::Memory(cause)) => {
                let found = self.join_for(need, request, u32::MAX, true);
                let found = found.ok_or(Bar::Memory(cause))?;
                self.serve(Spot {
                    found,
                    ahead: 0,
                    ..place
                })
            }
            served => served,
        }
    }

    /// A place that has memory.
    fn advance_backed(&mut self, place: Spot<'_>) -> Option<Result<Progress<PagePlan>, Bar>> {
        let found = self.search_backed(place.need, place.request)?;
        Some(self.serve(Spot {
            found,
            ahead: 0,
            ..place
        }))
    }

    /// A place that has memory, or the end of the range, as if what is free there were in use.
    fn advance_elsewhere(&mut self, place: Spot<'_>) -> Result<Progress<PagePlan>, Bar> {
        if let Some(progress) = self.advance_backed(place) {
            return progress;
        }
        let (found, ahead) = self
            .grow_range(place.need, place.request, true)
            .map_err(|_| Bar::Busy)?;
        self.serve(Spot {
            found,
            ahead,
            ..place
        })
    }

    /// One place.
    fn advance_at(
        &mut self,
        need: Need,
        request: &Request,
        at: At,
        squeeze: bool,
    ) -> Result<Progress<PagePlan>, Bar> {
        let range = AddrRange::of_chunk(at.start, request.bytes);
        if !self.memory.config.addresses.contains(range) {
            return Err(Bar::Busy);
        }
        let (_, end) = self.granules_of(range);
        self.grow_range_to(end).ok_or(Bar::Table)?;
        let found = if at.on_stream {
            self.join_over(range, need.size, at.near, request.stream)
        } else {
            self.sweep();
            self.free_chunk_over(range, need.size, at.near)
        };
        self.serve(Spot {
            found: found.ok_or(Bar::Busy)?,
            need,
            request,
            user: at.on_stream.then_some(request),
            ahead: 0,
            squeeze,
        })
    }

    /// The block, or the plan for it.
    fn serve(&mut self, place: Spot<'_>) -> Result<Progress<PagePlan>, Bar> {
        let chunk = self.table.at(place.found.link);
        let start = chunk.start + place.found.padding;
        if !chunk.is_hollow() || self.is_backed_between(start, start + place.need.size) {
            // With memory behind the whole range no mark is of use any more.
            let hollow = self.memory.plans > 0 || self.counters.reserved < u64::from(self.end());
            self.table.at_mut(place.found.link).set_hollow(hollow);
            let taken = self.take(place.found, place.need, place.request);
            return taken.map(Progress::Ready).map_err(|_| Bar::Table);
        }
        let mut plan = self.build(place, (0, 0), false)?;
        if self.next_call(&mut plan).is_some() {
            return Ok(Progress::Plan(plan));
        }
        let cause = Bar::Memory(Cause::Limit);
        self.finish(plan).map(Progress::Ready).ok_or(cause)
    }

    /// How many times [`plan_forgetting`](Self::plan_forgetting) sees all cached mappings; 0 if there is none.
    pub(super) fn searches_for_cached(&self) -> u32 {
        let mappings = &self.memory.pages.mappings;
        if mappings.in_use() == self.memory.pages.handles.in_use() {
            return 0;
        }
        mappings.capacity().div_ceil(LOOKS)
    }

    /// A plan that unmaps cached mappings of the next records; as many are looked at as a search looks at chunks.
    pub(super) fn plan_forgetting(&mut self) -> Option<PagePlan> {
        let mut plan = PagePlan::new(self.table.owner());
        let records = self.memory.pages.mappings.capacity();
        for _ in 0..LOOKS.min(records) {
            self.memory.forgotten = self.memory.forgotten % records + 1;
            let mapping = self.memory.forgotten.into();
            if self.can_unmap(mapping) {
                self.unmap_by(&mut plan, mapping);
            }
        }
        if !plan.unmaps.first.is_some() {
            return None;
        }
        self.memory.plans += 1;
        Some(plan)
    }

    fn failed(&mut self, need: Need, request: &Request, bar: Bar) -> Progress<PagePlan> {
        Progress::Failed(match bar {
            Bar::Table => self.table_full(),
            Bar::Pages => AllocError::PagesFull {
                handles: self.memory.pages.handles.capacity(),
                mappings: self.memory.pages.mappings.capacity(),
            },
            Bar::Busy => self.out_of_memory(need, request, Cause::Pending),
            Bar::Memory(cause) => self.out_of_memory(need, request, cause),
        })
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
        let (_, end) = self.granules_of(unmapped);
        self.grow_range_to(end)?;
        // Without a stream only what no queued work uses: the block is free again at once, without a
        // point. And nothing of the layout itself, which is to have memory everywhere.
        let found = match stream {
            Some(stream) => self.join_over(unmapped, need.size, None, stream),
            None => self.free_chunk_over(unmapped, need.size, None),
        };
        let place = Spot {
            found: found?,
            need,
            request: &request,
            user: stream.is_some().then_some(&request),
            ahead: 0,
            squeeze: false,
        };
        let outside = self.granules_of(layout);
        self.build(place, outside, true).ok()
    }

    fn build(
        &mut self,
        place: Spot<'_>,
        outside: (u32, u32),
        of_layout: bool,
    ) -> Result<PagePlan, Bar> {
        let mut plan = PagePlan::new(self.table.owner());
        plan.request = Some(*place.request);
        plan.of_layout = of_layout;
        self.take_target(&mut plan, &place.found, place.need, place.ahead)
            .ok_or(Bar::Table)?;
        self.memory.plans += 1;
        let wanted = Wanted {
            outside,
            ..Wanted::new(place.user, 0)
        };
        if let Err(bar) = self.back_target(&mut plan, wanted, place.squeeze) {
            self.abandon(plan);
            return Err(bar);
        }
        Ok(plan)
    }

    /// Undoes a plan of which no call was made yet.
    pub(super) fn abandon(&mut self, mut plan: PagePlan) {
        self.fail_plan(&mut plan);
        // Nothing was mapped or created, so there is nothing to call.
        let call = self.next_call(&mut plan);
        debug_assert!(call.is_none(), "an abandoned plan wants a call: {call:?}");
        self.finish(plan);
    }

    /// Ends a plan after its last call: the block, if it was for one and no call was refused.
    ///
    /// A plan that has calls left is undone as far as that needs none; the rest of what it touched
    /// stays out of use. A plan of another allocator changes nothing.
    pub fn finish(&mut self, plan: PagePlan) -> Option<Grant> {
        let mut plan = plan;
        if plan.owner != self.table.owner() || self.next_call(&mut plan).is_some() {
            return None;
        }
        self.growth.arrive(plan.departed);
        if plan.lost {
            // The target stays what it is, as that of a plan that was dropped.
            return None;
        }
        self.memory.plans = self.memory.plans.saturating_sub(1);
        if !plan.succeeded() {
            self.free_target(&plan, Link::NIL, plan.point);
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
            let old = self.memory.pages.handle(record.handle).active;
            if old.is_some() {
                let old = self.memory.pages.mapping_mut(old);
                old.state = MappingState::Cached;
                let point = old.point();
                if latest.is_none_or(|latest| point.event > latest.event) {
                    latest = Some(point);
                }
            }
            let handle = self.memory.pages.handle_mut(record.handle);
            handle.active = mapping;
            handle.state = HandleState::Live;
            let record = self.memory.pages.mapping_mut(mapping);
            record.state = MappingState::Active;
            record.set_point(None);
            mapping = record.chain;
        }
        let counters = &mut self.counters;
        counters.reserved += plan.creating / self.granule.bytes();
        counters.peak_reserved = counters.peak_reserved.max(counters.reserved);
        if self.reserved_bytes() > self.memory.refused_bytes {
            self.memory.refused_bytes = u64::MAX;
        }
        self.note_limit();
        let moved = latest.and_then(|latest| self.stored(latest).flatten());
        let request = plan.request?;
        let point = match (plan.point, moved) {
            (Some(one), Some(other)) => Some(self.later(one, other)),
            (one, other) => one.or(other),
        };
        self.free_target(plan, plan.block, point);
        Some(Grant {
            block: self.mark_used(plan.block, request.bytes),
            wait: plan.wait,
        })
    }

    /// The chunks of the target are free again, with this point; but not the one of the block.
    fn free_target(&mut self, plan: &PagePlan, block: Link, point: Stored) {
        let mut link = plan.target;
        while link.is_some() {
            let chunk = *self.table.at(link);
            // What follows the last part may be joined to it.
            let next = if chunk.end() < plan.behind {
                chunk.next
            } else {
                Link::NIL
            };
            if link != block {
                let chunk = self.table.at_mut(link);
                chunk.set_free();
                chunk.set_hollow(block.is_nil());
                self.set_stored(link, point);
                self.join_and_list(link);
            }
            link = next;
        }
    }
}
