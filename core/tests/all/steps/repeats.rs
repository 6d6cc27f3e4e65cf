//! Steps that repeat: their plans and memory.

use larder_core::Granule;
use larder_core::steps::StepConfig;
use larder_model::{Random, StepSizes};

use crate::steps::world::{CONFIG, GRANULE, KIB, PLENTY, World};

/// Greedy by arrival wastes here: a small block sits between two that are freed together.
const STEP: [i64; 8] = [100, 8, 100, -1, -3, 200, -2, -4];
const STEP_PEAK: u64 = 208 * KIB;

#[test]
fn a_step_seen_once_is_served_from_its_plan_and_always_alike() {
    let mut world = World::new();
    world.step(&STEP);
    let (_, second) = world.step(&STEP);
    let hits = world.stats().hits;
    assert_eq!(hits, 4);
    for _ in 0..3 {
        assert_eq!(world.step(&STEP).1, second);
    }
    let stats = world.stats();
    assert_eq!((stats.hits, stats.misses, stats.deviations), (16, 0, 0));
    assert_eq!((stats.steps, stats.known_steps), (5, 4));
    assert_eq!(stats.layouts, 1, "nothing changed after the first layout");
    assert_eq!(stats.unplanned, 4, "the first step");
}

#[test]
fn a_plan_takes_no_more_than_what_is_live_at_once() {
    let mut world = World::new();
    world.step(&STEP);
    let (_, offsets) = world.step(&STEP);
    let ends = offsets.iter().zip([100, 8, 100, 200]);
    let ends = ends.map(|(at, kib)| at.unwrap() + kib * KIB);
    assert_eq!(ends.max().unwrap(), STEP_PEAK);
}

#[test]
fn what_is_planned_ends_with_the_highest_layout_that_could_be_made() {
    let lent = StepSizes {
        obstacles: 1,
        ..PLENTY
    };
    let mut world = World::with(CONFIG, lent);
    let planned = |world: &World| world.steps.planned_bytes(Granule::DEFAULT);
    let low = [64, -1];
    world.step(&STEP);
    assert_eq!(planned(&world), None, "it was not served from a plan");
    for step in [&STEP[..], &low, &low] {
        world.step(step);
    }
    assert_eq!(planned(&world), Some(STEP_PEAK));
    // More in use than there is room for: this one gets no layout.
    let beside = [0; 4].map(|_| world.alloc(10 * KIB));
    world.free(beside[0]);
    world.free(beside[2]);
    for _ in 0..2 {
        world.step(&[300, -1]);
    }
    assert_eq!(planned(&world), None);
    world.free(beside[1]);
    world.free(beside[3]);
    world.step(&STEP);
    assert_eq!(planned(&world), Some(STEP_PEAK));
}

#[test]
fn shapes_in_turn_are_told_apart_by_their_first_allocation() {
    let mut world = World::new();
    let other = [64, 300, -1, 20, -2, -3];
    for _ in 0..4 {
        world.step(&STEP);
        world.step(&other);
    }
    let stats = world.stats();
    assert_eq!((stats.known_steps, stats.deviations), (6, 0));
    assert_eq!((stats.hits, stats.misses), (3 * 7, 0));
}

#[test]
fn steps_of_one_key_are_not_compared_with_those_of_another() {
    let mut world = World::new();
    let play = |world: &mut World, key| {
        world.begin_keyed(key);
        let block = world.alloc(40 * KIB);
        world.free(block);
        world.end();
    };
    play(&mut world, 1);
    play(&mut world, 2);
    assert_eq!(world.stats().known_steps, 0);
    play(&mut world, 1);
    play(&mut world, 2);
    assert_eq!(world.stats().known_steps, 2);
}

