//! Broken contracts end the process with a line that names the mistake.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::HEAP;
use crate::known::{free, layout, make};
use crate::runner::{Case, Ends};

/// The misuse that every build finds.
const NO_BLOCK: Ends = Ends::Aborts(if cfg!(debug_assertions) {
    "larder: freed an address where no block starts\n"
} else {
    "larder: freed an address where no block of this heap starts\n"
});
const NOT_OURS: Ends = Ends::Aborts(if cfg!(debug_assertions) {
    "larder: freed an address that is not from this heap\n"
} else {
    "larder: freed an address where no block of this heap starts\n"
});

/// The misuse that a free by the address alone finds in every build.
pub(crate) const BY_ADDRESS: &[Case] = &[
    Case::new(
        "an address inside a small block is found without a layout",
        || {
            free_by_address(HEAP.malloc(48).wrapping_add(16));
        },
    )
    .ends(Ends::Aborts(NOT_A_START)),
    Case::new("an address inside a block of 100 KiB is found", || {
        free_by_address(HEAP.malloc(100 << 10).wrapping_add(16));
    })
    .ends(Ends::Aborts(NOT_A_START)),
    Case::new("the block that was freed last is found", || {
        let block = HEAP.malloc(48);
        free_by_address(block);
        free_by_address(block);
    })
    .ends(Ends::Aborts("larder: freed a block twice\n")),
    Case::new("a large block freed twice by its address is found", || {
        let block = HEAP.malloc(1 << 20);
        free_by_address(block);
        free_by_address(block);
    })
    .ends(Ends::Aborts(NOT_A_START)),
    Case::new("an address of the stack is found", || {
        let on_the_stack = 0_u8;
        free_by_address((&raw const on_the_stack).cast_mut());
    })
    .ends(Ends::Aborts(NOT_A_START)),
    Case::new("null is nothing by its address", || {
        free_by_address(std::ptr::null_mut());
    }),
];

const NOT_A_START: &str = "larder: freed an address where no block of this heap starts\n";

fn free_by_address(block: *mut u8) {
    // SAFETY: broken by some cases, which end with a message before anything is freed.
    unsafe { HEAP.free(block) };
}

/// Found in builds with debug assertions only; elsewhere such a free must not be tried.
#[cfg(debug_assertions)]
const fn checked(name: &'static str, run: fn(), words: &'static str) -> Case {
    Case::new(name, run).ends(Ends::Aborts(words))
}

#[cfg(not(debug_assertions))]
pub(crate) const CASES: &[Case] = ALWAYS;

#[cfg(not(debug_assertions))]
const ALWAYS: &[Case] = &[
    Case::new("a large block freed twice is found", large_twice).ends(NO_BLOCK),
    Case::new(
        "an address inside a large block is found",
        inside_a_large_block,
    )
    .ends(NO_BLOCK),
    Case::new(
        "a large block of another heap is found",
        large_of_another_heap,
    )
    .ends(NOT_OURS),
    Case::new("null is found", null).ends(NOT_OURS),
];

