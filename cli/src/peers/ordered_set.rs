//! Best fit with coalescing over one ordered set of free chunks.
//!
//! This is a plain BFC, with the split rule and the region policy as data. It is not tuned for
//! speed. The set is ordered by (size, address), as in textbooks. TensorFlow has the same order,
//! divided into 21 size bins, and so finds the same chunk.
//!
//! Invariants:
//! * each region is covered by a chain of chunks from its base to its end;
//! * no two neighbours in a chain are both free;
//! * the set holds exactly the free chunks;
//! * sizes and addresses are multiples of 256 bytes.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::SimulatedDevice;
use super::device::UNLIMITED_BYTES;
use crate::replay::{Contender, ContenderBlock};
use crate::snapshot::Span;

/// Bytes to a multiple of which every size is rounded up.
const GRANULE_BYTES: u64 = 256;

/// The condition for splitting a chunk larger than the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SplitRule {
    /// Splits whenever a remainder is left.
    Always,
    /// TensorFlow's rule: splits if the chunk is at least twice as large as the request, or the
    /// remainder is at least the waste limit.
    Generous {
        /// Minimum remainder that is always split off, in bytes.
        waste_limit_bytes: u64,
    },
}

impl SplitRule {
    fn splits(self, chunk_bytes: u64, request_bytes: u64) -> bool {
        let rest = chunk_bytes - request_bytes;
        match self {
            Self::Always => rest > 0,
            Self::Generous { waste_limit_bytes } => {
                rest >= request_bytes || rest >= waste_limit_bytes
            }
        }
    }
}

/// The policy by which regions are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegionPolicy {
    /// There is one region as large as the limit; *reserved* is the highest address used so far, as
    /// if the rest of the region cost nothing.
    One,
    /// Regions are added as needed, with sizes that double; *reserved* is their sum.
    Doubling {
        /// Size of the first region in bytes.
        first_bytes: u64,
    },
}

/// A piece of a region, free or in use.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    address: u64,
    bytes: u64,
    prev: Option<u32>,
    next: Option<u32>,
    free: bool,
}

/// The simulated allocator.
#[derive(Debug)]
pub(crate) struct OrderedSet {
    split: SplitRule,
    regions: RegionPolicy,
    device: SimulatedDevice,
    limit_bytes: u64,
    next_region_bytes: u64,
    backed_off: bool,
    highest_used: u64,
    chunks: Vec<Chunk>,
    spare_records: Vec<u32>,
    /// (size, address, record) of every free chunk.
    free: BTreeSet<(u64, u64, u32)>,
}

impl OrderedSet {
    /// Creates an allocator without regions on `device`, limited to `limit_bytes`.
    pub(crate) fn new(
        split: SplitRule,
        regions: RegionPolicy,
        limit_bytes: Option<u64>,
        device: SimulatedDevice,
    ) -> Self {
        let limit_bytes = round_down(limit_bytes.unwrap_or(UNLIMITED_BYTES));
        let next_region_bytes = match regions {
            RegionPolicy::One => limit_bytes,
            RegionPolicy::Doubling { first_bytes } => round_down(first_bytes).max(GRANULE_BYTES),
        };
        Self {
            split,
            regions,
            device,
            limit_bytes,
            next_region_bytes,
            backed_off: false,
            highest_used: 0,
            chunks: Vec::new(),
            spare_records: Vec::new(),
            free: BTreeSet::new(),
        }
    }

    /// Takes the smallest free chunk that fits, at the lowest address among equals, and splits it
    /// if the rule says so.
    fn take_fitting(&mut self, request: u64) -> Option<ContenderBlock> {
        let key = *self.free.range((request, 0, 0)..).next()?;
        let (bytes, address, record) = key;
        if self.split.splits(bytes, request) {
            self.split(record, request)?;
        }
        self.free.remove(&key);
        let chunk = &mut self.chunks[record as usize];
        chunk.free = false;
        self.highest_used = self.highest_used.max(address + chunk.bytes);
        Some(ContenderBlock {
            address,
            handle: record,
        })
    }

    /// Cuts the free chunk `record` to `request` bytes; the rest becomes free. The caller removes
    /// the chunk's own entry from the set.
    fn split(&mut self, record: u32, request: u64) -> Option<()> {
        let whole = self.chunks[record as usize];
        let rest = self.new_record(Chunk {
            address: whole.address + request,
            bytes: whole.bytes - request,
            prev: Some(record),
            next: whole.next,
            free: true,
        })?;
        if let Some(next) = whole.next {
            self.chunks[next as usize].prev = Some(rest);
        }
        let chunk = &mut self.chunks[record as usize];
        chunk.bytes = request;
        chunk.next = Some(rest);
        self.insert_free(rest);
        Some(())
    }

    /// Requests a region from the device that has room for `request`.
    fn extend(&mut self, request: u64) -> bool {
        let available = round_down(self.limit_bytes.saturating_sub(self.device.used_bytes));
        if request > available {
            return false;
        }
        let mut raised = false;
        while self.next_region_bytes < request {
            self.next_region_bytes = self.next_region_bytes.saturating_mul(2);
            raised = true;
        }
        let wanted = self.next_region_bytes.min(available);
        let Some((address, bytes)) = self.region_from_device(wanted, request) else {
            return false;
        };
        if !raised {
            self.next_region_bytes = self.next_region_bytes.saturating_mul(2);
        }
        let chunk = Chunk {
            address,
            bytes,
            prev: None,
            next: None,
            free: true,
        };
        match self.new_record(chunk) {
            Some(record) => self.insert_free(record),
            None => self.device.release(bytes),
        }
        true
    }

