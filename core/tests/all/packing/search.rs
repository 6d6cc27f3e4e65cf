//! The packer's search: it can be stopped after any step, and its packing never gets worse.

use larder_core::pack::{Lifetime, PackSizes, Packer, validate};
use larder_model::OwnedPackTables;

use crate::packing::{Kind, Random, random_lifetimes};

const MIDDLE: Kind = Kind {
    lifetimes: 40,
    ticks: 30,
    bytes: 50,
    aligned: true,
    pinned: false,
};

#[test]
fn slices_of_one_step_give_the_same_as_one_go() {
    for seed in 0..40 {
        let lifetimes = random_lifetimes(&mut Random::new(seed), MIDDLE);
        let (mut one, mut other) = (
            OwnedPackTables::new(lifetimes.len()),
            OwnedPackTables::new(lifetimes.len()),
        );
        let mut whole = Packer::new(&lifetimes, one.lend()).unwrap();
        let mut sliced = Packer::new(&lifetimes, other.lend()).unwrap();
        whole.improve(3000);
        for _ in 0..3000 {
            sliced.improve(1);
        }
        assert_eq!(whole.offsets(), sliced.offsets(), "seed {seed}");
        assert_eq!(whole.lower_bound(), sliced.lower_bound(), "seed {seed}");
    }
}

#[test]
fn no_steps_at_all_give_the_first_packing() {
    let lifetimes = [Lifetime::new(0, 2, 300), Lifetime::new(1, 3, 100)];
    let mut tables = OwnedPackTables::new(lifetimes.len());
    let mut packer = Packer::new(&lifetimes, tables.lend()).unwrap();
    packer.improve(0);
    assert_eq!(packer.height(), 400);
}

#[test]
fn more_steps_never_make_it_worse() {
    for seed in 0..100 {
        let pinned = seed % 2 == 0;
        let lifetimes = random_lifetimes(&mut Random::new(seed), Kind { pinned, ..MIDDLE });
        let mut tables = OwnedPackTables::new(lifetimes.len());
        let Ok(mut packer) = Packer::new(&lifetimes, tables.lend()) else {
            continue;
        };
        assert_eq!(
            packer.height(),
            if packer.max_live_bytes() > 0 {
                u64::MAX
            } else {
                0
            }
        );
        packer.first();
        let (mut height, mut bound) = (packer.height(), packer.lower_bound());
        assert!(bound >= packer.max_live_bytes(), "seed {seed}");
        for _ in 0..200 {
            let found = validate(&lifetimes, packer.offsets());
            assert_eq!(found, Ok(packer.height()), "seed {seed}");
            assert!(
                packer.height() <= height && packer.lower_bound() >= bound,
                "seed {seed}"
            );
            assert!(packer.lower_bound() <= packer.height(), "seed {seed}");
            (height, bound) = (packer.height(), packer.lower_bound());
            packer.improve(7);
        }
    }
}

#[test]
fn the_search_ends_where_it_is_told_that_it_is_enough() {
    // The lowest packing has 400 bytes.
    let lifetimes = [
        Lifetime::new(0, 2, 300),
        Lifetime::new(1, 3, 100),
        Lifetime::new(2, 4, 300),
    ];
    let mut tables = OwnedPackTables::new(lifetimes.len());
    let mut packer = Packer::new(&lifetimes, tables.lend()).unwrap();
    packer.stop_at(1000);
    packer.first();
    assert!(packer.is_done());
}

#[test]
fn parts_that_never_meet_are_packed_apart() {
    let mut random = Random::new(5);
    let mut lifetimes = Vec::new();
    for part in 0..20 {
        for mut lifetime in random_lifetimes(
            &mut random,
            Kind {
                aligned: false,
                ..MIDDLE
            },
        ) {
            lifetime.begin += part * 1000;
            lifetime.end += part * 1000;
            lifetimes.push(lifetime);
        }
    }
    let mut tables = OwnedPackTables::new(lifetimes.len());
    let mut packer = Packer::new(&lifetimes, tables.lend()).unwrap();
    packer.improve(2_000_000);
    assert!(packer.is_proven());
    assert_eq!(
        validate(&lifetimes, packer.offsets()),
        Ok(packer.max_live_bytes())
    );
}

#[test]
fn few_neighbours_and_falls_leave_the_greedy_packing() {
    for (neighbours, undo_log) in [(0, usize::MAX), (usize::MAX, 40)] {
        for seed in 0..50 {
            let lifetimes = random_lifetimes(&mut Random::new(seed), MIDDLE);
            let sizes = PackSizes::new(lifetimes.len());
            let mut tables = OwnedPackTables::of(PackSizes {
                neighbours: sizes.neighbours.min(neighbours),
                undo_log: sizes.undo_log.min(undo_log.max(lifetimes.len())),
                ..sizes
            });
            let mut packer = Packer::new(&lifetimes, tables.lend()).unwrap();
            packer.improve(5000);
            assert_eq!(
                validate(&lifetimes, packer.offsets()),
                Ok(packer.height()),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn nothing_to_pack_is_proven_at_once() {
    let nothing = [
        Lifetime::new(3, 3, 10),
        Lifetime::new(1, 5, 0),
        Lifetime::new(5, 1, 9),
    ];
    for lifetimes in [&nothing[..], &[]] {
        let mut tables = OwnedPackTables::new(lifetimes.len());
        let mut packer = Packer::new(lifetimes, tables.lend()).unwrap();
        packer.first();
        packer.improve(10);
        assert!(packer.is_done() && packer.is_proven());
        assert_eq!(validate(lifetimes, packer.offsets()), Ok(0));
    }
}
