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
use super::{Link, PagePool};
use crate::best_fit::Progress;
use crate::block::{ChunkHandle, Grant, Request};
use crate::engine::{Chunk, Found, LOOKS, LOOKS_BEFORE_GROWTH, Need, Stored};
use crate::error::{AllocError, Cause};
use crate::stream::{StreamId, StreamPoint};
use crate::units::{Addr, AddrRange};
use heapless::Vec;

/// Gaps of a layout that are backed at a time, at most.
const MAX_GAPS: usize = 64;

/// The place asked for.
#[derive(Clone, Copy, Debug)]
struct At {
    start: Addr,
    /// A chunk close to it.
    near: Option<ChunkHandle>,
    /// Whether queued work of the request's stream may use the place still.
    on_stream: bool,
}

/// How far one allocation has come. Belongs to the thread that allocates.
#[derive(Clone, Copy, Debug)]
pub struct PageAttempt {
    request: Request,
    /// Where the block must begin.
    place: Option<At>,
    /// Plans of this attempt that were refused.
    refusals: u8,
    /// Cached mappings were unmapped for it.
    forgot: bool,
}

impl From<Request> for PageAttempt {
    fn from(request: Request) -> Self {
        Self::new(request)
    }
}

impl PageAttempt {
    /// The start of an allocation.
    pub const fn new(request: Request) -> Self {
        Self {
            request,
            place: None,
            refusals: 0,
            forgot: false,
        }
    }

