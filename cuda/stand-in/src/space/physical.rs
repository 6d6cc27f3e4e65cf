//! Physical memory of the virtual memory calls: a memory file each, and the handles that name it.
//!
//! The file is empty until somebody writes, so a handle costs what is used of it. Its name says whose
//! memory it is: a process that imports the descriptor reads the device there.
//!
//! Memory counts against its device in the process that created it, as long as that process holds it.
//! Another process that imports it does not count it again, nor go on counting when the first lets
//! go; a descriptor that nobody imported does not count either.
//!
//! V1 `Physical::holders` counts the handles and mappings of a memory; with the last the file is
//! closed and the memory given back. `Handle::mappings` keeps a released handle's number known, so
//! that a mapping can still tell which handle it was made with.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use larder_cuda_abi::{AllocFlags, Code};

use super::{MemoryId, POISON, Space};

/// Sizes of physical memory, of reservations and of mappings are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// What the names of our memory files begin with; the device's ordinal follows.
const FILE_NAME: &str = "larder-stand-in-device-";

/// One piece of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) handle_types: u32,
    pub(crate) flags: AllocFlags,
    file: OwnedFd,
    /// Device and number of the file, by which it is known again.
    inode: (u64, u64),
    /// Whether it counts against the device. Memory of another process counts there.
    counted: bool,
    holders: u64,
}

/// A handle.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) memory: MemoryId,
    /// Releases that are owed.
    pub(crate) references: u64,
    pub(crate) mappings: u64,
}

/// What `cuMemCreate` is asked for.
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
        self.ledger.take(wanted.device, wanted.bytes)?;
        let Some((file, inode)) = new_file(wanted.device, wanted.bytes) else {
            self.ledger.give(wanted.device, wanted.bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        if self.poison {
            poison(&file, wanted.bytes);
        }
        self.adopt(handle, wanted, file, inode, true);
        Ok(())
    }

    /// Takes a file up as memory that nothing holds yet, and gives it its first handle.
    fn adopt(
        &mut self,
        handle: u64,
        wanted: Wanted,
        file: OwnedFd,
        inode: (u64, u64),
        counted: bool,
    ) {
        let memory = self.next_id();
        let physical = Physical {
            device: wanted.device,
            bytes: wanted.bytes,
            handle_types: wanted.handle_types,
            flags: wanted.flags,
            file,
            inode,
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

    /// One holder less (V1).
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
            self.ledger.give(device, bytes);
        }
        self.vmm.memories.remove(&memory);
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

    /// The descriptor of a memory's file, for mapping it.
    pub(crate) fn file_of(&self, memory: MemoryId) -> Option<i32> {
        let physical = self.vmm.memories.get(&memory)?;
        Some(physical.file.as_raw_fd())
    }

    /// One reference more.
    pub(crate) fn retain(&mut self, handle: u64) -> Result<(), Code> {
        let known = self
            .vmm
            .handles
            .get_mut(&handle)
            .ok_or(Code::INVALID_VALUE)?;
        known.references += 1;
        Ok(())
    }

    /// One reference less. Memory that is mapped stays.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Code> {
        self.handle(handle)?;
        if let Some(known) = self.vmm.handles.get_mut(&handle) {
            known.references -= 1;
        }
        self.bury_handle(handle);
        Ok(())
    }

    /// A mapping made with the handle came into being.
    pub(crate) fn mapping_came(&mut self, handle: u64) {
        if let Some(known) = self.vmm.handles.get_mut(&handle) {
            known.mappings += 1;
        }
    }

    /// It went.
    pub(crate) fn mapping_went(&mut self, handle: u64) {
        if let Some(known) = self.vmm.handles.get_mut(&handle) {
            known.mappings -= 1;
        }
        self.bury_handle(handle);
    }

    fn bury_handle(&mut self, handle: u64) {
        let over = |known: &Handle| known.references == 0 && known.mappings == 0;
        if self.vmm.handles.get(&handle).is_some_and(over)
            && let Some(known) = self.vmm.handles.remove(&handle)
        {
            self.let_go(known.memory);
        }
    }

    /// A new descriptor of a handle's memory, which is the caller's.
    pub(crate) fn export(&self, handle: u64, handle_type: u32) -> Result<i32, Code> {
        let (_, physical) = self.physical(handle)?;
        if physical.handle_types & handle_type == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: a descriptor of our own.
        let copy = unsafe { libc::dup(physical.file.as_raw_fd()) };
        if copy < 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        Ok(copy)
    }

    /// Makes `handle` a handle of the memory behind a descriptor, which stays the caller's. Memory
    /// that this process has already is the same memory; another process's counts there.
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
            .find(|(_, physical)| physical.inode == inode)
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
                self.adopt(handle, wanted, file, inode, false);
            }
        }
        Ok(())
    }
}

/// The device that a memory file's name tells; none if it is no memory of a stand-in.
fn device_of(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("/memfd:")?.strip_prefix(FILE_NAME)?;
    rest.split(' ').next()?.parse().ok()
}

fn new_file(device: usize, bytes: u64) -> Option<(OwnedFd, (u64, u64))> {
    let name = std::ffi::CString::new(format!("{FILE_NAME}{device}")).ok()?;
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: a descriptor that was just made for us.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let length = i64::try_from(bytes).ok()?;
    // SAFETY: a file of our own.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
        return None;
    }
    let (_, inode) = identity(&file)?;
    Some((file, inode))
}

/// Length and identity of a file.
fn identity(file: &OwnedFd) -> Option<(u64, (u64, u64))> {
    use std::os::unix::fs::MetadataExt;

    let file = fs::File::from(file.try_clone().ok()?);
    let data = file.metadata().ok()?;
    Some((data.len(), (data.dev(), data.ino())))
}

/// Fills a new file, through the file: nothing is mapped yet.
fn poison(file: &OwnedFd, bytes: u64) {
    use std::os::unix::fs::FileExt;

    let piece = vec![POISON; GRANULARITY as usize];
    let Ok(file) = file.try_clone().map(fs::File::from) else {
        return;
    };
    for at in (0..bytes).step_by(piece.len()) {
        // Memory that stays zero for lack of room is still memory.
        let _ = file.write_all_at(&piece, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_tells_whose_memory_it_is() {
        let (file, inode) = new_file(3, GRANULARITY).unwrap();
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let name = fs::read_link(link).unwrap();
        assert_eq!(device_of(&name.to_string_lossy()), Some(3));
        assert_eq!(identity(&file), Some((GRANULARITY, inode)));
        assert_eq!(device_of("/memfd:other (deleted)"), None);
        assert_eq!(device_of("/dev/null"), None);
    }
}
