//! Bins: one list of free blocks for each class, owned by one thread (or by whoever holds the
//! heap's lock), with the fewest instructions between a request and its block.
//!
//! # Invariants
//! * L2 a bin is all zero, or `room + length = bin_blocks(class)` of its class.
//!
//! Zero means "ask": a fresh bin has no block and no room, so both verbs take their slow path
//! first and no other test for a thread's first allocation is needed.

use super::class::{CLASSES, SizeClass};
use super::slot::Slot;
use crate::sync::keep_order;

/// Free blocks of one class.
#[derive(Debug)]
#[repr(C)]
pub struct Bin {
    pub(super) head: *mut Slot,
    pub(super) room: isize,
}

impl Bin {
    /// No blocks and no room.
    pub const EMPTY: Self = Self {
        head: core::ptr::null_mut(),
        room: 0,
    };

    /// Takes a block, or null if there is none.
    ///
    /// # Safety
    /// The blocks in the bin satisfy L1.
    #[inline(always)]
    pub unsafe fn pop(&mut self) -> *mut u8 {
        let slot = self.head;
        if !slot.is_null() {
            // SAFETY: L1 for a slot of this list.
            self.head = unsafe { Slot::next(slot) };
            self.room += 1;
        }
        slot.cast()
    }

    /// Puts a block in; `false` if there is no room, and then nothing has changed.
    ///
    /// # Safety
    /// `block` is a block of the bin's class, given up by the caller.
    #[inline(always)]
    pub unsafe fn push(&mut self, block: *mut u8) -> bool {
        if self.room <= 0 {
            return false;
        }
        let slot = block.cast::<Slot>();
        // SAFETY: the caller gave the block up.
        unsafe { Slot::set_next(slot, self.head) };
        // The list is whole at any moment, for the child of a fork that finds it as it is.
        keep_order();
        self.head = slot;
        self.room -= 1;
        true
    }

    /// Whether no block is in it.
    pub const fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// How many blocks are in it.
    pub const fn len(&self, class: SizeClass) -> usize {
        if self.head.is_null() {
            return 0;
        }
        (class.bin_blocks() as isize - self.room) as usize
    }

    /// Takes all blocks out: the first of the list, or null.
    pub(super) const fn take(&mut self, class: SizeClass) -> *mut Slot {
        let head = self.head;
        self.put(class, core::ptr::null_mut(), 0);
        head
    }

    /// Makes `head`, a list of `count` blocks, the contents of the empty bin.
    pub(super) const fn put(&mut self, class: SizeClass, head: *mut Slot, count: usize) {
        self.head = head;
        self.room = class.bin_blocks() as isize - count as isize;
    }
}

/// A bin for each class.
#[derive(Debug)]
#[repr(C)]
pub struct Bins([Bin; CLASSES]);

impl Bins {
    /// All of them zero.
    pub const EMPTY: Self = Self([Bin::EMPTY; CLASSES]);

    /// The bin of a class.
    #[inline(always)]
    pub const fn of(&mut self, class: SizeClass) -> &mut Bin {
        debug_assert!(class.index() < CLASSES);
        // A class's index is below the length, which the compiler does not know.
        &mut self.0[class.index()]
    }

    /// Moves everything out, leaving zeros.
    pub const fn take_all(&mut self) -> Self {
        core::mem::replace(self, Self::EMPTY)
    }

    /// Makes every bin's room agree with its list, for bins whose owner was stopped between two
    /// instructions.
    ///
    /// # Safety
    /// The lists satisfy L1, and the caller owns them now.
    pub(super) unsafe fn recount(&mut self) {
        for class in SizeClass::all() {
            let bin = self.of(class);
            let (mut count, mut slot) = (0, bin.head);
            while !slot.is_null() {
                count += 1;
                // SAFETY: L1.
                slot = unsafe { Slot::next(slot) };
            }
            if count > 0 || bin.room > 0 {
                bin.put(class, bin.head, count);
            }
        }
    }

    /// Runs `f` for every block that lies ready here.
    ///
    /// # Safety
    /// The lists satisfy L1, and the caller owns the bins.
    #[cfg(not(loom))]
    pub(super) unsafe fn for_each(&self, mut f: impl FnMut(SizeClass, *mut u8)) {
        for class in SizeClass::all() {
            let mut slot = self.0[class.index()].head;
            while !slot.is_null() {
                f(class, slot.cast());
                // SAFETY: L1.
                slot = unsafe { Slot::next(slot) };
            }
        }
    }

    /// Blocks of a class that lie ready here.
    pub const fn len(&self, class: SizeClass) -> usize {
        self.0[class.index()].len(class)
    }
}

// Thread-local memory is scarce in a library loaded at run time: 1.5 KiB still loads, 2 KiB not.
const _: () = assert!(size_of::<Bins>() <= 1536);
