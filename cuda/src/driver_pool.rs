//! [`DriverPool`]: the driver's own allocator, to be compared with ours or used beside it.

use core::fmt;
use std::collections::HashMap;
use std::sync::Mutex;

use cudarc::driver::CudaStream;
use larder_cuda_abi::{DevicePtr, PoolHandle, constants};

use crate::driver::deferred_free::DeferredFree;
use crate::driver::{POOLS_SINCE, locked};
use crate::{Context, DriverError};

/// What a pool holds now and held at most, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DriverPoolStats {
    /// Held from the device.
    pub reserved_bytes: u64,
    /// Most bytes that were, so far.
    pub peak_reserved_bytes: u64,
    /// Bytes in blocks.
    pub used_bytes: u64,
    /// Most bytes that were, so far.
    pub peak_used_bytes: u64,
}

/// A pool of the driver's own, over one device: memory in the order of a stream, by
/// `cuMemAllocFromPoolAsync`.
///
/// It keeps what it has got, unless [`trim`](Self::trim)med: the driver's default gives all unused
/// memory back whenever a stream is waited for, which costs milliseconds.
///
/// Any thread may call it. Cost: the driver's calls, and a look into a table of the blocks. Blocks that
/// are left go back in [`drop`], which waits for the context then, and the pool with them; work of
/// other contexts must not use them any more. While a stream is captured the driver refuses to wait,
/// and ends the capture: free all blocks before.
pub struct DriverPool {
    context: Context,
    pool: PoolHandle,
    /// The blocks, by address; and their bytes.
    blocks: Mutex<HashMap<DevicePtr, u64>>,
}

impl DriverPool {
    /// An empty pool that keeps all it gets.
    ///
    /// # Errors
    /// If the driver is older than 11.2, the device has no pools, or the driver refuses.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        Self::with_threshold(context, u64::MAX)
    }

    /// An empty pool that keeps so many unused bytes when a stream is waited for.
    ///
    /// # Errors
    /// If the driver is older than 11.2, the device has no pools, or the driver refuses.
    pub fn with_threshold(context: &Context, bytes: u64) -> Result<Self, DriverError> {
        // A driver that is too old says so itself.
        if context.driver().version() >= POOLS_SINCE && !context.device_info()?.pools {
            return Err(DriverError::Unsupported {
                what: "memory pools",
                device: context.ordinal(),
            });
        }
        let pool = context.try_current(|driver| driver.create_pool(context.ordinal()))?;
        let made = Self {
            context: context.clone(),
            pool,
            blocks: Mutex::default(),
        };
        context.try_current(|driver| {
            // SAFETY: the pool is ours; if this fails it goes with `made`.
            unsafe { driver.set_pool_threshold(pool, bytes) }
        })?;
        Ok(made)
    }

    /// Where its memory lives.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// A block for work that is queued on the stream from now on.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn alloc(&self, stream: &CudaStream, bytes: u64) -> Result<DevicePtr, DriverError> {
        let address = self.context.try_on(stream, |driver, stream| {
            // SAFETY: pool and stream exist: we hold one, the caller the other.
            unsafe { driver.alloc_from_pool(bytes, self.pool, stream) }
        })?;
        locked(&self.blocks).insert(address, bytes);
        Ok(address)
    }

    /// Takes a block back once the work queued on the stream before is done.
    ///
    /// The caller sees to it that no other work uses it, or that the stream waits for that.
    ///
    /// # Errors
    /// [`DriverError::NotOurs`] if no block starts there; if the driver refuses, the block stays.
    pub fn free(&self, stream: &CudaStream, address: DevicePtr) -> Result<(), DriverError> {
        let removed = locked(&self.blocks).remove(&address);
        let bytes = removed.ok_or(DriverError::NotOurs { address })?;
        let outcome = self.context.try_on(stream, |driver, stream| {
            // SAFETY: it was in the table, so it is a block; the stream exists.
            unsafe { driver.free_async(address, stream) }
        });
        if outcome.is_err() {
            locked(&self.blocks).insert(address, bytes);
        }
        outcome
    }

    /// Gives unused memory back to the device down to so many bytes held.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn trim(&self, keep_bytes: u64) -> Result<(), DriverError> {
        self.context.try_current(|driver| {
            // SAFETY: `self` holds the pool, which `drop` gives back.
            unsafe { driver.trim_pool(self.pool, keep_bytes) }
        })
    }

    /// What the driver says it holds. Four driver calls.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn stats(&self) -> Result<DriverPoolStats, DriverError> {
        let number = |attribute| {
            self.context.try_current(|driver| {
                // SAFETY: `self` holds the pool, which `drop` gives back.
                unsafe { driver.pool_bytes(self.pool, attribute) }
            })
        };
        Ok(DriverPoolStats {
            reserved_bytes: number(constants::POOL_RESERVED_CURRENT)?,
            peak_reserved_bytes: number(constants::POOL_RESERVED_HIGH)?,
            used_bytes: number(constants::POOL_USED_CURRENT)?,
            peak_used_bytes: number(constants::POOL_USED_HIGH)?,
        })
    }

    /// Blocks that were given and not freed.
    pub fn blocks(&self) -> usize {
        locked(&self.blocks).len()
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        let blocks = core::mem::take(&mut *locked(&self.blocks));
        // The driver does not wait when it takes a pool's block back outside of a stream.
        if !blocks.is_empty() && self.context.synchronize().is_err() {
            // After failed work nothing runs any more; and a refusal for no reason may pass.
            let _ = self.context.synchronize();
        }
        for address in blocks.into_keys() {
            self.context.give_back(DeferredFree::Device(address));
        }
        self.context.give_back(DeferredFree::Pool(self.pool));
    }
}

impl fmt::Debug for DriverPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverPool")
            .field("context", &self.context)
            .field("blocks", &self.blocks())
            .finish_non_exhaustive()
    }
}
