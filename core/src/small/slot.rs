//! Free blocks linked through themselves.
//!
//! The first word of a free block points to the next block of its list. Where blocks have room for two words, the
//! second links whole lists (in the transfer cache) and, in the second block of a list, holds the list's length.
//! [`Links`] decides whether a heap masks both.
//!
//! # Invariants
//! * SLOT1 a slot in a list is a free block: only the list's owner reads or writes it, and its first word holds the
//!   next slot or null. Every caller of the functions here promises SLOT1.

use super::mask::Mask;
use crate::sync::Cell;

/// A free block, seen as the link that it holds.
///
/// A slot is only accessed through a raw pointer, because a block may be smaller than this type. In that case `below`
/// lies outside the block and is not touched.
#[repr(C)]
#[derive(Debug)]
pub struct Slot {
    next: Cell<*mut Slot>,
    below: Cell<*mut Slot>,
}

/// Bytes that a block needs for the second word.
pub(super) const TWO_WORDS: usize = 2 * size_of::<*mut Slot>();

/// The factor of a length in a list's second block: such a word looks like a link, so it can be masked as one.
const LENGTH_UNIT: usize = 16;

impl Slot {
    /// Creates a slot outside of any block, for models of the lists.
    #[doc(hidden)]
    pub fn unlinked() -> Self {
        Self {
            next: Cell::new(core::ptr::null_mut()),
            below: Cell::new(core::ptr::null_mut()),
        }
    }

    /// Returns a pointer to a slot's first or second word.
    #[inline(always)]
    const fn word(slot: *mut Self, number: usize) -> *const Cell<*mut Self> {
        slot.cast::<Cell<*mut Self>>().wrapping_add(number)
    }

    /// Returns the slot after this one, or null.
    ///
    /// # Safety
    /// SLOT1 holds for `slot`, and the caller owns its list.
    #[inline(always)]
    pub unsafe fn next(slot: *mut Self) -> *mut Self {
        // SAFETY: the caller owns the list that `slot` is in (SLOT1), so its first word is a link that the caller may
        // read.
        unsafe { Cell::read(Self::word(slot, 0)) }
    }

    /// Links this slot to `next`, whatever the slot held before.
    ///
    /// # Safety
    /// `slot` is a free block that the caller owns alone, aligned for a pointer.
    #[inline(always)]
    pub unsafe fn set_next(slot: *mut Self, next: *mut Self) {
        // SAFETY: the block belongs to the caller and is as large and aligned as a pointer.
        unsafe { Cell::write(Self::word(slot, 0), next) }
    }

    /// Prefetches the cache line of an address, whatever is there.
    #[inline(always)]
    pub(super) fn prefetch(slot: *mut Self) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch is only a hint. It never faults, and the program cannot see what it reads.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(slot.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = slot;
    }

    /// Returns the list below the one that this slot heads.
    ///
    /// # Safety
    /// SLOT1 holds for `slot`, the caller owns its list, and [`set_below`](Self::set_below) was called for it.
    unsafe fn below(slot: *mut Self) -> *mut Self {
        // SAFETY: `set_below` wrote the word, which lies inside the block.
        unsafe { Cell::read(Self::word(slot, 1)) }
    }

    /// Links the list headed by this slot on top of another.
    ///
    /// # Safety
    /// `slot` is a free block that the caller owns alone, aligned for a pointer, with room for two words.
    unsafe fn set_below(slot: *mut Self, below: *mut Self) {
        // SAFETY: the block belongs to the caller and holds two words.
        unsafe { Cell::write(Self::word(slot, 1), below) }
    }
}

/// The form of the links between a heap's free blocks: plain addresses, or addresses hidden by a [`Mask`]. All heaps
/// that free each other's blocks use the same form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links(Option<&'static Mask>);

impl Links {
    /// Links that are plain addresses.
    pub const PLAIN: Self = Self(None);

    /// Creates links hidden by a mask whose secret has been drawn.
    pub(super) const fn masked(mask: &'static Mask) -> Self {
        Self(Some(mask))
    }

    /// Returns the slot after this one, or null.
    ///
    /// # Safety
    /// SLOT1 holds for `slot`, and the caller owns its list.
    #[inline(always)]
    pub(super) unsafe fn next(self, slot: *mut Slot) -> *mut Slot {
        // SAFETY: the caller owns the list that `slot` is in (SLOT1), so its first word is a link.
        let word = unsafe { Slot::next(slot) };
        self.read(slot, word)
    }

