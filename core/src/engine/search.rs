//! The search for the free chunk that serves a request. The model predicts each of its steps.
//!
//! A chunk *serves* a request if the request's stream may use it, and if it holds the block with the padding that its
//! alignment needs there. The *best* of several chunks is one that may be used immediately, rather than after a wait;
//! among these the smallest; and among equals the one at the lowest address.
//!
//! * FIT1 Go through the classes upwards, starting with that of the request. In each class, examine the first four
//!   chunks ([`SCAN`]), newest first. If any of them serves, take the best. A chunk of exactly the request's size,
//!   without padding or wait, is taken as soon as it is seen.
//! * FIT2 Otherwise take the wilderness, if it serves.
//! * FIT3 Otherwise, before any growth, repeat FIT1 and FIT2 over all chunks of each class.
//! * FIT4 Otherwise join and take the first adjacent free chunks, in address order, that together serve. At most one
//!   stream may use any of them, and the request must be allowed to use that stream's memory.
//!
//! FIT3 and FIT4 examine all chunks, or as many as the caller's bound `looks` allows.
//!
//! No chunk serves if its use would exceed a limit that was lowered below the held bytes.
//!
//! Usually every chunk of a higher class serves, so FIT1 ends at the second non-empty class, which is O(1). The
//! exceptions are chunks with points of other streams, and requests aligned beyond the granule. FIT1 misses the best
//! chunk if four others of its class that do not fit come before it.

use super::Chunks;
use super::chunk::{Chunk, Link};
use super::class::Class;
use crate::block::Request;
use crate::error::AllocError;
use crate::stream::{StreamId, StreamPoint};

/// Maximum number of chunks examined in each class. On the recorded traces, examining four chunks or all of them
/// reserves the same memory (docs/DECISIONS.md, 1).
const SCAN: u32 = 4;

/// Maximum number of chunks and handles that one search examines without success. Each takes about 20 ns, so such a
/// search is cheaper than a driver call.
pub(crate) const LOOKS: u32 = 1024;

/// Maximum number of chunks that one search examines if growth is possible instead. Three searches then take less than
/// 100 µs.
pub(crate) const LOOKS_BEFORE_GROWTH: u32 = 2048;

/// A chunk that serves the request, with its padding and wait.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) link: Link,
    /// Granules before the block that stay free, because of its alignment.
    pub(crate) padding: u32,
    /// The point that the stream must wait for.
    pub(crate) wait: Option<StreamPoint>,
}

/// A request in granules.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    /// Granules of the block.
    pub(crate) size: u32,
    /// Alignment in granules, a power of two; 1 for none.
    pub(crate) align: u32,
}

/// Adjacent free chunks that the request may use. At most one stream uses any of them.
struct ChunkRun {
    /// The lowest chunk, and the chunk after the last.
    first: Link,
    end: Link,
    chunks: u32,
    /// Total granules of the chunks.
    size: u64,
    /// Number of chunks that a stream uses, and this stream.
    pending: u32,
    stream: StreamId,
}

impl ChunkRun {
    /// Creates a run without chunks. The first chunk to add is `first`.
    const fn at(first: Link) -> Self {
        Self {
            first,
            end: first,
            chunks: 0,
            size: 0,
            pending: 0,
            stream: StreamId::MAIN,
        }
    }
}

/// Returns whether the request may use memory that a stream still uses, immediately or after a wait.
fn may_use(point: StreamPoint, request: &Request) -> bool {
    if point.stream != request.stream {
        return request.may_wait;
    }
    request.freed_by.is_none_or(|by| point.event <= by)
}

