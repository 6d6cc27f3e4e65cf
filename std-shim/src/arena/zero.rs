//! Blocks that must read as zero: parts that already do are left alone, the rest is written or
//! discarded.

use super::Arena;
use crate::os::Os;

/// Minimum length in bytes of runs that are cleared in windows, after asking which pages are
/// resident. Shorter runs are cleared without asking.
const LOOK_LEAST_BYTES: usize = 1 << 20;
const WINDOW_BYTES: usize = 2 << 20;
/// Minimum length in bytes of runs that are discarded without asking.
const MUCH_BYTES: usize = 32 << 20;

impl<O: Os> Arena<O> {
    /// Zeroes the parts of a newly allocated block that are not known to be zero.
    ///
    /// # Safety
    /// The block is the caller's and `bytes` long.
    pub(crate) unsafe fn zero(&self, block: *mut u8, bytes: usize) {
        self.marks.each_run(block.addr(), bytes, |at, length| {
            let mut done = 0;
            while done < length {
                let part = match length {
                    ..LOOK_LEAST_BYTES | MUCH_BYTES.. => length,
                    _ => WINDOW_BYTES.min(length - done),
                };
                // SAFETY: inside the block; a run starts with a granule.
                unsafe { self.zero_part(block.wrapping_add(at + done), part) };
                done += part;
            }
        });
    }

    /// Zeroes a part of a block. Discards the part if little of it is resident or it is very
    /// long: writing would make all of it resident, though the program may touch little.
    ///
    /// # Safety
    /// The part is the caller's, `bytes` long, and starts with a granule.
    unsafe fn zero_part(&self, start: *mut u8, bytes: usize) {
        let whole = bytes / self.marks.unit() * self.marks.unit();
        let is_sparse = || {
            let ask = || {
                // SAFETY: the block is committed.
                unsafe { self.os.resident_bytes(start, whole) }
            };
            let resident = (!self.os.is_filtered()).then(ask).flatten();
            resident.is_some_and(|resident| resident < whole / 2)
        };
        let discards = bytes >= MUCH_BYTES || bytes >= LOOK_LEAST_BYTES && is_sparse();
        // SAFETY: committed, the caller's, and not used yet.
        let gone = match discards && unsafe { self.os.discard(start, whole) } {
            true => whole,
            false => 0,
        };
        self.split.clear_whole(start.addr(), gone);
        // SAFETY: inside the block.
        unsafe { start.wrapping_add(gone).write_bytes(0, bytes - gone) };
    }
}
