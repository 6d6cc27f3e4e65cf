//! The verbs of a heap that checks no block: small blocks that the bins cannot serve, large blocks,
//! and blocks of steps.

use core::alloc::Layout;
use core::ptr::NonNull;

use larder_core::small::{Fresh, MAX_SMALL_BYTES, SizeClass, ThreadCache};

use crate::arena::ClaimOutcome;
use crate::process::PROCESS;
use crate::purge;
use crate::safety::check;
use crate::step::{self, STEP_LEAST_BYTES};
use crate::thread::local::Local;
use crate::thread::{attach, attach_to_free, tls, with_local};

#[inline(always)]
fn class_of(layout: Layout) -> Option<SizeClass> {
    SizeClass::of(layout.size(), layout.align())
}

/// Allocates a block. Returns `None` if there is no memory.
#[cold]
#[inline(never)]
pub(crate) fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    match class_of(layout) {
        Some(class) => pop(class).or_else(|| Some(refill(class)?.block)),
        None if step::may_take(layout) => alloc_in_step(layout),
        None => alloc_large(layout),
    }
}

/// Allocates a large block at its place in the current step, or elsewhere if it has none.
#[cold]
#[inline(never)]
fn alloc_in_step(layout: Layout) -> Option<NonNull<u8>> {
    step::alloc(layout).or_else(|| alloc_large(layout).inspect(|block| step::enter(*block)))
}

/// Allocates a zeroed block. Returns `None` if there is no memory.
pub(crate) fn alloc_zeroed(layout: Layout) -> Option<NonNull<u8>> {
    let used = |block| Fresh {
        block,
        clean: false,
    };
    let fresh = match class_of(layout) {
        Some(class) => pop(class).map(used).or_else(|| refill(class))?,
        None => match step::alloc(layout) {
            Some(block) => used(block),
            None => return alloc_zeroed_large(layout).inspect(|block| step::enter(*block)),
        },
    };
    if !fresh.clean {
        // SAFETY: allocated just now, for this layout.
        unsafe { fresh.block.write_bytes(0, layout.size()) };
    }
    Some(fresh.block)
}

/// Pops a block from the thread's bin.
fn pop(class: SizeClass) -> Option<NonNull<u8>> {
    // SAFETY: the thread's own cache, or one that stays empty (LOCAL1), of free blocks (SLOT1).
    NonNull::new(unsafe { ThreadCache::pop(tls::cache(), class) })
}

/// Allocates a block of a class whose bin is empty, and fills the bin.
#[cold]
#[inline(never)]
fn refill(class: SizeClass) -> Option<Fresh> {
    attach();
    let find = || {
        // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
        unsafe { with_local(|local| local.refill(class, &PROCESS)) }
    };
    let fresh = find().or_else(|| {
        reclaim(class.block_bytes());
        find()
    });
    purge::after_alloc(class.block_bytes());
    fresh
}

/// Flushes the thread's cache and purges, in the hope that a request of `bytes` bytes can then be
/// served.
#[cold]
pub(crate) fn reclaim(bytes: usize) {
    if PROCESS.could_hold(bytes) {
        // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
        unsafe { with_local(|local| local.flush(&PROCESS)) };
        PROCESS.trim();
    }
}

/// Takes a block without a class that this thread freed before.
#[inline(always)]
fn take_cached(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: the thread's own cache, or one that stays empty (LOCAL1).
    unsafe { PROCESS.take_cached(tls::cache(), layout) }
}

#[cold]
#[inline(never)]
fn alloc_large(layout: Layout) -> Option<NonNull<u8>> {
    match take_cached(layout) {
        None => alloc_in_arenas(layout),
        block => block,
    }
}

/// Allocates a block without a class that this thread has not cached. Frees the blocks that it has
/// cached, which are too long or too short: together they may have room for the block (BLOCK2).
#[cold]
#[inline(never)]
fn alloc_in_arenas(layout: Layout) -> Option<NonNull<u8>> {
    attach();
    // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
    unsafe { with_local(|local| local.flush_large(&PROCESS)) };
    match PROCESS.alloc_held(layout.size(), layout.align()) {
        ClaimOutcome::Found(block) => {
            purge::after_alloc(layout.size());
            return Some(block);
        }
        // Before the heap grows: the caches of small blocks may have room for the block.
        // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
        ClaimOutcome::Full => unsafe {
            with_local(|local| local.flush_some(layout.size(), &PROCESS));
        },
        ClaimOutcome::Busy => {}
    }
    let find = || PROCESS.alloc_large(layout.size(), layout.align());
    let block = find().or_else(|| {
        reclaim(layout.size());
        find()
    });
    purge::after_alloc(layout.size());
    block
}

