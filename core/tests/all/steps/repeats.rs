//! Steps that repeat, each time a little differently.

use larder_core::Granule;
use larder_core::steps::StepConfig;
use larder_model::{Random, StepSizes};

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
    let mut allocations = 0;
    for _ in 0..500 {
        // Other blocks are in the way in each step.
        let mut any = || (1 + random.below(99)) * KIB;
        let beside: Vec<_> = (0..8).map(|_| world.alloc(any())).collect();
        for id in world.step(&step).0 {
            world.free(id);
        }
        allocations += 60;
        for id in beside {
            world.free(id);
        }
    }
    let stats = world.stats();
    assert!((20..400).contains(&stats.layouts), "{stats:?}");
    assert!(stats.layout_work > config.packing_work, "{stats:?}");
    assert!(
        stats.layout_work <= config.packing_work + allocations,
        "{stats:?}"
    );
}

#[test]
fn no_layout_is_made_that_must_be_rejected() {
    let mut world = World::paged();
    // The block that stays is higher than all that was ever held in steps.
    let low = world.alloc(400 * MIB);
    let stays = world.alloc(10 * MIB);
    world.free(low);
    world.trim();
    for _ in 0..10 {
        world.step(&PAGES);
    }
    let stats = world.stats();
    assert_eq!(
        (stats.hits, stats.layouts, stats.layout_work),
        (0, 0, 0),
        "{stats:?}"
    );
    assert!(stats.rejected >= 8, "{stats:?}");
    world.free(stays);
    world.step(&PAGES);
    assert_eq!(world.stats().hits, 4);
}

/// Plays the step, but frees nothing before its end.
fn odd_step(world: &mut World, script: &[i64]) {
    world.begin();
    let sizes = script.iter().filter(|size| **size > 0);
    let ids: Vec<_> = sizes.map(|size| world.alloc(*size as u64 * KIB)).collect();
    world.end();
    for id in ids {
        world.free(id);
    }
}

#[test]
fn one_odd_step_changes_no_plan() {
    // Odd in the first window, or in a later one.
    for odd in [[3].as_slice(), &[20], &[3, 20, 40, 60]] {
        let mut world = World::new();
        for number in 0..100 {
            if odd.contains(&number) {
                odd_step(&mut world, &STEP);
            } else {
                world.step(&STEP);
            }
        }
        let before = world.stats();
        for _ in 0..10 {
            world.step(&STEP);
        }
        let stats = world.stats();
        assert_eq!(stats.hits - before.hits, 40, "{odd:?}: {stats:?}");
        assert_eq!(stats.layouts, before.layouts, "{odd:?}");
        assert!(stats.layouts <= 4, "{odd:?}: {stats:?}");
    }
}

#[test]
fn within_plans_a_shape_is_served_once_it_has_freed_its_blocks_often_enough() {
    let config = StepConfig {
        within_plans: true,
        ..CONFIG
    };
    let mut world = World::with(config, PLENTY);
    let steps = |world: &mut World, count| {
        let before = world.stats().hits;
        for _ in 0..count {
            world.step(&STEP);
        }
        world.stats().hits - before
    };
    assert_eq!(steps(&mut world, 5), 0, "the first, and four more");
    assert_eq!(steps(&mut world, 5), 20);
    odd_step(&mut world, &STEP);
    assert_eq!(steps(&mut world, 16), 0);
    assert_eq!(steps(&mut world, 2), 8);
    assert_eq!(world.steps.steady_steps(), 18);
}

#[test]
fn a_life_that_became_longer_is_learned_and_one_that_became_shorter_is_forgotten() {
    let mut world = World::new();
    for _ in 0..20 {
        world.step(&STEP);
    }
    for _ in 0..20 {
        odd_step(&mut world, &STEP);
    }
    let before = world.stats();
    for _ in 0..5 {
        odd_step(&mut world, &STEP);
    }
    let stats = world.stats();
    assert_eq!(
        (stats.hits - before.hits, stats.misses - before.misses),
        (20, 0)
    );
    for _ in 0..40 {
        world.step(&STEP);
    }
    let held = world.steps.planned_bytes(Granule::DEFAULT);
    assert_eq!(
        held,
        Some(208 * KIB),
        "as low as if the lives had never been longer"
    );
}

#[test]
fn lives_that_alternate_do_not_change_the_plan_for_ever() {
    let mut world = World::new();
    // Four steps in which blocks live long follow each of sixteen others.
    for number in 0..4000 {
        if number % 20 < 16 {
            world.step(&STEP);
        } else {
            odd_step(&mut world, &STEP);
        }
    }
    let stats = world.stats();
    assert!(stats.layouts < 30, "{stats:?}");
    assert!(stats.hits > 15_000, "{stats:?}");
}

#[test]
fn steps_that_gain_nothing_are_skipped_and_observed_again() {
    let mut world = World::new();
    let mut random = Random::new(3);
    for _ in 0..3000 {
        // No step is like another.
        let mut step: Vec<i64> = (0..6).map(|_| 1 + random.below(500) as i64).collect();
        step.extend(-6..0);
        world.step(&step);
    }
    let before = world.stats();
    let observed = before.steps - before.skipped_steps;
    assert!((100..400).contains(&observed), "{before:?}");
    assert!(before.layouts < 5, "{before:?}");
    for _ in 0..2500 {
        world.step(&STEP);
    }
    let stats = world.stats();
    assert!(stats.hits - before.hits > 400, "{stats:?}");
    let skipped = stats.skipped_steps;
    for _ in 0..100 {
        world.step(&STEP);
    }
    assert_eq!(world.stats().skipped_steps, skipped);
}

#[test]
fn a_step_that_ends_early_is_served_and_teaches_nothing() {
    let mut world = World::new();
    let whole: Vec<i64> = (1..=20).flat_map(|at| [at * 7, -at]).collect();
    world.step(&whole);
    world.step(&whole);
    for length in 1..20 {
        world.step(&whole[..length * 2]);
    }
    let stats = world.stats();
    assert_eq!((stats.known_steps, stats.layouts), (20, 1), "{stats:?}");
    assert_eq!(stats.hits, 20 + (1..20).sum::<u64>(), "{stats:?}");
}

#[test]
fn what_the_tables_do_not_hold_is_counted() {
    let lent = StepSizes {
        asked: 8,
        shapes: 4,
        ..PLENTY
    };
    let mut world = World::with(CONFIG, lent);
    for kind in 0..10 {
        world.step(&[10 + kind, 20, -1, -2]);
    }
    assert_eq!(world.stats().forgotten_shapes, 6);
    let long: Vec<i64> = (1..=9).flat_map(|at| [at, -at]).collect();
    world.step(&long);
    let stats = world.stats();
    assert_eq!((stats.overlong_steps, stats.forgotten_shapes), (1, 6));
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
