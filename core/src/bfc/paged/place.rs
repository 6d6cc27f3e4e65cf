//! Where a block goes that fits into nothing mapped.
//!
//! A *free run* is free chunks side by side, mapped or not. A place in it costs the unmapped pages
//! under the block, less those of cached mappings whose handle lies idle outside the block: to reuse
//! them costs nothing. What is left is the *gap*.
//!
//! * SPOT1 Places in the middle are taken only without a gap; the one at the end of the range with any.
//!   Of these the one with the least gap, then with the fewest pages reused, then the first found,
//!   what is behind everything being looked at last.
//!   (Filling gaps in the middle means unmapping what is cached there, and shatters.)
//! * SPOT2 When SPOT1's does not do, because addresses or memory are short, every place is considered.
//!
//! A place begins at a mapped chunk, at an unmapped chunk that starts a run, or at a cached mapping;
//! under SPOT2 also so that it ends with its run. The bytes for an alignment stay in front.

use super::table::{HandleLink, HandleState, MappingLink, MappingState};
use super::{Bfc, Link, Paged, State};
use crate::bfc::class::Class;
use crate::bfc::index::AddressIndex;
use crate::bfc::search::Need;
use crate::block::{ChunkHandle, Request};
use crate::units::AddrRange;

/// A place for a block, in granules from the start of the range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// The first chunk it takes something of; nil if it begins at the end of the range.
    pub(super) chunk: Link,
    pub(super) start: u32,
    /// Pages that need memory.
    pub(super) gap: u32,
    /// Pages whose cached mapping is reused.
    reused: u32,
}

/// Which places are considered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Candidates {
    /// SPOT1.
    End,
    /// SPOT2.
    Anywhere,
}

/// Idle handles, as a search found them: linked by `chain`, chunk by chunk, each chunk's in address order.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Idle {
    pub(super) first: HandleLink,
    last: HandleLink,
    pub(super) pages: u32,
}

impl<I: AddressIndex> Bfc<'_, I, Paged<'_>> {
    /// Whether a chunk's memory can be used by the request, in order on its own stream; for no
    /// request, whether no queued work uses it.
    pub(super) fn is_usable(&self, link: Link, request: Option<&Request>) -> bool {
        let pending = self.streams.pending(self.table.at(link).point());
        pending.is_none_or(|point| {
            request.is_some_and(|request| {
                point.stream == request.stream
                    && request.freed_by.is_none_or(|by| point.event <= by)
            })
        })
    }

    /// Finds and marks every handle that lies wholly inside one mapped chunk the request may use, or
    /// for no request, that no queued work uses.
    /// O(free chunks of a page or more + their handles).
    pub(super) fn find_idle(&mut self, request: Option<&Request>) -> Idle {
        self.memory.search = self.memory.search.wrapping_add(1);
        let mut idle = Idle::default();
        let mut from = Class::of(self.memory.page).index();
        while let Some(class) = self.bins.next_class(from) {
            let mut link = self.bins.head(class);
            while link.is_some() {
                self.find_idle_in(link, request, &mut idle);
                link = self.table.at(link).next_free();
            }
            from = class.index() + 1;
        }
        self.find_idle_in(self.wilderness, request, &mut idle);
        idle
    }

    fn find_idle_in(&mut self, link: Link, request: Option<&Request>, idle: &mut Idle) {
        let chunk = *self.table.at(link);
        if !chunk.is_free() || !self.is_usable(link, request) {
            return;
        }
        let (mut page, last) = (
            chunk.start.div_ceil(self.memory.page),
            chunk.end() / self.memory.page,
        );
        while page < last {
            let mapping = self.memory.pages.at(page);
            let (first, behind) = (
                self.memory.pages.mapping(mapping).page,
                self.memory.pages.end(mapping),
            );
            let handle = self.memory.pages.mapping(mapping).handle;
            let record = self.memory.pages.handle_mut(handle);
            let movable = record.state == HandleState::Live && record.pins == 0;
            if first == page && behind <= last && movable {
                record.mark = self.memory.search;
                record.source = link.0;
                record.chain = HandleLink::NIL;
                idle.pages += record.pages;
                if idle.last.is_some() {
                    self.memory.pages.handle_mut(idle.last).chain = handle;
                } else {
                    idle.first = handle;
                }
                idle.last = handle;
            }
            page = behind.max(page + 1);
        }
    }

    /// Forgets of the last search what has a part in a range.
    pub(super) fn unmark_idle_in(&mut self, range: AddrRange, idle: Idle) {
        let (start, end) = self.granules_of(range);
        let mut handle = idle.first;
        while handle.is_some() {
            if !self.is_idle_outside(handle, start, end) {
                self.memory.pages.handle_mut(handle).mark = self.memory.search.wrapping_sub(1);
            }
            handle = self.memory.pages.handle(handle).chain;
        }
    }

