//! Steps over pages that move.

use crate::steps::world::{KIB, MIB, World};
use larder_core::Request;

const STEP: [i64; 8] = [6000, 700, 9000, -1, -2, 12_000, -3, -4];

#[test]
fn a_known_step_comes_to_rest() {
    let mut world = World::paged();
    for _ in 0..3 {
        world.step(&STEP);
    }
    let calls = world.calls();
    for _ in 0..5 {
        world.step(&STEP);
    }
    assert_eq!(world.calls(), calls);
    assert_eq!(world.stats().misses, 0);
}

#[test]
fn a_plan_never_makes_the_allocator_hold_more_than_some_step_had_live() {
    let mut world = World::paged();
    let stay = world.alloc(3 * MIB);
    world.step(&STEP);
    let held = world.held();
    for _ in 0..4 {
        world.step(&STEP);
        assert!(world.held() <= held, "{} after {held}", world.held());
    }
    world.free(stay);
}

#[test]
fn blocks_that_stay_in_the_middle_are_laid_around() {
    let mut world = World::paged();
    let first: Vec<_> = (0..12).map(|at| world.alloc((at % 3 + 1) * MIB)).collect();
    for id in first.iter().step_by(2) {
        world.free(*id);
    }
    for _ in 0..4 {
        world.step(&STEP);
    }
    assert_eq!(world.stats().misses, 0);
    for id in first.iter().skip(1).step_by(2) {
        world.free(*id);
    }
    for _ in 0..4 {
        world.step(&STEP);
    }
    assert_eq!(world.stats().misses, 0);
}

#[test]
fn memory_for_a_layout_never_comes_from_the_layout_itself() {
    // Handles that lie idle inside the range that is filled would leave a void where they were.
    for seed in 1..=40u64 {
        let mut world = World::paged();
        let mut random = seed;
        let mut below = |max: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % max
        };
        // A young program that frees in another order than it allocates: voids in the middle.
        let blocks: Vec<_> = (0..20).map(|_| world.alloc((below(9) + 1) * MIB)).collect();
        for id in &blocks {
            world.free(*id);
        }
        let large = world.alloc((30 + below(40)) * MIB);
        world.free(large);
        world.step(&STEP);
        let held = world.held();
        for _ in 0..3 {
            world.step(&STEP);
        }
        assert!(world.held() <= held, "seed {seed}");
        assert_eq!(world.stats().misses, 0);
    }
}

#[test]
fn the_last_page_of_a_layout_may_be_used_in_part() {
    // 15,001 KiB in pages of 2 MiB: 8 pages are 9 % more, and there is no way to hold less.
    let step = [6000, 9001, -1, -2];
    let mut first = World::paged();
    first.step(&step);
    let mut plans = Vec::new();
    first.steps.save(crate::steps::world::GRANULE, 1, |bytes| {
        plans.extend_from_slice(bytes);
    });
    let mut second = World::paged();
    second
        .steps
        .load(crate::steps::world::GRANULE, 1, &plans)
        .unwrap();
    second.step(&step);
    assert_eq!((second.stats().hits, second.held()), (2, 16 * MIB));
}

#[test]
fn an_allocation_that_was_refused_and_is_tried_again_is_no_deviation() {
    // The second and the fourth are of one size, so that a plan one ahead finds itself confirmed.
    let step = [6000, 700, 9000, 700, -1, -2, -3, -4];
    let mut world = World::paged();
    world.step(&step);
    world.step(&step);
    let before = world.stats();
    world.begin();
    let first = world.alloc(6000 * KIB);
    world.set_limit(6000 * KIB);
    assert_eq!(world.try_alloc(&Request::new(700 * KIB)), None);
    world.set_limit(u64::MAX);
    let rest = [700, 9000, 700].map(|kib| world.alloc(kib * KIB));
    for id in [first].into_iter().chain(rest) {
        world.free(id);
    }
    world.end();
    let stats = world.stats();
    assert_eq!(stats.deviations, before.deviations);
    assert_eq!(stats.known_steps - before.known_steps, 1);
    assert_eq!(stats.hits - before.hits, 4);
}
