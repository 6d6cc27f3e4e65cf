//! Problems that a packer refuses.

use larder_core::Align;
use larder_core::pack::{Lifetime, PackError, Packer};
use larder_model::{OwnedPackTables, Random};

fn error(lifetimes: &[Lifetime]) -> Option<PackError> {
    let mut tables = OwnedPackTables::new(lifetimes.len());
    Packer::new(lifetimes, tables.lend()).err()
}

fn pinned(begin: u32, end: u32, bytes: u64, offset: u64) -> Lifetime {
    Lifetime {
        pinned: Some(offset),
        ..Lifetime::new(begin, end, bytes)
    }
}

#[test]
fn pins_that_overlap_are_named() {
    let free = Lifetime::new(0, 9, 5);
    let expected = PackError::PinsOverlap {
        first: 1,
        second: 3,
    };
    let both = [
        free,
        pinned(4, 6, 8, 7),
        pinned(1, 4, 8, 8),
        pinned(0, 5, 8, 0),
    ];
    assert_eq!(error(&both), Some(expected));
    let beside = [
        free,
        pinned(4, 6, 8, 8),
        pinned(1, 4, 8, 8),
        pinned(0, 5, 8, 0),
    ];
    assert_eq!(error(&beside), None);
}

#[test]
fn pins_are_refused_if_and_only_if_two_of_them_overlap() {
    let overlap = |one: &Lifetime, other: &Lifetime| {
        let (at, then) = (one.pinned.unwrap(), other.pinned.unwrap());
        one.meets(other) && at < then + other.bytes && then < at + one.bytes
    };
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        // From one pin to more pins than a word has bits.
        let count = 1 + random.below(200);
        let mut pins: Vec<Lifetime> = Vec::new();
        for _ in 0..count {
            let begin = random.below(100) as u32;
            let end = begin + 1 + random.below(20) as u32;
            let pin = pinned(begin, end, 1 + random.below(9), random.below(2000));
            // Most problems have no overlapping pair; in some the pair comes late.
            if random.below(100) == 0 || !pins.iter().any(|other| overlap(&pin, other)) {
                pins.push(pin);
            }
        }
        match error(&pins) {
            Some(PackError::PinsOverlap { first, second }) => {
                assert!(overlap(&pins[first], &pins[second]), "seed {seed}");
                refused += 1;
            }
            None => {
                let mut pairs = (0..pins.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
                assert!(
                    !pairs.any(|(a, b)| overlap(&pins[a], &pins[b])),
                    "seed {seed}"
                );
                taken += 1;
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(refused > 5 && taken > 100, "{refused} and {taken}");
}

#[test]
fn a_misaligned_pin_is_named() {
    let mut lifetime = pinned(0, 1, 8, 24);
    lifetime.align = Align::new(16).unwrap();
    let first = Lifetime::new(0, 1, 1);
    assert_eq!(
        error(&[first, lifetime]),
        Some(PackError::PinMisaligned { index: 1 })
    );
}

#[test]
fn sizes_that_add_up_too_far_are_refused() {
    let huge = Lifetime::new(0, 1, u64::MAX);
    assert_eq!(error(&[huge]), Some(PackError::TooLarge));
    let half = Lifetime::new(0, 1, 1 << 61);
    assert_eq!(error(&[half, half]), None);
    assert_eq!(
        error(&[half, half, Lifetime::new(7, 8, 1)]),
        Some(PackError::TooLarge)
    );
    assert_eq!(
        error(&[pinned(0, 1, 1, u64::MAX)]),
        Some(PackError::TooLarge)
    );
    let mut steep = Lifetime::new(0, 1, 1);
    steep.align = Align::new(1 << 63).unwrap();
    assert_eq!(error(&[steep]), Some(PackError::TooLarge));
}

#[test]
fn a_short_table_is_named() {
    let lifetimes = [Lifetime::new(0, 1, 1); 100];
    let mut tables = OwnedPackTables::new(100);
    let mut lent = tables.lend();
    lent.buckets = &mut lent.buckets[..2];
    let error = Packer::new(&lifetimes, lent).err();
    let needed = 5;
    assert_eq!(
        error,
        Some(PackError::TableTooShort {
            table: "buckets",
            needed
        })
    );
    let mut tables = OwnedPackTables::new(100);
    let mut lent = tables.lend();
    lent.trial = &mut lent.trial[..99];
    let error = Packer::new(&lifetimes, lent).err();
    assert_eq!(
        error,
        Some(PackError::TableTooShort {
            table: "trial",
            needed: 100
        })
    );
}
