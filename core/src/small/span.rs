//! Spans: runs of pages that are cut into blocks of one class, and the record of each span.
//!
//! The record is kept apart from the blocks. Records at the front of spans of 64 KiB would all fall on the same few
//! cache sets, and blocks of a power of two bytes would lose their alignment.
//!
//! ```text
//!   base                      base + carved * block              base + bytes
//!    │ block │ block │ block │ ... │ never carved: pages not touched yet │
//! ```
//!
//! # Invariants, for the record of a span in use
//! * SPAN1 its [`SpanShape`] does not change while a block of the span is used, so any holder of such a block may read
//!   the shape without a lock.
//! * SPAN2 `used + free_count + received_count + holed = carved <= capacity`: a block is used while it is in the
//!   program's hands, a bin, a transfer cache or the remote list; otherwise it is in `free` or `received`, which
//!   satisfy SLOT1, or it is holed, which means that it overlaps a hole (SPAN6).
//! * SPAN3 [`Own`] belongs to the owner, behind its lock; no other thread reads it.
//! * SPAN4 memory from `base + carved * block` on has not been written since the span was made; if `clean`, it reads as
//!   zero.
//! * SPAN5 a span is released only with `used = 0`; no thread can then reach its record (REMOTE2).
//! * SPAN6 in a hole no block is used or listed, so its memory, which may be gone, is neither read nor written.
//! * SPAN7 `rest` is 0 once a block of the span has been taken or has come back, and only ticks raise it; the set
//!   defines its values (`span_set/walk.rs`).

mod scanning;

use core::ptr;

use super::class::SizeClass;
use super::holes::{Grid, Holes};
use super::remote::{MAX_BLOCKS, MAX_SPAN_BYTES, RemoteList, RemoteQueue};
use super::slot::{Chain, Links, Slot};
use crate::sync::Cell;

/// Bounds on the bytes carved at a time. In memory that reads as zero, each call carves the lower bound: a thread that
/// needs few blocks of a class then touches few pages, and the first touch of a page costs more than the call. In
/// memory whose pages already exist, each call carves as many bytes as were carved before, up to the upper bound.
const CARVE_BYTES: core::ops::RangeInclusive<usize> = 4 << 10..=16 << 10;

/// Memory for a new span, from [`Pages`](super::Pages).
#[derive(Clone, Copy, Debug)]
pub struct SpanMemory {
    /// The place for the record.
    pub record: *mut Span,
    /// First byte, at a multiple of [`MAX_SMALL_ALIGN`](super::MAX_SMALL_ALIGN).
    pub base: *mut u8,
    /// Whether all of the memory reads as zero.
    pub clean: bool,
}

/// The record of a span. It is accessed through raw pointers, because its parts belong to different threads.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Span {
    shape: SpanShape,
    own: Own,
    queue_link: Cell<*mut Span>,
    /// Last slot of the remote list, which is the last of the chain pushed first.
    remote_tail: Cell<*mut Slot>,
    remote: RemoteList,
}

/// The part of a span's record that any holder of a block may read.
#[derive(Clone, Copy, Debug)]
pub struct SpanShape {
    /// First byte of the span's blocks.
    pub base: *mut u8,
    /// The queue in which the span's remote frees are announced. It identifies the owner.
    pub owner: *const RemoteQueue,
    /// Length in bytes.
    pub bytes: u32,
    /// Length of a block.
    pub block_bytes: u32,
    /// Number of blocks that fit.
    pub capacity: u32,
    class: u8,
    /// The form of the links between the span's free blocks.
    pub links: Links,
}

