//! The memory file that holds the bytes of all physical memory, so that one handle mapped at two
//! addresses is truly one memory, and a program may have as many handles as it likes. It is sparse:
//! a handle costs what is written of it.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use super::POISON;
use super::holes::Holes;
use super::physical::GRANULARITY;

/// Length of the file; nothing of it exists before it is used.
const FILE_BYTES: u64 = 64 << 40;

/// The file and its free parts.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    /// Created with the first part.
    file: Option<File>,
    free: Holes,
}

impl Default for MemoryFile {
    fn default() -> Self {
        Self {
            file: None,
            free: Holes::new(0, FILE_BYTES),
        }
    }
}

impl MemoryFile {
    /// Takes a part, all zero; its offset.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        if self.file.is_none() {
            self.file = Some(new_file()?);
        }
        self.free.take(bytes, GRANULARITY)
    }

    /// The descriptor, once there is a part.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        Some(self.file.as_ref()?.as_raw_fd())
    }

    /// Takes a part back; its bytes are gone.
    pub(crate) fn give(&mut self, offset: u64, bytes: u64) {
        if let Some(file) = self.descriptor() {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is open, and no memory uses this part of the file any more.
            unsafe { libc::fallocate(file, mode, offset as i64, bytes as i64) };
            self.free.give(offset, bytes);
        }
    }

    /// Fills a new part, through the file: nothing is mapped yet.
    pub(crate) fn poison(&self, offset: u64, bytes: u64) {
        let Some(file) = &self.file else {
            return;
        };
        let piece = vec![POISON; GRANULARITY as usize];
        for at in (0..bytes).step_by(piece.len()) {
            // A failed fill leaves zeros, which is valid memory.
            let _ = file.write_all_at(&piece, offset + at);
        }
    }
}

fn new_file() -> Option<File> {
    // SAFETY: the name is a C string that lives as long as the program.
    let descriptor = unsafe { libc::memfd_create(c"larder-stand-in".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: a descriptor that was just made for us.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    file.set_len(FILE_BYTES).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_zero_also_when_they_were_used_before() {
        let mut memory = MemoryFile::default();
        let offset = memory.take(GRANULARITY).unwrap();
        memory.poison(offset, GRANULARITY);
        let read = |memory: &MemoryFile| {
            let mut byte = [0];
            let file = memory.file.as_ref().unwrap();
            file.read_exact_at(&mut byte, offset).unwrap();
            byte[0]
        };
        assert_eq!(read(&memory), POISON);
        memory.give(offset, GRANULARITY);
        assert_eq!(read(&memory), 0);
    }
}
