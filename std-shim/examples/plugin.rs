//! A library that a program loads at run time, with a heap of its own.
//!
//! `std-shim/tests/plugin.rs` is such a program. As with any two allocators, a block of the
//! library's heap must be freed to that heap. Such a library is never unloaded: threads that used
//! it notify its heap when they end.

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

/// Allocates, sums up and frees `count` numbers in vectors of small and large blocks.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_sum(count: u64) -> u64 {
    let lists: Vec<Vec<u64>> = (0..count).map(|number| (0..number).collect()).collect();
    lists.iter().flatten().sum()
}

/// Returns text that the caller keeps; [`plugin_drop`] frees it, in any thread.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_make(bytes: usize) -> *mut Vec<u8> {
    Box::into_raw(Box::new(vec![7; bytes]))
}

/// Frees the text of [`plugin_make`] and returns its length.
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

/// Returns the live bytes of the library's heap.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_live_bytes() -> u64 {
    HEAP.stats().live_bytes
}

/// Returns the number of heaps that threads have or have left: the largest number of threads that
/// ever used the library at once.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_heaps() -> u64 {
    HEAP.stats().heaps
}
