//! [`DriverPool`]: the driver's own allocator, for comparison with ours, or for use next to it.

use core::fmt;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{
    Addr, AddrRange, AllocError, AllocatorId, Block, Cause, ChunkHandle, OutOfMemory, Rejected,
    Request, Stats,
};
use larder_cuda_abi::{DevicePtr, PoolHandle, constants};

use crate::account::Account;
use crate::driver::owed::Unwaited;
use crate::driver::refused_free::RefusedFree;
use crate::driver::{POOLS_SINCE, locked};
use crate::source::virtual_memory::RegionWatch;
use crate::stream::allocator::{BLOCK_ALIGN, BlockInfo, Live, StreamAllocator};
use crate::{Context, DeviceAllocError, DeviceFreeError, DriverError};

/// The handle of all blocks, which are identified by their addresses.
const HANDLE: Option<ChunkHandle> = ChunkHandle::new(1);

/// Current and peak numbers of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DriverPoolStats {
    /// Bytes held from the device.
    pub reserved_bytes: u64,
    /// Maximum bytes held so far.
    pub peak_reserved_bytes: u64,
    /// Bytes in blocks.
    pub used_bytes: u64,
    /// Maximum bytes in blocks so far.
    pub peak_used_bytes: u64,
}

/// One of the driver's own memory pools, over one device: memory in stream order, through
/// `cuMemAllocFromPoolAsync`.
///
/// The pool keeps its memory until it is [`trim`](Self::trim)med. The driver's default is to release all
/// unused memory whenever the host waits for a stream, which costs milliseconds.
///
/// Any thread may call it. A call costs the driver's calls and a look-up in a table of the blocks. [`drop`]
/// frees the remaining blocks, after a wait for the context, and then the pool; work of other contexts must
/// no longer use them. While a stream is being captured, the driver refuses the wait and invalidates the
/// capture: free all blocks first.
pub struct DriverPool {
    context: Context,
    /// The driver's pool. `None` if each block is a driver allocation of its own.
    pool: Option<PoolHandle>,
    /// Bytes of the blocks, by address.
    blocks: Mutex<HashMap<DevicePtr, u64>>,
    account: Account,
    /// Watcher of blocks, since the driver does not report the regions it holds.
    watch: Option<Box<dyn RegionWatch>>,
}

impl DriverPool {
    /// Makes an empty pool that keeps all its memory.
    ///
    /// # Errors
    /// If the driver is older than 11.2, the device has no pools, or the driver refuses.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        Self::with_threshold(context, u64::MAX)
    }

    /// Makes an empty pool that keeps up to `bytes` unused bytes when the host waits for a stream.
    ///
    /// # Errors
    /// If the driver is older than 11.2, the device has no pools, or the driver refuses.
    pub fn with_threshold(context: &Context, bytes: u64) -> Result<Self, DriverError> {
        // A driver that is too old fails in the calls below.
        if context.driver().version() >= POOLS_SINCE && !context.device_info()?.pools {
            return Err(DriverError::Unsupported {
                what: "memory pools",
                device: context.ordinal(),
            });
        }
        let pool = context.try_current(|driver| driver.create_pool(context.ordinal()))?;
        let made = Self::over(context, Some(pool));
        context.try_current(|driver| {
            // SAFETY: the pool is ours; on failure it is dropped with `made`.
            unsafe { driver.set_pool_threshold(pool, bytes) }
        })?;
        Ok(made)
    }

    /// Makes an allocator without a pool: each block is one `cuMemAlloc`, and its free one `cuMemFree`, which
    /// waits for the device. This is for tools that check memory.
    pub fn unpooled(context: &Context) -> Self {
        Self::over(context, None)
    }

    fn over(context: &Context, pool: Option<PoolHandle>) -> Self {
        Self {
            context: context.clone(),
            pool,
            blocks: Mutex::default(),
            account: Account::new(u64::MAX),
            watch: None,
        }
    }

    /// Limits the bytes in blocks. No block may be in use yet.
    pub fn with_limit(mut self, limit_bytes: u64) -> Self {
        self.account = Account::new(limit_bytes);
        self
    }

    /// Sets a watcher that is called for each block allocated and freed. No block may be in use yet.
    pub(crate) fn watched(mut self, watch: Box<dyn RegionWatch>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Allocates with one driver call. If memory is short and refused frees are waiting, tries these again
    /// and repeats the call.
    fn call_alloc(&self, stream: &CudaStream, bytes: u64) -> Result<DevicePtr, DriverError> {
        let call = || match self.pool {
            Some(pool) => self.context.try_on(stream, |driver, stream| {
                // SAFETY: pool and stream exist: `self` holds one, the caller the other.
                unsafe { driver.alloc_from_pool(bytes, pool, stream) }
            }),
            None => self
                .context
                .try_current(|driver| driver.alloc_device(bytes)),
        };
        match call() {
            Err(error) if error.is_out_of_memory() && self.context.refused_frees() > 0 => {
                self.context.settle_at_once();
                call()
            }
            other => other,
        }
    }

    fn call_free(&self, stream: &CudaStream, address: DevicePtr) -> Result<(), DriverError> {
        if self.pool.is_none() {
            return self.context.try_give_back(RefusedFree::Device(address));
        }
        self.context.try_on(stream, |driver, stream| {
            // SAFETY: the address was in the table, so it is a block's; the caller holds the stream.
            unsafe { driver.free_async(address, stream) }
        })
    }

    /// Converts the driver's refusal, which may have a cause other than a lack of memory.
    fn refusal(&self, bytes: u64, error: DriverError) -> DeviceAllocError {
        if !error.is_out_of_memory() {
            return error.into();
        }
        let stats = self.account.stats();
        let mut out = OutOfMemory::of(Cause::SubAllocator, bytes);
        out.limit_bytes = stats.limit_bytes;
        out.reserved_bytes = stats.reserved_bytes;
        out.live_bytes = stats.live_bytes;
        DeviceAllocError::Memory {
            reason: AllocError::OutOfMemory(out),
            driver: Some(error),
        }
    }

    /// Releases unused memory to the device until at most `keep_bytes` are held.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        let Some(pool) = self.pool else {
            return Ok(());
        };
        self.context.try_current(|driver| {
            // SAFETY: `self` holds the pool, which `drop` frees.
            unsafe { driver.trim_pool(pool, keep_bytes) }
        })
    }

    /// Returns the driver's numbers of the pool, with four driver calls. Without a pool, returns the numbers
    /// of the blocks.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn driver_stats(&self) -> Result<DriverPoolStats, DriverError> {
        let Some(pool) = self.pool else {
            let stats = self.account.stats();
            return Ok(DriverPoolStats {
                reserved_bytes: stats.reserved_bytes,
                peak_reserved_bytes: stats.peak_reserved_bytes,
                used_bytes: stats.live_bytes,
                peak_used_bytes: stats.peak_live_bytes,
            });
        };
        let number = |attribute| {
            self.context.try_current(|driver| {
                // SAFETY: `self` holds the pool, which `drop` frees.
                unsafe { driver.pool_bytes(pool, attribute) }
            })
        };
        Ok(DriverPoolStats {
            reserved_bytes: number(constants::POOL_RESERVED_CURRENT)?,
            peak_reserved_bytes: number(constants::POOL_RESERVED_HIGH)?,
            used_bytes: number(constants::POOL_USED_CURRENT)?,
            peak_used_bytes: number(constants::POOL_USED_HIGH)?,
        })
    }
}

