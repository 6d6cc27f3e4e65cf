//! Fallbacks of small requests and frees when there is no memory for a span or for a heap.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::drive::World;
use super::faulty::{Faulty, Plan};
use super::verbs::Verbs;
use crate::config::Config;
use crate::thread::local::Local;

/// Granule of the arenas: a large block of this size leaves a hole that holds no span.
const GRANULE: usize = 16 << 10;
const LAYOUT: Layout = Layout::new::<[u8; 2000]>();

/// Allocates all the memory there is; the system grants no more.
fn fill(world: &World) -> Vec<NonNull<u8>> {
    world.os.limit(world.os.reserved_bytes(), usize::MAX);
    let process = world.verbs().process;
    std::iter::from_fn(|| process.alloc_large(GRANULE, 16)).collect()
}

fn free_large(verbs: Verbs, blocks: impl IntoIterator<Item = NonNull<u8>>) {
    for block in blocks {
        assert!(verbs.process.free_large(block.as_ptr(), GRANULE));
    }
}

#[test]
fn without_room_for_a_span_small_blocks_come_singly_and_go_back_singly() {
    let world = World::new(Plan::Willing, 1, 1);
    let (verbs, mut local) = (world.verbs(), Local::new());
    let first = verbs.alloc(&mut local, Layout::new::<u64>(), false);
    let mut filling = fill(&world);
    // More blocks than a bin holds.
    let holes: Vec<_> = filling.iter().copied().step_by(2).take(40).collect();
    filling.retain(|block| !holes.contains(block));
    free_large(verbs, holes.iter().copied());
    for _ in 0..3 {
        let blocks: Vec<_> = (0..holes.len())
            .map(|_| verbs.alloc(&mut local, LAYOUT, true))
            .collect();
        assert!(blocks.iter().all(|block| !block.is_null()));
        assert!(verbs.alloc(&mut local, LAYOUT, false).is_null());
        for (number, block) in blocks.iter().enumerate() {
            assert!(!blocks[..number].contains(block), "given twice");
            // SAFETY: ours, that long.
            unsafe { block.write_bytes(0xff, LAYOUT.size()) };
        }
        for block in blocks {
            verbs.free(&mut local, block, LAYOUT);
            world.assert_sound();
        }
    }
    local.flush(verbs.process);
    verbs.process.trim();
    free_large(
        verbs,
        fill(&world).into_iter().inspect(|block| {
            assert!(holes.contains(block), "a hole that was none");
        }),
    );
    free_large(verbs, filling);
    verbs.free(&mut local, first, Layout::new::<u64>());
    local.end(verbs.process);
    world.end();
}

#[test]
fn a_thread_that_can_have_no_heap_frees_to_the_owners_of_the_blocks() {
    let world = World::new(Plan::Willing, 1, 1);
    let (verbs, mut owner) = (world.verbs(), Local::new());
    let mut others = Vec::new();
    let block = verbs.alloc(&mut owner, LAYOUT, false);
    let mut filling = fill(&world);
    // The last memory for heaps is used up.
    loop {
        let mut local = Local::new();
        let one = verbs.alloc(&mut local, LAYOUT, false);
        if local.heap().is_null() {
            assert!(one.is_null());
            break;
        }
        // The primary heap may have a block left.
        if !one.is_null() {
            verbs.free(&mut local, one, LAYOUT);
        }
        others.push(local);
    }
    // One block of a span, and one that was allocated singly.
    free_large(verbs, filling.pop());
    let layout = Layout::new::<[u8; 5000]>();
    let single = verbs.alloc(&mut owner, layout, false);
    assert!(!single.is_null());
    let mut stranger = Local::new();
    verbs.free(&mut stranger, block, LAYOUT);
    verbs.free(&mut stranger, single, layout);
    assert!(stranger.heap().is_null());
    filling.push(
        verbs
            .process
            .alloc_large(GRANULE, 16)
            .expect("the single block's"),
    );
    verbs.process.trim();
    owner.flush(verbs.process);
    free_large(verbs, filling);
    for local in others.iter_mut().chain([&mut owner]) {
        local.end(verbs.process);
    }
    world.end();
}

#[test]
fn a_long_block_that_is_no_whole_pages_takes_no_addresses_with_it() {
    const BYTES: usize = 5_300_000;
    let os = Faulty::new(Plan::Willing);
    // Less than the configured first arena.
    os.limit(48 << 20, usize::MAX);
    let world = World::with(os, 1, 1, 64 << 20, &Config::BALANCED);
    let (verbs, mut local) = (world.verbs(), Local::new());
    let first = verbs.alloc(&mut local, Layout::new::<u64>(), false);
    let block = verbs.process.alloc_large(BYTES, 16).expect("there is room");
    assert!(verbs.process.mappings.bytes() > 0, "it is in an arena");
    world.assert_sound();
    assert!(verbs.process.free_large(block.as_ptr(), BYTES));
    verbs.free(&mut local, first, Layout::new::<u64>());
    local.end(verbs.process);
    world.end();
}