/// The owner's part of a span's record.
#[derive(Debug)]
pub(super) struct Own {
    /// Neighbours in the owner's list of spans with free or uncarved blocks, and whether the span is in that list.
    pub(super) next: *mut Span,
    pub(super) prev: *mut Span,
    free: *mut Slot,
    /// Blocks freed by other threads. These blocks are in another processor's cache, so the list is taken as a whole
    /// and not walked.
    received: *mut Slot,
    /// Counts of blocks, at most [`MAX_BLOCKS`].
    free_count: u16,
    received_count: u16,
    carved: u16,
    used: u16,
    pub(super) listed: bool,
    clean: bool,
    pub(super) rest: u8,
    holes: Holes,
}

/// Blocks carved from a span: the first block, and a list of the others.
pub(super) struct Carved {
    pub(super) first: *mut u8,
    /// First slot of the other blocks, or null.
    pub(super) rest: *mut Slot,
    pub(super) rest_count: u32,
    /// Whether the first block reads as zero.
    pub(super) clean: bool,
}

#[cfg(all(not(larder_loom), target_pointer_width = "64"))]
const _: () = assert!(size_of::<Span>() == 128);

impl SpanShape {
    /// Returns the class of the span's blocks.
    #[inline]
    pub const fn class(&self) -> SizeClass {
        SizeClass::from_entry(self.class)
    }

    /// Returns the block with this number.
    const fn block(&self, number: usize) -> *mut u8 {
        self.base.wrapping_add(number * self.block_bytes as usize)
    }

    /// Returns the number of the block that starts here.
    fn number(&self, block: *mut u8) -> usize {
        block.addr().wrapping_sub(self.base.addr()) / self.block_bytes as usize
    }

    /// Returns whether `block` is the first byte of a block, carved or not.
    pub fn is_block(&self, block: *mut u8) -> bool {
        let offset = block.addr().wrapping_sub(self.base.addr());
        let block_bytes = self.block_bytes as usize;
        offset / block_bytes < self.capacity as usize && offset.is_multiple_of(block_bytes)
    }
}

impl Span {
    /// Creates the record of a fresh span over `bytes` bytes at `base`.
    pub fn new(
        memory: &SpanMemory,
        bytes: usize,
        class: SizeClass,
        owner: *const RemoteQueue,
        links: Links,
    ) -> Self {
        let block_bytes = class.block_bytes();
        let capacity = bytes / block_bytes;
        debug_assert!(bytes <= MAX_SPAN_BYTES && capacity <= MAX_BLOCKS as usize);
        Self {
            shape: SpanShape {
                base: memory.base,
                owner,
                bytes: bytes as u32,
                block_bytes: block_bytes as u32,
                capacity: capacity as u32,
                class: class.index() as u8,
                links,
            },
            own: Own {
                next: ptr::null_mut(),
                prev: ptr::null_mut(),
                free: ptr::null_mut(),
                received: ptr::null_mut(),
                free_count: 0,
                received_count: 0,
                carved: 0,
                used: 0,
                listed: false,
                clean: memory.clean,
                rest: 0,
                holes: Holes::NONE,
            },
            queue_link: Cell::new(ptr::null_mut()),
            remote_tail: Cell::new(ptr::null_mut()),
            remote: RemoteList::new(),
        }
    }

    /// Returns the part of the record that any holder of a block may read.
    ///
    /// # Safety
    /// The caller holds a block of the span, or is its owner (SPAN1).
    #[inline]
    pub const unsafe fn shape<'a>(span: *const Self) -> &'a SpanShape {
        // SAFETY: the shape is not written while the caller holds a block or owns the span (SPAN1).
        unsafe { &(*span).shape }
    }

    /// Returns the owner's part.
    ///
    /// # Safety
    /// The caller is the owner (SPAN3) and holds no other such reference to this span.
    #[inline]
    pub(super) const unsafe fn own<'a>(span: *mut Self) -> &'a mut Own {
        // SAFETY: the caller is the owner, and its part is accessed by no other thread (SPAN3).
        unsafe { &mut (*span).own }
    }