#[test]
fn what_outlives_a_step_lies_below_the_rest_and_out_of_the_way() {
    let mut world = World::new();
    // The third block stays.
    let init = [100, 50, 16, -1, -2];
    let train = [80, 60, -1, 90, -2, -3];
    world.step(&init);
    world.step(&train);
    let mut again = World::new();
    let mut plans = Vec::new();
    world
        .steps
        .save(GRANULE, 7, |bytes| plans.extend_from_slice(bytes));
    again.steps.load(GRANULE, 7, &plans).unwrap();
    let (left, offsets) = again.step(&init);
    assert_eq!((left.len(), offsets[2]), (1, Some(0)));
    again.step(&train);
    again.step(&train);
    let stats = again.stats();
    assert_eq!(
        (stats.misses, stats.deviations, stats.known_steps),
        (0, 0, 3)
    );
    assert_eq!(
        again.held(),
        166 * KIB,
        "the step's own peak, and what stays"
    );
}

#[test]
fn blocks_side_by_side_that_outlive_their_step_take_one_place_in_the_table() {
    let lent = StepSizes {
        obstacles: 1,
        ..PLENTY
    };
    let mut world = World::with(CONFIG, lent);
    let init = [100, 50, 16, 24, -1, -2];
    for id in world.step(&init).0 {
        world.free(id);
    }
    let offsets = world.step(&init).1;
    assert_eq!(offsets[2..], [Some(0), Some(16 * KIB)]);
}

#[test]
fn blocks_that_outlive_their_step_can_be_left_to_the_program() {
    let config = StepConfig {
        keep_out_outliving: true,
        ..StepConfig::new()
    };
    let mut world = World::with(config, PLENTY);
    let (first, _) = world.step(&[100, 16, -1]);
    let (second, offsets) = world.step(&[100, 16, -1]);
    assert_eq!(offsets[1], None, "known to stay");
    assert_eq!(world.stats().kept_out, 1);
    for id in first.into_iter().chain(second) {
        world.free(id);
    }
    let (_, offsets) = world.step(&[100, 16, -1]);
    assert!(offsets[0].is_some() && offsets[1].is_none());
    assert_eq!(world.stats().known_steps, 2);
}

#[test]
fn what_the_step_before_left_makes_room_when_it_is_known_to_go() {
    // A cache that is copied into a new one in each step.
    let mut world = World::new();
    let mut cache = world.step(&[500]).0[0];
    for _ in 0..6 {
        world.begin();
        let new = world.alloc(500 * KIB);
        world.free(std::mem::replace(&mut cache, new));
        let scratch = world.alloc(400 * KIB);
        world.free(scratch);
        world.end();
    }
    let stats = world.stats();
    assert_eq!(stats.misses, 0);
    assert!(stats.known_steps >= 4, "{stats:?}");
    assert!(stats.hits >= 6, "{stats:?}");
    assert!(world.held() <= 1000 * KIB, "{}", world.held());
}

#[test]
fn a_block_that_lives_longer_than_known_is_missed_once() {
    let mut world = World::new();
    world.step(&[100, -1, 100, -2]);
    world.step(&[100, 100, -1, -2]);
    assert_eq!(
        world.stats().misses,
        1,
        "both were planned at the same place"
    );
    world.step(&[100, 100, -1, -2]);
    world.step(&[100, -1, 100, -2]);
    assert_eq!(world.stats().misses, 1, "it was learned");
}

#[test]
fn small_requests_are_no_part_of_a_step() {
    let config = StepConfig {
        threshold_bytes: 32 * KIB,
        ..StepConfig::new()
    };
    let mut world = World::with(config, PLENTY);
    world.step(&[31, 64, -1, -2]);
    world.step(&[64, -1]);
    assert_eq!(world.stats().known_steps, 1);
}

#[test]
fn a_plan_above_the_cap_is_not_used() {
    for (cap, hits) in [(STEP_PEAK - 1, 0), (STEP_PEAK, 4), (STEP_PEAK + 1, 4)] {
        let config = StepConfig {
            cap_bytes: cap / GRANULE * GRANULE,
            ..StepConfig::new()
        };
        let mut world = World::with(config, PLENTY);
        world.step(&STEP);
        world.step(&STEP);
        assert_eq!(world.stats().hits, hits, "{cap}");
        assert_eq!(world.stats().rejected, u64::from(hits == 0));
    }
}

