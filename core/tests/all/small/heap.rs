//! `Heap` over one region and several: random programs, exhaustion and misuse.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;

use larder_core::{Heap, HeapStats, RegionError, StaticHeap};
use larder_model::Random;

/// Returns a heap and its region, which must live as long as the heap.
fn heap(bytes: usize) -> (Heap, Vec<Vec<u8>>) {
    heap_of(&[bytes])
}

/// Returns a heap and its regions, which must live as long as the heap.
fn heap_of(regions: &[usize]) -> (Heap, Vec<Vec<u8>>) {
    let heap = Heap::new();
    let claim = |&bytes: &usize| {
        let mut region = vec![0xee_u8; bytes];
        // SAFETY: only the heap uses the region while both live.
        unsafe { heap.claim(region.as_mut_ptr(), bytes) }.unwrap();
        region
    };
    let regions = regions.iter().map(claim).collect();
    (heap, regions)
}

/// Live blocks by address, each with its layout and the byte that fills it.
#[derive(Default)]
struct Live(BTreeMap<usize, (*mut u8, Layout, u8)>);

impl Live {
    fn enter(&mut self, block: *mut u8, layout: Layout, fill: u8) {
        let (start, end) = (block.addr(), block.addr() + layout.size());
        assert!(start.is_multiple_of(layout.align()), "{layout:?}");
        if let Some((&below, &(_, other, _))) = self.0.range(..=start).next_back() {
            assert!(below + other.size() <= start, "overlaps the block below");
        }
        if let Some((&above, _)) = self.0.range(start..).next() {
            assert!(end <= above, "overlaps the block above");
        }
        // SAFETY: the block is live and `layout.size()` bytes long.
        unsafe { block.write_bytes(fill, layout.size()) };
        self.0.insert(start, (block, layout, fill));
    }

    fn take(&mut self, number: usize) -> (*mut u8, Layout, u8) {
        let key = *self.0.keys().nth(number % self.0.len()).unwrap();
        let (block, layout, fill) = self.0.remove(&key).unwrap();
        // SAFETY: the block is live and was filled.
        let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
        assert!(bytes.iter().all(|&byte| byte == fill), "contents changed");
        (block, layout, fill)
    }
}

fn layout(random: &mut Random, max: usize) -> Layout {
    let size = match random.index(10) {
        0 => random.index(max) + 1,
        1..4 => random.index(2000) + 1,
        _ => random.index(200) + 1,
    };
    let align = 1 << [0, 0, 3, 3, 3, 4, 5, 7, 12, 13][random.index(10)];
    Layout::from_size_align(size, align).unwrap()
}

/// Runs a random program over regions of these lengths. Returns how many requests the heap refused.
fn run(seed: u64, regions: &[usize], max: usize, operations: usize) -> usize {
    let (heap, memory) = heap_of(regions);
    let inside = |first: usize, size: usize| {
        memory.iter().any(|region| {
            let start = region.as_ptr().addr();
            start <= first && first + size <= start + region.len()
        })
    };
    let mut random = Random::new(seed);
    let mut live = Live::default();
    let mut refused = 0;
    for number in 0..operations {
        let fill = random.below(251) as u8;
        let growing = (number / 500) % 2 == 0;
        if live.0.is_empty() || random.below(10) < if growing { 7 } else { 3 } {
            let layout = layout(&mut random, max);
            // SAFETY: the layout is not empty.
            let block = unsafe { heap.alloc(layout) };
            if block.is_null() {
                refused += 1;
                continue;
            }
            assert!(inside(block.addr(), layout.size()));
            live.enter(block, layout, fill);
        } else if random.below(4) == 0 {
            let (block, old, fill) = live.take(random.next_u64() as usize);
            let new = layout(&mut random, max).size();
            // SAFETY: the block is live and has this layout.
            let moved = unsafe { heap.realloc(block, old, new) };
            let (kept, layout) = if moved.is_null() {
                refused += 1;
                (block, old)
            } else {
                (moved, Layout::from_size_align(new, old.align()).unwrap())
            };
            let common = old.size().min(layout.size());
            // SAFETY: the block is live and at least `common` bytes long.
            let bytes = unsafe { std::slice::from_raw_parts(kept, common) };
            assert!(bytes.iter().all(|&byte| byte == fill), "contents lost");
            live.enter(kept, layout, fill);
        } else {
            let (block, layout, _) = live.take(random.next_u64() as usize);
            // SAFETY: the block is live and has this layout.
            unsafe { heap.dealloc(block, layout) };
        }
        if number % 64 == 0 {
            assert!(heap.is_sound(), "seed {seed}, operation {number}");
            let requested: usize = live.0.values().map(|(_, layout, _)| layout.size()).sum();
            assert!(heap.stats().live_bytes >= requested as u64);
        }
    }
    while !live.0.is_empty() {
        let (block, layout, _) = live.take(0);
        // SAFETY: the block is live and has this layout.
        unsafe { heap.dealloc(block, layout) };
    }
    heap.trim();
    let stats = heap.stats();
    assert!(heap.is_sound(), "seed {seed}, at the end");
    assert_eq!(
        (stats.live_bytes, stats.span_bytes, stats.refused_frees),
        (0, 0, 0)
    );
    assert_eq!(stats.free_bytes + stats.table_bytes, stats.region_bytes);
    refused
}

