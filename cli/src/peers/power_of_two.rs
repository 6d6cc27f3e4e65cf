//! Powers of two: every size is rounded up to a power of two, freed blocks are cached by exact
//! size, and blocks are never split or merged.
//!
//! Every miss is one device allocation. If the device refuses, the whole cache is released and the
//! request is retried once.

use super::SimulatedDevice;
use crate::replay::{Contender, ContenderBlock};

/// Number of size classes, one for each power of two that fits a `u64`.
const CLASSES: usize = 64;

/// Minimum size of a block in bytes, the granule of the other peers.
const MIN_BLOCK_BYTES: u64 = 256;

/// The simulated allocator.
#[derive(Debug)]
pub(crate) struct PowerOfTwo {
    device: SimulatedDevice,
    /// Addresses of cached blocks, by the binary logarithm of their size.
    cached: [Vec<u64>; CLASSES],
}

impl PowerOfTwo {
    /// Creates an empty cache on `device`.
    pub(crate) fn new(device: SimulatedDevice) -> Self {
        Self {
            device,
            cached: [const { Vec::new() }; CLASSES],
        }
    }

    fn release_cache(&mut self) {
        for (class, cached) in self.cached.iter_mut().enumerate() {
            for _ in cached.drain(..) {
                self.device.release(1 << class);
            }
        }
    }
}

impl Contender for PowerOfTwo {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let block_bytes = bytes.max(MIN_BLOCK_BYTES).checked_next_power_of_two()?;
        // The handle is the block's class, so a free needs no table.
        let handle = block_bytes.trailing_zeros();
        if let Some(address) = self.cached[handle as usize].pop() {
            return Some(ContenderBlock { address, handle });
        }
        let mut address = self.device.allocate(block_bytes);
        if address.is_none() {
            self.release_cache();
            address = self.device.allocate(block_bytes);
        }
        address.map(|address| ContenderBlock { address, handle })
    }

    fn free(&mut self, slot: ContenderBlock) {
        self.cached[slot.handle as usize].push(slot.address);
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
}