#[cfg(debug_assertions)]
pub(crate) const CASES: &[Case] = &[
    Case::new("a large block freed twice is found", large_twice).ends(NO_BLOCK),
    Case::new(
        "an address inside a large block is found",
        inside_a_large_block,
    )
    .ends(NO_BLOCK),
    Case::new(
        "a large block of another heap is found",
        large_of_another_heap,
    )
    .ends(NOT_OURS),
    Case::new("null is found", null).ends(NOT_OURS),
    checked(
        "a small block freed twice is found",
        small_twice,
        "larder: freed a block twice\n",
    ),
    checked(
        "a small block of another heap is found",
        small_of_another_heap,
        "larder: freed an address that is not from this heap\n",
    ),
    checked(
        "a small layout for an address on the stack is found",
        on_the_stack,
        "larder: freed an address that is not from this heap\n",
    ),
    checked(
        "a small layout inside a large block is found",
        small_inside_a_large_block,
        "larder: freed an address where no block starts\n",
    ),
    checked(
        "a large block freed as a larger one is found",
        || free_as(200_000, 300_000),
        "larder: freed a block with another layout than it was allocated with\n",
    ),
    checked(
        "a small block freed as a smaller one is found",
        || free_as(200, 100),
        OTHER_LAYOUT,
    ),
    checked(
        "a small block freed as a larger one is found",
        || free_as(100, 200),
        OTHER_LAYOUT,
    ),
    checked(
        "a small block freed as a large one is found",
        || free_as(200, 200_000),
        OTHER_LAYOUT,
    ),
    checked(
        "a small block freed with a coarser alignment is found",
        other_alignment,
        OTHER_LAYOUT,
    ),
    checked(
        "a small block resized with another layout is found",
        resized_with_another_layout,
        OTHER_LAYOUT,
    ),
    checked(
        "an address inside a small block is found",
        inside_a_small_block,
        "larder: freed an address inside a block\n",
    ),
    checked(
        "another thread's block is checked too",
        another_threads_block,
        OTHER_LAYOUT,
    ),
    Case::new("every right free passes the checks", right_frees),
];

#[cfg(debug_assertions)]
const OTHER_LAYOUT: &str = "larder: freed a block with another layout than it was allocated with\n";

/// Frees with a layout, whatever the address is.
fn free_at(block: *mut u8, size: usize) {
    // SAFETY: not right, and found by the heap before anything is touched.
    unsafe { HEAP.dealloc(block, layout(size)) };
}

// The mistakes, in the order of the lists above.

fn large_twice() {
    let block = make(200_000);
    free(block, 200_000);
    free_at(block, 200_000);
}

fn inside_a_large_block() {
    free_at(make(400_000).wrapping_add(200_000), 200_000);
}

fn large_of_another_heap() {
    // SAFETY: not empty.
    free_at(unsafe { System.alloc(layout(200_000)) }, 200_000);
}

fn null() {
    free_at(std::ptr::null_mut(), 200_000);
}

/// Others between, as it mostly is.
#[cfg(debug_assertions)]
fn small_twice() {
    let blocks = [(); 10].map(|()| make(100));
    for block in blocks {
        free(block, 100);
    }
    free_at(blocks[3], 100);
}

#[cfg(debug_assertions)]
fn small_of_another_heap() {
    // SAFETY: not empty.
    free_at(unsafe { System.alloc(layout(100)) }, 100);
}

#[cfg(debug_assertions)]
fn on_the_stack() {
    let mut place = [0u64; 8];
    free_at(place.as_mut_ptr().cast(), 64);
}

#[cfg(debug_assertions)]
fn small_inside_a_large_block() {
    free_at(make(400_000).wrapping_add(64), 100);
}

#[cfg(debug_assertions)]
fn free_as(size: usize, wrong: usize) {
    free_at(make(size), wrong);
}

#[cfg(debug_assertions)]
fn other_alignment() {
    let wrong = Layout::from_size_align(100, 64).unwrap();
    // SAFETY: not right, and found.
    unsafe { HEAP.dealloc(make(100), wrong) };
}

#[cfg(debug_assertions)]
fn resized_with_another_layout() {
    // SAFETY: not right, and found.
    unsafe { HEAP.realloc(make(100), layout(50), 400) };
}

#[cfg(debug_assertions)]
fn inside_a_small_block() {
    let block = make(64);
    free_at(block.wrapping_add(16), 64);
}

#[cfg(debug_assertions)]
fn another_threads_block() {
    let block = std::thread::spawn(|| make(64).expose_provenance())
        .join()
        .unwrap();
    free_at(std::ptr::with_exposed_provenance_mut(block), 640);
}

#[cfg(debug_assertions)]
fn right_frees() {
    use crate::common::{Held, Random};
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