#[test]
fn random_programs_get_aligned_blocks_of_their_own_and_give_all_back() {
    for seed in 1..=8 {
        assert_eq!(
            run(seed, &[48 << 20], 200_000, 6000),
            0,
            "seed {seed}: a roomy region refused"
        );
    }
}

#[test]
fn programs_that_run_out_of_memory_lose_nothing() {
    for (seed, bytes) in [
        (21, 32 << 10),
        (22, 64 << 10),
        (23, 256 << 10),
        (24, 300_001),
    ] {
        assert!(
            run(seed, &[bytes], bytes / 8, 8000) > 0,
            "{bytes} bytes were never short"
        );
    }
}

#[test]
fn regions_of_all_lengths_serve_together() {
    for (seed, regions) in [
        (31, &[256 << 10, 64 << 10][..]),
        (32, &[64 << 10, 8 << 20]),
        (33, &[8 << 20, 33_333, 64 << 10, 1 << 20]),
        (34, &[32 << 10; 12]),
        (35, &[100_001, 1 << 20, 300_003, 50_000, 2 << 20]),
    ] {
        let bytes: usize = regions.iter().sum();
        let refused = run(seed, regions, bytes / 20, 8000);
        assert!(refused > 0, "{regions:?} were never short");
    }
}

/// With each region there are more chunk records, too.
#[test]
fn four_regions_can_be_filled_as_one() {
    // Blocks of more than the longest class; each needs a chunk record.
    for size in [4100, 40_000] {
        let (one, _memory) = heap(1 << 20);
        let count = fill(&one, size);
        let (four, _memory) = heap_of(&[1 << 20; 4]);
        let all = fill(&four, size);
        assert!(
            all * 20 >= 4 * count * 19,
            "{size}: {all} blocks, {count} in one"
        );
    }
}

#[test]
fn a_region_that_is_refused_changes_nothing() {
    let (heap, mut memory) = heap_of(&[256 << 10, 64 << 10]);
    let before = heap.stats();
    let [first, second] = &mut memory[..] else {
        panic!()
    };
    let mut small = vec![0xee_u8; 300];
    for (region, error) in [
        (&mut first[..], RegionError::Overlap),
        (&mut second[40_000..50_000], RegionError::Overlap),
        (&mut small[..], RegionError::NoRoom),
        (&mut [], RegionError::NoRoom),
    ] {
        // SAFETY: the heap is to refuse the region; it has no blocks that could be lost.
        let claimed = unsafe { heap.claim(region.as_mut_ptr(), region.len()) };
        assert_eq!(claimed, Err(error));
        assert_eq!(heap.stats(), before);
        assert!(heap.is_sound());
    }
}

/// Fills the heap with blocks of one size and frees them. Returns how many there were.
fn fill(heap: &Heap, size: usize) -> usize {
    let layout = Layout::from_size_align(size, 8).unwrap();
    // SAFETY: the layout is not empty.
    let alloc = || Some(unsafe { heap.alloc(layout) }).filter(|block| !block.is_null());
    let blocks: Vec<_> = std::iter::from_fn(alloc).collect();
    assert!(heap.is_sound());
    for block in &blocks {
        // SAFETY: the block is live and has this layout.
        unsafe { heap.dealloc(*block, layout) };
    }
    blocks.len()
}

#[test]
fn a_region_full_of_one_class_gives_way_to_another() {
    let (heap, _memory) = heap(1 << 20);
    for size in [8, 48, 1000, 3000, 9000, 100_000] {
        let got = fill(&heap, size) * size;
        assert!(got > (1 << 20) * 3 / 5, "{size}: only {got} bytes");
    }
}

