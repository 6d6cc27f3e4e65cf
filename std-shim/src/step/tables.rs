//! The tables of one heap of steps, carved out of zeroed memory.

use core::ptr;

use larder_core::pack::{PackSizes, PackTables};
use larder_core::steps::{Places, StepTables};
use larder_core::sync::AtomicU32;
use larder_core::{Addr, AddrRange, Chunk, ChunkHandle, RawBlock, Zeroed};

use super::elsewhere::Slot;

/// Maximum number of allocations of one step.
const ALLOCATIONS: usize = 1 << 14;
/// A chunk for each block of a step, and one for the free memory on each side.
const CHUNKS: usize = 2 * ALLOCATIONS + 1;
/// Maximum number of blocks of the previous step that are freed in one step.
const INHERITED: usize = 1 << 12;
/// Maximum number of recorded allocations of all shapes.
const ENTRIES: usize = 1 << 18;
const SHAPES: usize = 256;
/// Maximum number of blocks that a layout avoids.
const OBSTACLES: usize = 1 << 12;
const LIFETIMES: usize = ALLOCATIONS + OBSTACLES;

/// A block of a reserve that outlives its step.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// Distance in bytes from the start of the reserve, and length.
    pub(super) start: usize,
    pub(super) bytes: usize,
    handle: u32,
}

// SAFETY: numbers, and zero bytes are their value 0.
unsafe impl Zeroed for Left {}

impl Left {
    pub(super) const fn of(handle: ChunkHandle, range: AddrRange) -> Self {
        Self {
            start: range.start().get() as usize,
            bytes: range.bytes() as usize,
            handle: handle.get(),
        }
    }

    pub(super) fn raw(&self) -> Option<RawBlock> {
        Some(RawBlock {
            addr: Addr::new(self.start as u64),
            handle: ChunkHandle::new(self.handle)?,
        })
    }
}

/// A piece of zeroed memory from which tables are cut, or no memory, to measure the tables.
pub(crate) struct Carve {
    start: *mut u8,
    at: usize,
}

impl Carve {
    /// Creates a carve that cuts nothing and only measures.
    pub(crate) const fn measure(front: usize) -> Self {
        Self {
            start: ptr::null_mut(),
            at: front,
        }
    }

    /// Creates a carve from memory behind its first `front` bytes.
    ///
    /// # Safety
    /// The memory reads as zero, is never released, is used by no other code, starts at a page, and
    /// is as long as the measure of the same cuts.
    pub(crate) const unsafe fn new(start: *mut u8, front: usize) -> Self {
        Self { start, at: front }
    }

    /// Returns the bytes cut so far.
    pub(crate) const fn bytes(&self) -> usize {
        self.at
    }

    /// Cuts a table of values that are zero; returns an empty one while measuring.
    fn zeroed<T: Zeroed>(&mut self, count: usize) -> &'static mut [T] {
        let start = self.cut::<T>(count);
        if start.is_null() {
            return &mut [];
        }
        // SAFETY: inside the memory by the promise of `new`, aligned, and cut only once; zero is a
        // value.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(start, count) }
    }

    /// Cuts room for `count` values. Returns null while measuring.
    fn cut<T>(&mut self, count: usize) -> *mut T {
        let first = self.at.next_multiple_of(128);
        // The sizes are constants and a table of granules: far below the end of the address space.
        self.at = first + count * size_of::<T>();
        if self.start.is_null() {
            return ptr::null_mut();
        }
        self.start.wrapping_add(first).cast()
    }

    /// Cuts the records and the index of a best fit over `granules` granules.
    pub(crate) fn pool(&mut self, granules: usize) -> (&'static mut [Chunk], &'static [AtomicU32]) {
        (self.zeroed(CHUNKS), self.zeroed(granules))
    }

    /// Cuts the tables of blocks elsewhere, and of blocks left at the end of a step. Each of these is
    /// a chunk.
    pub(crate) fn blocks(&mut self) -> (&'static mut [Slot], &'static mut [Left]) {
        (self.zeroed(2 * ALLOCATIONS), self.zeroed(CHUNKS))
    }

    /// Cuts the tables of steps.
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
