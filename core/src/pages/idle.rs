//! Idle handles: handles that lie entirely inside a free or reserved chunk, so that no block uses them.
//!
//! Allocations and frees keep no record of idle handles. A search goes through the free chunks, the largest first. It
//! ends when it has found the wanted pages, or has made [`LOOKS`] looks without success. A look is a chunk, a handle or
//! a run of pages examined. Then the search goes through the reserved chunks in the same way.

use super::table::{HandleLink, HandleState, MappingLink, MappingState};
use super::{Link, PagePool};
use crate::block::Request;
use crate::engine::LOOKS;

/// Number of adjacent pages without memory that count as one look. They are quick to pass, because an entry is 4 bytes.
const PAGES_A_LOOK: u32 = 4096;
/// Number of cached mappings that count as one look. In a pool that often moves pages, they fill most of the addresses.
const CACHED_A_LOOK: u32 = 16;

/// A query for idle handles.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleSearch<'r> {
    /// The request for which memory is wanted: memory that queued work of its stream uses counts, too, if the request
    /// allows it. Without a request, only memory that no queued work uses counts.
    pub(super) user: Option<&'r Request>,
    /// Number of found pages at which the search ends.
    pub(super) pages: u32,
    /// Maximum number of pages to find; a handle that would exceed it is skipped.
    pub(super) most: u32,
    /// Maximum number of fruitless looks among free chunks, and among reserved ones.
    pub(super) looks: u32,
    /// Whether to skip handles that cannot be released now.
    pub(super) to_release: bool,
    /// Whether each handle found also counts as a look. Further searches can then find the rest.
    pub(super) counts_all: bool,
    /// Range of granules whose handles are skipped.
    pub(super) outside: (u32, u32),
}

impl<'r> IdleSearch<'r> {
    /// Creates a query for `pages` pages, in handles of any size.
    pub(super) const fn new(user: Option<&'r Request>, pages: u32) -> Self {
        Self {
            user,
            pages,
            most: u32::MAX,
            looks: LOOKS,
            to_release: false,
            counts_all: false,
            outside: (0, 0),
        }
    }
}

/// The idle handles that a search found, linked by `chain`: chunk by chunk, and in address order in each chunk.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct IdleHandles {
    pub(super) first: HandleLink,
    last: HandleLink,
    pub(super) pages: u32,
}

impl PagePool<'_> {
    /// Returns whether the request can use a chunk's memory, in the order of its own stream. Without a request, returns
    /// whether no queued work uses the memory.
    pub(super) fn is_usable(&self, link: Link, request: Option<&Request>) -> bool {
        self.chunks.pending(link).is_none_or(|point| {
            request.is_some_and(|request| {
                point.stream == request.stream
                    && request.freed_by.is_none_or(|by| point.event <= by)
            })
        })
    }

    /// Finds and marks idle handles. Those in the largest chunks come first, and those in the wilderness last. O(1 +
    /// handles to move).
    pub(super) fn find_idle(&mut self, wanted: IdleSearch<'_>) -> IdleHandles {
        self.search = self.search.wrapping_add(1);
        let mut idle = IdleHandles::default();
        let mut looks = wanted.looks;
        let mut link = Link::NIL;
        while idle.pages < wanted.pages && looks > 0 {
            link = self.chunks.next_listed(link, self.page);
            if link.is_nil() {
                break;
            }
            looks -= 1;
            self.find_idle_in(link, &wanted, &mut idle, &mut looks);
        }
        let mut more_looks = wanted.looks;
        link = self.chunks.next_reserved(Link::NIL);
        while link.is_some() && idle.pages < wanted.pages && more_looks > 0 {
            more_looks -= 1;
            self.find_idle_in(link, &wanted, &mut idle, &mut more_looks);
            link = self.chunks.next_reserved(link);
        }
        self.find_idle_in(self.chunks.wilderness(), &wanted, &mut idle, &mut looks);
        self.looks += u64::from(wanted.looks - looks) + u64::from(wanted.looks - more_looks);
        idle
    }

    fn find_idle_in(
        &mut self,
        link: Link,
        wanted: &IdleSearch<'_>,
        idle: &mut IdleHandles,
        looks: &mut u32,
    ) {
        let chunk = *self.chunks.chunk(link);
        if !(chunk.is_free() || chunk.is_reserved()) || !self.is_usable(link, wanted.user) {
            return;
        }
        let (mut page, last) = (chunk.start.div_ceil(self.page), chunk.end() / self.page);
        let mut cached = 0;
        while page < last && idle.pages < wanted.pages && *looks > 0 {
            let mapping = self.pages.at(page);
            if !mapping.is_some() {
                let next = self.pages.next_mapped(page, last.min(page + PAGES_A_LOOK));
                *looks -= u32::from(next - page == PAGES_A_LOOK);
                page = next;
                continue;
            }
            let behind = self.pages.end(mapping);
            if self.pages.mapping(mapping).page == page
                && behind <= last
                && self.is_wanted(mapping, wanted.most - idle.pages, wanted)
            {
                self.add_idle(idle, self.pages.mapping(mapping).handle, link);
                *looks -= u32::from(wanted.counts_all);
            } else if self.pages.mapping(mapping).state == MappingState::Cached {
                cached += 1;
                *looks -= u32::from(cached % CACHED_A_LOOK == 0);
            } else {
                *looks -= 1;
            }
            page = behind.max(page + 1);
        }
    }

    fn add_idle(&mut self, idle: &mut IdleHandles, handle: HandleLink, chunk: Link) {
        let search = self.search;
        let record = self.pages.handle_mut(handle);
        record.mark = search;
        record.source = chunk.0;
        record.chain = HandleLink::NIL;
        idle.pages += record.pages;
        if idle.last.is_some() {
            self.pages.handle_mut(idle.last).chain = handle;
        } else {
            idle.first = handle;
        }
        idle.last = handle;
    }

    fn is_wanted(&self, mapping: MappingLink, left: u32, wanted: &IdleSearch<'_>) -> bool {
        let record = self.pages.mapping(mapping);
        let handle = self.pages.handle(record.handle);
        let (start, end) = wanted.outside;
        let (first, behind) = (record.page, record.page + handle.pages);
        record.state == MappingState::Active
            && handle.state == HandleState::Live
            && handle.pins == 0
            && handle.pages <= left
            && (behind * self.page <= start || first * self.page >= end)
            && (!wanted.to_release || self.can_release(record.handle))
    }

    /// Returns whether no queued work can still use an idle handle through a cached mapping.
    fn can_release(&self, handle: HandleLink) -> bool {
        let record = self.pages.handle(handle);
        let mut mapping = record.first;
        let mut done = true;
        while mapping.is_some() {
            done &= mapping == record.active || self.can_unmap(mapping);
            mapping = self.pages.mapping(mapping).sibling;
        }
        done
    }

    /// Returns whether a mapping is cached and no queued work can still use memory through it.
    pub(super) fn can_unmap(&self, mapping: MappingLink) -> bool {
        let record = self.pages.mapping(mapping);
        record.state == MappingState::Cached && self.chunks.is_completed(record.point())
    }

    /// Takes an idle handle for a plan. From now on, the pages where it lies count as having no memory.
    pub(super) fn take_idle(&mut self, handle: HandleLink, state: HandleState) {
        let record = *self.pages.handle(handle);
        let source = Link(record.source);
        let point = self.chunks.pending(source);
        self.chunks.set_hollow(source, true);
        self.pages.handle_mut(handle).state = state;
        self.pages.mapping_mut(record.active).set_point(point);
    }
}
