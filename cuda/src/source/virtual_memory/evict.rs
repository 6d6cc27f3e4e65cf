//! Sleep of the memory of handles. The table keeps the place of each mapping, so the addresses stay taken,
//! and records for each handle and each mapping whether the driver has it.
//!
//! [`Stopped::give_up`] undoes all mappings before it releases any memory: if the driver refuses to undo one,
//! no memory has been released. [`Stopped::bring_back`] creates memory, maps it, and allows access. Both
//! continue where an earlier call was refused, and each undoes the other. The caller saves the contents.

use std::sync::{PoisonError, RwLockWriteGuard};

use larder_core::{Addr, AddrRange};

use super::{MappingOwner, VirtualMemory};
use crate::DriverError;
use crate::driver::locked;
use crate::driver::refused_free::RefusedFree;

/// Blocks calls of a paged allocator until dropped. No call is under way.
pub(crate) struct Stopped<'a> {
    memory: &'a VirtualMemory,
    asleep: RwLockWriteGuard<'a, bool>,
}

impl VirtualMemory {
    /// Waits for the calls under way, and blocks further calls.
    pub(crate) fn stop(&self) -> Stopped<'_> {
        let asleep = self.asleep.write();
        Stopped {
            memory: self,
            asleep: asleep.unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Waits for the calls under way, and blocks further calls. Notifies the watcher that all memory of
    /// handles leaves; nothing is mapped in the meantime. A caller that then releases nothing [notifies it of
    /// the return](Self::tell_of_return).
    pub(crate) fn stop_and_tell(&self) -> Stopped<'_> {
        *self.stop().asleep = true;
        for (start, bytes, _) in self.mappings_of_handles(true) {
            if let Some(range) = AddrRange::new(Addr::new(start), bytes) {
                self.watcher.leaving(range);
            }
        }
        let mut stopped = self.stop();
        *stopped.asleep = false;
        stopped
    }

    /// Notifies the watcher that the memory of handles is held, because it came back or never left.
    pub(crate) fn tell_of_return(&self) {
        self.notify_held(self.addresses);
    }

    /// Returns whether the driver has the mapping that begins at `start`.
    pub(super) fn is_present(&self, start: u64) -> bool {
        let table = locked(&self.table);
        table
            .mappings
            .get(&start)
            .is_some_and(|mapped| mapped.present)
    }

    /// Returns the mappings of handles that are present, or those that are absent: start, bytes, handle.
    fn mappings_of_handles(&self, present: bool) -> Vec<(u64, u64, u32)> {
        let table = locked(&self.table);
        let mappings = table.mappings.iter();
        mappings
            .filter_map(|(start, mapped)| match mapped.owner {
                MappingOwner::Handle(handle) if mapped.present == present => {
                    Some((*start, mapped.bytes, handle))
                }
                _ => None,
            })
            .collect()
    }

    fn set_present(&self, start: u64, present: bool) {
        if let Some(mapped) = locked(&self.table).mappings.get_mut(&start) {
            mapped.present = present;
        }
    }

    /// Creates memory for each handle that has none, and charges it first.
    fn create_absent(&self) -> Result<(), DriverError> {
        let absent: Vec<(u32, u64)> = {
            let table = locked(&self.table);
            let absent = table.handles.iter();
            absent
                .filter(|(_, held)| held.memory.is_none())
                .map(|(handle, held)| (*handle, held.bytes))
                .collect()
        };
        for (handle, bytes) in absent {
            let charge = self.charge(bytes)?;
            let memory = self.create(bytes)?;
            if let Some(held) = locked(&self.table).handles.get_mut(&handle) {
                (held.memory, held.charge) = (Some(memory), charge);
            }
        }
        Ok(())
    }

    /// Allows access to all mappings of handles, with one call for each run of adjacent mappings.
    fn access_all(&self) -> Result<(), DriverError> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (start, bytes, _) in self.mappings_of_handles(true) {
            match runs.last_mut() {
                Some((_, end)) if *end == start => *end += bytes,
                _ => runs.push((start, start + bytes)),
            }
        }
        let ranges = runs
            .into_iter()
            .filter_map(|(start, end)| AddrRange::new(Addr::new(start), end - start));
        ranges
            .into_iter()
            .try_for_each(|range| self.set_access(range))
    }
}

impl Stopped<'_> {
    /// Refuses if another process may use some of the memory, or a network card knows it by its handle, since
    /// a copy cannot replace such memory.
    ///
    /// # Errors
    /// [`DriverError::Exported`].
    pub(crate) fn refuse_exported(&self) -> Result<(), DriverError> {
        let table = locked(&self.memory.table);
        let mut mappings = table.mappings.iter();
        let exported = mappings.find(|(_, mapped)| mapped.exports > 0);
        let exported = exported.map(|(address, _)| address);
        match exported.or(table.fixed.keys().next()) {
            Some(address) => Err(DriverError::Exported { address: *address }),
            None => Ok(()),
        }
    }

    /// Releases all memory of handles to the driver and returns its bytes. The memory sleeps from now on,
    /// even if the driver refuses some releases. No work may use the memory. Refused frees of unmapped memory
    /// are deferred, as everywhere ([`Context::refused_frees`](crate::Context::refused_frees)). Costs two
    /// calls for each handle, and one for each further mapping of it.
    ///
    /// # Errors
    /// If the driver refuses to undo a mapping. No memory was released then.
    pub(crate) fn give_up(&mut self) -> Result<u64, DriverError> {
        let memory = self.memory;
        *self.asleep = true;
        for (start, bytes, _) in memory.mappings_of_handles(true) {
            let thing = RefusedFree::Mapping(start, bytes);
            memory.context.try_give_back(thing)?;
            memory.set_present(start, false);
            locked(&memory.table).calls.unmap += 1;
        }
        let given: Vec<_> = {
            let mut table = locked(&memory.table);
            let handles = table.handles.values_mut();
            handles
                .filter_map(|held| Some((held.memory.take()?, held.bytes, held.charge.take())))
                .collect()
        };
        let mut released = 0;
        for (handle, bytes, charge) in given {
            let thing = RefusedFree::Memory(handle);
            match memory.context.try_give_back(thing) {
                Ok(()) => locked(&memory.table).calls.release += 1,
                Err(_) => memory.context.defer_free_charged(thing, charge),
            }
            released += bytes;
        }
        Ok(released)
    }

    /// Maps memory again at all addresses that had some; the contents are undefined if the memory was
    /// released. Costs one call for each handle, one for each mapping, and one for each run of adjacent
    /// mappings.
    ///
    /// # Errors
    /// [`DriverError::Budget`], and if the driver refuses. Some of the memory is back then.
    pub(crate) fn bring_back(&mut self) -> Result<(), DriverError> {
        let memory = self.memory;
        memory.create_absent()?;
        for (start, bytes, handle) in memory.mappings_of_handles(false) {
            let physical = memory.memory_of(handle, bytes)?;
            memory.map_entered(start, bytes, physical)?;
            memory.set_present(start, true);
        }
        memory.access_all()
    }

    /// Wakes the memory, so that it can be used and calls of a paged allocator continue.
    pub(crate) fn wake(mut self) {
        *self.asleep = false;
    }
}