impl Chunks<'_> {
    /// Notes that a request or a point names `stream`.
    pub(crate) fn note(&mut self, stream: StreamId) {
        self.streams.note(stream);
    }

    /// Returns the request in granules, after noting its stream.
    pub(crate) fn need_of(&mut self, request: &Request) -> Result<Need, AllocError> {
        let need = self.need(request)?;
        self.streams.note(request.stream);
        Ok(need)
    }

    /// Returns the request in granules.
    #[inline]
    pub(crate) fn need(&self, request: &Request) -> Result<Need, AllocError> {
        if request.bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let too_large = AllocError::TooLarge {
            requested_bytes: request.bytes,
        };
        let size = self.granule.count_up(request.bytes).ok_or(too_large)?;
        let over = request
            .align
            .log2()
            .saturating_sub(self.granule.align().log2());
        // The sum of the size and the padding must fit 32 bits.
        let align = 1u32.checked_shl(over).ok_or(too_large)?;
        size.checked_add(align - 1).ok_or(too_large)?;
        Ok(Need { size, align })
    }

    /// Searches by FIT1 and FIT2, without joining chunks.
    #[inline(always)]
    pub(crate) fn search_now(&mut self, need: Need, request: &Request) -> Option<Candidate> {
        self.streams.note(request.stream);
        self.search(need, request)
    }

    /// Searches by FIT1 and FIT2. Then sweeps and searches again, if streams have left points to clear or chunks to
    /// join. Then searches by FIT3 and FIT4. Each search except the first examines at most `looks` chunks.
    pub(crate) fn search_fully(
        &mut self,
        need: Need,
        request: &Request,
        looks: u32,
        sweep: impl FnOnce(&mut Self),
    ) -> Option<Candidate> {
        if let Some(found) = self.search(need, request) {
            return Some(found);
        }
        if self.may_clear_points() {
            sweep(self);
            if let Some(found) = self.search(need, request) {
                return Some(found);
            }
        }
        self.search_everything(need, request, looks)
            .or_else(|| self.join_for(need, request, looks, |_| true))
    }

    /// Returns whether a sweep may clear a point, because a stream has advanced since the last sweep.
    pub(crate) fn may_clear_points(&self) -> bool {
        self.streams.with_point() > 0 && self.streams.moved()
    }

    /// Returns the chunks in the bins, from that of `size` granules up, in the order of FIT1.
    pub(crate) fn listed_from(&self, size: u32) -> impl Iterator<Item = Link> {
        let (mut from, mut next) = (Class::of(size).index(), Link::NIL);
        core::iter::from_fn(move || {
            if next.is_nil() {
                let class = self.bins.next_class(from)?;
                from = class.index() + 1;
                next = self.bins.head(class);
            }
            let link = next;
            next = self.table.at(link).next_free();
            Some(link)
        })
    }

    /// Returns the chunk after `link` in the bins, or the first chunk for nil. The walk goes from the largest class
    /// down to that of `least` granules, and through each class from the newest chunk to the oldest.
    #[inline]
    pub(crate) fn next_listed(&self, link: Link, least: u32) -> Link {
        let mut below = Class::COUNT;
        if link.is_some() {
            let chunk = self.table.at(link);
            if chunk.next_free().is_some() {
                return chunk.next_free();
            }
            below = Class::of(chunk.size).index();
        }
        let least = Class::of(least).index();
        let class = self.bins.class_below(below);
        let class = class.filter(|class| class.index() >= least);
        class.map_or(Link::NIL, |class| self.bins.head(class))
    }

    /// Returns the wilderness (BFC4).
    pub(crate) const fn wilderness(&self) -> Link {
        self.wilderness
    }

    /// Searches by FIT1 and FIT2.
    // Inlined, like `take`.
    #[inline(always)]
    pub(super) fn search(&self, need: Need, request: &Request) -> Option<Candidate> {
        if self.exceeds_limit(need) {
            return None;
        }
        if need.align > 1 || self.streams.with_point() > 0 && !self.uses_all_points(request) {
            // Copied, so that the request need not be in memory for the other path.
            let request = *request;
            return self
                .search_upward(need, &request, SCAN, u32::MAX)
                .or_else(|| self.judge(self.wilderness, need, &request));
        }
        let class = Class::of(need.size);
        let mut link = self.best_of_size(class, need.size);
        if link.is_nil()
            && let Some(class) = self.bins.next_class(class.index() + 1)
        {
            link = self.best_of_size(class, need.size);
        }
        if link.is_nil() && self.table.at(self.wilderness).size >= need.size {
            link = self.wilderness;
        }
        link.is_some().then_some(Candidate {
            link,
            padding: 0,
            wait: None,
        })
    }

    /// Returns whether the request may immediately use every chunk with a point.
    fn uses_all_points(&self, request: &Request) -> bool {
        request.freed_by.is_none()
            && self.streams.points_of(request.stream) == self.streams.with_point()
    }

    /// Searches by FIT3, among at most `looks` chunks.
    pub(super) fn search_everything(
        &self,
        need: Need,
        request: &Request,
        looks: u32,
    ) -> Option<Candidate> {
        if self.exceeds_limit(need) {
            return None;
        }
        self.search_upward(need, request, u32::MAX, looks)
            .or_else(|| self.judge(self.wilderness, need, request))
    }

    /// Searches one class by FIT1, in the case that every chunk may be used immediately and none needs padding.
    #[inline]
    fn best_of_size(&self, class: Class, size: u32) -> Link {
        let mut link = self.bins.head(class);
        let mut best = Link::NIL;
        let mut best_size = u32::MAX;
        let mut left = SCAN;
        while link.is_some() && left > 0 {
            let chunk = self.table.at(link);
            if chunk.size >= size {
                if chunk.size == size {
                    return link;
                }
                if chunk.size < best_size
                    || best.is_nil()
                    || chunk.size == best_size && self.is_lower(chunk, best)
                {
                    best = link;
                    best_size = chunk.size;
                }
            }
            link = chunk.next_free();
            left -= 1;
        }
        best
    }

    /// Returns whether `chunk` lies at a lower address than the chunk at `other`.
    #[inline]
    fn is_lower(&self, chunk: &Chunk, other: Link) -> bool {
        let other = self.table.at(other);
        if chunk.region() == other.region() {
            return chunk.start < other.start;
        }
        self.regions.get(chunk.region()).base < self.regions.get(other.region()).base
    }

    /// Searches by FIT1 in the general case, in which a large enough chunk may not serve. Examines at most `scan`
    /// chunks of each class, and `most` in total.
    fn search_upward(
        &self,
        need: Need,
        request: &Request,
        scan: u32,
        most: u32,
    ) -> Option<Candidate> {
        let (mut from, mut looks) = (Class::of(need.size).index(), most);
        while looks > 0
            && let Some(class) = self.bins.next_class(from)
        {
            let mut left = scan.min(looks);
            looks -= left;
            let found = self.best_of_class(class, need, request, &mut left);
            if found.is_some() {
                return found;
            }
            looks += left;
            from = class.index() + 1;
        }
        None
    }

    /// Searches one class by FIT1.
    fn best_of_class(
        &self,
        class: Class,
        need: Need,
        request: &Request,
        left: &mut u32,
    ) -> Option<Candidate> {
        let mut best: Option<(Candidate, (bool, u32, u64))> = None;
        let mut link = self.bins.head(class);
        while link.is_some() && *left > 0 {
            if let Some(found) = self.judge(link, need, request) {
                let size = self.table.at(link).size;
                if size == need.size && found.padding == 0 && found.wait.is_none() {
                    return Some(found);
                }
                let key = (found.wait.is_some(), size, self.addr_of(link));
                if best.as_ref().is_none_or(|(_, least)| key < *least) {
                    best = Some((found, key));
                }
            }
            link = self.table.at(link).next_free();
            *left -= 1;
        }
        best.map(|(found, _)| found)
    }

    /// Returns the padding and the wait with which a free chunk serves the request, if it does.
    pub(crate) fn judge(&self, link: Link, need: Need, request: &Request) -> Option<Candidate> {
        let chunk = self.table.at(link);
        if !chunk.is_free() {
            return None;
        }
        let padding = self.padding(link, need);
        if u64::from(chunk.size) < u64::from(need.size) + u64::from(padding) {
            return None;
        }
        let pending = self.streams.pending(chunk.point());
        if pending.is_some_and(|point| !may_use(point, request)) {
            return None;
        }
        let wait = pending.filter(|point| point.stream != request.stream);
        Some(Candidate {
            link,
            padding,
            wait,
        })
    }

    /// Searches by FIT4, among at most `looks` chunks of each region, and only among `usable` ones. Joins the chunks
    /// found.
    pub(crate) fn join_for(
        &mut self,
        need: Need,
        request: &Request,
        looks: u32,
        usable: impl Fn(&Chunk) -> bool,
    ) -> Option<Candidate> {
        if self.streams.with_point() == 0 || self.exceeds_limit(need) {
            return None;
        }
        for place in 0..self.regions.len() {
            let from = self.first_of_region(place);
            if let Some((link, joins)) = self.chunks_to_join(from, need, request, looks, &usable) {
                for _ in 0..joins {
                    self.clear_point(link);
                    self.clear_point(self.table.at(link).next);
                    self.force_join_behind(link);
                }
                return self.judge(link, need, request);
            }
        }
        None
    }

    /// Returns the first run of adjacent free chunks that may be joined and together serve the request: its lowest
    /// chunk, and the number of chunks after that one. Both ends of the examined run only move upwards. A run with a
    /// later first chunk cannot end lower, because the aligned start of its block is not lower.
    fn chunks_to_join(
        &self,
        from: Link,
        need: Need,
        request: &Request,
        looks: u32,
        usable: &impl Fn(&Chunk) -> bool,
    ) -> Option<(Link, u32)> {
        let (mut run, mut left) = (ChunkRun::at(from), looks);
        while run.first.is_some() && left > 0 {
            left -= 1;
            let padding = u64::from(self.padding(run.first, need));
            if run.chunks > 0 && run.size >= u64::from(need.size) + padding {
                return Some((run.first, run.chunks - 1));
            }
            if run.end.is_nil() {
                return None;
            }
            let chunk = self.table.at(run.end);
            let point = self.streams.pending(chunk.point());
            let is_refused = point.is_some_and(|point| !may_use(point, request));
            if !chunk.is_free() || is_refused || !usable(chunk) {
                run = ChunkRun::at(chunk.next);
            } else if let Some(point) = point
                && run.pending > 0
                && run.stream != point.stream
            {
                // Another stream uses the first chunk of the run.
                let first = self.table.at(run.first);
                run.chunks -= 1;
                run.size -= u64::from(first.size);
                run.pending -= u32::from(self.streams.pending(first.point()).is_some());
                run.first = first.next;
            } else {
                if let Some(point) = point {
                    run.pending += 1;
                    run.stream = point.stream;
                }
                run.chunks += 1;
                run.size += u64::from(chunk.size);
                run.end = chunk.next;
            }
        }
        None
    }

    /// Returns whether adjacent free chunks, at least one of which a stream still uses, would serve the request if no
    /// stream used them. O(chunks).
    pub(super) fn would_serve_settled(&self, need: Need) -> bool {
        self.regions.ids().any(|id| {
            let mut link = self.regions.get(id).first;
            // The run of free chunks up to here: the first chunk, the total size, and whether any chunk is pending.
            let (mut first, mut size, mut pending) = (Link::NIL, 0, false);
            while link.is_some() {
                let chunk = self.table.at(link);
                if !chunk.is_free() {
                    (first, size, pending) = (Link::NIL, 0, false);
                } else {
                    first = if first.is_nil() { link } else { first };
                    size += u64::from(chunk.size);
                    pending |= self.streams.pending(chunk.point()).is_some();
                    let padding = u64::from(self.padding(first, need));
                    if pending && size >= padding + u64::from(need.size) {
                        return true;
                    }
                }
                link = chunk.next;
            }
            false
        })
    }

    /// Returns the number of granules from the chunk's start to the next multiple of the alignment.
    pub(crate) fn padding(&self, link: Link, need: Need) -> u32 {
        if need.align <= 1 {
            return 0;
        }
        let granule_number = self.addr_of(link) >> self.granule.align().log2();
        // The low 32 bits suffice, because the alignment is a power of two of at most 2^31 granules.
        (granule_number as u32).wrapping_neg() & (need.align - 1)
    }
}

