//! Steps that repeat, each time a little differently.

use larder_core::steps::StepConfig;
use larder_model::Random;

use crate::steps::world::{CONFIG, KIB, MIB, PLENTY, World};

/// Greedy placement by arrival wastes memory here: a small block lies between two that are freed together.
const STEP: [i64; 8] = [100, 8, 100, -1, -3, 200, -2, -4];
/// A step with sizes for pages, in which greedy placement by arrival wastes memory too.
const PAGES: [i64; 8] = [6000, 700, 9000, -1, -2, 12_000, -3, -4];

#[test]
fn a_step_that_leaves_its_shape_for_good_goes_on_without() {
    let mut world = World::new();
    let mut one = vec![64];
    let mut two = vec![64];
    for at in 0..40 {
        one.extend([100 + at, -(at + 2)]);
        two.extend([1000 + at, -(at + 2)]);
    }
    one.push(-1);
    two.push(-1);
    world.step(&one);
    world.step(&two);
    let stats = world.stats();
    assert_eq!((stats.deviations, stats.hits), (1, 1));
    world.step(&two);
    assert_eq!(world.stats().known_steps, 1);
}

#[test]
fn guesses_that_prove_right_are_served() {
    let mut world = World::new();
    let shapes: Vec<[i64; 4]> = (1..=9).map(|at| [at * 11, at + 5, -1, -2]).collect();
    for shape in &shapes {
        world.unnamed(shape);
    }
    // The orders are new, but each first allocation still identifies its shape.
    for jump in [2, 4, 5, 7] {
        for at in 0..9 {
            world.unnamed(&shapes[at * jump % 9]);
        }
    }
    let stats = world.stats();
    assert!(stats.hits >= 2 * 30, "{stats:?}");
    // The guesses are then wrong for a while.
    for at in 1..20 {
        world.unnamed(&[11, 300 + at, -1, -2]);
    }
    let before = world.stats();
    for at in 1..20 {
        world.unnamed(&[22, 400 + at, -1, -2]);
    }
    assert!(world.stats().hits - before.hits <= 4);
}

#[test]
fn what_the_step_before_left_and_is_not_freed_is_missed_once() {
    let mut world = World::new();
    let mut cache = world.step(&[500]).0[0];
    for time in 0..10 {
        world.begin();
        let new = world.alloc(500 * KIB);
        let old = std::mem::replace(&mut cache, new);
        // From time 6 on, the block is freed later than in the known steps.
        if time < 6 {
            world.free(old);
        }
        let scratch = world.alloc(400 * KIB);
        world.free(scratch);
        world.end();
        if time >= 6 {
            world.free(old);
        }
    }
    let stats = world.stats();
    assert!(stats.hits >= 6, "{stats:?}");
    assert!(stats.misses <= 1, "{stats:?}");
}

#[test]
fn a_layout_is_made_anew_when_what_is_beside_it_goes_at_another_time() {
    let mut world = World::new();
    // The block of the step before is freed during the step, or only after it if it stays.
    for stays in [false, false, false, true, false, true] {
        let (left, _) = world.step(&[900]);
        world.begin();
        let first = world.alloc(64 * KIB);
        if !stays {
            world.free(left[0]);
        }
        let second = world.alloc(700 * KIB);
        world.free(first);
        world.free(second);
        world.end();
        if stays {
            world.free(left[0]);
        }
    }
    assert_eq!(world.stats().misses, 1, "and then it is known to stay");
}

#[test]
fn neighbours_that_go_at_different_times_are_told_apart() {
    let mut world = World::new();
    for _ in 0..5 {
        // The blocks are neighbours at the start of the next step, which frees only the first.
        let (left, _) = world.step(&[300, 320]);
        world.begin();
        let small = world.alloc(40 * KIB);
        world.free(left[0]);
        let other = world.alloc(290 * KIB);
        world.free(small);
        world.free(other);
        world.end();
        world.free(left[1]);
    }
    let stats = world.stats();
    assert_eq!(stats.misses, 0);
    assert!(stats.hits > 0);
    assert_eq!(
        world.held(),
        660 * KIB,
        "the other one lies where the first was"
    );
}

