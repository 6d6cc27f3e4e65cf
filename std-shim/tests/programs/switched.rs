//! [`Switched`]: this heap, or the system's, for the whole life of a process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use larder::Larder;

/// Configured by the environment.
static OURS: Larder = Larder::new().with_environment();

/// If this variable is set, the system's heap is used.
pub(crate) const SYSTEM: &CStr = c"HEAP_TEST_SYSTEM";

/// Allocates from the heap that the first allocation chose.
pub(crate) struct Switched {
    /// 0 before the first allocation, then 1 for this heap and 2 for the system's.
    choice: AtomicU8,
    system_calls: AtomicU64,
}

impl Switched {
    pub(crate) const fn new() -> Self {
        Self {
            choice: AtomicU8::new(0),
            system_calls: AtomicU64::new(0),
        }
    }

    /// Returns the number of requests to the system's heap so far.
    pub(crate) fn system_calls(&self) -> u64 {
        self.system_calls.load(Ordering::Relaxed)
    }

    fn heap(&self) -> &dyn GlobalAlloc {
        if self.choice.load(Ordering::Relaxed) == 0 {
            // SAFETY: reads the environment, which does not change before the first allocation.
            let is_there = !unsafe { libc::getenv(SYSTEM.as_ptr()) }.is_null();
            self.choice.store(1 + u8::from(is_there), Ordering::Relaxed);
        }
        match self.choice.load(Ordering::Relaxed) {
            1 => &OURS,
            _ => &System,
        }
    }

    /// Returns the heap for an allocation, and counts a request to the system's.
    fn asked(&self) -> &dyn GlobalAlloc {
        let heap = self.heap();
        let is_system = self.choice.load(Ordering::Relaxed) == 2;
        self.system_calls
            .fetch_add(u64::from(is_system), Ordering::Relaxed);
        heap
    }
}

// SAFETY: all calls of a process go unchanged to the same heap.
unsafe impl GlobalAlloc for Switched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { self.asked().alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: a block of the chosen heap, with this layout, which the caller gives up.
        unsafe { self.heap().dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { self.asked().alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: a block of the chosen heap, with this layout; the new size is valid for it.
        unsafe { self.asked().realloc(block, layout, size) }
    }
}
