//! The validator finds every fault in a packing.

use larder_core::Align;
use larder_core::pack::{Invalid, Lifetime, Packer, validate};
use larder_model::OwnedPackTables;

use crate::packing::{Kind, Random, random_lifetimes};

#[test]
fn a_good_packing_has_its_height() {
    let lifetimes = [
        Lifetime::new(0, 2, 10),
        Lifetime::new(1, 3, 5),
        Lifetime::new(2, 4, 10),
    ];
    assert_eq!(validate(&lifetimes, &[0, 10, 0]), Ok(15));
    assert_eq!(validate(&[], &[]), Ok(0));
}

#[test]
fn each_fault_has_its_name() {
    let mut lifetimes = [Lifetime::new(0, 2, 10), Lifetime::new(1, 3, 5)];
    let overlap = Invalid::Overlap {
        first: 0,
        second: 1,
    };
    assert_eq!(validate(&lifetimes, &[0, 9]), Err(overlap));
    assert_eq!(validate(&lifetimes, &[4, 0]), Err(overlap));
    let count = Invalid::Count {
        lifetimes: 2,
        offsets: 1,
    };
    assert_eq!(validate(&lifetimes, &[0]), Err(count));
    let past = Invalid::PastTheEnd { index: 1 };
    assert_eq!(validate(&lifetimes, &[0, u64::MAX - 4]), Err(past));
    lifetimes[1].align = Align::new(8).unwrap();
    assert_eq!(
        validate(&lifetimes, &[0, 12]),
        Err(Invalid::Misaligned { index: 1 })
    );
    lifetimes[1].pinned = Some(24);
    assert_eq!(
        validate(&lifetimes, &[0, 16]),
        Err(Invalid::PinMoved { index: 1 })
    );
}

#[test]
fn what_takes_no_space_is_never_in_the_way() {
    let lifetimes = [
        Lifetime::new(0, 4, 10),
        Lifetime::new(2, 2, 5),
        Lifetime::new(1, 3, 0),
    ];
    assert_eq!(validate(&lifetimes, &[0, 3, 3]), Ok(10));
    assert_eq!(validate(&[lifetimes[1], lifetimes[0]], &[3, 0]), Ok(10));
}

/// Each block above offset 0 rests on another one, so that moving it down by one byte is an overlap.
#[test]
fn a_planted_fault_is_found() {
    let kind = Kind {
        lifetimes: 30,
        ticks: 20,
        bytes: 40,
        aligned: false,
        pinned: false,
    };
    let mut planted = 0;
    for seed in 0..200 {
        let lifetimes = random_lifetimes(&mut Random::new(seed), kind);
        let mut tables = OwnedPackTables::new(lifetimes.len());
        let mut packer = Packer::new(&lifetimes, tables.lend()).unwrap();
        packer.first();
        let offsets = packer.offsets().to_vec();
        for index in 0..offsets.len() {
            let mut broken = offsets.clone();
            if broken[index] > 0 {
                broken[index] -= 1;
                planted += 1;
                let found = validate(&lifetimes, &broken);
                assert!(matches!(found, Err(Invalid::Overlap { .. })), "seed {seed}");
            }
        }
    }
    assert!(planted > 500);
}