    /// Moves remote frees into the span's own list. Returns their number. O(1).
    ///
    /// # Safety
    /// The owner took the span from its remote-free queue (REMOTE2).
    pub(super) unsafe fn receive(span: *mut Self) -> u32 {
        // SAFETY: the owner may read the shape (SPAN1).
        let shape = unsafe { Self::shape(span) };
        // SAFETY: the record exists as long as the span.
        let tail = unsafe { &raw const (*span).remote_tail };
        // SAFETY: the announcer wrote the tail, and no other thread writes it until the list has been emptied
        // (REMOTE1).
        let tail = unsafe { Cell::read(tail) };
        // SAFETY: any thread may access the remote list of an existing span.
        let (head, count) = unsafe { &(*span).remote }.take(shape.base);
        if count == 0 {
            return 0;
        }
        // SAFETY: the caller is the owner, and holds no other reference to its part (SPAN3).
        let own = unsafe { Self::own(span) };
        // SAFETY: these are blocks of this span, taken from its remote list.
        unsafe { own.receive(shape, Chain { head, tail, count }) };
        count
    }

    /// Returns blocks to the span's owner from another thread.
    ///
    /// # Safety
    /// `span` is the record of a span in use; the chain's blocks are in it and belong to the caller.
    pub unsafe fn give_remote(span: *mut Self, chain: Chain) {
        // SAFETY: the span is in use and the caller holds a block of it, so the caller may read the shape and access
        // the remote list.
        let (shape, remote) = unsafe { (*Self::shape(span), &(*span).remote) };
        let SpanShape {
            base, owner, links, ..
        } = shape;
        // SAFETY: the chain's blocks lie in this span and belong to the caller.
        if unsafe { remote.push(base, chain, links) } {
            // SAFETY: this push made the list non-empty, so only this thread may write the tail (REMOTE1).
            unsafe { Cell::write(&raw const (*span).remote_tail, chain.tail) };
            // SAFETY: an owner outlives its spans; REMOTE2 keeps the span until it is announced.
            let owner = unsafe { &*owner };
            // SAFETY: this push made the list non-empty (REMOTE1).
            unsafe { owner.push(span) };
        }
    }

    /// Returns the span announced before this one, or null.
    ///
    /// # Safety
    /// The caller took `span` from a remote-free queue and has not yet emptied its remote list.
    pub unsafe fn queue_link(span: *mut Self) -> *mut Self {
        // SAFETY: the record exists as long as the span.
        let link = unsafe { &raw const (*span).queue_link };
        // SAFETY: no thread writes the link until the list has been emptied and filled again (REMOTE1).
        unsafe { Cell::read(link) }
    }

    /// Returns the spans before and after this one in a list of its holder. Either may be null, and both are null in a
    /// fresh span. A span without an owner is never announced, so the words of REMOTE1 are free for these links.
    ///
    /// # Safety
    /// `span` is the record of a span in use, made without an owner and held by the caller.
    pub unsafe fn neighbours(span: *mut Self) -> (*mut Self, *mut Self) {
        // SAFETY: the record exists as long as the span.
        let prev = unsafe { &raw const (*span).remote_tail };
        // SAFETY: the caller holds the span, and without an owner no other thread reaches it.
        let prev = unsafe { Cell::read(prev) };
        // SAFETY: the record exists as long as the span; without an owner there is no remote-free queue.
        (prev.cast(), unsafe { Self::queue_link(span) })
    }

    /// Writes the neighbours of a span without an owner.
    ///
    /// # Safety
    /// `span` is the record of a span in use, made without an owner and held by the caller.
    pub unsafe fn set_neighbours(span: *mut Self, prev: *mut Self, next: *mut Self) {
        // SAFETY: the record exists as long as the span.
        let place = unsafe { &raw const (*span).remote_tail };
        // SAFETY: the caller holds the span, and without an owner no other thread reaches it.
        unsafe { Cell::write(place, prev.cast()) };
        // SAFETY: the record exists as long as the span; without an owner no thread announces it.
        unsafe { Self::set_queue_link(span, next) };
    }

