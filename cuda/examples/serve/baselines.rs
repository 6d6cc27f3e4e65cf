//! The memories that Larder's is compared with: the driver's pool, and buffers that double.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result};
use larder_core::Block;
use larder_cuda::{BlockMove, Context, DeviceAllocator, DeviceBuffer, DriverPool, StreamAllocator};

use crate::Failure;
use crate::cache::{self, BLOCK_BYTES, Memory, TOTAL_BYTES};

/// A buffer for each model, which is replaced by one of twice its size when it is full, and by one of half its size if
/// memory is short and three quarters of it are free. Blocks are copied to the new one, and then the old one is freed.
pub(crate) struct Doubling {
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    caches: [Doubled; 2],
}

struct Doubled {
    buffer: DeviceBuffer<u8>,
    max_blocks: usize,
    used: BTreeSet<usize>,
}

impl Doubling {
    /// Blocks of the smallest buffer.
    const MIN_BLOCKS: usize = 8;

    pub(crate) fn new(context: &Context) -> Result<Self, Failure> {
        let memory = cache::allocator(context)?;
        let stream = context.cudarc().new_stream()?;
        let cache = || -> Result<Doubled, Failure> {
            let max_blocks = Self::MIN_BLOCKS;
            // SAFETY: each block is written before it is read.
            let buffer = unsafe { memory.buffer(&stream, max_blocks * BLOCK_BYTES) }?;
            Ok(Doubled {
                buffer,
                max_blocks,
                used: BTreeSet::new(),
            })
        };
        let caches = [cache()?, cache()?];
        Ok(Self {
            memory,
            stream,
            caches,
        })
    }

    /// Replaces a model's buffer, and returns the blocks that have other places there; `None` if there is no memory for
    /// both.
    fn replace(
        &mut self,
        model: usize,
        max_blocks: usize,
    ) -> Result<Option<Vec<BlockMove>>, Failure> {
        let old = &mut self.caches[model];
        // SAFETY: each block is written before it is read.
        let buffer = unsafe { self.memory.buffer(&self.stream, max_blocks * BLOCK_BYTES) };
        let mut buffer: DeviceBuffer<u8> = match buffer {
            Ok(buffer) => buffer,
            Err(error) if error.is_out_of_memory() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        for (to, &from) in old.used.iter().enumerate() {
            let mut place = buffer.slice_mut(bytes_of(to));
            let block = old.buffer.slice(bytes_of(from));
            self.stream.memcpy_dtod(&block, &mut place)?;
        }
        let moves = old.used.iter().enumerate();
        let moves = moves.map(|(to, &from)| BlockMove { from, to });
        let moves = moves.filter(|moved| moved.from != moved.to).collect();
        *old = Doubled {
            buffer,
            max_blocks,
            used: (0..old.used.len()).collect(),
        };
        Ok(Some(moves))
    }
}

impl Memory for Doubling {
    fn alloc(&mut self, model: usize) -> Result<Option<usize>, Failure> {
        let cache = &self.caches[model];
        let max_blocks = cache.max_blocks;
        if cache.used.len() == max_blocks && self.replace(model, 2 * max_blocks)?.is_none() {
            return Ok(None);
        }
        let cache = &mut self.caches[model];
        let free = (0..cache.max_blocks).find(|block| !cache.used.contains(block));
        cache.used.extend(free);
        Ok(free)
    }

    fn free(&mut self, model: usize, block: usize) -> Result<(), Failure> {
        self.caches[model].used.remove(&block);
        Ok(())
    }

    fn compact(&mut self, model: usize) -> Result<Option<Vec<BlockMove>>, Failure> {
        let Doubled {
            max_blocks, used, ..
        } = &self.caches[model];
        if *max_blocks == Self::MIN_BLOCKS || used.len() > max_blocks / 4 {
            return Ok(None);
        }
        self.replace(model, max_blocks / 2)
    }

    fn activate(&mut self, bytes: usize) -> Result<bool, Failure> {
        cache::activate(&self.memory, &self.stream, bytes)
    }

    fn write(&mut self, model: usize, block: usize, request: usize) -> Result<(), Failure> {
        let view = self.caches[model].buffer.slice_mut(bytes_of(block));
        cache::write(&self.stream, view, request)
    }

