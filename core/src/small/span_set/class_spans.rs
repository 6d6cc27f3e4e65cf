//! [`ClassSpans`]: a set's spans and lists of one class. Its invariants are the set's.

use core::ptr;

use super::super::class::SizeClass;
use super::super::slot::{Links, Slot, TWO_WORDS};
use super::super::span::Span;

/// Bytes that a transfer cache may hold if its owner has blocks of the class at all. If half of the owner's bytes of
/// the class are more than this, the cache may hold that half. So a program that frees a large tree and builds another
/// finds its blocks again without a walk.
const TRANSFER_BYTES: u64 = 64 << 10;

/// Number of stacks of lists that ticks skip: one of young and one of old lists.
const LEFT: usize = 2;

/// Spans and transfer cache of one class.
#[derive(Debug)]
pub(super) struct ClassSpans {
    /// Spans with free or uncarved blocks (SET2).
    pub(super) listed: *mut Span,
    pub(super) transfer: *mut Slot,
    pub(super) old: *mut Slot,
    /// Stacks, each null if it is empty (SET5).
    pub(super) left: [*mut Slot; LEFT],
    /// Number of lists in all stacks.
    pub(super) transfer_lists: u32,
    /// Number of blocks in them.
    pub(super) transfer_blocks: u64,
    /// Number of lists in `left`.
    pub(super) left_lists: u32,
    /// The listed span without a used block, or null (SET3).
    pub(super) empty: *mut Span,
    /// The next span of the walk under way, or null if no span of this class is left to visit.
    pub(super) walk: *mut Span,
    pub(super) idle: bool,
    pub(super) touched: bool,
    pub(super) to_scan: bool,
    /// Whether the next walk scans spans that were already scanned (`again`), and whether the walk under way does
    /// (`walk_again`).
    pub(super) again: bool,
    pub(super) walk_again: bool,
    pub(super) spans: u32,
    /// Number of blocks that the spans hold. 32 bits cannot count them, since a thread may have 32 GiB of the shortest
    /// blocks.
    pub(super) blocks: u64,
    /// Number of blocks that are not in their span's list.
    pub(super) used: u64,
}

