//! Helpers of the cases: blocks by size, threads without the standard library, output, mappings.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::thread;
use std::time::Duration;

use crate::HEAP;
use crate::common::is_filled;

const ALIGN: usize = 8;

pub(crate) fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGN).unwrap()
}

/// Allocates a block and writes every byte.
pub(crate) fn make(size: usize) -> *mut u8 {
    // SAFETY: the callers ask for at least one byte.
    let block = unsafe { HEAP.alloc(layout(size)) };
    assert!(!block.is_null());
    // SAFETY: our block, of this length.
    unsafe { block.write_bytes(size as u8 | 1, size) };
    block
}

pub(crate) fn is_whole(block: *mut u8, size: usize) -> bool {
    // SAFETY: the callers hold a block of this size.
    let bytes = unsafe { std::slice::from_raw_parts(block, size) };
    is_filled(bytes, size as u8 | 1)
}

pub(crate) fn free(block: *mut u8, size: usize) {
    assert!(is_whole(block, size), "contents changed");
    // SAFETY: allocated with this layout, and not used again.
    unsafe { HEAP.dealloc(block, layout(size)) };
}

/// Sizes of several classes, two of them large.
pub(crate) const SIZES: [usize; 12] = [
    1, 16, 40, 100, 640, 1500, 4096, 9000, 40_000, 131_072, 131_073, 700_000,
];

/// Allocates and frees blocks of all [`SIZES`].
pub(crate) fn exercise() {
    for max in [1, 30] {
        let count = |size: usize| (100_000 / size).clamp(1, max);
        let sizes = SIZES
            .iter()
            .flat_map(|&size| (0..count(size)).map(move |_| size));
        let blocks: Vec<_> = sizes.map(|size| (make(size), size)).collect();
        for (block, size) in blocks {
            free(block, size);
        }
    }
}

/// Takes in the blocks that other threads freed, so that counts are exact while one thread runs.
/// The first trim may send free blocks to a heap that it has already visited, so there are two.
pub(crate) fn settle() {
    HEAP.trim();
    HEAP.trim();
}

/// A thread that the standard library does not know, so that starting it allocates nothing.
pub(crate) struct Bare(libc::pthread_t);

impl Bare {
    pub(crate) fn spawn(
        run: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        argument: *mut u8,
    ) -> Self {
        let mut thread = 0;
        // SAFETY: the callers' functions accept their arguments.
        let result =
            unsafe { libc::pthread_create(&mut thread, ptr::null(), run, argument.cast()) };
        assert_eq!(result, 0);
        Self(thread)
    }

    pub(crate) fn join(self) {
        // SAFETY: started by spawn, joined once.
        assert_eq!(unsafe { libc::pthread_join(self.0, ptr::null_mut()) }, 0);
    }
}

/// Writes to standard error, unbuffered.
pub(crate) fn say(words: &str) {
    // SAFETY: the bytes are readable.
    unsafe { libc::write(2, words.as_ptr().cast(), words.len()) };
}

/// Waits for a condition without a time limit: a case that hangs is ended by its alarm.
pub(crate) fn wait_until(has_come: impl Fn() -> bool) {
    while !has_come() {
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(target_os = "linux")]
pub(crate) fn more_than(before: u64) -> u64 {
    crate::common::resident_bytes().saturating_sub(before)
}

/// A mapping of this process, with its `VmFlags`.
#[cfg(target_os = "linux")]
pub(crate) struct Mapping {
    pub(crate) range: std::ops::Range<usize>,
    pub(crate) flags: String,
}

#[cfg(target_os = "linux")]
impl Mapping {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.split_whitespace().any(|found| found == flag)
    }
}

#[cfg(target_os = "linux")]
pub(crate) fn mappings() -> Vec<Mapping> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut mappings, mut range) = (Vec::new(), 0..0);
    for line in maps.lines() {
        let place = line
            .split(' ')
            .next()
            .and_then(|first| first.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16);
        if let Some((Ok(start), Ok(end))) = place.map(|(start, end)| (number(start), number(end))) {
            range = start..end;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let (range, flags) = (range.clone(), flags.to_owned());
            mappings.push(Mapping { range, flags });
        }
    }
    mappings
}
