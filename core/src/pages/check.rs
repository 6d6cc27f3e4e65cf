//! Checks the invariants PAGE1 to PAGE8.

use super::table::{HandleState, MAPPINGS_A_HANDLE, MappingState};
use super::{PagePool, State};
use crate::engine::Violation;
use crate::engine::check;

impl PagePool<'_> {
    /// Checks the invariants of the pages.
    pub(super) fn check_pages(&self) -> Result<(), Violation> {
        self.check_handles()?;
        self.check_places()?;
        self.check_chunks()
    }

    /// Checks PAGE1, PAGE3, PAGE7, and PAGE8 for handles and mappings.
    fn check_handles(&self) -> Result<(), Violation> {
        let (handles, mappings) = (&self.pages.handles, &self.pages.mappings);
        let vacant = handles.is_sound(|handle| handle.state == HandleState::Vacant)
            && mappings.is_sound(|mapping| mapping.state == MappingState::Vacant);
        check(vacant, "PAGE1", 0u32)?;
        let (mut held, mut lost, mut mapped) = (0, 0, 0);
        for link in handles.links() {
            let number = link.0;
            let handle = *self.pages.handle(link);
            let bytes = self.page_bytes(handle.pages);
            let mut active = !handle.active.is_some();
            let mut mapping = handle.first;
            let mut staying = 0;
            while mapping.is_some() && handle.state != HandleState::Vacant {
                let record = self.pages.mapping(mapping);
                check(record.handle == link, "PAGE3", mapping.0)?;
                active |= mapping == handle.active;
                mapped += 1;
                staying += usize::from(record.state.stands());
                check(mapped <= mappings.in_use(), "PAGE3", number)?;
                mapping = record.sibling;
            }
            check(active && staying <= MAPPINGS_A_HANDLE, "PAGE3", number)?;
            match handle.state {
                HandleState::Vacant => {}
                HandleState::Lost => lost += bytes,
                HandleState::Planned => check(self.plans > 0, "PAGE8", number)?,
                HandleState::Live => {
                    let state = self.pages.mapping(handle.active).state;
                    check(state == MappingState::Active, "PAGE3", number)?;
                    held += bytes;
                }
                HandleState::Chosen => {
                    check(self.plans > 0, "PAGE8", number)?;
                    held += if handle.active.is_some() { bytes } else { 0 };
                }
                HandleState::Leaving => {
                    check(self.plans > 0, "PAGE8", number)?;
                    held += bytes;
                }
            }
        }
        check(mapped == mappings.in_use(), "PAGE3", 0u32)?;
        check(held == self.chunks.reserved_bytes(), "PAGE7", 0u32)?;
        check(lost == self.lost, "PAGE7", 0u32)
    }

    /// Checks PAGE2.
    fn check_places(&self) -> Result<(), Violation> {
        let mut shown = 0;
        for page in 0..self.pages.entries() {
            let mapping = self.pages.at(page);
            if mapping.is_some() {
                let record = self.pages.mapping(mapping);
                let inside = record.page <= page && page < self.pages.end(mapping);
                let known = record.state != MappingState::Vacant;
                check(inside && known, "PAGE2", mapping.0)?;
                shown += u32::from(record.state.stands());
            }
        }
        let mut expected = 0;
        for link in self.pages.mappings.links() {
            let record = self.pages.mapping(link);
            if record.state.stands() {
                expected += self.pages.handle(record.handle).pages;
            }
        }
        check(shown == expected, "PAGE2", 0u32)
    }

    /// Checks PAGE5, PAGE6, and PAGE8 for chunks.
    fn check_chunks(&self) -> Result<(), Violation> {
        let mut link = self.chunks.first_of_region(0);
        if link.is_nil() {
            return check(self.chunks.reserved_bytes() == 0, "PAGE5", 0u32);
        }
        while link.is_some() {
            let chunk = *self.chunks.chunk(link);
            let backed = self.is_backed_between(chunk.start, chunk.end());
            match chunk.state() {
                State::Used => check(backed && !chunk.is_hollow(), "PAGE5", link.0)?,
                State::Free | State::Reserved => {
                    check(backed || chunk.is_hollow(), "PAGE6", link.0)?;
                }
                State::Filling => check(self.plans > 0, "PAGE8", link.0)?,
                State::Vacant | State::Leaving => check(false, "PAGE8", link.0)?,
            }
            link = chunk.next;
        }
        Ok(())
    }
}
