//! Releasing idle memory: how much, which, and what stays.

use super::bench::{Bench, PAGE, config, pages, point};
use larder_core::pages::{Backing, PageCall};
use larder_core::{BestFit, Block, StreamId};

/// Idle pieces of 3, 2 and 1 pages, each in a hole of its own, and all that is live.
fn pieces(floor: u64) -> (Bench, Vec<Block>) {
    let mut config = config(256, Backing::Billed);
    config.floor_bytes = floor * PAGE;
    let mut bench = Bench::new(config);
    let [ballast, three, a, two, b, one, c] = bench.pieces([48, 3, 1, 2, 1, 1, 1]);
    [three, two, one]
        .into_iter()
        .for_each(|block| bench.free(block));
    assert_eq!(bench.held(), 57);
    (bench, vec![ballast, a, b, c])
}

#[test]
fn at_least_what_is_wanted_goes_and_the_least_that_will_do() {
    for (wanted, given) in [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 5),
        (6, 6),
        (7, 6),
        (100, 6),
    ] {
        let (mut bench, _live) = pieces(0);
        assert_eq!(bench.release(wanted), given);
        assert_eq!(bench.held(), 57 - given);
    }
}

#[test]
fn a_part_of_a_page_takes_a_page() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let block = bench.alloc(&pages(4));
    bench.free(block);
    assert_eq!(bench.paged.release(PAGE + 1), 2 * PAGE);
}

#[test]
fn large_handles_go_first() {
    let (mut bench, _live) = pieces(0);
    let mut plan = bench.paged.get_mut().plan_release(5 * PAGE).unwrap();
    let mut released = Vec::new();
    while let Some(step) = bench.call(&mut plan) {
        if let PageCall::Release { bytes, .. } = step {
            released.push(bytes / PAGE);
        }
    }
    assert_eq!((released, plan.released_bytes()), (vec![3, 2], 5 * PAGE));
    assert!(bench.finish(plan).is_none());
}

#[test]
fn if_no_small_handle_is_idle_the_first_of_the_largest_chunk_goes() {
    let (mut bench, _live) = pieces(0);
    assert_eq!(bench.release(1), 1);
    assert_eq!(bench.release(1), 3);
    assert_eq!(bench.release(1), 2);
    assert!(bench.paged.get_mut().plan_release(PAGE).is_none());
}

#[test]
fn never_less_is_held_than_the_floor() {
    for floor in 50..=57 {
        let (mut bench, _live) = pieces(floor);
        while bench.release(100) > 0 {}
        let least = bench.held();
        assert!(least >= floor && least >= 51, "{least} of {floor}");
        // One page is idle to the last, unless the floor keeps it.
        assert_eq!(least, floor.max(51));
    }
    let (mut bench, _live) = pieces(56);
    assert_eq!(bench.release(1), 1);
    assert!(bench.paged.get_mut().plan_release(1).is_none());
}

#[test]
fn a_floor_that_no_idle_handle_is_small_enough_for_keeps_them_all() {
    let (mut bench, _live) = pieces(55);
    assert_eq!(bench.release(1), 1);
    // One page may go still, and the pieces have two and three.
    assert!(bench.paged.get_mut().plan_release(PAGE).is_none());
    assert_eq!(bench.held(), 56);
}

#[test]
fn nothing_goes_if_nothing_is_wanted_or_idle() {
    let (mut bench, _live) = pieces(0);
    assert!(bench.paged.get_mut().plan_release(0).is_none());
    let mut bench = Bench::new(config(64, Backing::Billed));
    assert!(bench.paged.get_mut().plan_release(PAGE).is_none());
    let block = bench.alloc(&pages(3));
    assert!(bench.paged.get_mut().plan_release(PAGE).is_none());
    bench.free(block);
    assert_eq!(bench.release(3), 3);
    assert_eq!(bench.held(), 0);
}