impl ClassSpans {
    /// No spans.
    pub(super) const NONE: Self = Self {
        listed: ptr::null_mut(),
        transfer: ptr::null_mut(),
        old: ptr::null_mut(),
        left: [ptr::null_mut(); LEFT],
        transfer_lists: 0,
        transfer_blocks: 0,
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

    /// Returns whether the transfer cache may take one more list, of `count` blocks.
    pub(super) fn transfer_has_room(&self, class: SizeClass, count: usize) -> bool {
        let owned_bytes = self.blocks * class.block_bytes() as u64;
        let limit = match owned_bytes {
            // No thread of this set allocates blocks of the class.
            0 => 0,
            _ => TRANSFER_BYTES.max(owned_bytes / 2),
        };
        let blocks = self.transfer_blocks + count as u64;
        blocks * class.block_bytes() as u64 <= limit && class.block_bytes() >= TWO_WORDS
    }

    /// Takes the list that was pushed last, or one of the older lists.
    pub(super) fn take(&mut self, links: Links) -> Option<TransferList> {
        // SAFETY: the stack is in the transfer cache.
        match unsafe { pop(&mut self.transfer, links) } {
            Some(list) => Some(self.took(list)),
            None => self.take_old(links).or_else(|| self.take_left(links)),
        }
    }

    /// Takes one list from the old part of the transfer cache.
    pub(super) fn take_old(&mut self, links: Links) -> Option<TransferList> {
        // SAFETY: the stack is in the transfer cache.
        let list = unsafe { pop(&mut self.old, links) }?;
        Some(self.took(list))
    }

    /// Takes one list from the part of the transfer cache that ticks skip.
    fn take_left(&mut self, links: Links) -> Option<TransferList> {
        let stack = self.left.iter_mut().find(|stack| !stack.is_null())?;
        // SAFETY: the stack is in the transfer cache.
        let list = unsafe { pop(stack, links) }?;
        self.left_lists -= 1;
        Some(self.took(list))
    }

    /// Cuts a list off after `count` blocks, at least one, and returns them; the rest is added to the transfer cache
    /// again. O(`count`) if the list is longer, otherwise O(1).
    ///
    /// # Safety
    /// The list came from the transfer cache, with these links, and belongs to the caller.
    pub(super) unsafe fn keep_some(
        &mut self,
        list: TransferList,
        count: usize,
        links: Links,
    ) -> TransferList {
        if list.count <= count {
            return list;
        }
        // SAFETY: the list belongs to the caller and is longer than that.
        let head = unsafe { links.cut(list.head, count) };
        let rest = TransferList {
            head,
            count: list.count - count,
        };
        // SAFETY: the rest of the caller's list, whose blocks were in the transfer cache before.
        unsafe { self.push(rest, links) };
        TransferList { count, ..list }
    }

    const fn took(&mut self, list: TransferList) -> TransferList {
        self.transfer_lists -= 1;
        self.transfer_blocks -= list.count as u64;
        list
    }

    /// Adds a list to the transfer cache.
    ///
    /// # Safety
    /// The list satisfies SLOT1 and belongs to the caller; its blocks have room for two words.
    pub(super) unsafe fn push(&mut self, list: TransferList, links: Links) {
        // SAFETY: the caller promises a list of blocks with two words.
        unsafe { links.set_below(list.head, self.transfer) };
        // SAFETY: the list belongs to the caller, and its blocks have room for two words.
        unsafe { links.set_length(list.head, list.count) };
        self.transfer = list.head;
        self.transfer_lists += 1;
        self.transfer_blocks += list.count as u64;
    }

    /// Moves all lists to the part of the transfer cache that ticks skip, unless that part has lists already. No list
    /// is touched.
    pub(super) fn leave_lists(&mut self) {
        if self.left_lists == 0 {
            self.left = [self.transfer, self.old];
            (self.transfer, self.old) = (ptr::null_mut(), ptr::null_mut());
            self.left_lists = self.transfer_lists;
        }
    }

    /// Adds a span to the list.
    ///
    /// # Safety
    /// The span belongs to this set and is not listed.
    pub(super) unsafe fn list(&mut self, span: *mut Span) {
        // SAFETY: the span belongs to this set, and no other reference to its own part exists (SPAN3).
        let own = unsafe { Span::own(span) };
        debug_assert!(!own.listed);
        own.listed = true;
        own.prev = ptr::null_mut();
        own.next = self.listed;
        if !self.listed.is_null() {
            // SAFETY: a listed span belongs to this set, and this one is not `span`.
            unsafe { Span::own(self.listed) }.prev = span;
        }
        self.listed = span;
    }

    /// Removes a span from the list.
    ///
    /// # Safety
    /// The span belongs to this set and is listed.
    pub(super) unsafe fn unlist(&mut self, span: *mut Span) {
        // SAFETY: the span belongs to this set, and no other reference to its own part exists (SPAN3).
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
            // SAFETY: a listed span belongs to this set, and this one is not `span`.
            unsafe { Span::own(prev) }.next = next;
        }
        if !next.is_null() {
            // SAFETY: a listed span belongs to this set, and this one is not `span`.
            unsafe { Span::own(next) }.prev = prev;
        }
    }
}

/// A list of the transfer cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferList {
    pub(super) head: *mut Slot,
    pub(super) count: usize,
}

/// Takes the first list of a stack.
///
/// # Safety
/// The stack is in the transfer cache of the caller's set, with these links.
unsafe fn pop(stack: &mut *mut Slot, links: Links) -> Option<TransferList> {
    let head = *stack;
    if head.is_null() {
        return None;
    }
    // SAFETY: the list is in the transfer cache, so its first block has a second word (SET1).
    *stack = unsafe { links.below(head) };
    // SAFETY: the list is in the transfer cache, so its length was written (SET1).
    let count = unsafe { links.length(head) };
    Some(TransferList { head, count })
}
