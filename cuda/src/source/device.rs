//! [`DeviceMemory`]: regions of a device's memory.

use crate::driver::refused_free::RefusedFree;
use crate::source::ranges::{RangeSource, Ranges};
use crate::{Context, DriverError};

/// Regions of device memory, each from one `cuMemAlloc`. Both the allocation and the free of a region may
/// wait for the device. For one range that grows see [`VirtualMemory`](crate::VirtualMemory).
///
/// ```no_run
/// use larder_core::{Shared, RegionPool, RegionConfig, BlockAllocator, Chunk, Request};
/// use larder_cuda::{Context, DeviceMemory};
///
/// let context = Context::new(0)?;
/// let mut table = [Chunk::VACANT; 1024];
/// let pool = RegionPool::new(RegionConfig::default(), &mut table)?;
/// let pool = Shared::new(pool, DeviceMemory::new(&context));
/// let block = pool.alloc(&Request::new(1 << 20))?.block;
/// println!("1 MiB at {}", block.addr());
/// pool.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type DeviceMemory = Ranges<DeviceSource>;

/// Single allocations of a device's memory.
#[derive(Debug)]
pub struct DeviceSource(Context);

impl DeviceMemory {
    /// Makes a source that holds nothing yet. Makes no driver call.
    pub fn new(context: &Context) -> Self {
        Self::over(DeviceSource(context.clone()))
    }
}

impl RangeSource for DeviceSource {
    fn context(&self) -> &Context {
        &self.0
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        self.0.try_current(|driver| driver.alloc_device(bytes))
    }

    fn refused_free(&self, address: u64) -> RefusedFree {
        RefusedFree::Device(address)
    }
}
