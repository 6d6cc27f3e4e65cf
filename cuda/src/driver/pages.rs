//! Single calls for virtual memory, which reserve addresses, create physical memory, and map it to the
//! addresses. Most need no context.
//!
//! CUDA does not document whether these calls invalidate captures, as `cuMemAlloc` does. Calls that change
//! something are therefore made in the relaxed mode ([`Driver::relaxed`]), which costs two more driver calls
//! each unless the thread is already in that mode.

#[cfg(unix)]
use core::ptr::without_provenance_mut;
#[cfg(unix)]
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use larder_cuda_abi::{
    AccessDesc, AllocFlags, AllocationProp, DevicePtr, Location, MemoryHandle, constants,
};

use super::{Driver, DriverError, size};

/// Uses of physical memory outside the process that creates it. They are chosen when it is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Whether the memory may be [exported](Driver::export_memory) as a file descriptor.
    pub shareable: bool,
    /// Whether network cards may access the memory (GPUDirect RDMA).
    pub rdma: bool,
}

/// Describes memory of a device to the driver.
fn memory_of(device: i32, wanted: MemoryUse) -> AllocationProp {
    AllocationProp {
        kind: constants::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: if wanted.shareable {
            constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        } else {
            constants::MEM_HANDLE_TYPE_NONE
        },
        location: place_of(device),
        win32_meta_data: core::ptr::null_mut(),
        flags: AllocFlags {
            rdma_capable: u8::from(wanted.rdma),
            ..AllocFlags::default()
        },
    }
}

pub(super) const fn place_of(device: i32) -> Location {
    Location {
        kind: constants::MEM_LOCATION_DEVICE,
        id: device,
    }
}

impl Driver {
    /// Returns the uses that a device supports: shareable memory, and access by network cards. Access counts
    /// as unsupported if the driver is too old to answer. Two calls.
    ///
    /// # Errors
    /// If there is no such device, or the driver is older than 10.2.
    pub fn memory_uses(&self, device: i32) -> Result<MemoryUse, DriverError> {
        let descriptors = constants::DEVICE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        let rdma = constants::DEVICE_RDMA_WITH_VIRTUAL_MEMORY_SUPPORTED;
        Ok(MemoryUse {
            shareable: cfg!(unix) && self.device_attribute(device, descriptors)? != 0,
            // The attribute is newer than virtual memory, so an older driver may not know it.
            rdma: self
                .device_attribute(device, rdma)
                .is_ok_and(|can| can != 0),
        })
    }

    /// Returns the page size of a device. The sizes and addresses of its physical memory are multiples of the
    /// page size, which is 2 MiB on most devices. The recommended page size may be larger.
    ///
    /// # Errors
    /// If the driver refuses or is older than 10.2.
    pub fn page_bytes(
        &self,
        device: i32,
        wanted: MemoryUse,
        recommended: bool,
    ) -> Result<u64, DriverError> {
        let entry = self.optional(&self.api.cuMemGetAllocationGranularity)?;
        let option = if recommended {
            constants::MEM_GRANULARITY_RECOMMENDED
        } else {
            constants::MEM_GRANULARITY_MINIMUM
        };
        let properties = memory_of(device, wanted);
        let mut bytes = 0;
        // SAFETY: DRIVER1; number and properties outlive the call.
        let code = unsafe { (entry.call)(&raw mut bytes, &raw const properties, option) };
        entry.check(code)?;
        Ok(bytes as u64)
    }

