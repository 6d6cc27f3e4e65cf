//! Memory that must be zero, whatever it held before and whatever the system refuses, and that is left alone where it
//! is. More mixtures are in `heap`.

use std::alloc::Layout;

use super::directed::Directed;
use super::drive::World;
use super::faulty::{Call, Faulty, Plan};
use super::verbs::{ClaimOutcome, Random, some_layout};

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

/// Resizes in place and fills the block, or returns it unchanged.
fn resize(zeroes: &Directed, held: ClaimOutcome, size: usize) -> ClaimOutcome {
    let is_resized = zeroes.world.verbs().resize(held.start, held.layout, size);
    match is_resized {
        true => ClaimOutcome::new(held.start, bytes(size), 0xff),
        false => held,
    }
}

#[test]
fn zeroed_blocks_are_zero_in_any_mixture_of_sizes_trims_and_refusals() {
    for (seed, plan) in PLANS.into_iter().enumerate() {
        // Every second program runs with long pages.
        let page_bytes = [64 << 10, 4 << 10][seed % 2];
        let os = Faulty::with_pages(plan, page_bytes);
        let mut zeroes = Directed::new(World::over(os, 1, 1), 1);
        let mut random = Random(seed as u64 * 2 + 1);
        let mut held = Vec::new();
        for _ in 0..1200 {
            match random.next(20) {
                0 if random.next(2) == 0 => {
                    let process = zeroes.process();
                    zeroes.threads[0].flush(process);
                    process.trim();
                }
                0 => zeroes.process().tick(),
                1..4 if !held.is_empty() => {
                    let one: ClaimOutcome = held.swap_remove(random.next(held.len()));
                    let size = match random.next(2) {
                        0 => one.layout.size() / 2 + 1,
                        _ => one.layout.size() + random.next(1 << 20),
                    };
                    held.push(match one.layout.align() {
                        16 => resize(&zeroes, one, size),
                        _ => one,
                    });
                }
                4..11 => held.extend(zeroes.try_make(0, some_layout(&mut random), true)),
                _ if held.len() > random.next(30) => {
                    let one = held.swap_remove(random.next(held.len()));
                    zeroes.free(0, [one]);
                }
                _ => {
                    let layout = bytes(random.next(900_000) + 1);
                    held.extend(zeroes.try_make(0, layout, false));
                }
            }
        }
        zeroes.end(held);
    }
}

#[test]
fn the_end_of_an_arena_reads_as_zero_after_it_was_given_back_and_came_again() {
    let layout = bytes(3 << 20);
    for (plan, given_back) in [
        (Plan::Willing, true),
        (Plan::From(Call::Decommit, 1), false),
    ] {
        let mut zeroes = Directed::under(plan);
        for _ in 0..3 {
            let block = zeroes.make(0, layout.size());
            zeroes.free(0, [block]);
            let before = zeroes.os().committed_bytes();
            zeroes.process().trim();
            assert!(zeroes.os().calls(Call::Decommit) > 0);
            assert_eq!(zeroes.os().committed_bytes() < before, given_back);
            let block = zeroes.try_make(0, layout, true);
            zeroes.free(0, block);
        }
        zeroes.end([]);
    }
}

#[test]
fn only_what_is_not_known_to_be_zero_is_written() {
    let mut zeroes = Directed::under(Plan::Willing);
    let block = zeroes.make(0, 200_000);
    let process = zeroes.process();
    let arena = process.arena_of(block.start).unwrap();
    zeroes.free(0, [block]);
    let start = process.alloc_large(900_000, 16).unwrap().as_ptr();
    // SAFETY: given just now, that long. Beyond the dirty granules it is left alone.
    unsafe { start.wrapping_add(800_000).write(7) };
    // SAFETY: given just now, that long.
    unsafe { arena.zero(start, 900_000) };
    // SAFETY: given just now, that long.
    assert_eq!(unsafe { start.wrapping_add(800_000).read() }, 7);
    // SAFETY: given just now, that long.
    assert_eq!(unsafe { start.wrapping_add(100_000).read() }, 0);
    assert!(process.free_large(start, 900_000));
    zeroes.end([]);
}
