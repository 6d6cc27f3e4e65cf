//! [`Switched`]: one of this heap's configurations, or the system's heap, for the whole life of a
//! process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use larder::Larder;

static OUR_HEAP: Larder = Larder::new();
static OURS_FOR_SPEED: Larder = Larder::speed();
static OURS_FOR_MEMORY: Larder = Larder::memory();
static OURS_HARDENED: Larder = Larder::hardened();

/// A variable of this name says which heap: `system`, `speed`, `memory` or `hardened`; else this heap as it is
/// without any choice.
pub(crate) const HEAP: &CStr = c"HEAP_TEST_HEAP";

const UNDECIDED: u8 = 0;
const OURS: u8 = 1;
const FOR_SPEED: u8 = 2;
const FOR_MEMORY: u8 = 3;
const HARDENED: u8 = 4;
const THEIRS: u8 = 5;

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

    /// Returns the number of requests to the system's heap so far.
    pub(crate) fn system_calls(&self) -> u64 {
        self.system_calls.load(Ordering::Relaxed)
    }

    fn choice(&self) -> u8 {
        if self.choice.load(Ordering::Relaxed) == UNDECIDED {
            // SAFETY: reads the environment, which nobody changes before the first allocation.
            let value = unsafe { libc::getenv(HEAP.as_ptr()) };
            let name = if value.is_null() {
                c""
            } else {
                // SAFETY: the value of a variable ends in a zero byte, and stays.
                unsafe { CStr::from_ptr(value) }
            };
            let choice = match name.to_bytes() {
                b"system" => THEIRS,
                b"speed" => FOR_SPEED,
                b"memory" => FOR_MEMORY,
                b"hardened" => HARDENED,
                _ => OURS,
            };
            self.choice.store(choice, Ordering::Relaxed);
        }
        self.choice.load(Ordering::Relaxed)
    }

    fn heap(&self) -> &dyn GlobalAlloc {
        match self.choice() {
            THEIRS => &System,
            FOR_SPEED => &OURS_FOR_SPEED,
            FOR_MEMORY => &OURS_FOR_MEMORY,
            HARDENED => &OURS_HARDENED,
            _ => &OUR_HEAP,
        }
    }

    /// The heap, for a call that gets a block.
    fn asked(&self) -> &dyn GlobalAlloc {
        if self.choice() == THEIRS {
            self.system_calls.fetch_add(1, Ordering::Relaxed);
        }
        self.heap()
    }
}

// SAFETY: all calls of a process go to the same heap, as they are.
unsafe impl GlobalAlloc for Switched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { self.asked().alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: a block of the one heap, with this layout, which the caller gives up.
        unsafe { self.heap().dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty.
        unsafe { self.asked().alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: a block of the one heap, with this layout; the new size is valid for it.
        unsafe { self.asked().realloc(block, layout, size) }
    }
}