    /// Links this slot to `next`, whatever the slot held before.
    ///
    /// # Safety
    /// `slot` is a free block that the caller owns alone, aligned for a pointer.
    #[inline(always)]
    pub(super) unsafe fn set_next(self, slot: *mut Slot, next: *mut Slot) {
        // SAFETY: the block is free, belongs to the caller alone and is aligned for a pointer; a masked link is as long
        // as a plain one.
        unsafe { Slot::set_next(slot, self.written(slot, next)) }
    }

    /// Returns the list below the one that this slot heads.
    ///
    /// # Safety
    /// SLOT1 holds for `slot`, the caller owns its list, and [`set_below`](Self::set_below) was called for it.
    pub(super) unsafe fn below(self, slot: *mut Slot) -> *mut Slot {
        // SAFETY: the caller owns the list that `slot` heads, and `set_below` wrote its second word.
        let word = unsafe { Slot::below(slot) };
        self.read(slot, word)
    }

    /// Links the list headed by this slot on top of another.
    ///
    /// # Safety
    /// `slot` is a free block that the caller owns alone, aligned for a pointer, with room for two words.
    pub(super) unsafe fn set_below(self, slot: *mut Slot, below: *mut Slot) {
        // SAFETY: the block is free, belongs to the caller alone, is aligned for a pointer and two words long.
        unsafe { Slot::set_below(slot, self.written(slot, below)) }
    }

    /// Ends a list after its first `count` blocks. Returns the rest, or null. O(`count`).
    ///
    /// # Safety
    /// The list satisfies SLOT1, belongs to the caller, and has at least `count` blocks, at least one.
    pub(super) unsafe fn cut(self, list: *mut Slot, count: usize) -> *mut Slot {
        let mut last = list;
        for _ in 1..count {
            // SAFETY: the list has at least `count` blocks (SLOT1), so `last` is one of them and has a link.
            last = unsafe { self.next(last) };
        }
        // SAFETY: `last` is a block of the caller's list (SLOT1).
        let rest = unsafe { self.next(last) };
        // SAFETY: `last` is a free block that belongs to the caller.
        unsafe { self.set_next(last, core::ptr::null_mut()) };
        rest
    }

    /// Returns the length of the list that this slot heads.
    ///
    /// # Safety
    /// SLOT1 holds for `head`, the caller owns its list, and [`set_length`](Self::set_length) was called for it.
    pub(super) unsafe fn length(self, head: *mut Slot) -> usize {
        // SAFETY: the caller owns the list that `head` is in (SLOT1), so its first word is a link.
        let second = unsafe { self.next(head) };
        if second.is_null() {
            return 1;
        }
        // SAFETY: `set_length` wrote the second word of the list's second block.
        unsafe { self.below(second) }.addr() / LENGTH_UNIT
    }

    /// Writes the length of the list that this slot heads into the list.
    ///
    /// # Safety
    /// SLOT1 holds for `head`, the caller owns its list, and its blocks have room for two words.
    pub(super) unsafe fn set_length(self, head: *mut Slot, count: usize) {
        // SAFETY: the caller owns the list that `head` is in (SLOT1), so its first word is a link.
        let second = unsafe { self.next(head) };
        if !second.is_null() {
            let length = core::ptr::without_provenance_mut(count * LENGTH_UNIT);
            // SAFETY: the second block is in the caller's list, and has room for two words.
            unsafe { self.set_below(second, length) };
        }
    }

    #[inline(always)]
    fn read(self, slot: *mut Slot, word: *mut Slot) -> *mut Slot {
        match self.0 {
            None => word,
            Some(mask) => mask.read(slot, word.addr()),
        }
    }

    #[inline(always)]
    fn written(self, slot: *mut Slot, to: *mut Slot) -> *mut Slot {
        match self.0 {
            None => to,
            Some(mask) => core::ptr::without_provenance_mut(mask.word(slot, to)),
        }
    }
}

/// A list of free blocks with both ends and its length, for moves between owners. Never empty.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// First slot.
    pub head: *mut Slot,
    /// Last slot; its link is not part of the chain.
    pub tail: *mut Slot,
    /// Number of slots.
    pub count: u32,
}

impl Chain {
    /// Creates a chain of one slot.
    pub const fn one(slot: *mut Slot) -> Self {
        Self {
            head: slot,
            tail: slot,
            count: 1,
        }
    }

    /// Puts a slot in front, with plain links.
    ///
    /// # Safety
    /// `slot` is a free block that the caller owns alone, aligned for a pointer.
    pub unsafe fn push(&mut self, slot: *mut Slot) {
        // SAFETY: the block is free, belongs to the caller alone and is aligned for a pointer.
        unsafe { Slot::set_next(slot, self.head) };
        self.head = slot;
        self.count += 1;
    }
}
