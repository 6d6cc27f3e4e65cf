//! Checks every invariant. O(chunks). Tests, models and the fuzzer call this after every operation on small tables.
//!
//! For BFC8, each ID is compared with those of [`ID_WINDOW`] neighbours. In a small table these are all chunks; in a
//! large table they are a sample.

use core::fmt;

use super::Chunks;
use super::chunk::{Chunk, Link, State};
use super::class::Class;
use super::region::RegionId;
use crate::stream::StreamId;

/// A broken invariant: a defect of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant's number, as stated at the head of a source file.
    pub invariant: &'static str,
    /// The number of the chunk where the violation was found, or 0 if there is none. For PAGE1 to PAGE3 and PAGE8, it
    /// may be the number of a handle or mapping.
    pub chunk: u32,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invariant {} broken at chunk {}",
            self.invariant, self.chunk
        )
    }
}

impl core::error::Error for Violation {}

/// Number of chunks after a used chunk whose IDs are compared with its ID.
const ID_WINDOW: u32 = 128;

/// Returns the violation unless `holds`.
pub(crate) fn check(
    holds: bool,
    invariant: &'static str,
    at: impl Into<u32>,
) -> Result<(), Violation> {
    if holds {
        return Ok(());
    }
    Err(Violation {
        invariant,
        chunk: at.into(),
    })
}

/// Sums of a walk over all chunks.
#[derive(Default)]
struct ChunkSums {
    chunks: u32,
    listed: u32,
    reserved: u32,
    live: u64,
    leaving: u64,
    held: u64,
    slack_bytes: u64,
    /// Free and reserved chunks with a point, by stream.
    points: CountByStream,
}

/// A count for each stream.
struct CountByStream([u32; StreamId::COUNT]);

impl Default for CountByStream {
    fn default() -> Self {
        Self([0; StreamId::COUNT])
    }
}