#[test]
fn memory_that_was_all_small_blocks_serves_large_ones_again() {
    for bytes in [64 << 10, 1 << 20, 16 << 20] {
        let (heap, _memory) = heap(bytes);
        let before = {
            let layout = Layout::new::<u64>();
            // SAFETY: the layout is not empty, and the block is freed with it.
            unsafe { heap.dealloc(heap.alloc(layout), layout) };
            heap.trim();
            heap.stats().largest_free_bytes
        };
        for size in [24, 100, 400, 1000] {
            fill(&heap, size);
            heap.trim();
            assert_eq!(heap.stats().largest_free_bytes, before, "{size} in {bytes}");
        }
    }
}

#[test]
fn tables_take_a_few_hundredths_of_a_region() {
    for (bytes, max_percent) in [(64 << 10, 18), (1 << 20, 7), (16 << 20, 4), (64 << 20, 3)] {
        let (heap, _memory) = heap(bytes);
        let stats = heap.stats();
        assert!(
            stats.table_bytes * 100 < stats.region_bytes * max_percent,
            "{stats:?}"
        );
    }
}

#[test]
fn a_heap_has_no_memory_before_its_first_region() {
    let heap = Heap::new();
    let layout = Layout::new::<u64>();
    // SAFETY: the layout is not empty.
    assert!(unsafe { heap.alloc(layout) }.is_null(), "no region yet");
    let region = Box::leak(vec![0u8; 64 << 10].into_boxed_slice());
    // SAFETY: the region is leaked, and only the heap uses it.
    unsafe {
        assert_eq!(
            heap.claim(region.as_mut_ptr(), 1000),
            Err(RegionError::NoRoom)
        );
        assert_eq!(heap.claim(region.as_mut_ptr(), region.len()), Ok(()));
        assert!(!heap.alloc(layout).is_null());
    }
}

#[test]
fn impossible_requests_are_null() {
    let (heap, _memory) = heap(1 << 20);
    for (size, align) in [
        (isize::MAX as usize, 1),
        (1 << 40, 8),
        (8, 1 << 40),
        (2 << 20, 4096),
    ] {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the layout is not empty.
        assert!(unsafe { heap.alloc(layout) }.is_null(), "{layout:?}");
    }
    assert!(heap.is_sound());
}

#[test]
fn frees_of_what_is_no_block_are_counted_and_change_nothing() {
    let (heap, _memory) = heap(1 << 20);
    let big = Layout::from_size_align(200_000, 8).unwrap();
    let small = Layout::from_size_align(64, 8).unwrap();
    // SAFETY: the layouts are not empty. The wrong frees are under test: the heap checks each before it acts.
    unsafe {
        let block = heap.alloc(big);
        heap.dealloc(block.add(4096), big);
        assert_eq!(heap.stats().refused_frees, 1);
        if cfg!(debug_assertions) {
            let other = heap.alloc(small);
            heap.dealloc(other.add(8), small);
            heap.dealloc(other, Layout::from_size_align(500, 8).unwrap());
            heap.dealloc(block.add(64), small);
            assert_eq!(heap.stats().refused_frees, 4);
            heap.dealloc(other, small);
            heap.dealloc(other, small);
            assert_eq!(heap.stats().refused_frees, 5);
        }
        heap.dealloc(block, big);
    }
    assert_eq!(heap.stats().live_bytes, 0);
}

/// Release builds do not detect the second free, but `stats` must return even then.
#[test]
fn numbers_end_although_a_small_block_was_freed_twice() {
    let (heap, _memory) = heap(1 << 20);
    let small = Layout::from_size_align(64, 8).unwrap();
    // SAFETY: the second free is under test; nothing is allocated after it.
    unsafe {
        let block = heap.alloc(small);
        heap.dealloc(block, small);
        heap.dealloc(block, small);
    }
    let stats = heap.stats();
    assert_eq!(stats.refused_frees, u64::from(cfg!(debug_assertions)));
}

