//! Short forms of allocator calls, and inner allocators with special behavior.
#![allow(clippy::unwrap_used)] // helpers of tests
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) start: *mut u8,
    pub(crate) layout: Layout,
}

// SAFETY: the owner of the value may use the memory.
unsafe impl Send for Block {}

pub(crate) fn sized(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).unwrap()
}

/// Allocates a block. Returns `None` if there is no memory.
pub(crate) fn try_alloc(heap: &impl GlobalAlloc, bytes: usize) -> Option<Block> {
    let layout = sized(bytes);
    // SAFETY: no test asks for zero bytes.
    let start = unsafe { heap.alloc(layout) };
    (!start.is_null()).then_some(Block { start, layout })
}

pub(crate) fn alloc(heap: &impl GlobalAlloc, bytes: usize) -> Block {
    try_alloc(heap, bytes).unwrap()
}

pub(crate) fn alloc_zeroed(heap: &impl GlobalAlloc, bytes: usize) -> Block {
    let layout = sized(bytes);
    // SAFETY: no test asks for zero bytes.
    let start = unsafe { heap.alloc_zeroed(layout) };
    assert!(!start.is_null());
    Block { start, layout }
}

pub(crate) fn free(heap: &impl GlobalAlloc, block: Block) {
    // SAFETY: each test frees its blocks once.
    unsafe { heap.dealloc(block.start, block.layout) };
}

/// Resizes a block. Returns `None` if that failed, which leaves the block as it was.
pub(crate) fn try_resize(heap: &impl GlobalAlloc, block: Block, bytes: usize) -> Option<Block> {
    // SAFETY: each test uses only the newest value of a block.
    let start = unsafe { heap.realloc(block.start, block.layout, bytes) };
    let layout = sized(bytes);
    (!start.is_null()).then_some(Block { start, layout })
}

pub(crate) fn resize(heap: &impl GlobalAlloc, block: Block, bytes: usize) -> Block {
    try_resize(heap, block, bytes).unwrap()
}

/// Bytes of each block of [`InPlace`].
pub(crate) const ROOM: usize = 4096;

/// Resizes in place up to [`ROOM`] bytes; refuses larger blocks.
pub(crate) struct InPlace;

// SAFETY: the system's blocks, each at least as large as requested.
unsafe impl GlobalAlloc for InPlace {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ROOM {
            return std::ptr::null_mut();
        }
        // SAFETY: never zero bytes.
        unsafe { System.alloc(sized(ROOM)) }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: allocated above with this layout.
        unsafe { System.dealloc(block, sized(ROOM)) };
    }

    unsafe fn realloc(&self, block: *mut u8, _: Layout, bytes: usize) -> *mut u8 {
        if bytes > ROOM {
            return std::ptr::null_mut();
        }
        block
    }
}

/// Allocates blocks one after another from a range of its own, which it never reuses, so it needs
/// no system. Every realloc moves.
pub(crate) struct Bump {
    start: AtomicPtr<u8>,
    used: AtomicUsize,
}

const BUMP_BYTES: usize = 8 << 20;

impl Bump {
    pub(crate) fn new() -> Self {
        Self {
            start: AtomicPtr::new(
                Box::leak(vec![0_u8; BUMP_BYTES].into_boxed_slice()).as_mut_ptr(),
            ),
            used: AtomicUsize::new(0),
        }
    }
}

// SAFETY: blocks are pieces of one range, and no byte is in two of them.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        assert!(layout.align() <= 8);
        let bytes = layout.size().next_multiple_of(8);
        let at = self.used.fetch_add(bytes, Ordering::Relaxed);
        if at + bytes > BUMP_BYTES {
            return std::ptr::null_mut();
        }
        self.start.load(Ordering::Relaxed).wrapping_add(at)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// Behaves as if another thread allocated at the same time: as soon as a block is free, `taker`
/// allocates a block at its address.
pub(crate) struct Handing {
    room: Bump,
    /// Address of the next block, or null if any will do.
    next: AtomicPtr<u8>,
    /// Allocates one block.
    taker: fn(),
}

impl Handing {
    pub(crate) fn new(taker: fn()) -> Self {
        let room = Bump::new();
        let next = AtomicPtr::default();
        Self { room, next, taker }
    }
}

// SAFETY: blocks are those of `Bump`, and a block is reused only once it is free.
unsafe impl GlobalAlloc for Handing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let next = self.next.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if next.is_null() {
            // SAFETY: the layout is not empty.
            return unsafe { self.room.alloc(layout) };
        }
        next
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        self.next.store(block, Ordering::Relaxed);
        (self.taker)();
        assert!(self.next.load(Ordering::Relaxed).is_null());
    }
}
