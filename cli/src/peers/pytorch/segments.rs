//! Segments that cannot grow: they are allocated and released only as a whole.

use super::chunks::{BlockState, PoolKind, TorchBlock};
use super::{Pytorch, Request};

/// Bytes of a segment for small requests.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// Bytes of a segment for large requests below [`OWN_SEGMENT_BYTES`].
const LARGE_SEGMENT_BYTES: u64 = 20 << 20;

/// Minimum size in bytes of a request that gets a segment of its own.
const OWN_SEGMENT_BYTES: u64 = 10 << 20;

/// Bytes of which the size of such a segment is a multiple.
const SEGMENT_UNIT_BYTES: u64 = 2 << 20;

/// Returns the bytes to allocate on the device for a request.
fn segment_bytes(request: Request) -> Option<u64> {
    match request.lane.pool {
        PoolKind::Small => Some(SMALL_SEGMENT_BYTES),
        PoolKind::Large if request.bytes < OWN_SEGMENT_BYTES => Some(LARGE_SEGMENT_BYTES),
        PoolKind::Large => request.bytes.checked_next_multiple_of(SEGMENT_UNIT_BYTES),
    }
}

impl Pytorch {
    /// Adds a segment for the request, as a free chunk. Returns `None` if the device has no room
    /// for it.
    pub(super) fn new_segment(&mut self, request: Request) -> Option<u32> {
        let bytes = segment_bytes(request)?;
        let address = self.device.allocate(bytes)?;
        let segment = TorchBlock::segment(request.lane, address, bytes, BlockState::Free);
        self.chunks.add(segment)
    }

    /// Releases a free chunk that is a whole segment to the device.
    pub(super) fn release_segment(&mut self, record: u32) {
        self.device.release(self.chunks.get(record).bytes);
        self.chunks.remove(record);
    }

    /// While more than the threshold is held, releases, in rounds, the idle segments of the large
    /// pool that have been free for at least the average time of all idle ones. A round that has
    /// begun is completed. Segments that can grow are not affected: such a segment is never one
    /// free chunk, since it has more addresses than the device has memory.
    pub(super) fn collect_garbage(&mut self) {
        let Some(device_bytes) = self.device_bytes else {
            return;
        };
        if self.config.collect_above == 0.0 {
            return;
        }
        let threshold = (self.config.collect_above * device_bytes as f64) as u64;
        let chunks = &self.chunks;
        let age = |record: u32| chunks.large_requests - chunks.get(record).freed_at;
        let whole = chunks.free().filter(|&record| {
            let chunk = chunks.get(record);
            chunk.lane.pool == PoolKind::Large && chunk.is_whole()
        });
        let mut idle: Vec<(u32, u64)> = whole.map(|record| (record, age(record))).collect();
        while self.device.used_bytes > threshold && !idle.is_empty() {
            let total: u64 = idle.iter().map(|&(_, age)| age).sum();
            let count = idle.len() as u64;
            let is_old = |&(_, age): &(u32, u64)| age * count >= total;
            let old: Vec<_> = idle.iter().copied().filter(is_old).collect();
            idle.retain(|segment| !is_old(segment));
            for (record, _) in old {
                self.release_segment(record);
            }
        }
    }

    /// Makes room for the request by releasing segments that are too large to be split: the
    /// smallest one that is at least as large as the request, or otherwise the largest ones until
    /// their sum is. Returns whether enough was released.
    pub(super) fn release_oversize(&mut self, request: Request) -> bool {
        let limit = self.config.max_split_bytes;
        if limit == u64::MAX || self.config.expandable_segments {
            return false;
        }
        let wanted = request.bytes.max(limit);
        let enough = self.chunks.free_from(request.lane, wanted).next();
        if let Some(record) = enough {
            self.release_segment(record);
            return true;
        }
        let largest = self.chunks.free_below(request.lane, wanted);
        let oversize: Vec<u32> = largest
            .take_while(|&record| self.chunks.get(record).bytes >= limit)
            .collect();
        let mut released = 0;
        for record in oversize {
            if released >= wanted {
                break;
            }
            released += self.chunks.get(record).bytes;
            self.release_segment(record);
        }
        released >= wanted
    }
}
