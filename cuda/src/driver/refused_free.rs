//! [`RefusedFree`]: a free that the driver refused, kept until the driver accepts it.
//!
//! A refusal in a `drop`, or in the middle of several frees, cannot be reported. Instead, the free is deferred:
//! it waits in a list of its [context](super::context) and is retried at the next free, when memory is short,
//! and when the context ends.

use core::ffi::c_void;
use core::ptr::without_provenance_mut;

use larder_cuda_abi::{DevicePtr, EventHandle, MemoryHandle, PoolHandle};

use super::{Driver, DriverError};

/// One object to free. Invariant FREES1: no other code holds it, and no work uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedFree {
    /// Device or managed memory.
    Device(DevicePtr),
    /// Pinned memory.
    Host(u64),
    /// An event.
    Event(EventHandle),
    /// A pool, all of whose blocks are free.
    Pool(PoolHandle),
    /// A mapping.
    Mapping(DevicePtr, u64),
    /// Physical memory; frees of its mappings may be deferred too.
    Memory(MemoryHandle),
    /// Reserved addresses; their mappings come before them in the list.
    Reserved(DevicePtr, u64),
}

impl RefusedFree {
    /// Frees the object. Its context must be current.
    pub(super) fn give_back(self, driver: &Driver) -> Result<(), DriverError> {
        match self {
            Self::Device(address) => {
                // SAFETY: FREES1: no other code holds it, and no work uses it.
                unsafe { driver.free_device(address) }
            }
            Self::Host(address) => {
                // Lossless: a host address is at most as wide as a pointer.
                let address = without_provenance_mut::<c_void>(address as usize);
                // SAFETY: FREES1: no other code holds it, and no work uses it.
                unsafe { driver.free_host(address) }
            }
            Self::Event(event) => {
                // SAFETY: FREES1: no other code holds it, and no work uses it.
                unsafe { driver.destroy_event(event) }
            }
            Self::Pool(pool) => {
                // SAFETY: FREES1: no other code holds it, and no work uses it.
                unsafe { driver.destroy_pool(pool) }
            }
            Self::Mapping(start, bytes) => {
                // SAFETY: FREES1: no other code holds it, and no work uses it.
                unsafe { driver.unmap(start, bytes) }
            }
            Self::Memory(handle) => {
                // SAFETY: FREES1: no other code holds it, and no work uses it.
                unsafe { driver.release_memory(handle) }
            }
            Self::Reserved(start, bytes) => {
                // SAFETY: FREES1: no other code holds it, and no work uses it.
                unsafe { driver.free_reserved(start, bytes) }
            }
        }
    }
}
