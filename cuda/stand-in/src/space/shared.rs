//! Memory counted together with other processes, in a file.
//!
//! The file holds how much memory each device has and, for every process that joined, how much of
//! each device's memory it uses. A slot belongs to the process with its PID and start time, so that
//! a process with a reused PID is not mistaken for the owner. The next process that reads the file
//! frees the slots of processes that have ended.
//!
//! All processes must be in the same PID namespace: in another one, living processes look dead. A
//! child made by `fork` alone is another process and counts separately.
//!
//! The file is read and written, not mapped, so that a file that another program truncates or
//! overwrites gives an error instead of a fault.
//!
//! SPACE7 the file is read and changed only under its lock, which the system releases when the
//! process ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use larder_cuda_abi::Code;

/// The magic number at the start of the file; its last digit is the version of the layout.
const MAGIC: u64 = u64::from_ne_bytes(*b"larder-1");

/// Maximum number of devices in the file.
pub(crate) const DEVICES: usize = 16;

/// Maximum number of processes in the file.
const SLOTS: usize = 256;

/// Words of the header: the magic number, and the memory of each device, or 0 if not set.
const HEADER_WORDS: usize = 1 + DEVICES;

/// Words of a slot: PID, start time, bytes used of each device. A slot with a PID of 0 is free.
const SLOT_WORDS: usize = 2 + DEVICES;

const WORDS: usize = HEADER_WORDS + SLOTS * SLOT_WORDS;

/// This process's slot in a shared file.
#[derive(Debug)]
pub(crate) struct SharedFile {
    file: File,
    slot: usize,
}

/// Contents of the file.
struct UsageTable {
    words: Vec<u64>,
}

/// The file, locked until this is dropped (SPACE7).
struct LockedFile<'a> {
    file: &'a File,
}

