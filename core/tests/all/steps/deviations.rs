//! Steps that differ from the known ones, and tables that are too short.

use crate::steps::world::{KIB, PLENTY, World};
use larder_core::steps::StepConfig;
use larder_model::StepSizes;

#[test]
fn a_shape_is_refined_where_two_part() {
    let mut world = World::new();
    let one = [64, 32, 100, -1, 200, -2, -3, -4];
    let two = [64, 32, 120, -1, 180, -2, -3, -4];
    world.step(&one);
    world.step(&two);
    let before = world.stats();
    assert_eq!(before.deviations, 1, "nothing else began with 64, 32");
    world.step(&one);
    world.step(&one);
    // Now `one` is expected again, and `two` comes.
    world.step(&two);
    let stats = world.stats();
    assert_eq!(stats.known_steps, 3);
    assert_eq!(stats.misses, 0);
    assert_eq!(stats.hits - before.hits, 12);
}

#[test]
fn one_allocation_more_is_served_and_the_rest_is_still_the_plans() {
    let mut world = World::new();
    world.step(&[64, 100, -1, 200, -2, -3]);
    world.step(&[64, 8, 100, -1, 200, -3, -4, -2]);
    let stats = world.stats();
    assert_eq!((stats.deviations, stats.hits + stats.misses), (1, 3));
    assert_eq!(stats.unplanned, 3 + 1);
}

#[test]
fn one_allocation_less_is_skipped() {
    let mut world = World::new();
    world.step(&[64, 8, 100, -1, 200, -2, -3, -4]);
    world.step(&[64, 100, -1, 200, -2, -3]);
    let stats = world.stats();
    assert_eq!((stats.deviations, stats.hits), (1, 3));
}

#[test]
fn one_allocation_that_is_larger_is_served_from_elsewhere() {
    let mut world = World::new();
    world.step(&[64, 100, -1, 200, -2, 48, -3, -4]);
    world.step(&[64, 110, -1, 200, -2, 48, -3, -4]);
    let stats = world.stats();
    assert_eq!(stats.deviations, 1);
    assert_eq!(stats.hits + stats.misses, 3);
}

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
fn somebody_elses_block_in_a_place_costs_one_miss_and_nothing_else() {
    let mut world = World::new();
    world.step(&[100, -1]);
    world.step(&[100, -1]);
    // Lies where the plan has its block; the next step is laid out around it.
    let foreign = world.alloc(50 * KIB);
    assert_eq!(world.offset(foreign), Some(0));
    world.step(&[100, -1]);
    let stats = world.stats();
    assert_eq!((stats.misses, stats.layouts), (0, 2));
    world.free(foreign);
}

#[test]
fn a_layout_goes_around_a_block_that_begins_elsewhere_and_ends_where_another_did() {
    let mut world = World::new();
    world.step(&[100, -1]);
    for below in [100, 50] {
        let low = world.alloc(below * KIB);
        let high = world.alloc((200 - below) * KIB);
        world.free(low);
        world.step(&[100, -1]);
        world.free(high);
    }
    let stats = world.stats();
    assert_eq!((stats.hits, stats.misses, stats.layouts), (1, 0, 2));
}

#[test]
fn a_step_with_more_allocations_than_the_table_holds_is_served_and_not_learned() {
    let lent = StepSizes { asked: 4, ..PLENTY };
    let mut world = World::with(StepConfig::new(), lent);
    for _ in 0..3 {
        world.step(&[10, 20, 30, 40, 50, -1, -2, -3, -4, -5]);
    }
    assert_eq!((world.stats().known_steps, world.stats().hits), (0, 0));
    for _ in 0..2 {
        world.step(&[10, 20, 30, 40, -1, -2, -3, -4]);
    }
    assert_eq!(world.stats().known_steps, 1);
}

#[test]
fn the_shape_not_seen_for_longest_goes_when_tables_are_full() {
    for lent in [
        StepSizes {
            shapes: 2,
            ..PLENTY
        },
        StepSizes {
            entries: 5,
            ..PLENTY
        },
    ] {
        let mut world = World::with(StepConfig::new(), lent);
        let (a, b, c) = ([10, 11, -1, -2], [20, 21, -1, -2], [30, 31, -1, -2]);
        for step in [a, b, a, c, a] {
            world.step(&step);
        }
        assert_eq!(world.stats().known_steps, 2, "b went when c came");
        world.step(&b);
        assert_eq!(world.stats().known_steps, 2);
        world.step(&b);
        assert_eq!(world.stats().known_steps, 3);
    }
}

#[test]
fn a_step_too_long_for_the_table_of_all_shapes_costs_no_other_its_plan() {
    let lent = StepSizes {
        entries: 3,
        ..PLENTY
    };
    let mut world = World::with(StepConfig::new(), lent);
    let (known, long) = ([10, -1], [20, 21, 22, 23, -1, -2, -3, -4]);
    for step in [&known[..], &long, &known] {
        world.step(step);
    }
    assert_eq!(world.stats().known_steps, 1);
    // As long as the table it fits.
    let long = [20, 21, 22, -1, -2, -3];
    world.step(&long);
    world.step(&long);
    assert_eq!(world.stats().known_steps, 2);
}

#[test]
fn tables_without_room_for_anything_cost_plans_and_no_memory() {
    let none = StepSizes {
        tags: 0,
        asked: 0,
        inherited: 0,
        shapes: 0,
        entries: 0,
        obstacles: 0,
    };
    let few = StepSizes {
        obstacles: 1,
        ..PLENTY
    };
    for lent in [none, few] {
        let mut world = World::with(StepConfig::new(), lent);
        let stay: Vec<_> = (0..5).map(|at| world.alloc((at + 1) * 10 * KIB)).collect();
        world.free(stay[1]);
        world.free(stay[3]);
        for _ in 0..3 {
            world.step(&[10, 20, -1, 30, -2, -3]);
        }
        assert_eq!(world.stats().hits, 0);
    }
}
