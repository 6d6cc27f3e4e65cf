//! Memory that must be zero, whatever it held before and whatever the system refuses.

use std::alloc::Layout;

use larder_core::small::{CLASSES, SizeClass};

use super::drive::World;
use super::faulty::{Call, Faulty, Plan};
use super::verbs::{ClaimOutcome, Random, is_filled, some_layout};
use crate::thread::local::Local;

/// Plans under which memory stays dirty that should be discarded, or is discarded only in part.
const PLANS: [Plan; 6] = [
    Plan::Willing,
    Plan::From(Call::Decommit, 1),
    Plan::From(Call::Discard, 1),
    Plan::From(Call::Discard, 2),
    Plan::Random { seed: 5, one_in: 2 },
    Plan::Random { seed: 6, one_in: 3 },
];

fn bytes(count: usize) -> Layout {
    Layout::from_size_align(count, 16).unwrap()
}

/// A world and one thread's part, with checking verbs.
struct Zeroes {
    world: World,
    local: Local,
}

impl Zeroes {
    fn new(plan: Plan) -> Self {
        Self::over(Faulty::new(plan))
    }

    fn over(os: Faulty) -> Self {
        let world = World::over(os, 1, 1);
        let local = Local::new();
        Self { world, local }
    }

    /// Allocates a block filled with ones, if there is memory.
    fn dirty(&mut self, layout: Layout) -> Option<ClaimOutcome> {
        let start = self.world.verbs().alloc(&mut self.local, layout, false);
        (!start.is_null()).then(|| ClaimOutcome::new(start, layout, 0xff))
    }

    /// Allocates a zeroed block, checks it and fills it with ones, if there is memory.
    fn zeroed(&mut self, layout: Layout) -> Option<ClaimOutcome> {
        let start = self.world.verbs().alloc(&mut self.local, layout, true);
        if start.is_null() {
            return None;
        }
        // SAFETY: given just now, that long.
        let found = unsafe { std::slice::from_raw_parts(start, layout.size()) };
        assert!(is_filled(found, 0), "not zeroed: {layout:?}");
        Some(ClaimOutcome::new(start, layout, 0xff))
    }

    fn free(&mut self, held: ClaimOutcome) {
        self.world
            .verbs()
            .free(&mut self.local, held.start, held.layout);
    }

    /// Resizes in place, or returns the block unchanged.
    fn resize(&mut self, held: ClaimOutcome, size: usize) -> ClaimOutcome {
        let resized = self.world.verbs().resize(held.start, held.layout, size);
        let layout = if resized { bytes(size) } else { held.layout };
        ClaimOutcome::new(held.start, layout, 0xff)
    }

    fn trim(&mut self) {
        self.local.flush(self.world.verbs().process);
        self.world.verbs().process.trim();
    }

    fn end(mut self) {
        self.local.end(self.world.verbs().process);
        self.world.end();
    }
}

#[test]
fn zeroed_blocks_are_zero_in_any_mixture_of_sizes_trims_and_refusals() {
    for (seed, plan) in PLANS.into_iter().enumerate() {
        // Every second program runs with long pages.
        let page_bytes = [64 << 10, 4 << 10][seed % 2];
        let mut zeroes = Zeroes::over(Faulty::with_pages(plan, page_bytes));
        let mut random = Random(seed as u64 * 2 + 1);
        let mut held = Vec::new();
        for _ in 0..1200 {
            match random.next(20) {
                0 if random.next(2) == 0 => zeroes.trim(),
                0 => zeroes.world.verbs().process.tick(),
                1..4 if !held.is_empty() => {
                    let one: ClaimOutcome = held.swap_remove(random.next(held.len()));
                    let size = match random.next(2) {
                        0 => one.layout.size() / 2 + 1,
                        _ => one.layout.size() + random.next(1 << 20),
                    };
                    let align = one.layout.align();
                    held.push(if align == 16 {
                        zeroes.resize(one, size)
                    } else {
                        one
                    });
                }
                4..11 => held.extend(zeroes.zeroed(some_layout(&mut random))),
                _ if held.len() > random.next(30) => {
                    zeroes.free(held.swap_remove(random.next(held.len())));
                }
                _ => held.extend(zeroes.dirty(bytes(random.next(900_000) + 1))),
            }
        }
        for one in held {
            zeroes.free(one);
        }
        zeroes.end();
    }
}

