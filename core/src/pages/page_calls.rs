//! The driver calls of a plan, in order, and the immediate effect of each outcome.
//!
//! 1. Unmap the cached mappings in the way, and all mappings of handles to release, the active one last. Release a
//!    handle when its last mapping is gone. So memory is released before more is created.
//! 2. Create and map, in address order. A moved handle is mapped a second time.
//! 3. Set access for each run of newly mapped pages.
//!
//! If the driver refuses a call, the plan is reversed: its new mappings are unmapped and its new handles released. If
//! the driver refuses one of these calls as well, the memory is *lost*: it counts as held permanently, and is never
//! used.

use super::table::{HandleLink, HandleState, MappingLink, MappingState};
use super::{PagePlan, PagePool};
use crate::units::{Addr, AddrRange};

/// One driver call. Handles are numbers below the length of the table of handles; the caller translates them to the
/// driver's own handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageCall {
    /// Create `bytes` bytes of memory.
    Create {
        /// The number of the new handle.
        handle: u32,
        /// Size, in whole pages.
        bytes: u64,
    },
    /// Map a whole handle, which may already be mapped elsewhere.
    Map {
        /// The handle.
        handle: u32,
        /// The addresses.
        range: AddrRange,
    },
    /// Allow reads and writes to ranges mapped by earlier calls.
    SetAccess {
        /// The addresses; they may span several mappings.
        range: AddrRange,
    },
    /// Undo one map. No queued work uses the memory at these addresses.
    Unmap {
        /// The handle.
        handle: u32,
        /// The addresses where it is mapped.
        range: AddrRange,
    },
    /// Release a handle that is mapped nowhere.
    Release {
        /// The handle.
        handle: u32,
        /// The handle's size.
        bytes: u64,
    },
}

/// A list of mappings, linked by `chain`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappingList {
    pub(super) first: MappingLink,
    pub(super) last: MappingLink,
}

impl MappingList {
    pub(super) const EMPTY: Self = Self {
        first: MappingLink::NIL,
        last: MappingLink::NIL,
    };
}

/// The state of a plan: the call to make next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Begin,
    Unmap(MappingLink),
    /// Release the handle, then continue with the mapping.
    Release(HandleLink, MappingLink),
    Create(MappingLink),
    Map(MappingLink),
    Access(MappingLink),
    /// Every call was made.
    Done,
    /// Every call was made, and the limit still allows the created memory, so the plan will be committed.
    Agreed,
    /// The plan failed: next, undo the first of `maps`.
    Undo,
    UndoMap(MappingLink),
    UndoCreate(HandleLink),
    Failed,
}

