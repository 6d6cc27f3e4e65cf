//! Counts the work of single calls of a packer, and validates their results.

use super::*;
use crate::pack::Lifetime;

const COUNT: usize = 600;

/// Runs a packer of 600 lifetimes of up to `ticks` ticks.
fn pack(ticks: u32, f: impl FnOnce(&[Lifetime], &mut Packer<'_>)) {
    let mut seed = 1_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let lifetimes: [Lifetime; COUNT] = core::array::from_fn(|begin| {
        let begin = begin as u32;
        Lifetime::new(
            begin,
            begin + 1 + below(u64::from(ticks)) as u32,
            1 + below(1000),
        )
    });
    let tables = PackTables {
        offsets: &mut [0; COUNT],
        trial: &mut [0; COUNT],
        live: &mut [0; COUNT],
        order: &mut [0; COUNT],
        by_key: &mut [0; COUNT],
        keys: &mut [0.0; COUNT],
        parts: &mut [Part::VACANT; COUNT],
        buckets: &mut [Bucket::VACANT; COUNT / 32 + 2],
        items: &mut [Item::VACANT; COUNT],
        sections: &mut [Section::VACANT; COUNT],
        neighbours: &mut [0; 128 * COUNT],
        undo_log: &mut [UndoRecord::VACANT; 2 * COUNT + 2],
        choices: &mut [(0, 0); COUNT],
        unplaced: &mut [0; COUNT],
    };
    let mut packer = Packer::new(&lifetimes, tables).unwrap();
    f(&lifetimes, &mut packer);
}

fn height(lifetimes: &[Lifetime], packer: &Packer<'_>) -> u64 {
    assert_eq!(validate(lifetimes, packer.offsets()), Ok(packer.height()));
    packer.height()
}

#[test]
fn a_first_packing_looks_at_no_more_buckets_than_it_may_and_is_whole() {
    for ticks in [5, 100, 10_000] {
        for most in [1, 50, 500] {
            pack(ticks, |_, packer| {
                let looked = [packer.first_by_time(most), packer.greedy(most)];
                // The lifetime placed last may examine all of them.
                let enough = most + (COUNT / 32 + 2) as u64;
                assert!(
                    looked.iter().all(|work| *work <= enough),
                    "{looked:?} of {most}"
                );
            });
            pack(ticks, |lifetimes, packer| {
                packer.first_within(most);
                height(lifetimes, packer);
            });
        }
    }
}

#[test]
fn a_first_packing_without_time_is_followed_by_the_ones_that_time_gives() {
    pack(100, |lifetimes, packer| {
        packer.first_within(1);
        let stacked = height(lifetimes, packer);
        packer.first_within(u64::MAX);
        let lowest = height(lifetimes, packer);
        assert!(lowest < stacked);
        pack(100, |lifetimes, packer| {
            packer.first();
            assert_eq!(height(lifetimes, packer), lowest);
        });
    });
}

#[test]
fn a_packing_by_time_that_lets_go_what_has_ended_is_the_packing_by_time() {
    for ticks in [5, 100, 10_000] {
        pack(ticks, |lifetimes, packer| {
            packer.first_by_time(u64::MAX);
            height(lifetimes, packer);
            // Each lifetime is at the lowest place that is free of earlier ones still alive.
            let offsets = packer.offsets();
            for (at, lifetime) in lifetimes.iter().enumerate() {
                let live = |before: &usize| lifetimes[*before].meets(lifetime);
                let is_free = |offset: u64| {
                    (0..at).filter(live).all(|before| {
                        let top = offsets[before] + lifetimes[before].bytes;
                        offset + lifetime.bytes <= offsets[before] || top <= offset
                    })
                };
                let tops = (0..at)
                    .filter(live)
                    .map(|b| offsets[b] + lifetimes[b].bytes);
                let places = core::iter::once(0).chain(tops);
                assert_eq!(
                    places.filter(|place| is_free(*place)).min(),
                    Some(offsets[at])
                );
            }
        });
    }
}

#[test]
fn a_search_ends_with_the_records_that_it_may_look_at() {
    pack(100, |_, packer| {
        packer.first();
        packer.stop_after(10_000);
        packer.improve(u64::MAX);
        assert!(packer.is_done() && !packer.is_proven());
        // The last step may examine all pairs.
        assert!(
            packer.records < 10_000 + 128 * COUNT as u64,
            "{}",
            packer.records
        );
    });
}
