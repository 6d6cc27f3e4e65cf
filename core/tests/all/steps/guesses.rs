//! Steps without a key: a known successor is expected, any other shape is a guess that is only watched.

use crate::steps::world::{CONFIG, PLENTY, World};
use larder_model::StepSizes;

const A: [i64; 6] = [100, 8, -1, 50, -2, -3];
const B: [i64; 6] = [100, 9, -1, 60, -2, -3];
const OTHER: [i64; 4] = [7, 70, -1, -2];

#[test]
fn the_first_repetition_is_watched_and_the_second_is_served() {
    let mut world = World::new();
    for hits in [0, 0, 3, 6] {
        world.unnamed(&A);
        assert_eq!(world.stats().hits, hits);
    }
}

#[test]
fn a_program_that_starts_over_begins_as_at_first() {
    let mut world = World::new();
    world.unnamed(&A);
    world.unnamed(&B);
    world.steps.start_over();
    world.unnamed(&A);
    assert_eq!(world.stats().hits, 3, "the first step of all is expected");
    world.unnamed(&B);
    assert_eq!(world.stats().hits, 6, "and what followed it");
    world.begin_keyed(0);
    world.steps.start_over();
    world.unnamed(&A);
    assert_eq!(world.stats().hits, 9, "also out of a step");
}

#[test]
fn steps_that_never_come_again_are_never_served_from_a_plan() {
    let mut world = World::new();
    for at in 1..30 {
        let (block, again) = (100, 200 + at);
        world.unnamed(&[block, 8, -1, again, -2, -3]);
    }
    let stats = world.stats();
    assert_eq!((stats.hits, stats.misses, stats.layouts), (0, 0, 0));
}

#[test]
fn an_order_that_was_seen_is_expected() {
    let mut world = World::new();
    for step in [A, B, A, B] {
        world.unnamed(&step);
    }
    let before = world.stats();
    for step in [A, B, A, B] {
        world.unnamed(&step);
    }
    let stats = world.stats();
    assert_eq!(stats.hits - before.hits, 12);
    assert_eq!(stats.deviations - before.deviations, 0);
}

#[test]
fn four_shapes_may_follow_one() {
    let mut world = World::new();
    let others: Vec<[i64; 4]> = (1..=4).map(|at| [at * 11, 5, -1, -2]).collect();
    for _ in 0..2 {
        for other in &others {
            world.unnamed(&A);
            world.unnamed(other);
        }
    }
    let before = world.stats();
    for other in &others {
        world.unnamed(&A);
        world.unnamed(other);
    }
    assert_eq!(world.stats().hits - before.hits, 4 * 3 + 4 * 2);
}

#[test]
fn guesses_that_prove_right_are_served() {
    let mut world = World::new();
    let shapes: Vec<[i64; 4]> = (1..=9).map(|at| [at * 11, at + 5, -1, -2]).collect();
    for shape in &shapes {
        world.unnamed(shape);
    }
    // In ever new orders each first allocation still tells the shape.
    for jump in [2, 4, 5, 7] {
        for at in 0..9 {
            world.unnamed(&shapes[at * jump % 9]);
        }
    }
    let stats = world.stats();
    assert!(stats.hits >= 2 * 30, "{stats:?}");
    // Then they are wrong for a while.
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
fn a_key_needs_no_proof() {
    let mut world = World::new();
    world.step(&OTHER);
    world.step(&OTHER);
    assert_eq!(world.stats().hits, 2);
}

#[test]
fn a_shape_in_the_place_of_the_first_one_is_not_taken_for_it() {
    let lent = StepSizes {
        shapes: 2,
        ..PLENTY
    };
    let mut world = World::with(CONFIG, lent);
    for step in [&A[..], &B, &OTHER] {
        world.unnamed(step);
    }
    // The first shape made room for the last.
    for _ in 0..3 {
        world.steps.start_over();
        world.unnamed(&OTHER);
        assert_eq!(world.stats().hits, 0, "nothing says that it comes");
    }
}

#[test]
fn a_shape_does_not_follow_itself_because_the_one_before_made_room_for_it() {
    let lent = StepSizes {
        shapes: 1,
        ..PLENTY
    };
    let mut world = World::with(CONFIG, lent);
    for step in [&A[..], &OTHER, &OTHER] {
        world.unnamed(step);
    }
    assert_eq!(world.stats().hits, 0);
    world.unnamed(&OTHER);
    assert_eq!(world.stats().hits, 2);
}

#[test]
fn a_shape_in_the_place_of_a_follower_is_not_taken_for_it() {
    let lent = StepSizes {
        shapes: 3,
        ..PLENTY
    };
    let mut world = World::with(CONFIG, lent);
    let (c, x) = ([31, 32, -1, -2], [41, 42, -1, -2]);
    // B followed A and makes room for X, which follows C.
    for step in [&A[..], &B, &A, &c, &A, &c, &x, &A] {
        world.unnamed(step);
    }
    let before = world.stats().hits;
    world.unnamed(&x);
    assert_eq!(world.stats().hits, before, "it never followed A");
}

#[test]
fn a_guess_is_wrong_that_ends_too_early() {
    let mut world = World::new();
    let (long, short) = ([11, 22, 33, -1, -2, -3], [11, 22, -1, -2]);
    world.unnamed(&short);
    for at in 0..8 {
        // The longer one is expected; then the shorter comes, unexpected, and it is guessed wrong.
        world.unnamed(&A);
        world.unnamed(&long);
        world.unnamed(&[500 + at, 8, -1, -2]);
        let before = world.stats();
        world.unnamed(&short);
        let stats = world.stats();
        assert_eq!((stats.hits, stats.misses), (before.hits, before.misses));
    }
    assert!(world.stats().hits > 0);
}
