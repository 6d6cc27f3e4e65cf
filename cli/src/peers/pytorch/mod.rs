//! A model of PyTorch's caching allocator for CUDA, written from its published behaviour.
//!
//! Freed chunks stay in a cache. A request takes the smallest chunk of its pool and stream that
//! fits, and splits off the rest; if there is none, a segment is allocated on the device, or pages
//! are mapped into one that can grow. If the device is full, cached memory is released and the
//! request is retried.
//!
//! Frees are in stream order, so a freed block is available immediately. Graph captures, private
//! pools, and blocks that several streams use are not modelled.

mod chunks;
mod config;
mod expandable;
mod segments;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use super::SimulatedDevice;
use crate::replay::{Contender, ContenderBlock, DriverCalls};
use crate::snapshot::Span;
use chunks::{BlockState, Lane, PoolKind, TorchBlocks};
pub(crate) use config::PytorchConfig;

/// Maximum size in bytes of a request in the small pool.
const SMALL_MAX_BYTES: u64 = 1 << 20;

/// Minimum remainder in bytes that is split off a chunk of the small pool or of a segment that can
/// grow.
const SMALL_REST_BYTES: u64 = 512;

/// Remainder in bytes above which a chunk of the large pool is split.
const LARGE_REST_BYTES: u64 = 1 << 20;

/// The configuration of [`configured`].
static CONFIGURED: OnceLock<PytorchConfig> = OnceLock::new();

/// Builds PyTorch's allocator with its defaults.
pub(crate) fn pytorch(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Pytorch::new(PytorchConfig::DEFAULT, device_bytes))
}

/// Builds PyTorch's allocator with segments that can grow.
pub(crate) fn pytorch_expandable(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Pytorch::new(PytorchConfig::EXPANDABLE, device_bytes))
}

/// Builds PyTorch's allocator as set by [`configure`], or with its defaults.
pub(crate) fn configured(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let config = CONFIGURED.get().copied();
    let config = config.unwrap_or(PytorchConfig::DEFAULT);
    Box::new(Pytorch::new(config, device_bytes))
}

/// Sets the configuration of [`configured`]. Only the first call in a process has an effect.
pub(crate) fn configure(config: PytorchConfig) {
    CONFIGURED.get_or_init(|| config);
}

/// A rounded request.
#[derive(Debug, Clone, Copy)]
struct Request {
    lane: Lane,
    bytes: u64,
}

/// The simulated allocator.
#[derive(Debug)]
pub(crate) struct Pytorch {
    config: PytorchConfig,
    device_bytes: Option<u64>,
    device: SimulatedDevice,
    chunks: TorchBlocks,
    /// Address of the next new segment that can grow.
    next_address: u64,
    /// Counts of map, unmap and access calls. The device counts the other calls.
    calls: DriverCalls,
}

impl Pytorch {
    /// Creates an empty cache on a device of `device_bytes`, or without a limit.
    pub(crate) fn new(config: PytorchConfig, device_bytes: Option<u64>) -> Self {
        Self {
            config,
            device_bytes,
            device: SimulatedDevice::new(device_bytes),
            chunks: TorchBlocks::default(),
            next_address: 0,
            calls: DriverCalls::default(),
        }
    }

    /// Returns the free chunk that fits best, if it may be used.
    fn cached(&mut self, request: Request) -> Option<u32> {
        if request.lane.pool == PoolKind::Large {
            self.chunks.large_requests += 1;
        }
        let mut fitting = self.chunks.free_from(request.lane, request.bytes);
        let mut best = fitting.next()?;
        if self.config.expandable_segments {
            // The size that counts here includes the addresses into which the chunk could grow, so
            // that the end of a segment is used last.
            for next in fitting {
                if self.reach(next) >= self.reach(best) {
                    break;
                }
                best = next;
            }
        }
        let bytes = self.chunks.get(best).bytes;
        let limit = self.config.max_split_bytes;
        let allowed = if request.bytes < limit {
            bytes < limit
        } else {
            bytes - request.bytes < self.config.max_slack_bytes
        };
        allowed.then_some(best)
    }

    /// Returns a free chunk with memory from the device. Releases cached memory if necessary: first
    /// idle segments beyond the threshold, then some segments that are too large to be split, then
    /// all of it.
    fn uncached(&mut self, request: Request) -> Option<u32> {
        self.collect_garbage();
        if let Some(record) = self.fresh(request) {
            return Some(record);
        }
        if self.release_oversize(request)
            && let Some(record) = self.fresh(request)
        {
            return Some(record);
        }
        self.release_cached();
        self.fresh(request)
    }

    /// Returns a free chunk with memory from the device.
    fn fresh(&mut self, request: Request) -> Option<u32> {
        if self.config.expandable_segments {
            self.map_for(request)
        } else {
            self.new_segment(request)
        }
    }

    /// Releases all cached memory that can be released: whole segments, or whole pages of segments
    /// that can grow.
    fn release_cached(&mut self) {
        let free: Vec<u32> = self.chunks.free().collect();
        for record in free {
            if self.config.expandable_segments {
                self.unmap(record);
            } else if self.chunks.get(record).is_whole() {
                self.release_segment(record);
            }
        }
    }

    /// Returns whether a chunk of `chunk_bytes` is split for the request.
    fn splits(&self, chunk_bytes: u64, request: Request) -> bool {
        let rest = chunk_bytes - request.bytes;
        if request.lane.pool == PoolKind::Small || self.config.expandable_segments {
            rest >= SMALL_REST_BYTES
        } else {
            request.bytes < self.config.max_split_bytes && rest > LARGE_REST_BYTES
        }
    }
}

impl Contender for Pytorch {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        self.alloc_on(0, bytes)
    }

    fn alloc_on(&mut self, stream: u8, bytes: u64) -> Option<ContenderBlock> {
        let bytes = self.config.rounded(bytes)?;
        let small = bytes <= SMALL_MAX_BYTES;
        let pool = if small {
            PoolKind::Small
        } else {
            PoolKind::Large
        };
        let stream = stream.into();
        let lane = Lane { pool, stream };
        let request = Request { lane, bytes };
        let record = match self.cached(request) {
            Some(record) => record,
            None => self.uncached(request)?,
        };
        if self.splits(self.chunks.get(record).bytes, request) {
            self.chunks.split(record, bytes)?;
        }
        self.chunks.take(record);
        Some(ContenderBlock {
            address: self.chunks.get(record).address,
            handle: record,
        })
    }

    fn free(&mut self, slot: ContenderBlock) {
        self.chunks.give(slot.handle, BlockState::Free);
    }

    fn reserved_bytes(&self) -> u64 {
        self.device.used_bytes
    }

    fn driver_allocations(&self) -> u64 {
        self.device.allocations
    }

    fn driver_frees(&self) -> u64 {
        self.device.frees
    }

    fn driver_calls(&self) -> Option<DriverCalls> {
        self.config.expandable_segments.then_some(DriverCalls {
            create: self.device.allocations,
            release: self.device.frees,
            ..self.calls
        })
    }

    fn held(&self) -> Option<Vec<Span>> {
        let mapped = self.chunks.mapped();
        let mut held: Vec<Span> = mapped.map(|chunk| chunk.address..chunk.end()).collect();
        held.sort_unstable_by_key(|span| span.start);
        Some(held)
    }
}