impl<'a> LockedFile<'a> {
    fn new(file: &'a File) -> io::Result<Self> {
        loop {
            // SAFETY: the descriptor is open as long as `file` is borrowed.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Self { file });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl Drop for LockedFile<'_> {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open as long as `self.file` is borrowed.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl UsageTable {
    /// Reads the table; an empty file becomes a new one. The file gets its length first, so that a
    /// process that is killed while it writes leaves zeros instead of a damaged file.
    fn read(file: &File) -> io::Result<Self> {
        let foreign =
            || io::Error::other("it is not a file of the stand-in driver, or it is damaged");
        let whole = (WORDS * 8) as u64;
        let bytes = file.metadata()?.len();
        if bytes == 0 {
            file.set_len(whole)?;
        } else if bytes != whole {
            return Err(foreign());
        }
        let mut raw = vec![0; WORDS * 8];
        file.read_exact_at(&mut raw, 0)?;
        let (whole, _) = raw.as_chunks::<8>();
        let words = whole.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let mut table = Self { words };
        match table.word(0) {
            MAGIC => {}
            0 if table.words.iter().all(|word| *word == 0) => table.set(0, MAGIC),
            _ => return Err(foreign()),
        }
        Ok(table)
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let raw: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        file.write_all_at(&raw, 0)
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    fn set(&mut self, index: usize, value: u64) {
        if let Some(word) = self.words.get_mut(index) {
            *word = value;
        }
    }

    fn total(&self, device: usize) -> u64 {
        self.word(1 + device)
    }

    /// Returns the bytes of a device that one process uses.
    fn used(&self, slot: usize, device: usize) -> u64 {
        self.word(place(slot) + 2 + device)
    }

    fn free(&self, device: usize) -> u64 {
        let used = (0..SLOTS).fold(0_u64, |sum, slot| {
            sum.saturating_add(self.used(slot, device))
        });
        self.total(device).saturating_sub(used)
    }

    fn clear(&mut self, slot: usize) {
        for index in place(slot)..place(slot) + SLOT_WORDS {
            self.set(index, 0);
        }
    }

    /// Frees the slots of processes that have ended.
    fn reclaim_dead_slots(&mut self) {
        for slot in 0..SLOTS {
            let (process, start) = (self.word(place(slot)), self.word(place(slot) + 1));
            if process != 0 && start_of(process) != Some(start) {
                self.clear(slot);
            }
        }
    }
}

/// Returns the index of a slot's first word.
fn place(slot: usize) -> usize {
    HEADER_WORDS + slot * SLOT_WORDS
}

/// Returns when a process started; `None` if it has ended, even if its parent has not waited for
/// it.
fn start_of(process: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process's name may contain any character, so the fields begin after the last bracket.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

impl SharedFile {
    /// Joins a file, and creates it if it is missing. `totals` sets the memory of devices that the
    /// file does not know; `used` is the memory that this process uses already.
    pub(crate) fn join(path: &str, totals: &[u64], used: &[u64]) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let process = u64::from(std::process::id());
        let start = start_of(process).ok_or_else(|| io::Error::other("/proc is missing"))?;
        let lock = LockedFile::new(&file)?;
        let mut table = UsageTable::read(&file)?;
        table.reclaim_dead_slots();
        let slot = (0..SLOTS)
            .find(|slot| table.word(place(*slot)) == 0)
            .ok_or_else(|| io::Error::other("all its slots for processes are in use"))?;
        for (device, total) in totals.iter().enumerate().take(DEVICES) {
            if table.total(device) == 0 {
                table.set(1 + device, *total);
            }
        }
        table.set(place(slot), process);
        table.set(place(slot) + 1, start);
        for (device, used) in used.iter().enumerate().take(DEVICES) {
            table.set(place(slot) + 2 + device, *used);
        }
        table.write(&file)?;
        drop(lock);
        Ok(Self { file, slot })
    }

    /// Returns the memory of a device, and how much of it no process uses.
    pub(crate) fn look(&self, device: usize) -> io::Result<(u64, u64)> {
        let _lock = LockedFile::new(&self.file)?;
        let mut table = UsageTable::read(&self.file)?;
        table.reclaim_dead_slots();
        Ok((table.total(device), table.free(device)))
    }

    /// Sets how much memory a device has, for all processes.
    pub(crate) fn set_total(&self, device: usize, bytes: u64) -> io::Result<()> {
        self.change(|table| {
            table.set(1 + device, bytes);
            Ok(())
        })
        .map(drop)
    }

    /// Counts `bytes` as used by this process, if that much is free.
    pub(crate) fn take(&self, device: usize, bytes: u64) -> io::Result<Result<(), Code>> {
        let at = place(self.slot) + 2 + device;
        self.change(|table| {
            if bytes > table.free(device) {
                table.reclaim_dead_slots();
            }
            if bytes > table.free(device) {
                return Err(Code::OUT_OF_MEMORY);
            }
            table.set(at, table.word(at) + bytes);
            Ok(())
        })
    }

    /// Counts memory of this process as free again.
    pub(crate) fn give(&self, device: usize, bytes: u64) -> io::Result<()> {
        let at = place(self.slot) + 2 + device;
        self.change(|table| {
            table.set(at, table.word(at).saturating_sub(bytes));
            Ok(())
        })
        .map(drop)
    }

    /// Frees this process's slot.
    pub(crate) fn leave(&self) {
        // A failed write does not matter, since the slot becomes free when the process ends.
        let _ = self.change(|table| {
            table.clear(self.slot);
            Ok(())
        });
    }

    fn change(
        &self,
        act: impl FnOnce(&mut UsageTable) -> Result<(), Code>,
    ) -> io::Result<Result<(), Code>> {
        let _lock = LockedFile::new(&self.file)?;
        let mut table = UsageTable::read(&self.file)?;
        let mine = u64::from(std::process::id());
        if table.word(place(self.slot)) != mine {
            return Err(io::Error::other("this process's slot in it is gone"));
        }
        let outcome = act(&mut table);
        table.write(&self.file)?;
        Ok(outcome)
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
