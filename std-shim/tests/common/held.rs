//! [`Held`]: a block that remembers its layout and the byte that fills it.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder::Larder;

use super::{Random, is_filled};

/// Configured by the environment, unless the program used another `Larder` first.
static HEAP: Larder = Larder::new().with_environment();

/// A block filled with one byte, which is checked whenever the block is resized or freed.
pub struct Held {
    start: *mut u8,
    layout: Layout,
    fill: u8,
}

// SAFETY: the value owns the block.
unsafe impl Send for Held {}

impl Held {
    /// Allocates a block; the layout must not be empty.
    pub fn new(layout: Layout, fill: u8, zeroed: bool) -> Self {
        let start = if zeroed {
            // SAFETY: the layout is not empty.
            unsafe { HEAP.alloc_zeroed(layout) }
        } else {
            // SAFETY: the layout is not empty.
            unsafe { HEAP.alloc(layout) }
        };
        assert!(!start.is_null(), "{layout:?}");
        assert!(start.addr().is_multiple_of(layout.align()), "{layout:?}");
        let mut held = Self {
            start,
            layout,
            fill: 0,
        };
        assert!(!zeroed || held.is_whole(), "not zeroed: {layout:?}");
        held.refill(fill);
        held
    }

    pub fn random(random: &mut Random) -> Self {
        let align = 1 << [0, 3, 3, 3, 3, 4, 4, 6, 9, 14][random.next(10)];
        let layout = Layout::from_size_align(random.size(), align).unwrap();
        Self::new(layout, random.next(251) as u8 + 1, random.next(4) == 0)
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: our block, of this length, fully written.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }

    /// Returns whether every byte still has the fill.
    pub fn is_whole(&self) -> bool {
        is_filled(self.bytes(), self.fill)
    }

    fn refill(&mut self, fill: u8) {
        self.fill = fill;
        // SAFETY: our block, of this length.
        unsafe { self.start.write_bytes(fill, self.layout.size()) };
    }

    /// Resizes the block and checks that the bytes that both sizes have are unchanged.
    pub fn resize(&mut self, size: usize) {
        let common = self.layout.size().min(size);
        // SAFETY: our block, with this layout; the size is not 0.
        let start = unsafe { HEAP.realloc(self.start, self.layout, size) };
        assert!(!start.is_null(), "{:?} to {size}", self.layout);
        assert!(
            start.addr().is_multiple_of(self.layout.align()),
            "{:?} to {size}",
            self.layout
        );
        self.start = start;
        // SAFETY: our block, at least this long, written by `refill`.
        let kept = unsafe { std::slice::from_raw_parts(start, common) };
        assert!(is_filled(kept, self.fill), "{:?} to {size}", self.layout);
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.refill(self.fill);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        assert!(self.is_whole(), "contents changed: {:?}", self.layout);
        // SAFETY: our block, with this layout.
        unsafe { HEAP.dealloc(self.start, self.layout) };
    }
}

/// Allocates and frees at random until `stop` is set, checks each block, and counts its rounds.
pub fn churn(seed: u64, stop: &AtomicBool, rounds: &AtomicUsize) {
    let mut random = Random::new(seed);
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        held.extend((0..60).map(|_| Held::random(&mut random)));
        let middle = random.next(held.len());
        assert!(held[middle..].iter().all(Held::is_whole));
        held.truncate(middle);
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    assert!(held.iter().all(Held::is_whole));
}
