//! Finds the memory for a plan: cached mappings to reuse, idle handles to move, and new handles. Also finds the handles
//! that the plan releases.

use core::ops::Range;

use super::idle::{IdleHandles, IdleSearch};
use super::page_calls::MappingList;
use super::plan::{NoPlan, PagePlan};
use super::table::{HandleLink, HandleState, MAPPINGS_A_HANDLE, MappingLink, MappingState};
use super::{Backing, Link, PagePool};
use crate::engine::LOOKS;
use crate::error::Cause;

/// Maximum number of fruitless looks for handles to move while new ones can be created. These looks cost a small part
/// of the time of a driver call.
const FEW_LOOKS: u32 = LOOKS / 16;

impl PagePool<'_> {
    /// Finds memory for all pages of the target.
    pub(super) fn back_target(
        &mut self,
        plan: &mut PagePlan,
        wanted: IdleSearch<'_>,
        squeeze: bool,
    ) -> Result<(), NoPlan> {
        // The memory next to the block can carry the point of only one stream.
        let user = wanted.user.filter(|_| plan.wait.is_none());
        let wanted = IdleSearch { user, ..wanted };
        let mut page = self.chunks.chunk(plan.target).start / self.page;
        let behind = plan.behind.div_ceil(self.page);
        let gap = self.reuse_and_clear(plan, wanted, page, behind)?;
        let can_move = self.config.backing != Backing::InPlace;
        let must_move = squeeze || gap > self.room_pages() || plan.is_backing();
        let mut idle = IdleHandles::default();
        if can_move && (must_move || self.moves_early(gap)) {
            idle = self.find_idle(IdleSearch {
                // Memory that queued work uses moves only if it must, because its old place cannot be used until that
                // work is done.
                user: wanted.user.filter(|_| must_move),
                pages: gap,
                most: gap,
                looks: if must_move { LOOKS } else { FEW_LOOKS },
                ..wanted
            });
        }
        let mut misses = LOOKS;
        while let Some((start, end)) = self.next_gap(page, behind) {
            let moved = self.move_into(plan, &mut idle, start..end, &mut misses)?;
            self.create_into(plan, moved, end).ok_or(NoPlan::Pages)?;
            page = end;
        }
        self.release_for(plan, wanted, squeeze)
    }

    /// Reuses the cached mappings under the target where possible, and lets the plan unmap the others. Returns the
    /// number of pages that still lack memory.
    fn reuse_and_clear(
        &mut self,
        plan: &mut PagePlan,
        wanted: IdleSearch<'_>,
        first: u32,
        behind: u32,
    ) -> Result<u32, NoPlan> {
        let (mut page, mut gap, mut searched) = (first, 0, false);
        while page < behind {
            let mapping = self.pages.at(page);
            if !mapping.is_some() {
                let next = self.pages.next_mapped(page, behind);
                gap += next - page;
                page = next;
                continue;
            }
            let end = self.pages.end(mapping).min(behind);
            if self.pages.is_backed(page) {
                page = end;
                continue;
            }
            if !core::mem::replace(&mut searched, true) {
                self.find_idle(IdleSearch {
                    pages: behind - first,
                    ..wanted
                });
            }
            if self.can_reuse(plan, mapping) {
                let handle = self.pages.mapping(mapping).handle;
                self.take_idle(handle, HandleState::Chosen);
                self.pages.mapping_mut(mapping).state = MappingState::Reused;
                self.push(&mut plan.maps, mapping);
            } else if self.can_unmap(mapping) {
                self.unmap_by(plan, mapping);
                gap += end - page;
            } else {
                return Err(NoPlan::Busy);
            }
            page = end;
        }
        Ok(gap)
    }

    /// Returns whether a mapping is cached, its handle was idle in the last search, and the handle may lie there.
    fn can_reuse(&self, plan: &PagePlan, mapping: MappingLink) -> bool {
        let record = self.pages.mapping(mapping);
        let handle = self.pages.handle(record.handle);
        record.state == MappingState::Cached
            && handle.mark == self.search
            && handle.state == HandleState::Live
            && self.may_lie(plan, record.handle, record.page)
    }

    /// Returns whether an idle handle may move to a page. It may if no queued work uses the handle, or if all its new
    /// pages belong to the target, which takes over the queued work.
    fn may_lie(&self, plan: &PagePlan, handle: HandleLink, page: u32) -> bool {
        let record = self.pages.handle(handle);
        let from = self.chunks.chunk(plan.target).start;
        let inside = page * self.page >= from && (page + record.pages) * self.page <= plan.behind;
        inside || self.chunks.pending(Link(record.source)).is_none()
    }

    /// Returns the next run of pages that lack memory.
    fn next_gap(&self, from: u32, behind: u32) -> Option<(u32, u32)> {
        let pages = &self.pages;
        let state = |page: u32| pages.mapping(pages.at(page)).state;
        let mut first = from;
        while first < behind && pages.at(first).is_some() && state(first) != MappingState::Leaving {
            first = pages.end(pages.at(first));
        }
        let mut end = first;
        while end < behind && (!pages.at(end).is_some() || state(end) == MappingState::Leaving) {
            end = pages.next_mapped(end + 1, behind);
        }
        (first < behind).then_some((first, end))
    }

    /// Moves idle handles to `pages`, as long as they fit. Returns the first page that got no memory.
    fn move_into(
        &mut self,
        plan: &mut PagePlan,
        idle: &mut IdleHandles,
        pages: Range<u32>,
        misses: &mut u32,
    ) -> Result<u32, NoPlan> {
        let Range {
            start: mut page,
            end,
        } = pages;
        let (mut previous, mut handle) = (HandleLink::NIL, idle.first);
        while handle.is_some() && page < end && *misses > 0 {
            let record = *self.pages.handle(handle);
            let next = record.chain;
            if record.pages > end - page
                || !self.may_lie(plan, handle, page)
                || !self.make_room_for_mapping(plan, handle)
            {
                *misses -= 1;
                previous = handle;
                handle = next;
                continue;
            }
            let mapping = self.pages.add_mapping(handle, page);
            self.push(&mut plan.maps, mapping.ok_or(NoPlan::Pages)?);
            self.take_idle(handle, HandleState::Chosen);
            page += record.pages;
            if previous.is_some() {
                self.pages.handle_mut(previous).chain = next;
            } else {
                idle.first = next;
            }
            handle = next;
        }
        Ok(page)
    }

    /// Returns whether a handle may have one more mapping. If it has as many as it may have, the plan unmaps the oldest
    /// cached one that can be unmapped.
    fn make_room_for_mapping(&mut self, plan: &mut PagePlan, handle: HandleLink) -> bool {
        let (mut mapping, mut oldest) = (self.pages.handle(handle).first, MappingLink::NIL);
        let mut mappings = 0;
        while mapping.is_some() {
            mappings += 1;
            if self.can_unmap(mapping) {
                oldest = mapping;
            }
            mapping = self.pages.mapping(mapping).sibling;
        }
        if mappings < MAPPINGS_A_HANDLE {
            return true;
        }
        if oldest.is_some() {
            self.unmap_by(plan, oldest);
        }
        oldest.is_some()
    }

    /// Creates memory for the pages from `start` on, in handles of about equal size.
    fn create_into(&mut self, plan: &mut PagePlan, start: u32, end: u32) -> Option<()> {
        let (mut page, mut left) = (start, end - start);
        let mut pieces = left.div_ceil(self.max_pages_of_handle(left, plan.is_backing()));
        while left > 0 {
            let size = left.div_ceil(pieces.max(1));
            let handle = self.pages.add_handle(size)?;
            let Some(mapping) = self.pages.add_mapping(handle, page) else {
                self.pages.remove_handle(handle);
                return None;
            };
            self.push(&mut plan.maps, mapping);
            plan.creating += self.page_bytes(size);
            page += size;
            left -= size;
            pieces -= 1;
        }
        Some(())
    }

    /// Lets the plan release idle handles, if creating memory would otherwise exceed the bytes that may be held, or if
    /// the driver has no more memory. From now on, the bytes to create count as held.
    fn release_for(
        &mut self,
        plan: &mut PagePlan,
        wanted: IdleSearch<'_>,
        squeeze: bool,
    ) -> Result<(), NoPlan> {
        let (taken, max) = (
            self.chunks.taken_bytes(),
            self.max_bytes_within(plan.max_bytes()),
        );
        // If the driver has no more memory, as much must be released as is created.
        let bytes = match plan.creating {
            0 => 0,
            creating if squeeze => creating,
            creating => (taken + creating).saturating_sub(max),
        };
        self.release_idle(
            plan,
            IdleSearch {
                outside: wanted.outside,
                ..self.releasable(plan, bytes, u64::MAX)
            },
        );
        if plan.creating > 0 && taken + plan.creating - plan.releasing > max {
            return Err(NoPlan::Memory(Cause::Limit));
        }
        plan.departed = plan.creating.saturating_sub(plan.releasing);
        self.chunks.depart(plan.departed);
        Ok(())
    }

    /// Returns a query for handles to release, until the plan releases at least `bytes` bytes, and at most `most`.
    pub(super) fn releasable(&self, plan: &PagePlan, bytes: u64, most: u64) -> IdleSearch<'static> {
        let page_bytes = self.config.page_bytes;
        let pages = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let wanted = bytes.saturating_sub(plan.releasing).div_ceil(page_bytes);
        IdleSearch {
            most: pages(most.saturating_sub(plan.releasing) / page_bytes),
            to_release: true,
            ..IdleSearch::new(None, pages(wanted))
        }
    }

    /// Lets the plan release idle handles.
    pub(super) fn release_idle(&mut self, plan: &mut PagePlan, wanted: IdleSearch<'_>) {
        let idle = self.find_idle(wanted);
        let mut handle = idle.first;
        while handle.is_some() {
            let next = self.pages.handle(handle).chain;
            self.release_with(plan, handle);
            handle = next;
        }
    }

    /// Lets the plan release an idle handle: unmaps its cached mappings, then the active one.
    fn release_with(&mut self, plan: &mut PagePlan, handle: HandleLink) {
        self.take_idle(handle, HandleState::Leaving);
        let record = *self.pages.handle(handle);
        let mut mapping = record.first;
        while mapping.is_some() {
            if mapping != record.active {
                self.unmap_by(plan, mapping);
            }
            mapping = self.pages.mapping(mapping).sibling;
        }
        self.unmap_by(plan, record.active);
        plan.releasing += self.page_bytes(record.pages);
    }

    /// Lets the plan unmap a mapping.
    pub(super) fn unmap_by(&mut self, plan: &mut PagePlan, mapping: MappingLink) {
        self.pages.mapping_mut(mapping).state = MappingState::Leaving;
        self.push(&mut plan.unmaps, mapping);
    }

    fn push(&mut self, chain: &mut MappingList, mapping: MappingLink) {
        self.pages.mapping_mut(mapping).chain = MappingLink::NIL;
        if chain.last.is_some() {
            self.pages.mapping_mut(chain.last).chain = mapping;
        } else {
            chain.first = mapping;
        }
        chain.last = mapping;
    }
}
