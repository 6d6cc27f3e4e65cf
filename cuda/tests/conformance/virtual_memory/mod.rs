//! Reserved addresses, physical memory, mappings, and access to them.

mod access;
mod aliases;
mod mapping;
mod physical;
mod reservation;
mod shared;

use larder_cuda_abi::{AllocationProp, DevicePtr, MemoryHandle, constants};

use crate::api::virtual_memory as vmm;

const READ_WRITE: u32 = constants::MEM_ACCESS_READ_WRITE;

pub(crate) const fn plain() -> AllocationProp {
    vmm::properties(0, constants::MEM_HANDLE_TYPE_NONE)
}

pub(crate) fn granule() -> usize {
    vmm::granularity(&plain(), constants::MEM_GRANULARITY_MINIMUM).expect("a granularity")
}

/// Physical memory of device 0, released on drop.
#[derive(Debug)]
struct Physical {
    handle: MemoryHandle,
    bytes: usize,
}

impl Physical {
    fn new(bytes: usize) -> Self {
        let handle = vmm::create(bytes, &plain(), 0).expect("physical memory");
        Self { handle, bytes }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let _ = vmm::release(self.handle);
    }
}

/// Reserved addresses, freed on drop.
#[derive(Debug)]
struct Reserved {
    at: DevicePtr,
    bytes: usize,
}

impl Reserved {
    fn new(bytes: usize) -> Self {
        let at = vmm::reserve(bytes, 0, 0, 0).expect("addresses");
        Self { at, bytes }
    }

    const fn plus(&self, offset: usize) -> DevicePtr {
        self.at + offset as DevicePtr
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = vmm::free_address(self.at, self.bytes);
    }
}

/// A whole handle mapped at an address, unmapped on drop.
#[derive(Debug)]
struct Mapped {
    at: DevicePtr,
    bytes: usize,
}

impl Mapped {
    /// Maps a handle without access for any device.
    fn bare(at: DevicePtr, physical: &Physical) -> Self {
        vmm::map(at, physical.bytes, 0, physical.handle).expect("a mapping");
        let bytes = physical.bytes;
        Self { at, bytes }
    }

    /// Maps a handle with access for device 0.
    fn new(at: DevicePtr, physical: &Physical) -> Self {
        let new = Self::bare(at, physical);
        vmm::set_access(at, new.bytes, 0, READ_WRITE).expect("access");
        new
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = vmm::unmap(self.at, self.bytes);
    }
}
