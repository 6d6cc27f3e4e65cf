//! [`ManagedMemory`]: regions that host and devices share. Pages move to the side that accesses them.

use std::sync::Mutex;

use crate::driver::locked;
use crate::driver::refused_free::RefusedFree;
use crate::source::ranges::{RangeSource, Ranges};
use crate::{Context, DriverError};

/// Regions of managed memory, each from one `cuMemAllocManaged`.
///
/// **Never more than the device holds.** The driver would allocate more managed memory than the device has,
/// and move pages back and forth while work runs; programs have been seen to hang as a result. So a region is
/// refused if it is larger than the device's free memory, or if all regions together would exceed the memory
/// that was free when this source was made. Memory that others take later does not count against existing
/// regions.
///
/// On devices without concurrent access ([`DeviceInfo`](crate::driver::DeviceInfo)) the host must not access
/// a block while any work runs on the device.
pub type ManagedMemory = Ranges<ManagedSource>;

impl ManagedMemory {
    /// Makes a source that holds nothing yet.
    ///
    /// # Errors
    /// If the device has no managed memory, or the driver refuses.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        Ok(Self::over(ManagedSource::new(context)?))
    }

    /// Returns the maximum number of bytes that the source may hold.
    pub fn max_bytes(&self) -> u64 {
        self.source().max_bytes
    }
}

/// Single allocations of managed memory.
#[derive(Debug)]
pub struct ManagedSource {
    context: Context,
    pub(crate) max_bytes: u64,
    /// Bytes of all regions, including regions that are being made.
    taken_bytes: Mutex<u64>,
}

impl ManagedSource {
    pub(crate) fn new(context: &Context) -> Result<Self, DriverError> {
        if !context.device_info()?.managed {
            return Err(DriverError::Unsupported {
                what: "managed memory",
                device: context.ordinal(),
            });
        }
        let (max_bytes, _) = context.try_current(|driver| driver.memory_info())?;
        Ok(Self {
            context: context.clone(),
            max_bytes,
            taken_bytes: Mutex::new(0),
        })
    }

    fn take(&self, bytes: u64) -> Result<(), DriverError> {
        let mut taken = locked(&self.taken_bytes);
        let sum = taken.saturating_add(bytes);
        if sum > self.max_bytes {
            return Err(DriverError::Oversubscribed {
                bytes: sum,
                free_bytes: self.max_bytes,
            });
        }
        *taken = sum;
        Ok(())
    }
}

impl RangeSource for ManagedSource {
    fn context(&self) -> &Context {
        &self.context
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        self.take(bytes)?;
        let outcome = self.context.try_current(|driver| {
            let (free_bytes, _) = driver.memory_info()?;
            if bytes > free_bytes {
                return Err(DriverError::Oversubscribed { bytes, free_bytes });
            }
            driver.alloc_managed(bytes)
        });
        if outcome.is_err() {
            self.gone(bytes);
        }
        outcome
    }

    fn refused_free(&self, address: u64) -> RefusedFree {
        RefusedFree::Device(address)
    }

    fn gone(&self, bytes: u64) {
        let mut taken = locked(&self.taken_bytes);
        *taken = taken.saturating_sub(bytes);
    }
}
