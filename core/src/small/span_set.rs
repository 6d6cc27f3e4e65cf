//! [`SpanSet`]: the spans of one owner, and its transfer caches.
//!
//! A thread cache calls the set when one of its bins is empty or full. Each call moves many blocks.
//!
//! ```text
//!    bin ──full──► transfer cache (a whole list, O(1)) ──over its limit──► spans, grouped
//!    bin ◄─empty── transfer cache, else remote frees, else a span's list or fresh blocks, else a new span
//! ```
//!
//! # Invariants
//! * SET1 a transfer cache consists of stacks of lists. Each list has at most as many blocks as the policy allows a bin,
//!   is linked to the next by the second word of its first block, and has its length in the second word of its second
//!   block. Blocks without a second word have no transfer cache.
//! * SET2 a span is listed if and only if it has a free or uncarved block.
//! * SET3 `empty` is the listed span without a used block. At most one is kept.
//! * SET4 `spans` and `blocks` count the spans owned and their capacity.
//! * SET5 lists are pushed on the stack `transfer` and taken from it first; `old` has the lists that were in the
//!   transfer cache at the last [`age`](SpanSet::age) and have not been needed since. `left` has those that
//!   [`leave_idle`](SpanSet::leave_idle) found: they are taken last, and not by ticks.
//! * SET6 a class is `idle` only if it has no span without used blocks, or if it has had that span since the last
//!   `age`.
//! * SET7 a class is `touched` if a block of its spans came back or was taken since the last walk began, and
//!   `to_scan` if an idle span has not been scanned.
//! * SET8 `received` is the rest of the spans taken from the remote-free queue: their remote lists have not been
//!   emptied, so their links are whole (REMOTE1).

mod aging;
mod capacity;
mod check;
mod class_spans;
mod give_back;
mod growth;
#[cfg(not(larder_loom))]
mod in_place;
mod walk;

#[cfg(all(test, not(larder_loom)))]
mod bounded_tests;
#[cfg(all(test, not(larder_loom)))]
mod cache_bytes_tests;
#[cfg(all(test, not(larder_loom)))]
mod tests;

use core::ptr::{self, NonNull};

use self::class_spans::{ClassSpans, TransferList};
use self::give_back::RECEIVED;
use self::walk::SetWalk;
use super::class::{CLASSES, SizeClass};
use super::pages::Pages;
use super::remote::RemoteQueue;
use super::slot::{Links, Slot};
use super::span::Span;
use super::thread_cache::ThreadCache;
use super::thread_heap::LostBins;

/// The bounds on the free blocks that a set and its thread cache keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Bytes that a bin may hold; it holds at least one block, and at most 256.
    pub bin_bytes: u32,
    /// Whether there are transfer caches. Without them, freed blocks return to their spans sooner. So spans become
    /// idle, and blocks that are carved from them again are in order.
    pub transfer_caches: bool,
    /// Whether bins begin with their full capacity. Lists are then mostly taken as a whole, and no link is followed
    /// before its block has been checked.
    pub whole_bins: bool,
    /// The form of the links between free blocks.
    pub links: Links,
}

impl Policy {
    /// Balances time and memory.
    pub const BALANCED: Self = Self {
        bin_bytes: 32 << 10,
        transfer_caches: true,
        whole_bins: false,
        links: Links::PLAIN,
    };

    /// For a heap over little memory.
    pub(super) const WITHOUT_TRANSFER_CACHES: Self = Self {
        transfer_caches: false,
        ..Self::BALANCED
    };

    /// Returns the maximum number of blocks in a bin.
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

/// A set's spans and blocks of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassUsage {
    /// Number of spans.
    pub spans: u64,
    /// Their total length, in bytes.
    pub span_bytes: u64,
    /// Blocks not in a span's own list: in use by the program, in thread caches, in transfer caches, or freed by
    /// another thread and not yet received.
    pub used_blocks: u64,
    /// The part of `used_blocks` in the transfer cache.
    pub transfer_blocks: u64,
}