    /// The start of an allocation at exactly this place, mapping and moving pages if need be; see
    /// [`BestFit::alloc_at`](crate::BestFit::alloc_at). It fails with [`AllocError::PlaceTaken`] if some of the place does not serve.
    pub const fn at(range: AddrRange, near: Option<ChunkHandle>, stream: Option<StreamId>) -> Self {
        let request = Request::new(range.bytes());
        let mut attempt = Self::new(match stream {
            Some(stream) => request.on(stream),
            None => request,
        });
        attempt.place = Some(At {
            start: range.start(),
            near,
            on_stream: stream.is_some(),
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
/// Comes back by [`PagePool::finish`] after the last call; one that is dropped keeps what it
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
    purpose: Purpose,
    /// Bytes to create, and how many of them count as under way.
    pub(super) creating: u64,
    pub(super) departed: u64,
    pub(super) releasing: u64,
    /// Bytes released so far.
    pub(super) released: u64,
    pub(super) owner: u32,
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
            purpose: Purpose::Release,
            creating: 0,
            departed: 0,
            releasing: 0,
            released: 0,
            owner,
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

    /// Whether it puts memory behind a layout: what is created is there to stay, and comes in few pieces.
    pub(super) const fn is_backing(&self) -> bool {
        matches!(self.purpose, Purpose::Backing { .. })
    }

    /// Bytes that may be held for it.
    pub(super) const fn max_bytes(&self) -> u64 {
        match self.purpose {
            Purpose::Backing { max_bytes, .. } => max_bytes,
            Purpose::Block(_) | Purpose::Release => u64::MAX,
        }
    }

    /// Bytes counted as under way that have come to be held.
    pub(super) const fn departing(&self) -> u64 {
        self.creating - self.departed
    }
}

/// What a plan is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// To give memory back.
    Release,
    /// A block.
    Block(Request),
    /// Memory behind addresses of a layout, for blocks that will come, with what uses them until then. No
    /// more than so many bytes are held for it.
    Backing {
        point: Option<StreamPoint>,
        max_bytes: u64,
    },
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

impl PagePool<'_> {
    /// Goes on with an allocation.
    pub(super) fn advance_attempt(&mut self, attempt: &mut PageAttempt) -> Progress<PagePlan> {
        let request = attempt.request;
        let need = match self.chunks.meet(&request) {
            Ok(need) => need,
            Err(error) => return Progress::Failed(error),
        };
        if attempt.refusals > 1 || self.chunks.exceeds_limit(need) {
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
            self.refused_bytes = self.chunks.taken_bytes();
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
        let pages = need.size.div_ceil(self.page);
        let short = squeeze || pages > self.room_pages();
        if short && self.chunks.streams.with_point() > 0 && self.chunks.streams.moved() {
            self.chunks.sweep();
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
                let (pages, page) = (&self.pages, self.page);
                let has_memory = |chunk: &Chunk| {
                    !chunk.is_hollow() || pages.is_backed_between(chunk.start, chunk.end(), page)
                };
                let found = self.chunks.join_for(need, request, u32::MAX, has_memory);
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
        if !self.config.addresses.contains(range) {
            return Err(Bar::Busy);
        }
        let (_, end) = self.granules_of(range);
        self.grow_range_to(end).ok_or(Bar::Table)?;
        let stream = at.on_stream.then_some(request.stream);
        if stream.is_none() {
            self.chunks.sweep();
        }
        let found = self.chunks.find_place(range, need.size, at.near, stream);
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
        let chunk = self.chunks.table.at(place.found.link);
        let start = chunk.start + place.found.padding;
        if !chunk.is_hollow() || self.is_backed_between(start, start + place.need.size) {
            // With memory behind the whole range no mark is of use any more.
            let hollow = self.plans > 0 || self.chunks.counters.reserved < u64::from(self.end());
            self.chunks
                .table
                .at_mut(place.found.link)
                .set_hollow(hollow);
            let taken = self.chunks.take(place.found, place.need, place.request);
            return taken.map(Progress::Ready).map_err(|_| Bar::Table);
        }
        let mut plan = self.build(place, (0, 0), Purpose::Block(*place.request))?;
        if self.next_call(&mut plan).is_some() {
            return Ok(Progress::Plan(plan));
        }
        let cause = Bar::Memory(Cause::Limit);
        self.finish(plan).map(Progress::Ready).ok_or(cause)
    }

    /// How many times [`plan_forgetting`](Self::plan_forgetting) sees all cached mappings; 0 if there is none.
    pub(super) fn searches_for_cached(&self) -> u32 {
        let mappings = &self.pages.mappings;
        if mappings.in_use() == self.pages.handles.in_use() {
            return 0;
        }
        mappings.capacity().div_ceil(LOOKS)
    }

    /// A plan that unmaps cached mappings of the next records; as many are looked at as a search looks at chunks.
    pub(super) fn plan_forgetting(&mut self) -> Option<PagePlan> {
        let mut plan = PagePlan::new(self.chunks.table.owner());
        let records = self.pages.mappings.capacity();
        for _ in 0..LOOKS.min(records) {
            self.forgotten = self.forgotten % records + 1;
            let mapping = self.forgotten.into();
            if self.can_unmap(mapping) {
                self.unmap_by(&mut plan, mapping);
            }
        }
        if !plan.unmaps.first.is_some() {
            return None;
        }
        self.plans += 1;
        Some(plan)
    }

    fn failed(&mut self, need: Need, request: &Request, bar: Bar) -> Progress<PagePlan> {
        Progress::Failed(match bar {
            Bar::Table => self.chunks.table_full(),
            Bar::Pages => AllocError::PagesFull {
                handles: self.pages.handles.capacity(),
                mappings: self.pages.mappings.capacity(),
            },
            Bar::Busy => self.out_of_memory(need, request, Cause::Pending),
            Bar::Memory(cause) => self.out_of_memory(need, request, cause),
        })
    }

    /// Plans that put memory behind the unmapped addresses of a range of a layout; see
    /// [`Shared::back`](crate::Shared::back). All are made before the first call, so that nothing has moved if
    /// one cannot be made: `None` then.
    pub(super) fn plan_backing(
        &mut self,
        range: AddrRange,
        layout: AddrRange,
        max_bytes: u64,
        point: Option<StreamPoint>,
    ) -> Option<Vec<PagePlan, MAX_GAPS>> {
        let is_near = point.is_none_or(|point| self.chunks.stored(point).is_some());
        if !is_near || !self.config.addresses.contains(range) {
            return None;
        }
        if let Some(point) = point {
            // What it may use until then carries its point.
            self.chunks.streams.meet(point.stream);
        }
        let purpose = Purpose::Backing { point, max_bytes };
        let stream = point.map(|point| point.stream);
        let mut plans: Vec<PagePlan, MAX_GAPS> = Vec::new();
        let mut from = range.start();
        while let Some(rest) = AddrRange::new(from, range.end().get().saturating_sub(from.get()))
            && let Some(unmapped) = self.first_unmapped(rest)
        {
            from = unmapped.end();
            let plan = match plans.is_full() {
                true => None,
                false => self.plan_backing_gap(unmapped, layout, stream, purpose),
            };
            let Some(plan) = plan else {
                plans.into_iter().for_each(|plan| self.abandon(plan));
                return None;
            };
            // There is room, as was seen just now.
            plans.push(plan).ok();
        }
        Some(plans)
    }

    /// A plan that puts memory behind addresses side by side that have none.
    fn plan_backing_gap(
        &mut self,
        unmapped: AddrRange,
        layout: AddrRange,
        stream: Option<StreamId>,
        purpose: Purpose,
    ) -> Option<PagePlan> {
        let request = Request::new(unmapped.bytes()).on(stream.unwrap_or(StreamId::MAIN));
        let need = self.chunks.need(&request).ok()?;
        let (_, end) = self.granules_of(unmapped);
        self.grow_range_to(end)?;
        // Without a stream only what no queued work uses moves: the addresses are free again at once, without a
        // point. And nothing of the layout itself, which is to have memory everywhere.
        let found = self.chunks.find_place(unmapped, need.size, None, stream);
        let place = Spot {
            found: found?,
            need,
            request: &request,
            user: stream.is_some().then_some(&request),
            ahead: 0,
            squeeze: false,
        };
        let outside = self.granules_of(layout);
        self.build(place, outside, purpose).ok()
    }

    fn build(
        &mut self,
        place: Spot<'_>,
        outside: (u32, u32),
        purpose: Purpose,
    ) -> Result<PagePlan, Bar> {
        let mut plan = PagePlan::new(self.chunks.table.owner());
        plan.purpose = purpose;
        self.take_target(&mut plan, &place.found, place.need, place.ahead)
            .ok_or(Bar::Table)?;
        self.plans += 1;
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
        if plan.owner != self.chunks.table.owner() || self.next_call(&mut plan).is_some() {
            return None;
        }
        self.chunks.arrive(plan.departed);
        if plan.lost {
            // The target stays what it is, as that of a plan that was dropped.
            return None;
        }
        self.plans = self.plans.saturating_sub(1);
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
            let record = *self.pages.mapping(mapping);
            let old = self.pages.handle(record.handle).active;
            if old.is_some() {
                let old = self.pages.mapping_mut(old);
                old.state = MappingState::Cached;
                let point = old.point();
                if latest.is_none_or(|latest| point.event > latest.event) {
                    latest = Some(point);
                }
            }
            let handle = self.pages.handle_mut(record.handle);
            handle.active = mapping;
            handle.state = HandleState::Live;
            let record = self.pages.mapping_mut(mapping);
            record.state = MappingState::Active;
            record.set_point(None);
            mapping = record.chain;
        }
        self.chunks
            .hold(plan.creating / self.chunks.granule.bytes());
        if self.chunks.reserved_bytes() > self.refused_bytes {
            self.refused_bytes = u64::MAX;
        }
        let moved = latest.and_then(|latest| self.chunks.stored(latest).flatten());
        let point = match (plan.point, moved) {
            (Some(one), Some(other)) => Some(self.chunks.later(one, other)),
            (one, other) => one.or(other),
        };
        match plan.purpose {
            Purpose::Release => None,
            Purpose::Block(request) => {
                self.free_target(plan, plan.block, point);
                Some(Grant {
                    block: self.chunks.mark_used(plan.block, request.bytes),
                    wait: plan.wait,
                })
            }
            Purpose::Backing { point: uses, .. } => {
                self.free_target(plan, plan.block, point);
                self.chunks.table.at_mut(plan.block).set_free();
                // One too far ahead does not come: its stream has moved on since the plan was made.
                let uses = uses.and_then(|point| self.chunks.stored(point).flatten());
                self.chunks.set_stored(plan.block, uses);
                self.chunks.join_and_list(plan.block);
                None
            }
        }
    }

    /// The chunks of the target are free again, with this point; but not the one of the block.
    fn free_target(&mut self, plan: &PagePlan, block: Link, point: Stored) {
        let mut link = plan.target;
        while link.is_some() {
            let chunk = *self.chunks.table.at(link);
            // What follows the last part may be joined to it.
            let next = if chunk.end() < plan.behind {
                chunk.next
            } else {
                Link::NIL
            };
            if link != block {
                let chunk = self.chunks.table.at_mut(link);
                chunk.set_free();
                chunk.set_hollow(block.is_nil());
                self.chunks.set_stored(link, point);
                self.chunks.join_and_list(link);
            }
            link = next;
        }
    }
}
