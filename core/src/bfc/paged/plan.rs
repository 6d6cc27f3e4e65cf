//! Building a plan, and what its end means.
//!
//! A plan owns what it touches from the moment it is built: the chunks of its *target*, the place
//! of the block (moving if backed, filling if void), and the *sources*, the backed chunks whose
//! handles it moves, wakes or releases (moving). No two plans share a chunk, a handle or a page.
//! Building needs every chunk record that the plan will ever need, so that neither its success nor
//! its failure can want for one.
//!
//! Success: the memory of the sources is at the target, their places are void, their old mappings
//! sleep. Failure: every chunk is as before; but free chunks may have been cut where void addresses
//! were added at the end of the range, and dormant mappings that were in the way are gone.

use super::place::{Idle, Reach, Spot};
use super::steps::{Chain, Phase};
use super::table::{HandleLink, HandleState, MappingLink, MappingState};
use super::{Backing, Link, PagedBfc, State};
use crate::bfc::chunk::Chunk;
use crate::bfc::index::AddressIndex;
use crate::bfc::search::Need;
use crate::block::{Grant, Request};
use crate::error::{AllocError, Cause};
use crate::lane::Stamp;

/// What the driver of a [`PagedBfc`] has to do next.
#[derive(Debug)]
#[must_use]
pub enum PagedStep {
    /// Done: the block.
    Ready(Grant),
    /// Make the calls of the plan, then [`PagedBfc::finish`].
    Plan(PagePlan),
    /// Done: there is no memory.
    Failed(AllocError),
}

/// How far one allocation has come. Belongs to the thread that allocates.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttempt {
    request: Request,
    /// Plans of this attempt that were refused.
    refusals: u8,
    /// Sleeping mappings were unmapped for it.
    forgot: bool,
}

