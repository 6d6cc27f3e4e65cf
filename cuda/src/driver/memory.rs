//! Single calls for plain memory: device, host and managed.

use core::ffi::c_void;

use larder_cuda_abi::{Code, DevicePtr, constants};

use super::{Driver, DriverError, size};

/// The kind of memory at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PointerKind {
    /// Pinned host memory.
    Host,
    /// Device memory.
    Device,
    /// Managed memory.
    Managed,
    /// A kind unknown to this crate, as the driver's number.
    Other(u32),
}

impl Driver {
    /// Returns the free and the total bytes of the current context's device.
    ///
    /// # Errors
    /// If the driver refuses, as it does without a current context.
    pub fn memory_info(&self) -> Result<(u64, u64), DriverError> {
        let entry = self.api.cuMemGetInfo_v2;
        let (mut free, mut total) = (0, 0);
        // SAFETY: DRIVER1; both numbers outlive the call.
        let code = unsafe { (entry.call)(&raw mut free, &raw mut total) };
        entry.check(code)?;
        Ok((free as u64, total as u64))
    }

    /// Allocates memory of the current context's device, at an address that is a multiple of 256. The driver
    /// may wait for the device, and carves large ranges from pages of 2 MiB.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for zero bytes.
    pub fn alloc_device(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        let bytes = size(bytes)?;
        let entry = self.api.cuMemAlloc_v2;
        let mut address = 0;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the address outlives the call.
            Ok(unsafe { (entry.call)(&raw mut address, bytes) })
        })?;
        entry.check(code)?;
        Ok(address)
    }

    /// Frees device or managed memory. The driver waits for the device.
    ///
    /// # Safety
    /// The address came from [`alloc_device`](Self::alloc_device), [`alloc_managed`](Self::alloc_managed) or
    /// a pool and has not been freed, and nothing uses the memory any more.
    ///
    /// # Errors
    /// If the driver refuses, in which case the memory still exists.
    pub unsafe fn free_device(&self, address: DevicePtr) -> Result<(), DriverError> {
        let entry = self.api.cuMemFree_v2;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the memory came from the driver, is freed once, and is no longer used.
            Ok(unsafe { (entry.call)(address) })
        })?;
        entry.check(code)
    }

    /// Allocates pinned host memory; `flags` are bits of `HOST_ALLOC_…`. O(bytes), since every page is
    /// locked.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for zero bytes.
    pub fn alloc_host(&self, bytes: u64, flags: u32) -> Result<*mut c_void, DriverError> {
        let bytes = size(bytes)?;
        let entry = self.api.cuMemHostAlloc;
        let mut address = core::ptr::null_mut();
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the address outlives the call.
            Ok(unsafe { (entry.call)(&raw mut address, bytes, flags) })
        })?;
        entry.check(code)?;
        Ok(address)
    }

    /// Frees pinned memory.
    ///
    /// # Safety
    /// The address came from [`alloc_host`](Self::alloc_host) and has not been freed, and nothing uses the
    /// memory any more.
    ///
    /// # Errors
    /// If the driver refuses, in which case the memory still exists.
    pub unsafe fn free_host(&self, address: *mut c_void) -> Result<(), DriverError> {
        let entry = self.api.cuMemFreeHost;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the memory came from the driver, is freed once, and is no longer used.
            Ok(unsafe { (entry.call)(address) })
        })?;
        entry.check(code)
    }

    /// Pins existing host memory; `flags` are bits of `HOST_REGISTER_…`.
    ///
    /// # Safety
    /// The range is mapped memory of this process, and stays mapped until
    /// [`unregister_host`](Self::unregister_host).
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn register_host(
        &self,
        start: *mut c_void,
        bytes: u64,
        flags: u32,
    ) -> Result<(), DriverError> {
        let bytes = size(bytes)?;
        let entry = self.api.cuMemHostRegister_v2;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the range is mapped memory, and stays mapped while it is registered.
            Ok(unsafe { (entry.call)(start, bytes, flags) })
        })?;
        entry.check(code)
    }

    /// Undoes [`register_host`](Self::register_host).
    ///
    /// # Safety
    /// No device uses the memory any more.
    ///
    /// # Errors
    /// If the driver refuses, in which case the memory is still pinned.
    pub unsafe fn unregister_host(&self, start: *mut c_void) -> Result<(), DriverError> {
        let entry = self.api.cuMemHostUnregister;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; no device uses the memory.
            Ok(unsafe { (entry.call)(start) })
        })?;
        entry.check(code)
    }

    /// Returns the address at which the current context's device accesses pinned memory.
    ///
    /// # Safety
    /// The address lies in pinned memory.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn device_pointer(&self, host: *mut c_void) -> Result<DevicePtr, DriverError> {
        let entry = self.api.cuMemHostGetDevicePointer_v2;
        let mut address = 0;
        // SAFETY: DRIVER1; the host address lies in pinned memory; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut address, host, 0) };
        entry.check(code)?;
        Ok(address)
    }

    /// Allocates managed memory, for the host and every device.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for zero bytes.
    pub fn alloc_managed(&self, bytes: u64) -> Result<DevicePtr, DriverError> {
        let bytes = size(bytes)?;
        let entry = self.api.cuMemAllocManaged;
        let mut address = 0;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the address outlives the call.
            Ok(unsafe { (entry.call)(&raw mut address, bytes, constants::MEM_ATTACH_GLOBAL) })
        })?;
        entry.check(code)?;
        Ok(address)
    }

    /// Returns the kind of memory at an address, or `None` if the driver does not know the memory.
    ///
    /// # Errors
    /// If the driver refuses for another reason.
    pub fn pointer_kind(&self, address: DevicePtr) -> Result<Option<PointerKind>, DriverError> {
        let Some(kind) = self.pointer_number(constants::POINTER_MEMORY_TYPE, address)? else {
            return Ok(None);
        };
        let managed = self.pointer_number(constants::POINTER_IS_MANAGED, address)?;
        Ok(Some(match kind {
            _ if managed.is_some_and(|managed| managed & 0xff != 0) => PointerKind::Managed,
            constants::MEMORY_TYPE_HOST => PointerKind::Host,
            constants::MEMORY_TYPE_DEVICE => PointerKind::Device,
            constants::MEMORY_TYPE_UNIFIED => PointerKind::Managed,
            other => PointerKind::Other(other),
        }))
    }

    /// Returns the ordinal of the device that owns the memory at an address, or `None` if the driver does not
    /// know the memory.
    ///
    /// # Errors
    /// If the driver refuses for another reason.
    pub fn pointer_device(&self, address: DevicePtr) -> Result<Option<i32>, DriverError> {
        let ordinal = self.pointer_number(constants::POINTER_DEVICE_ORDINAL, address)?;
        // The driver writes a C int.
        Ok(ordinal.map(u32::cast_signed))
    }

    /// Reads an attribute of up to four bytes.
    fn pointer_number(
        &self,
        attribute: u32,
        address: DevicePtr,
    ) -> Result<Option<u32>, DriverError> {
        let entry = self.api.cuPointerGetAttribute;
        let mut value = 0u32;
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: DRIVER1; each attribute read here is an enumeration, an int or a bool, so it fits.
        let code = unsafe { (entry.call)(place, attribute, address) };
        if code == Code::INVALID_VALUE {
            return Ok(None);
        }
        entry.check(code)?;
        Ok(Some(value))
    }
}
