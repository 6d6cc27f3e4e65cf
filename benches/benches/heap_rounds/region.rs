//! The memory that a contender manages: a plain region, as a kernel would provide it.

use std::alloc::{self, Layout};
use std::ops::Range;

/// A region whose pages have all been touched, at a multiple of its length.
///
/// The alignment is for the buddy system, which would otherwise lose half of the region, since its blocks are aligned
/// to their sizes. No other contender benefits from it.
#[derive(Debug)]
pub(crate) struct TouchedRegion {
    start: *mut u8,
    layout: Layout,
}

impl TouchedRegion {
    /// Allocates a region of `bytes` bytes, a power of two. Returns `None` if memory is short.
    pub(crate) fn try_new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, bytes).ok()?;
        if bytes == 0 {
            return None;
        }
        // SAFETY: the layout has `bytes` bytes, which are not 0.
        let start = unsafe { alloc::alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: the allocation above succeeded, and has `bytes` bytes.
        unsafe { start.write_bytes(0xa5, bytes) };
        Some(Self { start, layout })
    }

    /// Returns the address of the first byte.
    pub(crate) const fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the length in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Returns the region's addresses.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.bytes()
    }
}

impl Drop for TouchedRegion {
    fn drop(&mut self) {
        // SAFETY: the region was allocated with this layout and is freed once.
        unsafe { alloc::dealloc(self.start, self.layout) };
    }
}