/// Allocates a reserve for the blocks of a step. The heap grows for it only if `grows` is set.
/// Returns whether it had to grow, or could not.
#[cold]
#[inline(never)]
pub(crate) fn alloc_reserve(bytes: usize, grows: bool) -> (Option<NonNull<u8>>, bool) {
    attach();
    // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
    unsafe { with_local(|local| local.flush_large(&PROCESS)) };
    match PROCESS.reserve_held(bytes) {
        None if grows => (PROCESS.reserve_grown(bytes), true),
        held => (held, false),
    }
}

#[cold]
#[inline(never)]
fn alloc_zeroed_large(layout: Layout) -> Option<NonNull<u8>> {
    let cached = take_cached(layout);
    let block = cached.or_else(|| alloc_in_arenas(layout))?;
    // SAFETY: allocated just now, for this layout.
    unsafe {
        match cached {
            Some(_) => PROCESS.zero_cached(block.as_ptr(), layout.size()),
            None => PROCESS.zero_large(block.as_ptr(), layout.size()),
        }
    }
    Some(block)
}

/// Frees a block.
///
/// # Safety
/// `block` is a block of the plain heap with this layout, and the caller gives it up.
#[cold]
#[inline(never)]
pub(crate) unsafe fn free(block: *mut u8, layout: Layout) {
    if step::may_take(layout) && step::free(block) {
        return;
    }
    if cfg!(debug_assertions) {
        check_free(block, layout);
    }
    match class_of(layout) {
        // SAFETY: a block of the layout's class, which the caller gives up.
        Some(class) => unsafe { free_small(class, block) },
        None => free_large(block, layout.size()),
    }
}

/// Frees a block of a class, into the thread's bin if the bin has room.
///
/// # Safety
/// `block` is a block of this class, and the caller gives it up.
pub(crate) unsafe fn free_small(class: SizeClass, block: *mut u8) {
    // SAFETY: the thread's own cache, or one without room (LOCAL1); the caller gives the block up.
    if !unsafe { ThreadCache::push(tls::cache(), class, block) } {
        // SAFETY: a block of this class, still the caller's to give up because the cache did not
        // take it.
        unsafe { free_past_bin(class, block) };
    }
}

/// Frees a block that the thread's bin did not take.
///
/// # Safety
/// `block` is a block of this class, and the caller gives it up.
#[cold]
#[inline(never)]
unsafe fn free_past_bin(class: SizeClass, block: *mut u8) {
    // SAFETY: a block of this class, which the caller gives up.
    let free = |local: &mut Local| unsafe { local.free_slow(class, block, &PROCESS) };
    attach_to_free();
    // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
    let passed_bytes = unsafe { with_local(free) };
    if passed_bytes > 0 {
        purge::after_free(passed_bytes);
    }
}

/// Frees a block without a class, into the thread's cache if it may be there.
#[cold]
#[inline(never)]
pub(crate) fn free_large(block: *mut u8, bytes: usize) {
    // SAFETY: the caller gives the block up.
    if !unsafe { free_into_cache(block) } {
        free_past_cache(block, bytes);
    }
}

/// Frees a block without a class as [`free_large`] does, if the thread's cache takes it at once.
/// Returns whether it does.
///
/// # Safety
/// If a block without a class starts there, the caller gives it up.
#[inline(always)]
pub(crate) unsafe fn free_into_cache(block: *mut u8) -> bool {
    // SAFETY: the thread's own cache, or one without room (LOCAL1, LOCAL3); the caller gives the
    // block up.
    let cached = unsafe { PROCESS.cache(tls::cache_of_frees(), block) };
    if cached > 0 {
        purge::after_free(cached);
    }
    cached > 0
}

/// Frees a block without a class that the thread's cache did not take.
#[cold]
#[inline(never)]
fn free_past_cache(block: *mut u8, bytes: usize) {
    attach_to_free();
    // SAFETY: the caller gives the block up.
    let cache = |local: &mut Local| unsafe { local.cache_large(block, &PROCESS) };
    // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
    if unsafe { with_local(cache) } {
        return purge::after_free(bytes);
    }
    // A block with its own mapping is unmapped immediately.
    let becomes_idle = PROCESS.arena_of(block).is_some();
    if !PROCESS.free_large(block, bytes) {
        check::fail(b"larder: freed an address where no block of this heap starts\n");
    }
    if becomes_idle {
        purge::after_free(bytes);
    }
}