#[test]
fn alignment_is_kept_in_a_plan() {
    let mut world = World::new();
    for _ in 0..3 {
        world.begin();
        let odd = world.alloc(9 * GRANULE);
        let even = world.alloc_aligned(100 * KIB, 64 * KIB);
        let last = world.alloc_aligned(10 * KIB, 4 * KIB);
        for id in [odd, even, last] {
            world.free(id);
        }
        world.end();
    }
    let stats = world.stats();
    assert_eq!((stats.hits, stats.misses), (6, 0));
}

#[test]
fn empty_steps_and_calls_outside_steps_change_nothing() {
    let mut world = World::new();
    let block = world.alloc(10 * KIB);
    world.begin();
    world.begin();
    world.end();
    world.end();
    world.free(block);
    let stats = world.stats();
    assert_eq!((stats.steps, stats.known_steps, stats.unplanned), (2, 0, 0));
}

#[test]
fn what_the_step_before_left_and_is_not_freed_is_missed_once() {
    let mut world = World::new();
    let mut cache = world.step(&[500]).0[0];
    for time in 0..10 {
        world.begin();
        let new = world.alloc(500 * KIB);
        let old = std::mem::replace(&mut cache, new);
        // From the sixth on it is freed later than known.
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
fn a_block_of_another_size_is_not_the_one_that_goes() {
    let mut world = World::new();
    let step = |world: &mut World, left: Option<_>| {
        world.begin();
        let first = world.alloc(64 * KIB);
        if let Some(left) = left {
            world.free(left);
        }
        let second = world.alloc(700 * KIB);
        world.free(first);
        world.free(second);
        world.end();
    };
    for _ in 0..4 {
        let (left, _) = world.step(&[900]);
        step(&mut world, Some(left[0]));
    }
    let hits = world.stats().hits;
    assert!(hits >= 2);
    world.step(&[500]);
    step(&mut world, None);
    assert_eq!(world.stats().misses, 0);
}

#[test]
fn what_stays_at_the_bottom_costs_no_alignment() {
    let mut world = World::new();
    world.alloc(9 * GRANULE);
    for _ in 0..3 {
        world.begin();
        let even = world.alloc_aligned(100 * KIB, 64 * KIB);
        let odd = world.alloc(9 * GRANULE);
        world.free(even);
        world.free(odd);
        world.end();
    }
    let stats = world.stats();
    assert_eq!((stats.hits, stats.misses), (4, 0));
}

#[test]
fn steps_that_differ_by_an_alignment_are_two() {
    let mut world = World::new();
    for align in [GRANULE, 64 * KIB, GRANULE, 64 * KIB] {
        world.begin();
        let block = world.alloc_aligned(100 * KIB, align);
        world.free(block);
        world.end();
    }
    assert_eq!(world.stats().known_steps, 2);
}

#[test]
fn a_layout_is_made_anew_when_what_is_beside_it_goes_at_another_time() {
    let mut world = World::new();
    // The same places are in use, once by a block of the step before, which goes, and once not.
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
        // Both lie side by side at the start of the next step, which frees the first only.
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
    // Shapes on both sides of it in the table stay what they are.
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
            // Nothing is left from here for the next one.
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
        // As `input = load()` does: the new one is there before the old one goes.
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
    // Of all sizes, each with two others: no packing is as low as what is live.
    let mut step = vec![37, 91];
    for number in 2..60 {
        step.extend([1 + number * 37 % 101, 1 - number]);
    }
    let (mut most, mut allocations) = (0, 0);
    for _ in 0..500 {
        // Something else is in the way at each step.
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
    // What may be owed, the layout that passes it, and 4 an allocation.
    let bound = config.packing_work / 8 + most + 4 * allocations;
    assert!(stats.layout_work <= bound, "{stats:?}, {bound}");
    assert!(
        stats.layout_work >= 4 * allocations,
        "each turn is taken: {stats:?}"
    );
}
