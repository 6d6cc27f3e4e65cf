//! [`FixedBlock`]: memory in one handle of the driver that stays where it is.

use core::fmt;

use larder_core::AddrRange;

use super::DeviceAllocator;
use crate::driver::owed::Unwaited;
use crate::source::virtual_memory::FixedMapping;
use crate::stream::pool::{HostWait, PoolSource};
use crate::{Context, DeviceAllocError, DriverError, Returned};

/// Memory of a device in one handle of the driver, at addresses of its own: it is not moved, put to sleep or
/// unmapped until it is freed. From [`DeviceAllocator::alloc_fixed`].
///
/// It is for buffers that are registered by their addresses: NCCL (`ncclCommRegister`) and network cards
/// (`ibv_reg_mr`) look up the handle at the first address and take it for the whole, and their records go
/// stale when pages move. A block of [`alloc`](DeviceAllocator::alloc) may lie in several handles, and its
/// pages move once it is freed. For network cards and other processes set
/// [`shareable`](crate::DeviceConfig::shareable), for other devices [`peers`](crate::DeviceConfig::peers).
/// Fixed blocks were not tested on hardware.
///
/// Dropping it waits for all work of the context, then frees the memory; [`free`](Self::free) reports a
/// refusal. Deregister it first. The wait is left out while a stream that the allocator knows captures; it
/// invalidates a capture of any other stream. If the wait is left out or refused, a drop leaves all of the
/// memory mapped until [`Context::settle`], or the end of the context, waits.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// let buffer = memory.alloc_fixed(64 << 20)?;
/// // ncclCommRegister(comm, buffer.range().start(), buffer.range().bytes(), …)
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the memory goes back where this is dropped"]
pub struct FixedBlock {
    memory: DeviceAllocator,
    /// Taken in `drop`. Boxed because errors carry the block.
    mapping: Option<Box<FixedMapping>>,
    range: AddrRange,
    /// Whether the context's work has been waited for.
    is_over: bool,
}

impl DeviceAllocator {
    /// Makes a block of at least `bytes` bytes that lies in one handle, and neither moves nor sleeps. Work of
    /// any stream may use it immediately. It takes whole pages, and counts against the limit and in
    /// [`pool_stats`](Self::pool_stats), not in [`stats`](Self::stats). While it exists,
    /// [`sleep`](Self::sleep) is refused. Four driver calls with their contexts, and two that change the
    /// thread's capture mode; if memory is short, idle memory is released to the driver first.
    ///
    /// # Errors
    /// [`DeviceAllocError::Asleep`], [`DeviceAllocError::Budget`], and if the driver refuses.
    /// [`DriverError::Unsupported`] inside if memory comes in [regions](super::DeviceBacking::Regions): there
    /// no block ever moves.
    pub fn alloc_fixed(&self, bytes: u64) -> Result<FixedBlock, DeviceAllocError> {
        let inner = &*self.0;
        let unsupported = DriverError::Unsupported {
            what: "memory in a handle of its own (there a block of `alloc` stays where it is)",
            device: self.context().ordinal(),
        };
        let source = inner.pool.pages().ok_or(unsupported)?.shared().source();
        source.forget_over_budget();
        let make_room = |error: DriverError| {
            if error != DriverError::Budget && !error.is_out_of_memory() {
                return Err(error);
            }
            // Idle pages may hold the memory.
            inner.pool.poll_events(HostWait::MayBlock);
            inner.pool.release(u64::MAX);
            source.make_fixed(bytes)
        };
        // The calls share one change of the thread's capture mode.
        let driver = self.context().driver();
        let made = driver.relaxed_once(|| source.make_fixed(bytes).or_else(make_room));
        let mapping = made.map_err(|error| match source.over_budget() {
            Some(over) => DeviceAllocError::Budget(over),
            None => error.into(),
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
    /// Recomputes the limit of the pages, which is what fixed blocks leave of the whole limit.
    fn fixed_have_changed(&self) {
        self.pool.refresh_limit();
        self.pool.node().shared().notify();
    }
}

impl FixedBlock {
    /// Returns its addresses.
    pub const fn range(&self) -> AddrRange {
        self.range
    }

    /// Returns the allocator that it counts for.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.memory
    }

    /// Waits for all work of the context, then frees the memory.
    ///
    /// # Errors
    /// Returns the block, unchanged, if waiting was refused: with `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`,
    /// and without a wait, while a stream that the allocator knows captures.
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
        // Work that may not have ended may use it (FIXED1).
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
