//! The exact numbers of `stats`, in a process with one thread.

use std::alloc::{GlobalAlloc, Layout};

use larder::Stats;

use crate::HEAP;
use crate::common::{KIB, Random};
use crate::known::{exercise, free, make, settle};
use crate::runner::Case;

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "live blocks of every class are counted as granted",
        classes_are_counted,
    ),
    Case::new(
        "numbers follow a random program exactly",
        numbers_follow_a_program,
    ),
    Case::new(
        "blocks that another thread freed are not live",
        freed_by_another_thread,
    ),
    Case::new(
        "committed memory lies in reserved, and everything live in committed",
        parts_fit,
    ),
];

/// Returns the bytes that count as live for a block of `size` bytes and an alignment of at most 8.
fn granted(stats: &Stats, size: usize) -> u64 {
    let class = stats
        .classes
        .iter()
        .find(|class| class.block_bytes >= size as u64);
    match class {
        Some(class) => class.block_bytes,
        None => size.next_multiple_of(page_bytes().max(16 * KIB)) as u64,
    }
}

fn page_bytes() -> usize {
    // SAFETY: reads a constant of the process.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn classes_are_counted() {
    let start = HEAP.stats();
    for (index, class) in start.classes.iter().enumerate().skip(1) {
        let size = class.block_bytes as usize;
        for count in [1, 2, 70] {
            let mut blocks = [std::ptr::null_mut(); 70];
            let before = HEAP.stats();
            for block in &mut blocks[..count] {
                *block = make(size);
            }
            let held = HEAP.stats();
            let live = held.classes[index].live_blocks - before.classes[index].live_blocks;
            assert_eq!(live, count as u64, "of {size}");
            assert_eq!(
                held.live_bytes - before.live_bytes,
                (count * size) as u64,
                "of {size}"
            );
            assert_eq!(held.large_bytes, before.large_bytes, "{size} is small");
            for &block in &blocks[..count] {
                free(block, size);
            }
            let after = HEAP.stats();
            assert_eq!(after.live_bytes, before.live_bytes, "of {size}");
            assert_eq!(
                after.classes[index].live_blocks,
                before.classes[index].live_blocks
            );
        }
    }
    assert_eq!(HEAP.stats().live_bytes, start.live_bytes);
    assert_eq!(HEAP.stats().heaps, start.heaps);
}

fn count(expected: &mut Stats, block: *const u8, size: usize, comes: bool) {
    let mut bytes = granted(expected, size);
    if size > 128 * KIB {
        // A block that was cached may be longer.
        let usable = HEAP.usable_size(block).unwrap() as u64;
        assert!((bytes..=bytes + bytes / 8).contains(&usable), "{size}");
        bytes = usable;
    }
    let change = |number: &mut u64, by: u64| {
        *number = if comes { *number + by } else { *number - by };
    };
    change(&mut expected.live_bytes, bytes);
    // The class at index 0 has no blocks.
    let mut classes = expected.classes.iter_mut().skip(1);
    match classes.find(|class| class.block_bytes == bytes) {
        Some(class) => change(&mut class.live_blocks, 1),
        None => change(&mut expected.large_bytes, bytes),
    }
}

fn assert_numbers(expected: &Stats, step: usize) {
    let found = HEAP.stats();
    let numbers = |stats: &Stats| {
        let blocks = stats.classes.map(|class| class.live_blocks);
        (stats.live_bytes, stats.large_bytes, blocks)
    };
    let are_equal = numbers(&found) == numbers(expected);
    assert!(are_equal, "step {step}: {found}\nand not {expected}");
}

/// Blocks pass through caches, transfer caches and spans, which must not change the numbers.
fn numbers_follow_a_program() {
    const MOST: usize = 2000;
    let mut random = Random::new(21);
    // From here on, only the counted blocks are allocated from the heap.
    let mut held: Vec<(*mut u8, usize)> = Vec::with_capacity(MOST);
    settle();
    let start = HEAP.stats();
    let mut expected = start;
    for step in 0..40_000 {
        let grows = random.next(10) < if step / 4000 % 2 == 0 { 7 } else { 3 };
        if held.len() < MOST && (grows || held.is_empty()) {
            let size = match step % 4001 {
                17 => 40 << 20,
                // Many blocks of one size; those that stay leave spans partly used.
                4.. if step % 400 < 100 => [8, 16, 48, 1024, 8192, 9000, 131_072][step / 400 % 7],
                _ => random.size(),
            };
            let block = make(size);
            held.push((block, size));
            count(&mut expected, block, size, true);
        } else {
            let (block, size) = held.swap_remove(random.next(held.len()));
            count(&mut expected, block, size, false);
            free(block, size);
        }
        if step % 7001 == 0 {
            HEAP.trim();
        }
        if step % 97 == 0 || step % 7001 == 0 {
            assert_numbers(&expected, step);
        }
    }
    for (block, size) in held.drain(..) {
        free(block, size);
    }
    assert_numbers(&start, 40_000);
}

fn freed_by_another_thread() {
    const SIZE: usize = 3000;
    let live = || -> u64 {
        let classes = HEAP.stats().classes;
        let class = classes
            .iter()
            .find(|class| class.block_bytes >= SIZE as u64);
        class.map_or(0, |class| class.live_blocks)
    };
    let before = live();
    // Addresses as numbers, because pointers are not `Send`.
    let build = || (0..5000).map(|_| make(SIZE).expose_provenance()).collect();
    let blocks: Vec<usize> = std::thread::spawn(build).join().unwrap();
    assert_eq!(live() - before, 5000);
    for block in blocks {
        free(std::ptr::with_exposed_provenance_mut(block), SIZE);
    }
    assert_eq!(live(), before);
}

fn parts_fit() {
    let layout = Layout::from_size_align(3 << 20, 1 << 21).unwrap();
    // SAFETY: the layout is not empty.
    let block = unsafe { HEAP.alloc(layout) };
    assert!(!block.is_null());
    exercise();
    let stats = HEAP.stats();
    let small: u64 = stats
        .classes
        .iter()
        .map(|class| class.live_blocks * class.block_bytes)
        .sum();
    let spans: u64 = stats.classes.iter().map(|class| class.span_bytes).sum();
    assert_eq!(stats.live_bytes, small + stats.large_bytes);
    assert_eq!(stats.span_bytes, spans);
    assert!(
        stats
            .classes
            .iter()
            .all(|class| class.live_blocks * class.block_bytes <= class.span_bytes)
    );
    assert!(stats.large_bytes >= 3 << 20);
    assert!(stats.span_bytes + stats.large_bytes <= stats.committed_bytes);
    assert!(stats.committed_bytes <= stats.reserved_bytes);
    // SAFETY: our block, with this layout.
    unsafe { HEAP.dealloc(block, layout) };
}
