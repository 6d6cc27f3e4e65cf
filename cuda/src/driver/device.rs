//! Devices: their number and properties. These calls need no context.

use core::ffi::{CStr, c_char, c_int};

use larder_cuda_abi::constants;

use super::api::{PAGES_SINCE, POOLS_SINCE};
use super::{Driver, DriverError};

/// Bytes for the text of a PCI bus ID: 13 according to the driver's documentation, more for longer domains.
const BUS_ID_BYTES: usize = 32;

/// Properties of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Whether physical memory can be mapped to reserved addresses.
    pub virtual_memory: bool,
    /// Whether the driver's own pools are supported.
    pub pools: bool,
    /// Whether managed memory is supported.
    pub managed: bool,
    /// Whether host and device may use managed memory at the same time.
    pub concurrent_managed: bool,
    /// Whether host and devices share one address space.
    pub unified_addressing: bool,
    /// Whether the device shares the host's memory.
    pub integrated: bool,
}

impl Driver {
    /// Returns the number of devices.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn device_count(&self) -> Result<i32, DriverError> {
        let entry = self.api.cuDeviceGetCount;
        let mut count: c_int = 0;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut count) };
        entry.check(code)?;
        Ok(count)
    }

    /// Returns the driver's own number for a device, which most calls take instead of its ordinal.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device(&self, ordinal: i32) -> Result<i32, DriverError> {
        let entry = self.api.cuDeviceGet;
        let mut device: c_int = 0;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut device, ordinal) };
        entry.check(code)?;
        Ok(device)
    }

    /// Returns the value of a device's attribute, one of the `DEVICE_…` [`constants`].
    ///
    /// # Errors
    /// If there is no such device, or the driver does not know the attribute.
    pub fn device_attribute(&self, device: i32, attribute: u32) -> Result<i32, DriverError> {
        let entry = self.api.cuDeviceGetAttribute;
        let mut value: c_int = 0;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut value, attribute, device) };
        entry.check(code)?;
        Ok(value)
    }

    /// Returns a device's PCI bus ID as the driver writes it, such as `0000:01:00.0`.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device_bus_id(&self, device: i32) -> Result<String, DriverError> {
        let entry = self.api.cuDeviceGetPCIBusId;
        let mut text = [0_u8; BUS_ID_BYTES];
        let start = text.as_mut_ptr().cast::<c_char>();
        // SAFETY: DRIVER1; the text outlives the call, which is given its length.
        let code = unsafe { (entry.call)(start, BUS_ID_BYTES as c_int, device) };
        entry.check(code)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Returns the size of a device's memory in bytes.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device_bytes(&self, device: i32) -> Result<u64, DriverError> {
        let entry = self.api.cuDeviceTotalMem_v2;
        let mut bytes = 0;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut bytes, device) };
        entry.check(code)?;
        Ok(bytes as u64)
    }

    /// Returns whether `device` can use memory of `peer`.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn can_access_peer(&self, device: i32, peer: i32) -> Result<bool, DriverError> {
        let entry = self.api.cuDeviceCanAccessPeer;
        let mut answer: c_int = 0;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut answer, device, peer) };
        entry.check(code)?;
        Ok(answer != 0)
    }

    /// Returns the properties of a device. A property for which the driver is too old counts as unsupported.
    /// About ten calls.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device_info(&self, device: i32) -> Result<DeviceInfo, DriverError> {
        let has = |attribute| Ok(self.device_attribute(device, attribute)? != 0);
        let since = |version, attribute| Ok(self.version >= version && has(attribute)?);
        let number = |attribute| self.device_attribute(device, attribute);
        Ok(DeviceInfo {
            total_bytes: self.device_bytes(device)?,
            compute_capability: (
                number(constants::DEVICE_COMPUTE_CAPABILITY_MAJOR)?,
                number(constants::DEVICE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            virtual_memory: since(PAGES_SINCE, constants::DEVICE_VIRTUAL_MEMORY_SUPPORTED)?,
            pools: since(POOLS_SINCE, constants::DEVICE_MEMORY_POOLS_SUPPORTED)?,
            managed: has(constants::DEVICE_MANAGED_MEMORY)?,
            concurrent_managed: has(constants::DEVICE_CONCURRENT_MANAGED_ACCESS)?,
            unified_addressing: has(constants::DEVICE_UNIFIED_ADDRESSING)?,
            integrated: has(constants::DEVICE_INTEGRATED)?,
        })
    }
}
