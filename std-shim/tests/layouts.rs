//! Layouts at their limits: zero bytes, the borders between classes, coarse alignments, more than
//! any machine has. Also zeroed memory that other blocks used before.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeSet;

use common::{Held, KIB, MIB, Random};
use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Returns the block sizes of all classes, and a few larger sizes.
fn borders() -> Vec<usize> {
    let classes = HEAP.stats().classes.map(|class| class.block_bytes as usize);
    assert!(classes.len() > 50);
    let large = [144 * KIB, 160 * KIB, MIB, MIB + 16 * KIB];
    classes
        .into_iter()
        .chain(large)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

#[test]
fn layouts_without_bytes_get_blocks_of_their_own() {
    for shift in 0..=21 {
        let layout = layout(0, 1 << shift);
        let blocks: Vec<*mut u8> = (0..300)
            .map(|number| {
                if number % 2 == 0 {
                    // SAFETY: this heap serves empty layouts too.
                    unsafe { HEAP.alloc(layout) }
                } else {
                    // SAFETY: this heap serves empty layouts too.
                    unsafe { HEAP.alloc_zeroed(layout) }
                }
            })
            .collect();
        assert!(
            blocks
                .iter()
                .all(|block| !block.is_null() && block.addr().is_multiple_of(1 << shift))
        );
        let different: BTreeSet<usize> = blocks.iter().map(|block| block.addr()).collect();
        assert_eq!(different.len(), blocks.len());
        for block in blocks {
            // SAFETY: our block, with this layout.
            unsafe { HEAP.dealloc(block, layout) };
        }
    }
}

#[test]
fn a_block_without_bytes_may_grow() {
    for align in [1, 8, 64, 8192] {
        // SAFETY: this heap serves empty layouts too.
        let block = unsafe { HEAP.alloc(layout(0, align)) };
        // SAFETY: our block, with this layout; the new size is not 0.
        let grown = unsafe { HEAP.realloc(block, layout(0, align), 5000) };
        assert!(!grown.is_null() && grown.addr().is_multiple_of(align));
        // SAFETY: our block, of this length.
        unsafe { grown.write_bytes(1, 5000) };
        // SAFETY: our block, with this layout.
        unsafe { HEAP.dealloc(grown, layout(5000, align)) };
    }
}

#[test]
fn every_alignment_holds_at_every_border_of_the_classes() {
    for shift in 0..=21 {
        let mut held = Vec::new();
        // All blocks are live at once, so that overlapping ones would overwrite each other.
        for border in borders()
            .into_iter()
            .step_by(if shift > 14 { 9 } else { 1 })
        {
            for size in [border - 1, border, border + 1] {
                held.push(Held::new(
                    layout(size, 1 << shift),
                    (held.len() % 251) as u8 + 1,
                    size % 2 == 0,
                ));
            }
        }
        assert!(held.iter().all(Held::is_whole), "alignment 1 << {shift}");
    }
}

#[test]
fn a_gibibyte_is_a_block_like_others() {
    const SIZE: usize = 1 << 30;
    for align in [1, 4096, 2 * MIB, SIZE] {
        let layout = layout(SIZE, align);
        // SAFETY: the layout is not empty.
        let block = unsafe { HEAP.alloc_zeroed(layout) };
        assert!(!block.is_null() && block.addr().is_multiple_of(align));
        for at in [0, SIZE / 2 + 1, SIZE - 1] {
            // SAFETY: inside our block.
            assert_eq!(unsafe { block.wrapping_add(at).read() }, 0);
            // SAFETY: inside our block.
            unsafe { block.wrapping_add(at).write(at as u8 | 1) };
        }
        // SAFETY: our block, with this layout.
        unsafe { HEAP.dealloc(block, layout) };
    }
}

#[test]
fn what_no_machine_has_is_null_and_harms_nothing() {
    let kept: Vec<Held> = (1..60)
        .map(|seed| Held::random(&mut Random::new(seed)))
        .collect();
    // Other tests may reserve addresses meanwhile, but not in all five rounds.
    let grows = (0..5).all(|_| {
        let before = HEAP.stats().reserved_bytes;
        ask_for_what_no_machine_has();
        HEAP.stats().reserved_bytes != before
    });
    assert!(!grows, "addresses stay reserved for what failed");
    assert!(kept.iter().all(Held::is_whole));
}

fn ask_for_what_no_machine_has() {
    let max = isize::MAX as usize;
    for size in [max, max - 1, max - 4096, max / 2, 1 << 56] {
        for align in [1, 16, 64, 4096, 8192, 2 * MIB, 1 << 40, 1 << 61] {
            let Ok(layout) = Layout::from_size_align(size, align) else {
                continue;
            };
            // SAFETY: the layout is not empty.
            assert!(unsafe { HEAP.alloc(layout) }.is_null(), "{layout:?}");
            // SAFETY: the layout is not empty.
            assert!(unsafe { HEAP.alloc_zeroed(layout) }.is_null(), "{layout:?}");
            for old in [24, 3000, MIB] {
                let Ok(block_layout) = Layout::from_size_align(old, align.min(2 * MIB)) else {
                    continue;
                };
                // SAFETY: the layout is not empty.
                let block = unsafe { HEAP.alloc_zeroed(block_layout) };
                // SAFETY: our block; the size is valid for the alignment.
                assert!(unsafe { HEAP.realloc(block, block_layout, size) }.is_null());
                // The block is still live and unchanged.
                // SAFETY: our block, of this length.
                let bytes = unsafe { std::slice::from_raw_parts(block, old) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                // SAFETY: our block, with this layout.
                unsafe { HEAP.dealloc(block, block_layout) };
            }
        }
    }
    assert!(vec![0u8; 0].try_reserve_exact(max).is_err());
}

#[test]
fn realloc_keeps_the_contents_across_every_border_up_and_down() {
    for align in [1, 16, 64, 4096, 8192] {
        let borders = borders();
        let mut up = Held::new(layout(1, align), 7, false);
        for border in &borders {
            for size in [border - 1, *border, border + 1] {
                up.resize(size);
            }
        }
        for border in borders.iter().rev() {
            for size in [border + 1, *border, (border - 1).max(1)] {
                up.resize(size);
            }
        }
    }
}

#[test]
fn realloc_to_the_same_size_leaves_the_block_where_it_is() {
    for size in borders() {
        for align in [1, 8, 64, 8192] {
            let mut held = Held::new(layout(size, align), 5, false);
            let before = held.start();
            held.resize(size);
            assert_eq!(held.start(), before, "{size} at {align}");
        }
    }
}

#[test]
fn zeroed_memory_is_zero_wherever_it_moved_between_classes_large_blocks_and_the_system() {
    let mut random = Random::new(23);
    let mut held: Vec<Held> = Vec::new();
    let borders = borders();
    for step in 0..400 {
        // Blocks of one size, of which half, and sometimes all, are freed: whole spans come and go.
        let size = borders[random.next(borders.len())];
        let count = (MIB / size).clamp(2, 400);
        let zeroed = random.next(3) != 0;
        held.extend((0..count).map(|_| Held::new(layout(size, 1), 0xaa, zeroed)));
        match random.next(8) {
            0 => held.clear(),
            1..4 => held.truncate(held.len() / 2),
            4..6 => drop(held.drain(..held.len() / 2)),
            _ => {
                for _ in 0..10.min(held.len()) {
                    let at = random.next(held.len());
                    held[at].resize(random.size());
                }
            }
        }
        if step % 16 == 0 {
            HEAP.trim();
        }
        if held.len() > 4000 {
            held.truncate(1000);
        }
    }
}

/// Fills a block with a random byte and returns the byte.
fn fill(block: *mut u8, bytes: usize, random: &mut Random) -> u8 {
    let with = random.next(251) as u8 + 1;
    // SAFETY: our block, of this length.
    unsafe { block.write_bytes(with, bytes) };
    with
}

fn is_filled(block: *mut u8, bytes: usize, with: u8) -> bool {
    // SAFETY: our block, of this length, fully written.
    unsafe { std::slice::from_raw_parts(block, bytes) }
        .iter()
        .all(|byte| *byte == with)
}

#[test]
fn c_gets_blocks_of_its_length_at_multiples_of_16_and_frees_them_by_their_address() {
    let sizes = borders().into_iter().flat_map(|at| [at - 1, at, at + 1]);
    for bytes in sizes.chain([0, 2 << 30]) {
        let block = HEAP.malloc(bytes);
        assert!(
            block.addr().is_multiple_of(16) && !block.is_null(),
            "{bytes}"
        );
        let usable = HEAP.usable_size(block).unwrap();
        assert!(
            (bytes..bytes.max(16) + bytes / 4 + 16 * KIB).contains(&usable),
            "{bytes} {usable}"
        );
        if bytes < MIB {
            // SAFETY: our block, of this length.
            unsafe { block.write_bytes(1, usable) };
        }
        // SAFETY: our block.
        unsafe { HEAP.free(block) };
        let zeroed = HEAP.malloc_zeroed(bytes.min(MIB));
        assert!(is_filled(zeroed, bytes.min(MIB), 0), "{bytes}");
        // SAFETY: our block.
        unsafe { HEAP.free(zeroed) };
    }
    assert!(HEAP.malloc(usize::MAX).is_null() && HEAP.malloc(isize::MAX as usize).is_null());
    assert!(HEAP.malloc_zeroed(usize::MAX - 7).is_null());
    assert_eq!(
        std::io::Error::last_os_error().kind(),
        std::io::ErrorKind::OutOfMemory
    );
}

#[test]
fn blocks_of_any_layout_are_found_freed_and_resized_by_their_address() {
    let mut random = Random::new(11);
    let mut held: Vec<(*mut u8, usize, u8)> = Vec::new();
    for _ in 0..20_000 {
        if held.len() > 300 || (held.len() > 100 && random.next(2) == 0) {
            let (block, bytes, with) = held.swap_remove(random.next(held.len()));
            assert!(is_filled(block, bytes, with));
            if random.next(2) == 0 {
                // SAFETY: our block.
                unsafe { HEAP.free(block) };
                continue;
            }
            let longer = random.size() % (3 * MIB);
            // SAFETY: our block.
            let resized = unsafe { HEAP.resize(block, longer) };
            assert!(
                is_filled(resized, bytes.min(longer), with),
                "{bytes} {longer}"
            );
            let with = fill(resized, longer, &mut random);
            held.push((resized, longer, with));
            continue;
        }
        let align = 1 << [0, 3, 3, 4, 4, 6, 9, 12, 14][random.next(9)];
        let layout = layout(random.size() % (3 * MIB) + 1, align);
        // SAFETY: the layout is not empty.
        let block = unsafe { HEAP.alloc(layout) };
        let usable = HEAP.usable_size(block).unwrap();
        assert!(usable >= layout.size(), "{layout:?} {usable}");
        let bytes = [layout.size(), usable][random.next(2)];
        let with = fill(block, bytes, &mut random);
        held.push((block, bytes, with));
    }
    for (block, bytes, with) in held {
        assert!(is_filled(block, bytes, with));
        // SAFETY: our block.
        unsafe { HEAP.free(block) };
    }
}

#[test]
fn an_address_where_no_block_starts_has_no_usable_size() {
    let on_the_stack = 0_u8;
    assert_eq!(HEAP.usable_size(&raw const on_the_stack), None);
    assert_eq!(HEAP.usable_size(std::ptr::null()), None);
    for bytes in [48, 5000, 100 * KIB, MIB, 2 << 30] {
        let block = HEAP.malloc(bytes);
        assert!(HEAP.usable_size(block).is_some());
        assert_eq!(HEAP.usable_size(block.wrapping_add(16)), None, "{bytes}");
        // SAFETY: our block.
        unsafe { HEAP.free(block) };
    }
}
