//! Fuzzes the packer with lifetimes, alignments and pins. The validator checks every layout, and no
//! layout is lower than its lower bound. Only pins that exclude each other, and sizes that are too
//! large, are refused. Run with `cargo +nightly fuzz run plan`.
#![no_main]

use larder_core::Align;
use larder_core::pack::Lifetime;
use larder_core::pack::{PackError, Packer, validate};
use larder_model::OwnedPackTables;
use libfuzzer_sys::fuzz_target;

fn lifetime([begin, ticks, low, high, shift, align, pin]: [u8; 7]) -> Lifetime {
    let bytes = u64::from(u16::from_le_bytes([low, high])) << (shift % 50);
    Lifetime {
        begin: u32::from(begin),
        end: u32::from(begin).saturating_add(u32::from(ticks)),
        bytes,
        align: Align::new(1 << (align % 24)).expect("a power of two"),
        pinned: (pin >= 200).then(|| u64::from(pin - 200) << (align % 24)),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&budget, data)) = data.split_first() else {
        return;
    };
    let lifetimes: Vec<Lifetime> = data.as_chunks().0.iter().copied().map(lifetime).collect();
    let mut tables = OwnedPackTables::new(lifetimes.len());
    let mut packer = match Packer::new(&lifetimes, tables.lend()) {
        Ok(packer) => packer,
        Err(PackError::PinsOverlap { first, second }) => {
            let (one, two) = (&lifetimes[first], &lifetimes[second]);
            assert!(one.pinned.is_some() && two.pinned.is_some() && one.meets(two));
            return;
        }
        Err(PackError::TooLarge { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    packer.first();
    let mut height = packer.height();
    for _ in 0..u32::from(budget) {
        let valid = validate(&lifetimes, packer.offsets());
        assert_eq!(valid, Ok(packer.height()));
        assert!(packer.height() <= height && packer.lower_bound() <= packer.height());
        assert!(packer.max_live_bytes() <= packer.lower_bound());
        height = packer.height();
        packer.improve(20);
    }
});
