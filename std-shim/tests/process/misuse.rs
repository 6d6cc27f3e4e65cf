//! Broken contracts end the process with a line that names the mistake.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::thread;

use crate::HEAP;
use crate::common::{Held, Random};
use crate::known::{free, layout, make};
use crate::runner::{Case, Ends};

const NO_BLOCK: &str = "larder: freed an address where no block of this heap starts\n";
const TWICE: &str = "larder: freed a block twice\n";
const FOREIGN: &str = "larder: freed an address that is not from this heap\n";
const NO_START: &str = "larder: freed an address where no block starts\n";
const INSIDE: &str = "larder: freed an address inside a block\n";
const OTHER_LAYOUT: &str = "larder: freed a block with another layout than it was allocated with\n";

/// The name of a case, the mistake, and the message that the heap prints.
type Mistake = (&'static str, fn(), &'static str);

/// Misuse that every build detects: frees with a layout, for which builds with debug assertions
/// have a more precise message, and frees by address alone.
const ALWAYS: [Mistake; 9] = [
    (
        "a large block freed twice is found",
        || free_at(freed(200_000), 200_000),
        if cfg!(debug_assertions) {
            NO_START
        } else {
            NO_BLOCK
        },
    ),
    (
        "an address inside a large block is found",
        || free_at(make(400_000).wrapping_add(200_000), 200_000),
        if cfg!(debug_assertions) {
            NO_START
        } else {
            NO_BLOCK
        },
    ),
    (
        "a large block of another heap is found",
        || free_at(of_another_heap(200_000), 200_000),
        if cfg!(debug_assertions) {
            FOREIGN
        } else {
            NO_BLOCK
        },
    ),
    (
        "null is found",
        || free_at(ptr::null_mut(), 200_000),
        if cfg!(debug_assertions) {
            FOREIGN
        } else {
            NO_BLOCK
        },
    ),
    (
        "an address inside a small block is found without a layout",
        || free_by_address(HEAP.malloc(48).wrapping_add(16)),
        NO_BLOCK,
    ),
    (
        "an address inside a block of 100 KiB is found",
        || free_by_address(HEAP.malloc(100 << 10).wrapping_add(16)),
        NO_BLOCK,
    ),
    (
        "the block that was freed last is found",
        || free_by_address(freed(48)),
        TWICE,
    ),
    (
        "a large block freed twice by its address is found",
        || free_by_address(freed(1 << 20)),
        NO_BLOCK,
    ),
    (
        "an address of the stack is found",
        || free_by_address([0_u8].as_mut_ptr()),
        NO_BLOCK,
    ),
];

/// Detected only with debug assertions. In other builds these frees are undefined behavior.
const CHECKED: [Mistake; 12] = [
    (
        "a small block freed twice is found",
        || {
            // With other frees in between, as is usual.
            let blocks = [(); 10].map(|()| make(100));
            blocks.into_iter().for_each(|block| free(block, 100));
            free_at(blocks[3], 100);
        },
        TWICE,
    ),
    (
        "a small block of another heap is found",
        || free_at(of_another_heap(100), 100),
        FOREIGN,
    ),
    (
        "a small layout for an address on the stack is found",
        || free_at([0_u64; 8].as_mut_ptr().cast(), 64),
        FOREIGN,
    ),
    (
        "a small layout inside a large block is found",
        || free_at(make(400_000).wrapping_add(64), 100),
        NO_START,
    ),
    (
        "a large block freed as a larger one is found",
        || free_at(make(200_000), 300_000),
        OTHER_LAYOUT,
    ),
    (
        "a small block freed as a smaller one is found",
        || free_at(make(200), 100),
        OTHER_LAYOUT,
    ),
    (
        "a small block freed as a larger one is found",
        || free_at(make(100), 200),
        OTHER_LAYOUT,
    ),
    (
        "a small block freed as a large one is found",
        || free_at(make(200), 200_000),
        OTHER_LAYOUT,
    ),
    (
        "a small block freed with a coarser alignment is found",
        || free_as(make(100), Layout::from_size_align(100, 64).unwrap()),
        OTHER_LAYOUT,
    ),
    (
        "a small block resized with another layout is found",
        || {
            // SAFETY: a broken contract, which the heap detects.
            unsafe { HEAP.realloc(make(100), layout(50), 400) };
        },
        OTHER_LAYOUT,
    ),
    (
        "an address inside a small block is found",
        || free_at(make(64).wrapping_add(16), 64),
        INSIDE,
    ),
    (
        "another thread's block is checked too",
        || {
            let block = thread::spawn(|| make(64).expose_provenance());
            let block = block.join().unwrap();
            free_at(ptr::with_exposed_provenance_mut(block), 640);
        },
        OTHER_LAYOUT,
    ),
];

pub(crate) fn cases() -> Vec<Case> {
    let checked = CHECKED.iter().filter(|_| cfg!(debug_assertions));
    let mistakes = ALWAYS.iter().chain(checked);
    let fails = mistakes.map(|(name, run, words)| Case::new(name, *run).ends(Ends::Aborts(words)));
    let well = [
        Case::new("null is nothing by its address", || {
            free_by_address(ptr::null_mut());
        }),
        Case::new("every right free passes the checks", right_frees),
    ];
    fails.chain(well).collect()
}

fn free_as(block: *mut u8, layout: Layout) {
    // SAFETY: a broken contract, which the heap detects before it touches the memory.
    unsafe { HEAP.dealloc(block, layout) };
}

fn free_at(block: *mut u8, size: usize) {
    free_as(block, layout(size));
}

fn free_by_address(block: *mut u8) {
    // SAFETY: null, or a broken contract, which the heap detects before it frees anything.
    unsafe { HEAP.free(block) };
}

fn freed(size: usize) -> *mut u8 {
    let block = make(size);
    free(block, size);
    block
}

fn of_another_heap(size: usize) -> *mut u8 {
    // SAFETY: the layout is not empty.
    unsafe { System.alloc(layout(size)) }
}

fn right_frees() {
    let mut random = Random::new(2);
    let mut held: Vec<Held> = Vec::new();
    for _ in 0..20_000 {
        held.push(Held::random(&mut random));
        if held.len() > 200 {
            let at = random.next(held.len());
            held[at].resize(random.size());
            held.swap_remove(random.next(held.len()));
        }
    }
}
