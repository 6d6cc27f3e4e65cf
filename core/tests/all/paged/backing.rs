//! Blocks at places chosen by a layout, and memory mapped at such places ahead of time.

use super::bench::{BASE, Bench, PAGE, config, pages, point};
use larder_core::pages::{Backing, PageAttempt};
use larder_core::{
    Addr, AddrRange, AllocError, BestFit, Block, BlockAllocator, Progress, Request, StreamId,
};

/// So many pages from a page of the addresses on.
fn range(first: u64, count: u64) -> AddrRange {
    AddrRange::new(Addr::new(BASE + first * PAGE), count * PAGE).unwrap()
}

fn at(bench: &mut Bench, range: AddrRange) -> Result<Block, AllocError> {
    let block = bench.paged.alloc_at(range, None, None);
    bench.check();
    block
}

fn back(bench: &mut Bench, range: AddrRange, max: u64) -> bool {
    let mapped = bench.paged.back(range, range, max * PAGE, None);
    bench.check();
    mapped
}

/// Every other page used and the others unmapped, over so many pages.
fn gaps(bench: &mut Bench, count: u64) -> Vec<Block> {
    // From the end, so that nothing is created ahead.
    let places = (0..count).rev().step_by(2);
    let blocks = places.map(|page| {
        let block = at(bench, range(page, 1)).unwrap();
        bench.begin(&block, &pages(1));
        block
    });
    let blocks = blocks.collect();
    assert_eq!(bench.held(), count / 2);
    blocks
}

#[test]
fn a_place_that_queued_work_still_uses_is_taken() {
    // Whoever asks for a place does not say on which stream it will be used.
    let mut bench = Bench::new(config(8, Backing::Billed));
    let [a, _b] = bench.blocks([2, 1]);
    bench.free_after(a, point(0, 1));
    assert_eq!(at(&mut bench, range(0, 2)), Err(AllocError::PlaceTaken));
    bench.complete(point(0, 1));
    let block = at(&mut bench, range(0, 2)).unwrap();
    bench.begin(&block, &pages(2));
}

#[test]
fn memory_that_queued_work_still_uses_does_not_move_to_a_place() {
    let mut bench = Bench::new(config(16, Backing::Billed));
    let [a, _b] = bench.blocks([2, 1]);
    bench.free_after(a, point(0, 1));
    let block = at(&mut bench, range(8, 2)).unwrap();
    let elsewhere = Request {
        stream: StreamId::new(1),
        ..pages(2)
    };
    bench.begin(&block, &elsewhere);
    assert_eq!(bench.held(), 5);
}

#[test]
fn backing_counts_no_allocation_and_no_live_bytes() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let _block = bench.alloc(&pages(1));
    let before = bench.paged.get_mut().stats();
    assert!(back(&mut bench, range(0, 32), 32));
    let stats = bench.paged.get_mut().stats();
    assert_eq!(bench.held(), 32);
    assert_eq!(stats.peak_live_bytes, before.peak_live_bytes);
    assert_eq!(stats.allocations, before.allocations);
    assert_eq!(stats.largest_bytes, before.largest_bytes);
}

#[test]
fn a_range_that_is_not_all_inside_the_addresses_is_not_backed() {
    let mut bench = Bench::new(config(8, Backing::Billed));
    let below = AddrRange::new(Addr::new(BASE - PAGE), 2 * PAGE).unwrap();
    let huge = AddrRange::new(Addr::new(BASE), u64::MAX - BASE).unwrap();
    let all = AddrRange::new(Addr::new(0), u64::MAX).unwrap();
    for range in [below, range(7, 2), range(8, 1), huge, all] {
        assert!(!back(&mut bench, range, 64), "{range:?}");
        assert_eq!(bench.held(), 0, "{range:?}");
        assert!(
            bench.paged.get_mut().missing_bytes(range, None) > 0,
            "{range:?}"
        );
    }
    assert!(back(&mut bench, range(0, 8), 8));
    assert_eq!(bench.paged.get_mut().missing_bytes(range(0, 8), None), 0);
}

#[test]
fn as_many_gaps_as_are_planned_at_once_are_filled_and_one_more_fills_none() {
    for (count, mapped) in [(128, true), (130, false)] {
        let mut bench = Bench::new(config(256, Backing::Billed));
        let _stay = gaps(&mut bench, count);
        let picture = bench.picture();
        assert_eq!(back(&mut bench, range(0, count), count), mapped);
        assert_eq!(bench.held(), if mapped { count } else { count / 2 });
        assert_eq!(bench.picture() == picture, !mapped);
    }
}

#[test]
fn idle_memory_of_the_range_stays_where_it_is() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let mut stay = gaps(&mut bench, 8);
    // Idle in the range, in front of unmapped and behind them, and one page behind the range.
    let outside = at(&mut bench, range(9, 1)).unwrap();
    for place in [0, 6] {
        let block = at(&mut bench, range(place, 1)).unwrap();
        bench.begin(&block, &pages(1));
        stay.push(block);
    }
    for _ in 0..2 {
        let block = stay.pop().unwrap();
        bench.free(block);
    }
    bench.begin(&outside, &pages(1));
    bench.free(outside);
    assert_eq!(bench.paged.get_mut().missing_bytes(range(0, 8), None), PAGE);
    assert!(back(&mut bench, range(0, 8), 8));
    assert_eq!(bench.paged.get_mut().missing_bytes(range(0, 8), None), 0);
    assert_eq!(bench.held(), 8, "the page behind the range moved");
    let (calls, _) = bench.calls_of(|bench| at(bench, range(0, 1)).unwrap());
    assert_eq!(calls.map, 0);
}