/// Spans and transfer caches of one owner, for one thread at a time.
#[derive(Debug)]
pub struct SpanSet {
    classes: [ClassSpans; CLASSES],
    policy: Policy,
    /// Spans with remote frees, taken from the remote-free queue and not received yet (SET8).
    received: *mut Span,
    /// Whether the blocks that are coming back have been idle for long.
    aging: bool,
    /// The walk under way.
    walk: SetWalk,
    /// Bytes of spans made since the last turn of flushing cached lists began.
    made_bytes: usize,
    /// The value of `made_bytes` at which a turn is considered next.
    asked_bytes: usize,
    /// Lists still to flush in the turn under way; see [`flush_is_due`](Self::flush_is_due).
    lists_to_flush: usize,
    /// Number of spans visited by walks.
    #[cfg(test)]
    looks: usize,
}

// SAFETY: the pointers lead to spans and free blocks that belong to the set, which moves between threads as a whole.
unsafe impl Send for SpanSet {}

impl Default for SpanSet {
    fn default() -> Self {
        Self::new(Policy::BALANCED)
    }
}

impl SpanSet {
    /// Creates a set without spans.
    pub const fn new(policy: Policy) -> Self {
        Self {
            classes: [const { ClassSpans::NONE }; CLASSES],
            policy,
            received: ptr::null_mut(),
            aging: false,
            walk: SetWalk::None,
            made_bytes: 0,
            asked_bytes: 0,
            lists_to_flush: 0,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Creates a set without spans that never has a transfer cache, for one heap over little memory.
    pub const fn without_transfer_caches() -> Self {
        Self::new(Policy::WITHOUT_TRANSFER_CACHES)
    }

    /// Sets the policy of an empty set.
    pub(super) const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    fn class(&mut self, class: SizeClass) -> &mut ClassSpans {
        &mut self.classes[class.index()]
    }

    /// Returns how free blocks are linked, including those in the caches that the set serves.
    pub const fn links(&self) -> Links {
        self.policy.links
    }

    /// Finds a block for an empty bin, and more to put into it. Returns `None` if there is no memory.
    ///
    /// O(1), plus O(spans with remote frees), at most 256. Once in 16 MiB of new spans, and under pressure, cached
    /// lists of other classes are flushed: at most 4096 blocks in a call, plus the rest of the last list. In a cache
    /// that has all the bytes that it may have, another bin may lose a quarter of its blocks.
    ///
    /// # Safety
    /// `owner` is the remote-free queue of this set, or null if it has none; `cache` belongs to the holder of this
    /// set; `owner` and `pages` are the same at every call.
    pub unsafe fn refill(
        &mut self,
        owner: *const RemoteQueue,
        class: SizeClass,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) -> Option<Fresh> {
        debug_assert!(cache.of(class).is_empty());
        let max = self.policy.bin_blocks(class);
        if let Some(list) = self.take_transfer(class) {
            // SAFETY: the caller promises queue, cache and pages of this set.
            let capacity = unsafe { self.allowed_capacity(owner, class, max, cache, pages) };
            let (most, links) = (Self::max_taken(class, capacity, cache, pages), self.links());
            // SAFETY: the list came from the transfer cache.
            let list = unsafe { self.class(class).keep_some(list, most, links) };
            return Some(first_of(cache, class, capacity, list, links));
        }
        if self.early_flush_is_due(pages.under_pressure(), || pages.free_bytes()) {
            let bytes = max * class.block_bytes();
            // SAFETY: the caller promises queue, cache and pages of this set, the same at every call.
            unsafe { self.flush_some(owner, cache, bytes, pages) };
        }
        // SAFETY: the caller promises the remote-free queue and the pages of this set.
        unsafe { self.receive(owner, pages) };
        if self.class(class).listed.is_null() {
            let bytes = pages.span_bytes(class);
            let span = match bytes {
                0 => None,
                // SAFETY: the caller promises queue, cache and pages of this set, the same at every call.
                _ => unsafe { self.find_span(owner, class, cache, pages) },
            };
            let Some(memory) = span else {
                // The bin's first allocation sets its capacity, however the block was found.
                let next = self.next_capacity(class, cache.of(class));
                // SAFETY: the caller promises queue, cache and pages of this set.
                let capacity = unsafe { self.allowed_capacity(owner, class, next, cache, pages) };
                cache.put(class, capacity, ptr::null_mut(), 0);
                let block = pages.alloc_block(class.block_bytes(), class.block_align())?;
                let clean = false;
                return Some(Fresh { block, clean });
            };
            let fresh = Span::new(&memory, bytes, class, owner, self.links());
            // SAFETY: the place is new, and belongs to this set alone (promise 1 of Pages).
            unsafe { memory.record.write(fresh) };
            // SAFETY: the record was written by the line above.
            unsafe { self.adopt(memory.record) };
        }
        let next = self.next_capacity(class, cache.of(class));
        // SAFETY: the caller promises queue, cache and pages of this set.
        let capacity = unsafe { self.allowed_capacity(owner, class, next, cache, pages) };
        // SAFETY: a span of the class is listed now: blocks of other bins can only have been added to spans.
        unsafe { self.take_from_span(class, capacity, cache, pages) }
    }

    /// Flushes lists of the transfer caches, and releases spans without a used block, as long as `pay` returns true for
    /// the class and number of blocks of the next list. Returns whether all lists were flushed.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn flush_while(
        &mut self,
        owner: *const RemoteQueue,
        mut pay: impl FnMut(SizeClass, usize) -> bool,
        pages: &mut impl Pages,
    ) -> bool {
        for class in SizeClass::all() {
            while self.class(class).transfer_lists > 0 {
                if !pay(class, self.policy.bin_blocks(class)) {
                    return false;
                }
                if let Some(list) = self.take_transfer(class) {
                    // SAFETY: the list came from the transfer cache, so its blocks are free and belong to this set
                    // (SLOT1).
                    unsafe { self.give_back(owner, list.head, pages) };
                }
            }
            // SAFETY: the caller passes the same `pages` at every call.
            unsafe { self.release_empty(class, pages) };
        }
        true
    }

    /// Adds a fresh span.
    ///
    /// # Safety
    /// The record is fresh and belongs to this set.
    unsafe fn adopt(&mut self, span: *mut Span) {
        // SAFETY: the record belongs to this set, so its shape may be read (SPAN1).
        let shape = *unsafe { Span::shape(span) };
        self.made_bytes += shape.bytes as usize;
        let state = self.class(shape.class());
        state.spans += 1;
        state.blocks += u64::from(shape.capacity);
        state.empty = span;
        state.idle = false;
        // SAFETY: a fresh span is not listed.
        unsafe { state.list(span) };
    }

    /// Takes blocks from the first listed span, into a bin that may have `bin_blocks` blocks.
    ///
    /// # Safety
    /// The class has a listed span.
    unsafe fn take_from_span(
        &mut self,
        class: SizeClass,
        bin_blocks: usize,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) -> Option<Fresh> {
        let state = self.class(class);
        let span = state.listed;
        // SAFETY: a listed span belongs to this set, so its shape may be read (SPAN1).
        let shape = unsafe { Span::shape(span) };
        // SAFETY: a listed span belongs to this set, and no other reference to its own part exists (SPAN3).
        let own = unsafe { Span::own(span) };
        if own.used() == 0 {
            state.empty = ptr::null_mut();
            state.idle = false;
        }
        state.touched = true;
        // At most half a bin is filled, so that the next free finds room.
        let max = (bin_blocks as u32 / 2).max(1);
        let most = Self::max_taken(class, bin_blocks, cache, pages).min(u32::MAX as usize) as u32;
        let holes = own.hole_bytes();
        // SAFETY: the span is listed, so it belongs to this set, and the shape is its own.
        let (list, count) = unsafe { own.take_free(shape, max, most) };
        if own.hole_bytes() < holes {
            pages.note_reused(holes - own.hole_bytes());
        }
        let fresh = if list.is_null() {
            // SAFETY: the shape is the span's own. A listed span without free blocks has blocks to carve (SET2).
            let carved = unsafe { own.carve(shape, bin_blocks.max(1)) }?;
            cache.put(class, bin_blocks, carved.rest, carved.rest_count as usize);
            state.used += u64::from(carved.rest_count) + 1;
            NonNull::new(carved.first).map(|block| Fresh {
                block,
                clean: carved.clean,
            })
        } else {
            state.used += u64::from(count);
            let list = TransferList {
                head: list,
                count: count as usize,
            };
            Some(first_of(cache, class, bin_blocks, list, shape.links))
        };
        if !own.has_blocks(shape) {
            // SAFETY: the span was the first of the list.
            unsafe { state.unlist(span) };
        }
        fresh
    }

    /// Makes room in a full bin, if the cache may have a bin of the class. The bin's blocks go to the transfer cache as
    /// a whole if the transfer cache may grow, and otherwise back to the spans. O(1) or O(blocks); in a cache that has
    /// all the bytes that it may have, another bin may lose a quarter of its blocks.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn make_room(
        &mut self,
        owner: *const RemoteQueue,
        class: SizeClass,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) {
        let next = self.next_capacity(class, cache.of(class));
        // SAFETY: the caller promises queue, cache and pages of this set.
        let next = unsafe { self.allowed_capacity(owner, class, next, cache, pages) };
        let bin = cache.of(class);
        let count = bin.len();
        if count > 0 && count < next && self.class(class).blocks > 0 {
            cache.set_capacity(class, next);
            return;
        }
        let head = bin.take();
        cache.put(class, next, ptr::null_mut(), 0);
        if head.is_null() {
            return;
        }
        // A longer list would exceed the bound of a step that takes lists from the transfer cache.
        let may_transfer = self.policy.transfer_caches && count <= self.policy.bin_blocks(class);
        let links = self.links();
        let state = self.class(class);
        if may_transfer && state.transfer_has_room(class, count) && !pages.under_pressure() {
            // SAFETY: the list came from the bin, and its blocks have room for two words (SET1).
            unsafe { state.push(TransferList { head, count }, links) };
        } else {
            // SAFETY: the list came from the bin, so its blocks are free and belong to this set (SLOT1).
            unsafe { self.give_back(owner, head, pages) };
        }
    }

