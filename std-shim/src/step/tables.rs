//! The tables of one heap of steps, carved out of zeroed memory.

use core::ptr;

use larder_core::lifetime::pack::{PackSizes, PackTables};
use larder_core::lifetime::{Places, StepTables};
use larder_core::sync::AtomicU32;
use larder_core::{Chunk, Zeroed};

/// Blocks live in a range at most.
const CHUNKS: usize = 1 << 15;
/// Allocations of one step at most.
const ALLOCATIONS: usize = 1 << 14;
/// Blocks of the step before that are freed in one step, at most.
const INHERITED: usize = 1 << 12;
/// Allocations remembered of all shapes.
const ENTRIES: usize = 1 << 17;
const SHAPES: usize = 64;
/// What a layout goes around.
const OBSTACLES: usize = 1 << 12;
const LIFETIMES: usize = ALLOCATIONS + OBSTACLES;

/// A piece of zeroed memory that tables are cut off, or none, to see how much they need.
pub(crate) struct Carve {
    start: *mut u8,
    at: usize,
}

impl Carve {
    /// Cuts nothing, and counts.
    pub(crate) const fn measure(front: usize) -> Self {
        Self {
            start: ptr::null_mut(),
            at: front,
        }
    }

    /// Cuts from memory behind its first `front` bytes.
    ///
    /// # Safety
    /// It reads as zero, is ours for ever and nobody else's, starts at a page, and is as long as
    /// what the same cuts came to when they were measured.
    pub(crate) const unsafe fn new(start: *mut u8, front: usize) -> Self {
        Self { start, at: front }
    }

    /// Bytes so far.
    pub(crate) const fn bytes(&self) -> usize {
        self.at
    }

    /// A table of values that are zero; an empty one while measuring.
    fn zeroed<T: Zeroed>(&mut self, count: usize) -> &'static mut [T] {
        let start = self.cut::<T>(count);
        if start.is_null() {
            return &mut [];
        }
        // SAFETY: inside the memory by the promise of `new`, aligned, cut off once; zero is a value.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(start, count) }
    }

    /// Null while measuring.
    fn cut<T>(&mut self, count: usize) -> *mut T {
        let first = self.at.next_multiple_of(128);
        // Constants, and a table of granules: far below the end of the address space.
        self.at = first + count * size_of::<T>();
        if self.start.is_null() {
            return ptr::null_mut();
        }
        self.start.wrapping_add(first).cast()
    }

    /// Records and index of a best fit over so many granules.
    pub(crate) fn bfc(&mut self, granules: usize) -> (&'static mut [Chunk], &'static [AtomicU32]) {
        (self.zeroed(CHUNKS), self.zeroed(granules))
    }

    /// The tables of steps.
    pub(crate) fn steps(&mut self) -> StepTables<'static> {
        let sizes = PackSizes::new(LIFETIMES);
        StepTables {
            tags: self.zeroed(CHUNKS),
            asked: self.zeroed(ALLOCATIONS),
            inherited: self.zeroed(INHERITED),
            shapes: self.zeroed(SHAPES),
            entries: self.zeroed(ENTRIES),
            places: Places {
                obstacles: self.zeroed(OBSTACLES),
                lifetimes: self.zeroed(LIFETIMES),
                order: self.zeroed(ALLOCATIONS),
                pack: PackTables {
                    offsets: self.zeroed(LIFETIMES),
                    trial: self.zeroed(LIFETIMES),
                    live: self.zeroed(LIFETIMES),
                    order: self.zeroed(LIFETIMES),
                    by_key: self.zeroed(LIFETIMES),
                    keys: self.zeroed(LIFETIMES),
                    parts: self.zeroed(LIFETIMES),
                    buckets: self.zeroed(sizes.buckets),
                    items: self.zeroed(LIFETIMES),
                    sections: self.zeroed(LIFETIMES),
                    neighbours: self.zeroed(sizes.neighbours),
                    undo_log: self.zeroed(sizes.undo_log),
                    choices: self.zeroed(LIFETIMES),
                    unplaced: self.zeroed(LIFETIMES),
                },
            },
        }
    }
}
