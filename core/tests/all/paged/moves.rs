//! When memory moves, what it costs, and that it comes back for nothing.

use super::bench::{BASE, Bench, PAGE, config, page_of, pages};
use super::scenes::{FOUR, SIX, swing};
use larder_core::Block;
use larder_core::paged::{Backing, PageStep};

#[test]
fn a_moved_handle_stays_mapped_where_it_was_and_is_reused_without_a_call() {
    let mut swing = swing();
    let bench = &mut swing.bench;
    let stats = bench.paged.page_stats();
    assert_eq!(stats.cached_mappings, 3);
    let held = bench.held();
    let (calls, four) = bench.calls_of(|bench| bench.alloc(&pages(4)));
    assert_eq!((calls.total(), page_of(&four)), (0, FOUR));
    assert_eq!(bench.held(), held);
    assert_eq!(bench.paged.page_stats().cached_mappings, 3);
}

#[test]
fn a_program_that_swings_between_two_layouts_pays_once() {
    let mut swing = swing();
    let mut middle = swing.middle;
    for _ in 0..5 {
        let bench = &mut swing.bench;
        let (calls, ()) = bench.calls_of(|bench| {
            let four = bench.alloc(&pages(4));
            assert_eq!(page_of(&four), FOUR);
            bench.free(four);
            bench.free(middle.take().unwrap());
            let six = bench.alloc(&pages(6));
            assert_eq!(page_of(&six), SIX);
            bench.free(six);
            let [front, again] = bench.blocks([3, 2]);
            bench.free(front);
            middle = Some(again);
        });
        assert_eq!(calls.total(), 0);
    }
}

#[test]
fn a_place_is_reused_only_when_all_of_its_memory_is_idle() {
    let mut swing = swing();
    let bench = &mut swing.bench;
    // One page of the piece of three, at page 44.
    let _one = bench.alloc(&pages(3));
    let (calls, four) = bench.calls_of(|bench| bench.alloc(&pages(4)));
    assert!(calls.create > 0, "{calls:?}");
    assert_ne!(page_of(&four), FOUR);
}

#[test]
fn a_move_is_one_map_for_each_handle_and_one_access_for_each_run() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, _b, c, _d] = bench.blocks([2, 1, 2, 1]);
    bench.free(a);
    bench.free(c);
    let (calls, e) = bench.calls_of(|bench| bench.alloc(&pages(4)));
    assert_eq!((calls.map, calls.set_access, calls.total()), (4, 1, 5));
    assert_eq!((page_of(&e), bench.held()), (6, 6));
    let unmapped = [('V', 0, 32), ('U', 32, 16), ('V', 48, 32), ('U', 80, 16)];
    assert_eq!(bench.picture(), [&unmapped[..], &[('U', 96, 64)]].concat());
}

/// Blocks of one page, of which every other one can be freed.
fn comb(bench: &mut Bench, count: usize) -> Vec<Block> {
    (0..count).map(|_| bench.alloc(&pages(1))).collect()
}

/// Frees two pages that are not side by side and asks for two that are. Gives the pages created.
fn tear(bench: &mut Bench, comb: &mut Vec<Block>) -> u64 {
    for _ in 0..2 {
        let block = comb.pop().unwrap();
        let _kept = comb.pop().unwrap();
        bench.free(block);
    }
    let held = bench.held();
    let _block = bench.alloc(&pages(2));
    bench.held() - held
}

/// A comb whose end is in use.
fn torn(backing: Backing) -> (Bench, Vec<Block>) {
    let mut bench = Bench::new(config(256, backing));
    let mut teeth = comb(&mut bench, 33);
    let _end = teeth.pop();
    (bench, teeth)
}

#[test]
fn billed_moves_before_it_creates() {
    let (mut bench, mut teeth) = torn(Backing::Billed);
    assert_eq!(tear(&mut bench, &mut teeth), 0);
    assert_eq!(tear(&mut bench, &mut teeth), 0);
}

#[test]
fn a_size_that_moved_in_two_steps_on_end_grows_from_the_third() {
    let (mut bench, mut teeth) = torn(Backing::Billed);
    let mut created = Vec::new();
    for _ in 0..4 {
        created.push(tear(&mut bench, &mut teeth));
        created.push(tear(&mut bench, &mut teeth));
        bench.paged.end_step();
    }
    // From the third step on the first request of a step creates; the holes serve nobody else.
    assert_eq!(created, [0, 0, 0, 0, 2, 2, 2, 2]);
}

#[test]
fn a_step_without_a_move_starts_the_count_anew() {
    let (mut bench, mut teeth) = torn(Backing::Billed);
    let mut created = Vec::new();
    for step in 0..6 {
        if step != 1 {
            created.push(tear(&mut bench, &mut teeth));
        }
        bench.paged.end_step();
    }
    assert_eq!(created, [0, 0, 0, 2, 2]);
}

