//! Blocks found by their address, for callers that can keep nothing else: C, and cudarc's slices.
//!
//! Blocks enter by themselves, so programs that keep theirs pay nothing.
//!
//! BYADDR1 A block that is here is nobody else's: it comes out once, by the address of its first byte.
//! BYADDR2 One that is lent comes out only to whoever brings what it was lent to. Until then it holds the
//!    allocator, whose memory is not given back while it is lent.
//!
//! Nothing is called under the lock.

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

/// A block, and what holds the allocator if it is lent (BYADDR2).
struct KeptBlock {
    block: Block,
    lent: Option<DeviceAllocator>,
}

impl DeviceAllocator {
    /// Keeps a block under its address, which is what the caller needs to have it back: for C, and for
    /// whatever stores a pointer. O(1), no driver call.
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
    /// Gives the block back if it is not one of this allocator's.
    pub fn keep_addr(&self, block: Block) -> Result<u64, Rejected<DeviceFreeError>> {
        if self.requested_bytes(&block).is_none() {
            return Err(DeviceFreeError::unknown(block));
        }
        let address = block.addr().get();
        self.enter(address, KeptBlock { block, lent: None });
        Ok(address)
    }

    /// The block that starts at an address and is [kept](Self::keep_addr) there; it is the caller's again.
    /// O(1). `None` for any other address, one inside of a block too.
    pub fn take_addr(&self, address: u64) -> Option<Block> {
        match locked(&self.0.by_address.0).entry(address) {
            Entry::Occupied(kept) if kept.get().lent.is_none() => Some(kept.remove().block),
            _ => None,
        }
    }

    /// Granted bytes of the block that starts at an address and is [kept](Self::keep_addr) there. O(1).
    pub fn bytes_at(&self, address: u64) -> Option<u64> {
        let kept = locked(&self.0.by_address.0);
        let kept = kept.get(&address).filter(|kept| kept.lent.is_none())?;
        Some(kept.block.bytes())
    }

    /// Takes a block back that is [kept](Self::keep_addr) under its address; for the stream see
    /// [`free`](Self::free). O(1), no driver call.
    ///
    /// # Errors
    /// [`FreeError::Unknown`] inside if none is kept there: it was freed already, or never kept. If waiting
    /// for a stream without a number was refused; the block is kept on then.
    pub fn free_addr(&self, stream: &Arc<CudaStream>, address: u64) -> Result<(), DeviceFreeError> {
        let block = self.take_addr(address);
        let block = block.ok_or(DeviceFreeError::Block(FreeError::Unknown))?;
        self.free(stream, block).map_err(|refused| {
            let (block, lent) = (refused.value, None);
            self.enter(address, KeptBlock { block, lent });
            refused.error
        })
    }

    /// Keeps a block of this allocator for what has its memory and brings it back by
    /// [`take_lent`](Self::take_lent).
    pub(crate) fn lend(&self, block: Block) {
        let lent = Some(self.clone());
        self.enter(block.addr().get(), KeptBlock { block, lent });
    }

    /// The block of at least so many bytes that starts at an address, for whoever owns its memory: lent, or
    /// kept.
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