    /// Writes the link to the span announced before this one.
    ///
    /// # Safety
    /// REMOTE1: the caller is about to announce the span.
    pub(super) unsafe fn set_queue_link(span: *mut Self, next: *mut Self) {
        // SAFETY: the record exists as long as the span.
        let link = unsafe { &raw const (*span).queue_link };
        // SAFETY: the caller is about to announce the span, so only the caller may write the link (REMOTE1).
        unsafe { Cell::write(link, next) }
    }
}

impl Own {
    /// Returns the number of blocks not in the span's own lists.
    pub(super) const fn used(&self) -> u32 {
        self.used as u32
    }

    /// Returns the number of blocks in the span's lists.
    pub(super) const fn listed_blocks(&self) -> usize {
        (self.free_count + self.received_count) as usize
    }

    /// Returns the bytes of the span that were returned to the system.
    pub(super) const fn hole_bytes(&self) -> usize {
        self.holes.bytes()
    }

    /// Returns whether the span has a free or uncarved block.
    pub(super) const fn has_blocks(&self, shape: &SpanShape) -> bool {
        self.free_count > 0
            || self.received_count > 0
            || (self.carved as u32) < shape.capacity
            || !self.holes.is_empty()
    }

    const fn grid(&self, shape: &SpanShape) -> Grid {
        Grid {
            span_bytes: shape.bytes as usize,
            block_bytes: shape.block_bytes as usize,
            carved: self.carved as usize,
            capacity: shape.capacity as usize,
        }
    }

    /// Takes free blocks: all received remote frees if there are any, but at most `most`, otherwise up to `max` of the
    /// other free blocks. Both bounds are at least 1. Returns the first slot, or null, and their number. O(1), plus a
    /// walk over the taken blocks if they are only a part of the list, and a walk over the blocks of a hole that is
    /// filled. The taken blocks are about to be used anyway.
    ///
    /// # Safety
    /// `shape` belongs to this span (SPAN2, SPAN3, SPAN6).
    pub(super) unsafe fn take_free(
        &mut self,
        shape: &SpanShape,
        max: u32,
        most: u32,
    ) -> (*mut Slot, u32) {
        self.rest = 0;
        if self.free_count + self.received_count == 0 && !self.holes.is_empty() {
            // SAFETY: `shape` belongs to this span, and it has holes and no listed block.
            unsafe { self.fill_hole(shape) };
        }
        let (list, listed, max) = if self.received_count > 0 {
            (&mut self.received, &mut self.received_count, most)
        } else {
            (&mut self.free, &mut self.free_count, max)
        };
        let count = u32::from(*listed).min(max);
        let rest = if count == u32::from(*listed) {
            ptr::null_mut()
        } else {
            // SAFETY: the list belongs to this span (SLOT1), and is longer than `count`.
            unsafe { shape.links.cut(*list, count as usize) }
        };
        *listed -= count as u16;
        self.used += count as u16;
        (core::mem::replace(list, rest), count)
    }

    /// Carves fresh blocks, at most `max`. Returns `None` if all are carved.
    ///
    /// # Safety
    /// `shape` belongs to this span (SPAN1..SPAN4).
    pub(super) unsafe fn carve(&mut self, shape: &SpanShape, max: usize) -> Option<Carved> {
        let block = shape.block_bytes as usize;
        let bytes = match self.clean {
            true => *CARVE_BYTES.start(),
            false => (self.carved as usize * block).clamp(*CARVE_BYTES.start(), *CARVE_BYTES.end()),
        };
        let max = (bytes / block).clamp(1, max) as u32;
        let count = max.min(shape.capacity - u32::from(self.carved));
        if count == 0 {
            return None;
        }
        let first = shape.base.wrapping_add(self.carved as usize * block);
        let mut rest: *mut Slot = ptr::null_mut();
        for number in (1..count as usize).rev() {
            let slot = first.wrapping_add(number * block).cast::<Slot>();
            // SAFETY: the slot lies inside the span (count is within capacity) and was never allocated (SPAN4).
            unsafe { shape.links.set_next(slot, rest) };
            rest = slot;
        }
        self.carved += count as u16;
        self.used += count as u16;
        self.rest = 0;
        Some(Carved {
            first,
            rest,
            rest_count: count - 1,
            clean: self.clean,
        })
    }

