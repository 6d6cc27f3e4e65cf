//! The chunks of all segments, chained by address, and ordered sets of the free and of the unmapped
//! chunks.
//!
//! Invariants:
//! * each segment is covered by a chain of chunks from its base to its end;
//! * no two neighbours in a chain are both free or both unmapped;
//! * the two sets hold exactly the free and the unmapped chunks.

use std::collections::BTreeSet;

/// The pool of a request. Requests of at most 1 MiB are small, and never share a segment with large
/// ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PoolKind {
    Small,
    Large,
}

/// A chunk's pool and stream. Only requests of the same pool and stream may take the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane {
    pub(super) pool: PoolKind,
    pub(super) stream: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockState {
    Used,
    Free,
    /// The chunk's addresses have no memory.
    Unmapped,
    /// The record is spare and has no chunk.
    Gone,
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct TorchBlock {
    pub(super) lane: Lane,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) prev: Option<u32>,
    pub(super) next: Option<u32>,
    pub(super) state: BlockState,
    /// Number of large requests that had been made when the chunk was freed.
    pub(super) freed_at: u64,
}

impl TorchBlock {
    /// Creates a segment of one chunk.
    pub(super) const fn segment(lane: Lane, address: u64, bytes: u64, state: BlockState) -> Self {
        Self {
            lane,
            address,
            bytes,
            prev: None,
            next: None,
            state,
            freed_at: 0,
        }
    }

    pub(super) const fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// Returns whether the chunk is its whole segment.
    pub(super) const fn is_whole(&self) -> bool {
        self.prev.is_none() && self.next.is_none()
    }
}

/// The chunks, by record.
#[derive(Debug, Default)]
pub(super) struct TorchBlocks {
    records: Vec<TorchBlock>,
    spare: Vec<u32>,
    free: BTreeSet<FreeKey>,
    /// Lane, address and record of every unmapped chunk.
    unmapped: BTreeSet<(Lane, u64, u32)>,
    /// Number of large requests so far. It is the clock that measures how long a chunk has been
    /// free.
    pub(super) large_requests: u64,
}

impl TorchBlocks {
    pub(super) fn get(&self, record: u32) -> TorchBlock {
        self.records[record as usize]
    }

    /// Returns the free chunks of at least `bytes` in ascending order of size and then of address.
    pub(super) fn free_from(&self, lane: Lane, bytes: u64) -> impl Iterator<Item = u32> {
        let from = self.free.range((lane, bytes, 0, 0)..);
        let own = from.take_while(move |key| key.0 == lane);
        own.map(|&(.., record)| record)
    }

    /// Returns the free chunks smaller than `bytes`, largest first.
    pub(super) fn free_below(&self, lane: Lane, bytes: u64) -> impl Iterator<Item = u32> {
        let below = self.free.range((lane, 0, 0, 0)..(lane, bytes, 0, 0));
        below.rev().map(|&(.., record)| record)
    }

    /// Returns all free chunks.
    pub(super) fn free(&self) -> impl Iterator<Item = u32> {
        self.free.iter().map(|&(.., record)| record)
    }

    /// Returns the unmapped chunks, lowest first.
    pub(super) fn unmapped(&self, lane: Lane) -> impl Iterator<Item = u32> {
        let own = self
            .unmapped
            .range((lane, 0, 0)..)
            .take_while(move |key| key.0 == lane);
        own.map(|&(.., record)| record)
    }

    /// Returns all chunks that have memory.
    pub(super) fn mapped(&self) -> impl Iterator<Item = &TorchBlock> {
        let chunks = self.records.iter();
        chunks.filter(|chunk| matches!(chunk.state, BlockState::Used | BlockState::Free))
    }

    /// Adds a chunk. Returns `None` if no record numbers are left.
    pub(super) fn add(&mut self, chunk: TorchBlock) -> Option<u32> {
        let record = match self.spare.pop() {
            Some(record) => {
                self.records[record as usize] = chunk;
                record
            }
            None => {
                let record = u32::try_from(self.records.len()).ok()?;
                self.records.push(chunk);
                record
            }
        };
        self.enter(record);
        Some(record)
    }

    /// Removes a chunk that is a whole segment.
    pub(super) fn remove(&mut self, record: u32) {
        self.leave(record);
        self.forget(record);
    }

    /// Marks a free chunk as used.
    pub(super) fn take(&mut self, record: u32) {
        self.leave(record);
        self.records[record as usize].state = BlockState::Used;
    }