impl Chunks<'_> {
    /// Checks BFC1 to BFC10. Returns the bytes of all regions.
    pub(crate) fn check_invariants(&self) -> Result<u64, Violation> {
        let mut found = ChunkSums::default();
        self.check_region_order()?;
        for id in self.regions.ids() {
            self.check_region(id, &mut found)?;
        }
        self.check_wilderness()?;
        self.check_bins(&found)?;
        self.check_reserved(&found)?;
        self.check_records(&found)?;
        self.check_counters(&found)?;
        Ok(found.held * self.granule.bytes())
    }

    /// Checks BFC9 (REGION1, REGION2).
    fn check_region_order(&self) -> Result<(), Violation> {
        let mut end = 0;
        for id in self.regions.ids() {
            let range = self.regions.get(id).range(self.granule);
            let in_order = range.is_some_and(|range| range.start().get() >= end);
            check(in_order, "BFC9", self.regions.get(id).first)?;
            end = range.map_or(end, |range| range.end().get());
        }
        Ok(())
    }

    /// Checks BFC1 and BFC2, and the parts of BFC3, BFC8 and BFC10 that one chunk shows.
    fn check_region(&self, id: RegionId, found: &mut ChunkSums) -> Result<(), Violation> {
        let region = self.regions.get(id);
        let (mut link, mut prev, mut offset) = (region.first, Link::NIL, 0);
        while link.is_some() {
            let chunk = self.table.at(link);
            check(chunk.start == offset && chunk.size > 0, "BFC1", link)?;
            check(chunk.prev == prev && chunk.region() == id, "BFC1", link)?;
            check(
                u64::from(offset) + u64::from(chunk.size) <= u64::from(region.granules),
                "BFC1",
                link,
            )?;
            self.check_neighbours(prev, link)?;
            self.check_chunk(link, found)?;
            offset = chunk.end();
            prev = link;
            link = chunk.next;
        }
        check(
            offset == region.granules && prev == region.last,
            "BFC1",
            prev,
        )?;
        found.held += u64::from(region.granules);
        Ok(())
    }

    /// Checks BFC2, using the stored points.
    fn check_neighbours(&self, prev: Link, link: Link) -> Result<(), Violation> {
        let (a, b) = (self.table.at(prev), self.table.at(link));
        if !a.is_free() || !b.is_free() {
            return Ok(());
        }
        let with_point = a.point().is_some() || b.point().is_some();
        let may_stand_apart = with_point && (self.apart || self.streams.many());
        check(may_stand_apart, "BFC2", link)
    }

    fn check_chunk(&self, link: Link, found: &mut ChunkSums) -> Result<(), Violation> {
        let chunk = self.table.at(link);
        let size = u64::from(chunk.size);
        found.chunks += 1;
        match chunk.state() {
            State::Vacant => check(false, "BFC5", link)?,
            State::Used => {
                found.live += size;
                found.slack_bytes += u64::from(chunk.slack_bytes());
                let slack = u64::from(chunk.slack_bytes()) < self.granule.bytes_of(chunk.size);
                check(slack && self.id_is_unique(link), "BFC8", link)?;
            }
            State::Free => {
                found.listed += u32::from(link != self.wilderness);
                check(!chunk.is_first(), "BFC10", link)?;
                if let Some((stream, _)) = chunk.point() {
                    found.points.0[usize::from(stream.number())] += 1;
                }
            }
            State::Leaving => {
                found.leaving += size;
                check(chunk.point().is_none(), "BFC3", link)?;
            }
            State::Filling => {
                check(chunk.point().is_none(), "BFC3", link)?;
            }
            State::Reserved => {
                found.reserved += 1;
                if let Some((stream, _)) = chunk.point() {
                    found.points.0[usize::from(stream.number())] += 1;
                }
            }
        }
        Ok(())
    }

    /// Checks BFC8: the ID was assigned, and no used chunk after this one in the region has it.
    fn id_is_unique(&self, link: Link) -> bool {
        let id = self.table.at(link).id();
        let mut other = self.table.at(link).next;
        let mut left = ID_WINDOW;
        while other.is_some() && left > 0 {
            left -= 1;
            let chunk = self.table.at(other);
            if chunk.is_used() && chunk.id() == id {
                return false;
            }
            other = chunk.next;
        }
        (1..=self.counters.last_id).contains(&id)
    }

    /// Checks BFC4.
    fn check_wilderness(&self) -> Result<(), Violation> {
        let last = self.newest_end();
        let expected = if self.table.at(last).is_free() {
            last
        } else {
            Link::NIL
        };
        check(self.wilderness == expected, "BFC4", self.wilderness)
    }

    /// Checks BFC3 with BIN1 and BIN2: every list holds exactly the listed chunks of its class.
    fn check_bins(&self, found: &ChunkSums) -> Result<(), Violation> {
        check(self.bins.bitmap_agrees(), "BFC3", Link::NIL)?;
        let mut listed = 0;
        for index in 0..Class::COUNT {
            let class = Class::from_index(index);
            let (mut link, mut previous) = (self.bins.head(class), Link::NIL);
            while link.is_some() {
                let chunk = self.table.at(link);
                check(chunk.is_free() && link != self.wilderness, "BFC3", link)?;
                check(Class::of(chunk.size) == class, "BFC3", link)?;
                check(chunk.previous_free() == previous, "BFC3", link)?;
                listed += 1;
                check(listed <= found.listed, "BFC3", link)?;
                previous = link;
                link = chunk.next_free();
            }
        }
        check(listed == found.listed, "BFC3", Link::NIL)
    }

    /// Checks BFC10.
    fn check_reserved(&self, found: &ChunkSums) -> Result<(), Violation> {
        let (mut link, mut previous, mut listed) = (self.reserved, Link::NIL, 0);
        while link.is_some() {
            let chunk = self.table.at(link);
            let in_list = chunk.is_reserved() && chunk.previous_free() == previous;
            listed += 1;
            check(in_list && listed <= found.reserved, "BFC10", link)?;
            previous = link;
            link = chunk.next_free();
        }
        check(listed == found.reserved, "BFC10", Link::NIL)
    }

    /// Checks BFC5 (SLAB2, SLAB3).
    fn check_records(&self, found: &ChunkSums) -> Result<(), Violation> {
        check(self.table.in_use() == found.chunks, "BFC5", Link::NIL)?;
        let is_vacant = |chunk: &Chunk| chunk.state() == State::Vacant;
        check(self.table.is_sound(is_vacant), "BFC5", Link::NIL)
    }

    /// Checks BFC6 and BFC7.
    fn check_counters(&self, found: &ChunkSums) -> Result<(), Violation> {
        let counters = &self.counters;
        let agree = counters.live == found.live
            && counters.leaving == found.leaving
            && counters.slack_bytes == found.slack_bytes
            && self.streams.with_point() == found.points.0.iter().sum::<u32>()
            && counters.peak_live >= counters.live
            && counters.peak_reserved >= counters.reserved;
        check(agree, "BFC6", Link::NIL)?;
        let is_over_limit = self.reserved_bytes() > self.limit_bytes;
        check(self.is_over_limit == is_over_limit, "BFC6", Link::NIL)?;
        let by_stream = (0..=u8::MAX).map(|stream| self.streams.points_of(StreamId::new(stream)));
        check(by_stream.eq(found.points.0), "BFC6", Link::NIL)?;
        check(
            self.taken_bytes() <= self.limit_bytes.max(self.excused_bytes),
            "BFC7",
            Link::NIL,
        )
    }
}
