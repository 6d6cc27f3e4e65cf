//! [`Heap`]: small blocks and best fit under one lock, over regions of memory, for programs without
//! an operating system; [`StaticHeap`]: the same with its region inside.
//!
//! Small layouts are served from a thread cache, as in a thread of the process heap; a layout without spans, or one
//! whose span cannot be allocated, is served by the BFC as a single block. When memory runs out, the cache is flushed
//! and every idle span joins its neighbours before null is returned.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use super::class::SizeClass;
use super::pages::Pages;
use super::region_pages::{MIN_BYTES, RegionPages};
use super::span::Span;
use super::span_set::{Policy, SpanSet};
use super::thread_cache::{CacheBin, ThreadCache};
use crate::error::RegionError;
use crate::sync::{Locked, Spin, Wait};

/// The contents of a [`Heap`], in bytes where the name says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapStats {
    /// Bytes of the regions.
    pub region_bytes: u64,
    /// Bytes of the regions that are in tables and records.
    pub table_bytes: u64,
    /// Bytes of blocks in use by the program, as granted.
    pub live_bytes: u64,
    /// Bytes in spans, whether their blocks are used or not.
    pub span_bytes: u64,
    /// Bytes in no span and no block.
    pub free_bytes: u64,
    /// Bytes of the longest free run.
    pub largest_free_bytes: u64,
    /// Ignored frees of a pointer to no block of this heap, or to a block that was freed just before. Such a free
    /// breaks the contract of `GlobalAlloc`. It is always found for large blocks, and in debug builds for small ones.
    pub refused_frees: u64,
}

/// A heap over one or more regions of memory, behind one lock; `W` is how threads wait for it.
///
/// It is meant for kernels, firmware and other programs without an OS, as the `#[global_allocator]` or by itself. Calls
/// for small blocks are O(1). Bookkeeping takes 3 to 7 % of a region (14 % of 32 KiB) and 25 KiB in the value itself (22
/// KiB with 32-bit addresses), which is zero in the image of a program. The heap never panics and calls no other code. It
/// must not be used from an interrupt that may have interrupted a call of the same heap.
///
/// ```
/// use larder_core::Heap;
/// use std::alloc::{GlobalAlloc, Layout};
///
/// static HEAP: Heap = Heap::new();
/// let region = Box::leak(vec![0u8; 1 << 20].into_boxed_slice());
/// // SAFETY: the region is used by this heap only.
/// unsafe { HEAP.claim(region.as_mut_ptr(), region.len()) }.unwrap();
///
/// let layout = Layout::new::<[u64; 12]>();
/// // SAFETY: the layout is not empty, and the block is freed once with it.
/// let block = unsafe { HEAP.alloc(layout) };
/// assert!(!block.is_null());
/// unsafe { HEAP.dealloc(block, layout) };
/// assert_eq!(HEAP.stats().live_bytes, 0);
/// ```
pub struct Heap<W: Wait = Spin>(Locked<Memory, W>);

/// The value behind the lock. Without memory its only byte with a value is 0, so that a static with a heap takes no place
/// in a program's image.
struct Memory {
    /// Whether the state has been written.
    is_claimed: bool,
    state: MaybeUninit<HeapState>,
}

impl Memory {
    const NONE: Self = Self {
        is_claimed: false,
        state: MaybeUninit::uninit(),
    };

    #[inline]
    fn state(&mut self) -> Option<&mut HeapState> {
        // SAFETY: the state was written before `is_claimed` was set.
        self.is_claimed
            .then(|| unsafe { self.state.assume_init_mut() })
    }

    /// Takes the first region. The state is written in place and out of line: it is too long for a small stack.
    ///
    /// # Safety
    /// The conditions of [`Heap::claim`].
    #[cold]
    #[inline(never)]
    unsafe fn claim(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        let at = self.state.as_mut_ptr();
        // SAFETY: the place is the value's own. The caller promises the region.
        unsafe {
            at.write_bytes(0, 1);
            (&raw mut (*at).cache).write(ThreadCache::new());
            SpanSet::place(&raw mut (*at).set, Policy::WITHOUT_TRANSFER_CACHES);
            RegionPages::place(&raw mut (*at).pages, start, bytes)?;
            (&raw mut (*at).refused_frees).write(0);
        }
        self.is_claimed = true;
        Ok(())
    }
}

/// Maximum number of bytes for which copying under the lock is faster than taking the lock again.
const COPIED_UNDER_LOCK: usize = 1024;