    /// Whether the last search saw the handle idle, outside the granules from `start` to `end`.
    pub(super) fn is_idle_outside(&self, handle: HandleLink, start: u32, end: u32) -> bool {
        let record = self.memory.pages.handle(handle);
        let first = self.memory.pages.mapping(record.active).page * self.memory.page;
        let behind = first + record.pages * self.memory.page;
        record.mark == self.memory.search
            && record.state == HandleState::Live
            && (behind <= start || first >= end)
    }

    /// The best place; idle handles have been marked. `None` if there are no addresses for any.
    pub(super) fn find_spot(
        &self,
        need: Need,
        request: &Request,
        idle: Idle,
        reach: Candidates,
    ) -> Option<Spot> {
        let mut best = None;
        let (end, last) = (self.end(), self.last_chunk());
        // Without idle memory nothing is reused, so under SPOT1 only the run at the end is of use.
        let middle = reach == Candidates::Anywhere || idle.pages > 0;
        let mut unmapped = if middle || self.is_in_run(last) {
            self.memory.unmapped
        } else {
            Link::NIL
        };
        while unmapped.is_some() {
            let run = self.run_start(unmapped);
            if self.first_unmapped_from(run) == unmapped && (middle || self.reaches_end(unmapped)) {
                self.consider_run(&mut best, run, need, request, reach);
            }
            unmapped = self.table.at(unmapped).next_free();
        }
        // Behind everything, with what is mapped there if the request may use it.
        if self.table.at(last).is_free() && self.is_usable(last, Some(request)) {
            let start = self.table.at(last).start;
            self.consider(&mut best, last, start, need, request, reach);
        } else {
            self.consider(&mut best, Link::NIL, end, need, request, reach);
        }
        best
    }

    /// The place of exactly these addresses, if nothing in it is in use, and no queued work uses it but
    /// that of the request's stream.
    pub(super) fn spot_at(
        &self,
        range: AddrRange,
        need: Need,
        near: Option<ChunkHandle>,
        request: Option<&Request>,
    ) -> Option<Spot> {
        if !self.memory.config.addresses.contains(range)
            || !range.start().is_aligned(self.granule.align())
        {
            return None;
        }
        let base = self.memory.config.addresses.start().get();
        let start = self.granule.count_up(range.start().get() - base)?;
        let near = near.map_or(Link::NIL, |near| Link(near.get()));
        let from = self
            .memory
            .region
            .map_or(Link::NIL, |id| self.chunk_over(id, start, near));
        self.judge_spot(from, start, need, request, Candidates::Anywhere)
    }

    /// First granule behind the range.
    pub(super) fn end(&self) -> u32 {
        self.memory
            .region
            .map_or(0, |id| self.regions.get(id).granules())
    }

    pub(super) fn last_chunk(&self) -> Link {
        self.memory
            .region
            .map_or(Link::NIL, |id| Link(self.regions.get(id).last()))
    }

    fn is_in_run(&self, link: Link) -> bool {
        matches!(self.state(link), State::Free | State::Unmapped)
    }

    fn run_start(&self, from: Link) -> Link {
        let mut link = from;
        while self.is_in_run(self.table.at(link).prev) {
            link = self.table.at(link).prev;
        }
        link
    }

    fn first_unmapped_from(&self, run: Link) -> Link {
        let mut link = run;
        while self.is_in_run(link) && !self.table.at(link).is_unmapped() {
            link = self.table.at(link).next;
        }
        link
    }

    fn consider_run(
        &self,
        best: &mut Option<Spot>,
        run: Link,
        need: Need,
        request: &Request,
        reach: Candidates,
    ) {
        let mut end = self.table.at(run).start;
        let mut link = run;
        while self.is_in_run(link) {
            end = self.table.at(link).end();
            link = self.table.at(link).next;
        }
        let fits =
            |start: u32| link.is_nil() || start.checked_add(need.size).is_some_and(|e| e <= end);
        let mut link = run;
        while self.is_in_run(link) {
            let chunk = *self.table.at(link);
            if !fits(chunk.start) {
                return;
            }
            if !chunk.is_unmapped() || link == run {
                self.consider(best, link, chunk.start, need, request, reach);
            }
            if reach == Candidates::Anywhere
                && let Some(start) = end.checked_sub(need.size)
                && chunk.start < start
                && start < chunk.end()
            {
                self.consider(best, link, start, need, request, reach);
            }
            let mut page = chunk.start / self.memory.page;
            while chunk.is_unmapped() && page < chunk.end() / self.memory.page {
                let mapping = self.memory.pages.at(page);
                if mapping.is_some() && fits(page * self.memory.page) {
                    self.consider(best, link, page * self.memory.page, need, request, reach);
                }
                page = if mapping.is_some() {
                    self.memory.pages.end(mapping)
                } else {
                    page + 1
                };
            }
            link = chunk.next;
        }
    }

