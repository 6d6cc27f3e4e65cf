//! Physical memory of the virtual memory calls, by handle. Its bytes are in [memory
//! files](super::file).
//!
//! SPACE4 a handle is known until it is released and has no mapping left. The memory is known as
//! long as any of its handles is. During that time the memory counts against its device, but only
//! in the process that created it: imported memory and descriptors do not count, even after that
//! process has released the memory.

use std::sync::Arc;

use larder_cuda_abi::Code;

use super::file::OwnFile;
use super::{BlockKind, MemoryId, Space};

/// Unit of the sizes of physical memory, reservations and mappings, in bytes.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// One piece of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) memory: MemoryId,
    store: Store,
    /// Number of times that the program still has to release the handle.
    held: u32,
    pub(crate) mappings: u64,
}

/// Location of the bytes of physical memory.
#[derive(Clone, Debug)]
enum Store {
    /// In the common file, from this offset on.
    Part(u64),
    /// In a separate file, shared by all handles of the memory in this process.
    Own(Arc<OwnFile>),
}

/// A program's request for physical memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhysicalRequest {
    pub(crate) device: usize,
    /// Whether the memory may be exported.
    pub(crate) shareable: bool,
}

impl Space {
    /// Creates physical memory of a device, with handle `handle`.
    pub(crate) fn create(
        &mut self,
        handle: u64,
        wanted: PhysicalRequest,
        bytes: u64,
    ) -> Result<(), Code> {
        let device = wanted.device;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        self.usage.take(device, bytes)?;
        let Some(store) = self.new_store(wanted, bytes) else {
            self.usage.give(device, bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        let memory = self.next_id();
        self.add_handle(handle, device, bytes, memory, store);
        Ok(())
    }

    fn new_store(&mut self, wanted: PhysicalRequest, bytes: u64) -> Option<Store> {
        if wanted.shareable {
            let own = OwnFile::new(wanted.device, bytes)?;
            if self.poison {
                own.poison();
            }
            return Some(Store::Own(Arc::new(own)));
        }
        let offset = self.vmm.file.take(bytes, self.poison)?;
        Some(Store::Part(offset))
    }

    fn add_handle(
        &mut self,
        handle: u64,
        device: usize,
        bytes: u64,
        memory: MemoryId,
        store: Store,
    ) {
        let physical = Physical {
            device,
            bytes,
            memory,
            store,
            held: 1,
            mappings: 0,
        };
        self.vmm.handles.insert(handle, physical);
    }

    /// Returns a descriptor of a handle's memory, which the caller owns.
    pub(crate) fn export(&mut self, handle: u64) -> Result<i32, Code> {
        match &self.physical(handle)?.store {
            Store::Own(own) => own.export(),
            Store::Part(_) => Err(Code::INVALID_VALUE),
        }
    }

    /// Makes `handle` a handle of a descriptor's memory. The caller keeps the descriptor. Memory
    /// that this process has already is not added a second time.
    pub(crate) fn import(
        &mut self,
        handle: u64,
        descriptor: i32,
        devices: usize,
    ) -> Result<(), Code> {
        let own = OwnFile::of(descriptor)?;
        if own.device >= devices {
            return Err(Code::INVALID_VALUE);
        }
        let (device, bytes) = (own.device, own.bytes);
        let known = self.vmm.handles.values().find_map(|physical| {
            let is_it = |known: &&Arc<OwnFile>| known.inode == own.inode;
            match &physical.store {
                Store::Own(known) => Some(known).filter(is_it),
                Store::Part(_) => None,
            }
            .map(|known| (physical.memory, known.clone()))
        });
        let (memory, own) = known.unwrap_or_else(|| (self.next_id(), Arc::new(own)));
        self.add_handle(handle, device, bytes, memory, Store::Own(own));
        Ok(())
    }

    /// Returns the descriptor and the offset of the bytes of a handle's memory.
    pub(crate) fn place_of(&self, handle: u64) -> Option<(i32, u64)> {
        match &self.vmm.handles.get(&handle)?.store {
            Store::Part(offset) => Some((self.vmm.file.descriptor()?, *offset)),
            Store::Own(own) => Some((own.descriptor(), 0)),
        }
    }

    /// Returns the memory of a handle that the program holds.
    pub(crate) fn physical(&mut self, handle: u64) -> Result<&mut Physical, Code> {
        match self.vmm.handles.get_mut(&handle) {
            Some(physical) if physical.held > 0 => Ok(physical),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Returns the bytes of the memory of each handle that the program holds.
    pub(crate) fn handle_sizes(&self) -> impl Iterator<Item = u64> {
        let held = |physical: &&Physical| physical.held > 0;
        let held = self.vmm.handles.values().filter(held);
        held.map(|physical| physical.bytes)
    }

    /// Returns the handle of the memory that is mapped at an address. The program has to release
    /// the handle once more.
    pub(crate) fn retain(&mut self, at: u64) -> Result<u64, Code> {
        let handle = match self.block_at(at).map(|(_, block)| &block.kind) {
            Some(BlockKind::Mapped { handle, .. }) => *handle,
            _ => return Err(Code::INVALID_VALUE),
        };
        let physical = self.vmm.handles.get_mut(&handle);
        physical.ok_or(Code::INVALID_VALUE)?.held += 1;
        Ok(handle)
    }

    /// Releases a handle once. Mapped memory stays.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Code> {
        self.physical(handle)?.held -= 1;
        self.forget_handle(handle);
        Ok(())
    }

    /// Counts one mapping fewer for the handle.
    pub(crate) fn remove_mapping(&mut self, handle: u64) {
        if let Some(physical) = self.vmm.handles.get_mut(&handle) {
            physical.mappings -= 1;
        }
        self.forget_handle(handle);
    }

    /// Frees the memory if no handle or mapping is left (SPACE4).
    fn forget_handle(&mut self, handle: u64) {
        let over = |physical: &Physical| physical.held == 0 && physical.mappings == 0;
        if !self.vmm.handles.get(&handle).is_some_and(over) {
            return;
        }
        let Some(physical) = self.vmm.handles.remove(&handle) else {
            return;
        };
        let counted = match physical.store {
            Store::Part(offset) => {
                self.vmm.file.give(offset, physical.bytes);
                true
            }
            Store::Own(own) => match Arc::into_inner(own) {
                Some(own) => own.counted,
                // Another handle still refers to the memory.
                None => return,
            },
        };
        if counted {
            self.usage.give(physical.device, physical.bytes);
        }
        self.shadows.remove(&physical.memory);
    }
}
