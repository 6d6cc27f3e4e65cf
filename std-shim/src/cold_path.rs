//! The verbs of the process heap past its fast paths: layouts that are not common, empty and full
//! caches, large blocks, and blocks of steps.
//!
//! Cold, so that a caller's loop keeps its registers for itself.

use core::alloc::Layout;
use core::ptr::{self, NonNull};

use larder_core::small::{Fresh, SizeClass, ThreadCache};

use crate::arena::Held;
use crate::check;
use crate::config::Config;
use crate::hardened::{self, guarded};
use crate::os::Native;
use crate::process::PROCESS;
use crate::purge;
use crate::step::{self, STEP_LEAST_BYTES, StepHeap};
use crate::thread::local::Local;
use crate::thread::{attach, attach_to_free, tls, with_local};

#[inline(always)]
fn class_of(layout: Layout) -> Option<SizeClass> {
    SizeClass::of(layout.size(), layout.align())
}

#[inline(always)]
fn or_null(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Whether the heap is hardened; known from the first call on.
fn is_hardened(config: &Config) -> bool {
    PROCESS.tuning.apply(config);
    PROCESS.tuning.is_hardened()
}

/// Whether the heap looks at some blocks or at all; known from the first call on.
fn is_watched(config: &Config) -> bool {
    PROCESS.tuning.apply(config);
    PROCESS.tuning.is_watched()
}

#[cold]
#[inline(never)]
fn refill(class: SizeClass) -> Option<Fresh> {
    attach();
    let find = || {
        // SAFETY: called from the verbs below, which have left the thread's part.
        unsafe { with_local(|local| local.refill(class, &PROCESS)) }
    };
    let fresh = find().or_else(|| {
        reclaim(class.block_bytes());
        find()
    });
    purge::found(class.block_bytes());
    fresh
}

/// Before a request of `bytes` bytes is refused: brings idle memory back that may serve it.
#[cold]
pub(crate) fn reclaim(bytes: usize) {
    if PROCESS.could_hold(bytes) {
        // SAFETY: called from the verbs below, which have left the thread's part.
        unsafe { with_local(|local| local.flush(&PROCESS)) };
        PROCESS.trim();
    }
}

/// # Safety
/// `block` is a block of the heap with this layout, which has a class, given up by the caller.
#[cold]
#[inline(never)]
unsafe fn free_slow(block: *mut u8, layout: Layout) {
    if PROCESS.tuning.is_watched() {
        // SAFETY: the caller's promise.
        return unsafe { free_watched(block, layout) };
    }
    if let Some(class) = class_of(layout) {
        // SAFETY: the caller's promise.
        unsafe { free_past_bin(class, block) };
    }
}

/// Frees a block where the heap is hardened, or where it may have guard pages: the thread's bin has not been asked then.
///
/// # Safety
/// `block` is a block of the heap with this layout, which has a class, given up by the caller.
#[cold]
#[inline(never)]
unsafe fn free_watched(block: *mut u8, layout: Layout) {
    // SAFETY: the caller's promise.
    if unsafe { free_looked_at(block, layout) } {
        return;
    }
    if let Some(class) = class_of(layout) {
        // SAFETY: the thread's own cache, or one without room (LOCAL1); the block is the caller's.
        if !unsafe { ThreadCache::push(tls::cache(), class, block) } {
            // SAFETY: the caller's promise, and the cache did not take the block.
            unsafe { free_past_bin(class, block) };
        }
    }
    // SAFETY: called from the verbs below, which have left the thread's part.
    unsafe { with_local(guarded::count_free) };
}

/// Frees a block if the heap is hardened, or if it has guard pages; whether that was so.
///
/// # Safety
/// `block` is a block of the heap with this layout, and given up by the caller if the answer is yes.
unsafe fn free_looked_at(block: *mut u8, layout: Layout) -> bool {
    if PROCESS.tuning.is_hardened() {
        // SAFETY: the caller's promise.
        unsafe { hardened::free(block, Some(layout)) };
        return true;
    }
    let has_pages = guarded::has(block);
    if has_pages {
        // SAFETY: the caller's promise.
        unsafe { guarded::free(block, Some(layout)) };
    }
    has_pages
}

/// Frees a block that the thread's bin did not take.
///
/// # Safety
/// `block` is a block of this class, given up by the caller.
pub(crate) unsafe fn free_past_bin(class: SizeClass, block: *mut u8) {
    // SAFETY: the caller's promise.
    let free = |local: &mut Local| unsafe { local.free_slow(class, block, &PROCESS) };
    attach_to_free();
    // SAFETY: called from the verbs below, which have left the thread's part.
    let passed_bytes = unsafe { with_local(free) };
    if passed_bytes > 0 {
        purge::freed(passed_bytes);
    }
}

#[cold]
#[inline(never)]
fn alloc_large(layout: Layout, config: &Config) -> *mut u8 {
    match is_hardened(config) {
        true => hardened::alloc(layout.size(), layout.align(), config),
        false => alloc_large_plain(layout),
    }
}

fn alloc_large_plain(layout: Layout) -> *mut u8 {
    match PROCESS.alloc_held(layout.size(), layout.align()) {
        Held::Found(block) => {
            purge::found(layout.size());
            return block.as_ptr();
        }
        // What is kept at hand for small blocks may do, before the heap grows.
        // SAFETY: called from the verbs below, which have left the thread's part.
        Held::Full => unsafe { with_local(|local| local.give_up(layout.size(), &PROCESS)) },
        Held::Busy => {}
    }
    let find = || PROCESS.alloc_large(layout.size(), layout.align());
    let block = find().or_else(|| {
        reclaim(layout.size());
        find()
    });
    purge::found(layout.size());
    or_null(block)
}

#[cold]
#[inline(never)]
pub(crate) fn free_alone(block: *mut u8, bytes: usize) {
    // A mapping of its own is gone with the block.
    let becomes_idle = PROCESS.arena_of(block).is_some();
    if !PROCESS.free_large(block, bytes) {
        check::fail(b"larder: freed an address where no block of this heap starts\n");
    }
    if becomes_idle {
        purge::freed(bytes);
    }
}

#[cold]
#[inline(never)]
fn alloc_zeroed_large(layout: Layout) -> *mut u8 {
    let block = alloc_large_plain(layout);
    // SAFETY: given to us just now, that long, or null, which lies nowhere.
    unsafe { PROCESS.zero_large(block, layout.size()) };
    block
}

/// A block of a class whose bin is empty.
#[cold]
#[inline(never)]
fn alloc_slow(layout: Layout, config: &Config) -> *mut u8 {
    match is_watched(config) {
        true => alloc_watched(layout, config, alloc_plain),
        false => alloc_plain(layout),
    }
}

fn alloc_plain(layout: Layout) -> *mut u8 {
    or_null(class_of(layout).and_then(refill).map(|fresh| fresh.block))
}

/// A block of the hardened heap, or one with guard pages, zeroed, or else a plain one.
#[cold]
#[inline(never)]
fn alloc_watched(layout: Layout, config: &Config, plain: fn(Layout) -> *mut u8) -> *mut u8 {
    match PROCESS.tuning.is_hardened() {
        true => hardened::alloc(layout.size(), layout.align(), config),
        false => guarded::alloc(layout, config, plain),
    }
}

/// Any zeroed block of the plain heap, where no thread has a cache.
pub(crate) fn alloc_zeroed_plain(layout: Layout) -> *mut u8 {
    match class_of(layout) {
        Some(class) => alloc_zeroed_slow(class, layout.size()),
        None => alloc_zeroed_large(layout),
    }
}

/// A zeroed block of a class whose bin is empty.
fn alloc_zeroed_slow(class: SizeClass, bytes: usize) -> *mut u8 {
    let Some(fresh) = refill(class) else {
        return ptr::null_mut();
    };
    let block = fresh.block.as_ptr();
    if !fresh.clean {
        // SAFETY: the block is at least that long.
        unsafe { block.write_bytes(0, bytes) };
    }
    block
}

/// What builds with debug assertions look at before a small free.
fn check_free(block: *mut u8, layout: Layout) {
    check::check_block(&PROCESS, block, layout);
    if let Some(class) = class_of(layout) {
        // SAFETY: the heap is not interrupted by itself, and `has` does not come back here.
        let freed = unsafe { with_local(|local| local.has(class, block)) };
        check::check_not_free(freed);
    }
}

/// Any block: with what the fast path leaves, which is layouts that are not common and empty bins.
/// Cold, as what follows below: so a caller's loop keeps its registers. It ends in calls only, so
/// that it needs no stack, and nearly all that comes here are long layouts.
#[cold]
#[inline(never)]
pub(crate) fn alloc_any(layout: Layout, config: &Config) -> *mut u8 {
    if step::may_take(layout) {
        return alloc_in_step(layout, config);
    }
    if SizeClass::is_long(layout.size(), layout.align()) {
        return alloc_of_class(SizeClass::of_long(layout.size()), layout, config);
    }
    alloc_rare(layout, config)
}

/// Any block that C asks for by its length.
#[cold]
#[inline(never)]
pub(crate) fn malloc_any(bytes: usize, config: &Config) -> *mut u8 {
    alloc_for_c(bytes, config, alloc_any)
}

/// Any zeroed block that C asks for by its length.
#[cold]
#[inline(never)]
pub(crate) fn malloc_zeroed_any(bytes: usize, config: &Config) -> *mut u8 {
    alloc_for_c(bytes, config, alloc_zeroed_any)
}

/// A block of C's, by the verb of Rust's; null with `errno` if there is no memory.
#[inline(always)]
fn alloc_for_c(
    bytes: usize,
    config: &Config,
    alloc: impl FnOnce(Layout, &Config) -> *mut u8,
) -> *mut u8 {
    if PROCESS.tuning.is_hardened() {
        return hardened::malloc(bytes, config);
    }
    let block = match Layout::from_size_align(bytes, 16) {
        Ok(layout) if bytes > 0 => alloc(layout, config),
        Ok(_) => alloc_nothing(config),
        Err(_) => ptr::null_mut(),
    };
    match block.is_null() {
        true => no_memory(),
        false => block,
    }
}

/// A block of no bytes.
#[cold]
fn alloc_nothing(config: &Config) -> *mut u8 {
    match is_hardened(config) {
        true => hardened::alloc(0, 16, config),
        false => alloc_any(Layout::new::<u8>(), config),
    }
}

/// Null, and why.
#[cold]
pub(crate) fn no_memory() -> *mut u8 {
    #[cfg(unix)]
    crate::os::errno::set_errno(libc::ENOMEM);
    ptr::null_mut()
}

#[cold]
#[inline(never)]
fn alloc_in_step(layout: Layout, config: &Config) -> *mut u8 {
    match step::alloc(layout) {
        Some(block) => block.as_ptr(),
        None => alloc_rare(layout, config),
    }
}

/// Any block that is none of a step.
#[cold]
#[inline(never)]
fn alloc_rare(layout: Layout, config: &Config) -> *mut u8 {
    match class_of(layout) {
        Some(class) => alloc_of_class(class, layout, config),
        None => alloc_large(layout, config),
    }
}

#[inline(always)]
fn alloc_of_class(class: SizeClass, layout: Layout, config: &Config) -> *mut u8 {
    // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
    let block = unsafe { ThreadCache::pop(tls::cache(), class) };
    match block.is_null() {
        true => alloc_slow(layout, config),
        false => block,
    }
}

/// Frees any block.
///
/// # Safety
/// `block` is a block of the heap with this layout, given up by the caller.
#[inline(never)]
pub(crate) unsafe fn free_any(block: *mut u8, layout: Layout) {
    if step::may_take(layout) || cfg!(debug_assertions) {
        // SAFETY: the caller's promise.
        return unsafe { free_perhaps_in_step(block, layout) };
    }
    if SizeClass::is_long(layout.size(), layout.align()) {
        // SAFETY: the caller's promise.
        return unsafe { free_of_class(block, SizeClass::of_long(layout.size()), layout) };
    }
    // SAFETY: the caller's promise.
    unsafe { free_rare(block, layout) }
}

/// # Safety
/// `block` is a block of the heap with this layout, given up by the caller.
#[cold]
#[inline(never)]
unsafe fn free_perhaps_in_step(block: *mut u8, layout: Layout) {
    // SAFETY: the caller's promise.
    if unsafe { free_looked_at(block, layout) } {
        return;
    }
    if let Some(heap) = step::heap_of(block, layout) {
        return free_of_step(heap, block);
    }
    if cfg!(debug_assertions) {
        check_free(block, layout);
    }
    // SAFETY: the caller's promise.
    unsafe { free_rare(block, layout) }
}

/// Frees any block that is none of a step.
///
/// # Safety
/// `block` is a block of the heap with this layout, given up by the caller.
#[cold]
#[inline(never)]
unsafe fn free_rare(block: *mut u8, layout: Layout) {
    match class_of(layout) {
        // SAFETY: the caller's promise.
        Some(class) => unsafe { free_of_class(block, class, layout) },
        // SAFETY: the caller's promise.
        None if PROCESS.tuning.is_hardened() => unsafe { hardened::free(block, Some(layout)) },
        None => free_alone(block, layout.size()),
    }
}

/// # Safety
/// `block` is a block of the heap with this layout, which is of this class, given up by the caller.
#[inline(always)]
unsafe fn free_of_class(block: *mut u8, class: SizeClass, layout: Layout) {
    // SAFETY: the thread's own cache, or one without room (LOCAL1, LOCAL3); the block is the caller's.
    if !unsafe { ThreadCache::push(tls::cache_of_frees(), class, block) } {
        // SAFETY: the caller's promise, and the cache did not take the block.
        unsafe { free_slow(block, layout) };
    }
}

/// Any zeroed block.
#[cold]
#[inline(never)]
pub(crate) fn alloc_zeroed_any(layout: Layout, config: &Config) -> *mut u8 {
    if let Some(block) = step::alloc(layout) {
        // SAFETY: given to us just now, that long.
        unsafe { block.write_bytes(0, layout.size()) };
        return block.as_ptr();
    }
    let class = class_of(layout);
    // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
    let pop = |class| unsafe { ThreadCache::pop(tls::cache(), class) };
    let block = class.map_or(ptr::null_mut(), pop);
    if block.is_null() {
        return match is_watched(config) {
            true => alloc_watched(layout, config, alloc_zeroed_plain),
            false => alloc_zeroed_plain(layout),
        };
    }
    // SAFETY: the block is at least that long.
    unsafe { block.write_bytes(0, layout.size()) };
    block
}

/// The block with its new size, where it was or where its pages have moved. `None` if its contents
/// must be copied; then nothing has happened.
///
/// # Safety
/// `block` is the caller's, with `layout`; `new` is that layout with the new size, which is not 0.
#[inline(never)]
pub(crate) unsafe fn realloc_other(block: *mut u8, layout: Layout, new: Layout) -> Option<*mut u8> {
    let stays = if let Some(heap) = step::heap_of(block, layout) {
        fits_in_step(heap, block, new.size())
    } else {
        match (class_of(layout), class_of(new)) {
            (Some(old), Some(new)) => old == new,
            (None, None) if resize_large(block, layout, new.size()) => true,
            // SAFETY: the caller's promise.
            (None, None) => return unsafe { grow_elsewhere(block, layout, new) },
            _ => false,
        }
    };
    stays.then_some(block)
}

#[cold]
#[inline(never)]
pub(crate) fn free_of_step(heap: &StepHeap<Native>, block: *mut u8) {
    if !heap.free(block) {
        check::fail(b"larder: freed an address where no block of this heap starts\n");
    }
}

/// Whether a block of a step holds the new size where it is, and not twice as much.
#[cold]
#[inline(never)]
fn fits_in_step(heap: &StepHeap<Native>, block: *mut u8, new_size: usize) -> bool {
    let granted = heap.bytes_at(block).unwrap_or(0);
    let new = new_size as u64;
    new_size > STEP_LEAST_BYTES && new <= granted && new > granted / 2
}

#[cold]
#[inline(never)]
fn resize_large(block: *mut u8, layout: Layout, new_size: usize) -> bool {
    let resized = PROCESS.resize_large(block, layout.size(), new_size);
    if resized {
        match layout.size().checked_sub(new_size) {
            Some(freed_bytes) => purge::freed(freed_bytes),
            None => purge::found(new_size - layout.size()),
        }
    }
    resized
}

/// A longer block by moving pages, unless a step is to know of it.
///
/// # Safety
/// `block` is the caller's, with `layout`; `new` is that layout with the new size, which is not 0.
#[cold]
#[inline(never)]
unsafe fn grow_elsewhere(block: *mut u8, layout: Layout, new: Layout) -> Option<*mut u8> {
    if step::is_under_way() {
        return None;
    }
    // SAFETY: the caller's promise.
    let grown = unsafe { PROCESS.grow_elsewhere(block, layout, new.size()) }?;
    purge::found(new.size());
    if grown.idle_bytes > 0 {
        purge::freed(grown.idle_bytes);
    }
    Some(grown.block.as_ptr())
}
