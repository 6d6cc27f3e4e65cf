//! [`Larder`]: the process heap as a global allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, NonNull};

use larder_core::small::{Fresh, SizeClass};

use crate::check;
use crate::local::Local;
use crate::os::Native;
use crate::process::STEP_LEAST_BYTES;
use crate::stats::Stats;
use crate::step;
use crate::step_heap::StepHeap;
use crate::threads::{PROCESS, at_thread_exit, with_local};

/// The process heap.
///
/// ```
/// use larder::Larder;
///
/// #[global_allocator]
/// static HEAP: Larder = Larder::new();
///
/// let words: Vec<String> = "one two three".split(' ').map(String::from).collect();
/// assert_eq!(words.len(), 3);
/// assert!(HEAP.stats().live_bytes > 0);
/// ```
///
/// All values of this type are the same heap, that of the process. Small blocks (up to 128 KiB) come
/// from a list that the thread keeps at hand, in a few instructions and without a lock; larger ones
/// from best fit with coalescing, O(1) behind a lock. A block may be freed by any thread. Out of
/// memory is a null pointer, and later calls work. Not to be called from a signal handler.
///
/// A free that cannot be right ends the process with a message. Above 128 KiB that is always found
/// for an address where no block starts, such as that of a block freed before. In builds with debug
/// assertions also: small blocks that are none of the heap, whose layout is not of the size class
/// (above 128 KiB: the granules) they were allocated with, or that are among the 64 that this thread
/// freed last and has not given again. Else a small free is not looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Larder(());

impl Larder {
    /// The heap of the process.
    pub const fn new() -> Self {
        Self(())
    }

    /// What the heap holds now. O(heaps x classes), and what was freed by other threads than those
    /// that allocated it goes home first.
    pub fn stats(&self) -> Stats {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| Stats::count(&PROCESS, local)) }
    }

    /// Gives memory that nobody uses back to the system; returns the bytes, those included that were
    /// never touched. Empties what this thread keeps at hand; what other running threads keep stays
    /// (at most 32 KiB of each class, mostly).
    ///
    /// Costs a walk over everything idle, and the memory comes back by page faults.
    pub fn trim(&self) -> u64 {
        // SAFETY: called by the program, not from inside the heap.
        unsafe { with_local(|local| local.flush(&PROCESS)) };
        PROCESS.trim()
    }
}

#[inline(always)]
fn class_of(layout: Layout) -> Option<SizeClass> {
    SizeClass::of(layout.size(), layout.align())
}

