//! [`Heap`]: a heap that is a value, is used by one thread at a time, and is freed as a whole.
//!
//! ```text
//!   &Heap ── cache ── spans ─► kept list ┐
//!        └───────── large ──► kept list ┴── the arenas of the process
//! ```
//! Like a thread's heap, such a heap has size classes, a cache and spans, but it stands alone: it
//! has no remote-free queue, no transfer caches, and no locks except those of the arenas.
//!
//! # Files
//! * `kept` the spans and large blocks of a heap, for freeing all at once
//!
//! # Invariants
//! * VALUE1 one thread at a time reaches the contents, and no call does so inside another: the
//!   value is not `Sync`, and nothing here calls the program.
//! * VALUE2 a block borrows the heap, so none is in use once the heap is dropped or reset.
//! * VALUE3 small blocks come from spans without an owner (KEPT1), and large blocks have a trailer
//!   (KEPT2).

mod kept;
#[cfg(test)]
mod tests;

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::{self, NonNull};

use allocator_api2::alloc::{AllocError, Allocator};
use larder_core::small::{CacheBin, Fresh, SizeClass, SpanSet, ThreadCache};
use larder_core::sync::{AtomicU8, Ordering};

use crate::cold_path::plain::reclaim;
use crate::process::span_bytes;
use crate::thread::end::prepare;
use kept::Kept;

/// A separate heap, whose blocks are all freed when it is dropped.
///
/// `&Heap` is an [`Allocator`] of `allocator-api2` 0.2, so collections that support that crate can
/// use it. The heap's memory comes from the same arenas as that of [`Larder`](crate::Larder),
/// whatever the program's global allocator is.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use larder::Heap;
///
/// let heap = Heap::new();
/// let mut numbers = Vec::new_in(&heap);
/// numbers.extend(0..1000);
/// assert_eq!(numbers[999], 999);
/// assert!(heap.stats().live_bytes >= 4000);
/// drop(numbers);
/// assert_eq!(heap.stats().live_bytes, 0);
/// ```
///
/// A block cannot outlive its heap:
///
/// ```compile_fail
/// let heap = larder::Heap::new();
/// let boxed = allocator_api2::boxed::Box::new_in(5, &heap);
/// drop(heap);
/// assert_eq!(*boxed, 5);
/// ```
///
/// One thread uses a heap at a time: it is `Send` and not `Sync`.
///
/// ```compile_fail
/// fn assert_sync<T: Sync>() {}
/// assert_sync::<larder::Heap>();
/// ```
///
/// # Cost
/// A small block (up to 128 KiB) costs a few instructions, without a thread-local and without a
/// lock. Every few dozen small blocks cost work on a span, and every 64 KiB of them cost a search
/// in the arenas behind a lock. A larger block costs that search each time, and 16 KiB more memory
/// if its size fills its granules. [`reset`](Self::reset) and drop cost O(spans + large blocks),
/// whatever was allocated; values in the blocks are not dropped. The heap value itself is about 6
/// KiB long: avoid moving it.
///
/// In [`Larder::stats`](crate::Larder::stats) all memory of a heap counts as large and live.
pub struct Heap(UnsafeCell<Contents>);

// SAFETY: the spans, blocks and lists move with the value (VALUE1), and arenas may be used by any thread.
unsafe impl Send for Heap {}

/// The memory of a [`Heap`]. Fields whose names end in `_bytes` are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HeapStats {
    /// Blocks that the program holds, with their granted lengths.
    pub live_bytes: u64,
    /// The part of `live_bytes` in blocks above 128 KiB or with a coarse alignment.
    pub large_bytes: u64,
    /// Number of the blocks in `large_bytes`.
    pub large_blocks: u64,
    /// Pages cut into blocks of one class, used or not.
    pub span_bytes: u64,
    /// Number of spans.
    pub spans: u64,
}

struct Contents {
    cache: ThreadCache,
    set: SpanSet,
    kept: Kept,
}

