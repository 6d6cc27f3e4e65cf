//! Memory files: where the bytes of physical memory are.
//!
//! Memory that stays in the process is a part of one large file, so that a program may have as many
//! handles as it likes and no more than one descriptor. Memory that may be exported has a file of its
//! own. All are sparse: a handle costs what is written of it.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use super::POISON;
use super::holes::Holes;
use super::physical::GRANULARITY;

/// Length of the common file; nothing of it exists before it is used.
const COMMON_BYTES: u64 = 64 << 40;

/// The beginning of the names of the stand-in's memory files; the device's ordinal follows.
const FILE_NAME: &str = "larder-stand-in-device-";

/// Device and number of a file, by which it is known again.
pub(crate) type Inode = (u64, u64);

/// Where the bytes of one physical memory are.
#[derive(Debug)]
pub(crate) enum Store {
    /// The bytes are in the common file, from this offset on.
    Part(u64),
    /// The bytes are in a file of their own.
    File(OwnedFd, Inode),
}

/// The common file.
#[derive(Debug)]
pub(crate) struct Files {
    /// The file, created with the first part.
    common: Option<OwnedFd>,
    free: Holes,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            common: None,
            free: Holes::new(0, COMMON_BYTES),
        }
    }
}

impl Files {
    /// A part of the common file, all zero.
    pub(crate) fn part(&mut self, bytes: u64) -> Option<Store> {
        if self.common.is_none() {
            self.common = new_file("larder-stand-in", COMMON_BYTES);
        }
        self.common.as_ref()?;
        Some(Store::Part(self.free.take(bytes, GRANULARITY)?))
    }

    /// Descriptor and offset of a store.
    pub(crate) fn place(&self, store: &Store) -> Option<(i32, u64)> {
        match store {
            Store::Part(offset) => Some((self.common.as_ref()?.as_raw_fd(), *offset)),
            Store::File(file, _) => Some((file.as_raw_fd(), 0)),
        }
    }

    /// Takes a store back; its bytes are gone.
    pub(crate) fn close(&mut self, store: &Store, bytes: u64) {
        if let (Store::Part(offset), Some(common)) = (store, &self.common) {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is open, and no memory uses this part of the file any more.
            unsafe {
                libc::fallocate(common.as_raw_fd(), mode, *offset as i64, bytes as i64);
            }
            self.free.give(*offset, bytes);
        }
    }

    /// Fills a new store, through its file: nothing is mapped yet.
    pub(crate) fn poison(&self, store: &Store, bytes: u64) {
        let file = match store {
            Store::Part(_) => self.common.as_ref(),
            Store::File(file, _) => Some(file),
        };
        let Some(Ok(file)) = file.map(|file| file.try_clone().map(fs::File::from)) else {
            return;
        };
        let start = self.place(store).map_or(0, |(_, offset)| offset);
        let piece = vec![POISON; GRANULARITY as usize];
        for at in (0..bytes).step_by(piece.len()) {
            // A failed fill leaves zeros, which is valid memory.
            let _ = file.write_all_at(&piece, start + at);
        }
    }
}

/// Creates a file for the memory of a device. Its name has the device's ordinal, which a process that imports
/// the descriptor reads.
pub(crate) fn device_file(device: usize, bytes: u64) -> Option<Store> {
    let file = new_file(&format!("{FILE_NAME}{device}"), bytes)?;
    let (_, inode) = identity(&file)?;
    Some(Store::File(file, inode))
}

/// The device in a memory file's name; `None` if the file is not a stand-in's.
pub(crate) fn device_of(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("/memfd:")?.strip_prefix(FILE_NAME)?;
    rest.split(' ').next()?.parse().ok()
}

/// Length and identity of a file.
pub(crate) fn identity(file: &OwnedFd) -> Option<(u64, Inode)> {
    let file = fs::File::from(file.try_clone().ok()?);
    let data = file.metadata().ok()?;
    Some((data.len(), (data.dev(), data.ino())))
}

fn new_file(name: &str, bytes: u64) -> Option<OwnedFd> {
    let name = CString::new(name).ok()?;
    // SAFETY: `name` is a C string that lives during the call.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: a descriptor that was just made for us.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let length = i64::try_from(bytes).ok()?;
    // SAFETY: the descriptor is open and owned by `file`.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
        return None;
    }
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_tells_whose_memory_it_is() {
        let Some(Store::File(file, inode)) = device_file(3, GRANULARITY) else {
            panic!("a file");
        };
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let name = fs::read_link(link).unwrap();
        assert_eq!(device_of(&name.to_string_lossy()), Some(3));
        assert_eq!(identity(&file), Some((GRANULARITY, inode)));
        assert_eq!(device_of("/memfd:other (deleted)"), None);
        assert_eq!(device_of("/memfd:larder-stand-in (deleted)"), None);
        assert_eq!(device_of("/dev/null"), None);
    }

    #[test]
    fn parts_are_zero_also_when_they_were_used_before() {
        let mut files = Files::default();
        let store = files.part(GRANULARITY).unwrap();
        files.poison(&store, GRANULARITY);
        let (_, offset) = files.place(&store).unwrap();
        let read = |files: &Files| {
            let common = files.common.as_ref().unwrap().try_clone().unwrap();
            let mut byte = [0];
            fs::File::from(common)
                .read_exact_at(&mut byte, offset)
                .unwrap();
            byte[0]
        };
        assert_eq!(read(&files), POISON);
        files.close(&store, GRANULARITY);
        assert_eq!(read(&files), 0);
    }
}
