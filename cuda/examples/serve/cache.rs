//! The memories that are compared: blocks of the KV caches of two models, and their activations, in [`TOTAL_BYTES`].

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{
    BlockMove, BufferView, BufferViewMut, Context, DeviceAllocError, DeviceAllocator, DeviceConfig,
};

use crate::Failure;

/// Memory of the caches and the activations together.
pub(crate) const TOTAL_BYTES: u64 = 64 << 20;
/// Half of the memory that the largest activations leave.
pub(crate) const HALF_BYTES: u64 = 30 << 20;
/// Bytes of the keys and values of [`BLOCK_TOKENS`](crate::server::BLOCK_TOKENS) tokens.
pub(crate) const BLOCK_BYTES: usize = 128 << 10;
/// Blocks of half of the memory.
pub(crate) const HALF_BLOCKS: usize = HALF_BYTES as usize / BLOCK_BYTES;

/// Bytes at the start of each block that are written and checked.
const MARK_BYTES: usize = 4 << 10;

/// Memory of two models on one device.
///
/// `write` and `is_intact` stand for the kernels: they write the number of a request to a block, and read it.
pub(crate) trait Memory {
    /// Allocates a block of a model's cache; `None` if there is no memory.
    fn alloc(&mut self, model: usize) -> Result<Option<usize>, Failure>;

    fn free(&mut self, model: usize, block: usize) -> Result<(), Failure>;

    /// Moves blocks if that frees memory, and returns which were moved, in an order in which they can be renamed.
    fn compact(&mut self, _model: usize) -> Result<Option<Vec<BlockMove>>, Failure> {
        Ok(None)
    }

    /// Allocates the activations of a step, and frees them. Returns whether there was memory.
    fn activate(&mut self, bytes: usize) -> Result<bool, Failure>;

    /// Returns the bytes that another request needs and the model must free; see `larder_cuda::Loan`.
    fn recalled_bytes(&self, _model: usize) -> u64 {
        0
    }

    /// Returns how many blocks a model may use: half of them, or all, less those of the other model.
    fn max_blocks(&self) -> usize {
        2 * HALF_BLOCKS
    }

    fn write(&mut self, model: usize, block: usize, request: usize) -> Result<(), Failure>;

    fn is_intact(&self, model: usize, block: usize, request: usize) -> Result<bool, Failure>;

    /// Returns the largest number of bytes held from the device, and the number of driver calls for memory.
    fn usage(&self) -> (u64, u64);
}

/// A number of blocks for each model, without memory: what a server does with a [`Split`](crate::pools::Share::Split).
#[derive(Default)]
pub(crate) struct Counted([usize; 2]);

impl Memory for Counted {
    fn alloc(&mut self, model: usize) -> Result<Option<usize>, Failure> {
        let used = &mut self.0[model];
        let has_room = *used < HALF_BLOCKS;
        *used += usize::from(has_room);
        Ok(has_room.then_some(0))
    }

    fn max_blocks(&self) -> usize {
        HALF_BLOCKS
    }

    fn free(&mut self, model: usize, _block: usize) -> Result<(), Failure> {
        self.0[model] -= 1;
        Ok(())
    }

    fn activate(&mut self, _bytes: usize) -> Result<bool, Failure> {
        Ok(true)
    }

    fn write(&mut self, _model: usize, _block: usize, _request: usize) -> Result<(), Failure> {
        Ok(())
    }

    fn is_intact(&self, _model: usize, _block: usize, _request: usize) -> Result<bool, Failure> {
        Ok(true)
    }

    fn usage(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Makes an allocator with a limit for the caches and the activations.
pub(crate) fn allocator(context: &Context) -> Result<DeviceAllocator, DeviceAllocError> {
    DeviceAllocator::with_config(context, DeviceConfig::with_budget(TOTAL_BYTES))
}

/// Allocates and frees activations on Larder's memory.
pub(crate) fn activate(
    memory: &DeviceAllocator,
    stream: &Arc<CudaStream>,
    bytes: usize,
) -> Result<bool, Failure> {
    match memory.uninit::<u8>(stream, bytes) {
        Ok(activations) => {
            drop(activations);
            Ok(true)
        }
        Err(error) if error.is_out_of_memory() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the bytes that a block of a request begins with.
pub(crate) fn mark(request: usize) -> Vec<u8> {
    (request as u64 + 1).to_le_bytes().repeat(MARK_BYTES / 8)
}

/// Writes the mark to the start of a block.
pub(crate) fn write(
    stream: &Arc<CudaStream>,
    mut block: BufferViewMut<'_, u8>,
    request: usize,
) -> Result<(), Failure> {
    let mut start = block.slice_mut(..MARK_BYTES);
    Ok(stream.memcpy_htod(&mark(request), &mut start)?)
}

/// Returns whether a block begins with the mark.
pub(crate) fn is_intact(
    stream: &Arc<CudaStream>,
    block: &BufferView<'_, u8>,
    request: usize,
) -> Result<bool, Failure> {
    let bytes = stream.clone_dtoh(&block.slice(..MARK_BYTES))?;
    Ok(bytes == mark(request))
}

/// Returns the peak of the bytes held, and the driver calls for memory.
pub(crate) fn usage(memory: &DeviceAllocator) -> (u64, u64) {
    let stats = memory.stats();
    (stats.peak_reserved_bytes, memory.driver_calls().total())
}