#[test]
fn backing_holds_no_more_than_it_is_told() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let _stay = gaps(&mut bench, 8);
    let picture = bench.picture();
    assert!(!back(&mut bench, range(0, 8), 7));
    assert_eq!((bench.held(), bench.picture()), (4, picture));
    assert!(back(&mut bench, range(0, 8), 8));
    assert_eq!(bench.held(), 8);
}

#[test]
fn a_driver_that_refuses_any_call_of_a_backing_leaves_nothing_out_of_use() {
    for refused in 0..40 {
        let mut bench = Bench::new(config(64, Backing::Billed));
        let stay = gaps(&mut bench, 16);
        bench.paged.source().refuse_in(Some(refused));
        let mapped = back(&mut bench, range(0, 16), 16);
        bench.paged.source().refuse_in(None);
        assert_eq!(bench.paged.get_mut().lost_bytes(), 0);
        if !mapped {
            assert!(bench.held() < 16);
            assert!(back(&mut bench, range(0, 16), 16), "the next time");
        }
        assert_eq!(bench.held(), 16);
        for block in stay {
            bench.free(block);
        }
        let block = bench.alloc(&pages(16));
        assert_eq!(bench.held(), 16);
        bench.free(block);
        assert_eq!(bench.release(16), 16);
    }
}

#[test]
fn memory_of_a_layout_comes_in_few_pieces() {
    let mut bench = Bench::new(config(256, Backing::Billed));
    let _stay = bench.alloc(&pages(1));
    // Freed over and over, so that blocks get their memory in single pages.
    for _ in 0..40 {
        let block = bench.alloc(&pages(16));
        bench.free(block);
    }
    let before = bench.paged.page_stats().handles;
    assert!(back(&mut bench, range(0, 128), 128));
    let created = bench.paged.page_stats().handles - before;
    assert!(created <= 16, "{created}");
}

#[test]
fn a_stream_moves_what_its_own_work_uses_and_its_places_may_be_pending() {
    for (number, moves) in [(1, true), (2, false)] {
        let mut bench = Bench::new(config(64, Backing::Billed));
        let _stay = gaps(&mut bench, 8);
        let outside = at(&mut bench, range(9, 1)).unwrap();
        let user = pages(1).on(StreamId::new(1));
        bench.begin(&outside, &user);
        bench.free_after(outside, point(1, 5));
        let stream = StreamId::new(number);
        let missing = bench
            .paged
            .get_mut()
            .missing_bytes(range(0, 8), Some(stream));
        let least = bench.paged.get_mut().missing_bytes(range(0, 8), None);
        assert_eq!(least - missing, if moves { PAGE } else { 0 });
        let point = Some(point(number, 6));
        let held = bench.held();
        let mapped = bench.paged.back(range(0, 8), range(0, 8), 16 * PAGE, point);
        assert!(mapped);
        bench.check();
        let created = bench.held() - held;
        assert_eq!(created, 4 - u64::from(moves));
    }
}

#[test]
fn what_a_layout_has_is_not_given_back_to_fill_the_rest_of_it() {
    let mut bench = Bench::new(config(8, Backing::Billed));
    let [idle] = bench.blocks([1]);
    bench.free(idle);
    // One page may be held, and the layout has it.
    assert!(!back(&mut bench, range(0, 2), 1));
    assert!(bench.paged.get_mut().is_mapped(range(0, 1)));
    assert!(back(&mut bench, range(0, 2), 2));
    assert!(bench.paged.get_mut().is_mapped(range(0, 2)));
}

#[test]
fn a_place_over_a_part_of_what_a_stream_has_left_is_joined_with_what_is_free_behind_it() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [front, middle, behind, _stay] = bench.blocks([1, 2, 1, 1]);
    // So that there are several streams.
    let other = bench.alloc(&pages(1).on(StreamId::new(2)));
    bench.free_after(other, point(2, 1));
    bench.free_after(middle, point(1, 1));
    bench.free(front);
    bench.free(behind);
    bench.complete(point(1, 1));
    let stream = StreamId::new(1);
    let mut attempt = PageAttempt::at(range(0, 2), None, Some(stream));
    let Progress::Ready(_grant) = bench.paged.get_mut().advance(&mut attempt) else {
        panic!("all of it has memory");
    };
    bench.check();
}

/// Three pages of which the middle one has no memory, and then has some that stream 1 uses until event 3.
fn backed_for_a_stream_never_named() -> (Bench, Block) {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [first, middle, _stay] = [(); 3].map(|()| bench.alloc(&pages(1)));
    bench.free(middle);
    assert_eq!(bench.release(1), 1);
    let point = Some(point(1, 3));
    let backed = bench.paged.back(range(1, 1), range(1, 1), u64::MAX, point);
    assert!(backed);
    bench.check();
    (bench, first)
}

#[test]
fn backing_for_a_stream_names_it() {
    let (mut bench, first) = backed_for_a_stream_never_named();
    bench.free_after(first, point(0, 5));
    let stream = Some(StreamId::new(0));
    let taken = bench
        .paged
        .with(|pool| pool.alloc_at(range(1, 1), None, stream).map(|_| ()));
    assert_eq!(taken, Err(AllocError::PlaceTaken));
}

#[test]
fn what_is_backed_for_one_stream_is_not_joined_with_what_another_uses() {
    let (mut bench, first) = backed_for_a_stream_never_named();
    bench.free_after(first, point(0, 5));
    let grant = bench.paged.alloc(&pages(1).on(StreamId::new(1))).unwrap();
    bench.begin(&grant.block, &pages(1).on(StreamId::new(1)));
}
