//! One block of the global allocator, with a stamp in its first bytes.
//!
//! The stamp is read back when the block is freed, so blocks that overlap, or that are allocated
//! twice, cause a wrong answer.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::hint::black_box;
use std::ptr::NonNull;

/// A block that owns its memory.
#[derive(Debug)]
pub struct Block {
    stamp: NonNull<u64>,
    bytes: usize,
}

// SAFETY: a block owns its memory, as a box does; any thread may use and free it.
unsafe impl Send for Block {}

/// Minimum size of a block in bytes, into which the stamp fits.
const MIN_BYTES: usize = size_of::<u64>();

/// Bytes of a page. A write of one byte in each page touches all pages.
const PAGE_BYTES: usize = 4096;

impl Block {
    /// Allocates a block of `bytes` bytes, but at least 8.
    #[inline]
    pub fn new(bytes: usize, stamp: u64) -> Self {
        assert!(bytes >= MIN_BYTES, "no room for the stamp");
        let layout = layout(bytes);
        // SAFETY: the layout has at least `MIN_BYTES` bytes, so it is not empty.
        let start = unsafe { alloc(layout) };
        // Hides the use of the block from the optimiser.
        let Some(place) = NonNull::new(black_box(start).cast::<u64>()) else {
            handle_alloc_error(layout);
        };
        // SAFETY: the block is ours, aligned for the stamp, and large enough for it.
        unsafe { place.write(stamp) };
        Self {
            stamp: place,
            bytes,
        }
    }

    /// Writes to every page but the first, which has the stamp.
    pub fn touch_pages(&mut self) {
        let start = self.stamp.cast::<u8>();
        for offset in (PAGE_BYTES..self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: the offset is below the size, so the place is in the block.
            let place = unsafe { start.add(offset) };
            // SAFETY: the place is inside our block.
            unsafe { place.write_volatile(1) };
        }
    }

    /// Resizes the block to `bytes` bytes, but at least 8. It keeps its stamp.
    pub fn resize(&mut self, bytes: usize) {
        assert!(bytes >= MIN_BYTES, "no room for the stamp");
        // SAFETY: `self` allocated the block with this layout, and the new size is not zero.
        let start = unsafe { realloc(self.stamp.as_ptr().cast(), layout(self.bytes), bytes) };
        let Some(place) = NonNull::new(black_box(start).cast::<u64>()) else {
            handle_alloc_error(layout(bytes));
        };
        self.stamp = place;
        self.bytes = bytes;
    }

    /// Frees the block. Returns its stamp.
    #[inline]
    pub fn finish(self) -> u64 {
        // SAFETY: `new` wrote the stamp to the block, which lives until the drop of `self`.
        unsafe { self.stamp.read() }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `new` allocated the block with this layout, and it is freed nowhere else.
        unsafe { dealloc(self.stamp.as_ptr().cast(), layout(self.bytes)) };
    }
}

#[inline]
fn layout(bytes: usize) -> Layout {
    // SAFETY: 8 is a power of two, and the workloads' sizes are far below the limit.
    unsafe { Layout::from_size_align_unchecked(bytes, align_of::<u64>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_stamp() {
        for bytes in [8, 9, 4096, 4097, 100_000] {
            let mut block = Block::new(bytes, 77);
            block.touch_pages();
            assert_eq!(block.finish(), 77, "{bytes}");
        }
    }

    #[test]
    fn a_resized_block_keeps_its_stamp() {
        let mut block = Block::new(8, 78);
        for bytes in [100_000, 4097, 9, 8] {
            block.resize(bytes);
            block.touch_pages();
        }
        assert_eq!(block.finish(), 78);
    }

    #[test]
    #[should_panic(expected = "no room")]
    fn a_block_without_room_for_the_stamp_is_refused() {
        let _ = Block::new(7, 0);
    }
}