    /// Returns one block to its span, bypassing the cache.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill); `block` has a class, and the caller no longer uses it.
    pub unsafe fn free(
        &mut self,
        owner: *const RemoteQueue,
        block: *mut u8,
        pages: &mut impl Pages,
    ) {
        let slot = block.cast::<Slot>();
        // SAFETY: the caller no longer uses the block, so it is free and belongs to this set.
        unsafe { self.links().set_next(slot, ptr::null_mut()) };
        // SAFETY: a list of one free block, linked by the line above.
        unsafe { self.give_back(owner, slot, pages) };
    }

    /// Flushes a thread cache into the spans, resets the capacity of its bins, and frees its large blocks. O(blocks in
    /// it).
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill), for every bin.
    pub unsafe fn flush(
        &mut self,
        owner: *const RemoteQueue,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) {
        let mut all = usize::MAX;
        // SAFETY: the conditions hold for every bin, and so for those from the first class on.
        unsafe { self.flush_from(0, owner, cache, &mut all, pages) };
    }

    /// Flushes a thread cache as [`flush`](Self::flush) does, from class `first` on. Subtracts the cost, in blocks,
    /// from `budget`. Returns the class to continue with, or [`CLASSES`] if all bins were flushed, and then also the
    /// large blocks. A call ends with the bin that exceeds the budget.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill), for those bins.
    pub unsafe fn flush_from(
        &mut self,
        first: usize,
        owner: *const RemoteQueue,
        cache: &mut ThreadCache,
        budget: &mut usize,
        pages: &mut impl Pages,
    ) -> usize {
        for class in SizeClass::all().skip(first) {
            let bin = cache.of(class);
            if !bin.is_empty() && *budget == 0 {
                return class.index();
            }
            *budget = budget.saturating_sub(bin.len());
            // SAFETY: the conditions of `refill` hold for each bin of this cache.
            unsafe { self.empty_bin(owner, class, cache, pages) };
        }
        Self::flush_large(cache, pages);
        CLASSES
    }

    /// Frees the large blocks of a thread cache, which the caller owns. Returns whether there were any.
    pub fn flush_large(cache: &mut ThreadCache, pages: &mut impl Pages) -> bool {
        let mut any = false;
        while let Some(block) = NonNull::new(cache.evict_large()) {
            any = true;
            // SAFETY: the block was in the cache, so it is the caller's (LARGE1).
            unsafe { pages.free_block(block.as_ptr()) };
        }
        any
    }

    /// Returns the blocks of a bin to their spans and resets its capacity. O(blocks in it).
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill), for that bin.
    unsafe fn empty_bin(
        &mut self,
        owner: *const RemoteQueue,
        class: SizeClass,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) {
        let list = cache.of(class).take();
        cache.put(class, 0, ptr::null_mut(), 0);
        // SAFETY: the list came from the bin, so its blocks are free and belong to this set (SLOT1).
        unsafe { self.give_back(owner, list, pages) };
    }

    /// Flushes the bins of classes of which the set owns no span; the blocks there belong to other owners. O(classes +
    /// blocks in them).
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill), for those bins.
    pub unsafe fn flush_foreign(
        &mut self,
        owner: *const RemoteQueue,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) {
        for class in SizeClass::all() {
            if !cache.of(class).is_empty() && self.class(class).blocks == 0 {
                // SAFETY: the conditions of `refill` hold for each bin of this cache.
                unsafe { self.empty_bin(owner, class, cache, pages) };
            }
        }
    }

    /// Flushes the bins of the long classes into the spans, and frees large blocks, as far as their owner has lost them.
    /// These blocks count as idle for long.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill), for those bins; the rest of the cache is not touched.
    pub unsafe fn take_long(
        &mut self,
        owner: *const RemoteQueue,
        lost: &LostBins,
        pages: &mut impl Pages,
    ) {
        // SAFETY: the caller promises the large blocks.
        let take = || unsafe { ThreadCache::take_unused_large(lost.cache, &lost.large) };
        while let Some(block) = NonNull::new(take()) {
            // SAFETY: the block was in the cache, so it is the caller's now (LARGE1).
            unsafe { pages.free_block(block.as_ptr()) };
        }
        self.aging = true;
        for class in SizeClass::long().filter(|_| lost.long) {
            // SAFETY: the caller promises the bins of the long classes.
            let list = unsafe { (*ThreadCache::bin_of(lost.cache, class)).take() };
            // SAFETY: the list came from the bin, so its blocks are free and belong to this set (SLOT1).
            unsafe { self.give_back(owner, list, pages) };
        }
        self.aging = false;
    }

    /// Flushes the transfer caches, receives remote frees, releases every span without a used block, and discards pages
    /// of other spans in which no block is used. Subtracts the cost, in blocks, from `budget`. Returns whether the trim
    /// is complete; if not, call it again, and let other threads work in between.
    ///
    /// Only spans with changes since their last scan are visited, unless [`forget_looks`](Self::forget_looks) was
    /// called.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn trim(
        &mut self,
        owner: *const RemoteQueue,
        budget: &mut usize,
        pages: &mut impl Pages,
    ) -> bool {
        // SAFETY: the caller promises the remote-free queue and the pages of this set.
        if !unsafe { self.receive(owner, pages) } {
            *budget = budget.saturating_sub(RECEIVED);
            return false;
        }
        let pay = |_, count| {
            let may = *budget > 0;
            *budget = budget.saturating_sub(count);
            may
        };
        // SAFETY: `owner` is this set's remote-free queue, or null, and `pages` are those of every call.
        if !unsafe { self.flush_while(owner, pay, pages) } {
            return false;
        }
        // SAFETY: the caller passes the same `pages` at every call.
        unsafe { self.walk(SetWalk::Trim, budget, pages) }
    }

    /// Takes the youngest list from the transfer cache.
    fn take_transfer(&mut self, class: SizeClass) -> Option<TransferList> {
        let links = self.links();
        self.class(class).take(links)
    }

    /// Returns the set's spans and blocks of a class. O(1).
    pub const fn usage(&self, class: SizeClass, span_bytes: usize) -> ClassUsage {
        let state = &self.classes[class.index()];
        ClassUsage {
            spans: state.spans as u64,
            span_bytes: state.spans as u64 * span_bytes as u64,
            used_blocks: state.used,
            transfer_blocks: state.transfer_blocks,
        }
    }
}

/// Takes the first block of a list, and puts the rest in the bin of its class. If the rest is longer than `capacity`, the
/// bin's capacity is longer still, so that the next frees find room.
fn first_of(
    cache: &mut ThreadCache,
    class: SizeClass,
    capacity: usize,
    list: TransferList,
    links: Links,
) -> Fresh {
    // SAFETY: the list satisfies SLOT1 and belongs to the caller, so its first word is a link.
    let rest = unsafe { links.next(list.head) };
    let count = list.count - 1;
    let capacity = match count > capacity {
        true => count + capacity / 4,
        false => capacity,
    };
    cache.put(class, capacity, rest, count);
    // A list has a first slot; the other value avoids a panic.
    Fresh {
        block: NonNull::new(list.head.cast()).unwrap_or(NonNull::dangling()),
        clean: false,
    }
}
