//! The steps of a paged allocator, made by the driver.
//!
//! A step that answers `Ok` was made and one that answers an error was not, with one exception that
//! harms nobody: memory that the driver did not take back is tried again by the context, while the
//! allocator counts it as lost.

use larder_core::paged::{PageDriver, PageStep};
use larder_core::{AddrRange, SubAllocError};
use larder_cuda_abi::MemoryHandle;

use super::{Held, Owner, VirtualMemory};
use crate::DriverError;
use crate::driver::locked;
use crate::driver::owed::Owed;

impl PageDriver for VirtualMemory {
    /// O(log handles + log mappings) and one driver call.
    fn call(&self, step: PageStep) -> Result<(), SubAllocError> {
        let outcome = match step {
            PageStep::Create { handle, bytes } => self.create_handle(handle, bytes),
            PageStep::Map { handle, range } => self.map_handle(handle, range),
            PageStep::SetAccess { range } => self.set_access(range),
            PageStep::Unmap { handle, range } => self.unmap_handle(handle, range),
            PageStep::Release { handle, .. } => self.release_handle(handle),
        };
        self.remember(outcome).map_err(|_| SubAllocError)
    }
}

/// A handle or a mapping that is not in the books: numbers are not addresses, but an error needs
/// one.
const fn unknown(handle: u32) -> DriverError {
    DriverError::NotOurs {
        address: handle as u64,
    }
}

impl VirtualMemory {
    fn create_handle(&self, handle: u32, bytes: u64) -> Result<(), DriverError> {
        if locked(&self.books).handles.contains_key(&handle) {
            return Err(unknown(handle));
        }
        let charge = self.charge(bytes)?;
        let memory = self.create(bytes)?;
        let held = Held {
            memory,
            bytes,
            charge,
        };
        let earlier = locked(&self.books).handles.insert(handle, held);
        // Only if two threads create one number, which an allocator never does.
        if let Some(earlier) = earlier {
            self.context
                .give_back_charged(Owed::Memory(earlier.memory), earlier.charge);
        }
        Ok(())
    }

    fn map_handle(&self, handle: u32, range: AddrRange) -> Result<(), DriverError> {
        let memory = self.memory_of(handle, range.bytes())?;
        self.map(range, memory, Owner::Handle(handle))
    }

    /// The memory of a handle of that size.
    fn memory_of(&self, handle: u32, bytes: u64) -> Result<MemoryHandle, DriverError> {
        match locked(&self.books).handles.get(&handle) {
            Some(held) if held.bytes == bytes => Ok(held.memory),
            _ => Err(unknown(handle)),
        }
    }

    fn unmap_handle(&self, handle: u32, range: AddrRange) -> Result<(), DriverError> {
        let start = range.start().get();
        let mapped = locked(&self.books).mappings.get(&start).copied();
        match mapped {
            Some(mapped)
                if mapped.bytes == range.bytes() && mapped.owner == Owner::Handle(handle) =>
            {
                self.unmap(start, mapped.bytes)
            }
            _ => Err(DriverError::NotOurs { address: start }),
        }
    }

    fn release_handle(&self, handle: u32) -> Result<(), DriverError> {
        let removed = locked(&self.books).handles.remove(&handle);
        let held = removed.ok_or(unknown(handle))?;
        let thing = Owed::Memory(held.memory);
        if let Err(error) = self.context.try_give_back(thing) {
            self.context.owe_charged(thing, held.charge);
            return Err(error);
        }
        locked(&self.books).calls.release += 1;
        Ok(())
    }
}
