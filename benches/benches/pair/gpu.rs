//! The crate `gpu-allocator`: one free list per block of device memory, searched
//! from end to end for the best fit.
//!
//! Its free list is private, so it is measured through the public allocator on a
//! fake Vulkan device (`fake_vulkan.rs`). What is measured with it: the choice of
//! the memory type and of the block (one each here), and the bookkeeping for
//! names (empty here, which allocates nothing) and stack traces (off; an `Arc`
//! without a trace remains).
//!
//! The crate takes blocks of 4 to 256 MiB, in steps of 4 MiB. The pool is one
//! block, the script's pool rounded up to that, and if it ever took a second one
//! the final check would fail.

#![forbid(unsafe_code)]

use std::ops::Range;

use ash::vk;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings, MemoryLocation};
use larder_cli::pair::{GRANULE_BYTES, PairContender, PairScript};

use super::fake_vulkan;

/// The crate's smallest block of device memory, and the step of its sizes.
const BLOCK_STEP_BYTES: u64 = 4 << 20;

/// The crate's largest block of device memory.
const MAX_BLOCK_BYTES: u64 = 256 << 20;

/// The allocator with one block of device memory.
pub(crate) struct GpuAllocator {
    inner: Allocator,
    pool_bytes: u64,
}

impl GpuAllocator {
    /// Its time grows with the free chunks, to 20 us a pair here; and above this the pool would
    /// not fit its largest block.
    pub(crate) const MAX_LIVE: usize = 10_000;

    /// On a fresh fake device.
    pub(crate) fn try_new(script: &PairScript) -> Result<Self, String> {
        let pool_bytes = script.pool_bytes().next_multiple_of(BLOCK_STEP_BYTES);
        if pool_bytes > MAX_BLOCK_BYTES {
            return Err(format!("its blocks end at {MAX_BLOCK_BYTES} bytes"));
        }
        let desc = AllocatorCreateDesc {
            instance: fake_vulkan::instance(),
            device: fake_vulkan::device(),
            physical_device: fake_vulkan::physical_device(),
            // All logs but that of leaks when dropped, and all traces, are off.
            debug_settings: AllocatorDebugSettings::default(),
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::new(pool_bytes, BLOCK_STEP_BYTES),
        };
        let inner = Allocator::new(&desc).map_err(|error| error.to_string())?;
        Ok(Self { inner, pool_bytes })
    }

    /// A driver names sizes in multiples of the alignment, so the request is rounded here.
    #[inline]
    fn alloc_bytes(&mut self, bytes: u64) -> Option<Allocation> {
        let granule = u64::from(GRANULE_BYTES);
        let desc = AllocationCreateDesc {
            name: "",
            requirements: vk::MemoryRequirements {
                size: bytes.next_multiple_of(granule),
                alignment: granule,
                memory_type_bits: 1,
            },
            location: MemoryLocation::GpuOnly,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        self.inner.allocate(&desc).ok()
    }

    fn check_one_block(&self) -> Result<(), String> {
        let (held, pool) = (self.inner.capacity(), self.pool_bytes);
        if held == pool {
            return Ok(());
        }
        Err(format!("{held} bytes of device memory instead of {pool}"))
    }
}

impl PairContender for GpuAllocator {
    type Block = Allocation;

    #[inline]
    fn alloc(&mut self, bytes: u32) -> Option<Allocation> {
        self.alloc_bytes(u64::from(bytes))
    }

    #[inline]
    fn free(&mut self, block: Allocation) -> Option<()> {
        self.inner.free(block).ok()
    }

    fn address(&self, block: &Allocation) -> u64 {
        block.offset()
    }

    fn pool(&self) -> Range<u64> {
        0..self.pool_bytes
    }

    /// One allocation as large as the block fits only into one free chunk.
    fn check_empty(&mut self) -> Result<(), String> {
        let live_bytes = self.inner.generate_report().total_allocated_bytes;
        if live_bytes != 0 {
            return Err(format!("{live_bytes} live bytes"));
        }
        self.check_one_block()?;
        let whole = self.alloc_bytes(self.pool_bytes);
        let whole = whole.ok_or("the block is not one free chunk")?;
        self.check_one_block()?;
        self.inner.free(whole).map_err(|error| error.to_string())
    }
}
