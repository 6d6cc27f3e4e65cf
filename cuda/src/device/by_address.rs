//! Blocks found by their address, for callers that can store nothing else: C, and cudarc's slices.
//!
//! A block enters the table only through an explicit call, so programs that store the [`Block`] itself pay
//! nothing.
//!
//! BYADDR1 A block in the table has no other owner: it is taken out once, by the address of its first byte.
//! BYADDR2 A lent block is taken out only by the owner that its memory was lent to. Until then, the block's
//! entry keeps the allocator, and so the memory, alive.
//!
//! No function of the allocator is called under the lock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{Block, FreeError, Rejected};

use super::DeviceAllocator;
use crate::driver::locked;
use crate::{AdoptError, DeviceFreeError};

/// Blocks by their first address.
#[derive(Default)]
pub(super) struct ByAddress(Mutex<HashMap<u64, KeptBlock>>);

/// A block. While it is lent, `lent` keeps the allocator alive (BYADDR2).
struct KeptBlock {
    block: Block,
    lent: Option<DeviceAllocator>,
}

impl DeviceAllocator {
    /// Stores a block under its address, with which the caller takes it out again. For C, and for other code
    /// that stores only pointers. O(1), no driver call.
    ///
    /// ```no_run
    /// # let context = larder_cuda::Context::new(0)?;
    /// # let memory = larder_cuda::DeviceAllocator::new(&context)?;
    /// # let stream = context.cudarc().new_stream()?;
    /// let address: u64 = memory.keep_addr(memory.alloc(&stream, 1000)?)?;
    /// assert!(memory.bytes_at(address) >= Some(1000));
    /// memory.free_addr(&stream, address)?;
    /// assert!(memory.free_addr(&stream, address).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's.
    pub fn keep_addr(&self, block: Block) -> Result<u64, Rejected<DeviceFreeError>> {
        if self.requested_bytes(&block).is_none() {
            return Err(DeviceFreeError::unknown(block));
        }
        let address = block.addr().get();
        self.enter(address, KeptBlock { block, lent: None });
        Ok(address)
    }

    /// Takes out the block [kept](Self::keep_addr) at an address. O(1). Returns `None` for any other address,
    /// even one inside a kept block.
    pub fn take_addr(&self, address: u64) -> Option<Block> {
        match locked(&self.0.by_address.0).entry(address) {
            Entry::Occupied(kept) if kept.get().lent.is_none() => Some(kept.remove().block),
            _ => None,
        }
    }

    /// Returns the granted bytes of the block [kept](Self::keep_addr) at an address. O(1).
    pub fn bytes_at(&self, address: u64) -> Option<u64> {
        let kept = locked(&self.0.by_address.0);
        let kept = kept.get(&address).filter(|kept| kept.lent.is_none())?;
        Some(kept.block.bytes())
    }

    /// Frees the block [kept](Self::keep_addr) at an address; for the stream see [`free`](Self::free). O(1),
    /// no driver call.
    ///
    /// # Errors
    /// [`DeviceFreeError::Block`] with [`FreeError::Unknown`] if no block is kept there: it was freed already,
    /// or never kept. [`DeviceFreeError::Driver`] if the driver refused to wait for the stream; the block then
    /// stays kept.
    pub fn free_addr(&self, stream: &Arc<CudaStream>, address: u64) -> Result<(), DeviceFreeError> {
        let block = self.take_addr(address);
        let block = block.ok_or(DeviceFreeError::Block(FreeError::Unknown))?;
        self.free(stream, block).map_err(|refused| {
            let (block, lent) = (refused.value, None);
            self.enter(address, KeptBlock { block, lent });
            refused.error
        })
    }

    /// Lends a block of this allocator to the new owner of the block's memory. The owner takes the block out with
    /// [`take_lent`](Self::take_lent).
    pub(crate) fn lend(&self, block: Block) {
        let lent = Some(self.clone());
        self.enter(block.addr().get(), KeptBlock { block, lent });
    }

    /// Takes out the block of at least `bytes` bytes, lent or kept, at an address, for the owner of its
    /// memory.
    pub(crate) fn take_lent(&self, address: u64, bytes: u64) -> Result<Block, AdoptError> {
        let mut kept = locked(&self.0.by_address.0);
        let Entry::Occupied(found) = kept.entry(address) else {
            return Err(AdoptError::Block(FreeError::Unknown));
        };
        let block_bytes = found.get().block.bytes();
        if bytes > block_bytes {
            return Err(AdoptError::Room { bytes, block_bytes });
        }
        let found = found.remove();
        drop(kept);
        Ok(found.block)
    }

    fn enter(&self, address: u64, kept: KeptBlock) {
        let before = locked(&self.0.by_address.0).insert(address, kept);
        debug_assert!(before.is_none(), "two blocks in use start at {address:#x}");
    }
}
