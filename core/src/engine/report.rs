//! Reports of the state of the memory, as plain values. Each report walks the chunks, in O(chunks).

use super::Chunks;
use super::chunk::{Link, State};
use super::region::RegionId;
use crate::block::ChunkHandle;
use crate::units::{Addr, AddrRange, Granule};

/// Occupancy and fragmentation of an allocator. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Bytes held from the sub-allocator.
    pub reserved_bytes: u64,
    /// Bytes in blocks, as granted.
    pub live_bytes: u64,
    /// Bytes in blocks, as requested.
    pub requested_bytes: u64,
    /// Free bytes in held regions, and idle ones at reserved addresses.
    pub free_bytes: u64,
    /// Free bytes that queued work still uses.
    pub pending_bytes: u64,
    /// Bytes that are being released to the sub-allocator.
    pub leaving_bytes: u64,
    /// Bytes of free or reserved addresses without memory behind them.
    pub unmapped_bytes: u64,
    /// Bytes of addresses in plans under way, with or without memory behind them.
    pub planned_bytes: u64,
    /// Bytes of the largest free chunk, which is at no reserved address.
    pub largest_free_bytes: u64,
    /// Number of blocks.
    pub used_chunks: u32,
    /// Number of free chunks.
    pub free_chunks: u32,
    /// Number of regions.
    pub regions: u32,
    /// Number of records of the table that can still become chunks.
    pub vacant_records: u32,
}

impl Report {
    /// Returns internal fragmentation, which is the cost of rounding and of unsplit chunks: (granted - requested) /
    /// granted. Returns 0 if there are no blocks.
    pub fn internal_fragmentation(&self) -> f64 {
        share(self.live_bytes - self.requested_bytes, self.live_bytes)
    }

    /// Returns external fragmentation: 1 - largest free chunk / all free bytes. Returns 0 if nothing is free.
    pub fn external_fragmentation(&self) -> f64 {
        share(self.free_bytes - self.largest_free_bytes, self.free_bytes)
    }

    /// Counts a chunk.
    pub(crate) fn count(&mut self, chunk: ChunkInfo) {
        let bytes = chunk.range.bytes();
        match chunk.state {
            ChunkState::Used {
                requested_bytes, ..
            } => {
                self.used_chunks += 1;
                self.live_bytes += bytes;
                self.requested_bytes += requested_bytes;
            }
            ChunkState::Free { pending } => {
                self.free_chunks += 1;
                self.free_bytes += bytes;
                self.largest_free_bytes = self.largest_free_bytes.max(bytes);
                self.pending_bytes += if pending { bytes } else { 0 };
            }
            ChunkState::Reserved { pending } => {
                self.free_bytes += bytes;
                self.pending_bytes += if pending { bytes } else { 0 };
            }
            ChunkState::Leaving => self.leaving_bytes += bytes,
            ChunkState::Unmapped => self.unmapped_bytes += bytes,
            ChunkState::Planned => self.planned_bytes += bytes,
        }
    }

    /// Returns live bytes / reserved bytes, or 0 if nothing is reserved.
    pub fn occupancy(&self) -> f64 {
        share(self.live_bytes, self.reserved_bytes)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Counts of the chunks in one power-of-two range of sizes, like TensorFlow's bins. Bin `b` counts chunks from
/// `granule << b` bytes up to twice that, and the last bin also counts all larger chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct BinSummary {
    /// Number of blocks of these sizes.
    pub used_chunks: u32,
    /// Number of free chunks of these sizes.
    pub free_chunks: u32,
    /// Bytes of the blocks, as granted.
    pub used_bytes: u64,
    /// Bytes of the blocks, as requested.
    pub requested_bytes: u64,
    /// Bytes of the free chunks.
    pub free_bytes: u64,
}

impl BinSummary {
    /// Number of bins, as in TensorFlow. With the usual granule, they are for 256 B to 256 MiB and above.
    pub const COUNT: usize = 21;

    /// Returns the bin that counts chunks of `bytes` bytes.
    pub(crate) fn index_of(bytes: u64, granule: Granule) -> usize {
        let log2 = (bytes / granule.bytes()).max(1).ilog2() as usize;
        log2.min(Self::COUNT - 1)
    }

