//! Physical memory of the virtual memory calls, and the handles that name it. Its bytes are in
//! [`files`](super::files).
//!
//! Memory counts against its device in the process that created it, as long as that process holds it.
//! Another process that imports the memory does not count it, even after the first has released it; a
//! descriptor that was never imported does not count either.
//!
//! V1 `Physical::holders` counts the handles and mappings of a memory; the last one gives the memory back.
//! While `Handle::mappings` is not 0, a released handle stays known, so that a mapping can name the handle it
//! was made with.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use larder_cuda_abi::constants::MEM_HANDLE_TYPE_NONE;
use larder_cuda_abi::{AllocFlags, Code};

use super::files::{Store, device_file, device_of, identity};
use super::{MemoryId, Space};

/// Sizes of physical memory, of reservations and of mappings are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// One piece of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) handle_types: u32,
    pub(crate) flags: AllocFlags,
    store: Store,
    /// Whether it counts against the device. Memory of another process counts there.
    counted: bool,
    holders: u64,
}

/// A handle.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) memory: MemoryId,
    /// References that the program still has to release.
    pub(crate) references: u64,
    pub(crate) mappings: u64,
}

/// The properties of a physical memory that the program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) handle_types: u32,
    pub(crate) flags: AllocFlags,
}

impl Space {
    /// Makes physical memory, and `handle` its handle.
    pub(crate) fn create(&mut self, handle: u64, wanted: Wanted) -> Result<(), Code> {
        if wanted.bytes == 0 || !wanted.bytes.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        self.usage.take(wanted.device, wanted.bytes)?;
        let store = match wanted.handle_types {
            MEM_HANDLE_TYPE_NONE => self.vmm.files.part(wanted.bytes),
            _ => device_file(wanted.device, wanted.bytes),
        };
        let Some(store) = store else {
            self.usage.give(wanted.device, wanted.bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        if self.poison {
            self.vmm.files.poison(&store, wanted.bytes);
        }
        self.adopt(handle, wanted, store, true);
        Ok(())
    }

    /// Adds a store as memory and gives it its first handle.
    fn adopt(&mut self, handle: u64, wanted: Wanted, store: Store, counted: bool) {
        let memory = self.next_id();
        let physical = Physical {
            device: wanted.device,
            bytes: wanted.bytes,
            handle_types: wanted.handle_types,
            flags: wanted.flags,
            store,
            counted,
            holders: 0,
        };
        self.vmm.memories.insert(memory, physical);
        self.new_handle(handle, memory);
    }

    fn new_handle(&mut self, handle: u64, memory: MemoryId) {
        self.hold(memory);
        let known = Handle {
            memory,
            references: 1,
            mappings: 0,
        };
        self.vmm.handles.insert(handle, known);
    }

    fn hold(&mut self, memory: MemoryId) {
        if let Some(physical) = self.vmm.memories.get_mut(&memory) {
            physical.holders += 1;
        }
    }

    /// Removes a holder of a memory (V1).
    fn let_go(&mut self, memory: MemoryId) {
        let Some(physical) = self.vmm.memories.get_mut(&memory) else {
            return;
        };
        physical.holders -= 1;
        if physical.holders > 0 {
            return;
        }
        if physical.counted {
            let (device, bytes) = (physical.device, physical.bytes);
            self.usage.give(device, bytes);
        }
        if let Some(physical) = self.vmm.memories.remove(&memory) {
            self.vmm.files.close(&physical.store, physical.bytes);
        }
        self.shadows.remove(&memory);
    }

    /// A handle that was not released.
    fn handle(&self, handle: u64) -> Result<&Handle, Code> {
        let known = self.vmm.handles.get(&handle).ok_or(Code::INVALID_VALUE)?;
        if known.references == 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(known)
    }

    /// The memory of a handle that was not released.
    pub(crate) fn physical(&self, handle: u64) -> Result<(MemoryId, &Physical), Code> {
        let memory = self.handle(handle)?.memory;
        let physical = self.vmm.memories.get(&memory).ok_or(Code::UNKNOWN)?;
        Ok((memory, physical))
    }

    /// Bytes of the memory of each handle that was not released.
    pub(crate) fn handle_sizes(&self) -> impl Iterator<Item = u64> {
        let held = |handle: &&Handle| handle.references > 0;
        let memories = self.vmm.handles.values().filter(held);
        memories.filter_map(|handle| Some(self.vmm.memories.get(&handle.memory)?.bytes))
    }

    /// Descriptor and offset of a memory's bytes, for mapping it.
    pub(crate) fn file_of(&self, memory: MemoryId) -> Option<(i32, u64)> {
        let physical = self.vmm.memories.get(&memory)?;
        self.vmm.files.place(&physical.store)
    }

    /// Adds a reference to a handle.
    pub(crate) fn retain(&mut self, handle: u64) -> Result<(), Code> {
        let known = self
            .vmm
            .handles
            .get_mut(&handle)
            .ok_or(Code::INVALID_VALUE)?;
        known.references += 1;
        Ok(())
    }

    /// Removes a reference of a handle. Memory that is mapped stays.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Code> {
        self.handle(handle)?;
        if let Some(known) = self.vmm.handles.get_mut(&handle) {
            known.references -= 1;
        }
        self.forget_handle(handle);
        Ok(())
    }

    /// Counts a new mapping made with the handle.
    pub(crate) fn add_mapping(&mut self, handle: u64) {
        if let Some(known) = self.vmm.handles.get_mut(&handle) {
            known.mappings += 1;
        }
    }

    /// Uncounts a mapping made with the handle.
    pub(crate) fn remove_mapping(&mut self, handle: u64) {
        if let Some(known) = self.vmm.handles.get_mut(&handle) {
            known.mappings -= 1;
        }
        self.forget_handle(handle);
    }

    fn forget_handle(&mut self, handle: u64) {
        let over = |known: &Handle| known.references == 0 && known.mappings == 0;
        if self.vmm.handles.get(&handle).is_some_and(over)
            && let Some(known) = self.vmm.handles.remove(&handle)
        {
            self.let_go(known.memory);
        }
    }

    /// A new file descriptor of a handle's memory; the caller owns it.
    pub(crate) fn export(&self, handle: u64, handle_type: u32) -> Result<i32, Code> {
        let (_, physical) = self.physical(handle)?;
        if physical.handle_types & handle_type == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let Store::File(file, _) = &physical.store else {
            return Err(Code::INVALID_VALUE);
        };
        // SAFETY: the store owns the descriptor, so it is open.
        let copy = unsafe { libc::dup(file.as_raw_fd()) };
        if copy < 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        Ok(copy)
    }

    /// Makes `handle` a handle of the memory behind a file descriptor; the caller keeps the descriptor.
    /// Memory that this process has already stays one memory; memory of another process counts there.
    pub(crate) fn import(
        &mut self,
        handle: u64,
        descriptor: i32,
        handle_type: u32,
        devices: usize,
    ) -> Result<(), Code> {
        let name = fs::read_link(format!("/proc/self/fd/{descriptor}"))
            .map_err(|_| Code::INVALID_VALUE)?;
        let device = device_of(&name.to_string_lossy()).ok_or(Code::INVALID_VALUE)?;
        if device >= devices {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: `dup` takes any number; the file it gives is ours alone.
        let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a descriptor that was just made for us.
        let file = unsafe { OwnedFd::from_raw_fd(copy) };
        let (bytes, inode) = identity(&file).ok_or(Code::INVALID_VALUE)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        let known = self
            .vmm
            .memories
            .iter()
            .find(|(_, physical)| matches!(physical.store, Store::File(_, known) if known == inode))
            .map(|(memory, _)| *memory);
        match known {
            Some(memory) => self.new_handle(handle, memory),
            None => {
                let wanted = Wanted {
                    device,
                    bytes,
                    handle_types: handle_type,
                    flags: AllocFlags::default(),
                };
                self.adopt(handle, wanted, Store::File(file, inode), false);
            }
        }
        Ok(())
    }
}
