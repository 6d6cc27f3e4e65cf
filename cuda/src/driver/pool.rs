//! Single calls for the driver's own pools and for memory that is allocated and freed in stream order.

use core::ffi::c_void;

use larder_cuda_abi::{DevicePtr, PoolHandle, PoolProps, StreamHandle, constants};

use super::pages::place_of;
use super::{Driver, DriverError, size};

impl Driver {
    /// Makes a pool over a device's memory.
    ///
    /// # Errors
    /// If the driver refuses or is older than 11.2.
    pub fn create_pool(&self, device: i32) -> Result<PoolHandle, DriverError> {
        let entry = self.optional(&self.api.cuMemPoolCreate)?;
        let properties = PoolProps {
            kind: constants::MEM_ALLOCATION_TYPE_PINNED,
            handle_types: constants::MEM_HANDLE_TYPE_NONE,
            location: place_of(device),
            win32_security_attributes: core::ptr::null_mut(),
            max_bytes: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut pool = PoolHandle::NULL;
        // SAFETY: DRIVER1; handle and properties outlive the call.
        let code = unsafe { (entry.call)(&raw mut pool, &raw const properties) };
        entry.check(code)?;
        Ok(pool)
    }

    /// Destroys a pool; its memory is freed once its last block is.
    ///
    /// # Safety
    /// The pool came from [`create_pool`](Self::create_pool) and has not been destroyed.
    ///
    /// # Errors
    /// If the driver refuses, in which case the pool still exists.
    pub unsafe fn destroy_pool(&self, pool: PoolHandle) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemPoolDestroy)?;
        // SAFETY: DRIVER1; the pool came from the driver, and is destroyed once.
        let code = unsafe { (entry.call)(pool) };
        entry.check(code)
    }

    /// Returns the pool from which [`alloc_async`](Self::alloc_async) allocates on a device.
    ///
    /// # Errors
    /// If the driver refuses or is older than 11.2.
    pub fn pool_of_device(&self, device: i32) -> Result<PoolHandle, DriverError> {
        let entry = self.optional(&self.api.cuDeviceGetMemPool)?;
        let mut pool = PoolHandle::NULL;
        // SAFETY: DRIVER1; the handle outlives the call.
        let code = unsafe { (entry.call)(&raw mut pool, device) };
        entry.check(code)?;
        Ok(pool)
    }

    /// Releases unused memory of a pool until it holds at most `keep_bytes`.
    ///
    /// # Safety
    /// The pool exists.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn trim_pool(&self, pool: PoolHandle, keep_bytes: u64) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemPoolTrimTo)?;
        // For a number beyond the address space the pool keeps everything.
        let keep = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
        // SAFETY: DRIVER1; the pool exists.
        let code = unsafe { (entry.call)(pool, keep) };
        entry.check(code)
    }

    /// Sets the bytes above which a pool releases unused memory when the host waits for a stream, an event or a
    /// context.
    ///
    /// # Safety
    /// The pool exists.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn set_pool_threshold(
        &self,
        pool: PoolHandle,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemPoolSetAttribute)?;
        let mut value = bytes;
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: DRIVER1; the pool exists; this attribute is 64 bits wide.
        let code = unsafe { (entry.call)(pool, constants::POOL_RELEASE_THRESHOLD, place) };
        entry.check(code)
    }

    /// Returns one of a pool's attributes in bytes: `POOL_RELEASE_THRESHOLD`, `POOL_RESERVED_…` or
    /// `POOL_USED_…`.
    ///
    /// # Safety
    /// The pool exists.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn pool_bytes(&self, pool: PoolHandle, attribute: u32) -> Result<u64, DriverError> {
        let entry = self.optional(&self.api.cuMemPoolGetAttribute)?;
        let mut value = 0u64;
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: DRIVER1; the pool exists; no attribute is wider than 64 bits.
        let code = unsafe { (entry.call)(pool, attribute, place) };
        entry.check(code)?;
        Ok(value)
    }

    /// Allocates from the pool of the stream's device, for work queued on the stream from now on.
    ///
    /// # Safety
    /// The stream exists.
    ///
    /// # Errors
    /// If the driver refuses or is older than 11.2.
    pub unsafe fn alloc_async(
        &self,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<DevicePtr, DriverError> {
        let entry = self.optional(&self.api.cuMemAllocAsync)?;
        let bytes = size(bytes)?;
        let mut address = 0;
        // SAFETY: DRIVER1; the stream exists; the address outlives the call.
        let code = unsafe { (entry.call)(&raw mut address, bytes, stream) };
        entry.check(code)?;
        Ok(address)
    }

    /// Allocates from a given pool, for work queued on the stream from now on.
    ///
    /// # Safety
    /// The pool and the stream exist.
    ///
    /// # Errors
    /// If the driver refuses or is older than 11.2.
    pub unsafe fn alloc_from_pool(
        &self,
        bytes: u64,
        pool: PoolHandle,
        stream: StreamHandle,
    ) -> Result<DevicePtr, DriverError> {
        let entry = self.optional(&self.api.cuMemAllocFromPoolAsync)?;
        let bytes = size(bytes)?;
        let mut address = 0;
        // SAFETY: DRIVER1; the pool and the stream exist; the address outlives the call.
        let code = unsafe { (entry.call)(&raw mut address, bytes, pool, stream) };
        entry.check(code)?;
        Ok(address)
    }

    /// Frees memory after the work queued on the stream so far.
    ///
    /// # Safety
    /// The address came from a pool and has not been freed; the stream exists; the memory is used only by work
    /// that is queued on the stream, or for which the stream waits.
    ///
    /// # Errors
    /// If the driver refuses, in which case the memory still exists.
    pub unsafe fn free_async(
        &self,
        address: DevicePtr,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemFreeAsync)?;
        // SAFETY: DRIVER1; the stream exists; the memory came from a pool, is freed once, and is used only by
        // work that comes before the free.
        let code = unsafe { (entry.call)(address, stream) };
        entry.check(code)
    }
}