#[test]
fn one_size_at_rest_leaves_the_others_alone() {
    let (mut bench, mut teeth) = torn(Backing::Billed);
    for _ in 0..3 {
        tear(&mut bench, &mut teeth);
        bench.paged.end_step();
    }
    let held = bench.held();
    // Two holes are left of the last step; a third comes.
    let block = teeth.pop().unwrap();
    bench.free(block);
    let _three = bench.alloc(&pages(3));
    assert_eq!(bench.held(), held);
}

#[test]
fn a_size_at_rest_moves_again_when_the_limit_wants_it() {
    let (mut bench, mut teeth) = torn(Backing::Billed);
    for _ in 0..2 {
        tear(&mut bench, &mut teeth);
        bench.paged.end_step();
    }
    bench.paged.set_limit(bench.held() * PAGE);
    assert_eq!(tear(&mut bench, &mut teeth), 0);
}

#[test]
fn nothing_moves_until_three_quarters_of_a_budget_are_held() {
    let (mut bench, mut teeth) = torn(Backing::Budget(48 * PAGE));
    let created: Vec<_> = (0..4).map(|_| tear(&mut bench, &mut teeth)).collect();
    assert_eq!((created, bench.held()), (vec![2, 2, 0, 0], 37));
}

#[test]
fn at_rest_a_budget_is_used_up_before_anything_moves() {
    let (mut bench, mut teeth) = torn(Backing::Budget(40 * PAGE));
    for _ in 0..2 {
        assert_eq!(tear(&mut bench, &mut teeth), 0);
        bench.paged.end_step();
    }
    let mut tear_of = |created, map| {
        let (calls, pages) = bench.calls_of(|bench| tear(bench, &mut teeth));
        assert_eq!((pages, calls.create, calls.map), (created, created, map));
        bench.paged.end_step();
    };
    (0..3).for_each(|_| tear_of(2, 2));
    // One page is left, and one moves.
    tear_of(1, 2);
    tear_of(0, 2);
    assert_eq!(bench.device.peak_bytes(), 40 * PAGE);
}

#[test]
fn in_place_never_maps_what_is_mapped() {
    let (mut bench, mut teeth) = torn(Backing::InPlace);
    bench.paged.set_limit(36 * PAGE);
    for _ in 0..8 {
        for _ in 0..2 {
            let block = teeth.pop().unwrap();
            let _kept = teeth.pop().unwrap();
            bench.free(block);
        }
        let (calls, block) = bench.calls_of(|bench| bench.try_alloc(&pages(2)));
        assert_eq!(calls.map, calls.create);
        let _block = block.unwrap();
    }
    assert_eq!(bench.paged.page_stats().cached_mappings, 0);
    assert_eq!(bench.device.peak_bytes(), 36 * PAGE);
}

#[test]
fn each_run_of_new_places_is_made_accessible_once() {
    let (mut bench, request, _live) = super::scenes::waking();
    let mut plan = bench.plan(&request);
    let (mut mapped, mut accessible) = (0, 0);
    while let Some(step) = bench.call(&mut plan) {
        match step {
            PageStep::Map { range, .. } => mapped += range.bytes(),
            PageStep::SetAccess { range } => accessible += range.bytes(),
            _ => {}
        }
    }
    assert_eq!((mapped, accessible), (5 * PAGE, 5 * PAGE));
    assert!(bench.finish(plan).is_some());
}

#[test]
fn access_is_set_between_two_places_that_are_reused_and_not_on_them() {
    let mut swing = swing();
    let bench = &mut swing.bench;
    let four = bench.alloc(&pages(4));
    bench.free(four);
    bench.free(swing.middle.take().unwrap());
    // Of the second layout two cached mappings are left, and nothing between them.
    assert_eq!(bench.release(2), 2);
    let mut plan = bench.plan(&pages(6));
    let mut accessible = Vec::new();
    while let Some(step) = bench.call(&mut plan) {
        if let PageStep::SetAccess { range } = step {
            accessible.push((
                range.start().get() / PAGE - BASE / PAGE,
                range.bytes() / PAGE,
            ));
        }
    }
    assert_eq!(accessible, [(SIX + 3, 2)]);
    assert_eq!(page_of(&bench.finish(plan).unwrap()), SIX);
}

#[test]
fn a_handle_with_a_block_at_its_end_neither_moves_nor_goes() {
    let mut bench = Bench::new(config(256, Backing::Billed));
    let [_ballast, three, _guard] = bench.blocks([36, 3, 1]);
    bench.free(three);
    let [front, _end] = bench.blocks([2, 1]);
    bench.free(front);
    assert_eq!(bench.release(100), 0);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(3)));
    assert_eq!((calls.create, calls.map), (3, 3));
    assert_eq!(bench.held(), 43);
}
