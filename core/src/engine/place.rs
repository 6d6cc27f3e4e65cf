//! Blocks at given places, for plans that lay out blocks ahead of time. Also walks over chunks from a given place on,
//! for walks with pauses.

use super::Chunks;
use super::chunk::{Link, State};
use super::region::RegionId;
use super::report::ChunkInfo;
use super::search::{Candidate, Need};
use crate::block::{Block, ChunkHandle, Request};
use crate::error::AllocError;
use crate::stream::StreamId;
use crate::units::{Addr, AddrRange};

impl Chunks<'_> {
    /// Returns a request for a given place in granules. First notes the stream, or sweeps if there is none.
    #[inline(always)]
    pub(crate) fn need_of_place(
        &mut self,
        request: &Request,
        stream: Option<StreamId>,
    ) -> Result<Need, AllocError> {
        let need = self.need(request)?;
        match stream {
            Some(stream) => self.streams.note(stream),
            None => self.sweep(),
        }
        Ok(need)
    }

    /// Returns the free chunk that holds exactly this place. The search starts at the chunk `near`, which may no longer
    /// exist. If no stream is given, the chunk must have no point. If one is given, its work may still use the chunk,
    /// and adjacent free chunks are joined. O(chunks between `near` and the place + chunks under the place).
    #[inline(always)]
    pub(crate) fn find_place(
        &mut self,
        range: AddrRange,
        size: u32,
        near: Option<ChunkHandle>,
        stream: Option<StreamId>,
    ) -> Option<Candidate> {
        match stream {
            Some(stream) => self.join_over(range, size, near, stream),
            None => self.free_chunk_over(range, size, near),
        }
    }

    /// Calls `f` with every chunk that ends after `from`, in address order, until `f` returns `false`.
    ///
    /// This is for walks with pauses, during which other threads work. `near` is the chunk where the last walk stopped,
    /// which may no longer exist. O(chunks visited + chunks between `near` and `from`).
    pub(crate) fn chunks_from(
        &self,
        from: Addr,
        near: Option<ChunkHandle>,
        mut f: impl FnMut(ChunkInfo) -> bool,
    ) {
        for id in self.regions.ids() {
            let region = self.regions.get(id);
            let Some(range) = region.range(self.granule) else {
                continue;
            };
            if range.end() <= from {
                continue;
            }
            let mut link = region.first;
            if range.start() < from {
                // `from` is inside the region, so the count fits.
                let offset = (from.get() - region.base) / self.granule.bytes();
                let near = near.map_or(Link::NIL, |near| Link(near.get()));
                link = self.chunk_over(id, offset as u32, near);
            }
            while link.is_some() {
                if !self.chunk_info(link).is_none_or(&mut f) {
                    return;
                }
                link = self.table.at(link).next;
            }
        }
    }

    /// Cuts the block out of the chunk found at its place.
    // Inlined: otherwise the block would be returned through memory, and its load would stall on that store.
    #[inline(always)]
    pub(crate) fn take_place(
        &mut self,
        found: Option<Candidate>,
        need: Need,
        request: &Request,
    ) -> Result<Block, AllocError> {
        let found = found.ok_or(AllocError::PlaceTaken)?;
        // The block is always cut out exactly.
        let whole = self.table.at(found.link).size;
        let split = whole - found.padding > need.size;
        if self.table.available() < u32::from(split) + u32::from(found.padding > 0) {
            return Err(self.table_full());
        }
        let used = self.cut(found.link, found.padding, split.then_some(need.size));
        let used = used.ok_or(AllocError::PlaceTaken)?;
        Ok(self.mark_used(used, request.bytes))
    }

    /// Returns the free, settled chunk that holds `size` granules, starting where `range` starts.
    fn free_chunk_over(
        &self,
        range: AddrRange,
        size: u32,
        near: Option<ChunkHandle>,
    ) -> Option<Candidate> {
        let found = self.chunk_at(range, near)?;
        let chunk = self.table.at(found.link);
        let fits = u64::from(chunk.size) >= u64::from(found.padding) + u64::from(size);
        (chunk.is_free() && chunk.point().is_none() && fits).then_some(found)
    }

    /// Returns the free chunk that holds `size` granules, starting where `range` starts. Queued work of the given
    /// stream may still use the chunk. Adjacent free chunks are joined, if all of them can be used.
    #[inline]
    fn join_over(
        &mut self,
        range: AddrRange,
        size: u32,
        near: Option<ChunkHandle>,
        stream: StreamId,
    ) -> Option<Candidate> {
        let found = self.chunk_at(range, near)?;
        let end = (self.table.at(found.link).start + found.padding).checked_add(size)?;
        let (mut link, mut joins) = (found.link, 0_u32);
        loop {
            let chunk = self.table.at(link);
            let pending = self.streams.pending(chunk.point());
            if !chunk.is_free() || pending.is_some_and(|point| point.stream != stream) {
                return None;
            }
            if chunk.end() >= end {
                break;
            }
            joins += 1;
            link = chunk.next;
        }
        self.join_next(found.link, joins);
        if joins == 0 {
            return Some(found);
        }
        // A settled chunk may join its neighbours.
        self.unlist(found.link);
        self.join_and_list(found.link);
        self.chunk_at(range, near)
    }

    /// Returns the chunk in which `range` starts, and the granules before `range` in this chunk.
    #[inline]
    pub(super) fn chunk_at(
        &self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Option<Candidate> {
        let start = range.start();
        if !start.is_aligned(self.granule.align()) {
            return None;
        }
        let id = self.regions.find(start.get(), self.granule)?;
        let region = self.regions.get(id);
        let offset = self.granule.count_up(start.get() - region.base)?;
        let near = near.map_or(Link::NIL, |near| Link(near.get()));
        let link = self.chunk_over(id, offset, near);
        let padding = offset.checked_sub(self.table.at(link).start)?;
        Some(Candidate {
            link,
            padding,
            wait: None,
        })
    }

    /// Returns the chunk of a region that contains this granule, or nil. Walks from `near` if that is a chunk of the
    /// region, otherwise from the start of the region.
    fn chunk_over(&self, id: RegionId, offset: u32, near: Link) -> Link {
        let chunk = self.table.at(near);
        let mut link = if chunk.state() != State::Vacant && chunk.region() == id {
            near
        } else {
            self.regions.get(id).first
        };
        while link.is_some() && self.table.at(link).start > offset {
            self.streams.look();
            link = self.table.at(link).prev;
        }
        while link.is_some() && self.table.at(link).end() <= offset {
            self.streams.look();
            link = self.table.at(link).next;
        }
        link
    }
}