#[test]
fn a_page_with_a_block_in_it_stays() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, b] = bench.blocks([2, 1]);
    bench.free(a);
    let small = bench.alloc(&larder_core::Request::new(1));
    assert_eq!(bench.release(100), 1);
    bench.free(small);
    assert_eq!(bench.release(100), 1);
    bench.free(b);
    assert_eq!(bench.release(100), 1);
}

#[test]
fn the_memory_of_queued_work_goes_when_its_stream_has_passed() {
    for stream in [0, 1, 255] {
        let mut bench = Bench::new(config(64, Backing::Billed));
        let block = bench.alloc(&pages(3).on(StreamId::new(stream)));
        bench.free_after(block, point(stream, 7));
        bench.complete(point(stream, 6));
        assert!(bench.paged.get_mut().plan_release(PAGE).is_none());
        bench.check();
        bench.complete(point(stream, 7));
        assert_eq!(bench.release(3), 3);
    }
}

#[test]
fn memory_whose_old_place_queued_work_still_uses_stays() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, _b, c, _d] = bench.blocks([2, 1, 2, 1]);
    bench.free_after(a, point(0, 3));
    bench.free_after(c, point(0, 4));
    bench.paged.get_mut().set_limit(6 * PAGE);
    // Moved at once, as it is the same stream; out of use again before its old work is done.
    let moved = bench.alloc(&pages(4));
    bench.free(moved);
    assert!(bench.paged.get_mut().plan_release(PAGE).is_none());
    bench.complete(point(0, 3));
    assert_eq!(bench.release(100), 2);
    bench.complete(point(0, 4));
    assert_eq!(bench.release(100), 2);
}

#[test]
fn a_handle_is_unmapped_everywhere_before_it_is_released() {
    let mut swing = super::scenes::swing();
    let held = swing.bench.held();
    let (calls, given) = swing.bench.calls_of(|bench| bench.release(4));
    assert_eq!((given, swing.bench.held()), (4, held - 4));
    // Two handles, two places each.
    assert_eq!((calls.unmap, calls.release, calls.total()), (4, 2, 6));
    assert_eq!(swing.bench.paged.page_stats().cached_mappings, 1);
}

#[test]
fn giving_all_back_leaves_no_cached_mapping_that_no_work_uses() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, _b, c, _d] = bench.blocks([2, 1, 2, 1]);
    bench.free_after(a, point(0, 5));
    bench.free_after(c, point(0, 6));
    bench.paged.get_mut().set_limit(6 * PAGE);
    let _moved = bench.alloc(&pages(4));
    let cached = [4, 5, 6].map(|event| {
        bench.complete(point(0, event));
        assert_eq!(bench.paged.release(u64::MAX), 0);
        bench.check();
        bench.paged.page_stats().cached_mappings
    });
    assert_eq!((cached, bench.held()), ([4, 2, 0], 6));
}

#[test]
fn what_the_device_refuses_to_unmap_is_idle_as_before() {
    let (mut bench, _live) = pieces(0);
    let picture = bench.picture();
    bench.paged.source().refuse_in(Some(0));
    assert_eq!(bench.release(6), 0);
    assert_eq!((bench.held(), bench.picture()), (57, picture));
    assert_eq!(bench.release(6), 6);
}

#[test]
fn am_4_stable_is_what_a_release_of_all_leaves() {
    for floor in [0, 53, 55, 57, 72] {
        for (pin, used) in [(false, false), (true, false), (false, true), (true, true)] {
            let (mut bench, mut live) = pieces(floor);
            if pin {
                let block = live.pop().unwrap();
                bench.paged.get_mut().pin(&block).unwrap();
                bench.free(block);
            }
            if used {
                let block = live.pop().unwrap();
                bench.free_after(block, point(1, 1));
            }
            let stats = bench.paged.pool_stats();
            assert_eq!(stats.pool_bytes, bench.held() * PAGE);
            bench.release(1000);
            let case = format!("floor {floor}, pinned {pin}, used {used}");
            assert_eq!(bench.held() * PAGE, stats.stable_bytes, "{case}");
            bench.check();
        }
    }
}
