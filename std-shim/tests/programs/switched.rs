//! [`Switched`]: this heap or the system's, for the whole life of a process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use larder::Larder;

static OUR_HEAP: Larder = Larder::new();

/// If a variable of this name is set, the process runs on the system's heap.
pub(crate) const SYSTEM: &CStr = c"LARDER_TEST_ON_SYSTEM_HEAP";

const UNDECIDED: u8 = 0;
const OURS: u8 = 1;
const THEIRS: u8 = 2;

/// Allocates from the heap that the first allocation decided upon.
pub(crate) struct Switched {
    choice: AtomicU8,
    system_calls: AtomicU64,
}

impl Switched {
    pub(crate) const fn new() -> Self {
        Self {
            choice: AtomicU8::new(UNDECIDED),
            system_calls: AtomicU64::new(0),
        }
    }

    /// How often the system's heap was asked for a block.
    pub(crate) fn system_calls(&self) -> u64 {
        self.system_calls.load(Ordering::Relaxed)
    }

    fn is_ours(&self) -> bool {
        if self.choice.load(Ordering::Relaxed) == UNDECIDED {
            // SAFETY: reads the environment, which nobody changes before the first allocation.
            let value = unsafe { libc::getenv(SYSTEM.as_ptr()) };
            let choice = if value.is_null() { OURS } else { THEIRS };
            self.choice.store(choice, Ordering::Relaxed);
        }
        self.choice.load(Ordering::Relaxed) == OURS
    }

    /// The heap, for a call that gets a block.
    fn asked(&self) -> &dyn GlobalAlloc {
        if self.is_ours() {
            return &OUR_HEAP;
        }
        self.system_calls.fetch_add(1, Ordering::Relaxed);
        &System
    }
}

// SAFETY: all calls of a process go to the same heap, as they are.
unsafe impl GlobalAlloc for Switched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, here and below.
        unsafe { self.asked().alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.is_ours() {
            // SAFETY: the same.
            unsafe { OUR_HEAP.dealloc(block, layout) };
        } else {
            // SAFETY: the same.
            unsafe { System.dealloc(block, layout) };
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same.
        unsafe { self.asked().alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the same.
        unsafe { self.asked().realloc(block, layout, size) }
    }
}