impl PagePool<'_> {
    /// Returns the call to make next, or `None` if only [`finish`](Self::finish) is left. Returns the same call until
    /// [`done`](Self::done) or [`refused`](Self::refused) reports its outcome. O(1), plus one step for each mapping
    /// that is reused.
    pub fn next_call(&mut self, plan: &mut PagePlan) -> Option<PageCall> {
        if plan.owner != self.chunks.id() {
            return None;
        }
        loop {
            match plan.phase {
                Phase::Begin => plan.phase = self.next_unmap(plan, plan.unmaps.first),
                Phase::Unmap(mapping) | Phase::UndoMap(mapping) => {
                    return Some(PageCall::Unmap {
                        handle: self.pages.mapping(mapping).handle.0,
                        range: self.range_of(mapping),
                    });
                }
                Phase::Release(handle, _) | Phase::UndoCreate(handle) => {
                    return Some(PageCall::Release {
                        handle: handle.0,
                        bytes: self.page_bytes(self.pages.handle(handle).pages),
                    });
                }
                // The limit was lowered since the plan was made.
                Phase::Create(_) | Phase::Done if self.passes_limit(plan) => self.fail_plan(plan),
                Phase::Create(mapping) => {
                    let handle = self.pages.mapping(mapping).handle;
                    return Some(PageCall::Create {
                        handle: handle.0,
                        bytes: self.page_bytes(self.pages.handle(handle).pages),
                    });
                }
                Phase::Map(mapping) => {
                    return Some(PageCall::Map {
                        handle: self.pages.mapping(mapping).handle.0,
                        range: self.range_of(mapping),
                    });
                }
                Phase::Access(mapping) => {
                    let end = self.pages.end(self.last_of_run(mapping));
                    let page = self.pages.mapping(mapping).page;
                    return Some(PageCall::SetAccess {
                        range: self.page_range(page, end),
                    });
                }
                Phase::Undo => plan.phase = self.next_undo(plan),
                // From here on, a lowered limit no longer undoes the plan: its memory counts as held.
                Phase::Done => plan.phase = Phase::Agreed,
                Phase::Agreed | Phase::Failed => return None,
            }
        }
    }

    /// Returns whether the plan creates memory that the limit no longer allows.
    fn passes_limit(&self, plan: &PagePlan) -> bool {
        plan.creating > 0 && self.chunks.taken_bytes() > self.max_bytes()
    }

    /// Reports that the driver made the call.
    pub fn done(&mut self, plan: &mut PagePlan) {
        if plan.owner != self.chunks.id() {
            return;
        }
        self.calls += 1;
        plan.phase = match plan.phase {
            Phase::Unmap(mapping) => self.unmapped(plan, mapping),
            Phase::Release(handle, next) => {
                self.took_back(plan, handle);
                self.next_unmap(plan, next)
            }
            Phase::Create(mapping) => {
                let handle = self.pages.mapping(mapping).handle;
                self.pages.handle_mut(handle).state = HandleState::Chosen;
                Phase::Map(mapping)
            }
            Phase::Map(mapping) => {
                self.pages.mapping_mut(mapping).state = MappingState::Mapped;
                self.next_map(plan, self.pages.mapping(mapping).chain)
            }
            Phase::Access(mapping) => {
                let last = self.last_of_run(mapping);
                self.next_access(self.pages.mapping(last).chain)
            }
            Phase::UndoMap(mapping) => {
                plan.maps.first = self.pages.mapping(mapping).chain;
                self.forget_map(mapping)
            }
            Phase::UndoCreate(handle) => {
                self.pages.remove_handle(handle);
                Phase::Undo
            }
            other => other,
        };
    }

    /// Reports that the driver refused the call. The next calls undo the plan.
    pub fn refused(&mut self, plan: &mut PagePlan) {
        if plan.owner != self.chunks.id() {
            return;
        }
        match plan.phase {
            Phase::Release(handle, next) => {
                // The handle is no longer mapped, but the driver did not take it back.
                self.uncount(self.pages.handle(handle).pages);
                self.lose(handle);
                plan.phase = Phase::Unmap(next);
                self.fail_plan(plan);
            }
            Phase::UndoMap(mapping) => {
                plan.maps.first = self.pages.mapping(mapping).chain;
                let handle = self.pages.mapping(mapping).handle;
                self.pages.mapping_mut(mapping).state = MappingState::Lost;
                self.lost_mappings += 1;
                plan.lost = true;
                if self.pages.handle(handle).active.is_some() {
                    self.pages.handle_mut(handle).state = HandleState::Live;
                } else {
                    self.lose_created(plan, handle);
                }
                plan.phase = Phase::Undo;
            }
            Phase::UndoCreate(handle) => {
                self.lose_created(plan, handle);
                plan.phase = Phase::Undo;
            }
            Phase::Done | Phase::Agreed | Phase::Failed | Phase::Undo => {}
            _ => self.fail_plan(plan),
        }
    }

    /// Marks a handle created by the plan as lost. Its bytes no longer count as under way with the plan.
    fn lose_created(&mut self, plan: &mut PagePlan, handle: HandleLink) {
        let bytes = self.page_bytes(self.pages.handle(handle).pages);
        let counted = bytes.min(plan.departed);
        plan.departed -= counted;
        self.chunks.arrive(counted);
        self.lose(handle);
    }

    /// Marks a handle as lost: it is held permanently, and unusable.
    fn lose(&mut self, handle: HandleLink) {
        self.pages.handle_mut(handle).state = HandleState::Lost;
        let bytes = self.page_bytes(self.pages.handle(handle).pages);
        self.chunks.depart(bytes);
        self.lost += bytes;
        self.lost_handles += 1;
    }

    fn range_of(&self, mapping: MappingLink) -> AddrRange {
        self.page_range(self.pages.mapping(mapping).page, self.pages.end(mapping))
    }

    fn page_range(&self, page: u32, end: u32) -> AddrRange {
        let start = self.config.addresses.start().get() + self.page_bytes(page);
        AddrRange::of_chunk(Addr::new(start), self.page_bytes(end - page))
    }

    fn next_unmap(&self, plan: &PagePlan, next: MappingLink) -> Phase {
        if next.is_some() {
            return Phase::Unmap(next);
        }
        self.next_map(plan, plan.maps.first)
    }

    fn unmapped(&mut self, plan: &mut PagePlan, mapping: MappingLink) -> Phase {
        let record = *self.pages.mapping(mapping);
        self.pages.remove_mapping(mapping);
        let handle = self.pages.handle(record.handle);
        if handle.state == HandleState::Leaving && !handle.first.is_some() {
            return Phase::Release(record.handle, record.chain);
        }
        self.next_unmap(plan, record.chain)
    }

    /// Removes a handle that the driver took back.
    fn took_back(&mut self, plan: &mut PagePlan, handle: HandleLink) {
        let record = *self.pages.handle(handle);
        let bytes = self.page_bytes(record.pages);
        self.uncount(record.pages);
        self.pages.remove_handle(handle);
        plan.released += bytes;
        // The memory to create in its place counts from now on.
        let more = bytes.min(plan.departing());
        plan.departed += more;
        self.chunks.depart(more);
    }

    /// Subtracts `pages` pages from the held bytes.
    fn uncount(&mut self, pages: u32) {
        self.chunks.unhold(u64::from(pages) * u64::from(self.page));
        if self.chunks.reserved_bytes() == 0 {
            // The count of freed bytes starts again with the next memory.
            self.freed_bytes = 0;
        }
    }

    fn next_map(&self, plan: &PagePlan, next: MappingLink) -> Phase {
        let mut mapping = next;
        while mapping.is_some() {
            let record = self.pages.mapping(mapping);
            if record.state == MappingState::Planned {
                let planned = self.pages.handle(record.handle).state == HandleState::Planned;
                return if planned {
                    Phase::Create(mapping)
                } else {
                    Phase::Map(mapping)
                };
            }
            mapping = record.chain;
        }
        self.next_access(plan.maps.first)
    }

    fn next_access(&self, next: MappingLink) -> Phase {
        let mut mapping = next;
        while mapping.is_some() {
            let record = self.pages.mapping(mapping);
            if record.state == MappingState::Mapped {
                return Phase::Access(mapping);
            }
            mapping = record.chain;
        }
        Phase::Done
    }

    /// Returns the last mapping of the run of adjacent new mappings that starts with this one.
    fn last_of_run(&self, mapping: MappingLink) -> MappingLink {
        let mut last = mapping;
        loop {
            let next = self.pages.mapping(last).chain;
            let record = self.pages.mapping(next);
            let adjacent = next.is_some()
                && record.state == MappingState::Mapped
                && record.page == self.pages.end(last);
            if !adjacent {
                return last;
            }
            last = next;
        }
    }

    /// Reverses a plan: mappings that are not yet unmapped stay, and new mappings are removed.
    pub(super) fn fail_plan(&mut self, plan: &mut PagePlan) {
        let mut mapping = match plan.phase {
            Phase::Begin => plan.unmaps.first,
            Phase::Unmap(mapping) => mapping,
            _ => MappingLink::NIL,
        };
        while mapping.is_some() {
            let record = *self.pages.mapping(mapping);
            let active = self.pages.handle(record.handle).active == mapping;
            self.pages.mapping_mut(mapping).state = if active {
                MappingState::Active
            } else {
                MappingState::Cached
            };
            self.pages.show(mapping);
            if active {
                self.pages.handle_mut(record.handle).state = HandleState::Live;
            }
            mapping = record.chain;
        }
        plan.phase = Phase::Undo;
    }

    fn next_undo(&mut self, plan: &mut PagePlan) -> Phase {
        let mapping = plan.maps.first;
        if !mapping.is_some() {
            return Phase::Failed;
        }
        let record = *self.pages.mapping(mapping);
        if record.state == MappingState::Reused {
            self.pages.mapping_mut(mapping).state = MappingState::Cached;
            self.pages.handle_mut(record.handle).state = HandleState::Live;
        } else if record.state == MappingState::Mapped {
            return Phase::UndoMap(mapping);
        } else {
            plan.maps.first = record.chain;
            return self.forget_map(mapping);
        }
        plan.maps.first = record.chain;
        Phase::Undo
    }

    /// Removes a mapping that the driver does not have, and its handle if the plan would have created it.
    fn forget_map(&mut self, mapping: MappingLink) -> Phase {
        let handle = self.pages.mapping(mapping).handle;
        self.pages.remove_mapping(mapping);
        let record = self.pages.handle(handle);
        match record.state {
            HandleState::Planned => self.pages.remove_handle(handle),
            HandleState::Chosen if record.active.is_some() => {
                self.pages.handle_mut(handle).state = HandleState::Live;
            }
            HandleState::Chosen => return Phase::UndoCreate(handle),
            _ => {}
        }
        Phase::Undo
    }
}
