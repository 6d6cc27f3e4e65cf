//! Fuzzes the heap for programs without an operating system: random requests are checked against a
//! map of the live blocks.
//!
//! The first bytes choose the length and the start of the memory, and the number of adjacent regions
//! into which it is divided; the rest are requests, six bytes each. Each block is filled with its own byte value, so that overlaps and lost contents show. Run
//! with `cargo +nightly fuzz run heap`.
#![no_main]

use std::alloc::{self, GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::ops::Range;

use larder_core::{Heap, HeapStats};
use libfuzzer_sys::fuzz_target;

/// Sizes of the smallest and the largest region.
const REGION_BYTES: Range<usize> = 32 << 10..4 << 20;
/// Number of requests between two walks of the whole heap.
const WALK_EVERY: usize = 61;

/// The memory of a heap, which is freed after the heap.
struct Region {
    memory: *mut u8,
    layout: Layout,
    /// Number of bytes before the part that the heap uses.
    skip: usize,
}

impl Region {
    /// Allocates `skip` bytes followed by the region, so that the region can start anywhere.
    fn new(bytes: usize, skip: usize) -> Self {
        let layout = Layout::from_size_align(skip + bytes, 4096).expect("a few MiB");
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc::alloc(layout) };
        assert!(!memory.is_null(), "no memory for the region");
        Self {
            memory,
            layout,
            skip,
        }
    }

    fn start(&self) -> *mut u8 {
        self.memory.wrapping_add(self.skip)
    }

    fn bytes(&self) -> usize {
        self.layout.size() - self.skip
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no longer used.
        unsafe { alloc::dealloc(self.memory, self.layout) };
    }
}

/// A block of the program.
#[derive(Clone, Copy)]
struct Block {
    start: *mut u8,
    layout: Layout,
    fill: u8,
}

impl Block {
    fn fill(self) -> Self {
        // SAFETY: the block is ours and that long.
        unsafe { self.start.write_bytes(self.fill, self.layout.size()) };
        self
    }

    /// Checks that the first `bytes` bytes still have the value with which they were filled.
    fn check(self, bytes: usize) {
        // SAFETY: the block is ours, at least that long, and was filled.
        let contents = unsafe { std::slice::from_raw_parts(self.start, bytes) };
        assert!(
            contents.iter().all(|&byte| byte == self.fill),
            "contents of {:?}",
            self.layout
        );
    }
}

/// The heap, and the blocks that it should contain.
struct Program {
    // The heap is dropped before the region.
    heap: Heap,
    region: Region,
    /// Live blocks by address.
    live: BTreeMap<usize, Block>,
    fills: u8,
}

impl Program {
    fn layout(&self, size: u16, shape: u8) -> Layout {
        // Four kinds of sizes: small, medium, up to a quarter of the region, and any.
        let size = usize::from(size);
        let size = match shape & 3 {
            0 => size % 300,
            1 => size % 5000,
            2 => size * (self.region.bytes() / 4) / 0xffff,
            _ => size,
        };
        // Alignments up to 16 KiB, most of them small.
        let shift = match shape >> 2 {
            high @ 0..15 => high,
            high => high % 5,
        };
        // The contract forbids empty layouts.
        Layout::from_size_align(size.max(1), 1 << shift).expect("a few MiB")
    }

    /// Records and fills a new block. Checks that it is inside the region, aligned, and overlaps no
    /// other block.
    fn enter(&mut self, start: *mut u8, layout: Layout) {
        let (first, end) = (start.addr(), start.addr() + layout.size());
        let region = self.region.start().addr();
        assert!(
            first >= region && end <= region + self.region.bytes(),
            "outside: {layout:?}"
        );
        assert!(
            first.is_multiple_of(layout.align()),
            "misaligned: {layout:?}"
        );
        if let Some((&below, other)) = self.live.range(..end).next_back() {
            assert!(below + other.layout.size() <= first, "overlap: {layout:?}");
        }
        self.fills = self.fills.wrapping_add(1);
        let fill = self.fills;
        let block = Block {
            start,
            layout,
            fill,
        };
        self.live.insert(first, block.fill());
    }

    /// Removes a live block from the map and checks its contents.
    fn take(&mut self, number: u16) -> Option<Block> {
        let count = self.live.len().max(1);
        let key = *self.live.keys().nth(usize::from(number) % count)?;
        let block = self.live.remove(&key)?;
        block.check(block.layout.size());
        Some(block)
    }