#[inline(always)]
fn or_null(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

#[cold]
#[inline(never)]
fn refill(class: SizeClass) -> Option<Fresh> {
    let find = || {
        // SAFETY: called from the verbs below, which have left the thread's part.
        unsafe { with_local(|local| local.refill(class, &PROCESS, at_thread_exit)) }
    };
    find().or_else(|| {
        reclaim(class.block_bytes());
        find()
    })
}

/// Before a request of `bytes` bytes is refused: brings idle memory home that may serve it.
#[cold]
fn reclaim(bytes: usize) {
    if PROCESS.could_hold(bytes) {
        // SAFETY: called from the verbs below, which have left the thread's part.
        unsafe { with_local(|local| local.flush(&PROCESS)) };
        PROCESS.trim();
    }
}

/// # Safety
/// `block` is a block of this class, given up by the caller.
#[cold]
#[inline(never)]
unsafe fn free_slow(class: SizeClass, block: *mut u8) {
    // SAFETY: the caller's promise.
    let free = |local: &mut Local| unsafe {
        local.free_slow(class, block, &PROCESS, at_thread_exit);
    };
    // SAFETY: called from the verbs below, which have left the thread's part.
    unsafe { with_local(free) };
}

#[cold]
#[inline(never)]
fn alloc_large(layout: Layout) -> *mut u8 {
    let find = || PROCESS.alloc_large(layout.size(), layout.align());
    or_null(find().or_else(|| {
        reclaim(layout.size());
        find()
    }))
}

#[cold]
#[inline(never)]
fn free_large(block: *mut u8, layout: Layout) {
    if !PROCESS.free_large(block, layout.size()) {
        check::fail(b"larder: freed an address where no block of this heap starts\n");
    }
}

#[cold]
#[inline(never)]
fn alloc_zeroed_large(layout: Layout) -> *mut u8 {
    let block = alloc_large(layout);
    if let Some(arena) = PROCESS.arena_of(block) {
        // SAFETY: given to us just now, that long.
        unsafe { arena.zero(block, layout.size()) };
    }
    block
}

// SAFETY: blocks of a class are at least as large and aligned as the layout and in one place at a
// time (L, S, R, D); large blocks are chunks of a BFC, which do not overlap (A3). Nothing panics
// or unwinds.
unsafe impl GlobalAlloc for Larder {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(block) = step::alloc(layout) {
            return block.as_ptr();
        }
        let Some(class) = class_of(layout) else {
            return alloc_large(layout);
        };
        // SAFETY: the heap is not interrupted by itself, and `pop` does not come back here.
        let block = unsafe { with_local(|local| local.pop(class)) };
        if block.is_null() {
            return or_null(refill(class).map(|fresh| fresh.block));
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(heap) = step::heap_of(block, layout) {
            return free_of_step(heap, block);
        }
        if cfg!(debug_assertions) {
            check::check_block(&PROCESS, block, layout);
        }
        let Some(class) = class_of(layout) else {
            return free_large(block, layout);
        };
        if cfg!(debug_assertions) {
            // SAFETY: as in `alloc`.
            let freed = unsafe { with_local(|local| local.has(class, block)) };
            check::check_not_free(freed);
        }
        // SAFETY: the caller gives up a block of this layout.
        let push = |local: &mut Local| unsafe { local.push(class, block) };
        // SAFETY: as in `alloc`.
        if !unsafe { with_local(push) } {
            // SAFETY: the same block, not taken.
            unsafe { free_slow(class, block) };
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(block) = step::alloc(layout) {
            // SAFETY: given to us just now, that long.
            unsafe { block.write_bytes(0, layout.size()) };
            return block.as_ptr();
        }
        let Some(class) = class_of(layout) else {
            return alloc_zeroed_large(layout);
        };
        // SAFETY: as in `alloc`.
        let mut block = unsafe { with_local(|local| local.pop(class)) };
        if block.is_null() {
            let Some(fresh) = refill(class) else {
                return ptr::null_mut();
            };
            block = fresh.block.as_ptr();
            if fresh.clean {
                return block;
            }
        }
        // SAFETY: the block is at least that long.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that is valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let stays = match (class_of(layout), class_of(new)) {
            _ if let Some(heap) = step::heap_of(block, layout) => {
                fits_in_step(heap, block, new_size)
            }
            (Some(old), Some(new)) => old == new,
            (None, None) => resize_large(block, layout, new_size),
            _ => false,
        };
        if stays {
            return block;
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both blocks hold that many bytes, and are two.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size)) };
            // SAFETY: the caller's promise; the contents have moved.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cold]
#[inline(never)]
fn free_of_step(heap: &StepHeap<Native>, block: *mut u8) {
    if !heap.free(block) {
        check::fail(b"larder: freed an address where no block of this heap starts\n");
    }
}

/// Whether a block of a step holds the new size where it is, and not twice as much.
#[cold]
#[inline(never)]
fn fits_in_step(heap: &StepHeap<Native>, block: *mut u8, new_size: usize) -> bool {
    let granted = heap.bytes_at(block).unwrap_or(0);
    let new = new_size as u64;
    new_size > STEP_LEAST_BYTES && new <= granted && new > granted / 2
}

#[cold]
#[inline(never)]
fn resize_large(block: *mut u8, layout: Layout, new_size: usize) -> bool {
    PROCESS
        .arena_of(block)
        .is_some_and(|arena| arena.resize(block, layout.size(), new_size))
}
