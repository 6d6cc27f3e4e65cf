//! [`SpanSet`]: the spans of one owner, and his depots.
//!
//! Everything here is the way behind the bins: a bin without a block is refilled, a full one is
//! emptied, both for many blocks at once.
//!
//! ```text
//!    bin ──full──► depot (whole bins, O(1)) ──over its limit──► spans, grouped
//!    bin ◄─empty── depot, else remote frees, else a span's list or fresh blocks, else a new span
//! ```
//!
//! # Invariants
//! * D1 a depot is two stacks of lists, each list of as many blocks as a bin of the policy holds, linked by
//!   the second word of their first blocks. Blocks without a second word have no depot.
//! * D2 a span is listed if and only if it has a block to give.
//! * D3 `empty` counts the listed spans without a used block. More than one is not kept.
//! * D4 `spans` and `blocks` count the spans owned and their capacity.
//! * D5 lists are put on the stack `depot` and taken from it first; `old` has those that were in the
//!   depot at the last [`age`](SpanSet::age) and were not needed since.
//! * D6 a class is `rested` only if its span without used blocks, if it has one, has been there since
//!   the last `age`, or was left by old lists in this one.
//! * D7 a class is `stirred` if a block of its spans came home or was taken since the last `age`, and
//!   `to_dig` if a span rested then that has not been looked at.
//! * D8 `guest` says whose bins are served, since whoever has the set last said so: those of its own
//!   thread, or of one of many that share it, which begin at a few blocks and double.

mod aging;

use core::ptr::{self, NonNull};

use self::aging::RIPE;
use super::bin::{Bin, Bins};
use super::class::{CLASSES, SizeClass};
use super::pages::Pages;
use super::remote::Mailbox;
use super::slot::{Chain, Slot, TWO_WORDS};
use super::span::Span;

/// A depot may hold this much if its owner has blocks of the class at all, and beyond it half of what
/// he has: a program that frees a large tree and builds another finds its blocks again without a
/// walk.
const DEPOT_BYTES: usize = 64 << 10;

/// A guest's bin holds this part of what others do at first.
const FIRST_PART: usize = 32;

/// How much a set and the bins in front of it keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// What a bin may hold, in bytes; at least one block, and at most 256.
    pub bin_bytes: u32,
    /// Whether there are depots. Without them what is freed goes home sooner, so spans become idle,
    /// and what is cut from them anew lies in order.
    pub depots: bool,
    /// Whether a span without a used block is kept, if it is the only such one of its class.
    pub keeps_empty: bool,
}

impl Policy {
    /// Time and memory in balance.
    pub const BALANCED: Self = Self {
        bin_bytes: 32 << 10,
        depots: true,
        keeps_empty: true,
    };

    /// How many blocks a bin holds.
    const fn bin_blocks(&self, class: SizeClass) -> usize {
        class.bin_blocks(self.bin_bytes as usize)
    }
}

/// A block, and whether it reads as zero.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// The block.
    pub block: NonNull<u8>,
    /// Whether all its bytes are known to be zero.
    pub clean: bool,
}

/// What a set holds of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassUsage {
    /// Spans.
    pub spans: u64,
    /// Their length together, in bytes.
    pub span_bytes: u64,
    /// Blocks not in a span's own list: in the program's hands, in bins, in depots, or freed by
    /// another thread and not yet received.
    pub used_blocks: u64,
    /// Of those, in the depot.
    pub depot_blocks: u64,
}

#[derive(Debug)]
struct ClassSpans {
    /// Spans with blocks to give (D2).
    listed: *mut Span,
    depot: *mut Slot,
    old: *mut Slot,
    /// In both stacks.
    depot_chains: u32,
    empty: u32,
    rested: bool,
    stirred: bool,
    to_dig: bool,
    spans: u32,
    blocks: u32,
    /// Blocks that are not in their span's list.
    used: u32,
}

impl ClassSpans {
    const NONE: Self = Self {
        listed: ptr::null_mut(),
        depot: ptr::null_mut(),
        old: ptr::null_mut(),
        depot_chains: 0,
        empty: 0,
        rested: false,
        stirred: false,
        to_dig: false,
        spans: 0,
        blocks: 0,
        used: 0,
    };

