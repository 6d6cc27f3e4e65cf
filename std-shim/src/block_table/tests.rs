//! The table of blocks beside the standard library's map.

use std::collections::HashMap;

use super::*;
use crate::tests::random::Random;

/// Applies the same operations on addresses below `places * spacing` to both tables.
fn run(seed: u64, places: usize, spacing: usize, operations: usize, inserts_in_ten: usize) {
    let mut random = Random(seed);
    let mut ids = BlockTable::new();
    let mut model = HashMap::new();
    for id in 0..u32::try_from(operations).unwrap() {
        let addr = (1 + random.next(places)) * spacing;
        let what = format!("seed {seed}, spacing {spacing}, operation {id}");
        if random.next(10) < inserts_in_ten {
            assert_eq!(ids.insert(addr, id), Ok(model.insert(addr, id)), "{what}");
        } else {
            assert_eq!(ids.remove(addr), model.remove(&addr), "{what}");
        }
        assert_eq!(ids.live, model.len(), "{what}");
        assert!(model.len() * 2 <= ids.slots.values().len(), "{what}");
    }
    let slots = ids.slots.values();
    let used = slots.iter().filter(|slot| slot.addr != 0).count();
    assert_eq!(used, model.len());
    for (addr, id) in model {
        assert_eq!(ids.remove(addr), Some(id), "seed {seed}, address {addr:#x}");
    }
}

#[test]
fn the_table_answers_as_a_map_does() {
    for seed in 1..=4 {
        for spacing in [1, 16, 4096, 1 << 21] {
            run(seed, 3_000, spacing, 20_000, 5);
        }
    }
}

#[test]
fn the_table_answers_as_a_map_does_while_it_grows() {
    for seed in 1..=2 {
        run(seed, 40_000, 32, 60_000, 8);
    }
}

#[test]
fn nothing_is_found_in_a_table_that_was_never_used() {
    assert_eq!(BlockTable::<u32>::new().remove(16), None);
}

/// Addresses that share one home in a table of the first size.
fn neighbours(home_slot: usize, count: usize) -> Vec<usize> {
    let slots = [TableSlot {
        addr: 0,
        value: 0_u32,
    }; FIRST_SLOTS];
    let mut found: Vec<_> = (1..)
        .filter(|&addr| probe::find(&slots, addr as u64, key_of) == Err(home_slot))
        .take(count)
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn a_chain_that_runs_around_the_end_of_the_table_survives_each_removal() {
    // Three belong into the last slot and three into the first, so five of them are displaced.
    let mut all = neighbours(FIRST_SLOTS - 1, 3);
    all.extend(neighbours(0, 3));
    for first in 0..all.len() {
        let mut ids = BlockTable::new();
        for (id, &addr) in (0..).zip(&all) {
            assert_eq!(ids.insert(addr, id), Ok(None));
        }
        let mut order: Vec<_> = (0..all.len()).collect();
        order.rotate_left(first);
        for index in order {
            let id = u32::try_from(index).unwrap();
            assert_eq!(ids.remove(all[index]), Some(id), "first removed: {first}");
        }
        assert_eq!(ids.live, 0);
    }
}