    /// Marks a chunk as free or unmapped, and joins it with neighbours in the same state. Returns
    /// the joined chunk.
    pub(super) fn give(&mut self, record: u32, state: BlockState) -> u32 {
        self.leave(record);
        self.records[record as usize].state = state;
        if let Some(next) = self.leave_if(self.get(record).next, state) {
            self.join(record, next);
        }
        let prev = self.leave_if(self.get(record).prev, state);
        if let Some(prev) = prev {
            self.join(prev, record);
        }
        let joined = prev.unwrap_or(record);
        self.enter(joined);
        joined
    }

    /// Cuts a chunk to `bytes`, which is more than 0 and less than its size. Returns the rest.
    pub(super) fn split(&mut self, record: u32, bytes: u64) -> Option<u32> {
        let whole = self.get(record);
        let rest = self.add(TorchBlock {
            address: whole.address + bytes,
            bytes: whole.bytes - bytes,
            prev: Some(record),
            ..whole
        })?;
        if let Some(next) = whole.next {
            self.records[next as usize].prev = Some(rest);
        }
        self.leave(record);
        self.records[record as usize].bytes = bytes;
        self.records[record as usize].next = Some(rest);
        self.enter(record);
        Some(rest)
    }

    /// Removes a neighbour in this state from its set and returns it; otherwise returns `None`.
    fn leave_if(&mut self, neighbour: Option<u32>, state: BlockState) -> Option<u32> {
        let record = neighbour.filter(|&record| self.get(record).state == state)?;
        self.leave(record);
        Some(record)
    }

    /// Merges `high` into `low`, the chunk right below it. Neither is in a set.
    fn join(&mut self, low: u32, high: u32) {
        let swallowed = self.get(high);
        let chunk = &mut self.records[low as usize];
        chunk.bytes += swallowed.bytes;
        chunk.next = swallowed.next;
        if let Some(next) = swallowed.next {
            self.records[next as usize].prev = Some(low);
        }
        self.forget(high);
    }

    fn forget(&mut self, record: u32) {
        self.records[record as usize].state = BlockState::Gone;
        self.spare.push(record);
    }

    fn enter(&mut self, record: u32) {
        self.records[record as usize].freed_at = self.large_requests;
        let chunk = self.get(record);
        match chunk.state {
            BlockState::Used | BlockState::Gone => false,
            BlockState::Free => self.free.insert(free_key(&chunk, record)),
            BlockState::Unmapped => self.unmapped.insert((chunk.lane, chunk.address, record)),
        };
    }

    fn leave(&mut self, record: u32) {
        let chunk = self.get(record);
        match chunk.state {
            BlockState::Used | BlockState::Gone => false,
            BlockState::Free => self.free.remove(&free_key(&chunk, record)),
            BlockState::Unmapped => self.unmapped.remove(&(chunk.lane, chunk.address, record)),
        };
    }
}

/// Lane, size, address and record.
type FreeKey = (Lane, u64, u64, u32);

const fn free_key(chunk: &TorchBlock, record: u32) -> FreeKey {
    (chunk.lane, chunk.bytes, chunk.address, record)
}

#[cfg(test)]
impl TorchBlocks {
    /// Checks that chains are complete, that no neighbours can be joined, and that the sets hold
    /// exactly their chunks.
    pub(super) fn check_invariants(&self) {
        let mut in_sets = 0;
        for (record, chunk) in (0..).zip(&self.records) {
            let in_free = self.free.contains(&free_key(chunk, record));
            let unmapped_key = (chunk.lane, chunk.address, record);
            let in_unmapped = self.unmapped.contains(&unmapped_key);
            assert_eq!(in_free, chunk.state == BlockState::Free, "{chunk:?}");
            assert_eq!(
                in_unmapped,
                chunk.state == BlockState::Unmapped,
                "{chunk:?}"
            );
            in_sets += usize::from(in_free) + usize::from(in_unmapped);
            if chunk.state == BlockState::Gone {
                continue;
            }
            assert!(chunk.bytes > 0, "{chunk:?}");
            if let Some(next) = chunk.next {
                let next = self.get(next);
                assert_eq!((next.address, next.prev), (chunk.end(), Some(record)));
                assert_eq!(next.lane, chunk.lane);
                assert!(next.state == BlockState::Used || next.state != chunk.state);
            }
        }
        assert_eq!(in_sets, self.free.len() + self.unmapped.len());
    }
}
