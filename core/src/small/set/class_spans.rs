//! [`ClassSpans`]: what a set has of one class. Its invariants are the set's.

use core::ptr;

use super::super::class::SizeClass;
use super::super::slot::{Links, Slot, TWO_WORDS};
use super::super::span::Span;

/// A transfer cache may hold this much if its owner has blocks of the class at all, and beyond it half
/// of what the owner has: a program that frees a large tree and builds another finds its blocks again
/// without a walk.
const TRANSFER_BYTES: u64 = 64 << 10;

/// How many stacks of lists ticks leave alone: what was young, and what was old.
const LEFT: usize = 2;

/// Spans and transfer cache of one class.
#[derive(Debug)]
pub(super) struct ClassSpans {
    /// Spans with blocks to give (SET2).
    pub(super) listed: *mut Span,
    pub(super) transfer: *mut Slot,
    pub(super) old: *mut Slot,
    /// Stacks, each null if it is empty (SET5).
    pub(super) left: [*mut Slot; LEFT],
    /// In all stacks.
    pub(super) transfer_lists: u32,
    /// Of those, in `left`.
    pub(super) left_lists: u32,
    /// The listed span without a used block, or null (SET3).
    pub(super) empty: *mut Span,
    /// The span that the walk under way comes to next, or null if it comes to none of this class any more.
    pub(super) walk: *mut Span,
    pub(super) idle: bool,
    pub(super) touched: bool,
    pub(super) to_scan: bool,
    /// Whether the next walk scans spans again that were scanned, and whether the one under way does.
    pub(super) again: bool,
    pub(super) walk_again: bool,
    pub(super) spans: u32,
    /// More than 32 bits count: a thread may have 32 GiB of the shortest.
    pub(super) blocks: u64,
    /// Blocks that are not in their span's list.
    pub(super) used: u64,
}

impl ClassSpans {
    /// Nothing.
    pub(super) const NONE: Self = Self {
        listed: ptr::null_mut(),
        transfer: ptr::null_mut(),
        old: ptr::null_mut(),
        left: [ptr::null_mut(); LEFT],
        transfer_lists: 0,
        left_lists: 0,
        empty: ptr::null_mut(),
        walk: ptr::null_mut(),
        idle: false,
        touched: false,
        to_scan: false,
        again: false,
        walk_again: false,
        spans: 0,
        blocks: 0,
        used: 0,
    };

    /// Whether the transfer cache may take one list more.
    pub(super) fn transfer_has_room(&self, class: SizeClass, max: usize) -> bool {
        let owned_bytes = self.blocks * class.block_bytes() as u64;
        let limit = match owned_bytes {
            // Nobody here asks for such blocks.
            0 => 0,
            _ => TRANSFER_BYTES.max(owned_bytes / 2),
        };
        let list_bytes = (max * class.block_bytes()) as u64;
        let lists = u64::from(self.transfer_lists) + 1;
        lists * list_bytes <= limit && class.block_bytes() >= TWO_WORDS
    }

    /// Takes one list from the old part of the transfer cache.
    pub(super) fn take_old(&mut self, links: Links) -> Option<*mut Slot> {
        let list = self.old;
        if list.is_null() {
            return None;
        }
        // SAFETY: SET1: the list is the transfer cache's and its first block has a second word.
        self.old = unsafe { links.below(list) };
        self.transfer_lists -= 1;
        Some(list)
    }

    /// Takes one list from the part of the transfer cache that ticks leave alone.
    pub(super) fn take_left(&mut self, links: Links) -> Option<*mut Slot> {
        let stack = self.left.iter_mut().find(|stack| !stack.is_null())?;
        let list = *stack;
        // SAFETY: SET1: the list is the transfer cache's and its first block has a second word.
        *stack = unsafe { links.below(list) };
        self.transfer_lists -= 1;
        self.left_lists -= 1;
        Some(list)
    }

    /// Moves all lists to the part of the transfer cache that ticks leave alone, unless some are there. No list is
    /// touched.
    pub(super) fn leave_lists(&mut self) {
        if self.left_lists == 0 {
            self.left = [self.transfer, self.old];
            (self.transfer, self.old) = (ptr::null_mut(), ptr::null_mut());
            self.left_lists = self.transfer_lists;
        }
    }

    /// Enters a span in the list.
    ///
    /// # Safety
    /// The span is ours and not listed.
    pub(super) unsafe fn list(&mut self, span: *mut Span) {
        // SAFETY: the span is ours, so nobody else touches what its owner keeps in it.
        let own = unsafe { Span::own(span) };
        debug_assert!(!own.listed);
        own.listed = true;
        own.prev = ptr::null_mut();
        own.next = self.listed;
        if !self.listed.is_null() {
            // SAFETY: a listed span is ours, and another one than `span`.
            unsafe { Span::own(self.listed) }.prev = span;
        }
        self.listed = span;
    }

    /// Takes a span out of the list.
    ///
    /// # Safety
    /// The span is ours and listed.
    pub(super) unsafe fn unlist(&mut self, span: *mut Span) {
        // SAFETY: the span is ours, so nobody else touches what its owner keeps in it.
        let own = unsafe { Span::own(span) };
        debug_assert!(own.listed);
        let (next, prev) = (own.next, own.prev);
        own.listed = false;
        if self.walk == span {
            self.walk = next;
        }
        if prev.is_null() {
            self.listed = next;
        } else {
            // SAFETY: a listed span is ours.
            unsafe { Span::own(prev) }.next = next;
        }
        if !next.is_null() {
            // SAFETY: a listed span is ours.
            unsafe { Span::own(next) }.prev = prev;
        }
    }
}