impl Contents {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "a value to begin with, which nobody borrows"
    )]
    const EMPTY: Self = Self {
        cache: ThreadCache::new(),
        set: SpanSet::without_transfer_caches(),
        kept: Kept::NONE,
    };

    #[inline]
    fn alloc(&mut self, layout: Layout) -> Option<Fresh> {
        let Some(class) = SizeClass::of(layout.size(), layout.align()) else {
            return with_retry(layout.size(), || self.kept.alloc_large(layout));
        };
        // SAFETY: a cache holds free blocks (SLOT1).
        match NonNull::new(unsafe { CacheBin::pop(self.cache.of(class)) }) {
            Some(block) => Some(Fresh {
                block,
                clean: false,
            }),
            None => with_retry(class.block_bytes(), || self.refill(class)),
        }
    }

    #[cold]
    fn refill(&mut self, class: SizeClass) -> Option<Fresh> {
        // SAFETY: a set without a remote-free queue, with its own cache and pages (VALUE1).
        let fresh = unsafe {
            self.set
                .refill(ptr::null(), class, &mut self.cache, &mut self.kept)
        };
        self.kept.link_fresh();
        fresh
    }

    /// # Safety
    /// `block` is a block of this heap and this layout, given up by the caller.
    #[inline]
    unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        let Some(class) = SizeClass::of(layout.size(), layout.align()) else {
            // SAFETY: a block of this heap and layout, which the caller gives up; without a class
            // it is a large block.
            unsafe { self.kept.free_large(block, layout) };
            return;
        };
        // SAFETY: a block of the layout's class, which the caller gives up.
        if !unsafe { CacheBin::push(self.cache.of(class), block.as_ptr()) } {
            // SAFETY: a block of this class, which the bin did not take.
            unsafe { self.free_slow(class, block) };
        }
    }

    /// # Safety
    /// `block` is a block of this heap and this class, given up by the caller.
    #[cold]
    unsafe fn free_slow(&mut self, class: SizeClass, block: NonNull<u8>) {
        let (set, cache) = (&mut self.set, &mut self.cache);
        // SAFETY: a set without a remote-free queue, with its own cache and pages (VALUE1).
        unsafe { set.make_room(ptr::null(), class, cache, &mut self.kept) };
        // SAFETY: a block of this class, which the caller gives up.
        if !unsafe { CacheBin::push(cache.of(class), block.as_ptr()) } {
            // SAFETY: still the caller's block.
            unsafe { self.set.free(ptr::null(), block.as_ptr(), &mut self.kept) };
        }
    }

    fn stats(&self) -> HeapStats {
        let (large_blocks, large_bytes) = self.kept.large();
        let mut stats = HeapStats {
            live_bytes: large_bytes,
            large_bytes,
            large_blocks,
            ..HeapStats::default()
        };
        for class in SizeClass::all() {
            let usage = self.set.usage(class, span_bytes(class));
            let live = usage.used_blocks - self.cache.len(class) as u64;
            stats.live_bytes += live * class.block_bytes() as u64;
            stats.span_bytes += usage.span_bytes;
            stats.spans += usage.spans;
        }
        stats
    }
}

/// Calls `find` again after reclaiming idle memory of the process.
fn with_retry(bytes: usize, mut find: impl FnMut() -> Option<Fresh>) -> Option<Fresh> {
    static WATCHED: AtomicU8 = AtomicU8::new(0);
    // A user of arenas needs the fork handlers that take their locks. Relaxed: preparing twice does
    // no harm.
    if WATCHED.load(Ordering::Relaxed) == 0 {
        prepare();
        WATCHED.store(1, Ordering::Relaxed);
    }
    find().or_else(|| {
        reclaim(bytes);
        find()
    })
}

