//! Powers of two: every size is rounded up to the next one, freed blocks are cached by exact size,
//! and blocks are never split or merged.
//!
//! Every miss is one device allocation. When the device refuses, the whole cache is released to it
//! and the request is retried once.

use super::SimulatedDevice;
use crate::replay::{Contender, ContenderBlock};

/// Number of size classes, one for each power of two that fits a `u64`.
const CLASSES: usize = 64;

/// Minimum size of a block in bytes, which is the granule of the other peers.
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
        // The handle is the block's class, so that a free needs no table.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_to_the_next_power_of_two() {
        for (bytes, reserved) in [(1, 256), (256, 256), (257, 512), (512, 512), (513, 1024)] {
            let mut allocator = PowerOfTwo::new(SimulatedDevice::new(None));
            allocator.alloc(bytes).unwrap();
            assert_eq!(allocator.reserved_bytes(), reserved, "{bytes} bytes");
        }
    }

    #[test]
    fn a_freed_block_serves_its_own_class_only() {
        let mut allocator = PowerOfTwo::new(SimulatedDevice::new(None));
        let first = allocator.alloc(1000).unwrap();
        allocator.free(first);
        assert_ne!(allocator.alloc(500).unwrap().address, first.address);
        assert_eq!(allocator.alloc(600).unwrap(), first);
        assert_eq!(allocator.driver_allocations(), 2);
    }

    #[test]
    fn a_full_device_gets_the_cache_back_before_a_refusal() {
        let mut allocator = PowerOfTwo::new(SimulatedDevice::new(Some(4096)));
        let small: Vec<ContenderBlock> = (0..4).map(|_| allocator.alloc(1024).unwrap()).collect();
        assert_eq!(allocator.alloc(1), None);
        for slot in small {
            allocator.free(slot);
        }
        allocator.alloc(4096).unwrap();
        assert_eq!(
            (allocator.driver_allocations(), allocator.driver_frees()),
            (5, 4)
        );
    }

    #[test]
    fn a_request_beyond_every_class_is_refused() {
        let mut allocator = PowerOfTwo::new(SimulatedDevice::new(None));
        assert_eq!(allocator.alloc(u64::MAX), None);
        assert_eq!(allocator.alloc(1 << 63), None);
        assert_eq!(allocator.driver_allocations(), 0);
    }
}
