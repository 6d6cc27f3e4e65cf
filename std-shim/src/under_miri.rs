//! The allocator under the interpreter `miri`, which has no address space to manage but checks
//! every block of the standard library's allocator. So all requests go to that allocator, and
//! [`Stats`](crate::Stats) are zero.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::global_alloc::Larder;

// SAFETY: each call is forwarded to `System` with the caller's promises.
unsafe impl GlobalAlloc for Larder {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is `System`'s, has this layout, and the caller gives it up.
        unsafe { System.dealloc(block, layout) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the block is `System`'s and has this layout; the new size is valid for it.
        unsafe { System.realloc(block, layout, new_size) }
    }
}
