//! The walk over PAGE1 to PAGE8, after that over the invariants of the chunks.

use super::table::{HandleState, MappingState};
use super::{Bfc, Link, Paged, State};
use crate::bfc::Violation;
use crate::bfc::check::check;
use crate::bfc::index::AddressIndex;

impl<I: AddressIndex> Bfc<'_, I, Paged<'_>> {
    /// Walks the invariants of the pages.
    pub(super) fn check_pages(&self) -> Result<(), Violation> {
        self.check_handles()?;
        self.check_places()?;
        self.check_chunks()?;
        self.check_unmapped()
    }

    /// PAGE1, PAGE3, PAGE7, and PAGE8 of handles and mappings.
    fn check_handles(&self) -> Result<(), Violation> {
        let (handles, mappings) = (&self.memory.pages.handles, &self.memory.pages.mappings);
        let vacant = handles.is_sound(|handle| handle.state == HandleState::Vacant)
            && mappings.is_sound(|mapping| mapping.state == MappingState::Vacant);
        check(vacant, "PAGE1", 0u32)?;
        let (mut held, mut lost, mut mapped) = (0, 0, 0);
        for link in handles.links() {
            let number = link.0;
            let handle = *self.memory.pages.handle(link);
            let bytes = self.page_bytes(handle.pages);
            let mut active = !handle.active.is_some();
            let mut mapping = handle.first;
            while mapping.is_some() && handle.state != HandleState::Vacant {
                let record = self.memory.pages.mapping(mapping);
                check(record.handle == link, "PAGE3", mapping.0)?;
                active |= mapping == handle.active;
                mapped += 1;
                check(mapped <= mappings.in_use(), "PAGE3", number)?;
                mapping = record.sibling;
            }
            check(active, "PAGE3", number)?;
            match handle.state {
                HandleState::Vacant => {}
                HandleState::Lost => lost += bytes,
                HandleState::Planned => check(self.memory.plans > 0, "PAGE8", number)?,
                HandleState::Live => {
                    let state = self.memory.pages.mapping(handle.active).state;
                    check(state == MappingState::Active, "PAGE3", number)?;
                    held += bytes;
                }
                HandleState::Chosen => {
                    check(self.memory.plans > 0, "PAGE8", number)?;
                    held += if handle.active.is_some() { bytes } else { 0 };
                }
                HandleState::Leaving => {
                    check(self.memory.plans > 0, "PAGE8", number)?;
                    held += bytes;
                }
            }
        }
        check(mapped == mappings.in_use(), "PAGE3", 0u32)?;
        check(held == self.reserved_bytes(), "PAGE7", 0u32)?;
        check(lost == self.memory.lost, "PAGE7", 0u32)
    }

    /// PAGE2, PAGE4.
    fn check_places(&self) -> Result<(), Violation> {
        let mut pages = 0;
        for page in 0..self.memory.pages.places() {
            let mapping = self.memory.pages.at(page);
            if mapping.is_some() {
                let first = self.memory.pages.mapping(mapping).page;
                let inside = first <= page && page < self.memory.pages.end(mapping);
                check(inside, "PAGE2", mapping.0)?;
                pages += 1;
            }
        }
        let mut expected = 0;
        for link in self.memory.pages.mappings.links() {
            let record = self.memory.pages.mapping(link);
            let known = match record.state {
                MappingState::Vacant => false,
                MappingState::Planned => self.memory.pages.at(record.page) == link,
                _ => true,
            };
            if known {
                expected += self.memory.pages.handle(record.handle).pages;
            }
        }
        check(pages == expected, "PAGE2", 0u32)
    }

    /// PAGE5, and PAGE8 of chunks.
    fn check_chunks(&self) -> Result<(), Violation> {
        let Some(id) = self.memory.region else {
            return check(self.reserved_bytes() == 0, "PAGE5", 0u32);
        };
        let mut link = Link(self.regions.get(id).first());
        while link.is_some() {
            let chunk = *self.table.at(link);
            let (page, end) = self.touched(&chunk);
            let whole = chunk.start.is_multiple_of(self.memory.page)
                && chunk.end().is_multiple_of(self.memory.page);
            match chunk.state() {
                State::Used | State::Free | State::Moving => {
                    let mut pages = page..end;
                    let mapped = pages.all(|page| self.is_active_at(page));
                    // A handle to release may be unmapped before it is released.
                    let mapped = mapped || chunk.state() == State::Moving && whole;
                    check(mapped, "PAGE5", link.0)?;
                }
                State::Unmapped => {
                    check(whole, "PAGE5", link.0)?;
                    let mut pages = page..end;
                    check(!pages.any(|page| self.is_active_at(page)), "PAGE5", link.0)?;
                }
                State::Filling => {}
                State::Vacant | State::Leaving => check(false, "PAGE8", link.0)?,
            }
            let planned = matches!(chunk.state(), State::Moving | State::Filling);
            check(!planned || self.memory.plans > 0, "PAGE8", link.0)?;
            link = chunk.next;
        }
        Ok(())
    }

    /// Whether the handle of the page is used there: its active mapping.
    fn is_active_at(&self, page: u32) -> bool {
        let mapping = self.memory.pages.at(page);
        let handle = self.memory.pages.mapping(mapping).handle;
        mapping.is_some() && self.memory.pages.handle(handle).active == mapping
    }

    /// PAGE6.
    fn check_unmapped(&self) -> Result<(), Violation> {
        let (mut link, mut previous, mut listed) = (self.memory.unmapped, Link::NIL, 0);
        while link.is_some() {
            let chunk = self.table.at(link);
            check(chunk.is_unmapped(), "PAGE6", link.0)?;
            check(chunk.previous_free() == previous, "PAGE6", link.0)?;
            check(!self.table.at(chunk.prev).is_unmapped(), "PAGE6", link.0)?;
            listed += 1;
            check(listed <= self.table.in_use(), "PAGE6", link.0)?;
            previous = link;
            link = chunk.next_free();
        }
        let mut unmapped = 0;
        let mut link = self
            .memory
            .region
            .map_or(Link::NIL, |id| Link(self.regions.get(id).first()));
        while link.is_some() {
            unmapped += u32::from(self.table.at(link).is_unmapped());
            link = self.table.at(link).next;
        }
        check(unmapped == listed, "PAGE6", 0u32)
    }
}