impl Heap {
    /// Creates an empty heap.
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Contents::EMPTY))
    }

    /// Frees every block at once; the borrow checker rejects later uses of them. O(spans + large
    /// blocks). The memory returns to the process and can serve any later allocation.
    ///
    /// ```compile_fail
    /// let mut heap = larder::Heap::new();
    /// let boxed = allocator_api2::boxed::Box::new_in(5, &heap);
    /// heap.reset();
    /// assert_eq!(*boxed, 5);
    /// ```
    pub fn reset(&mut self) {
        let inner = self.0.get_mut();
        // SAFETY: VALUE2: the mutable borrow shows that no block is in use.
        unsafe { inner.kept.free_all() };
        *inner = Contents::EMPTY;
    }

    /// Returns the statistics of the heap, which are exact. O(classes).
    pub fn stats(&self) -> HeapStats {
        // SAFETY: VALUE1: no other call uses the contents now.
        unsafe { &*self.0.get() }.stats()
    }

    /// Runs `f` with the contents.
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut Contents) -> R) -> R {
        // SAFETY: VALUE1: the closures of this file do not call this again.
        f(unsafe { &mut *self.0.get() })
    }

    fn fresh(&self, layout: Layout) -> Result<Fresh, AllocError> {
        self.with(|inner| inner.alloc(layout)).ok_or(AllocError)
    }

    /// Resizes a block in place. Returns whether that was possible.
    ///
    /// # Safety
    /// The conditions of [`Allocator::grow`] or [`Allocator::shrink`]: `block` is the caller's, with `old`.
    unsafe fn resize(&self, block: NonNull<u8>, old: Layout, new: Layout) -> bool {
        if !block.addr().get().is_multiple_of(new.align()) {
            return false;
        }
        let class = |layout: Layout| SizeClass::of(layout.size(), layout.align());
        match (class(old), class(new)) {
            (Some(old), Some(new)) => old == new,
            // SAFETY: the block is the caller's, with `old`; without a class it is a large block.
            (None, None) => self.with(|inner| unsafe { inner.kept.resize_large(block, old, new) }),
            _ => false,
        }
    }

    /// Moves the contents of a block to a block of the new layout, and frees the old one.
    ///
    /// # Safety
    /// The conditions of [`Allocator::grow`] or [`Allocator::shrink`]: `block` is the caller's, with `old`.
    unsafe fn moved(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the block is the caller's, with `old`.
        if old.size() > 0 && new.size() > 0 && unsafe { self.resize(block, old, new) } {
            return Ok(NonNull::slice_from_raw_parts(block, new.size()));
        }
        let to = self.allocate(new)?;
        let bytes = old.size().min(new.size());
        // SAFETY: two blocks, each with that many bytes; the old one belongs to the caller, who
        // gives it up with its contents.
        unsafe {
            to.cast::<u8>().copy_from_nonoverlapping(block, bytes);
            self.deallocate(block, old);
        }
        Ok(to)
    }
}

/// Returns a block without bytes: no memory.
const fn nothing(layout: Layout) -> NonNull<[u8]> {
    // An alignment is never 0.
    let place = match NonNull::new(ptr::without_provenance_mut(layout.align())) {
        Some(place) => place,
        None => NonNull::dangling(),
    };
    NonNull::slice_from_raw_parts(place, 0)
}

// SAFETY: blocks are as large and as aligned as the layout, each is in one place at a time (SLOT,
// SPAN, VALUE3), and they stay until they are freed or the heap is borrowed mutably or dropped; a
// copied `&Heap` is the same heap. Nothing unwinds.
unsafe impl Allocator for &Heap {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        let block = self.fresh(layout)?.block;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        let fresh = self.fresh(layout)?;
        if SizeClass::of(layout.size(), layout.align()).is_none() {
            // SAFETY: allocated just now, that long.
            unsafe { Kept::zero_large(fresh.block, layout.size()) };
        } else if !fresh.clean {
            // SAFETY: allocated just now, at least that long.
            unsafe { fresh.block.write_bytes(0, layout.size()) };
        }
        Ok(NonNull::slice_from_raw_parts(fresh.block, layout.size()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: a block of this heap and layout, which the caller gives up.
            self.with(|inner| unsafe { inner.free(block, layout) });
        }
    }

    #[inline]
    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: a block of this heap with `old`, which the caller gives up for another.
        unsafe { self.moved(block, old, new) }
    }

    #[inline]
    unsafe fn grow_zeroed(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: a block of this heap with `old`, which the caller gives up for another.
        let grown = unsafe { self.moved(block, old, new) }?;
        // SAFETY: inside the block, which has the new length, and had no more before.
        unsafe {
            let added = grown.cast::<u8>().add(old.size());
            added.write_bytes(0, new.size() - old.size());
        }
        Ok(grown)
    }

    #[inline]
    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: a block of this heap with `old`, which the caller gives up for another.
        unsafe { self.moved(block, old, new) }
    }
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: VALUE2: a dropped heap has no borrowed block.
        unsafe { self.0.get_mut().kept.free_all() };
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heap").field(&self.stats()).finish()
    }
}
