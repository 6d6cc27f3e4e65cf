//! The addresses of device memory, and the host memory that holds its bytes.
//!
//! One range of addresses is reserved in two halves of the same length. Device addresses lie in the
//! lower half, which never has memory, so that the host faults when it dereferences one, as with a
//! real device. The byte of device address `a` is at `a` plus that length.
//!
//! Each half has two areas: *plain*, whose upper half is readable and writable from the start
//! (pages appear at first touch and are discarded when the memory is freed), and *mapped*, where
//! the virtual memory calls map memory files.
//!
//! SPACE3 an allocated range of device addresses lies in one area, and the host memory for it
//! belongs to the window for the life of the process.

use std::ptr;

use super::holes::FreeRanges;

/// Maximum and minimum length of a half in bytes. The minimum is tried last, if the system refuses
/// more.
const MAX_HALF: u64 = 32 << 40;
const MIN_HALF: u64 = 4 << 30;

/// Alignment of the starts and ends of plain memory.
pub(crate) const PLAIN_ALIGN: u64 = 512;

/// Bytes of a host page. Larger page sizes divide the stand-in's granules as well.
pub(crate) const PAGE: u64 = 4096;

/// The two halves.
#[derive(Debug)]
pub(crate) struct HandoutRanges {
    start: u64,
    /// Length of a half, and distance from a device address to its byte.
    distance: u64,
    /// Free addresses for plain memory.
    pub(crate) plain: FreeRanges,
    /// Free addresses for reservations.
    pub(crate) mapped: FreeRanges,
}

impl HandoutRanges {
    /// Reserves the addresses. If the system refuses even the minimum, the window is empty and
    /// every allocation fails with out of memory.
    pub(crate) fn new() -> Self {
        let mut half = MAX_HALF;
        while half >= MIN_HALF {
            // SAFETY: the system chooses free addresses, so the mapping replaces no other.
            if let Some(start) = unsafe { map(0, 2 * half, libc::PROT_NONE, None) } {
                // SAFETY: the range is part of the one that was just reserved.
                if unsafe { map(start + half, half / 2, READ_WRITE, None) }.is_some() {
                    return Self::over(start, half);
                }
                // SAFETY: the range was just reserved, and nothing uses it.
                unsafe { unmap(start, 2 * half) };
            }
            half /= 2;
        }
        Self::over(0, 0)
    }

    fn over(start: u64, half: u64) -> Self {
        let middle = start + half / 2;
        Self {
            start,
            distance: half,
            plain: FreeRanges::new(start, middle),
            mapped: FreeRanges::new(middle, start + half),
        }
    }

    /// Returns whether an address is a device address.
    pub(crate) fn contains(&self, at: u64) -> bool {
        at >= self.start && at - self.start < self.distance
    }

    /// Returns whether any part of a range lies in one of the halves.
    pub(crate) fn meets(&self, at: u64, bytes: u64) -> bool {
        let end = at.saturating_add(bytes);
        at < self.start + 2 * self.distance && end > self.start
    }

    /// Returns the host address of the byte at an address: in the upper half for a device address,
    /// the same address for host memory.
    pub(crate) fn host(&self, at: u64) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.behind(at) as usize)
    }

    fn behind(&self, at: u64) -> u64 {
        if self.contains(at) {
            return at + self.distance;
        }
        at
    }

    /// Discards the bytes of whole pages of freed plain memory.
    pub(crate) fn discard(&self, at: u64, bytes: u64) {
        let start = at.next_multiple_of(PAGE);
        let end = (at + bytes) / PAGE * PAGE;
        if start < end {
            let host = self.host(start).cast();
            // SAFETY: by SPACE3 the memory belongs to the window, and the block in it is gone.
            unsafe { libc::madvise(host, (end - start) as usize, libc::MADV_DONTNEED) };
        }
    }

    /// Maps a memory file, from an offset on, as the host memory of a range of the mapped area.
    /// Returns whether that succeeded.
    pub(crate) fn map_file(&self, at: u64, bytes: u64, place: (i32, u64)) -> bool {
        // SAFETY: by SPACE3 the memory belongs to the window, in the part that only memory files
        // occupy.
        unsafe { map(self.behind(at), bytes, READ_WRITE, Some(place)) }.is_some()
    }

    /// Unmaps the file from a range of the mapped area.
    pub(crate) fn unmap_file(&self, at: u64, bytes: u64) {
        // SAFETY: by SPACE3 the memory belongs to the window's mapped area. Nothing uses it,
        // because its mapping is ending.
        unsafe { map(self.behind(at), bytes, libc::PROT_NONE, None) };
    }

    /// Releases the addresses to the system.
    pub(crate) fn close(&mut self) {
        if self.distance > 0 {
            // SAFETY: by SPACE3 the range belongs to the window, and the driver that used it is
            // ending.
            unsafe { unmap(self.start, 2 * self.distance) };
        }
        *self = Self::over(0, 0);
    }
}

/// Protection flags of a readable and writable mapping.
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps private memory at an address that the system chooses.
pub(super) fn map_anywhere(bytes: u64) -> Option<u64> {
    // SAFETY: the system chooses free addresses, so the mapping replaces no other.
    unsafe { map(0, bytes, READ_WRITE, None) }
}

/// Maps a file from an offset on, or private memory, at `at` in place of an existing mapping, or
/// anywhere if `at` is 0. Returns its address; `None` if the system refuses.
///
/// # Safety
/// The range at `at`, if not 0, is the stand-in's own, and nothing uses it.
unsafe fn map(at: u64, bytes: u64, protection: i32, place: Option<(i32, u64)>) -> Option<u64> {
    let (kind, (file, offset)) = match place {
        Some(place) => (libc::MAP_SHARED, place),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, (-1, 0)),
    };
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = kind | fixed | libc::MAP_NORESERVE;
    let host = ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: if `at` is 0, the system chooses free addresses. Otherwise the caller promises that
    // nothing uses the replaced range.
    let mapped =
        unsafe { libc::mmap(host, bytes as usize, protection, flags, file, offset as i64) };
    (mapped != libc::MAP_FAILED).then(|| mapped.expose_provenance() as u64)
}

/// Unmaps memory.
///
/// # Safety
/// The range is part of the stand-in's own mappings, and nothing uses it any more.
pub(super) unsafe fn unmap(at: u64, bytes: u64) {
    let host: *mut libc::c_void = ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: the caller promises that the range is the stand-in's own and unused.
    unsafe { libc::munmap(host, bytes as usize) };
}
