//! [`StreamSource`]: a device's allocator as the source of a pool's ranges, for one stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{
    Addr, AddrRange, Block, GrowRequest, Rejected, SubAllocError, SubAllocator, round_up,
};

use crate::driver::locked;
use crate::stream::allocator::BLOCK_ALIGN;
use crate::{DeviceAllocError, DeviceAllocator, DeviceFreeError};

/// Ranges of a device's allocator, allocated and freed in the order of one stream. Dropping this frees all of
/// them.
pub(super) struct StreamSource {
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    /// Locked for a look-up or a change of the table, never during a call of the allocator.
    given: Mutex<GivenBlocks>,
}

#[derive(Default)]
struct GivenBlocks {
    /// Blocks by the start of the range in use.
    blocks: HashMap<Addr, Block>,
    /// The allocator's error, if it caused the newest refusal.
    refusal: Option<DeviceAllocError>,
    /// The error of the newest refused free.
    free_refusal: Option<DeviceFreeError>,
}

impl StreamSource {
    pub(super) fn new(memory: DeviceAllocator, stream: Arc<CudaStream>) -> Self {
        Self {
            memory,
            stream,
            given: Mutex::default(),
        }
    }

    pub(super) const fn memory(&self) -> &DeviceAllocator {
        &self.memory
    }

    pub(super) const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn refusal(&self) -> Option<DeviceAllocError> {
        locked(&self.given).refusal.clone()
    }

    pub(super) fn free_refusal(&self) -> Option<DeviceFreeError> {
        locked(&self.given).free_refusal
    }

    fn refuse(&self, reason: Option<DeviceAllocError>) -> SubAllocError {
        locked(&self.given).refusal = reason;
        SubAllocError
    }

    fn free(&self, block: Block) -> Result<(), Rejected<DeviceFreeError>> {
        self.memory.free(&self.stream, block)
    }
}

/// Returns the part of a block that serves a request.
fn serving(block: &Block, request: GrowRequest) -> Option<AddrRange> {
    let start = round_up(block.addr().get(), request.align)?;
    let range = AddrRange::new(Addr::new(start), request.bytes)?;
    (range.end() <= block.range().end()).then_some(range)
}

impl SubAllocator for StreamSource {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        // For an alignment above that of every block, the range lies inside a longer block.
        let padding = request.align.bytes().saturating_sub(BLOCK_ALIGN.bytes());
        let bytes = request.bytes.checked_add(padding);
        let bytes = bytes.ok_or_else(|| self.refuse(None))?;
        let block = self.memory.alloc(&self.stream, bytes);
        let block = block.map_err(|error| self.refuse(Some(error)))?;
        let Some(range) = serving(&block, request) else {
            // Unreachable while the allocator aligns blocks to `BLOCK_ALIGN`. It does not refuse its own
            // block.
            let _ = self.free(block);
            return Err(self.refuse(None));
        };
        locked(&self.given).blocks.insert(range.start(), block);
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let block = locked(&self.given).blocks.remove(&range.start());
        self.free(block.ok_or(SubAllocError)?).map_err(|rejected| {
            let mut given = locked(&self.given);
            given.blocks.insert(range.start(), rejected.value);
            given.free_refusal = Some(rejected.error);
            SubAllocError
        })
    }
}

impl Drop for StreamSource {
    fn drop(&mut self) {
        let blocks = core::mem::take(&mut locked(&self.given).blocks);
        for block in blocks.into_values() {
            // Refused only for a block of another allocator.
            let _ = self.free(block);
        }
    }
}