    fn alloc(&mut self, layout: Layout) {
        // SAFETY: the layout is not empty.
        let start = unsafe { self.heap.alloc(layout) };
        if !start.is_null() {
            self.enter(start, layout);
        }
    }

    fn free(&mut self, number: u16) {
        if let Some(block) = self.take(number) {
            // SAFETY: the block is the heap's, with this layout, and freed once.
            unsafe { self.heap.dealloc(block.start, block.layout) };
        }
    }

    fn realloc(&mut self, number: u16, layout: Layout) {
        let Some(block) = self.take(number) else {
            return;
        };
        let size = layout.size();
        // SAFETY: the block is the heap's, with this layout; the size is neither 0 nor too large.
        let start = unsafe { self.heap.realloc(block.start, block.layout, size) };
        if start.is_null() {
            // The old block must be unchanged.
            block.check(block.layout.size());
            self.live.insert(block.start.addr(), block);
            return;
        }
        let moved = Block { start, ..block };
        moved.check(size.min(block.layout.size()));
        let align = block.layout.align();
        self.enter(
            start,
            Layout::from_size_align(size, align).expect("a few MiB"),
        );
    }

    fn run(&mut self, op: &[u8; 6]) {
        let [verb, shape, a, b, c, d] = *op;
        let number = u16::from_le_bytes([c, d]);
        let layout = self.layout(u16::from_le_bytes([a, b]), shape);
        match verb % 16 {
            0..8 => self.alloc(layout),
            8..12 => self.free(number),
            12..15 => self.realloc(number, layout),
            _ => self.heap.trim(),
        }
    }

    /// Checks the heap's invariants and counters. Returns the counters.
    fn walk(&self) -> HeapStats {
        assert!(self.heap.is_sound());
        let stats = self.heap.stats();
        let asked: usize = self.live.values().map(|block| block.layout.size()).sum();
        assert!(
            stats.live_bytes >= asked as u64,
            "{asked} bytes are live, not {stats:?}"
        );
        assert!(stats.largest_free_bytes <= stats.free_bytes, "{stats:?}");
        let known = stats.table_bytes + stats.live_bytes + stats.free_bytes;
        assert!(known <= stats.region_bytes, "{stats:?}");
        assert_eq!(stats.region_bytes, self.region.bytes() as u64);
        assert_eq!(stats.refused_frees, 0, "{stats:?}");
        stats
    }

    /// Frees everything. The heap must then be as new.
    fn end(&mut self, new: HeapStats) {
        while !self.live.is_empty() {
            self.free(0);
        }
        assert_eq!(self.walk().live_bytes, 0, "all was freed");
        self.heap.trim();
        assert_eq!(self.walk(), new, "all was freed and trimmed");
        assert_eq!(
            new.table_bytes + new.free_bytes,
            new.region_bytes,
            "{new:?}"
        );
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[low, high, offset], ops)) = data.split_first_chunk() else {
        return;
    };
    // All magnitudes of the length are equally likely, and round numbers are rare.
    let doublings = (REGION_BYTES.end / REGION_BYTES.start).ilog2();
    let bytes = REGION_BYTES.start << (u32::from(high) % doublings);
    let bytes = bytes + bytes / 256 * usize::from(low) + usize::from(low);
    let region = Region::new(bytes, usize::from(offset) * 17);
    let heap = Heap::new();
    let (mut start, mut left) = (region.start(), region.bytes());
    for later in (0..=offset % 4).rev() {
        let bytes = match later {
            1.. if left >= 2 * REGION_BYTES.start => left / 2,
            _ => left,
        };
        if bytes > 0 {
            // SAFETY: only this function has the memory; the heap and its blocks are gone before it.
            unsafe { heap.claim(start, bytes) }.expect("32 KiB are enough");
        }
        (start, left) = (start.wrapping_add(bytes), left - bytes);
    }
    let mut program = Program {
        heap,
        region,
        live: BTreeMap::new(),
        fills: 0,
    };
    let new = program.walk();
    for (number, op) in ops.as_chunks().0.iter().enumerate() {
        program.run(op);
        if number % WALK_EVERY == WALK_EVERY - 1 {
            program.walk();
        }
    }
    program.end(new);
});