#[test]
fn a_shape_learns_what_the_step_before_leaves_also_after_its_first_time() {
    let mut world = World::new();
    // The shapes on both sides of the learned one in the table must not change.
    world.step(&[300, 20, -1, -2]);
    let mut cache = None;
    for round in 0..6 {
        world.begin();
        let new = world.alloc(500 * KIB);
        if let Some(old) = cache.replace(new) {
            world.free(old);
        }
        let scratch = world.alloc(490 * KIB);
        world.free(scratch);
        world.end();
        if round == 0 {
            // No block is left for the next step.
            cache.take().into_iter().for_each(|old| world.free(old));
            world.step(&[70, 30, -2, -1]);
        }
    }
    let before = world.stats();
    assert_eq!(before.misses, 0);
    assert!(before.hits >= 4, "{before:?}");
    world.step(&[300, 20, -1, -2]);
    world.step(&[70, 30, -2, -1]);
    let stats = world.stats();
    assert_eq!(stats.known_steps - before.known_steps, 2);
    assert_eq!(stats.hits - before.hits, 4);
    assert_eq!(world.steps.check_layouts(), Ok(()));
}

#[test]
fn two_inputs_in_turn_leave_two_layouts() {
    let mut world = World::new();
    let mut input = world.alloc(40 * KIB);
    for _ in 0..20 {
        // As in `input = load()`, the new input is allocated before the old one is freed.
        let next = world.alloc(40 * KIB);
        world.free(core::mem::replace(&mut input, next));
        world.step(&STEP);
    }
    let stats = world.stats();
    assert_eq!((stats.layouts, stats.misses), (2, 0));
    assert_eq!(stats.unplanned, 4, "the first step");
    assert_eq!(world.steps.check_layouts(), Ok(()));
}

#[test]
fn layouts_that_never_last_are_paid_for_by_allocations() {
    let config = StepConfig {
        packing_work: 40_000,
        ..CONFIG
    };
    let mut world = World::with(config, PLENTY);
    let mut random = Random::new(1);
    // Blocks of many sizes, each live together with two others: no packing is as low as the live bytes.
    let mut step = vec![37, 91];
    for number in 2..60 {
        step.extend([1 + number * 37 % 101, 1 - number]);
    }
    let (mut most, mut allocations) = (0, 0);
    for _ in 0..500 {
        // Other blocks are in the way in each step.
        let mut any = || (1 + random.below(99)) * KIB;
        let beside: Vec<_> = (0..8).map(|_| world.alloc(any())).collect();
        let before = world.stats().layout_work;
        for id in world.step(&step).0 {
            world.free(id);
        }
        most = most.max(world.stats().layout_work - before);
        allocations += 60;
        for id in beside {
            world.free(id);
        }
    }
    let stats = world.stats();
    assert!((20..400).contains(&stats.layouts), "{stats:?}");
    // The work that may be owed, the layout that exceeds it, and 4 per allocation.
    let bound = config.packing_work / 8 + most + 4 * allocations;
    assert!(stats.layout_work <= bound, "{stats:?}, {bound}");
    assert!(
        stats.layout_work >= 4 * allocations,
        "each turn is taken: {stats:?}"
    );
}

#[test]
fn memory_for_a_layout_never_comes_from_the_layout_itself() {
    // Idle handles taken from inside the range that is filled would leave voids there.
    for seed in 1..=40u64 {
        let mut world = World::paged();
        let mut random = Random::new(seed);
        // A young program, whose frees and large block leave voids in the middle.
        let blocks: Vec<_> = (0..20)
            .map(|_| world.alloc((random.below(9) + 1) * MIB))
            .collect();
        for id in &blocks {
            world.free(*id);
        }
        let large = world.alloc((30 + random.below(40)) * MIB);
        world.free(large);
        world.step(&PAGES);
        let held = world.held();
        for _ in 0..3 {
            world.step(&PAGES);
        }
        assert!(world.held() <= held, "seed {seed}");
        assert_eq!(world.stats().misses, 0);
    }
}
