//! [`PinnedMemory`]: regions of host memory that devices copy from and to at full speed.

use larder_cuda_abi::constants::{
    HOST_ALLOC_DEVICEMAP, HOST_ALLOC_PORTABLE, HOST_ALLOC_WRITECOMBINED,
};

use crate::driver::refused_free::RefusedFree;
use crate::source::ranges::{RangeSource, Ranges};
use crate::{Context, DriverError};

/// Configuration of pinned memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PinnedConfig {
    /// Whether the memory is write-combined: faster for a device to read over some buses, but very slow for
    /// the host to read, so unsuitable for results. Off by default.
    ///
    /// The address is then valid only for the host and for copies. A kernel needs the address that
    /// [`PinnedBuffer::device_address`](crate::PinnedBuffer::device_address) or
    /// [`Driver::device_pointer`](crate::driver::Driver::device_pointer) returns, for each device.
    pub write_combined: bool,
}

impl PinnedConfig {
    /// Returns the driver's flags for memory that is pinned for every context, and mapped.
    const fn flags(self) -> u32 {
        let combined = if self.write_combined {
            HOST_ALLOC_WRITECOMBINED
        } else {
            0
        };
        HOST_ALLOC_PORTABLE | HOST_ALLOC_DEVICEMAP | combined
    }
}

/// Regions of pinned host memory, each from one `cuMemHostAlloc`.
///
/// An address is valid for the host and for every device (with unified addressing, which all 64-bit systems
/// have), unless the memory is [write-combined](PinnedConfig::write_combined). Pinning locks every page and
/// takes about a second for 3 GiB, so regions are kept. No other program can use pinned memory.
pub type PinnedMemory = Ranges<PinnedSource>;

impl PinnedMemory {
    /// Makes a source of memory that is not write-combined. It holds nothing yet. Makes no driver call.
    pub fn new(context: &Context) -> Self {
        Self::with_config(context, PinnedConfig::default())
    }

    /// Makes a source of regions with a configuration. It holds nothing yet. Makes no driver call.
    pub fn with_config(context: &Context, config: PinnedConfig) -> Self {
        Self::over(PinnedSource::new(context, config))
    }
}

/// Single allocations of pinned memory.
#[derive(Debug)]
pub struct PinnedSource {
    context: Context,
    config: PinnedConfig,
}

impl PinnedSource {
    pub(crate) fn new(context: &Context, config: PinnedConfig) -> Self {
        Self {
            context: context.clone(),
            config,
        }
    }

    /// Returns the address by which kernels of the context's device reach memory of this source. Makes a
    /// driver call only if the memory is write-combined.
    pub(crate) fn device_address(&self, address: u64) -> Result<u64, DriverError> {
        if !self.config.write_combined {
            return Ok(address);
        }
        let host = core::ptr::with_exposed_provenance_mut(address as usize);
        self.context.try_current(|driver| {
            // SAFETY: the callers pass addresses inside one of our regions.
            unsafe { driver.device_pointer(host) }
        })
    }
}

impl RangeSource for PinnedSource {
    fn context(&self) -> &Context {
        &self.context
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        let address = self
            .context
            .try_current(|driver| driver.alloc_host(bytes, self.config.flags()))?;
        // Exposed because users of the memory make a pointer from the number.
        Ok(address.expose_provenance() as u64)
    }

    fn refused_free(&self, address: u64) -> RefusedFree {
        RefusedFree::Host(address)
    }
}
