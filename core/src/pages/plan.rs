//! A plan of driver calls: when a plan is made, and how it ends.
//!
//! From the moment it is built, a plan owns everything that it touches: the chunks of its *target* (the block, and the
//! rest of its first and last page), the pages under them, and the handles that it moves, reuses or releases. For all
//! other requests, the pages where these handles lie count as having no memory. Building a plan takes every record that
//! it will need, so neither success nor failure can run out of records.
//!
//! After success, the memory is at the target, and the old mappings of moved handles are cached. After failure, every
//! chunk is as before, but is marked as hollow. The range may have grown by addresses without memory, and cached
//! mappings that were in the way may be gone.

use super::idle::IdleSearch;
use super::page_calls::{MappingList, Phase};
use super::table::{HandleState, MappingState};
use super::{Link, PagePool};
use crate::block::{AllocatorId, ChunkHandle, Grant, Request};
use crate::engine::{Candidate, LOOKS, Need, Stored};
use crate::error::Cause;
use crate::stream::{StreamId, StreamPoint};
use crate::units::AddrRange;
use heapless::Vec;

/// Maximum number of gaps in a layout that get memory in one call.
const MAX_GAPS: usize = 64;

/// Driver calls to make, and the permission to make them, because the plan owns everything that they touch.
///
/// After the last call, [`PagePool::finish`] ends the plan. A dropped plan permanently keeps the memory that it
/// touches.
#[derive(Debug)]
#[must_use = "what a plan touches is out of use until it is finished"]
pub struct PagePlan {
    pub(super) phase: Phase,
    /// Mappings to unmap: cached mappings in the way, and all mappings of handles to release.
    pub(super) unmaps: MappingList,
    /// Mappings to reuse, and then new mappings, in address order.
    pub(super) maps: MappingList,
    /// First chunk of the target, the first granule after the target, and the chunk of the block.
    pub(super) target: Link,
    pub(super) behind: u32,
    pub(super) block: Link,
    /// The point of the free chunk that the target was cut out of, and the point that the block waits for.
    pub(super) point: Stored,
    pub(super) wait: Option<StreamPoint>,
    purpose: Purpose,
    /// Bytes to create, and the part of them that counts as under way.
    pub(super) creating: u64,
    pub(super) departed: u64,
    pub(super) releasing: u64,
    /// Bytes released so far.
    pub(super) released: u64,
    pub(super) owner: AllocatorId,
    /// Whether the driver refused to undo a mapping of the target. The addresses of the target are then unusable.
    pub(super) lost: bool,
    /// Whether the target is the block alone, at reserved addresses.
    pub(super) reserved: bool,
}

impl PagePlan {
    pub(super) const fn new(owner: AllocatorId) -> Self {
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
            reserved: false,
        }
    }

    /// Returns whether every call was made and none was refused. If the plan succeeded but returned no block, it made
    /// room for another plan.
    pub const fn succeeded(&self) -> bool {
        matches!(self.phase, Phase::Agreed)
    }

    /// Returns the bytes of memory that the driver has taken back so far.
    pub const fn released_bytes(&self) -> u64 {
        self.released
    }

    /// Returns whether the plan puts memory behind a layout: the created memory stays, and comes in few pieces.
    pub(super) const fn is_backing(&self) -> bool {
        matches!(self.purpose, Purpose::Backing { .. })
    }

    /// Returns the bytes that may be held for the plan.
    pub(super) const fn max_bytes(&self) -> u64 {
        match self.purpose {
            Purpose::Backing { max_bytes, .. } => max_bytes,
            Purpose::Block(_) | Purpose::Release => u64::MAX,
        }
    }

    /// Returns the part of the bytes to create that does not yet count as under way.
    pub(super) const fn departing(&self) -> u64 {
        self.creating - self.departed
    }
}

/// The purpose of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Release memory.
    Release,
    /// Serve a block.
    Block(Request),
    /// Put memory behind addresses of a layout, for later blocks. Queued work uses this memory until `point`. The pool
    /// may hold at most `max_bytes` for it.
    Backing {
        point: Option<StreamPoint>,
        max_bytes: u64,
    },
}

/// The reason why no plan can be made.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoPlan {
    /// The chunk table has no record left.
    Table,
    /// The tables of pages have no record left.
    Pages,
    /// Another plan, or queued work, uses a page of the place.
    Busy,
    Memory(Cause),
}

/// A place for a block, and the means to put memory there.
#[derive(Clone, Copy)]
pub(super) struct Spot<'r> {
    pub(super) found: Candidate,
    pub(super) need: Need,
    pub(super) request: &'r Request,
    /// The request on whose stream queued work may still use the memory that moves to the place. `None` if no queued
    /// work may use that memory.
    pub(super) user: Option<&'r Request>,
    /// Number of further pages, after the place, that also get memory.
    pub(super) ahead: u32,
    /// Whether the driver has no more memory.
    pub(super) squeeze: bool,
    /// Whether the place is at reserved addresses.
    pub(super) reserved: bool,
}