#[test]
fn the_end_of_an_arena_reads_as_zero_after_it_was_given_back_and_came_again() {
    for (plan, given_back) in [
        (Plan::Willing, true),
        (Plan::From(Call::Decommit, 1), false),
    ] {
        let mut zeroes = Zeroes::new(plan);
        for _ in 0..3 {
            let block = zeroes.dirty(bytes(3 << 20)).unwrap();
            zeroes.free(block);
            let before = zeroes.world.os.committed_bytes();
            zeroes.trim();
            assert!(zeroes.world.os.calls(Call::Decommit) > 0);
            assert_eq!(zeroes.world.os.committed_bytes() < before, given_back);
            let block = zeroes.zeroed(bytes(3 << 20)).unwrap();
            zeroes.free(block);
        }
        zeroes.end();
    }
}

#[test]
fn a_hole_between_blocks_reads_as_zero_after_its_memory_was_discarded_or_not() {
    for plan in PLANS {
        let mut zeroes = Zeroes::new(plan);
        for _ in 0..4 {
            let below = zeroes.dirty(bytes(1 << 20));
            let above = zeroes.dirty(bytes(200_000));
            if let Some(below) = below {
                zeroes.free(below);
            }
            zeroes.trim();
            let again = zeroes.zeroed(bytes(1 << 20));
            for one in [again, above].into_iter().flatten() {
                zeroes.free(one);
            }
        }
        if !matches!(plan, Plan::Random { .. }) {
            assert!(
                zeroes.world.os.calls(Call::Discard) > 0,
                "nothing was discarded"
            );
        }
        zeroes.end();
    }
}

#[test]
fn what_a_resize_cuts_off_or_took_in_is_zeroed_for_the_next_one() {
    for plan in PLANS {
        let mut zeroes = Zeroes::new(plan);
        for _ in 0..3 {
            // The end that is cut off was written while it belonged to the first block.
            let first = zeroes
                .zeroed(bytes(2 << 20))
                .map(|held| zeroes.resize(held, 150_000));
            let second = zeroes.zeroed(bytes(1 << 20));
            second.into_iter().for_each(|held| zeroes.free(held));
            // Grown: memory behind the first block is written under its new length.
            let first = first.map(|held| zeroes.resize(held, 1_900_000));
            first.into_iter().for_each(|held| zeroes.free(held));
            let third = zeroes.zeroed(bytes(3 << 20));
            third.into_iter().for_each(|held| zeroes.free(held));
            zeroes.trim();
        }
        zeroes.end();
    }
}

#[test]
fn spans_of_memory_that_was_used_give_zeroed_blocks_of_every_class() {
    for plan in PLANS {
        let mut zeroes = Zeroes::new(plan);
        for index in (0..CLASSES).step_by(5) {
            let class = SizeClass::from_index(index).unwrap();
            let layout = Layout::from_size_align(class.block_bytes(), 8).unwrap();
            let dirty: Vec<_> = (0..300_000 / class.block_bytes() + 2)
                .filter_map(|_| zeroes.zeroed(layout))
                .collect();
            let some: Vec<_> = (0..3)
                .filter_map(|_| zeroes.dirty(bytes(170_000)))
                .collect();
            for held in dirty.into_iter().chain(some) {
                zeroes.free(held);
            }
            if index % 2 == 0 {
                zeroes.trim();
            }
        }
        zeroes.end();
    }
}

#[test]
fn only_what_is_not_known_to_be_zero_is_written() {
    let mut zeroes = Zeroes::new(Plan::Willing);
    let block = zeroes.dirty(bytes(200_000)).unwrap();
    let arena = zeroes.world.verbs().process.arena_of(block.start).unwrap();
    zeroes.free(block);
    let start = zeroes
        .world
        .verbs()
        .process
        .alloc_large(900_000, 16)
        .unwrap()
        .as_ptr();
    // SAFETY: given just now, that long. Beyond the dirty granules it is left alone.
    unsafe { start.wrapping_add(800_000).write(7) };
    // SAFETY: given just now, that long.
    unsafe { arena.zero(start, 900_000) };
    // SAFETY: given just now, that long.
    assert_eq!(unsafe { start.wrapping_add(800_000).read() }, 7);
    // SAFETY: given just now, that long.
    assert_eq!(unsafe { start.wrapping_add(100_000).read() }, 0);
    assert!(zeroes.world.verbs().process.free_large(start, 900_000));
    zeroes.end();
}
