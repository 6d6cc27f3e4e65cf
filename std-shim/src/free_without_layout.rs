//! Freeing blocks by their address alone, as C does.

use larder_core::small::{CacheBin, SizeClass, ThreadCache};

use crate::cold_path::plain;
use crate::config::HeapMode;
use crate::process::PROCESS;
use crate::safety::{check, guard_pages, hardened};
use crate::step;
use crate::thread::tls;

/// The origin of a block, found by its address.
pub(crate) enum Origin {
    /// A span of this class.
    Span(SizeClass),
    /// No span: the block lies in an arena, in the reserve of a step, or has a mapping of its own.
    Alone,
}

/// Finds the block that starts at an address, and its length. Returns `None` if no block starts
/// there. Accepts any address, because it reads no span record, which another thread may be
/// writing or freeing.
pub(crate) fn find(block: *mut u8) -> Option<(Origin, usize)> {
    let length = |bytes: u64| usize::try_from(bytes).ok();
    let Some(arena) = PROCESS.arena_of(block) else {
        return Some((Origin::Alone, PROCESS.mappings.bytes_at(block)?));
    };
    let Some((class, is_block)) = arena.look_up(block) else {
        let bytes = arena.bytes_at(block).or_else(|| step::bytes_at(block))?;
        return Some((Origin::Alone, length(bytes)?));
    };
    is_block.then_some((Origin::Span(class), class.block_bytes()))
}

/// Frees a block by its address. Does nothing with null.
///
/// # Safety
/// `block` is null or a block of the heap, and the caller gives it up.
#[cold]
#[inline(never)]
pub(crate) unsafe fn free_without_layout(block: *mut u8) {
    let is_large = PROCESS.class_in_first(block) == Some(SizeClass::NONE);
    if is_large && step::exist() && step::free(block) {
        return;
    }
    // SAFETY: null or a block of the heap, which the caller gives up; in no span if it is large. No
    // cache takes blocks of a heap that checks them (BLOCK3).
    unsafe {
        if !is_large || !plain::free_into_cache(block) {
            free_by_mode(block);
        }
    }
}

/// Frees a block by its address, in the mode that it came from. Does nothing with null.
///
/// # Safety
/// The conditions of [`free_without_layout`].
#[cold]
#[inline(never)]
unsafe fn free_by_mode(block: *mut u8) {
    if block.is_null() {
        return;
    }
    // SAFETY: a block of the heap, which the caller gives up, goes back to the mode that it
    // came from.
    unsafe {
        match PROCESS.tuning.mode() {
            HeapMode::Hardened => hardened::free(block, None),
            HeapMode::Guarded if guard_pages::has(block) => guard_pages::free(block, None),
            HeapMode::Guarded | HeapMode::Plain => free_plain(block),
        }
    }
}

/// Frees a block of the plain heap by its address.
///
/// # Safety
/// `block` is a block of the plain heap, and the caller gives it up.
pub(crate) unsafe fn free_plain(block: *mut u8) {
    match find(block) {
        Some((Origin::Span(class), _)) => {
            // SAFETY: the thread's own cache, or one that stays empty (LOCAL1).
            let newest = unsafe { CacheBin::newest(ThreadCache::bin_of(tls::cache(), class)) };
            check::check_not_free(newest == block);
            // SAFETY: the block lies in a span of this class, and the caller gives it up.
            unsafe { plain::free_small(class, block) };
        }
        Some((Origin::Alone, _)) if step::exist() && step::free(block) => {}
        Some((Origin::Alone, bytes)) => plain::free_large(block, bytes),
        None => check::fail(b"larder: freed an address where no block of this heap starts\n"),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use core::ptr;

    use larder_core::small::{Links, Span};

    use super::*;
    use crate::Larder;
    use crate::process::span_bytes;

    #[test]
    fn an_address_in_a_span_that_another_thread_is_making_does_no_harm() {
        let heap = Larder::new();
        // SAFETY: a block of the heap, freed once.
        unsafe { heap.free(heap.malloc(100)) };
        let arena = PROCESS.arenas().next().unwrap();
        let class = SizeClass::of(48, 16).unwrap();
        // Its record is not written yet.
        let memory = arena.alloc_span(class).unwrap();
        assert_eq!(heap.usable_size(memory.base.wrapping_add(96)), Some(48));
        assert_eq!(heap.usable_size(memory.base.wrapping_add(95)), None);
        let last = memory.base.wrapping_add(span_bytes(class) / 48 * 48);
        assert_eq!(heap.usable_size(last), None, "no whole block");
        let span = Span::new(&memory, span_bytes(class), class, ptr::null(), Links::PLAIN);
        // SAFETY: the place of the record.
        unsafe { memory.record.write(span) };
        // SAFETY: a span without a used block.
        unsafe { arena.free_span(memory.record, false) };
        assert_eq!(heap.usable_size(memory.base), None);
    }
}