/// The state behind the lock.
struct HeapState {
    cache: ThreadCache,
    set: SpanSet,
    pages: RegionPages,
    refused_frees: u64,
}

impl<W: Wait> Default for Heap<W> {
    fn default() -> Self {
        Self::with_wait()
    }
}

impl Heap {
    /// Creates a heap without memory, whose lock spins.
    pub const fn new() -> Self {
        Self::with_wait()
    }
}

impl<W: Wait> Heap<W> {
    /// Creates a heap without memory; `W` is how threads wait for its lock.
    pub const fn with_wait() -> Self {
        Self(Locked::new(Memory::NONE))
    }

    /// Takes a region as memory, in addition to those that the heap has. O(bytes of its tables and chunks), which are 3
    /// to 7 % of the regions.
    ///
    /// Blocks come from all regions alike, and none is longer than its region. Claim the largest region first, because
    /// it determines the lengths of pages and spans.
    ///
    /// # Errors
    /// [`RegionError::NoRoom`] if the region is too small: the first needs 32 KiB, others need room for their tables.
    /// [`RegionError::Overlap`] if the heap has some of the bytes. [`RegionError::TableFull`] or
    /// [`RegionError::RegionsFull`] if there is no record for another region. The region then belongs to the caller
    /// again, and its contents are undefined unless it overlaps another.
    ///
    /// # Safety
    /// `bytes` bytes from `start` are valid for reads and writes, and belong to this heap alone from then on.
    pub unsafe fn claim(&self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        self.0.with(|memory| match memory.state() {
            // SAFETY: the bytes are valid and belong to this heap alone from then on.
            Some(state) => unsafe { state.pages.add(start, bytes) },
            // SAFETY: the bytes are valid and belong to this heap alone from then on.
            None => unsafe { memory.claim(start, bytes) },
        })
    }

    /// Returns the current counters. O(chunks and idle small blocks).
    pub fn stats(&self) -> HeapStats {
        self.0.with(|memory| {
            let state = memory.state();
            state.map_or(HeapStats::default(), |state| state.stats())
        })
    }

    /// Flushes the cache, so that every idle span joins the free memory around it.
    pub fn trim(&self) {
        self.0.with(|memory| {
            if let Some(state) = memory.state() {
                state.reclaim();
            }
        });
    }

    /// Checks all invariants by a walk over everything, for tests. Returns whether they hold.
    pub fn is_sound(&self) -> bool {
        self.0.with(|memory| match memory.state() {
            Some(state) => state.set.is_sound() && state.pages.is_sound(),
            None => true,
        })
    }
}

impl HeapState {
    #[inline]
    fn alloc(&mut self, layout: Layout) -> *mut u8 {
        if let Some(class) = self.pages.class_of(layout.size(), layout.align()) {
            // SAFETY: the bin belongs to this heap, which is locked, and its blocks are free (SLOT1).
            let block = unsafe { CacheBin::pop(self.cache.of(class)) };
            if !block.is_null() {
                return block;
            }
        }
        self.alloc_slow(layout)
    }

