//! The compared heaps, over one region, each behind the lock that its documentation recommends to programs without an
//! operating system.
//!
//! * `talc`: `TalcLock` with `spin`'s mutex; the region is claimed explicitly.
//! * `rlsf`: its documentation has no lock for such programs, so `Tlsf` is behind `spin`'s mutex, with as many lists as
//!   in its own global allocator.
//! * `buddy_system_allocator`, `linked_list_allocator`: their `LockedHeap`.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::{self, NonNull};

use larder_core::Heap;
use rlsf::Tlsf;
use talc::TalcLock;
use talc::source::Manual;

use super::fault::Fault;
use super::region::TouchedRegion;
use super::runner::{Runner, Subject};

/// A heap to compare.
#[derive(Clone, Copy)]
pub(crate) struct HeapKind {
    /// The name in tables.
    pub(crate) name: &'static str,
    /// Whether the contender is a heap. If not, it measures the loop alone.
    pub(crate) is_heap: bool,
    /// Bytes of the largest region over which the heap is measured. There is a maximum where the time grows with the
    /// number of free blocks.
    max_bytes: usize,
    build: fn(TouchedRegion) -> Result<Box<dyn Runner>, Fault>,
}

/// Number of orders of the buddy system, whose largest block has 2^31 bytes.
const BUDDY_ORDERS: usize = 32;

const fn kind(
    name: &'static str,
    build: fn(TouchedRegion) -> Result<Box<dyn Runner>, Fault>,
) -> HeapKind {
    HeapKind {
        name,
        is_heap: true,
        max_bytes: usize::MAX,
        build,
    }
}

/// All contenders, in the order of tables; the first is the loop around the requests.
pub(crate) const KINDS: [HeapKind; 6] = [
    HeapKind {
        is_heap: false,
        ..kind("the loop alone", |region| {
            Ok(Subject::boxed(NoHeap::new(&region), region))
        })
    },
    kind("larder", |region| {
        let heap = Heap::new();
        // SAFETY: only this heap uses the region, which is dropped after the heap.
        unsafe { heap.claim(region.start(), region.bytes()) }.map_err(|_| Fault::Setup)?;
        Ok(Subject::boxed(heap, region))
    }),
    kind("talc", |region| {
        let heap = TalcLock::<spin::Mutex<()>, Manual>::new(Manual);
        // SAFETY: only this heap uses the region, which is dropped after the heap.
        unsafe { heap.lock().claim(region.start(), region.bytes()) }.ok_or(Fault::Setup)?;
        Ok(Subject::boxed(heap, region))
    }),
    kind("rlsf", |region| {
        Ok(Subject::boxed(LockedTlsf::try_new(&region)?, region))
    }),
    HeapKind {
        max_bytes: 4 << 20,
        ..kind("buddy_system", |region| {
            let heap = buddy_system_allocator::LockedHeap::<BUDDY_ORDERS>::empty();
            let start = region.start().expose_provenance();
            // SAFETY: only this heap uses the region, which is dropped after the heap.
            unsafe { heap.lock().init(start, region.bytes()) };
            Ok(Subject::boxed(heap, region))
        })
    },
    HeapKind {
        max_bytes: 4 << 20,
        ..kind("linked_list", |region| {
            let heap = linked_list_allocator::LockedHeap::empty();
            // SAFETY: only this heap uses the region, which is dropped after the heap.
            unsafe { heap.lock().init(region.start(), region.bytes()) };
            Ok(Subject::boxed(heap, region))
        })
    },
];

impl HeapKind {
    /// Returns the contenders that are measured over a region of `region_bytes`.
    pub(crate) fn over(region_bytes: usize) -> impl Iterator<Item = Self> {
        let all = KINDS.into_iter();
        all.filter(move |kind| region_bytes <= kind.max_bytes)
    }

    /// Builds the heap over a separate region.
    pub(crate) fn build(self, region_bytes: usize) -> Result<Box<dyn Runner>, Fault> {
        (self.build)(TouchedRegion::try_new(region_bytes).ok_or(Fault::Setup)?)
    }
}

/// Number of lists, as in `rlsf::GlobalTlsf`.
const LISTS: usize = usize::BITS as usize;

/// `rlsf` with a lock.
struct LockedTlsf(spin::Mutex<Tlsf<'static, usize, usize, LISTS, LISTS>>);

impl LockedTlsf {
    fn try_new(region: &TouchedRegion) -> Result<Self, Fault> {
        let mut tlsf = Tlsf::new();
        let memory = ptr::slice_from_raw_parts_mut(region.start(), region.bytes());
        let memory = NonNull::new(memory).ok_or(Fault::Setup)?;
        // SAFETY: only this heap uses the region, which is dropped after the heap.
        unsafe { tlsf.insert_free_block_ptr(memory) }.ok_or(Fault::Setup)?;
        Ok(Self(spin::Mutex::new(tlsf)))
    }
}

// SAFETY: `Tlsf`'s blocks satisfy `GlobalAlloc`, and the lock admits one thread at a time.
unsafe impl GlobalAlloc for LockedTlsf {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = self.0.lock().allocate(layout);
        block.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(block) = NonNull::new(block) {
            // SAFETY: the caller promises that the block is this heap's, with this alignment, and live.
            unsafe { self.0.lock().deallocate(block, layout.align()) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(block) = NonNull::new(block) else {
            return ptr::null_mut();
        };
        // SAFETY: the caller promises that the new size is a valid one for this alignment.
        let layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: the caller promises that the block is this heap's, live, and keeps its alignment.
        let moved = unsafe { self.0.lock().reallocate(block, layout) };
        moved.map_or(ptr::null_mut(), NonNull::as_ptr)
    }
}

/// Not a heap: every block is the next few bytes of the region, even if they belong to another block.
struct NoHeap {
    start: *mut u8,
    mask: usize,
    next: Cell<usize>,
}

impl NoHeap {
    const STEP: usize = 64;

    const fn new(region: &TouchedRegion) -> Self {
        Self {
            start: region.start(),
            // Uses only a small part of the region, which stays in the caches.
            mask: 0xffff & (region.bytes() - 1) & !(Self::STEP - 1),
            next: Cell::new(0),
        }
    }
}

// SAFETY: this is not an allocator, and its users write only a block's first byte (see `HeapKind::checked`).
unsafe impl GlobalAlloc for NoHeap {
    #[inline]
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        let next = self.next.get();
        self.next.set((next + Self::STEP) & self.mask);
        self.start.wrapping_add(next)
    }

    #[inline]
    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {}

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, _layout: Layout, _new_size: usize) -> *mut u8 {
        block
    }
}
