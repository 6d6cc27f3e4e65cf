//! Moves of memory: when they happen, the calls that they cost, and the free way back.

use super::bench::{BASE, Bench, PAGE, PLENTY, config, page_of, pages};
use super::scenes::{ONE, SIX, THREE, TWO, swing};
use larder_core::pages::{Backing, PageCall};
use larder_core::{Addr, AddrRange, BestFit, Block};

#[test]
fn a_moved_handle_stays_mapped_where_it_was_and_is_reused_without_a_call() {
    let mut swing = swing();
    let bench = &mut swing.bench;
    assert_eq!(bench.paged.page_stats().cached_mappings, 3);
    let held = bench.held();
    let (calls, three) = bench.calls_of(|bench| bench.alloc(&pages(3)));
    assert_eq!((calls.total(), page_of(&three)), (0, THREE));
    assert_eq!(bench.held(), held);
    assert_eq!(bench.paged.page_stats().cached_mappings, 3);
}

#[test]
fn a_program_that_swings_between_two_layouts_pays_once() {
    let mut swing = swing();
    let bench = &mut swing.bench;
    for _ in 0..5 {
        let (calls, ()) = bench.calls_of(|bench| {
            let holes = bench.blocks([3, 2, 1]);
            assert_eq!(holes.each_ref().map(page_of), [THREE, TWO, ONE]);
            holes.into_iter().for_each(|block| bench.free(block));
            let six = bench.alloc(&pages(6));
            assert_eq!(page_of(&six), SIX);
            bench.free(six);
        });
        assert_eq!(calls.total(), 0);
    }
}

#[test]
fn a_place_is_reused_only_when_all_of_its_memory_is_idle() {
    let mut swing = swing();
    let bench = &mut swing.bench;
    // One page of the piece of three, at the front of the six.
    let range = AddrRange::new(Addr::new(BASE + SIX * PAGE), PAGE).unwrap();
    let _one = bench.paged.alloc_at(range, None, None);
    let (calls, three) = bench.calls_of(|bench| bench.alloc(&pages(3)));
    // Its old place gets the other two, and what is created.
    assert_eq!((calls.unmap, calls.map, calls.create), (1, 2, 0));
    assert_eq!(page_of(&three), THREE);
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
fn moves_stop_once_the_calls_made_exceed_what_is_held_pays_for_and_go_on_when_a_limit_wants_it() {
    let mut config = config(256, Backing::Billed);
    // 100 calls and more for 35 pages: 16 for each ten units are 112.
    config.unit_bytes = PAGE / 2;
    let mut bench = Bench::new(config);
    let mut teeth = comb(&mut bench, 33);
    let _end = teeth.pop();
    // Each move takes three calls.
    let created = [(); 5].map(|()| tear(&mut bench, &mut teeth));
    assert_eq!(
        (created, bench.paged.source().calls().total()),
        ([0, 0, 0, 0, 2], 116)
    );
    let held = bench.held();
    bench.paged.get_mut().set_limit(held * PAGE);
    let (calls, created) = bench.calls_of(|bench| tear(bench, &mut teeth));
    assert_eq!((created, calls.map, calls.create), (0, 2, 0));
}

#[test]
fn what_is_idle_moves_when_the_device_refuses_memory() {
    let (mut bench, mut teeth) = torn(Backing::Budget(PLENTY * PAGE));
    assert_eq!(tear(&mut bench, &mut teeth), 2);
    bench.paged.source().refuse_in(Some(0));
    let (calls, created) = bench.calls_of(|bench| tear(bench, &mut teeth));
    assert_eq!((created, calls.map, calls.create), (0, 2, 0));
}

#[test]
fn nothing_moves_before_a_budget_is_reached() {
    let (mut bench, mut teeth) = torn(Backing::Budget(40 * PAGE));
    let mut tear_of = |created, map| {
        let (calls, pages) = bench.calls_of(|bench| tear(bench, &mut teeth));
        assert_eq!((pages, calls.create, calls.map), (created, created, map));
    };
    (0..3).for_each(|_| tear_of(2, 2));
    // One page is left, which is not enough.
    tear_of(0, 2);
    assert_eq!(bench.held(), 39);
    let block = teeth.pop().unwrap();
    bench.free(block);
    // Of what is idle by now all moves, and the last page is created.
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(8)));
    assert_eq!((calls.map, calls.create), (8, 1));
    assert_eq!(bench.paged.source().peak_bytes(), 40 * PAGE);
}

