//! The cache of a job: blocks that it takes while its limit allows. Those beyond a guarantee are lent, and returned
//! when they are recalled.

use std::error::Error;
use std::sync::Arc;

use larder_cuda::{BlockPool, CudaStream, DeviceAllocError, DeviceAllocator};

use super::play::Figures;

/// Bytes of a block.
const BLOCK: usize = 1 << 20;

/// Bytes that are written at the start of a block, and compared when it is freed.
const STAMP: usize = 16;

/// The blocks in use, the newest last.
pub(super) struct JobCache<'j> {
    pool: BlockPool,
    stream: &'j Arc<CudaStream>,
    blocks: Vec<usize>,
}

impl<'j> JobCache<'j> {
    pub(super) fn new(
        memory: &DeviceAllocator,
        stream: &'j Arc<CudaStream>,
        bytes: u64,
        guaranteed_bytes: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let blocks = usize::try_from(bytes / BLOCK as u64)?;
        let pool = memory.block_pool(stream, BLOCK, blocks)?;
        pool.loan().set_guaranteed_bytes(guaranteed_bytes);
        Ok(Self {
            pool,
            stream,
            blocks: Vec::new(),
        })
    }

    /// Gives back the newest blocks while memory is recalled; otherwise takes blocks while there is memory.
    pub(super) fn end_run(&mut self, figures: &mut Figures) -> Result<(), Box<dyn Error>> {
        while self.pool.loan().recalled_bytes() > 0 {
            self.free_newest(figures)?;
            figures.cache_returned_bytes += BLOCK as u64;
        }
        loop {
            match self.pool.alloc(self.stream) {
                Ok(block) => {
                    self.blocks.push(block);
                    self.stamp(block)?;
                }
                Err(
                    DeviceAllocError::Memory { .. }
                    | DeviceAllocError::Recalled { .. }
                    | DeviceAllocError::Full { .. },
                ) => break,
                Err(error) => return Err(error.into()),
            }
        }
        figures.peak_cache_bytes = figures.peak_cache_bytes.max(self.pool.committed_bytes());
        Ok(())
    }

    /// Frees all blocks.
    pub(super) fn end(mut self, figures: &mut Figures) -> Result<(), Box<dyn Error>> {
        while !self.blocks.is_empty() {
            self.free_newest(figures)?;
        }
        Ok(())
    }

    fn stamp(&mut self, block: usize) -> Result<(), Box<dyn Error>> {
        let mut view = self.pool.get_mut(block).ok_or("a block in use")?;
        let mut start = view.slice_mut(..STAMP);
        self.stream.memcpy_htod(&[block as u8; STAMP], &mut start)?;
        Ok(())
    }

    fn free_newest(&mut self, figures: &mut Figures) -> Result<(), Box<dyn Error>> {
        let block = self.blocks.pop().ok_or("a recall of what is not lent")?;
        let view = self.pool.get(block).ok_or("a block in use")?;
        let found = self.stream.clone_dtoh(&view.slice(..STAMP))?;
        let wrong = found.iter().filter(|byte| **byte != block as u8);
        figures.wrong_bytes += wrong.count() as u64;
        self.pool.free(self.stream, block)?;
        Ok(())
    }
}