    /// Counts a chunk.
    pub(crate) fn count(&mut self, chunk: ChunkInfo) {
        let bytes = chunk.range.bytes();
        match chunk.state {
            ChunkState::Used {
                requested_bytes, ..
            } => {
                self.used_chunks += 1;
                self.used_bytes += bytes;
                self.requested_bytes += requested_bytes;
            }
            ChunkState::Free { .. } => {
                self.free_chunks += 1;
                self.free_bytes += bytes;
            }
            ChunkState::Reserved { .. }
            | ChunkState::Leaving
            | ChunkState::Unmapped
            | ChunkState::Planned => {}
        }
    }
}

/// One chunk, for walks over an allocator's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ChunkInfo {
    /// The chunk's number.
    pub handle: ChunkHandle,
    /// The region of which the chunk is a piece.
    pub region: RegionId,
    /// The chunk's addresses.
    pub range: AddrRange,
    /// The chunk's state.
    pub state: ChunkState,
}

/// The state of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChunkState {
    /// A block.
    Used {
        /// Bytes requested.
        requested_bytes: u64,
        /// Number of the allocation, from 1 up.
        id: u64,
    },
    /// A free chunk.
    Free {
        /// Whether queued work still uses the chunk.
        pending: bool,
    },
    /// Idle memory at reserved addresses, where only the owner of the reservation places blocks.
    Reserved {
        /// Whether queued work still uses it.
        pending: bool,
    },
    /// Memory that is being released to the sub-allocator.
    Leaving,
    /// Free or reserved pages without memory behind them.
    Unmapped,
    /// Memory that a plan under way maps, moves or releases.
    Planned,
}

/// One region, for walks over an allocator's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RegionInfo {
    /// The region's addresses.
    pub range: AddrRange,
    /// Number of chunks in the region.
    pub chunks: u32,
    /// Bytes of the region's blocks, as granted.
    pub live_bytes: u64,
}

impl Chunks<'_> {
    /// Calls `f` with every region in address order.
    pub(crate) fn for_each_region(&self, mut f: impl FnMut(RegionInfo)) {
        for id in self.regions.ids() {
            let region = self.regions.get(id);
            let mut chunks = 0;
            let mut live = 0;
            let mut link = region.first;
            while link.is_some() {
                let chunk = self.table.at(link);
                chunks += 1;
                live += if chunk.is_used() {
                    u64::from(chunk.size)
                } else {
                    0
                };
                link = chunk.next;
            }
            if let Some(range) = region.range(self.granule) {
                f(RegionInfo {
                    range,
                    chunks,
                    live_bytes: live * self.granule.bytes(),
                });
            }
        }
    }

    /// Calls `f` with every chunk, in address order.
    pub(crate) fn for_each_chunk(&self, mut f: impl FnMut(ChunkInfo)) {
        for id in self.regions.ids() {
            let mut link = self.regions.get(id).first;
            while link.is_some() {
                self.chunk_info(link).into_iter().for_each(&mut f);
                link = self.table.at(link).next;
            }
        }
    }

    /// Returns a report in which no chunk is counted yet.
    pub(crate) fn report_without_chunks(&self) -> Report {
        Report {
            reserved_bytes: self.reserved_bytes(),
            regions: self.regions.len() as u32,
            vacant_records: self.table.available(),
            ..Report::default()
        }
    }

    pub(super) fn chunk_info(&self, link: Link) -> Option<ChunkInfo> {
        let chunk = self.table.at(link);
        let bytes = self.granule.bytes_of(chunk.size);
        let state = match chunk.state() {
            State::Vacant => return None,
            State::Used => ChunkState::Used {
                requested_bytes: bytes - u64::from(chunk.slack_bytes()),
                id: chunk.id(),
            },
            State::Free => ChunkState::Free {
                pending: self.streams.pending(chunk.point()).is_some(),
            },
            State::Leaving => ChunkState::Leaving,
            State::Filling => ChunkState::Planned,
            State::Reserved => ChunkState::Reserved {
                pending: self.streams.pending(chunk.point()).is_some(),
            },
        };
        let range = AddrRange::new(Addr::new(self.addr_of(link)), bytes)?;
        Some(ChunkInfo {
            handle: ChunkHandle::from_link(link.0),
            region: chunk.region(),
            range,
            state,
        })
    }
}
