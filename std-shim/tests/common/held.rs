//! [`Held`]: a block that knows its layout and its fill.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder::Larder;

use super::{Random, is_filled};

/// Configured by the environment, unless the program has used another value before.
static HEAP: Larder = Larder::new().with_environment();

/// A block filled with one byte, which is checked whenever the block is resized or freed.
pub struct Held {
    start: *mut u8,
    layout: Layout,
    fill: u8,
}

// SAFETY: the block belongs to the value.
unsafe impl Send for Held {}

impl Held {
    /// A block that is not empty.
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

    /// A block of a random layout.
    pub fn random(random: &mut Random) -> Self {
        let align = 1 << [0, 3, 3, 3, 3, 4, 4, 6, 9, 14][random.next(10)];
        let layout = Layout::from_size_align(random.size(), align).unwrap();
        Self::new(layout, random.next(251) as u8 + 1, random.next(4) == 0)
    }

    /// Returns its address.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ours, that long, written whole.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }

    /// Returns whether all of it still has its fill.
    pub fn is_whole(&self) -> bool {
        is_filled(self.bytes(), self.fill)
    }

    fn refill(&mut self, fill: u8) {
        self.fill = fill;
        // SAFETY: ours, that long.
        unsafe { self.start.write_bytes(fill, self.layout.size()) };
    }

    /// Changes the length; what both lengths have must stay.
    pub fn resize(&mut self, size: usize) {
        let common = self.layout.size().min(size);
        // SAFETY: ours, with this layout; the size is not 0.
        let start = unsafe { HEAP.realloc(self.start, self.layout, size) };
        assert!(!start.is_null(), "{:?} to {size}", self.layout);
        assert!(
            start.addr().is_multiple_of(self.layout.align()),
            "{:?} to {size}",
            self.layout
        );
        self.start = start;
        // SAFETY: ours, at least that long, written by refill.
        let kept = unsafe { std::slice::from_raw_parts(start, common) };
        assert!(is_filled(kept, self.fill), "{:?} to {size}", self.layout);
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.refill(self.fill);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        assert!(self.is_whole(), "contents changed: {:?}", self.layout);
        // SAFETY: ours, with this layout.
        unsafe { HEAP.dealloc(self.start, self.layout) };
    }
}

/// Allocates and frees at random until it is told to stop; each block is checked. Counts its rounds.
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
