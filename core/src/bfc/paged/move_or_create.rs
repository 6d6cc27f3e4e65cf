//! Where a plan's memory comes from: cached mappings that are reused, idle handles that move, and what is
//! created; and the handles it releases.

use super::place::Idle;
use super::plan::Bar;
use super::steps::MappingList;
use super::table::{HandleLink, HandleState, MappingLink, MappingState};
use super::{Backing, Bfc, Link, PagePlan, Paged, State};
use crate::bfc::index::AddressIndex;
use crate::error::Cause;

impl<I: AddressIndex> Bfc<'_, I, Paged<'_>> {
    /// Reuses the cached mappings under the block that can be, and lets the others be unmapped.
    pub(super) fn reuse_and_clear(&mut self, plan: &mut PagePlan) -> Result<(), Bar> {
        let mut from = 0;
        while let Some((mut page, end)) = self.filling_run(plan, from) {
            from = end;
            while page < end {
                let mapping = self.memory.pages.at(page);
                if !mapping.is_some() {
                    page += 1;
                    continue;
                }
                let next = self.memory.pages.end(mapping);
                if self.can_reuse(mapping, page, plan.start, plan.end) {
                    let handle = self.memory.pages.mapping(mapping).handle;
                    self.take_source(handle, HandleState::Chosen)
                        .ok_or(Bar::Table)?;
                    self.memory.pages.mapping_mut(mapping).state = MappingState::Reused;
                    self.push(&mut plan.maps, mapping);
                } else if !self.can_unmap(mapping) {
                    return Err(Bar::Memory(Cause::Pending));
                } else {
                    self.memory.pages.mapping_mut(mapping).state = MappingState::Leaving;
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
        let record = *self.memory.pages.handle(handle);
        let from = self.memory.pages.mapping(record.active).page * self.memory.page;
        let to = from + record.pages * self.memory.page;
        // Others may have been taken out of the same chunk since it was seen: what is left of it
        // begins there or follows.
        let mut link = Link(record.source);
        while link.is_some() && self.table.at(link).end() <= from {
            link = self.table.at(link).next;
        }
        let taken = self.take_out(link, from, to)?;
        let record = self.memory.pages.handle_mut(handle);
        record.source = taken.0;
        record.state = state;
        Some(())
    }

    /// Finds memory for what the target still lacks: moved, and created.
    pub(super) fn back_target(
        &mut self,
        plan: &mut PagePlan,
        idle: Idle,
        size: u32,
        squeeze: bool,
    ) -> Result<(), Bar> {
        let gap = self.count_gap(plan);
        let (mut sorted, idle_pages) = self.sort_idle(plan, idle);
        let room =
            u32::try_from(self.room_bytes() / self.memory.config.page_bytes).unwrap_or(u32::MAX);
        let short = gap > room;
        if short && gap - room > idle_pages {
            return Err(Bar::Memory(Cause::Limit));
        }
        let can_move = self.memory.config.backing != Backing::InPlace;
        let moves = can_move && (squeeze || short || self.moves_early(size));
        let mut left_to_move = match self.memory.config.backing {
            _ if !moves => 0,
            Backing::Budget(_) if !squeeze && !self.moves_early(size) => gap.saturating_sub(room),
            _ => gap,
        };
        let (mut from, mut moved) = (0, false);
        while let Some((mut page, mut end)) = self.filling_run(plan, from) {
            while page < end {
                if self.is_reused_at(page) {
                    page = self.memory.pages.end(self.memory.pages.at(page));
                    continue;
                }
                let behind = (page..end)
                    .find(|page| self.is_reused_at(*page))
                    .unwrap_or(end);
                let rest = behind - page;
                let got = self.move_into(plan, &mut sorted, page, rest, &mut left_to_move);
                let got = got?;
                moved |= got > 0;
                let mut pages = rest - got;
                if pages > 0 {
                    let open = behind == end && behind * self.memory.page == self.end();
                    if open && !moved && !squeeze && !short && !plan.coarse {
                        pages = self.fill_ahead(plan, pages);
                        end = self.end() / self.memory.page;
                    }
                    self.create_into(plan, page + got, pages)
                        .ok_or(Bar::Pages)?;
                }
                page += got + pages;
            }
            from = end;
        }
        if moved {
            self.memory.hysteresis.note(size, self.memory.step);
        }
        self.release_for(plan, sorted, squeeze)
    }

    fn is_reused_at(&self, page: u32) -> bool {
        self.memory.pages.mapping(self.memory.pages.at(page)).state == MappingState::Reused
    }

    fn count_gap(&self, plan: &PagePlan) -> u32 {
        let (mut from, mut gap) = (0, 0);
        while let Some((page, end)) = self.filling_run(plan, from) {
            from = end;
            gap += (page..end).filter(|page| !self.is_reused_at(*page)).count() as u32;
        }
        gap
    }

    /// The idle handles that the target does not use itself, the largest first, and their pages.
    pub(super) fn sort_idle(&mut self, plan: &PagePlan, idle: Idle) -> (HandleLink, u32) {
        let (mut sorted, mut pages) = (HandleLink::NIL, 0);
        let mut handle = idle.first;
        while handle.is_some() {
            let next = self.memory.pages.handle(handle).chain;
            if self.is_idle_outside(handle, plan.start, plan.end) {
                pages += self.memory.pages.handle(handle).pages;
                self.memory.pages.handle_mut(handle).chain = sorted;
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
            let next = self.memory.pages.handle(handle).chain;
            self.memory.pages.handle_mut(handle).chain = HandleLink::NIL;
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
                && (!b.is_some()
                    || self.memory.pages.handle(a).pages >= self.memory.pages.handle(b).pages);
            let from = if from_a { &mut a } else { &mut b };
            let handle = *from;
            *from = self.memory.pages.handle(handle).chain;
            if last.is_some() {
                self.memory.pages.handle_mut(last).chain = handle;
            } else {
                first = handle;
            }
            last = handle;
        }
        if last.is_some() {
            self.memory.pages.handle_mut(last).chain = HandleLink::NIL;
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
                self.memory.pages.handle(handle).pages,
                self.memory.pages.handle(handle).chain,
            );
            if pages > rest - got {
                previous = handle;
                handle = next;
                continue;
            }
            let mapping = self
                .memory
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
                self.memory.pages.handle_mut(previous).chain = next;
            } else {
                *sorted = next;
            }
            handle = next;
        }
        Ok(got)
    }

    /// Lengthens the target at the end of the range for growth ahead; gives the pages to create.
    fn fill_ahead(&mut self, plan: &mut PagePlan, pages: u32) -> u32 {
        let end = self.end() / self.memory.page;
        let wanted = self
            .pages_ahead(pages)
            .min(pages + (self.memory.max_pages - end));
        let Some(extra) = wanted.checked_sub(pages).filter(|extra| *extra > 0) else {
            return pages;
        };
        match self.add_at_end(extra * self.memory.page, State::Filling) {
            Some(_) => {
                plan.behind = self.end();
                wanted
            }
            None => pages,
        }
    }

    /// Creates memory for so many pages, in handles of about equal size.
    fn create_into(&mut self, plan: &mut PagePlan, page: u32, pages: u32) -> Option<()> {
        let max = if plan.coarse {
            self.pages_of_coarse_handle(pages)
        } else {
            self.max_pages_of_handle(pages)
        };
        let (mut page, mut left) = (page, pages);
        let mut pieces = pages.div_ceil(max);
        while left > 0 {
            let size = left.div_ceil(pieces.max(1));
            let handle = self.memory.pages.add_handle(size)?;
            let Some(mapping) = self.memory.pages.add_mapping(handle, page) else {
                self.memory.pages.remove_handle(handle);
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
                self.page_bytes(self.memory.pages.handle(handle).pages),
                self.memory.pages.handle(handle).chain,
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
        self.growth.depart(plan.departed);
        Ok(())
    }

    fn list_bytes(&self, sorted: HandleLink) -> u64 {
        let (mut handle, mut bytes) = (sorted, 0);
        while handle.is_some() {
            bytes += self.page_bytes(self.memory.pages.handle(handle).pages);
            handle = self.memory.pages.handle(handle).chain;
        }
        bytes
    }

    /// Whether no queued work can still use an idle handle, through whichever mapping.
    pub(super) fn can_release(&self, handle: HandleLink) -> bool {
        let record = self.memory.pages.handle(handle);
        let chunk = self.table.at(Link(record.source));
        let mut mapping = record.first;
        let mut done = self.streams.pending(chunk.point()).is_none();
        while mapping.is_some() {
            done &= mapping == record.active || self.can_unmap(mapping);
            mapping = self.memory.pages.mapping(mapping).sibling;
        }
        done && record.state == HandleState::Live
    }

    /// Lets the plan release an idle handle: unmaps its cached mappings, then the active one.
    pub(super) fn release_with(&mut self, plan: &mut PagePlan, handle: HandleLink) -> Option<()> {
        self.take_source(handle, HandleState::Leaving)?;
        let record = *self.memory.pages.handle(handle);
        let mut mapping = record.first;
        while mapping.is_some() {
            self.memory.pages.mapping_mut(mapping).state = MappingState::Leaving;
            if mapping != record.active {
                self.push(&mut plan.unmaps, mapping);
            }
            mapping = self.memory.pages.mapping(mapping).sibling;
        }
        self.push(&mut plan.unmaps, record.active);
        plan.releasing += self.page_bytes(record.pages);
        Some(())
    }

    pub(super) fn push(&mut self, chain: &mut MappingList, mapping: MappingLink) {
        self.memory.pages.mapping_mut(mapping).chain = MappingLink::NIL;
        if chain.last.is_some() {
            self.memory.pages.mapping_mut(chain.last).chain = mapping;
        } else {
            chain.first = mapping;
        }
        chain.last = mapping;
    }
}
