//! [`DeviceMemory`]: regions of a device's memory.

use larder_core::{AddrRange, GrowRequest, SubAllocError, SubAllocator};

use crate::driver::deferred_free::DeferredFree;
use crate::ranges::{RangeSource, Ranges};
use crate::{Context, DriverError};

/// Gives regions of device memory, each one `cuMemAlloc`.
///
/// A region goes back whole or not at all, and no two touch, so that no block lies across two
/// allocations (the driver refuses copies there). An allocator over one range that grows is
/// [`VirtualMemory`](crate::VirtualMemory)'s task.
///
/// Both calls may wait for the device. What the driver refuses to take back stays with the caller,
/// and in [`drop`] with the [`Context`], which tries again. Dropping gives everything back: no block
/// may be in use then, by queued work neither.
///
/// Any thread may call it, with any context current. Cost: O(log regions) and the driver's calls.
///
/// ```no_run
/// use larder_core::{BfcAllocator, Bfc, BfcConfig, BlockAllocator, Chunk, Request};
/// use larder_cuda::{Context, DeviceMemory};
///
/// let context = Context::new(0)?;
/// let mut table = [Chunk::VACANT; 1024];
/// let bfc = Bfc::new(BfcConfig::default(), &mut table)?;
/// let pool: BfcAllocator<_> = BfcAllocator::new(bfc, DeviceMemory::new(&context));
/// let block = pool.alloc(&Request::new(1 << 20))?.block;
/// println!("1 MiB at {}", block.addr());
/// pool.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceMemory(Ranges<DeviceSource>);

impl DeviceMemory {
    /// Holds nothing yet. No driver call.
    pub fn new(context: &Context) -> Self {
        Self(Ranges::new(DeviceSource(context.clone())))
    }

    /// Where its regions live.
    pub fn context(&self) -> &Context {
        self.0.source().context()
    }

    /// Bytes held from the driver.
    pub fn held_bytes(&self) -> u64 {
        self.0.held_bytes()
    }

    /// The newest refusal, whose reason a [`SubAllocError`] does not carry.
    pub fn last_error(&self) -> Option<DriverError> {
        self.0.last_error()
    }
}

impl SubAllocator for DeviceMemory {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        self.0.grow(request).map_err(|_| SubAllocError)
    }

    /// Takes one whole region back.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.0.release(range).map_err(|_| SubAllocError)
    }

    fn takes_ends(&self) -> bool {
        false
    }
}

struct DeviceSource(Context);

impl RangeSource for DeviceSource {
    fn context(&self) -> &Context {
        &self.0
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        self.0.try_current(|driver| driver.alloc_device(bytes))
    }

    fn deferred_free(&self, address: u64) -> DeferredFree {
        DeferredFree::Device(address)
    }
}