/// Checks a block that is being freed, in builds with debug assertions.
fn check_free(block: *mut u8, layout: Layout) {
    check::check_block(&PROCESS, block, layout);
    if let Some(class) = class_of(layout) {
        // SAFETY: the verbs do not use the thread's part here, and `has` does not call them.
        let freed = unsafe { with_local(|local| local.has(class, block)) };
        check::check_not_free(freed);
    }
}

/// Resizes a block in place, by moving its pages, or, if it is one of a step, by copying it to a
/// block that the step does not see. Otherwise returns `None`, and does nothing.
///
/// # Safety
/// `block` is the caller's, with `layout`; `new` has its alignment, and a size that is not 0.
#[inline(never)]
pub(crate) unsafe fn try_resize(block: *mut u8, layout: Layout, new: Layout) -> Option<*mut u8> {
    if is_in_place(layout.size(), new.size()) {
        return Some(block);
    }
    if step::may_take(layout) && new.size() > STEP_LEAST_BYTES {
        // SAFETY: the block is the caller's, with `layout`, and neither has a class.
        return unsafe { resize_beside_steps(block, layout, new) };
    }
    let stays = match (class_of(layout), class_of(new)) {
        (Some(old), Some(new)) => old == new,
        (None, None) if resize_large(block, layout, new.size()) => true,
        // SAFETY: the block is the caller's, with `layout`, and has no class.
        (None, None) => return unsafe { grow_elsewhere(block, layout, new) },
        _ => false,
    };
    stays.then_some(block)
}

/// Resizes a block without a class where there are steps. A step sees only the first length of such
/// a block: the lengths that follow depend on what lies beside it, so they do not repeat.
///
/// # Safety
/// The conditions of [`try_resize`]; neither layout has a class.
#[cold]
#[inline(never)]
unsafe fn resize_beside_steps(block: *mut u8, layout: Layout, new: Layout) -> Option<*mut u8> {
    let granted = step::bytes_at(block).unwrap_or(0);
    let (bytes, is_placed) = (new.size() as u64, granted > 0);
    if bytes <= granted && bytes > granted / 2 {
        return Some(block);
    }
    if !is_placed {
        step::resize_elsewhere(block);
        if resize_large(block, layout, new.size()) {
            return Some(block);
        }
        // SAFETY: the block is the caller's, with `layout`, and has no class.
        if let Some(grown) = unsafe { grow_elsewhere(block, layout, new) } {
            return Some(grown);
        }
    }
    let moved = alloc_large(new)?.as_ptr();
    let kept = layout.size().min(new.size());
    // SAFETY: two blocks, each with as many bytes as its layout.
    unsafe { moved.copy_from_nonoverlapping(block, kept) };
    if !is_placed || !step::free(block) {
        free_large(block, layout.size());
    }
    Some(moved)
}

/// Returns whether a block without a class is granted the same length for both sizes, wherever it
/// lies: the lengths of blocks of arenas and steps, and of mappings, are multiples of this.
#[inline(always)]
fn is_in_place(old_size: usize, new_size: usize) -> bool {
    const UNIT: usize = 4 << 10;
    old_size > MAX_SMALL_BYTES && ((old_size - 1) ^ (new_size - 1)) < UNIT
}

#[cold]
#[inline(never)]
fn resize_large(block: *mut u8, layout: Layout, new_size: usize) -> bool {
    let resized = PROCESS.resize_large(block, layout.size(), new_size);
    if resized {
        match layout.size().checked_sub(new_size) {
            Some(freed_bytes) => purge::after_free(freed_bytes),
            None => purge::after_alloc(new_size - layout.size()),
        }
    }
    resized
}

/// Grows a large block by moving its pages.
///
/// # Safety
/// The conditions of [`try_resize`].
#[cold]
#[inline(never)]
unsafe fn grow_elsewhere(block: *mut u8, layout: Layout, new: Layout) -> Option<*mut u8> {
    // SAFETY: the caller's block, with this layout; the caller lends it for this call.
    let grown = unsafe { PROCESS.grow_elsewhere(block, layout, new.size()) }?;
    purge::after_alloc(new.size());
    if grown.idle_bytes > 0 {
        purge::after_free(grown.idle_bytes);
    }
    Some(grown.block.as_ptr())
}
