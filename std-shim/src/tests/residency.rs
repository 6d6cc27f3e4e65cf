//! Reactions of a heap to the use of its memory: huge pages where it is dense, coarse places where
//! it is sparse, no memory retained where none should be. The tests examine the calls that the
//! system receives.
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::alloc::Layout;

use super::drive::World;
use super::faulty::{Call, Faulty, Manner, Plan};
use super::verbs::{ClaimOutcome, Random};
use crate::config::{Config, HugePages};
use crate::process::Process;
use crate::thread::local::Local;

const MIB: usize = 1 << 20;
const ARENA_BYTES: usize = 1 << 30;
/// Bytes beyond which huge pages are requested.
const ABOVE: usize = 8 * MIB;

fn world(config: Config) -> World {
    World::with(Faulty::new(Plan::Willing), 1, 1, ARENA_BYTES, &config)
}

fn large(world: &World, bytes: usize) -> *mut u8 {
    let block = world.verbs().process.alloc_large(bytes, 16);
    block.expect("the system is willing").as_ptr()
}

/// Allocates a block and writes every page.
fn touched(world: &World, bytes: usize) -> ClaimOutcome {
    let layout = Layout::from_size_align(bytes, 16).unwrap();
    ClaimOutcome::new(large(world, bytes), layout, 0xff)
}

fn free(world: &World, blocks: impl IntoIterator<Item = (*mut u8, usize)>) {
    for (block, bytes) in blocks {
        assert!(world.verbs().process.free_large(block, bytes));
    }
}

/// Frees the last blocks of a world and ends it.
fn end(world: World, blocks: impl IntoIterator<Item = (*mut u8, usize)>) {
    free(&world, blocks);
    world.end();
}

fn committed(world: &World) -> usize {
    let arenas = Process::arenas(world.verbs().process);
    arenas.map(|arena| arena.numbers().1 as usize).sum()
}

#[test]
fn a_heap_that_touches_what_it_takes_has_huge_pages_beyond_the_bound_and_not_below() {
    for huge_pages in [HugePages::Above(ABOVE as u64), HugePages::Never] {
        let world = world(Config {
            huge_pages,
            ..Config::BALANCED
        });
        let mut blocks = Vec::new();
        while committed(&world) < 4 * ABOVE {
            blocks.push(touched(&world, MIB));
            assert!(committed(&world) > ABOVE || world.os.calls(Call::Advise) == 0);
        }
        let advised = world.os.calls(Call::Advise);
        assert_eq!(advised > 0, huge_pages != HugePages::Never);
        assert!(advised <= world.os.calls(Call::Commit), "once a growth");
        end(world, blocks.iter().map(|held| (held.start, MIB)));
    }
}

#[test]
fn a_heap_that_leaves_most_untouched_has_none() {
    let world = world(Config::SPEED);
    let mut blocks = Vec::new();
    while committed(&world) < 4 * ABOVE {
        let block = large(&world, MIB);
        // SAFETY: ours, that long.
        unsafe { block.write(1) };
        blocks.push((block, MIB));
    }
    assert!(world.os.calls(Call::Look) > 0);
    assert_eq!(world.os.calls(Call::Advise), 0);
    end(world, blocks);
}

#[test]
fn nothing_is_looked_at_where_no_huge_pages_come_of_it() {
    let grows = |config: Config, change: fn(&mut Manner)| {
        let world = world(config);
        world.os.be(change);
        let mut blocks = Vec::new();
        while committed(&world) < 4 * ABOVE {
            blocks.push(touched(&world, MIB));
            let looked = world.os.calls(Call::Look) > 0;
            assert!(!looked || committed(&world) > ABOVE, "below the bound");
        }
        let looks = world.os.calls(Call::Look);
        end(world, blocks.iter().map(|held| (held.start, MIB)));
        looks
    };
    let never = Config {
        huge_pages: HugePages::Never,
        ..Config::BALANCED
    };
    assert!(grows(Config::BALANCED, |_| ()) > 0);
    assert_eq!(grows(never, |_| ()), 0);
    assert_eq!(
        grows(Config::BALANCED, |manner| manner.has_huge_pages = false),
        0
    );
    assert_eq!(
        grows(Config::BALANCED, |manner| manner.is_filtered = true),
        0
    );
}

