//! Tiny problems, each solved twice: by the packer, and by trying every order.

use larder_core::pack::{Lifetime, PackError, Packer, validate};
use larder_model::OwnedPackTables;

use crate::packing::{Kind, Random, random_lifetimes};

/// More steps than any of these problems needs.
const STEPS: u64 = 2_000_000;

const TINY: Kind = Kind {
    lifetimes: 7,
    ticks: 8,
    bytes: 9,
    aligned: false,
    pinned: false,
};

#[test]
fn what_is_proven_is_the_optimum() {
    agree(TINY, 1500);
}

#[test]
fn what_is_proven_is_the_optimum_with_alignments() {
    let aligned = true;
    agree(
        Kind {
            aligned,
            bytes: 20,
            ..TINY
        },
        1500,
    );
}

#[test]
fn what_is_proven_is_the_optimum_around_pins() {
    let (aligned, pinned) = (true, true);
    agree(Kind { pinned, ..TINY }, 1500);
    agree(
        Kind {
            aligned,
            pinned,
            ..TINY
        },
        1500,
    );
}

#[test]
fn equal_sizes_and_times_are_packed_as_well() {
    agree(
        Kind {
            ticks: 3,
            bytes: 3,
            ..TINY
        },
        500,
    );
}

fn agree(kind: Kind, problems: u64) {
    for seed in 0..problems {
        let lifetimes = random_lifetimes(&mut Random::new(seed), kind);
        let mut tables = OwnedPackTables::new(lifetimes.len());
        let mut packer = match Packer::new(&lifetimes, tables.lend()) {
            Ok(packer) => packer,
            Err(PackError::PinsOverlap { first, second }) => {
                assert!(lifetimes[first].meets(&lifetimes[second]), "seed {seed}");
                continue;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        packer.improve(STEPS);
        assert!(
            packer.is_done() && packer.is_proven(),
            "seed {seed}: {lifetimes:?}"
        );
        let height = validate(&lifetimes, packer.offsets());
        assert_eq!(height, Ok(packer.height()), "seed {seed}: {lifetimes:?}");
        assert_eq!(
            packer.height(),
            optimum(&lifetimes),
            "seed {seed}: {lifetimes:?}"
        );
        assert!(
            packer.lower_bound() >= packer.max_live_bytes(),
            "seed {seed}"
        );
    }
}

/// Returns the least height over all orders of placing each block as low as possible.
///
/// This is the optimum, because placing the blocks of an optimal packing by offset puts none of them higher.
fn optimum(lifetimes: &[Lifetime]) -> u64 {
    let taken = |one: &&Lifetime| one.bytes > 0 && one.begin < one.end;
    let taken: Vec<Lifetime> = lifetimes.iter().filter(taken).copied().collect();
    let free: Vec<Lifetime> = taken
        .iter()
        .filter(|one| one.pinned.is_none())
        .copied()
        .collect();
    let pins = taken.iter().filter_map(|one| Some((*one, one.pinned?)));
    let mut placed: Vec<(Lifetime, u64)> = pins.collect();
    let mut best = u64::MAX;
    every_order(&free, &mut vec![false; free.len()], &mut placed, &mut best);
    best
}

fn every_order(
    free: &[Lifetime],
    used: &mut Vec<bool>,
    placed: &mut Vec<(Lifetime, u64)>,
    best: &mut u64,
) {
    let height = placed.iter().map(|(one, offset)| offset + one.bytes).max();
    if height.unwrap_or(0) >= *best {
        return;
    }
    if !used.contains(&false) {
        *best = height.unwrap_or(0);
        return;
    }
    for index in 0..free.len() {
        if used[index] {
            continue;
        }
        used[index] = true;
        let offset = lowest(&free[index], placed);
        placed.push((free[index], offset));
        every_order(free, used, placed, best);
        placed.pop();
        used[index] = false;
    }
}

fn lowest(one: &Lifetime, placed: &[(Lifetime, u64)]) -> u64 {
    let mut offset = 0;
    while placed.iter().any(|(other, at)| {
        one.begin < other.end
            && other.begin < one.end
            && offset < at + other.bytes
            && *at < offset + one.bytes
    }) {
        offset += one.align.bytes();
    }
    offset
}
