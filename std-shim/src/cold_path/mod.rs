//! The slow paths of the process heap's verbs: empty and full bins, uncommon layouts, large blocks,
//! and all blocks where threads have no cache (LOCAL1, LOCAL3).
//!
//! Each verb branches on the [`HeapMode`] of the heap. `plain` has the verbs for a heap that checks
//! no block, and for blocks of steps; `safety/hardened` and `safety/guard_pages` have the verbs of
//! the other two modes.
//!
//! All of this code is cold, so that a caller's loop keeps its registers for itself. [`alloc`] and
//! [`free`] also serve the long layouts whose bin has a block, or room for one. These are most of
//! their calls, so both functions end in tail calls and need no stack. The verbs of the modes are
//! marked cold, so that the compiler branches on the way to a bin instead of folding conditions
//! into flags, which saves two instructions in each call.

pub(crate) mod plain;

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use larder_core::small::{SizeClass, ThreadCache};

use crate::config::{Config, HeapMode};
use crate::global_alloc::Larder;
use crate::process::PROCESS;
use crate::safety::{guard_pages, hardened};
use crate::thread::{tls, with_local};

#[inline(always)]
fn or_null(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Returns the class of a long layout.
#[inline(always)]
fn long_class(layout: Layout) -> Option<SizeClass> {
    match SizeClass::is_long(layout.size(), layout.align()) {
        true => Some(SizeClass::of_long(layout.size())),
        false => None,
    }
}

/// Pops a block of a long layout. Returns null if its bin is empty.
#[inline(always)]
fn pop_long(layout: Layout) -> *mut u8 {
    match long_class(layout) {
        // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
        Some(class) => unsafe { ThreadCache::pop(tls::cache(), class) },
        None => ptr::null_mut(),
    }
}

/// Allocates a block. Returns null if there is no memory.
#[cold]
#[inline(never)]
pub(crate) fn alloc(layout: Layout, config: &Config) -> *mut u8 {
    let block = pop_long(layout);
    if !block.is_null() {
        return block;
    }
    or_null(match PROCESS.tuning.mode_for(config) {
        HeapMode::Plain => plain::alloc(layout),
        HeapMode::Guarded => alloc_guarded(layout, config, plain::alloc),
        HeapMode::Hardened => hardened::alloc(layout, config),
    })
}

/// Allocates a zeroed block. Returns null if there is no memory.
#[cold]
#[inline(never)]
pub(crate) fn alloc_zeroed(layout: Layout, config: &Config) -> *mut u8 {
    let block = pop_long(layout);
    if !block.is_null() {
        // SAFETY: a block of the layout's class has at least as many bytes.
        unsafe { block.write_bytes(0, layout.size()) };
        return block;
    }
    or_null(match PROCESS.tuning.mode_for(config) {
        HeapMode::Plain => plain::alloc_zeroed(layout),
        HeapMode::Guarded => alloc_guarded(layout, config, plain::alloc_zeroed),
        HeapMode::Hardened => hardened::alloc(layout, config),
    })
}

/// Allocates a block with guard pages if one is due, otherwise a plain one.
#[cold]
#[inline(never)]
fn alloc_guarded(
    layout: Layout,
    config: &Config,
    plain: fn(Layout) -> Option<NonNull<u8>>,
) -> Option<NonNull<u8>> {
    guard_pages::alloc(layout, config).or_else(|| plain(layout))
}

/// Frees a block.
///
/// # Safety
/// `block` is a block of the heap with this layout, and the caller gives it up.
#[inline(never)]
pub(crate) unsafe fn free(block: *mut u8, layout: Layout) {
    if cfg!(not(debug_assertions))
        && let Some(class) = long_class(layout)
    {
        // SAFETY: the thread's own cache, or one without room (LOCAL1, LOCAL3); the caller gives
        // the block up.
        if unsafe { ThreadCache::push(tls::cache_of_frees(), class, block) } {
            return;
        }
    }
    // SAFETY: a block of the heap with this layout, which the caller gives up and no cache took.
    unsafe {
        match PROCESS.tuning.mode() {
            HeapMode::Plain => plain::free(block, layout),
            HeapMode::Guarded => free_guarded(block, layout),
            HeapMode::Hardened => hardened::free(block, Some(layout)),
        }
    }
}

/// Frees a block of a heap in which some have guard pages.
///
/// # Safety
/// The conditions of [`free`].
#[cold]
#[inline(never)]
unsafe fn free_guarded(block: *mut u8, layout: Layout) {
    if guard_pages::has(block) {
        // SAFETY: the block lies among the guarded pages, and the caller gives it up.
        return unsafe { guard_pages::free(block, Some(layout)) };
    }
    // SAFETY: a block of the heap without guard pages, so of the plain heap; the caller gives it
    // up.
    unsafe { plain::free(block, layout) };
    // Large blocks are in no bin, so flushing for them would make no block with guard pages.
    if SizeClass::of(layout.size(), layout.align()).is_some() {
        // SAFETY: the plain free no longer uses the thread's part, and no signal handler calls
        // this.
        unsafe { with_local(guard_pages::count_free) };
    }
}

impl Larder {
    /// Resizes a block in a mode other than [`HeapMode::Plain`]. Returns null if there is no memory.
    ///
    /// # Safety
    /// `block` is a block of the heap with this layout; `new` has its alignment, and a size that is
    /// not 0. The caller gives the block up if the result is not null.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn realloc_checked(
        &self,
        block: *mut u8,
        layout: Layout,
        new: Layout,
    ) -> *mut u8 {
        // SAFETY: a block of the heap with this layout, which the caller gives up for another; the
        // size of `new` is not 0, as `alloc` requires.
        unsafe {
            match PROCESS.tuning.mode() {
                HeapMode::Hardened => hardened::resize(block, Some(layout), new.size(), &self.0),
                HeapMode::Guarded if guard_pages::has(block) => {
                    guard_pages::resize(block, Some(layout), new.size(), |_| self.alloc(new))
                }
                HeapMode::Guarded | HeapMode::Plain => self.realloc_plain(block, layout, new),
            }
        }
    }
}

/// Allocates a block for C by its length. Returns null with `errno` set if there is no memory.
#[cold]
#[inline(never)]
pub(crate) fn malloc(bytes: usize, config: &Config) -> *mut u8 {
    alloc_for_c(bytes, config, alloc)
}

/// Allocates a zeroed block for C by its length. Returns null with `errno` set if there is no
/// memory.
#[cold]
#[inline(never)]
pub(crate) fn malloc_zeroed(bytes: usize, config: &Config) -> *mut u8 {
    alloc_for_c(bytes, config, alloc_zeroed)
}

#[inline(always)]
fn alloc_for_c(
    bytes: usize,
    config: &Config,
    alloc: impl FnOnce(Layout, &Config) -> *mut u8,
) -> *mut u8 {
    // The last call, so that the stacks of a checking heap have no frame of this function.
    if PROCESS.tuning.mode() == HeapMode::Hardened {
        return hardened::malloc(bytes, config);
    }
    let block = match Layout::from_size_align(bytes, 16) {
        Ok(layout) => alloc(layout, config),
        Err(_) => ptr::null_mut(),
    };
    match block.is_null() {
        true => no_memory(),
        false => block,
    }
}

/// Sets `errno` to out of memory. Returns null.
#[cold]
pub(crate) fn no_memory() -> *mut u8 {
    #[cfg(unix)]
    crate::os::errno::set_errno(libc::ENOMEM);
    ptr::null_mut()
}