    /// Takes back blocks that other threads freed. O(1). If the list is empty, the blocks are not touched.
    ///
    /// # Safety
    /// `shape` belongs to this span; the blocks are in it and belong to the caller (SLOT1).
    unsafe fn receive(&mut self, shape: &SpanShape, chain: Chain) {
        debug_assert!(chain.count <= self.used());
        if self.received_count > 0 {
            // SAFETY: the chain belongs to the caller.
            unsafe { shape.links.set_next(chain.tail, self.received) };
        }
        self.received = chain.head;
        self.received_count += chain.count as u16;
        self.used -= chain.count as u16;
        self.rest = 0;
    }

    /// Takes blocks back into the span's own list.
    ///
    /// # Safety
    /// `shape` belongs to this span; the blocks are in it and belong to the caller (SLOT1).
    pub(super) unsafe fn give(&mut self, shape: &SpanShape, chain: Chain) {
        debug_assert!(chain.count <= self.used());
        // SAFETY: the chain belongs to the caller.
        unsafe { shape.links.set_next(chain.tail, self.free) };
        self.free = chain.head;
        self.free_count += chain.count as u16;
        self.used -= chain.count as u16;
        self.rest = 0;
    }

    /// Returns whether the free lists are as long as their counts say and inside the span, by a walk over them
    /// (SPAN2).
    ///
    /// # Safety
    /// `shape` belongs to this span.
    pub(super) unsafe fn is_sound(&self, shape: &SpanShape) -> bool {
        // SAFETY: both lists and `shape` belong to this span.
        let (free, received) = unsafe {
            (
                self.is_list(self.free, self.free_count, shape),
                self.is_list(self.received, self.received_count, shape),
            )
        };
        let holed = self.holes.blocks(&self.grid(shape)) as u16;
        free && received
            && self.used + self.free_count + self.received_count + holed == self.carved
            && u32::from(self.carved) <= shape.capacity
    }

    /// Returns whether the list has `count` slots, which are all blocks of the span and not holed.
    ///
    /// # Safety
    /// The part of the list that lies in the span satisfies SLOT1.
    unsafe fn is_list(&self, list: *mut Slot, count: u16, shape: &SpanShape) -> bool {
        let grid = self.grid(shape);
        let (mut slot, mut found) = (list, 0);
        while !slot.is_null() && found <= count {
            let is_block = shape.is_block(slot.cast());
            if !is_block || self.holes.have_block(shape.number(slot.cast()), &grid) {
                return false;
            }
            found += 1;
            // SAFETY: `slot` is a block of the span in a list that satisfies SLOT1.
            slot = unsafe { shape.links.next(slot) };
        }
        found == count
    }
}

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shape_knows_its_blocks_by_number_and_where_none_starts() {
        let shape = SpanShape {
            base: ptr::without_provenance_mut(0x7f00_0000_0000),
            owner: ptr::null(),
            bytes: 1000,
            block_bytes: 48,
            capacity: 20,
            class: SizeClass::of(48, 16).unwrap().index() as u8,
            links: Links::PLAIN,
        };
        for at in 0..1100 {
            let block = shape.base.wrapping_add(at);
            let is_block = at % 48 == 0 && at / 48 < 20;
            assert_eq!(shape.is_block(block), is_block, "{at}");
            if is_block {
                assert_eq!(shape.number(block), at / 48);
                assert_eq!(shape.block(at / 48), block);
            }
        }
        assert!(!shape.is_block(shape.base.wrapping_sub(48)));
    }
}