#[test]
fn a_static_heap_needs_nothing_but_its_declaration() {
    static HEAP: StaticHeap<{ 1 << 20 }> = StaticHeap::new();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                let mut random = Random::new(u64::from(thread) + 7);
                let mut live = Live::default();
                for _ in 0..3000 {
                    if live.0.len() < 40 {
                        let layout = layout(&mut random, 700);
                        // SAFETY: the layout is not empty.
                        let block = unsafe { HEAP.alloc(layout) };
                        assert!(!block.is_null());
                        live.enter(block, layout, thread);
                    } else {
                        let (block, layout, _) = live.take(random.next_u64() as usize);
                        // SAFETY: the block is live and has this layout.
                        unsafe { HEAP.dealloc(block, layout) };
                    }
                }
                while !live.0.is_empty() {
                    let (block, layout, _) = live.take(0);
                    // SAFETY: the block is live and has this layout.
                    unsafe { HEAP.dealloc(block, layout) };
                }
            });
        }
    });
    assert_eq!(HEAP.stats().live_bytes, 0);
    assert!(HEAP.stats().span_bytes > 0, "blocks are kept at hand");
    HEAP.trim();
    assert_eq!(HEAP.stats().span_bytes, 0);
}

/// A heap is longer than the stack of many a small machine.
#[test]
fn a_heap_begins_on_a_small_stack() {
    static HEAP: StaticHeap<{ 64 << 10 }> = StaticHeap::new();
    static OTHER: Heap = Heap::new();
    let region = Box::leak(vec![0u8; 64 << 10].into_boxed_slice());
    let begin = || {
        let layout = Layout::new::<[u64; 12]>();
        // SAFETY: the layout is not empty.
        assert!(!unsafe { HEAP.alloc(layout) }.is_null());
        // SAFETY: the region is leaked, and only the heap uses it.
        unsafe { OTHER.claim(region.as_mut_ptr(), region.len()) }.unwrap();
    };
    let thread = std::thread::Builder::new().stack_size(32 << 10);
    thread.spawn(begin).unwrap().join().unwrap();
}

#[test]
fn a_static_heap_that_was_moved_after_its_first_block_has_no_memory_any_more() {
    type Moving = StaticHeap<{ 64 << 10 }>;
    let layout = Layout::new::<[u64; 12]>();
    let before: Box<Moving> = Box::default();
    // SAFETY: the layout is not empty.
    let block = unsafe { before.alloc(layout) };
    assert!(!block.is_null());
    let moved: Box<Moving> = Box::new(*before);
    assert_eq!(moved.stats(), HeapStats::default());
    moved.trim();
    // SAFETY: the layout is not empty. The block's memory is gone, and the moved heap does not touch it.
    unsafe {
        assert!(moved.alloc(layout).is_null());
        assert!(moved.realloc(block, layout, 4000).is_null());
        moved.dealloc(block, layout);
    }
    assert_eq!(moved.stats(), HeapStats::default());
}

/// A block that has grown is likely to grow again, so it is moved to where it can grow without another copy.
#[test]
fn a_large_block_that_moved_to_grow_has_room_to_grow_again() {
    let (heap, _memory) = heap(4 << 20);
    let of = |bytes: usize| Layout::from_size_align(bytes, 16).unwrap();
    // SAFETY: no layout is empty.
    let alloc = |bytes: usize| unsafe { heap.alloc(of(bytes)) };
    // A hole that fits the grown block exactly, between blocks that stay.
    let [mut grown, guard, hole, end] = [32, 16, 64, 16].map(|kib| alloc(kib << 10));
    // SAFETY: the block is freed with its layout.
    unsafe { heap.dealloc(hole, of(64 << 10)) };
    // SAFETY: the block is 32 KiB long.
    unsafe { grown.write_bytes(7, 32 << 10) };
    // SAFETY: the layout is the block's, and the new size is not 0.
    grown = unsafe { heap.realloc(grown, of(32 << 10), 64 << 10) };
    assert_ne!(grown, hole, "the exact fit has no room behind it");
    // SAFETY: the layout is the block's, and the new size is not 0.
    let again = unsafe { heap.realloc(grown, of(64 << 10), 128 << 10) };
    assert_eq!(again, grown);
    // SAFETY: the first 32 KiB of the block were written.
    let kept = unsafe { std::slice::from_raw_parts(again, 32 << 10) };
    assert!(kept.iter().all(|byte| *byte == 7));
    for (block, kib) in [(again, 128), (guard, 16), (end, 16)] {
        // SAFETY: the block is freed with its layout.
        unsafe { heap.dealloc(block, of(kib << 10)) };
    }
    assert_eq!(heap.stats().live_bytes, 0);
    assert!(heap.is_sound());
}