    /// Judges one place and keeps it if it is better.
    fn consider(
        &self,
        best: &mut Option<Spot>,
        link: Link,
        start: u32,
        need: Need,
        request: &Request,
        reach: Candidates,
    ) {
        let Some(start) = start.checked_add(self.padding_at(start, need)) else {
            return;
        };
        let Some(spot) = self.judge_spot(link, start, need, Some(request), reach) else {
            return;
        };
        if best.is_none_or(|best| (spot.gap, spot.reused) < (best.gap, best.reused)) {
            *best = Some(spot);
        }
    }

    /// Granules from here to the next multiple of the alignment.
    fn padding_at(&self, start: u32, need: Need) -> u32 {
        let addr = self.memory.config.addresses.start().get() + self.granule.bytes_of(start);
        let number = addr >> self.granule.align().log2();
        // The low 32 bits decide: the alignment is a power of two of at most 2^31 granules.
        (number as u32).wrapping_neg() & (need.align - 1)
    }

    fn judge_spot(
        &self,
        from: Link,
        start: u32,
        need: Need,
        request: Option<&Request>,
        reach: Candidates,
    ) -> Option<Spot> {
        let end = start.checked_add(need.size)?;
        if end.div_ceil(self.memory.page) > self.memory.max_pages {
            return None;
        }
        let mut spot = Spot {
            chunk: Link::NIL,
            start,
            gap: 0,
            reused: 0,
        };
        let mut link = from;
        while link.is_some() && self.table.at(link).start < end {
            let chunk = *self.table.at(link);
            if chunk.end() > start {
                spot.chunk = if spot.chunk.is_some() {
                    spot.chunk
                } else {
                    link
                };
                match chunk.state() {
                    State::Free if self.is_usable(link, request) => {}
                    State::Unmapped => {
                        self.judge_unmapped(&mut spot, link, end)?;
                        if spot.gap > 0 && reach == Candidates::End && !self.reaches_end(link) {
                            return None;
                        }
                    }
                    _ => return None,
                }
            }
            link = chunk.next;
        }
        // What the range still lacks at its end, which is a page's.
        let missing =
            end.max(self.end()) - self.end().max(start / self.memory.page * self.memory.page);
        spot.gap += missing.div_ceil(self.memory.page);
        Some(spot)
    }

    /// Whether only free and unmapped chunks follow.
    fn reaches_end(&self, from: Link) -> bool {
        let mut link = from;
        while self.is_in_run(link) {
            link = self.table.at(link).next;
        }
        link.is_nil()
    }

    /// Counts what an unmapped chunk costs the block that ends at `end`; `None` if some of it cannot
    /// be used now.
    fn judge_unmapped(&self, spot: &mut Spot, link: Link, end: u32) -> Option<()> {
        let chunk = *self.table.at(link);
        let mut page = chunk.start.max(spot.start) / self.memory.page;
        let behind = end
            .div_ceil(self.memory.page)
            .min(chunk.end() / self.memory.page);
        while page < behind {
            let mapping = self.memory.pages.at(page);
            if !mapping.is_some() {
                spot.gap += 1;
                page += 1;
            } else if self.can_reuse(mapping, page, spot.start, end) {
                spot.reused += self.memory.pages.end(mapping) - page;
                page = self.memory.pages.end(mapping);
            } else {
                self.can_unmap(mapping).then_some(())?;
                let next = self.memory.pages.end(mapping).min(behind);
                spot.gap += next - page;
                page = next;
            }
        }
        Some(())
    }

    /// Whether the cached mapping at a page begins there, and its handle can come, once, to a
    /// block over the granules from `start` to `end`.
    pub(super) fn can_reuse(&self, mapping: MappingLink, page: u32, start: u32, end: u32) -> bool {
        let record = self.memory.pages.mapping(mapping);
        record.state == MappingState::Cached
            && record.page == page
            && self.is_idle_outside(record.handle, start, end)
            && !self.cached_before(record.handle, mapping, start, end)
    }

    /// Whether another mapping of the handle, in front of this one under the block, would be reused.
    fn cached_before(
        &self,
        handle: HandleLink,
        mapping: MappingLink,
        start: u32,
        end: u32,
    ) -> bool {
        let page = self.memory.pages.mapping(mapping).page;
        let floor = start / self.memory.page;
        let mut other = self.memory.pages.handle(handle).first;
        while other.is_some() {
            let record = self.memory.pages.mapping(other);
            if other != mapping
                && record.state == MappingState::Cached
                && record.page < page
                && record.page >= floor
                && record.page * self.memory.page < end
            {
                return true;
            }
            other = record.sibling;
        }
        false
    }

    /// Whether no queued work can still use the memory through this cached mapping.
    pub(super) fn can_unmap(&self, mapping: MappingLink) -> bool {
        let record = self.memory.pages.mapping(mapping);
        let point = record.point();
        let done = point.event.number() <= self.streams.completed(point.stream);
        record.state == MappingState::Cached && done
    }
}