    fn is_intact(&self, model: usize, block: usize, request: usize) -> Result<bool, Failure> {
        let view = self.caches[model].buffer.slice(bytes_of(block));
        cache::is_intact(&self.stream, &view, request)
    }

    fn usage(&self) -> (u64, u64) {
        cache::usage(&self.memory)
    }
}

/// Returns the bytes of a block.
const fn bytes_of(block: usize) -> Range<usize> {
    block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES
}

/// A block of the driver's pool for each block of a cache (`cuMemAllocAsync`, as cudarc allocates).
///
/// The memory that the pool keeps counts, and is returned to the driver if it is too much.
pub(crate) struct DriverBlocks {
    pool: DriverPool,
    stream: Arc<CudaStream>,
    blocks: HashMap<usize, Block>,
    allocs: usize,
    peak_bytes: u64,
    calls: u64,
}

impl DriverBlocks {
    pub(crate) fn new(context: &Context) -> Result<Self, Failure> {
        Ok(Self {
            pool: DriverPool::new(context)?,
            stream: context.cudarc().new_stream()?,
            blocks: HashMap::new(),
            allocs: 0,
            peak_bytes: 0,
            calls: 0,
        })
    }

    fn take(&mut self, bytes: u64) -> Result<Option<Block>, Failure> {
        for _ in 0..2 {
            let live_bytes = self.pool.stats().live_bytes;
            if live_bytes + bytes > TOTAL_BYTES {
                return Ok(None);
            }
            let block = self.pool.alloc(&self.stream, bytes)?;
            self.calls += 1;
            let held_bytes = self.pool.driver_stats()?.reserved_bytes;
            if held_bytes <= TOTAL_BYTES {
                self.peak_bytes = self.peak_bytes.max(held_bytes);
                return Ok(Some(block));
            }
            self.pool.free(&self.stream, block)?;
            self.stream.synchronize()?;
            self.pool.trim(live_bytes)?;
            self.calls += 3;
        }
        Ok(None)
    }

    fn address(&self, block: usize) -> Result<u64, Failure> {
        let block = self.blocks.get(&block).ok_or("a free block")?;
        Ok(block.addr().get())
    }
}

impl Memory for DriverBlocks {
    fn alloc(&mut self, _model: usize) -> Result<Option<usize>, Failure> {
        let Some(block) = self.take(BLOCK_BYTES as u64)? else {
            return Ok(None);
        };
        self.allocs += 1;
        self.blocks.insert(self.allocs, block);
        Ok(Some(self.allocs))
    }

    fn free(&mut self, _model: usize, block: usize) -> Result<(), Failure> {
        let block = self.blocks.remove(&block).ok_or("a free block")?;
        self.pool.free(&self.stream, block)?;
        self.calls += 1;
        Ok(())
    }

    fn activate(&mut self, bytes: usize) -> Result<bool, Failure> {
        let Some(block) = self.take(bytes as u64)? else {
            return Ok(false);
        };
        self.pool.free(&self.stream, block)?;
        self.calls += 1;
        Ok(true)
    }

    fn write(&mut self, _model: usize, block: usize, request: usize) -> Result<(), Failure> {
        let (address, mark) = (self.address(block)?, cache::mark(request));
        // SAFETY: the block is in use; the mark is pageable, so the driver reads it before this returns.
        unsafe { result::memcpy_htod_async(address, &mark, self.stream.cu_stream()) }?;
        Ok(())
    }

    fn is_intact(&self, _model: usize, block: usize, request: usize) -> Result<bool, Failure> {
        let (address, mark) = (self.address(block)?, cache::mark(request));
        let mut bytes = vec![0_u8; mark.len()];
        // SAFETY: the block is in use and was written; the host waits before it reads or frees `bytes`.
        unsafe { result::memcpy_dtoh_async(&mut bytes, address, self.stream.cu_stream()) }?;
        self.stream.synchronize()?;
        Ok(bytes == mark)
    }

    fn usage(&self) -> (u64, u64) {
        (self.peak_bytes, self.calls)
    }
}