    /// Reserves addresses, beginning at a multiple of `align_bytes` (0 for the page size).
    ///
    /// # Errors
    /// If the driver refuses or is older than 10.2.
    pub fn reserve(&self, bytes: u64, align_bytes: u64) -> Result<DevicePtr, DriverError> {
        let entry = self.optional(&self.api.cuMemAddressReserve)?;
        let align =
            usize::try_from(align_bytes).map_err(|_| DriverError::Size { bytes: align_bytes })?;
        let bytes = size(bytes)?;
        let mut start = 0;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the address outlives the call.
            Ok(unsafe { (entry.call)(&raw mut start, bytes, align, 0, 0) })
        })?;
        entry.check(code)?;
        Ok(start)
    }

    /// Frees reserved addresses.
    ///
    /// # Safety
    /// The range is one whole [reservation](Self::reserve), nothing is mapped there, and nothing uses it.
    ///
    /// # Errors
    /// If the driver refuses, in which case the addresses stay reserved.
    pub unsafe fn free_reserved(&self, start: DevicePtr, bytes: u64) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemAddressFree)?;
        let bytes = size(bytes)?;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the range is one whole reservation, with nothing mapped and no user.
            Ok(unsafe { (entry.call)(start, bytes) })
        })?;
        entry.check(code)
    }

    /// Creates unmapped physical memory of a device, in whole pages.
    ///
    /// # Errors
    /// If the driver refuses or is older than 10.2, or the device does not support a
    /// wanted [use](Self::memory_uses).
    pub fn create_memory(
        &self,
        device: i32,
        wanted: MemoryUse,
        bytes: u64,
    ) -> Result<MemoryHandle, DriverError> {
        let entry = self.optional(&self.api.cuMemCreate)?;
        let bytes = size(bytes)?;
        let properties = memory_of(device, wanted);
        let mut handle = MemoryHandle::default();
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; handle and properties outlive the call.
            Ok(unsafe { (entry.call)(&raw mut handle, bytes, &raw const properties, 0) })
        })?;
        entry.check(code)?;
        Ok(handle)
    }

    /// Releases a handle. Its memory is freed once its last mapping is gone too.
    ///
    /// # Safety
    /// The handle came from [`create_memory`](Self::create_memory) or [`import_memory`](Self::import_memory)
    /// and has not been released.
    ///
    /// # Errors
    /// If the driver refuses, in which case the handle still exists.
    pub unsafe fn release_memory(&self, handle: MemoryHandle) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemRelease)?;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the handle came from the driver, and is released once.
            Ok(unsafe { (entry.call)(handle) })
        })?;
        entry.check(code)
    }

    /// Exports shareable memory as a file descriptor for other processes. They may keep all of the memory as
    /// long as they like; the descriptor can be closed once they have imported the memory.
    ///
    /// # Safety
    /// The handle exists.
    ///
    /// # Errors
    /// If the driver refuses, as it does for memory that is not [shareable](MemoryUse), or is older than
    /// 10.2.
    #[cfg(unix)]
    pub unsafe fn export_memory(&self, handle: MemoryHandle) -> Result<OwnedFd, DriverError> {
        let entry = self.optional(&self.api.cuMemExportToShareableHandle)?;
        let kind = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut descriptor = -1_i32;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the handle exists; the number outlives the call.
            Ok(unsafe { (entry.call)((&raw mut descriptor).cast(), handle, kind, 0) })
        })?;
        entry.check(code)?;
        // SAFETY: the driver has just opened the descriptor for this call, which is its only owner.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Imports the memory of another process's descriptor, unmapped, and returns a handle to it. The
    /// descriptor is not needed afterwards.
    ///
    /// # Errors
    /// If the driver refuses, as it does for a descriptor of any other file, or is older than 10.2.
    #[cfg(unix)]
    pub fn import_memory(&self, descriptor: BorrowedFd<'_>) -> Result<MemoryHandle, DriverError> {
        let entry = self.optional(&self.api.cuMemImportFromShareableHandle)?;
        let kind = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // The interface takes the number as a pointer; an open descriptor is not negative.
        let number = without_provenance_mut(descriptor.as_raw_fd() as usize);
        let mut handle = MemoryHandle::default();
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the handle outlives the call, and the descriptor is open.
            Ok(unsafe { (entry.call)(&raw mut handle, number, kind) })
        })?;
        entry.check(code)?;
        Ok(handle)
    }

    /// Maps a whole handle to reserved addresses. The handle may also be mapped elsewhere. Nothing may use
    /// the memory at these addresses before [`set_access`](Self::set_access).
    ///
    /// # Safety
    /// The caller holds the reserved addresses; the handle exists and has this size.
    ///
    /// # Errors
    /// If the driver refuses, in which case nothing is mapped.
    pub unsafe fn map(
        &self,
        start: DevicePtr,
        bytes: u64,
        handle: MemoryHandle,
    ) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemMap)?;
        let bytes = size(bytes)?;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the caller holds the reserved range; the handle exists and has this size.
            Ok(unsafe { (entry.call)(start, bytes, 0, handle, 0) })
        })?;
        entry.check(code)
    }

    /// Undoes one or more whole [`map`](Self::map) calls.
    ///
    /// # Safety
    /// Neither the host nor queued work uses the memory at these addresses any more.
    ///
    /// # Errors
    /// If the driver refuses, in which case everything stays mapped.
    pub unsafe fn unmap(&self, start: DevicePtr, bytes: u64) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemUnmap)?;
        let bytes = size(bytes)?;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; neither the host nor queued work uses the memory in this range.
            Ok(unsafe { (entry.call)(start, bytes) })
        })?;
        entry.check(code)
    }

    /// Lets devices read and write mapped addresses; `devices` are ordinals.
    ///
    /// # Safety
    /// The addresses belong to the caller and are mapped.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn set_access(
        &self,
        start: DevicePtr,
        bytes: u64,
        devices: &[i32],
    ) -> Result<(), DriverError> {
        let entry = self.optional(&self.api.cuMemSetAccess)?;
        let bytes = size(bytes)?;
        let access = readers_and_writers(devices);
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the range is the caller's own and mapped; the list outlives the call.
            Ok(unsafe { (entry.call)(start, bytes, access.as_ptr(), access.len()) })
        })?;
        entry.check(code)
    }

    /// Returns a device's access to a mapped address, one of the `MEM_ACCESS_…` constants.
    ///
    /// # Errors
    /// If nothing is mapped there, or the driver is older than 10.2.
    pub fn access(&self, address: DevicePtr, device: i32) -> Result<u64, DriverError> {
        let entry = self.optional(&self.api.cuMemGetAccess)?;
        let location = place_of(device);
        let mut flags = 0;
        // SAFETY: DRIVER1; number and location outlive the call.
        let code = unsafe { (entry.call)(&raw mut flags, &raw const location, address) };
        entry.check(code)?;
        Ok(flags)
    }
}

/// Describes read and write access for each device.
fn readers_and_writers(devices: &[i32]) -> Vec<AccessDesc> {
    devices
        .iter()
        .map(|device| AccessDesc {
            location: place_of(*device),
            flags: constants::MEM_ACCESS_READ_WRITE,
        })
        .collect()
}