    #[cold]
    fn alloc_slow(&mut self, layout: Layout) -> *mut u8 {
        let block = self.find(layout).or_else(|| {
            self.reclaim();
            self.find(layout)
        });
        block.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Returns a block from the layers below the cache.
    fn find(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let Some(class) = self.pages.class_of(layout.size(), layout.align()) else {
            return self.pages.alloc_block(layout.size(), layout.align());
        };
        // SAFETY: this heap's set has no remote-free queue, and its cache and pages are the same at every call.
        let fresh = unsafe {
            self.set
                .refill(ptr::null(), class, &mut self.cache, &mut self.pages)
        };
        fresh.map(|fresh| fresh.block)
    }

    /// # Safety
    /// `block` is a block of this heap with this layout, which the caller no longer uses.
    #[inline]
    unsafe fn free(&mut self, block: *mut u8, layout: Layout) {
        let Some(class) = self.pages.class_of(layout.size(), layout.align()) else {
            self.refused_frees += u64::from(!self.pages.free_single(block));
            return;
        };
        if cfg!(debug_assertions) && !self.is_block(block, class) {
            self.refused_frees += 1;
            return;
        }
        // SAFETY: this is a block of the class, which the caller no longer uses; the bin belongs to this heap.
        if !unsafe { CacheBin::push(self.cache.of(class), block) } {
            // SAFETY: this is a block of the class, which the bin did not take.
            unsafe { self.free_slow(block, class) };
        }
    }

    /// # Safety
    /// `block` is a block of this class, which the caller no longer uses.
    #[cold]
    unsafe fn free_slow(&mut self, block: *mut u8, class: SizeClass) {
        let (set, cache) = (&mut self.set, &mut self.cache);
        // SAFETY: this heap's set has no remote-free queue, and its cache and pages are the same at every call.
        unsafe { set.make_room(ptr::null(), class, cache, &mut self.pages) };
        // SAFETY: the bin belongs to this heap, which is locked, and takes a free block of its class.
        if !unsafe { CacheBin::push(cache.of(class), block) } {
            // A bin that was never refilled has no capacity yet.
            // SAFETY: the bin did not take the block, so this heap may still free it.
            unsafe { self.set.free(ptr::null(), block, &mut self.pages) };
        }
    }

    /// Returns whether a block of this class may start here. Returns `false` for a block that was just freed.
    fn is_block(&self, block: *mut u8, class: SizeClass) -> bool {
        let fits = match self.pages.span_of(block) {
            Some(span) => {
                // SAFETY: this heap owns its spans, so their shapes do not change here.
                let shape = unsafe { Span::shape(span.as_ptr()) };
                shape.class() == class && shape.is_block(block)
            }
            None => self.pages.block_bytes(block) > 0,
        };
        // SAFETY: the cache belongs to this heap, which is locked, and its blocks are free (SLOT1).
        fits && !unsafe { self.cache.has(class, block) }
    }

    /// Returns idle blocks and spans to the BFC. O(blocks in the cache, spans).
    fn reclaim(&mut self) {
        // SAFETY: this heap's set has no remote-free queue, and its cache and pages are the same at every call.
        unsafe {
            self.set
                .flush(ptr::null(), &mut self.cache, &mut self.pages);
        };
        let mut all = usize::MAX;
        // SAFETY: this heap's set has no remote-free queue, and its pages are the same at every call.
        unsafe { self.set.trim(ptr::null(), &mut all, &mut self.pages) };
    }

    /// Resizes the block in place and returns it. If that is not possible, returns a new block without the contents, or
    /// null.
    fn resize(&mut self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let old = self.pages.class_of(layout.size(), layout.align());
        let new = self.pages.class_of(new_size, layout.align());
        match (old, new) {
            (Some(old), Some(new)) if old == new => return block,
            (None, None) if self.pages.resize_block(block, new_size) => return block,
            (_, None) if new_size > layout.size() => {
                let roomy = self.pages.alloc_before_room(new_size, layout.align());
                if let Some(block) = roomy {
                    return block.as_ptr();
                }
            }
            (_, Some(new)) => {
                // SAFETY: the bin belongs to this heap, which is locked, and its blocks are free (SLOT1).
                let block = unsafe { CacheBin::pop(self.cache.of(new)) };
                if !block.is_null() {
                    return block;
                }
            }
            _ => {}
        }
        // SAFETY: the caller of `realloc` promises that the size is valid for this alignment.
        self.alloc_slow(unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) })
    }

    fn stats(&self) -> HeapStats {
        let numbers = self.pages.numbers();
        let used: u64 = SizeClass::all()
            .map(|class| self.set.usage(class, 0).used_blocks * class.block_bytes() as u64)
            .sum();
        // Blocks in the cache are not in use, whether they came from a span or singly.
        let mut idle = 0;
        let count = |class: SizeClass, block: *mut u8| {
            idle += match self.pages.span_of(block) {
                Some(_) => class.block_bytes() as u64,
                None => self.pages.block_bytes(block),
            };
        };
        // SAFETY: the cache belongs to this heap, which is locked, and its blocks are free (SLOT1).
        unsafe { self.cache.for_each(count) };
        HeapStats {
            region_bytes: numbers.bytes,
            table_bytes: numbers.table_bytes,
            // A block that was freed twice may be counted idle twice.
            live_bytes: (numbers.single_bytes + used).saturating_sub(idle),
            span_bytes: numbers.span_bytes,
            free_bytes: numbers.free_bytes,
            largest_free_bytes: numbers.largest_free_bytes,
            refused_frees: self.refused_frees,
        }
    }
}