    /// Requests a region of `wanted` bytes. The first time that the device refuses, retries with
    /// smaller and smaller sizes, down to `request`.
    fn region_from_device(&mut self, wanted: u64, request: u64) -> Option<(u64, u64)> {
        if let Some(address) = self.device.allocate(wanted) {
            return Some((address, wanted));
        }
        if self.backed_off {
            return None;
        }
        self.backed_off = true;
        let mut bytes = wanted;
        loop {
            bytes = backed_off(bytes);
            if bytes < request || bytes == 0 {
                return None;
            }
            if let Some(address) = self.device.allocate(bytes) {
                return Some((address, bytes));
            }
        }
    }

    /// Releases every entirely free region, if that makes room for `request`.
    fn collect_free_regions(&mut self, request: u64) -> bool {
        let whole: Vec<(u64, u64, u32)> = self
            .free
            .iter()
            .copied()
            .filter(|&(_, _, record)| {
                let chunk = self.chunks[record as usize];
                chunk.prev.is_none() && chunk.next.is_none()
            })
            .collect();
        let collectable: u64 = whole.iter().map(|&(bytes, _, _)| bytes).sum();
        let room = self.limit_bytes.saturating_sub(self.device.used_bytes) + collectable;
        if whole.is_empty() || request > room {
            return false;
        }
        for key in whole {
            self.free.remove(&key);
            self.spare_records.push(key.2);
            self.device.release(key.0);
        }
        true
    }

    fn insert_free(&mut self, record: u32) {
        let chunk = self.chunks[record as usize];
        self.free.insert((chunk.bytes, chunk.address, record));
    }

    fn new_record(&mut self, chunk: Chunk) -> Option<u32> {
        if let Some(record) = self.spare_records.pop() {
            self.chunks[record as usize] = chunk;
            return Some(record);
        }
        let record = u32::try_from(self.chunks.len()).ok()?;
        self.chunks.push(chunk);
        Some(record)
    }

    /// Removes the neighbour from the set and returns it, if it exists and is free.
    fn claim_free(&mut self, neighbour: Option<u32>) -> Option<u32> {
        let record = neighbour?;
        let chunk = self.chunks[record as usize];
        chunk.free.then(|| {
            self.free.remove(&(chunk.bytes, chunk.address, record));
            record
        })
    }

    /// Merges `high` into `low`, the chunk right below it.
    fn merge(&mut self, low: u32, high: u32) {
        let swallowed = self.chunks[high as usize];
        let chunk = &mut self.chunks[low as usize];
        chunk.bytes += swallowed.bytes;
        chunk.next = swallowed.next;
        if let Some(next) = swallowed.next {
            self.chunks[next as usize].prev = Some(low);
        }
        self.spare_records.push(high);
    }
}

impl Contender for OrderedSet {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let request = bytes.max(1).checked_next_multiple_of(GRANULE_BYTES)?;
        if let Some(slot) = self.take_fitting(request) {
            return Some(slot);
        }
        if self.extend(request) {
            return self.take_fitting(request);
        }
        if self.collect_free_regions(request) && self.extend(request) {
            return self.take_fitting(request);
        }
        None
    }

    fn free(&mut self, slot: ContenderBlock) {
        let mut record = slot.handle;
        let chunk = self.chunks[record as usize];
        debug_assert!(!chunk.free, "the replay frees only live blocks");
        if let Some(next) = self.claim_free(chunk.next) {
            self.merge(record, next);
        }
        if let Some(prev) = self.claim_free(chunk.prev) {
            self.merge(prev, record);
            record = prev;
        }
        self.chunks[record as usize].free = true;
        self.insert_free(record);
    }

    fn reserved_bytes(&self) -> u64 {
        match self.regions {
            RegionPolicy::One => self.highest_used,
            RegionPolicy::Doubling { .. } => self.device.used_bytes,
        }
    }

    fn driver_allocations(&self) -> u64 {
        self.device.allocations
    }

    fn driver_frees(&self) -> u64 {
        self.device.frees
    }

    fn held(&self) -> Option<Vec<Span>> {
        let end = match self.regions {
            RegionPolicy::One => self.highest_used,
            RegionPolicy::Doubling { .. } => u64::MAX,
        };
        let mut spare = vec![false; self.chunks.len()];
        for record in &self.spare_records {
            spare[*record as usize] = true;
        }
        let chunks = self.chunks.iter().zip(spare);
        let held = chunks.filter(|(_, spare)| !spare);
        let held = held.map(|(chunk, _)| chunk.address..(chunk.address + chunk.bytes).min(end));
        let mut held: Vec<Span> = held.filter(|span| !span.is_empty()).collect();
        held.sort_unstable_by_key(|span| span.start);
        Some(held)
    }
}

/// Returns nine tenths of `bytes`, rounded up to the granule, but at least one granule less than
/// `bytes`: with rounding alone, sizes below ten granules would not shrink.
fn backed_off(bytes: u64) -> u64 {
    let tenths = (bytes - bytes / 10).next_multiple_of(GRANULE_BYTES);
    tenths.min(bytes.saturating_sub(GRANULE_BYTES))
}

fn round_down(bytes: u64) -> u64 {
    bytes - bytes % GRANULE_BYTES
}
