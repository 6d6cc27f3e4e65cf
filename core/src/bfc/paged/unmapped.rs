//! The list of unmapped chunks, and how they join (PAGE6).

use super::{Bfc, Link, Paged};
use crate::bfc::chunk::Chunk;
use crate::bfc::index::AddressIndex;
use crate::block::Request;
use crate::stream::StreamId;
use crate::table::list;
use crate::units::{Addr, AddrRange};

impl<I: AddressIndex> Bfc<'_, I, Paged<'_>> {
    /// Enters an unmapped chunk in the list.
    pub(super) fn list_unmapped(&mut self, link: Link) {
        list::push(&mut self.table, self.memory.unmapped, link);
        self.memory.unmapped = link;
    }

    pub(super) fn unlist_unmapped(&mut self, link: Link) {
        if let Some(first) = list::unlink(&mut self.table, link) {
            self.memory.unmapped = first;
        }
    }

    /// Joins an unlisted unmapped chunk with its unmapped neighbours and lists the result.
    pub(super) fn join_unmapped(&mut self, link: Link) {
        let Chunk { prev, next, .. } = *self.table.at(link);
        if self.table.at(next).is_unmapped() {
            self.unlist_unmapped(next);
            self.absorb_next(link, next);
        }
        if self.table.at(prev).is_unmapped() {
            self.absorb_next(prev, link);
            return;
        }
        self.list_unmapped(link);
    }

    /// First granule of a range and the one behind it, as far as granules are counted.
    pub(super) fn granules_of(&self, range: AddrRange) -> (u32, u32) {
        let base = self.memory.config.addresses.start().get();
        let number = |at: Addr| self.granule.count_up(at.get().saturating_sub(base));
        let (start, end) = (number(range.start()), number(range.end()));
        (start.unwrap_or(u32::MAX), end.unwrap_or(u32::MAX))
    }

    /// The first unmapped addresses of a range, up to where memory or the range ends. O(chunks).
    pub(super) fn first_unmapped(&self, range: AddrRange) -> Option<AddrRange> {
        let base = self.memory.config.addresses.start().get();
        let granule = self.granule;
        let (from, to) = self.granules_of(range);
        let mut link = self
            .memory
            .region
            .map_or(Link::NIL, |id| self.chunk_over(id, from, Link::NIL));
        while link.is_some() && !self.table.at(link).is_unmapped() {
            link = self.table.at(link).next;
        }
        let (start, end) = if link.is_some() {
            let chunk = self.table.at(link);
            (chunk.start, chunk.end())
        } else {
            (self.end(), to)
        };
        let (start, end) = (start.max(from), end.min(to));
        let count = end.checked_sub(start).filter(|count| *count > 0)?;
        let start = Addr::new(base + granule.bytes_of(start));
        AddrRange::new(start, granule.bytes_of(count))
    }

    /// Whether memory stands behind all addresses of a range. O(chunks).
    pub fn is_mapped(&self, range: AddrRange) -> bool {
        self.memory.config.addresses.contains(range) && self.first_unmapped(range).is_none()
    }

    /// Bytes that would be created to put memory behind all free addresses of a range: its unmapped
    /// pages less the idle ones elsewhere; of a stream, those that only its own queued work uses are
    /// idle too. O(chunks + idle handles).
    pub fn missing_bytes(&mut self, range: AddrRange, stream: Option<StreamId>) -> u64 {
        let (start, end) = self.granules_of(range);
        let request = stream.map(|stream| Request::new(range.bytes()).on(stream));
        let idle = self.find_idle(request.as_ref());
        let (mut handle, mut pages) = (idle.first, 0);
        while handle.is_some() {
            if self.is_idle_outside(handle, start, end) {
                pages += self.memory.pages.handle(handle).pages;
            }
            handle = self.memory.pages.handle(handle).chain;
        }
        let mut from = range.start();
        let mut unmapped_pages = 0;
        while let Some(rest) = AddrRange::new(from, range.end().get().saturating_sub(from.get()))
            && let Some(unmapped) = self.first_unmapped(rest)
        {
            from = unmapped.end();
            let (first, behind) = self.granules_of(unmapped);
            unmapped_pages += behind.div_ceil(self.memory.page) - first / self.memory.page;
        }
        self.page_bytes(unmapped_pages.saturating_sub(pages))
    }
}