// SAFETY: a block is a free block of a class at least as large and aligned as the layout, or a chunk of the BFC;
// these do not overlap, and one lock guards all of it. No call panics.
unsafe impl<W: Wait> GlobalAlloc for Heap<W> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.with(|memory| match memory.state() {
            Some(state) => state.alloc(layout),
            None => ptr::null_mut(),
        })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.0.with(|memory| {
            if let Some(state) = memory.state() {
                // SAFETY: the caller of `dealloc` promises a block of this heap with its layout.
                unsafe { state.free(block, layout) };
            }
        });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let kept = layout.size().min(new_size);
        let copy = |to: *mut u8| {
            // SAFETY: both blocks have at least `kept` bytes, and they are different blocks.
            unsafe { ptr::copy_nonoverlapping(block, to, kept) };
        };
        let (moved, is_pending) = self.0.with(|memory| {
            let Some(state) = memory.state() else {
                return (ptr::null_mut(), false);
            };
            let moved = state.resize(block, layout, new_size);
            let stays = moved == block || moved.is_null();
            if !stays && kept <= COPIED_UNDER_LOCK {
                copy(moved);
                // SAFETY: this is a block of this heap with this layout, no longer in use since its contents have
                // moved.
                unsafe { state.free(block, layout) };
            }
            (moved, !stays && kept > COPIED_UNDER_LOCK)
        });
        if is_pending {
            copy(moved);
            // SAFETY: this is a block of this heap with this layout, no longer in use since its contents have moved.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

/// A [`Heap`] with its region inside: a global allocator in one line, without a call of [`claim`](Heap::claim).
///
/// ```
/// use larder_core::StaticHeap;
/// # mod hidden {
/// # use larder_core::StaticHeap;
/// // In a real program: #[global_allocator]
/// static HEAP: StaticHeap<{ 1 << 20 }> = StaticHeap::new();
/// # pub fn bytes() -> u64 { HEAP.stats().region_bytes }
/// # }
/// # assert_eq!(hidden::bytes(), 0, "claimed at the first allocation");
/// ```
pub struct StaticHeap<const BYTES: usize, W: Wait = Spin> {
    heap: Heap<W>,
    region: UnsafeCell<MaybeUninit<[u8; BYTES]>>,
}

// SAFETY: the region is accessed through the heap only, which locks.
unsafe impl<const BYTES: usize, W: Wait> Sync for StaticHeap<BYTES, W> {}

impl<const BYTES: usize, W: Wait> Default for StaticHeap<BYTES, W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BYTES: usize, W: Wait> StaticHeap<BYTES, W> {
    /// Creates a heap with a region of `BYTES` bytes. Fewer than 32 KiB do not compile. Keep the heap in a `static`:
    /// its blocks are part of it, and a heap that is moved after its first allocation allocates no more blocks.
    pub const fn new() -> Self {
        const { assert!(BYTES >= MIN_BYTES, "a heap needs 32 KiB at least") };
        Self {
            heap: Heap::with_wait(),
            region: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Returns the current counters, which are all 0 before the first allocation.
    pub fn stats(&self) -> HeapStats {
        self.with(|state| state.map_or(HeapStats::default(), |state| state.stats()))
    }

    /// Flushes the cache, so that every idle span joins the free memory around it.
    pub fn trim(&self) {
        self.with(|state| {
            if let Some(state) = state {
                state.reclaim();
            }
        });
    }

    /// Runs `f` with the state behind the lock. A heap that was moved has no state, because its tables are at its
    /// former address.
    #[inline]
    fn with<R>(&self, f: impl FnOnce(Option<&mut HeapState>) -> R) -> R {
        let start = self.region.get().cast::<u8>();
        self.heap.0.with(|memory| {
            let in_place = |state: &&mut HeapState| state.pages.are_within(start, BYTES);
            f(memory.state().filter(in_place))
        })
    }
}

// SAFETY: the heap inside serves every call and is a `GlobalAlloc`. After a move it no longer has its region, and no
// call reaches the old memory.
unsafe impl<const BYTES: usize, W: Wait> GlobalAlloc for StaticHeap<BYTES, W> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.region.get().cast::<u8>();
        self.heap.0.with(|memory| {
            if !memory.is_claimed {
                // SAFETY: the region belongs to this heap and is claimed once, under the lock. It is long enough.
                let _ = unsafe { memory.claim(start, BYTES) };
            }
            match memory.state() {
                // A heap that was moved has lost its memory.
                Some(state) if state.pages.are_within(start, BYTES) => state.alloc(layout),
                _ => ptr::null_mut(),
            }
        })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.with(|state| {
            if let Some(state) = state {
                // SAFETY: the caller of `dealloc` promises a block of this heap with its layout; the heap does not
                // move while blocks live.
                unsafe { state.free(block, layout) };
            }
        });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if self.with(|state| state.is_none()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller of `realloc` promises a block of this heap with its layout. The heap has its region, and
        // no call moves it.
        unsafe { self.heap.realloc(block, layout, new_size) }
    }
}
