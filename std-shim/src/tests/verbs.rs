//! The verbs of the allocator for any [`Process`], layouts to request, and blocks with known
//! contents.

use std::alloc::Layout;
use std::ptr;

use larder_core::small::{CLASSES, SizeClass, ThreadCache};

use super::faulty::Below;
pub(super) use super::random::Random;
use crate::process::Process;
use crate::thread::end::ExitHook;
use crate::thread::local::Local;

/// Returns a layout: every class, blocks without one, and blocks longer than an arena come up.
pub(super) fn some_layout(random: &mut Random) -> Layout {
    let size = match random.next(40) {
        0 => random.next(5 << 20) + 1,
        1..4 => random.next(1 << 20) + 1,
        4..24 => {
            let class = SizeClass::from_index(random.next(CLASSES)).unwrap();
            class.block_bytes() - random.next(8)
        }
        _ => random.next(300) + 1,
    };
    let align = match random.next(24) {
        0 => 1 << random.next(21),
        1..4 => 1 << random.next(13),
        _ => 1 << random.next(5),
    };
    Layout::from_size_align(size, align).unwrap()
}

/// Returns whether all bytes are `fill`: the first is, and each equals the one before, by one call
/// of the C library.
pub(super) fn is_filled(bytes: &[u8], fill: u8) -> bool {
    let Some((first, rest)) = bytes.split_first() else {
        return true;
    };
    *first == fill && *rest == bytes[..rest.len()]
}

/// A block that the program holds, filled with one byte.
pub(crate) struct ClaimOutcome {
    pub(crate) start: *mut u8,
    pub(crate) layout: Layout,
    pub(crate) fill: u8,
}

// SAFETY: the block belongs to the value.
unsafe impl Send for ClaimOutcome {}

impl ClaimOutcome {
    pub(crate) fn new(start: *mut u8, layout: Layout, fill: u8) -> Self {
        // SAFETY: the caller's block, that long.
        unsafe { start.write_bytes(fill, layout.size()) };
        Self {
            start,
            layout,
            fill,
        }
    }

    /// Asserts that the first `bytes` bytes are as they were written.
    pub(crate) fn check(&self, bytes: usize) {
        // SAFETY: the block is ours and at least that long.
        let found = unsafe { std::slice::from_raw_parts(self.start, bytes) };
        assert!(is_filled(found, self.fill), "contents of {:?}", self.layout);
    }
}

/// The verbs of the allocator, as in `global_alloc.rs`, for any process and any thread's part.
#[derive(Clone, Copy)]
pub(super) struct Verbs {
    pub(super) process: &'static Process<Below>,
    /// Whether the system reports the ends of threads.
    pub(super) key: bool,
    /// Whether threads cache large blocks.
    pub(super) caches: bool,
}

impl Verbs {
    pub(super) fn alloc(self, local: &mut Local, layout: Layout, zeroed: bool) -> *mut u8 {
        let Some(class) = SizeClass::of(layout.size(), layout.align()) else {
            // SAFETY: the thread's own cache, or one that stays empty.
            let take = || unsafe { self.process.take_cached(local.cache, layout) };
            if let Some(block) = self.caches.then(take).flatten() {
                if zeroed {
                    // SAFETY: given just now, that long.
                    unsafe { self.process.zero_cached(block.as_ptr(), layout.size()) };
                }
                return block.as_ptr();
            }
            if self.caches {
                self.attach(local).flush_large(self.process);
            }
            let block = self.process.alloc_large(layout.size(), layout.align());
            let Some(block) = block else {
                return ptr::null_mut();
            };
            if zeroed {
                // SAFETY: given just now, that long.
                unsafe { self.process.zero_large(block.as_ptr(), layout.size()) };
            }
            return block.as_ptr();
        };
        // SAFETY: the thread's own cache, or one that stays empty.
        let mut block = unsafe { ThreadCache::pop(local.cache, class) };
        let mut clean = false;
        if block.is_null() {
            let Some(fresh) = self.attach(local).refill(class, self.process) else {
                return ptr::null_mut();
            };
            (block, clean) = (fresh.block.as_ptr(), fresh.clean);
        }
        if zeroed && !clean {
            // SAFETY: the block is at least that long.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    /// Returns the thread's part, with a heap if there can be one.
    fn attach(self, local: &mut Local) -> &mut Local {
        if let Some(heap) = local.begin_attach(0, self.process) {
            let told = if self.key {
                ExitHook::Yes
            } else {
                ExitHook::Never
            };
            local.attach(heap, told, self.process);
        }
        local
    }

    pub(super) fn free(self, local: &mut Local, block: *mut u8, layout: Layout) {
        let Some(class) = SizeClass::of(layout.size(), layout.align()) else {
            // SAFETY: the thread's own cache, or one without room; the test gives the block up.
            if self.caches && unsafe { self.process.cache(local.cache_of_frees, block) } > 0 {
                return;
            }
            // SAFETY: the test gives the block up.
            if self.caches && unsafe { self.attach(local).cache_large(block, self.process) } {
                return;
            }
            assert!(
                self.process.free_large(block, layout.size()),
                "{layout:?} is unknown"
            );
            return;
        };
        // SAFETY: a block of this class, which the test gives up.
        if !unsafe { ThreadCache::push(local.cache, class, block) } {
            // SAFETY: a block of this class, which the bin did not take.
            unsafe { self.attach(local).free_slow(class, block, self.process) };
        }
    }

    /// Resizes a block in place. Returns whether that was possible.
    pub(super) fn resize(self, block: *mut u8, old: Layout, size: usize) -> bool {
        match (
            SizeClass::of(old.size(), old.align()),
            SizeClass::of(size, old.align()),
        ) {
            (Some(old), Some(new)) => old == new,
            (None, None) => self.process.resize_large(block, old.size(), size),
            _ => false,
        }
    }
}