impl PagePool<'_> {
    /// Returns how many times [`plan_forgetting`](Self::plan_forgetting) must run to see all cached mappings, or 0 if
    /// there are none.
    pub(super) fn searches_for_cached(&self) -> u32 {
        let mappings = &self.pages.mappings;
        if mappings.in_use() == self.pages.handles.in_use() {
            return 0;
        }
        mappings.capacity().div_ceil(LOOKS)
    }

    /// Returns a plan that unmaps the cached mappings among the next [`LOOKS`] records.
    pub(super) fn plan_forgetting(&mut self) -> Option<PagePlan> {
        let mut plan = PagePlan::new(self.chunks.id());
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

    /// Returns plans that put memory behind the unmapped addresses of a range of a layout; see
    /// [`Shared::back`](crate::Shared::back). All plans are made before the first call. Returns `None` if one of them
    /// cannot be made; nothing has then moved.
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
            // The memory will carry this point of the stream.
            self.chunks.note(point.stream);
        }
        let purpose = Purpose::Backing { point, max_bytes };
        let stream = point.map(|point| point.stream);
        let mut plans: Vec<PagePlan, MAX_GAPS> = Vec::new();
        let (mut from, mut near) = (range.start(), None);
        while let Some(rest) = AddrRange::new(from, range.end().get().saturating_sub(from.get()))
            && let Some(unmapped) = self.first_missing(rest, &mut near)
        {
            from = unmapped.end();
            let plan = match plans.is_full() {
                true => None,
                false => self.plan_backing_gap(unmapped, near, layout, stream, purpose),
            };
            let Some(plan) = plan else {
                plans.into_iter().for_each(|plan| self.abandon(plan));
                return None;
            };
            // There is room, because `is_full` was false.
            plans.push(plan).ok();
        }
        Some(plans)
    }

    /// Returns a plan that puts memory behind adjacent addresses that have none; `near` is a chunk close to them.
    fn plan_backing_gap(
        &mut self,
        unmapped: AddrRange,
        near: Option<ChunkHandle>,
        layout: AddrRange,
        stream: Option<StreamId>,
        purpose: Purpose,
    ) -> Option<PagePlan> {
        let request = Request::new(unmapped.bytes()).on(stream.unwrap_or(StreamId::MAIN));
        let need = self.chunks.need(&request).ok()?;
        let (_, end) = self.granules_of(unmapped);
        self.grow_range_to(end)?;
        // Without a stream, only memory that no queued work uses moves, because the addresses will be free without a
        // point. No memory of the layout itself moves, because the whole layout must have memory.
        let found = self.chunks.find_place(unmapped, need.size, near, stream);
        let place = Spot {
            found: found?,
            need,
            request: &request,
            user: stream.is_some().then_some(&request),
            ahead: 0,
            squeeze: false,
            reserved: false,
        };
        let outside = self.granules_of(layout);
        self.build(place, outside, purpose).ok()
    }

    pub(super) fn build(
        &mut self,
        place: Spot<'_>,
        outside: (u32, u32),
        purpose: Purpose,
    ) -> Result<PagePlan, NoPlan> {
        let mut plan = PagePlan::new(self.chunks.id());
        plan.purpose = purpose;
        let taken = match place.reserved {
            true => self.take_reserved(&mut plan, &place.found, place.need),
            false => self.take_target(&mut plan, &place.found, place.need, place.ahead),
        };
        taken.ok_or(NoPlan::Table)?;
        self.plans += 1;
        let wanted = IdleSearch {
            outside,
            ..IdleSearch::new(place.user, 0)
        };
        if let Err(bar) = self.back_target(&mut plan, wanted, place.squeeze) {
            self.abandon(plan);
            return Err(bar);
        }
        Ok(plan)
    }

    /// Undoes a plan of which no call was made.
    pub(super) fn abandon(&mut self, mut plan: PagePlan) {
        self.fail_plan(&mut plan);
        // Nothing was mapped or created, so there is no call to make.
        let call = self.next_call(&mut plan);
        debug_assert!(call.is_none(), "an abandoned plan wants a call: {call:?}");
        self.finish(plan);
    }

    /// Ends a plan after its last call. Returns the block, if the plan was for a block and no call was refused.
    ///
    /// If calls are left, the plan is undone only as far as this needs no calls; everything else that it touched stays
    /// out of use. A plan of another allocator changes nothing.
    pub fn finish(&mut self, plan: PagePlan) -> Option<Grant> {
        let mut plan = plan;
        if plan.owner != self.chunks.id() || self.next_call(&mut plan).is_some() {
            return None;
        }
        self.chunks.arrive(plan.departed);
        if plan.lost {
            // The target stays out of use, like that of a dropped plan.
            return None;
        }
        self.plans = self.plans.saturating_sub(1);
        if !plan.succeeded() {
            if plan.reserved {
                self.chunks.set_reserved(plan.target, plan.point);
            } else {
                self.chunks
                    .free_target(plan.target, plan.behind, Link::NIL, plan.point);
            }
            return None;
        }
        self.commit_plan(&plan)
    }

    fn commit_plan(&mut self, plan: &PagePlan) -> Option<Grant> {
        let mut mapping = plan.maps.first;
        // The latest work that still uses the moved memory. All of this work is on the request's stream.
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
            .hold(plan.creating / self.chunks.granule().bytes());
        if self.chunks.reserved_bytes() > self.refused_bytes {
            self.refused_bytes = u64::MAX;
        }
        let moved = latest.and_then(|latest| self.chunks.stored(latest).flatten());
        let point = match (plan.point, moved) {
            (Some(one), Some(other)) => Some(self.chunks.later(one, other)),
            (one, other) => one.or(other),
        };
        self.chunks
            .free_target(plan.target, plan.behind, plan.block, point);
        match plan.purpose {
            Purpose::Release => None,
            Purpose::Block(request) => Some(Grant {
                block: self.chunks.use_filling(plan.block, request.bytes),
                wait: plan.wait,
            }),
            Purpose::Backing { point: uses, .. } => {
                // The point is not too far ahead, because its stream has only advanced since the plan was made.
                let uses = uses.and_then(|point| self.chunks.stored(point).flatten());
                self.chunks.free_filling(plan.block, false, uses);
                None
            }
        }
    }
}
