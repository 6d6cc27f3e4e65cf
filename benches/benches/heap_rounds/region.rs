//! The memory a contender manages: a plain region, as a kernel would give it.

use std::alloc::{self, Layout};
use std::ops::Range;

/// A region whose pages have all been touched, at a multiple of its length.
///
/// So aligned, because buddies are as large as their alignment and would lose half of any other
/// region; nobody else gains by it.
#[derive(Debug)]
pub(crate) struct TouchedRegion {
    start: *mut u8,
    layout: Layout,
}

impl TouchedRegion {
    /// A region of so many bytes, a power of two; `None` without memory.
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
        // SAFETY: the memory is ours and that long.
        unsafe { start.write_bytes(0xa5, bytes) };
        Some(Self { start, layout })
    }

    /// Its first byte.
    pub(crate) const fn start(&self) -> *mut u8 {
        self.start
    }

    /// Its length.
    pub(crate) const fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Its addresses.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.bytes()
    }
}

impl Drop for TouchedRegion {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { alloc::dealloc(self.start, self.layout) };
    }
}
