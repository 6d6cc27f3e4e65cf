//! Addresses without memory: how the range grows, which of its pages lack memory, and which chunks a plan takes to put
//! memory there.

use super::idle::IdleSearch;
use super::plan::{NoPlan, PagePlan};
use super::{Link, PagePool};
use crate::block::{ChunkHandle, Request};
use crate::engine::{Candidate, ChunkInfo, ChunkState, LOOKS, LOOKS_BEFORE_GROWTH, Need};
use crate::error::Cause;
use crate::stream::StreamId;
use crate::units::{Addr, AddrRange};

impl PagePool<'_> {
    /// Extends the range for a block that fits no free chunk. The block uses the free chunk at the end of the range, if
    /// there is one, unless `fresh` is set. Returns the place, and the number of further pages to put memory behind.
    pub(super) fn grow_range(
        &mut self,
        need: Need,
        request: &Request,
        fresh: bool,
    ) -> Result<(Candidate, u32), NoPlan> {
        let (end, last) = (self.end(), self.chunks.newest_end());
        let with_tail =
            !fresh && self.chunks.chunk(last).is_free() && self.is_usable(last, Some(request));
        let from = if with_tail {
            self.chunks.chunk(last).start
        } else {
            end
        };
        let no_room = NoPlan::Memory(Cause::Addresses);
        let start = from + self.padding_at(from, need);
        let pages = start.checked_add(need.size).ok_or(no_room)?;
        let pages = pages.div_ceil(self.page);
        if pages > self.max_pages {
            return Err(no_room);
        }
        let missing = pages - end.max(start / self.page * self.page) / self.page;
        let ahead = self.pages_ahead(missing).min(self.max_pages - pages);
        self.add_at_end((pages + ahead) * self.page - end)
            .ok_or(NoPlan::Table)?;
        let link = self.chunks.newest_end();
        let chunk = self.chunks.chunk(link);
        if chunk.start > start {
            // Points keep the new chunk apart from the free chunk at the previous end.
            let found = self
                .search_fully(need, request, LOOKS_BEFORE_GROWTH)
                .or_else(|| {
                    let last = self.chunks.newest_end();
                    let tail = self.chunks.chunk(last).prev;
                    let is_joined = self.chunks.force_join_behind(tail);
                    self.chunks
                        .judge(if is_joined { tail } else { last }, need, request)
                });
            return Ok((found.ok_or(no_room)?, 0));
        }
        let found = Candidate {
            link,
            padding: start - chunk.start,
            wait: None,
        };
        Ok((found, ahead))
    }

    /// Extends the range at least up to `granule`, so that a place in it can be requested.
    pub(super) fn grow_range_to(&mut self, granule: u32) -> Option<()> {
        let pages = granule.div_ceil(self.page);
        if pages > self.max_pages {
            return None;
        }
        match (pages * self.page).checked_sub(self.end()) {
            None | Some(0) => Some(()),
            Some(missing) => self.add_at_end(missing),
        }
    }

    /// Adds addresses at the end of the range, as a free chunk without memory.
    fn add_at_end(&mut self, granules: u32) -> Option<()> {
        let base = self.config.addresses.start().get();
        self.chunks.add_addresses(base, granules)
    }

    /// Returns the number of granules from `start` to the next multiple of the alignment.
    fn padding_at(&self, start: u32, need: Need) -> u32 {
        let granule = self.chunks.granule();
        let addr = self.config.addresses.start().get() + granule.bytes_of(start);
        let number = addr >> granule.align().log2();
        // The low 32 bits suffice, because the alignment is a power of two of at most 2^31 granules.
        (number as u32).wrapping_neg() & (need.align - 1)
    }

    /// Returns the first granule after the range.
    pub(super) fn end(&self) -> u32 {
        self.chunks.chunk(self.chunks.newest_end()).end()
    }

    /// Returns whether all pages touched by these granules have memory.
    pub(super) fn is_backed_between(&self, start: u32, end: u32) -> bool {
        self.pages.is_backed_between(start, end, self.page)
    }

    /// Returns the first chunk, in the order of FIT1, that serves the request and has memory at the block's place.
    /// Examines at most as many chunks as one search.
    pub(super) fn search_backed(&self, need: Need, request: &Request) -> Option<Candidate> {
        let serves = |link: Link| {
            let found = self.chunks.judge(link, need, request)?;
            let start = self.chunks.chunk(link).start + found.padding;
            let backed =
                !self.is_hollow(&found) || self.is_backed_between(start, start + need.size);
            backed.then_some(found)
        };
        let listed = self.chunks.listed_from(need.size).take(LOOKS as usize);
        listed.chain([self.chunks.wilderness()]).find_map(serves)
    }

    /// Returns the first run of pages without memory among the pages touched by these granules.
    fn gap_between(&self, start: u32, end: u32) -> Option<(u32, u32)> {
        let behind = end.div_ceil(self.page);
        let first = self.pages.next_gap_from(start / self.page, behind);
        let mut page = first;
        while page < behind && !self.pages.is_backed(page) {
            page = self.pages.next_mapped(page + 1, behind);
        }
        (first < behind).then_some((first, page))
    }

    /// Takes the plan's target out of the chunk found: the block, the rest of its first and last page if these get
    /// memory, and `ahead` further pages.
    pub(super) fn take_target(
        &mut self,
        plan: &mut PagePlan,
        found: &Candidate,
        need: Need,
        ahead: u32,
    ) -> Option<()> {
        let chunk = *self.chunks.chunk(found.link);
        let start = chunk.start + found.padding;
        let end = start + need.size;
        let page = self.page;
        let from = if self.pages.is_backed(start / page) {
            start
        } else {
            chunk.start.max(start / page * page)
        };
        let to = if ahead == 0 && self.pages.is_backed((end - 1) / page) {
            end
        } else {
            chunk.end().min((end.div_ceil(page) + ahead) * page)
        };
        (plan.target, plan.block) = self.chunks.cut_target(found.link, from..to, start..end)?;
        plan.behind = to;
        plan.point = chunk.point();
        plan.wait = found.wait;
        Some(())
    }

    /// Returns the first granule of a range and the first granule after it, both limited to 32 bits.
    pub(super) fn granules_of(&self, range: AddrRange) -> (u32, u32) {
        let base = self.config.addresses.start().get();
        let granule = self.chunks.granule();
        let number = |at: Addr| granule.count_up(at.get().saturating_sub(base));
        let (start, end) = (number(range.start()), number(range.end()));
        (start.unwrap_or(u32::MAX), end.unwrap_or(u32::MAX))
    }

    /// Returns the first part of a range that has no memory. O(pages of the range).
    pub(super) fn first_unmapped(&self, range: AddrRange) -> Option<AddrRange> {
        let base = self.config.addresses.start().get();
        let (from, to) = self.granules_of(range);
        let (first, behind) = self.gap_between(from, to)?;
        let (start, end) = (
            from.max(first * self.page),
            to.min(behind.saturating_mul(self.page)),
        );
        let granule = self.chunks.granule();
        let start_addr = Addr::new(base + granule.bytes_of(start));
        AddrRange::new(start_addr, granule.bytes_of(end - start))
    }

    /// Calls `f` with each piece of a chunk. A free or reserved chunk is split into the pieces with memory and those
    /// without; any other chunk is one piece.
    pub(super) fn for_each_piece(&self, chunk: ChunkInfo, f: &mut impl FnMut(ChunkInfo)) {
        let is_free = matches!(
            chunk.state,
            ChunkState::Free { .. } | ChunkState::Reserved { .. }
        );
        let (mut from, end) = (chunk.range.start(), chunk.range.end());
        while is_free
            && let Some(rest) = AddrRange::new(from, end.get().saturating_sub(from.get()))
            && let Some(unmapped) = self.first_unmapped(rest)
        {
            let mapped = unmapped.start().get() - from.get();
            if let Some(range) = AddrRange::new(from, mapped) {
                f(ChunkInfo { range, ..chunk });
            }
            f(ChunkInfo {
                range: unmapped,
                state: ChunkState::Unmapped,
                ..chunk
            });
            from = unmapped.end();
        }
        if let Some(range) = AddrRange::new(from, end.get().saturating_sub(from.get())) {
            f(ChunkInfo { range, ..chunk });
        }
    }

    /// Returns the first addresses of a range without memory that are not reserved. `near` is the chunk where the last
    /// search stopped, and becomes the one where this search stops. O(pages of the range), and if any addresses are
    /// reserved, O(chunks between `near` and the addresses found).
    pub(super) fn first_missing(
        &self,
        range: AddrRange,
        near: &mut Option<ChunkHandle>,
    ) -> Option<AddrRange> {
        let mut from = range.start();
        loop {
            let rest = AddrRange::new(from, range.end().get().checked_sub(from.get())?)?;
            let unmapped = self.first_unmapped(rest)?;
            let Some(reserved) = self.chunks.first_reserved(unmapped, near) else {
                return Some(unmapped);
            };
            let before = reserved.start().get().checked_sub(unmapped.start().get());
            match before.and_then(|bytes| AddrRange::new(unmapped.start(), bytes)) {
                Some(missing) => return Some(missing),
                None => from = reserved.end(),
            }
        }
    }

    /// Returns whether all addresses of a range that are not reserved have memory. The cost is that of
    /// [`missing_bytes`](Self::missing_bytes).
    pub fn is_mapped(&self, range: AddrRange) -> bool {
        self.config.addresses.contains(range) && self.first_missing(range, &mut None).is_none()
    }

    /// Returns the bytes that must be created to put memory behind all unmapped addresses of a range that are not
    /// reserved: its unmapped pages less the idle pages elsewhere. If a stream is given, pages that only its own
    /// queued work uses count as idle. O(pages of the range), and if any addresses are reserved, O(chunks up to its end).
    pub fn missing_bytes(&mut self, range: AddrRange, stream: Option<StreamId>) -> u64 {
        let (mut unmapped_pages, mut near) = (0, None);
        let mut from = range.start();
        while let Some(rest) = AddrRange::new(from, range.end().get().saturating_sub(from.get()))
            && let Some(unmapped) = self.first_missing(rest, &mut near)
        {
            from = unmapped.end();
            let (first, behind) = self.granules_of(unmapped);
            unmapped_pages += behind.div_ceil(self.page) - first / self.page;
        }
        let request = stream.map(|stream| Request::new(range.bytes()).on(stream));
        let idle = self.find_idle(IdleSearch {
            outside: self.granules_of(range),
            ..IdleSearch::new(request.as_ref(), unmapped_pages)
        });
        self.page_bytes(unmapped_pages.saturating_sub(idle.pages))
    }
}
