//! The driver calls of a paged allocator's page plan.
//!
//! A call that returns `Ok` was made and a call that returns an error was not, with one harmless exception:
//! if the driver refuses to free memory, the context retries the free. If the memory is charged to a budget,
//! which counts it until it is freed, the call returns `Ok`; otherwise it returns an error, and the allocator
//! counts the memory as lost.
//!
//! While the memory sleeps, nothing is created or mapped. Memory that the sleep has already returned to the
//! driver is unmapped and released in the table only.

use std::sync::PoisonError;

use larder_core::pages::{PageCall, PageDriver, PagePool};
use larder_core::{AddrRange, SubAllocError};
use larder_cuda_abi::MemoryHandle;

use super::{MappingOwner, PhysicalMemory, VirtualMemory};
use crate::DriverError;
use crate::driver::locked;
use crate::driver::refused_free::RefusedFree;
use crate::limits::OverBudget;
use crate::stream::pool::{PoolSource, SharedPool};

impl PoolSource<PagePool<'static>> for VirtualMemory {
    fn last_error(&self) -> Option<DriverError> {
        Self::last_error(self)
    }

    fn over_budget(&self) -> Option<OverBudget> {
        locked(&self.table).over_budget
    }

    fn forget_over_budget(&self) {
        locked(&self.table).over_budget = None;
    }

    /// Returns the bytes of fixed mappings.
    fn left_out_bytes(&self) -> u64 {
        locked(&self.table).fixed.values().sum()
    }

    fn idle_bytes(core: &SharedPool<Self, PagePool<'static>>) -> u64 {
        let core = core.pool_stats();
        core.pool_bytes.saturating_sub(core.stable_bytes)
    }
}

impl PageDriver for VirtualMemory {
    /// O(log handles + log mappings) and one driver call.
    fn call(&self, call: PageCall) -> Result<(), SubAllocError> {
        let outcome = self.carry_out(call);
        match call {
            PageCall::SetAccess { range } if outcome.is_ok() => self.notify_held(range),
            // The mapping stays, and may be in use.
            PageCall::Unmap { range, .. } if outcome.is_err() => self.notify_held(range),
            _ => {}
        }
        if outcome == Err(DriverError::Asleep) {
            return Err(SubAllocError);
        }
        self.remember(outcome).map_err(|_| SubAllocError)
    }
}

/// Makes the error for a handle or a mapping that is not in the table; the handle's number takes the place of
/// the address.
const fn unknown(handle: u32) -> DriverError {
    DriverError::NotOurs {
        address: handle as u64,
    }
}

impl VirtualMemory {
    fn carry_out(&self, call: PageCall) -> Result<(), DriverError> {
        if let PageCall::Unmap { range, .. } = call
            && self.is_present(range.start().get())
        {
            self.watcher.leaving(range);
        }
        let asleep = self.asleep.read().unwrap_or_else(PoisonError::into_inner);
        match call {
            PageCall::Unmap { handle, range } => self.unmap_handle(handle, range),
            PageCall::Release { handle, .. } => self.release_handle(handle),
            _ if *asleep => Err(DriverError::Asleep),
            PageCall::Create { handle, bytes } => self.create_handle(handle, bytes),
            PageCall::Map { handle, range } => self.map_handle(handle, range),
            PageCall::SetAccess { range } => self.set_access(range),
        }
    }

    fn create_handle(&self, handle: u32, bytes: u64) -> Result<(), DriverError> {
        if locked(&self.table).handles.contains_key(&handle) {
            return Err(unknown(handle));
        }
        let charge = self.charge(bytes)?;
        let memory = self.create(bytes)?;
        let held = PhysicalMemory {
            memory: Some(memory),
            bytes,
            charge,
        };
        let earlier = locked(&self.table).handles.insert(handle, held);
        // Happens only if two threads create the same handle number, which an allocator never does.
        if let Some(earlier) = earlier
            && let Some(memory) = earlier.memory
        {
            self.context
                .give_back_charged(RefusedFree::Memory(memory), earlier.charge);
        }
        Ok(())
    }

    fn map_handle(&self, handle: u32, range: AddrRange) -> Result<(), DriverError> {
        let memory = self.memory_of(handle, range.bytes())?;
        self.map(range, memory, MappingOwner::Handle(handle))
    }

    /// Returns the memory of a handle, which must have this size.
    pub(super) fn memory_of(&self, handle: u32, bytes: u64) -> Result<MemoryHandle, DriverError> {
        match locked(&self.table).handles.get(&handle) {
            Some(held) if held.bytes == bytes => held.memory.ok_or(DriverError::Asleep),
            _ => Err(unknown(handle)),
        }
    }

    fn unmap_handle(&self, handle: u32, range: AddrRange) -> Result<(), DriverError> {
        let start = range.start().get();
        let mapped = locked(&self.table).mappings.get(&start).copied();
        match mapped {
            Some(mapped)
                if mapped.bytes == range.bytes()
                    && mapped.owner == MappingOwner::Handle(handle) =>
            {
                if mapped.present {
                    return self.unmap(start, mapped.bytes);
                }
                locked(&self.table).mappings.remove(&start);
                Ok(())
            }
            _ => Err(DriverError::NotOurs { address: start }),
        }
    }

    fn release_handle(&self, handle: u32) -> Result<(), DriverError> {
        let removed = locked(&self.table).handles.remove(&handle);
        let held = removed.ok_or(unknown(handle))?;
        let Some(memory) = held.memory else {
            return Ok(());
        };
        let thing = RefusedFree::Memory(memory);
        if let Err(error) = self.context.try_give_back(thing) {
            let charged = held.charge.is_some();
            self.context.defer_free_charged(thing, held.charge);
            if charged {
                // The budgets count the memory until the driver accepts the free, so the allocator need not
                // count it.
                locked(&self.table).last_error = Some(error);
                return Ok(());
            }
            return Err(error);
        }
        locked(&self.table).calls.release += 1;
        Ok(())
    }
}