    /// Whether the depot may take one list more.
    fn depot_has_room(&self, class: SizeClass, most: usize) -> bool {
        let owned_bytes = self.blocks as usize * class.block_bytes();
        let limit = match owned_bytes {
            // Nobody here asks for such blocks.
            0 => 0,
            _ => DEPOT_BYTES.max(owned_bytes / 2),
        };
        let list_bytes = most * class.block_bytes();
        let lists = self.depot_chains as usize + 1;
        lists * list_bytes <= limit && class.block_bytes() >= TWO_WORDS
    }

    /// Takes one list from the old part of the depot.
    fn take_old(&mut self) -> Option<*mut Slot> {
        let list = self.old;
        if list.is_null() {
            return None;
        }
        // SAFETY: D1: the list is the depot's and its first block has a second word.
        self.old = unsafe { Slot::below(list) };
        self.depot_chains -= 1;
        Some(list)
    }

    /// Enters a span in the list.
    ///
    /// # Safety
    /// The span is ours and not listed.
    unsafe fn list(&mut self, span: *mut Span) {
        // SAFETY: ours.
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
    unsafe fn unlist(&mut self, span: *mut Span) {
        // SAFETY: ours.
        let own = unsafe { Span::own(span) };
        debug_assert!(own.listed);
        let (next, prev) = (own.next, own.prev);
        own.listed = false;
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

/// Spans and depots of one owner, for one thread at a time.
#[derive(Debug)]
pub struct SpanSet {
    classes: [ClassSpans; CLASSES],
    policy: Policy,
    /// Whether what comes home now has been idle for long.
    aging: bool,
    /// Whether the bins in front belong to a guest (D8).
    guest: bool,
}

// SAFETY: the pointers lead to spans and free blocks that belong to the set, which moves between
// threads as a whole.
unsafe impl Send for SpanSet {}

impl Default for SpanSet {
    fn default() -> Self {
        Self::new(Policy::BALANCED)
    }
}

impl SpanSet {
    /// No spans.
    pub const fn new(policy: Policy) -> Self {
        Self {
            classes: [const { ClassSpans::NONE }; CLASSES],
            policy,
            aging: false,
            guest: false,
        }
    }

    /// No spans, and never a depot: for one heap over little memory.
    pub const fn without_depots() -> Self {
        Self::new(Policy {
            depots: false,
            ..Policy::BALANCED
        })
    }

    fn class(&mut self, class: SizeClass) -> &mut ClassSpans {
        &mut self.classes[class.index()]
    }

    /// Says whose bins are served from now on: those of a guest, which begin small, or not.
    pub const fn serve(&mut self, guest: bool) {
        self.guest = guest;
    }

    /// How many blocks a bin may hold from now on that is empty or full.
    fn next_capacity(&self, class: SizeClass, bin: &Bin) -> usize {
        let most = self.policy.bin_blocks(class);
        match self.guest {
            true => (2 * bin.capacity()).clamp(most.div_ceil(FIRST_PART), most),
            false => most,
        }
    }

    /// Finds a block for an empty bin, and more to put into it. `None` if there is no memory.
    ///
    /// O(1) but for blocks that other threads freed, each of which is walked over once.
    ///
    /// # Safety
    /// `owner` is the mailbox of this set, the same at every call and null if it has none; `bin`
    /// is a bin of the class for whoever holds this set; `pages` is always the same.
    pub unsafe fn refill(
        &mut self,
        owner: *const Mailbox,
        class: SizeClass,
        bin: &mut Bin,
        pages: &mut impl Pages,
    ) -> Option<Fresh> {
        debug_assert!(bin.is_empty());
        let most = self.policy.bin_blocks(class);
        if let Some(list) = self.take_depot(class) {
            return Some(first_of(bin, most, list, most));
        }
        // SAFETY: the caller's mailbox, of this set.
        unsafe { self.receive(owner, pages) };
        if self.class(class).listed.is_null() {
            let bytes = pages.span_bytes(class);
            let span = match bytes {
                0 => None,
                _ => pages.alloc_span(bytes),
            };
            let Some(memory) = span else {
                // The bin's first allocation gives it its room, however the block was found.
                bin.put(self.next_capacity(class, bin), ptr::null_mut(), 0);
                let block = pages.alloc_block(class.block_bytes(), class.block_align())?;
                let clean = false;
                return Some(Fresh { block, clean });
            };
            // SAFETY: the place is ours (promise 1 of Pages).
            unsafe { memory.record.write(Span::new(&memory, bytes, class, owner)) };
            // SAFETY: just made.
            unsafe { self.adopt(memory.record) };
        }
        // SAFETY: a span is listed now.
        unsafe { self.take_from_span(class, bin) }
    }

    /// Enters a fresh span.
    ///
    /// # Safety
    /// The record is ours and fresh.
    unsafe fn adopt(&mut self, span: *mut Span) {
        // SAFETY: ours.
        let shape = *unsafe { Span::shape(span) };
        let state = self.class(shape.class);
        state.spans += 1;
        state.blocks += shape.capacity;
        state.empty += 1;
        state.rested = false;
        // SAFETY: fresh spans are not listed.
        unsafe { state.list(span) };
    }

    /// Takes blocks from the first listed span.
    ///
    /// # Safety
    /// The class has a listed span.
    unsafe fn take_from_span(&mut self, class: SizeClass, bin: &mut Bin) -> Option<Fresh> {
        let bin_blocks = self.next_capacity(class, bin);
        let state = self.class(class);
        let span = state.listed;
        // SAFETY: listed spans are ours.
        let shape = unsafe { Span::shape(span) };
        // SAFETY: the same.
        let own = unsafe { Span::own(span) };
        if own.used() == 0 {
            state.empty -= 1;
            state.rested = false;
        }
        state.stirred = true;
        // Half a bin, so that the next free finds room.
        let most = (bin_blocks as u32 / 2).max(1);
        // SAFETY: our span.
        let (list, count) = unsafe { own.take_free(shape, most) };
        let fresh = if list.is_null() {
            // SAFETY: its own shape. A listed span without free blocks has blocks to carve (D2).
            let carved = unsafe { own.carve(shape, bin_blocks) }?;
            bin.put(bin_blocks, carved.rest, carved.rest_count as usize);
            state.used += carved.rest_count + 1;
            NonNull::new(carved.first).map(|block| Fresh {
                block,
                clean: carved.clean,
            })
        } else {
            state.used += count;
            Some(first_of(bin, bin_blocks, list, count as usize))
        };
        if !own.has_blocks(shape) {
            // SAFETY: it was the first of the list.
            unsafe { state.unlist(span) };
        }
        fresh
    }

    /// Makes room in a full bin: into the depot as a whole while that may grow, else back to the
    /// spans. O(1) or O(blocks).
    ///
    /// # Safety
    /// As [`refill`](Self::refill).
    pub unsafe fn make_room(
        &mut self,
        owner: *const Mailbox,
        class: SizeClass,
        bin: &mut Bin,
        pages: &mut impl Pages,
    ) {
        let next = self.next_capacity(class, bin);
        if self.guest && !bin.is_empty() && bin.len() < next && self.class(class).blocks > 0 {
            bin.widen(next);
            return;
        }
        let count = bin.len();
        let list = bin.take();
        let (has_depots, most) = (self.policy.depots, self.policy.bin_blocks(class));
        let state = self.class(class);
        match state.blocks {
            0 => bin.hold_few(next),
            _ => bin.put(next, ptr::null_mut(), 0),
        }
        if list.is_null() {
            return;
        }
        if has_depots && count == most && state.depot_has_room(class, most) {
            // SAFETY: the list is ours and its blocks have room for two words (D1).
            unsafe { Slot::set_below(list, state.depot) };
            state.depot = list;
            state.depot_chains += 1;
        } else {
            // SAFETY: the list was the bin's.
            unsafe { self.give_back(owner, list, pages) };
        }
    }

    /// Gives one block back past the bins.
    ///
    /// # Safety
    /// As [`refill`](Self::refill); `block` is a block with a class, given up by the caller.
    pub unsafe fn free(&mut self, owner: *const Mailbox, block: *mut u8, pages: &mut impl Pages) {
        let slot = block.cast::<Slot>();
        // SAFETY: the block is ours now.
        unsafe { Slot::set_next(slot, ptr::null_mut()) };
        // SAFETY: a list of one.
        unsafe { self.give_back(owner, slot, pages) };
    }

    /// Empties bins into the spans.
    ///
    /// # Safety
    /// As [`refill`](Self::refill), for every bin.
    pub unsafe fn flush(&mut self, owner: *const Mailbox, bins: &mut Bins, pages: &mut impl Pages) {
        for class in SizeClass::all() {
            let bin = bins.of(class);
            if !bin.is_empty() {
                let list = bin.take();
                // SAFETY: the list was the bin's.
                unsafe { self.give_back(owner, list, pages) };
            }
        }
    }

    /// Empties the depots, receives what others freed, releases every span without a used block, and
    /// discards the pages of others in which no block is used.
    ///
    /// # Safety
    /// As [`refill`](Self::refill).
    pub unsafe fn trim(&mut self, owner: *const Mailbox, pages: &mut impl Pages) {
        // SAFETY: the caller's mailbox.
        unsafe { self.receive(owner, pages) };
        for class in SizeClass::all() {
            while let Some(list) = self.take_depot(class) {
                // SAFETY: the list was the depot's.
                unsafe { self.give_back(owner, list, pages) };
            }
            // SAFETY: the same pages as always.
            unsafe { self.release_empty(class, pages) };
            let mut budget = usize::MAX;
            // SAFETY: the same.
            unsafe { self.dig(class, 0, &mut budget, pages) };
        }
    }

    /// Releases the spans of a class without a used block. O(listed spans).
    ///
    /// # Safety
    /// As [`refill`](Self::refill).
    unsafe fn release_empty(&mut self, class: SizeClass, pages: &mut impl Pages) {
        let mut span = self.class(class).listed;
        while !span.is_null() && self.class(class).empty > 0 {
            // SAFETY: listed spans are ours.
            let own = unsafe { Span::own(span) };
            let (next, idle) = (own.next, own.used() == 0);
            if idle {
                self.class(class).empty -= 1;
                // SAFETY: listed, ours, without used blocks.
                unsafe { self.release(span, pages) };
            }
            span = next;
        }
    }

    /// Moves what other threads freed into the spans.
    ///
    /// # Safety
    /// As [`refill`](Self::refill).
    pub unsafe fn receive(&mut self, owner: *const Mailbox, pages: &mut impl Pages) {
        // SAFETY: null, or the mailbox of this set, which lives as long as its spans.
        let Some(mailbox) = (unsafe { owner.as_ref() }) else {
            return;
        };
        if mailbox.is_empty() {
            return;
        }
        let mut span = mailbox.take();
        while !span.is_null() {
            // SAFETY: taken from the mailbox, list not yet emptied.
            let next = unsafe { Span::mail(span) };
            // SAFETY: taken from our mailbox.
            let count = unsafe { Span::receive(span) };
            // SAFETY: ours; `count` blocks have come home.
            unsafe { self.came_home(span, count, pages) };
            span = next;
        }
    }

    /// Gives a list of blocks back to their spans, a group for each run of blocks of one span.
    ///
    /// # Safety
    /// As [`refill`](Self::refill); the list satisfies L1 and is the caller's.
    unsafe fn give_back(&mut self, owner: *const Mailbox, list: *mut Slot, pages: &mut impl Pages) {
        let mut slot = list;
        while !slot.is_null() {
            let Some(span) = pages.span_of(slot.cast()) else {
                // SAFETY: L1.
                let next = unsafe { Slot::next(slot) };
                // SAFETY: what lies in no span was given singly.
                unsafe { pages.free_block(slot.cast()) };
                slot = next;
                continue;
            };
            let span = span.as_ptr();
            // SAFETY: we hold a block of it.
            let shape = unsafe { Span::shape(span) };
            let mut chain = Chain::one(slot);
            // SAFETY: L1.
            let mut next = unsafe { Slot::next(slot) };
            while !next.is_null()
                && next.addr().wrapping_sub(shape.base.addr()) < shape.bytes as usize
            {
                chain.tail = next;
                chain.count += 1;
                // SAFETY: L1.
                next = unsafe { Slot::next(next) };
            }
            if ptr::eq(shape.owner, owner) {
                // SAFETY: our span.
                let own = unsafe { Span::own(span) };
                // SAFETY: its blocks, which were ours.
                unsafe { own.give(chain) };
                // SAFETY: our span.
                unsafe { self.came_home(span, chain.count, pages) };
            } else {
                // SAFETY: blocks of this span, which were ours.
                unsafe { Span::give_remote(span, chain) };
            }
            slot = next;
        }
    }

    /// Books `count` blocks that have come home to a span: lists it, or releases it.
    ///
    /// # Safety
    /// The span is ours.
    unsafe fn came_home(&mut self, span: *mut Span, count: u32, pages: &mut impl Pages) {
        if count == 0 {
            return;
        }
        // SAFETY: ours.
        let shape = unsafe { Span::shape(span) };
        // SAFETY: the same.
        let own = unsafe { Span::own(span) };
        let (idle, listed) = (own.used() == 0, own.listed);
        let keeps_empty = self.policy.keeps_empty;
        let aging = self.aging;
        let state = self.class(shape.class);
        state.used -= count;
        if aging {
            own.rest = RIPE;
            state.to_dig = true;
        } else {
            state.stirred = true;
        }
        if !listed {
            // SAFETY: it is not listed.
            unsafe { state.list(span) };
        }
        if idle && (state.empty > 0 || !keeps_empty) {
            // SAFETY: listed, without used blocks.
            unsafe { self.release(span, pages) };
        } else if idle {
            state.empty += 1;
            state.rested = false;
        }
    }

    /// Gives a span's memory back.
    ///
    /// # Safety
    /// The span is ours, listed, and has no used block; `empty` does not count it.
    unsafe fn release(&mut self, span: *mut Span, pages: &mut impl Pages) {
        // SAFETY: ours.
        let shape = *unsafe { Span::shape(span) };
        let state = self.class(shape.class);
        state.spans -= 1;
        state.blocks -= shape.capacity;
        // SAFETY: it is listed.
        unsafe { state.unlist(span) };
        // SAFETY: S5.
        unsafe { pages.free_span(span) };
    }

    /// Takes one list from the depot, the youngest.
    fn take_depot(&mut self, class: SizeClass) -> Option<*mut Slot> {
        let state = self.class(class);
        let list = state.depot;
        if list.is_null() {
            return state.take_old();
        }
        // SAFETY: D1: the list is the depot's and its first block has a second word.
        state.depot = unsafe { Slot::below(list) };
        state.depot_chains -= 1;
        Some(list)
    }

    /// What the set holds of a class. O(1).
    pub const fn usage(&self, class: SizeClass, span_bytes: usize) -> ClassUsage {
        let state = &self.classes[class.index()];
        ClassUsage {
            spans: state.spans as u64,
            span_bytes: state.spans as u64 * span_bytes as u64,
            used_blocks: state.used as u64,
            depot_blocks: state.depot_chains as u64 * self.policy.bin_blocks(class) as u64,
        }
    }

    /// Walks everything the set reaches: whether D1..D3 and S2 hold.
    pub fn is_sound(&self) -> bool {
        SizeClass::all().all(|class| self.class_is_sound(class))
    }

    fn class_is_sound(&self, class: SizeClass) -> bool {
        let state = &self.classes[class.index()];
        let (mut empty, mut prev, mut span) = (0, ptr::null_mut(), state.listed);
        while !span.is_null() {
            // SAFETY: listed spans are ours.
            let shape = unsafe { Span::shape(span) };
            // SAFETY: the same.
            let own = unsafe { Span::own(span) };
            // SAFETY: its own shape.
            let sound = unsafe { own.is_sound(shape) };
            if !sound || !own.listed || own.prev != prev || !own.has_blocks(shape) {
                return false;
            }
            empty += u32::from(own.used() == 0);
            (prev, span) = (span, own.next);
        }
        let mut chains = 0;
        for mut list in [state.depot, state.old] {
            while !list.is_null() {
                chains += 1;
                if list_len(list) != self.policy.bin_blocks(class) {
                    return false;
                }
                // SAFETY: D1.
                list = unsafe { Slot::below(list) };
            }
        }
        empty == state.empty && empty <= 1 && chains == state.depot_chains
    }
}

/// Takes the first of a list of `count` blocks and leaves the rest in the bin.
fn first_of(bin: &mut Bin, most: usize, list: *mut Slot, count: usize) -> Fresh {
    bin.put(most, list, count);
    // SAFETY: the list satisfies L1.
    let block = unsafe { Bin::pop(bin) };
    // A list has a first slot; the arm for null keeps this free of a panic.
    Fresh {
        block: NonNull::new(block).unwrap_or(NonNull::dangling()),
        clean: false,
    }
}

/// Length of a list that satisfies L1.
fn list_len(list: *mut Slot) -> usize {
    let (mut count, mut slot) = (0, list);
    while !slot.is_null() {
        count += 1;
        // SAFETY: L1.
        slot = unsafe { Slot::next(slot) };
    }
    count
}
