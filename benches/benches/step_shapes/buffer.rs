//! A large buffer, with one word in each of its pages.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) const PAGE_BYTES: usize = size_of::<Page>();

/// Only the word is ever written.
struct Page {
    word: u64,
    _rest: MaybeUninit<[u64; 511]>,
}

/// The words are read when the buffer is dropped.
pub(crate) struct Buffer {
    pages: Vec<Page>,
    stamp: u64,
}

/// The sum of all words read. A sum does not depend on the order of threads.
static SUM: AtomicU64 = AtomicU64::new(0);

/// Returns the sum of the words of all buffers that have been dropped.
pub(crate) fn read_sum() -> u64 {
    SUM.load(Relaxed)
}

impl Buffer {
    /// Allocates and writes whole pages with room for `bytes`. The words depend on `stamp`.
    pub(crate) fn new(bytes: usize, stamp: u64) -> Self {
        let mut buffer = Self {
            pages: Vec::new(),
            stamp,
        };
        buffer.grow(bytes);
        buffer
    }

    /// Adds whole pages with room for `bytes`.
    pub(crate) fn grow(&mut self, bytes: usize) {
        let (stamp, begin) = (self.stamp, self.pages.len());
        let end = begin + bytes.div_ceil(PAGE_BYTES);
        self.pages.extend((begin..end).map(|at| {
            Page {
                word: stamp
                    .wrapping_add(at as u64)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15),
                _rest: MaybeUninit::uninit(),
            }
        }));
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let words = self.pages.iter().map(|page| page.word);
        SUM.fetch_add(words.fold(0, u64::wrapping_add), Relaxed);
    }
}
