//! Memory files hold the bytes of physical memory, so that one handle mapped at two addresses shows
//! the same bytes. The files are sparse, so a handle costs only the pages written.
//!
//! Memory that stays in the process is a part of one large file, so that a program may have any
//! number of such handles. Memory that may be exported has a [file of its own](OwnFile): its
//! descriptor is exported, its inode number tells another import that it is the same memory, and
//! its name says which device it is on.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use larder_cuda_abi::Code;

use super::POISON;
use super::holes::FreeRanges;
use super::physical::GRANULARITY;

/// Length of the file in bytes. Pages exist only once used.
const FILE_BYTES: u64 = 64 << 40;

/// The beginning of the name of an [`OwnFile`]; the device's ordinal follows.
const OWN_NAME: &str = "larder-stand-in-device-";

/// Maximum bytes of all freed parts that keep their pages: to fill them anew costs less than to
/// have the system free and map every page.
const KEPT_BYTES: u64 = 64 << 20;

/// The common file and its free parts.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    /// The file, created with the first part.
    file: Option<File>,
    /// Free parts without bytes.
    free: FreeRanges,
    /// Free parts with bytes of earlier memory: offset and length.
    kept: Vec<(u64, u64)>,
}

impl Default for MemoryFile {
    fn default() -> Self {
        Self {
            file: None,
            free: FreeRanges::new(0, FILE_BYTES),
            kept: Vec::new(),
        }
    }
}

impl MemoryFile {
    /// Takes a part, poisoned or all zero. Returns its offset.
    pub(crate) fn take(&mut self, bytes: u64, poisoned: bool) -> Option<u64> {
        if self.file.is_none() {
            self.file = Some(new_file("larder-stand-in", FILE_BYTES)?);
        }
        let file = self.file.as_ref()?;
        let kept = self.kept.iter().rposition(|part| part.1 == bytes);
        let offset = match kept {
            Some(index) => self.kept.swap_remove(index).0,
            None => self.free.take(bytes, GRANULARITY)?,
        };
        if poisoned {
            poison(file, offset, bytes);
        } else if kept.is_some() {
            empty(file, offset, bytes);
        }
        Some(offset)
    }

    /// Frees a part.
    pub(crate) fn give(&mut self, offset: u64, bytes: u64) {
        let kept: u64 = self.kept.iter().map(|part| part.1).sum();
        if kept + bytes <= KEPT_BYTES {
            self.kept.push((offset, bytes));
        } else if let Some(file) = &self.file {
            empty(file, offset, bytes);
            self.free.give(offset, bytes);
        }
    }

    /// Returns the descriptor, if the file exists.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        Some(self.file.as_ref()?.as_raw_fd())
    }
}

/// The file of one piece of physical memory that may be exported.
#[derive(Debug)]
pub(crate) struct OwnFile {
    file: File,
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    /// The file's inode number.
    pub(crate) inode: u64,
    /// Whether the memory counts as used by this process: true in the process that created it.
    pub(crate) counted: bool,
}

impl OwnFile {
    /// Creates a file that is all zero.
    pub(crate) fn new(device: usize, bytes: u64) -> Option<Self> {
        let file = new_file(&format!("{OWN_NAME}{device}"), bytes)?;
        let inode = file.metadata().ok()?.ino();
        Some(Self {
            file,
            device,
            bytes,
            inode,
            counted: true,
        })
    }

    /// Opens the file of a program's descriptor. The program keeps the descriptor.
    ///
    /// # Errors
    /// If the descriptor is not open, or does not belong to such a file.
    pub(crate) fn of(descriptor: i32) -> Result<Self, Code> {
        let refused = Code::INVALID_VALUE;
        let name = fs::read_link(format!("/proc/self/fd/{descriptor}")).map_err(|_| refused)?;
        let device = device_in(&name.to_string_lossy()).ok_or(refused)?;
        // SAFETY: the descriptor was open a moment ago, and the program keeps it open during the
        // call.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let file = File::from(borrowed.try_clone_to_owned().map_err(|_| refused)?);
        let data = file.metadata().map_err(|_| refused)?;
        if data.len() == 0 || !data.len().is_multiple_of(GRANULARITY) {
            return Err(refused);
        }
        Ok(Self {
            file,
            device,
            bytes: data.len(),
            inode: data.ino(),
            counted: false,
        })
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Returns a further descriptor of the file, which the caller owns.
    pub(crate) fn export(&self) -> Result<i32, Code> {
        let copy = self.file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)?;
        Ok(copy.into_raw_fd())
    }

    /// Fills a new file with [`POISON`].
    pub(crate) fn poison(&self) {
        poison(&self.file, 0, self.bytes);
    }
}

/// Returns the device in the name of an [`OwnFile`]; `None` for another file.
fn device_in(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("/memfd:")?.strip_prefix(OWN_NAME)?;
    rest.split(' ').next()?.parse().ok()
}

/// Fills new memory through its file, since the memory is not mapped yet.
fn poison(file: &File, offset: u64, bytes: u64) {
    let piece = vec![POISON; GRANULARITY as usize];
    for at in (0..bytes).step_by(piece.len()) {
        // A failed fill leaves zeros, which are valid memory.
        let _ = file.write_all_at(&piece, offset + at);
    }
}

/// Discards the bytes of a part, which then reads as zero.
fn empty(file: &File, offset: u64, bytes: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open, and no memory uses this part of the file.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) };
}

fn new_file(name: &str, bytes: u64) -> Option<File> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a C string that lives during the call.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the descriptor was just created, and nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    file.set_len(bytes).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_zero_or_poisoned_also_when_they_were_used_before() {
        let mut memory = MemoryFile::default();
        for poisoned in [false, true, false, true] {
            let offset = memory.take(GRANULARITY, poisoned).unwrap();
            let file = memory.file.as_ref().unwrap();
            let mut byte = [1];
            file.read_exact_at(&mut byte, offset).unwrap();
            assert_eq!(byte, [if poisoned { POISON } else { 0 }]);
            file.write_all_at(&[7], offset).unwrap();
            memory.give(offset, GRANULARITY);
        }
    }

    #[test]
    fn of_parts_that_are_given_back_few_bytes_stay() {
        let mut memory = MemoryFile::default();
        let many = 3 * KEPT_BYTES / GRANULARITY;
        for _ in 0..2 {
            let parts: Vec<u64> = (0..many)
                .map(|_| memory.take(GRANULARITY, true).unwrap())
                .collect();
            for part in parts {
                memory.give(part, GRANULARITY);
            }
            let data = memory.file.as_ref().unwrap().metadata().unwrap();
            assert_eq!(data.blocks() * 512, KEPT_BYTES);
        }
    }

    #[test]
    fn a_file_says_whose_memory_it_is() {
        let mine = OwnFile::new(3, GRANULARITY).unwrap();
        let found = OwnFile::of(mine.descriptor()).unwrap();
        assert_eq!((found.device, found.bytes), (3, GRANULARITY));
        assert_eq!((found.inode, found.counted), (mine.inode, false));
        let mut common = MemoryFile::default();
        common.take(GRANULARITY, false).unwrap();
        let null = File::open("/dev/null").unwrap();
        for other in [common.descriptor().unwrap(), null.as_raw_fd(), 1 << 20, -1] {
            assert_eq!(OwnFile::of(other).err(), Some(Code::INVALID_VALUE));
        }
    }
}