#[test]
fn a_filtered_process_gives_memory_back_without_a_look_and_has_huge_pages_for_small_blocks() {
    let world = world(Config::BALANCED);
    world.os.be(|manner| manner.is_filtered = true);
    let mut local = Local::new();
    let layout = Layout::new::<[u8; 4000]>();
    let blocks: Vec<_> = (0..4 * ABOVE / layout.size())
        .map(|_| world.verbs().alloc(&mut local, layout, false))
        .collect();
    assert!(world.os.calls(Call::Advise) > 0);
    let discarded = world.os.calls(Call::Discard);
    for (number, block) in blocks.iter().enumerate() {
        if number % 8 > 0 {
            world.verbs().free(&mut local, *block, layout);
        }
    }
    for _ in 0..3 {
        world.verbs().process.tick();
    }
    assert!(world.verbs().process.trim() > 0);
    assert!(world.os.calls(Call::Discard) > discarded);
    assert_eq!(world.os.calls(Call::Look), 0);
    for block in blocks.into_iter().step_by(8) {
        world.verbs().free(&mut local, block, layout);
    }
    local.end(world.verbs().process);
    world.end();
}

#[test]
fn a_growth_looks_at_a_bounded_number_of_places() {
    let world = world(Config::BALANCED);
    let first = large(&world, 512 * MIB);
    let second = large(&world, 300 * MIB);
    // One for each growth, and the second one's.
    assert!((1..=16).contains(&world.os.calls(Call::Look)));
    end(world, [(first, 512 * MIB), (second, 300 * MIB)]);
}

/// Replaces large blocks at random and writes their first bytes. Returns how many pages that
/// touched.
fn first_pages(world: &World, touch: impl Fn(*mut u8, usize)) -> usize {
    let mut random = Random(9);
    let mut slots = [None; 16];
    let mut pages = std::collections::BTreeSet::new();
    for _ in 0..3000 {
        let slot = random.next(slots.len());
        free(world, slots[slot].take());
        let bytes = (128 << 10) + 1 + random.next(MIB);
        let block = large(world, bytes);
        touch(block, bytes);
        pages.insert(block.addr());
        slots[slot] = Some((block, bytes));
    }
    free(world, slots.into_iter().flatten());
    pages.len()
}

#[test]
fn in_a_sparse_heap_large_blocks_start_at_few_places() {
    let sparse = world(Config::BALANCED);
    // SAFETY: ours, that long.
    let few = first_pages(&sparse, |block, _| unsafe { block.write(1) });
    sparse.end();
    let dense = world(Config::BALANCED);
    // SAFETY: ours, that long.
    let many = first_pages(&dense, |block, bytes| unsafe {
        block.write_bytes(1, bytes);
    });
    dense.end();
    assert!(4 * few < many, "{few} places, and {many} where it is dense");
}

#[test]
fn in_a_sparse_heap_places_are_far_apart_for_shorter_blocks_too() {
    let world = world(Config::BALANCED);
    let mut blocks: Vec<_> = [64, 100]
        .map(|mib| (large(&world, mib * MIB), mib * MIB))
        .into();
    for bytes in [300 << 10, (128 << 10) + 1, 200 << 10] {
        let block = large(&world, bytes);
        assert!(block.addr().is_multiple_of(256 << 10), "{bytes}");
        blocks.push((block, bytes));
    }
    end(world, blocks);
}

#[test]
fn a_free_makes_no_call_however_short_the_delay() {
    for config in [Config::BALANCED, Config::MEMORY] {
        let world = world(config);
        let [first, second] = [touched(&world, 3 * MIB), touched(&world, 200_000)];
        free(&world, [(first.start, 3 * MIB)]);
        // An address inside a block is refused, and no block is affected.
        let inside = second.start.wrapping_add(16 << 10);
        assert!(!world.verbs().process.free_large(inside, 100_000));
        assert_eq!(world.os.calls(Call::Discard), 0);
        second.check(200_000);
        end(world, [(second.start, 200_000)]);
    }
}

