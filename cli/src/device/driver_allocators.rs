//! The allocators that programs use today, on the same driver: cudarc's own, and a pool of the
//! driver.
//!
//! `cudarc` allocates with `CudaStream::alloc`, without zeroing, and frees by dropping the slice.
//! It uses the default stream, with event tracking as in a new context: two events are created and
//! destroyed with each block. Its memory comes from the device's default pool, which releases
//! unused memory whenever the program waits for a stream. `cuda-async` allocates with
//! `cuMemAllocFromPoolAsync`, from a pool that never releases memory.

use std::cell::Cell;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use larder_core::Block;
use larder_cuda::{Context, DriverPool, StreamAllocator};
use slab::Slab;

use super::calls::CallBaseline;
use super::{prepare, stand_in, which};
use crate::replay::{CallsByName, Contender, ContenderBlock};

/// A source of blocks.
trait Source {
    type Block;

    fn alloc(&self, bytes: u64) -> Option<(u64, Self::Block)>;

    /// Frees a block. Returns whether the driver accepted it.
    fn free(&self, block: Self::Block) -> bool;

    /// Asks the driver how many bytes of device memory the source holds.
    fn held_bytes(&self) -> Option<u64>;
}

/// A contender that allocates from a source.
struct Today<S: Source> {
    /// `None` if the driver refused to create the source; every allocation then fails.
    source: Option<S>,
    calls: Option<CallBaseline>,
    blocks: Slab<(S::Block, u64)>,
    live_bytes: u64,
    limit_bytes: u64,
    allocations: u64,
    frees: u64,
    /// Bytes held at the last reading.
    held_bytes: Cell<u64>,
}

impl<S: Source> Today<S> {
    fn new<E: std::fmt::Display>(
        name: &'static str,
        device_bytes: Option<u64>,
        make: impl FnOnce() -> Result<S, E>,
    ) -> Self {
        prepare(device_bytes);
        let made = make().inspect_err(|error| eprintln!("{name}: {error}"));
        let source = made.ok();
        let calls = stand_in().map(|stand_in| {
            CallBaseline::new(stand_in, || {
                source.as_ref().and_then(S::held_bytes);
            })
        });
        Self {
            source,
            calls,
            blocks: Slab::new(),
            live_bytes: 0,
            limit_bytes: device_bytes.unwrap_or(u64::MAX),
            allocations: 0,
            frees: 0,
            held_bytes: Cell::new(0),
        }
    }
}

impl<S: Source> Contender for Today<S> {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let live_bytes = self.live_bytes.checked_add(bytes)?;
        if live_bytes > self.limit_bytes {
            return None;
        }
        let (address, block) = self.source.as_ref()?.alloc(bytes)?;
        let handle = u32::try_from(self.blocks.insert((block, bytes))).ok()?;
        self.live_bytes = live_bytes;
        self.allocations += 1;
        Some(ContenderBlock { address, handle })
    }

    fn free(&mut self, slot: ContenderBlock) {
        let freed = self
            .blocks
            .try_remove(slot.handle as usize)
            .is_some_and(|(block, bytes)| {
                self.live_bytes -= bytes;
                let source = self.source.as_ref();
                source.is_some_and(|source| source.free(block))
            });
        assert!(freed, "the replay frees only live blocks");
        self.frees += 1;
    }

    fn reserved_bytes(&self) -> u64 {
        let held = self.source.as_ref().and_then(S::held_bytes);
        if let Some(calls) = &self.calls {
            calls.looked();
        }
        self.held_bytes.set(held.unwrap_or(self.held_bytes.get()));
        // The reading may be too low on a device that other programs also use.
        self.held_bytes.get().max(self.live_bytes)
    }

    fn driver_allocations(&self) -> u64 {
        self.allocations
    }

    fn driver_frees(&self) -> u64 {
        self.frees
    }

    fn driver(&self) -> Option<&'static str> {
        which()
    }

    fn calls_by_name(&self) -> Option<CallsByName> {
        Some(self.calls.as_ref()?.by_name())
    }
}

impl<S: Source> Drop for Today<S> {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            for (block, _) in self.blocks.drain() {
                let freed = source.free(block);
                debug_assert!(freed, "a block of ours");
            }
        }
    }
}

/// cudarc's own allocations.
struct OfStream {
    stream: Arc<CudaStream>,
    /// Bytes in use on the device before the first allocation.
    used_before: u64,
}

impl OfStream {
    fn new() -> Result<Self, cudarc::driver::DriverError> {
        // The context is separate because further streams in a shared one would switch it to the
        // mode for multiple streams.
        let context = CudaContext::new(0)?;
        let stream = context.default_stream();
        let mut made = Self {
            stream,
            used_before: 0,
        };
        made.used_before = made.used_bytes().unwrap_or(0);
        Ok(made)
    }

    fn used_bytes(&self) -> Option<u64> {
        let (free, total) = self.stream.context().mem_get_info().ok()?;
        u64::try_from(total.checked_sub(free)?).ok()
    }
}

impl Source for OfStream {
    type Block = CudaSlice<u8>;

    fn alloc(&self, bytes: u64) -> Option<(u64, CudaSlice<u8>)> {
        let bytes = usize::try_from(bytes).ok()?;
        // SAFETY: the block is never read or written; the replay needs only its address.
        let block = unsafe { self.stream.alloc::<u8>(bytes) }.ok()?;
        let address = cudarc::driver::DevicePtr::device_ptr(&block, &self.stream).0;
        Some((address, block))
    }

    fn free(&self, block: CudaSlice<u8>) -> bool {
        drop(block);
        true
    }

    fn held_bytes(&self) -> Option<u64> {
        Some(self.used_bytes()?.saturating_sub(self.used_before))
    }
}

/// A pool of the driver.
struct OfPool {
    stream: Arc<CudaStream>,
    pool: DriverPool,
}

impl OfPool {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let context = Context::new(0)?;
        let pool = DriverPool::new(&context)?;
        let stream = context.cudarc().new_stream()?;
        Ok(Self { stream, pool })
    }
}

impl Source for OfPool {
    type Block = Block;

    fn alloc(&self, bytes: u64) -> Option<(u64, Block)> {
        let block = self.pool.alloc(&self.stream, bytes).ok()?;
        Some((block.addr().get(), block))
    }

    fn free(&self, block: Block) -> bool {
        self.pool.free(&self.stream, block).is_ok()
    }

    fn held_bytes(&self) -> Option<u64> {
        Some(self.pool.driver_stats().ok()?.reserved_bytes)
    }
}

/// Builds cudarc's own allocator. On the stand-in, `device_bytes` becomes the device's size; on
/// NVIDIA's driver, it only limits the live bytes.
pub(super) fn cudarc(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Today::new("cudarc", device_bytes, OfStream::new))
}

/// Builds a driver pool that never releases memory. On the stand-in, `device_bytes` becomes the
/// device's size; on NVIDIA's driver, it only limits the live bytes.
pub(super) fn cuda_async(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Today::new("cuda-async", device_bytes, OfPool::new))
}