impl StreamAllocator for DriverPool {
    fn context(&self) -> &Context {
        &self.context
    }

    /// Makes one driver call. Refuses an alignment above 256, which the driver does not guarantee.
    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let bytes = request.bytes;
        let too_large = DeviceAllocError::reason(AllocError::TooLarge {
            requested_bytes: bytes,
        });
        if bytes == 0 {
            return Err(DeviceAllocError::reason(AllocError::ZeroSize));
        }
        let (Some(handle), true) = (HANDLE, request.align <= BLOCK_ALIGN) else {
            return Err(too_large);
        };
        let taken = self.account.take(bytes);
        taken.map_err(|out| DeviceAllocError::reason(AllocError::OutOfMemory(out)))?;
        let given = self.call_alloc(stream, bytes).map_err(|error| {
            self.account.refused(bytes);
            self.refusal(bytes, error)
        })?;
        self.account.gave(bytes);
        locked(&self.blocks).insert(given, bytes);
        let range = AddrRange::new(Addr::new(given), bytes).ok_or(too_large)?;
        if let Some(watch) = &self.watch {
            watch.held(range);
        }
        Ok(Block::outside(range, handle))
    }

    /// Frees a block after all work already queued on the stream. The caller ensures that no other work uses
    /// it, or that the stream waits for such work.
    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let (address, bytes) = (block.addr().get(), block.bytes());
        match locked(&self.blocks).entry(address) {
            Entry::Occupied(entry) if self.is_ours(&block, *entry.get()) => entry.remove(),
            _ => return Err(DeviceFreeError::unknown(block)),
        };
        if let Some(watch) = &self.watch {
            watch.leaving(block.range());
        }
        if let Err(error) = self.call_free(stream, address) {
            locked(&self.blocks).insert(address, bytes);
            if let Some(watch) = &self.watch {
                watch.held(block.range());
            }
            return Err(DeviceFreeError::driver(block, error));
        }
        self.account.freed(bytes);
        Ok(())
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        let bytes = *locked(&self.blocks).get(&block.addr().get())?;
        self.is_ours(block, bytes)
            .then_some(BlockInfo::of_device(bytes))
    }

    /// Returns the counters of blocks, whose live and reserved bytes are equal. For the memory that the
    /// driver holds beyond them, see [`driver_stats`](Self::driver_stats).
    fn stats(&self) -> Stats {
        self.account.stats()
    }

    fn clear_stats(&self) {
        self.account.clear();
    }

    fn live(&self) -> Live {
        self.account.live()
    }
}

impl DriverPool {
    /// Returns whether a block is the one that the table has at its address, with `bytes` bytes.
    fn is_ours(&self, block: &Block, bytes: u64) -> bool {
        block.is_of(AllocatorId::OUTSIDE) && block.bytes() == bytes
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        let blocks = core::mem::take(&mut *locked(&self.blocks));
        // The driver does not wait when it frees a pool's block outside of a stream.
        let waits = || blocks.is_empty() || self.context.synchronize().is_ok();
        // Retried once, since a refusal may be temporary.
        let unwaited = match waits() || waits() {
            true => Vec::new(),
            false => vec![Unwaited::Context],
        };
        self.context.owe(unwaited, || {
            for address in blocks.into_keys() {
                self.context.give_back(RefusedFree::Device(address));
            }
            if let Some(pool) = self.pool {
                self.context.give_back(RefusedFree::Pool(pool));
            }
        });
    }
}

impl fmt::Debug for DriverPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverPool")
            .field("context", &self.context)
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}