/// One idle page that was at the end of five holes in turn, so that it has four mappings.
struct FourMappings {
    bench: Bench,
    /// First pages of the holes.
    places: [u64; 5],
    /// Cached mappings, and the unmaps it took, after each move.
    moves: [(u32, u64); 5],
    _stay: Vec<Block>,
}

fn four_mappings() -> FourMappings {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let sizes = [1, 2, 3, 4, 5];
    let mut stay = Vec::new();
    let holes = sizes.map(|size| {
        let hole = bench.alloc(&pages(size));
        stay.push(bench.alloc(&pages(1)));
        hole
    });
    let places = holes.each_ref().map(page_of);
    for block in holes.into_iter().rev() {
        bench.free(block);
    }
    assert_eq!(bench.release(14), 14);
    let held = bench.held();
    bench.paged.get_mut().set_limit(held * PAGE);
    let moves = sizes.map(|size| {
        let last = BASE + (places[size as usize - 1] + size - 1) * PAGE;
        let range = AddrRange::new(Addr::new(last), PAGE).unwrap();
        let (calls, block) = bench.calls_of(|bench| bench.paged.alloc_at(range, None, None));
        let block = block.unwrap();
        bench.begin(&block, &pages(1));
        bench.free(block);
        (bench.paged.page_stats().cached_mappings, calls.unmap)
    });
    FourMappings {
        bench,
        places,
        moves,
        _stay: stay,
    }
}

#[test]
fn a_handle_has_four_mappings_at_most_and_the_oldest_goes() {
    let mut four = four_mappings();
    let (bench, places) = (&mut four.bench, four.places);
    assert_eq!(four.moves, [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)]);
    // The first hole was the oldest place.
    let (calls, first) = bench.calls_of(|bench| bench.alloc(&pages(1)));
    assert_eq!((page_of(&first), calls.map, calls.unmap), (places[0], 1, 1));
}

#[test]
fn in_place_never_maps_what_is_mapped() {
    let (mut bench, mut teeth) = torn(Backing::InPlace);
    bench.paged.get_mut().set_limit(36 * PAGE);
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
    assert_eq!(bench.paged.source().peak_bytes(), 36 * PAGE);
}

#[test]
fn each_run_of_new_places_is_made_accessible_once() {
    let (mut bench, request, _live) = super::scenes::waking();
    let mut plan = bench.plan(&request);
    let (mut mapped, mut accessible) = (0, 0);
    while let Some(step) = bench.call(&mut plan) {
        match step {
            PageCall::Map { range, .. } => mapped += range.bytes(),
            PageCall::SetAccess { range } => accessible += range.bytes(),
            _ => {}
        }
    }
    assert_eq!((mapped, accessible), (2 * PAGE, 2 * PAGE));
    assert!(bench.finish(plan).is_some());
}

#[test]
fn access_is_set_between_two_places_that_are_reused_and_not_on_them() {
    let mut swing = swing();
    let bench = &mut swing.bench;
    let [three, one] = bench.blocks([3, 1]);
    bench.free(three);
    bench.free(one);
    // Of the six pages two cached mappings are left, and nothing between them.
    assert_eq!(bench.release(2), 2);
    let mut plan = bench.plan(&pages(6));
    let mut accessible = Vec::new();
    while let Some(step) = bench.call(&mut plan) {
        if let PageCall::SetAccess { range } = step {
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
    let [_ballast, three, _guard] = bench.pieces([48, 3, 1]);
    bench.free(three);
    let [front, _end] = bench.blocks([2, 1]);
    bench.free(front);
    assert_eq!(bench.release(100), 0);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(3)));
    assert_eq!((calls.create, calls.map), (3, 3));
    assert_eq!(bench.held(), 55);
}

#[test]
fn when_the_unmap_that_makes_room_for_a_fifth_mapping_is_refused_the_handle_has_four() {
    let mut four = four_mappings();
    let bench = &mut four.bench;
    let mut plan = bench.plan(&pages(1));
    bench.paged.source().refuse_in(Some(0));
    bench.call(&mut plan);
    assert!(bench.finish(plan).is_none());
    assert_eq!(bench.paged.page_stats().cached_mappings, 3);
}