#[cfg(test)]
mod tests {
    use crate::best_fit::BestFit;
    use crate::block::Request;
    use crate::engine::Chunk;
    use crate::regions::{RegionConfig, RegionPool};
    use crate::stream::{EventNumber, StreamId, StreamPoint};
    use crate::units::{Addr, AddrRange};

    const CHUNKS: usize = 1000;
    const GRANULE: u64 = 256;

    fn on(granules: usize, stream: u8) -> Request {
        Request::new(granules as u64 * GRANULE).on(StreamId::new(stream))
    }

    /// Creates free chunks of one granule. Every second chunk is used by stream 0 or 2, in turn.
    fn alternating(table: &mut [Chunk]) -> RegionPool<'_> {
        let mut pool = RegionPool::new(RegionConfig::fixed(), table).unwrap();
        let bytes = (CHUNKS as u64 + 1) * GRANULE;
        pool.add_region(AddrRange::new(Addr::new(0), bytes).unwrap())
            .unwrap();
        let blocks = [(); CHUNKS + 1].map(|()| pool.alloc(&on(1, 1)).unwrap().block);
        for (number, block) in blocks.into_iter().enumerate().take(CHUNKS) {
            let event = EventNumber::new(number as u64 % 2 * 5);
            let stream = StreamId::new(number as u8 & 2);
            pool.free_after(block, StreamPoint { stream, event })
                .unwrap();
        }
        pool
    }

    #[test]
    fn joining_looks_at_each_chunk_a_bounded_number_of_times() {
        let mut table = [Chunk::VACANT; CHUNKS + 3];
        let mut pool = alternating(&mut table);
        assert!(
            pool.alloc(&on(4, 2)).is_err(),
            "two streams would use a part"
        );
        let found = pool.alloc(&on(3, 2)).unwrap();
        assert_eq!((found.block.addr().get(), found.wait.is_some()), (0, true));
        pool.free(found.block).unwrap();
        pool.complete(StreamId::new(2), EventNumber::new(5));
        pool.chunks().streams.looks.set(0);
        assert!(pool.alloc(&on(CHUNKS + 1, 0)).is_err());
        let looks = pool.chunks().streams.looks.get();
        assert!(looks < 10 * CHUNKS, "{looks} looks");
        assert!(pool.alloc(&on(CHUNKS, 0)).is_ok(), "all of it");
        pool.check_invariants().unwrap();
    }
}