impl PagedAttempt {
    /// The start of an allocation.
    pub const fn new(request: Request) -> Self {
        Self {
            request,
            refusals: 0,
            forgot: false,
        }
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
/// Comes back by [`PagedBfc::finish`] after the last call; one that is dropped keeps what it
/// touches for good.
#[derive(Debug)]
#[must_use = "what a plan touches is out of use until it is finished"]
pub struct PagePlan {
    pub(super) phase: Phase,
    /// To unmap: sleepers in the way, and all mappings of handles to release.
    pub(super) unmaps: Chain,
    /// To wake, then to map by address.
    pub(super) maps: Chain,
    /// First chunk of the target, and the granule behind its last one.
    target: Link,
    behind: u32,
    /// The block's granules.
    start: u32,
    end: u32,
    request: Option<Request>,
    /// Bytes to create, and how many of them count as under way.
    pub(super) creating: u64,
    pub(super) departed: u64,
    pub(super) releasing: u64,
    /// Bytes released so far.
    pub(super) released: u64,
    pub(super) owner: u32,
}

impl PagePlan {
    pub(super) const fn new(owner: u32) -> Self {
        Self {
            phase: Phase::Begin,
            unmaps: Chain::EMPTY,
            maps: Chain::EMPTY,
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
enum Bar {
    /// The chunk table has no record for it.
    Table,
    /// The tables of pages have none.
    Pages,
    Memory(Cause),
}

impl<I: AddressIndex> PagedBfc<'_, I> {
    /// Goes on with an allocation until it is done or needs the driver.
    pub fn step(&mut self, attempt: &mut PagedAttempt) -> PagedStep {
        let request = attempt.request;
        self.bfc.lanes.meet(request.lane);
        let need = match self.bfc.need(&request) {
            Ok(need) => need,
            Err(error) => return PagedStep::Failed(error),
        };
        if let Some(found) = self.bfc.search_fully(need, &request) {
            return match self.bfc.take(found, need, &request) {
                Ok(grant) => PagedStep::Ready(grant),
                Err(error) => PagedStep::Failed(error),
            };
        }
        if attempt.refusals > 1 || self.bfc.exceeds_limit(need) {
            // The driver said no, unless it was a limit lowered meanwhile.
            let cause = if self.room_bytes() == 0 {
                Cause::Limit
            } else {
                Cause::SubAllocator
            };
            return self.failed(need, &request, Bar::Memory(cause));
        }
        let planned = match self.plan_for(need, &request, attempt.refusals > 0) {
            // Sleepers use the records: those of some are enough for this attempt.
            Err(Bar::Pages) if !attempt.forgot => {
                attempt.forgot = true;
                self.plan_forgetting().ok_or(Bar::Pages)
            }
            planned => planned,
        };
        match planned {
            Ok(mut plan) => {
                if self.next_step(&mut plan).is_some() {
                    return PagedStep::Plan(plan);
                }
                match self.finish(plan) {
                    Some(grant) => PagedStep::Ready(grant),
                    None => self.failed(need, &request, Bar::Memory(Cause::Limit)),
                }
            }
            Err(bar) => self.failed(need, &request, bar),
        }
    }

    /// A plan that unmaps sleeping mappings, a quarter of all records at most, so that others can
    /// be mapped. O(mappings).
    fn plan_forgetting(&mut self) -> Option<PagePlan> {
        let mut plan = PagePlan::new(self.bfc.table.owner());
        let mut left = self.pages.mappings().div_ceil(4);
        for number in 1..self.pages.mappings() {
            let mapping = MappingLink(number);
            if left > 0 && self.can_unmap(mapping) {
                self.pages.mapping_mut(mapping).state = MappingState::Leaving;
                self.push(&mut plan.unmaps, mapping);
                left -= 1;
            }
        }
        if !plan.unmaps.first.is_some() {
            return None;
        }
        self.plans += 1;
        Some(plan)
    }

    fn failed(&mut self, need: Need, request: &Request, bar: Bar) -> PagedStep {
        PagedStep::Failed(match bar {
            Bar::Table => self.bfc.table_full(),
            Bar::Pages => AllocError::PagesFull {
                handles: self.pages.handles() - 1,
                mappings: self.pages.mappings() - 1,
            },
            Bar::Memory(cause) => self.bfc.out_of_memory(need, request, cause),
        })
    }

    /// A plan whose success serves the request.
    fn plan_for(&mut self, need: Need, request: &Request, squeeze: bool) -> Result<PagePlan, Bar> {
        let mut bar = Bar::Memory(Cause::Addresses);
        let in_place = self.config.backing == Backing::InPlace;
        for reach in [Reach::End, Reach::Anywhere] {
            if (squeeze || in_place) && reach == Reach::End {
                continue;
            }
            let idle = self.find_idle(Some(request));
            let Some(spot) = self.find_spot(need, request, idle, reach) else {
                continue;
            };
            match self.build(spot, need, request, idle, squeeze) {
                Ok(plan) => return Ok(plan),
                Err(Bar::Memory(cause)) => bar = Bar::Memory(cause),
                Err(full) => return Err(full),
            }
        }
        Err(bar)
    }

    fn build(
        &mut self,
        spot: Spot,
        need: Need,
        request: &Request,
        idle: Idle,
        squeeze: bool,
    ) -> Result<PagePlan, Bar> {
        let mut plan = PagePlan::new(self.bfc.table.owner());
        plan.request = Some(*request);
        (plan.start, plan.end) = (spot.start, spot.start + need.size);
        self.plans += 1;
        let built = self
            .take_target(&mut plan, spot)
            .ok_or(Bar::Table)
            .and_then(|()| {
                self.wake_and_clear(&mut plan)?;
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
        self.fail(&mut plan);
        // Nothing was mapped or created, so there is nothing to call.
        let call = self.next_step(&mut plan);
        debug_assert!(call.is_none(), "an abandoned plan wants a call: {call:?}");
        self.finish(plan);
    }

    /// Makes the chunks under the block, and the pages they touch, the plan's. `None` if the chunk
    /// table is full.
    fn take_target(&mut self, plan: &mut PagePlan, spot: Spot) -> Option<()> {
        let floor = plan.start / self.page * self.page;
        let ceiling = self.ceiling(plan);
        let mut link = spot.chunk;
        plan.behind = floor;
        while link.is_some() && self.bfc.table.at(link).start < plan.end {
            let (from, to) = if self.bfc.table.at(link).is_void() {
                (floor, ceiling)
            } else {
                (plan.start, plan.end)
            };
            let taken = self.take_out(link, from, to)?;
            link = self.own(plan, taken)?;
        }
        if plan.end > self.end() {
            if floor > self.end() {
                let empty = self.add_at_end(floor - self.end(), State::Void)?;
                self.join_void(empty);
            }
            let filling = self.add_at_end(ceiling - self.end(), State::Filling)?;
            self.own(plan, filling)?;
        }
        Some(())
    }

    /// First granule behind the pages that come with the block.
    fn ceiling(&self, plan: &PagePlan) -> u32 {
        let pages = plan.end.div_ceil(self.page);
        let mapping = self.pages.at(pages.wrapping_sub(1));
        let first = self.pages.mapping(mapping).page;
        let wakes = mapping.is_some() && self.can_wake(mapping, first, plan.start, plan.end);
        let wakes = wakes && first * self.page >= plan.start / self.page * self.page;
        let pages = if wakes {
            self.pages.end(mapping)
        } else {
            pages
        };
        pages * self.page
    }

    /// Takes what a free or void chunk has between two granules out of it and its list.
    fn take_out(&mut self, link: Link, from: u32, to: u32) -> Option<Link> {
        let chunk = *self.bfc.table.at(link);
        let cuts = u32::from(chunk.start < from) + u32::from(chunk.end() > to);
        if self.bfc.table.available() < cuts {
            return None;
        }
        let is_void = chunk.is_void();
        let relist = |this: &mut Self, link| {
            if is_void {
                this.list_void(link);
            } else {
                this.bfc.list(link);
            }
        };
        if is_void {
            self.unlist_void(link);
        } else {
            self.bfc.unlist(link);
        }
        let mut taken = link;
        if chunk.start < from {
            taken = self.cut(link, from - chunk.start)?;
        }
        let rest = if chunk.end() > to {
            Some(self.cut(taken, to - self.bfc.table.at(taken).start)?)
        } else {
            None
        };
        let state = if is_void {
            State::Filling
        } else {
            State::Moving
        };
        self.bfc.table.at_mut(taken).set_state(state);
        // Only now, as what ends the range is listed otherwise.
        if taken != link {
            relist(self, link);
        }
        if let Some(rest) = rest {
            relist(self, rest);
        }
        Some(taken)
    }

    /// Makes a taken chunk part of the target, cut at the block's ends; gives the chunk behind it.
    fn own(&mut self, plan: &mut PagePlan, taken: Link) -> Option<Link> {
        if plan.target.is_nil() {
            plan.target = taken;
        }
        let mut part = taken;
        for at in [plan.start, plan.end] {
            let chunk = *self.bfc.table.at(part);
            plan.behind = chunk.end();
            if chunk.start < at && at < chunk.end() {
                part = self.cut(part, at - chunk.start)?;
            }
        }
        Some(self.bfc.table.at(part).next)
    }

    /// Cuts an unlisted chunk in two behind its first granules; gives the second.
    fn cut(&mut self, link: Link, front: u32) -> Option<Link> {
        let old = *self.bfc.table.at(link);
        let mut rest = old;
        rest.start += front;
        rest.size -= front;
        rest.prev = link;
        let new = self.bfc.table.insert(rest)?;
        if rest.state() != State::Void {
            self.bfc.lanes.count(None, rest.stamp());
        }
        let chunk = self.bfc.table.at_mut(link);
        chunk.size = front;
        chunk.next = new;
        self.bfc.link_before(old.next, new, &rest);
        Some(new)
    }

    /// A chunk in no list behind the last one.
    fn add_at_end(&mut self, granules: u32, state: State) -> Option<Link> {
        if let Some(id) = self.region {
            let region = *self.bfc.regions.get(id);
            let mut chunk = Chunk::new(region.granules(), granules, id);
            chunk.prev = Link(region.last());
            chunk.set_state(state);
            let link = self.bfc.table.insert(chunk)?;
            if self.bfc.tail.is_some() {
                let old = core::mem::take(&mut self.bfc.tail);
                self.bfc.bins.insert(&mut self.bfc.table, old);
            }
            self.bfc.table.at_mut(chunk.prev).next = link;
            let region = self.bfc.regions.get_mut(id);
            region.set_granules(chunk.end());
            region.set_last(link.0);
            return Some(link);
        }
        let link = self.bfc.table.insert(Chunk::VACANT)?;
        let base = self.config.addresses.start().get();
        let Some(id) = self.bfc.regions.insert(base, granules, link.0) else {
            self.bfc.table.remove(link);
            return None;
        };
        let mut chunk = Chunk::new(0, granules, id);
        chunk.set_state(state);
        *self.bfc.table.at_mut(link) = chunk;
        self.bfc.set_newest(id);
        self.region = Some(id);
        Some(link)
    }

    /// The runs of filling pages of the target, the first at or behind `page`.
    fn filling_run(&self, plan: &PagePlan, page: u32) -> Option<(u32, u32)> {
        let mut run: Option<(u32, u32)> = None;
        let mut link = plan.target;
        while link.is_some() && self.bfc.table.at(link).start < plan.behind {
            let chunk = self.bfc.table.at(link);
            let filling = chunk.state() == State::Filling;
            match &mut run {
                Some((_, end)) if filling => *end = chunk.end().div_ceil(self.page),
                Some(_) => return run,
                None if filling && chunk.start / self.page >= page => {
                    run = Some((chunk.start / self.page, chunk.end().div_ceil(self.page)));
                }
                None => {}
            }
            link = chunk.next;
        }
        run
    }

    /// Wakes what can be woken under the block and lets the other sleepers be unmapped.
    fn wake_and_clear(&mut self, plan: &mut PagePlan) -> Result<(), Bar> {
        let mut from = 0;
        while let Some((mut page, end)) = self.filling_run(plan, from) {
            from = end;
            while page < end {
                let mapping = self.pages.at(page);
                if !mapping.is_some() {
                    page += 1;
                    continue;
                }
                let next = self.pages.end(mapping);
                if self.can_wake(mapping, page, plan.start, plan.end) {
                    let handle = self.pages.mapping(mapping).handle;
                    self.take_source(handle, HandleState::Chosen)
                        .ok_or(Bar::Table)?;
                    self.pages.mapping_mut(mapping).state = MappingState::Waking;
                    self.push(&mut plan.maps, mapping);
                } else if !self.can_unmap(mapping) {
                    return Err(Bar::Memory(Cause::Pending));
                } else {
                    self.pages.mapping_mut(mapping).state = MappingState::Leaving;
                    self.push(&mut plan.unmaps, mapping);
                }
                page = next;
            }
        }
        Ok(())
    }

    /// Takes the chunk of an idle handle out of the free one it lies in. `None` if the chunk table
    /// is full.
    pub(super) fn take_source(&mut self, handle: HandleLink, state: HandleState) -> Option<()> {
        let record = *self.pages.handle(handle);
        let from = self.pages.mapping(record.active).page * self.page;
        let to = from + record.pages * self.page;
        // Others may have been taken out of the same chunk since it was seen: what is left of it
        // begins there or follows.
        let mut link = Link(record.source);
        while link.is_some() && self.bfc.table.at(link).end() <= from {
            link = self.bfc.table.at(link).next;
        }
        let taken = self.take_out(link, from, to)?;
        let record = self.pages.handle_mut(handle);
        record.source = taken.0;
        record.state = state;
        Some(())
    }

    /// Finds memory for what the target still lacks: moved, and created.
    fn back_target(
        &mut self,
        plan: &mut PagePlan,
        idle: Idle,
        size: u32,
        squeeze: bool,
    ) -> Result<(), Bar> {
        let gap = self.count_gap(plan);
        let (mut sorted, idle_pages) = self.sort_idle(plan, idle);
        let room = u32::try_from(self.room_bytes() / self.config.page_bytes).unwrap_or(u32::MAX);
        let short = gap > room;
        if short && gap - room > idle_pages {
            return Err(Bar::Memory(Cause::Limit));
        }
        let can_move = self.config.backing != Backing::InPlace;
        let moves = can_move && (squeeze || short || self.moves_early(size));
        let mut left_to_move = match self.config.backing {
            _ if !moves => 0,
            Backing::Budget(_) if !squeeze && !self.moves_early(size) => gap.saturating_sub(room),
            _ => gap,
        };
        let (mut from, mut moved) = (0, false);
        while let Some((mut page, mut end)) = self.filling_run(plan, from) {
            while page < end {
                if self.wakes_at(page) {
                    page = self.pages.end(self.pages.at(page));
                    continue;
                }
                let behind = (page..end).find(|page| self.wakes_at(*page)).unwrap_or(end);
                let rest = behind - page;
                let got = self.move_into(plan, &mut sorted, page, rest, &mut left_to_move);
                let got = got?;
                moved |= got > 0;
                let mut pages = rest - got;
                if pages > 0 {
                    let open = behind == end && behind * self.page == self.end();
                    if open && !moved && !squeeze && !short {
                        pages = self.fill_ahead(plan, pages);
                        end = self.end() / self.page;
                    }
                    self.create_into(plan, page + got, pages)
                        .ok_or(Bar::Pages)?;
                }
                page += got + pages;
            }
            from = end;
        }
        if moved {
            self.hysteresis.note(size, self.step);
        }
        self.release_for(plan, sorted, squeeze)
    }

    fn wakes_at(&self, page: u32) -> bool {
        self.pages.mapping(self.pages.at(page)).state == MappingState::Waking
    }

    fn count_gap(&self, plan: &PagePlan) -> u32 {
        let (mut from, mut gap) = (0, 0);
        while let Some((page, end)) = self.filling_run(plan, from) {
            from = end;
            gap += (page..end).filter(|page| !self.wakes_at(*page)).count() as u32;
        }
        gap
    }

    /// The idle handles that the target does not use itself, the largest first, and their pages.
    pub(super) fn sort_idle(&mut self, plan: &PagePlan, idle: Idle) -> (HandleLink, u32) {
        let (mut sorted, mut pages) = (HandleLink::NIL, 0);
        let mut handle = idle.first;
        while handle.is_some() {
            let next = self.pages.handle(handle).chain;
            if self.is_idle_outside(handle, plan.start, plan.end) {
                pages += self.pages.handle(handle).pages;
                self.pages.handle_mut(handle).smaller = sorted;
                sorted = handle;
            }
            handle = next;
        }
        (self.sort_by_size(sorted), pages)
    }

    /// Merges runs of the list by size, largest first: O(n log n), nothing but the links.
    fn sort_by_size(&mut self, list: HandleLink) -> HandleLink {
        // Sorted lists of 1, 2, 4 ... handles, as the digits of a binary number.
        let mut digits = [HandleLink::NIL; 32];
        let mut handle = list;
        while handle.is_some() {
            let next = self.pages.handle(handle).smaller;
            self.pages.handle_mut(handle).smaller = HandleLink::NIL;
            let mut carry = handle;
            for digit in &mut digits {
                if !digit.is_some() {
                    *digit = carry;
                    break;
                }
                carry = self.merge(core::mem::take(digit), carry);
            }
            handle = next;
        }
        digits
            .into_iter()
            .fold(HandleLink::NIL, |sorted, digit| self.merge(sorted, digit))
    }

    fn merge(&mut self, a: HandleLink, b: HandleLink) -> HandleLink {
        let (mut a, mut b, mut first, mut last) = (a, b, HandleLink::NIL, HandleLink::NIL);
        while a.is_some() || b.is_some() {
            let from_a = a.is_some()
                && (!b.is_some() || self.pages.handle(a).pages >= self.pages.handle(b).pages);
            let from = if from_a { &mut a } else { &mut b };
            let handle = *from;
            *from = self.pages.handle(handle).smaller;
            if last.is_some() {
                self.pages.handle_mut(last).smaller = handle;
            } else {
                first = handle;
            }
            last = handle;
        }
        if last.is_some() {
            self.pages.handle_mut(last).smaller = HandleLink::NIL;
        }
        first
    }

    /// Moves the largest idle handles that fit into `rest` pages from `page` on, until `left` pages
    /// are moved. Gives the pages.
    fn move_into(
        &mut self,
        plan: &mut PagePlan,
        sorted: &mut HandleLink,
        page: u32,
        rest: u32,
        left: &mut u32,
    ) -> Result<u32, Bar> {
        let mut got = 0;
        let (mut previous, mut handle) = (HandleLink::NIL, *sorted);
        while handle.is_some() && got < rest && *left > 0 {
            let (pages, next) = (
                self.pages.handle(handle).pages,
                self.pages.handle(handle).smaller,
            );
            if pages > rest - got {
                previous = handle;
                handle = next;
                continue;
            }
            let mapping = self
                .pages
                .add_mapping(handle, page + got)
                .ok_or(Bar::Pages)?;
            // In the chain before anything else can fail, so that undoing finds it.
            self.push(&mut plan.maps, mapping);
            self.take_source(handle, HandleState::Chosen)
                .ok_or(Bar::Table)?;
            got += pages;
            *left = left.saturating_sub(pages);
            if previous.is_some() {
                self.pages.handle_mut(previous).smaller = next;
            } else {
                *sorted = next;
            }
            handle = next;
        }
        Ok(got)
    }

    /// Lengthens the target at the end of the range for growth ahead; gives the pages to create.
    fn fill_ahead(&mut self, plan: &mut PagePlan, pages: u32) -> u32 {
        let end = self.end() / self.page;
        let wanted = self.pages_ahead(pages).min(pages + (self.most_pages - end));
        let Some(extra) = wanted.checked_sub(pages).filter(|extra| *extra > 0) else {
            return pages;
        };
        match self.add_at_end(extra * self.page, State::Filling) {
            Some(_) => {
                plan.behind = self.end();
                wanted
            }
            None => pages,
        }
    }

    /// Creates memory for so many pages, in handles of about equal size.
    fn create_into(&mut self, plan: &mut PagePlan, page: u32, pages: u32) -> Option<()> {
        let most = self.most_pages_of_handle(pages);
        let (mut page, mut left) = (page, pages);
        let mut pieces = pages.div_ceil(most);
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

    /// Releases idle handles that fitted nowhere, as far as creating would else pass what may be
    /// held, or what the driver has. Counts what is created from now on.
    fn release_for(
        &mut self,
        plan: &mut PagePlan,
        sorted: HandleLink,
        squeeze: bool,
    ) -> Result<(), Bar> {
        let room = self.room_bytes();
        // If the driver has no more, whatever is idle makes room.
        let wanted = if squeeze {
            plan.creating
        } else {
            plan.creating.saturating_sub(room)
        };
        let mut handle = sorted;
        // The smallest first: they are the last of the list, so what is too much is skipped.
        let mut surplus = self.list_bytes(sorted).saturating_sub(wanted);
        while handle.is_some() && plan.releasing < wanted {
            let (bytes, next) = (
                self.page_bytes(self.pages.handle(handle).pages),
                self.pages.handle(handle).smaller,
            );
            if bytes <= surplus {
                surplus -= bytes;
            } else if self.can_release(handle) {
                self.release_with(plan, handle).ok_or(Bar::Table)?;
            }
            handle = next;
        }
        if plan.creating > room + plan.releasing {
            return Err(Bar::Memory(Cause::Limit));
        }
        plan.departed = plan.creating.saturating_sub(plan.releasing);
        self.bfc.growth.depart(plan.departed);
        Ok(())
    }

    fn list_bytes(&self, sorted: HandleLink) -> u64 {
        let (mut handle, mut bytes) = (sorted, 0);
        while handle.is_some() {
            bytes += self.page_bytes(self.pages.handle(handle).pages);
            handle = self.pages.handle(handle).smaller;
        }
        bytes
    }

    /// Whether no queued work can still use an idle handle, through whichever mapping.
    pub(super) fn can_release(&self, handle: HandleLink) -> bool {
        let record = self.pages.handle(handle);
        let chunk = self.bfc.table.at(Link(record.source));
        let mut mapping = record.first;
        let mut done = self.bfc.lanes.pending(chunk.stamp()).is_none();
        while mapping.is_some() {
            done &= mapping == record.active || self.can_unmap(mapping);
            mapping = self.pages.mapping(mapping).sibling;
        }
        done && record.state == HandleState::Live
    }

    /// Lets the plan release an idle handle: unmaps where it sleeps, then where it is.
    pub(super) fn release_with(&mut self, plan: &mut PagePlan, handle: HandleLink) -> Option<()> {
        self.take_source(handle, HandleState::Leaving)?;
        let record = *self.pages.handle(handle);
        let mut mapping = record.first;
        while mapping.is_some() {
            self.pages.mapping_mut(mapping).state = MappingState::Leaving;
            if mapping != record.active {
                self.push(&mut plan.unmaps, mapping);
            }
            mapping = self.pages.mapping(mapping).sibling;
        }
        self.push(&mut plan.unmaps, record.active);
        plan.releasing += self.page_bytes(record.pages);
        Some(())
    }

    pub(super) fn push(&mut self, chain: &mut Chain, mapping: MappingLink) {
        self.pages.mapping_mut(mapping).chain = MappingLink::NIL;
        if chain.last.is_some() {
            self.pages.mapping_mut(chain.last).chain = mapping;
        } else {
            chain.first = mapping;
        }
        chain.last = mapping;
    }

    /// Ends a plan after its last call: the block, if it was for one and no call was refused.
    ///
    /// A plan that has calls left is undone as far as that needs none; the rest of what it touched
    /// stays out of use. A plan of another allocator changes nothing.
    pub fn finish(&mut self, plan: PagePlan) -> Option<Grant> {
        let mut plan = plan;
        if plan.owner != self.bfc.table.owner() || self.next_step(&mut plan).is_some() {
            return None;
        }
        self.plans = self.plans.saturating_sub(1);
        self.bfc.growth.arrive(plan.departed);
        if !plan.succeeded() {
            self.restore_target(&plan);
            return None;
        }
        self.commit(&plan)
    }

    fn commit(&mut self, plan: &PagePlan) -> Option<Grant> {
        let mut mapping = plan.maps.first;
        // What uses the moved memory still: all of it on the request's lane.
        let mut latest: Option<Stamp> = None;
        while mapping.is_some() {
            let record = *self.pages.mapping(mapping);
            let handle = *self.pages.handle(record.handle);
            if handle.active.is_some() {
                let source = Link(handle.source);
                let stamp = self.bfc.lanes.pending(self.bfc.table.at(source).stamp());
                let old = self.pages.mapping_mut(handle.active);
                old.state = MappingState::Dormant;
                old.set_stamp(stamp);
                if latest.is_none_or(|latest| stamp.is_some_and(|stamp| stamp.epoch > latest.epoch))
                {
                    latest = stamp;
                }
                self.empty(source);
            }
            let record = self.pages.handle_mut(record.handle);
            record.active = mapping;
            record.state = HandleState::Live;
            let record = self.pages.mapping_mut(mapping);
            record.state = MappingState::Active;
            record.set_stamp(None);
            mapping = record.chain;
        }
        let counters = &mut self.bfc.counters;
        counters.reserved += plan.creating / self.bfc.granule.bytes();
        counters.peak_reserved = counters.peak_reserved.max(counters.reserved);
        self.bfc.note_limit();
        self.commit_target(plan, latest)
    }

    /// A source loses its memory: its addresses are void.
    pub(super) fn empty(&mut self, link: Link) {
        self.bfc.restamp(link, None);
        self.bfc.table.at_mut(link).set_state(State::Void);
        self.join_void(link);
    }

    /// The parts under the block become one used chunk, the others free ones, which work up to
    /// `latest` may still use.
    fn commit_target(&mut self, plan: &PagePlan, latest: Option<Stamp>) -> Option<Grant> {
        let stamp = latest.and_then(|latest| self.bfc.stored(latest).flatten());
        let (mut link, mut block) = (plan.target, Link::NIL);
        while link.is_some() {
            let chunk = *self.bfc.table.at(link);
            // What follows the last part may be joined to it.
            let next = if chunk.end() < plan.behind {
                chunk.next
            } else {
                Link::NIL
            };
            self.bfc.restamp(link, None);
            if chunk.start < plan.start || chunk.start >= plan.end {
                self.bfc.table.at_mut(link).set_free();
                self.bfc.restamp(link, stamp);
                self.bfc.join_and_list(link);
            } else if block.is_nil() {
                block = link;
            } else {
                self.bfc.absorb_next(block, link);
            }
            link = next;
        }
        let request = plan.request?;
        Some(Grant {
            block: self.bfc.mark_used(block, request.bytes),
            wait: None,
        })
    }

    /// The parts become what they were.
    fn restore_target(&mut self, plan: &PagePlan) {
        let mut link = plan.target;
        while link.is_some() {
            let chunk = *self.bfc.table.at(link);
            self.restore(link);
            // What follows the last part may have been joined to it.
            link = if chunk.end() < plan.behind {
                chunk.next
            } else {
                Link::NIL
            };
        }
    }

    /// A chunk of a plan becomes free or void again.
    pub(super) fn restore(&mut self, link: Link) {
        if self.state(link) == State::Filling {
            self.bfc.table.at_mut(link).set_state(State::Void);
            return self.join_void(link);
        }
        let chunk = self.bfc.table.at_mut(link);
        chunk.set_state(State::Free);
        self.bfc.join_and_list(link);
    }

    /// Enters a void chunk in the list.
    pub(super) fn list_void(&mut self, link: Link) {
        let old = self.voids;
        let chunk = self.bfc.table.at_mut(link);
        chunk.set_next_free(old);
        chunk.set_previous_free(Link::NIL);
        if old.is_some() {
            self.bfc.table.at_mut(old).set_previous_free(link);
        }
        self.voids = link;
    }

    fn unlist_void(&mut self, link: Link) {
        let chunk = self.bfc.table.at(link);
        let (next, previous) = (chunk.next_free(), chunk.previous_free());
        if next.is_some() {
            self.bfc.table.at_mut(next).set_previous_free(previous);
        }
        if previous.is_some() {
            self.bfc.table.at_mut(previous).set_next_free(next);
        } else {
            self.voids = next;
        }
    }

    /// Joins an unlisted void chunk with its void neighbours and lists the result.
    fn join_void(&mut self, link: Link) {
        let Chunk { prev, next, .. } = *self.bfc.table.at(link);
        if self.bfc.table.at(next).is_void() {
            self.unlist_void(next);
            self.bfc.absorb_next(link, next);
        }
        if self.bfc.table.at(prev).is_void() {
            self.bfc.absorb_next(prev, link);
            return;
        }
        self.list_void(link);
    }
}
