//! [`FixedBlock`]: memory in one handle of the driver, which stays in place.

use core::fmt;

use larder_core::AddrRange;

use super::DeviceAllocator;
use crate::driver::owed::Unwaited;
use crate::source::virtual_memory::FixedMapping;
use crate::stream::pool::{HostWait, PoolSource};
use crate::{Context, DeviceAllocError, DriverError, Returned};

/// Device memory in one handle of the driver, at addresses of its own, from [`DeviceAllocator::alloc_fixed`].
/// It is not moved, put to sleep or unmapped until it is freed.
///
/// It is for buffers that are registered by their addresses: NCCL (`ncclCommRegister`) and network cards
/// (`ibv_reg_mr`) look up the handle at the first address and take it for the whole buffer, and their records
/// go stale when pages move. A block from [`alloc`](DeviceAllocator::alloc) may lie in several handles, and
/// its pages may move once it is freed. Set [`shareable`](crate::DeviceConfig::shareable) for network cards
/// and other processes, and [`peers`](crate::DeviceConfig::peers) for other devices. Fixed blocks have not
/// been tested on hardware.
///
/// Dropping it waits for all work of the context, then frees the memory; [`free`](Self::free) does the same
/// and reports a refusal. Deregister the memory first. There is no wait while a stream that the allocator
/// knows is being captured; a wait invalidates the capture of any other stream. If there is no wait, or it is
/// refused, a drop leaves all of the memory mapped until [`Context::settle`] or the end of the context waits.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// let buffer = memory.alloc_fixed(64 << 20)?;
/// // ncclCommRegister(comm, buffer.range().start(), buffer.range().bytes(), …)
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the memory is freed as soon as this is dropped"]
pub struct FixedBlock {
    memory: DeviceAllocator,
    /// Taken in `drop`. Boxed because errors carry the block.
    mapping: Option<Box<FixedMapping>>,
    range: AddrRange,
    /// Whether the context's work has been waited for.
    is_over: bool,
}

impl DeviceAllocator {
    /// Allocates a block of at least `bytes` bytes that lies in one handle, and neither moves nor sleeps.
    /// Work of any stream may use it immediately. It takes whole pages, and counts against the limit and in
    /// [`pool_stats`](Self::pool_stats), but not in [`stats`](Self::stats). While it exists,
    /// [`sleep`](Self::sleep) is refused. Makes four driver calls, those that set the context, and two that
    /// change the thread's capture mode; if memory is short, idle memory is released to the driver first.
    ///
    /// # Errors
    /// [`DeviceAllocError::Asleep`], [`DeviceAllocError::Budget`], and if the driver refuses.
    /// [`DriverError::Unsupported`] inside if memory comes in [regions](super::DeviceBacking::Regions), where
    /// no block ever moves.
    pub fn alloc_fixed(&self, bytes: u64) -> Result<FixedBlock, DeviceAllocError> {
        let inner = &*self.0;
        let unsupported = DriverError::Unsupported {
            what: "memory in a handle of its own (there a block of `alloc` stays where it is)",
            device: self.context().ordinal(),
        };
        let source = inner.pool.pages().ok_or(unsupported)?.shared().source();
        let release_and_make = |error: DriverError| {
            if error != DriverError::Budget && !error.is_out_of_memory() {
                return Err(error);
            }
            // Idle pages may hold the memory.
            inner.pool.poll_events(HostWait::MayBlock);
            inner.pool.release(u64::MAX);
            source.make_fixed(bytes)
        };
        let mapping = inner.alloc_block(HostWait::MayBlock, || {
            source.forget_over_budget();
            // The calls share one change of the thread's capture mode.
            let driver = self.context().driver();
            let made = driver.relaxed_once(|| source.make_fixed(bytes).or_else(release_and_make));
            made.map_err(|error| match source.over_budget() {
                Some(over) => DeviceAllocError::Budget(over),
                None => error.into(),
            })
        });
        inner.fixed_have_changed();
        let mapping = mapping?;
        Ok(FixedBlock {
            memory: self.clone(),
            range: mapping.range(),
            mapping: Some(Box::new(mapping)),
            is_over: false,
        })
    }
}

impl super::DeviceInner {
    /// Recomputes the limit of the pages: the whole limit less the fixed blocks.
    fn fixed_have_changed(&self) {
        self.pool.refresh_limit();
        self.pool.node().shared().notify();
    }
}

impl FixedBlock {
    /// Returns the block's addresses.
    pub const fn range(&self) -> AddrRange {
        self.range
    }

    /// Returns the allocator whose limit the block counts against.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.memory
    }

    /// Waits for all work of the context, then frees the memory.
    ///
    /// # Errors
    /// Returns the block, unchanged, if the wait was refused. While a stream that the allocator knows is
    /// being captured, there is no wait, and the error is `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
    pub fn free(mut self) -> Result<(), Returned<Self, DriverError>> {
        match self.memory.synchronize() {
            Ok(()) => {
                self.is_over = true;
                Ok(())
            }
            Err(error) => Err(Returned { value: self, error }),
        }
    }

    fn context(&self) -> &Context {
        self.memory.context()
    }
}

impl Drop for FixedBlock {
    fn drop(&mut self) {
        let inner = &*self.memory.0;
        // Unfinished work may still use the block (FIXED1).
        let unwaited = match !self.is_over && self.memory.synchronize().is_err() {
            true => vec![Unwaited::Context],
            false => Vec::new(),
        };
        if let Some(pages) = inner.pool.pages() {
            pages.shared().source().fixed_leaves(self.range);
        }
        let mapping = self.mapping.take();
        self.context().owe(unwaited, || drop(mapping));
        inner.fixed_have_changed();
    }
}

impl fmt::Debug for FixedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedBlock")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}
