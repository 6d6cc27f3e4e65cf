//! Steps over pages that move.

use crate::world::{MIB, World};

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
