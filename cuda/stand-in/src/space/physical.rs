//! Physical memory of the virtual memory calls, by the handle that names it. Its bytes are parts of
//! one [memory file](super::file).
//!
//! SPACE4 a handle and its memory are known until the handle is released and no mapping made with
//! it is left; so long the memory counts against its device.

use larder_cuda_abi::Code;

use super::{MemoryId, Space};

/// Sizes of physical memory, of reservations and of mappings are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// One piece of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) memory: MemoryId,
    /// Where its bytes begin in the file.
    pub(crate) offset: u64,
    /// Whether the program has released the handle.
    released: bool,
    pub(crate) mappings: u64,
}

impl Space {
    /// Makes physical memory of a device, and `handle` its handle.
    pub(crate) fn create(&mut self, handle: u64, device: usize, bytes: u64) -> Result<(), Code> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        self.usage.take(device, bytes)?;
        let Some(offset) = self.vmm.file.take(bytes) else {
            self.usage.give(device, bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        if self.poison {
            self.vmm.file.poison(offset, bytes);
        }
        let physical = Physical {
            device,
            bytes,
            memory: self.next_id(),
            offset,
            released: false,
            mappings: 0,
        };
        self.vmm.handles.insert(handle, physical);
        Ok(())
    }

    /// The memory of a handle that was not released.
    pub(crate) fn physical(&mut self, handle: u64) -> Result<&mut Physical, Code> {
        match self.vmm.handles.get_mut(&handle) {
            Some(physical) if !physical.released => Ok(physical),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Bytes of the memory of each handle that was not released.
    pub(crate) fn handle_sizes(&self) -> impl Iterator<Item = u64> {
        let held = |physical: &&Physical| !physical.released;
        let held = self.vmm.handles.values().filter(held);
        held.map(|physical| physical.bytes)
    }

    /// Releases a handle. Memory that is mapped stays.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Code> {
        self.physical(handle)?.released = true;
        self.forget_handle(handle);
        Ok(())
    }

    /// Uncounts a mapping made with the handle.
    pub(crate) fn remove_mapping(&mut self, handle: u64) {
        if let Some(physical) = self.vmm.handles.get_mut(&handle) {
            physical.mappings -= 1;
        }
        self.forget_handle(handle);
    }

    /// Gives the memory back if nothing holds it any more (SPACE4).
    fn forget_handle(&mut self, handle: u64) {
        let over = |physical: &Physical| physical.released && physical.mappings == 0;
        if self.vmm.handles.get(&handle).is_some_and(over)
            && let Some(physical) = self.vmm.handles.remove(&handle)
        {
            self.usage.give(physical.device, physical.bytes);
            self.vmm.file.give(physical.offset, physical.bytes);
            self.shadows.remove(&physical.memory);
        }
    }
}