/// Fills a heap with `(mib, size, percent)` parts: blocks of a size, of which a percentage is
/// touched. Returns whether it requests huge pages when it grows further.
fn asks_for_huge_pages(config: Config, parts: &[(usize, usize, usize)]) -> bool {
    let world = world(Config {
        huge_pages: HugePages::Above(1 << 20),
        ..config
    });
    let mut local = Local::new();
    let mut blocks = Vec::new();
    for &(mib, size, percent) in parts {
        let layout = Layout::from_size_align(size, 8).unwrap();
        for number in 0..mib * MIB / size {
            let block = world.verbs().alloc(&mut local, layout, false);
            if number * percent / 100 != (number + 1) * percent / 100 {
                // SAFETY: ours, that long.
                unsafe { block.write_bytes(1, size) };
            }
            blocks.push((block, layout));
        }
    }
    let asked = world.os.calls(Call::Advise) > 0;
    for (block, layout) in blocks {
        world.verbs().free(&mut local, block, layout);
    }
    local.end(world.verbs().process);
    world.end();
    asked
}

const LARGE: usize = 256 << 10;
/// A page has a link in it, so half of it is touched before the program writes.
const SMALL: usize = 8 << 10;

#[test]
fn small_blocks_get_huge_pages_later_than_large_ones() {
    let asks = |size, percent| asks_for_huge_pages(Config::BALANCED, &[(24, size, percent)]);
    assert!(!asks(LARGE, 35));
    assert!(asks(LARGE, 65));
    assert!(!asks(SMALL, 25), "63 percent");
    assert!(asks(SMALL, 90));
}

#[test]
fn where_memory_comes_first_a_heap_with_an_eighth_of_small_blocks_gets_none() {
    let asks =
        |small| asks_for_huge_pages(Config::MEMORY, &[(small, SMALL, 100), (24, LARGE, 100)]);
    assert!(asks(0) && asks(1));
    assert!(!asks(6), "a fifth");
}

#[test]
fn a_place_whose_pages_have_moved_away_does_not_count_as_untouched() {
    let world = world(Config {
        huge_pages: HugePages::Above(1 << 20),
        ..Config::BALANCED
    });
    let process = world.verbs().process;
    let (first, wall) = (touched(&world, 40 * MIB), touched(&world, MIB));
    // SAFETY: the test's block.
    let grown = unsafe { process.grow_elsewhere(first.start, first.layout, 44 * MIB) };
    let block = grown.map(|grown| grown.block.as_ptr());
    if world.os.calls(Call::Move) > 0 && block.is_some() {
        let before = world.os.calls(Call::Advise);
        let another = large(&world, 60 * MIB);
        assert!(world.os.calls(Call::Advise) > before, "all else is touched");
        free(&world, [(another, 60 * MIB)]);
    }
    let (block, bytes) = block.map_or((first.start, 40 * MIB), |block| (block, 44 * MIB));
    end(world, [(block, bytes), (wall.start, MIB)]);
}

#[test]
fn what_is_untouched_counts_however_much_has_moved_before() {
    let world = world(Config {
        huge_pages: HugePages::Above(1 << 20),
        ..Config::BALANCED
    });
    let process = world.verbs().process;
    for _ in 0..4 {
        let (first, wall) = (touched(&world, 20 * MIB), touched(&world, MIB));
        // SAFETY: the test's block.
        let grown = unsafe { process.grow_elsewhere(first.start, first.layout, 30 * MIB) };
        let (block, bytes) = match grown {
            Some(grown) => (grown.block.as_ptr(), 30 * MIB),
            None => (first.start, 20 * MIB),
        };
        free(&world, [(block, bytes), (wall.start, MIB)]);
        process.trim();
    }
    // Idle memory with pages, in holes that are too short for what follows.
    let holes: Vec<_> = (0..24)
        .map(|_| [touched(&world, 15 * MIB / 8), touched(&world, MIB / 8)])
        .collect();
    for [hole, _] in &holes {
        free(&world, [(hole.start, 15 * MIB / 8)]);
    }
    let untouched: Vec<_> = (0..40).map(|_| (large(&world, 2 * MIB), 2 * MIB)).collect();
    let before = world.os.calls(Call::Advise);
    let more = large(&world, 100 * MIB);
    assert_eq!(
        world.os.calls(Call::Advise),
        before,
        "hardly anything is touched"
    );
    free(&world, untouched);
    free(&world, [(more, 100 * MIB)]);
    end(world, holes.iter().map(|[_, wall]| (wall.start, MIB / 8)));
}
