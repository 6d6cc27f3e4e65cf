//! The chunks of all regions, the free chunks by size, and the rules of joining.
//!
//! Invariants: the chunks cover each region without a gap; of two adjacent free chunks of a region, at least one has a
//! count; `free` contains exactly the free chunks, and `counted` exactly the free chunks with a count.

use std::collections::{BTreeMap, BTreeSet};

/// A part of a region, wholly used or wholly free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its size.
    pub bytes: u64,
    /// The requested bytes and the number, if it is in use.
    pub used: Option<Used>,
    /// The count at which it was freed; 0 if it may be joined.
    pub freed_at: u64,
}

/// The data of a chunk in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// Bytes that were requested.
    pub requested_bytes: u64,
    /// Number of the allocation, from 1.
    pub id: u64,
}

/// Regions and their chunks.
#[derive(Clone, Default, Debug)]
pub(super) struct Chunks {
    /// The size of each region, by its start.
    pub(super) regions: BTreeMap<u64, u64>,
    pub(super) by_start: BTreeMap<u64, Chunk>,
    /// The size and start of each free chunk.
    free: BTreeSet<(u64, u64)>,
    /// The count and start of each free chunk with a count.
    counted: BTreeSet<(u64, u64)>,
}

impl Chunks {
    /// Returns the smallest free chunk that is large enough, the lowest among equals.
    pub(super) fn find(&self, rounded: u64, count: u64) -> Option<u64> {
        let (_, start) = self
            .free
            .range((rounded, 0)..)
            .find(|(_, start)| count == 0 || self.by_start[start].freed_at <= count)?;
        Some(*start)
    }

    /// Returns the starts of the regions that consist of one free chunk without a count.
    pub(super) fn free_regions(&self) -> Vec<u64> {
        let is_free = |(start, bytes): &(&u64, &u64)| {
            let first = self.by_start[*start];
            first.bytes == **bytes && first.used.is_none() && first.freed_at == 0
        };
        let free = self.regions.iter().filter(is_free);
        free.map(|(start, _)| *start).collect()
    }

    /// Clears the counts below `safe_frontier`, and joins the chunks that had them.
    pub(super) fn merge_safe(&mut self, safe_frontier: u64) {
        let mut safe = Vec::new();
        while let Some((count, start)) = self.counted.first().copied()
            && count < safe_frontier
        {
            let chunk = self.remove(start);
            let cleared = Chunk {
                freed_at: 0,
                ..chunk
            };
            self.put(start, cleared);
            safe.push(start);
        }
        for start in safe {
            if self.by_start.contains_key(&start) {
                self.coalesce(start);
            }
        }
    }

    /// Joins a free chunk with adjacent free chunks that have no count: first those above it, then those below it.
    pub(super) fn coalesce(&mut self, start: u64) {
        let joins = |chunks: &Self, other: &u64| {
            let chunk = chunks.by_start[other];
            chunk.used.is_none() && chunk.freed_at == 0
        };
        let mut low = start;
        while let Some(next) = self.next_of(low).filter(|other| joins(self, other)) {
            self.join(low, next);
        }
        while let Some(previous) = self.previous_of(low).filter(|other| joins(self, other)) {
            self.join(previous, low);
            low = previous;
        }
    }

    /// Joins chunks with a count, in the order of their frees, until one is large enough.
    pub(super) fn force_merge(&mut self, rounded: u64) -> bool {
        let is_free = |chunks: &Self, other: &u64| chunks.by_start[other].used.is_none();
        let mut done = (0, u64::MAX);
        while let Some(turn) = self
            .counted
            .range(done..)
            .find(|turn| **turn > done)
            .copied()
        {
            done = turn;
            let mut low = turn.1;
            if let Some(next) = self.next_of(low).filter(|other| is_free(self, other)) {
                self.join(low, next);
            }
            if let Some(previous) = self.previous_of(low).filter(|other| is_free(self, other)) {
                self.join(previous, low);
                low = previous;
            }
            if self.by_start[&low].bytes >= rounded {
                return true;
            }
        }
        false
    }

    /// Joins two chunks; the result has the later count.
    fn join(&mut self, low: u64, high: u64) {
        let (below, above) = (self.remove(low), self.remove(high));
        let joined = Chunk {
            bytes: below.bytes + above.bytes,
            used: None,
            freed_at: below.freed_at.max(above.freed_at),
        };
        self.put(low, joined);
    }

    fn next_of(&self, start: u64) -> Option<u64> {
        let behind = start + self.by_start[&start].bytes;
        let same_region = !self.regions.contains_key(&behind);
        (same_region && self.by_start.contains_key(&behind)).then_some(behind)
    }

    fn previous_of(&self, start: u64) -> Option<u64> {
        if self.regions.contains_key(&start) {
            return None;
        }
        let (before, _) = self.by_start.range(..start).next_back()?;
        Some(*before)
    }

    pub(super) fn put(&mut self, start: u64, chunk: Chunk) {
        if chunk.used.is_none() {
            self.free.insert((chunk.bytes, start));
            if chunk.freed_at > 0 {
                self.counted.insert((chunk.freed_at, start));
            }
        }
        self.by_start.insert(start, chunk);
    }

    pub(super) fn remove(&mut self, start: u64) -> Chunk {
        let chunk = self.by_start.remove(&start).expect("a chunk");
        self.free.remove(&(chunk.bytes, start));
        self.counted.remove(&(chunk.freed_at, start));
        chunk
    }
}
