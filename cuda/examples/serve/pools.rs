//! [`Pools`]: the caches as pools of blocks, which lend each other memory or do not.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{BlockMove, BlockPool, Context, DeviceAllocError, DeviceAllocator};

use crate::Failure;
use crate::cache::{self, BLOCK_BYTES, HALF_BLOCKS, HALF_BYTES, Memory, TOTAL_BYTES};

/// Which of two models may use which memory of [`Pools`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    /// A half each, and no more.
    Split,
    /// All of it. A half each is guaranteed, and the rest is lent.
    Lent,
}

/// A [`BlockPool`] for each model.
pub(crate) struct Pools {
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    pools: [BlockPool; 2],
    share: Share,
}

impl Pools {
    pub(crate) fn new(context: &Context, share: Share) -> Result<Self, Failure> {
        let memory = cache::allocator(context)?;
        let stream = context.cudarc().new_stream()?;
        let max_blocks = match share {
            Share::Split => HALF_BLOCKS,
            Share::Lent => TOTAL_BYTES as usize / BLOCK_BYTES,
        };
        let pool = || memory.block_pool(&stream, BLOCK_BYTES, max_blocks);
        let pools = [pool()?, pool()?];
        if share == Share::Lent {
            for pool in &pools {
                pool.loan().set_guaranteed_bytes(HALF_BYTES);
            }
        }
        Ok(Self {
            memory,
            stream,
            pools,
            share,
        })
    }
}

impl Memory for Pools {
    fn alloc(&mut self, model: usize) -> Result<Option<usize>, Failure> {
        match self.pools[model].alloc(&self.stream) {
            Ok(block) => Ok(Some(block)),
            Err(DeviceAllocError::Full { .. }) => Ok(None),
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn free(&mut self, model: usize, block: usize) -> Result<(), Failure> {
        Ok(self.pools[model].free(&self.stream, block)?)
    }

    fn compact(&mut self, model: usize) -> Result<Option<Vec<BlockMove>>, Failure> {
        if self.share == Share::Split {
            // The other model may not use the memory.
            return Ok(None);
        }
        let (pool, stream) = (&mut self.pools[model], &self.stream);
        let moves = pool.compact(stream);
        for &BlockMove { from, to } in &moves {
            pool.copy(stream, from, to)?;
            pool.free(stream, from)?;
        }
        Ok(Some(moves).filter(|moves| !moves.is_empty()))
    }

    fn max_blocks(&self) -> usize {
        match self.share {
            Share::Split => HALF_BLOCKS,
            Share::Lent => 2 * HALF_BLOCKS,
        }
    }

    fn recalled_bytes(&self, model: usize) -> u64 {
        self.pools[model].loan().recalled_bytes()
    }

    fn activate(&mut self, bytes: usize) -> Result<bool, Failure> {
        cache::activate(&self.memory, &self.stream, bytes)
    }

    fn write(&mut self, model: usize, block: usize, request: usize) -> Result<(), Failure> {
        let view = self.pools[model].get_mut(block).ok_or("a free block")?;
        cache::write(&self.stream, view, request)
    }

    fn is_intact(&self, model: usize, block: usize, request: usize) -> Result<bool, Failure> {
        let view = self.pools[model].get(block).ok_or("a free block")?;
        cache::is_intact(&self.stream, &view, request)
    }

    fn usage(&self) -> (u64, u64) {
        cache::usage(&self.memory)
    }
}
