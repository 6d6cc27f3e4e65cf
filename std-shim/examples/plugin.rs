//! A library that a program loads at run time, with a heap of its own.
//!
//! `std-shim/tests/plugin.rs` is such a program. What a library's heap gave must come back to that
//! heap, as with any two allocators, and such a library is never unloaded: threads that used it tell
//! its heap when they end.

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

/// Makes, sums up and frees so many numbers; small and large blocks are among the vectors.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_sum(count: u64) -> u64 {
    let lists: Vec<Vec<u64>> = (0..count).map(|number| (0..number).collect()).collect();
    lists.iter().flatten().sum()
}

/// Makes text that the caller keeps; [`plugin_drop`] takes it back, in any thread.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_make(bytes: usize) -> *mut Vec<u8> {
    Box::into_raw(Box::new(vec![7; bytes]))
}

/// Frees the string of [`plugin_make`] and returns its length.
///
/// # Safety
/// `text` is from `plugin_make`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_drop(text: *mut Vec<u8>) -> usize {
    // SAFETY: a box of `plugin_make`, which the caller gives up.
    let text = unsafe { Box::from_raw(text) };
    assert!(text.iter().all(|byte| *byte == 7));
    text.len()
}

/// Bytes that the library holds.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_live_bytes() -> u64 {
    HEAP.stats().live_bytes
}

/// Heaps that threads left or have: as many as ever used the library at once.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_heaps() -> u64 {
    HEAP.stats().heaps
}
