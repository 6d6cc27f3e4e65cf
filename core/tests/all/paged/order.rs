//! Stream order: memory that queued work uses, and the addresses of that use.

use super::bench::{BASE, Bench, GRANULE, PAGE, config, page_of, pages, point};
use larder_core::pages::Backing;
use larder_core::{BestFit, Cause, EventNumber, Request, StreamId};

const A: StreamId = StreamId::new(1);
const B: StreamId = StreamId::new(2);

/// Two holes of two pages, which work on stream 1 still uses up to events 5 and 6. What queued work uses moves only
/// where memory is short: `room` more pages may be held than the six.
fn pending(room: u64) -> Bench {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [a, _b, c, _d] = [2, 1, 2, 1].map(|size| bench.alloc(&pages(size).on(A)));
    bench.free_after(a, point(1, 5));
    bench.free_after(c, point(1, 6));
    bench.paged.get_mut().set_limit((6 + room) * PAGE);
    bench
}

#[test]
fn while_memory_is_plenty_nothing_moves_that_queued_work_uses() {
    let mut bench = pending(4);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(4).on(A)));
    assert_eq!((calls.create, calls.map), (4, 4));
}

#[test]
fn memory_that_one_stream_uses_is_not_moved_for_another() {
    let mut bench = pending(4);
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(4).on(B)));
    assert_eq!((calls.create, calls.map, calls.unmap), (4, 4, 0));
}

#[test]
fn it_moves_at_once_for_its_own_and_nothing_is_unmapped() {
    let mut bench = pending(0);
    let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(4).on(A)));
    assert_eq!((calls.create, calls.map, calls.unmap), (0, 4, 0));
    assert_eq!((page_of(&block), bench.held()), (6, 6));
}

#[test]
fn it_moves_for_all_when_the_stream_has_passed() {
    let mut bench = pending(1);
    bench.complete(point(1, 5));
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(3).on(B)));
    assert_eq!((calls.create, calls.map), (1, 3));
    let mut bench = pending(0);
    bench.complete(point(1, 6));
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&pages(4).on(B)));
    assert_eq!((calls.create, calls.map), (0, 4));
}

#[test]
fn a_request_that_names_an_event_moves_no_later_memory() {
    let mut bench = pending(2);
    let request = pages(4).on(A).freed_by(EventNumber::new(5));
    let (calls, _block) = bench.calls_of(|bench| bench.alloc(&request));
    assert_eq!((calls.create, calls.map), (2, 4));
}

#[test]
fn what_a_block_leaves_of_moved_memory_waits_for_the_stream_too() {
    let mut bench = pending(0);
    let half = PAGE / 2;
    let moved = bench.alloc(&Request::new(4 * PAGE - half).on(A).without_wait());
    assert_eq!(page_of(&moved), 6);
    bench.paged.get_mut().set_limit(u64::MAX);
    let _behind = bench.alloc(&pages(3).on(B));
    let surplus = moved.addr().get() + 4 * PAGE - half;
    // The later of the two events counts.
    bench.complete(point(1, 5));
    let request = Request::new(half).on(B).without_wait();
    let others = [(), ()].map(|()| bench.alloc(&request));
    assert!(others.iter().all(|other| other.addr().get() != surplus));
    bench.complete(point(1, 6));
    let later = bench.alloc(&request);
    assert_eq!(later.addr().get(), surplus);
}

#[test]
fn the_same_stream_has_the_rest_at_once() {
    let mut bench = pending(0);
    let moved = bench.alloc(&Request::new(4 * PAGE - GRANULE).on(A).without_wait());
    bench.paged.get_mut().set_limit(u64::MAX);
    let _behind = bench.alloc(&pages(3).on(B));
    let rest = Request::new(GRANULE).on(A).without_wait();
    let (calls, rest) = bench.calls_of(|bench| bench.alloc(&rest));
    assert_eq!(calls.total(), 0);
    assert_eq!(rest.addr().get(), moved.addr().get() + 4 * PAGE - GRANULE);
}

#[test]
fn a_cached_mapping_in_the_way_is_unmapped_when_its_stream_has_passed() {
    for completed in [0, 5, 6] {
        // The end of the addresses is near, and the only hole is full of cached mappings.
        let mut bench = Bench::new(config(12, Backing::Billed));
        let [a, b, c, _d] = [2, 1, 2, 1].map(|size| bench.alloc(&pages(size).on(A)));
        bench.free_after(a, point(1, 5));
        bench.free_after(c, point(1, 6));
        bench.paged.get_mut().set_limit(6 * PAGE);
        let _e = bench.alloc(&pages(4).on(A));
        bench.paged.get_mut().set_limit(u64::MAX);
        bench.free(b);
        bench.complete(point(1, completed));
        let request = pages(5).on(A);
        if completed < 6 {
            assert_eq!(bench.cause(&request), Cause::Pending);
            bench.complete(point(1, 6));
        }
        let (calls, block) = bench.calls_of(|bench| bench.alloc(&request));
        assert_eq!((calls.unmap, page_of(&block)), (4, 0));
    }
}

#[test]
fn a_cached_mapping_is_reused_for_its_own_stream_while_its_work_is_queued() {
    let mut bench = Bench::new(config(256, Backing::Billed));
    let [_ballast, three, _guard, two, _last] = bench.pieces([48, 3, 1, 2, 1]);
    for (block, event) in [(three, 1), (two, 2)] {
        let request = Request::new(block.bytes()).on(A).without_wait();
        bench.free(block);
        let again = bench.alloc(&request);
        bench.free_after(again, point(1, event));
    }
    bench.paged.get_mut().set_limit(55 * PAGE);
    let five = bench.alloc(&pages(5).on(A));
    assert_eq!((page_of(&five), bench.held()), (55, 55));
    bench.paged.get_mut().set_limit(u64::MAX);
    bench.free_after(five, point(1, 3));
    let (calls, three) = bench.calls_of(|bench| bench.alloc(&pages(3).on(A)));
    assert_eq!((calls.total(), page_of(&three)), (0, 48));
    bench.free_after(three, point(1, 4));
    // Another stream gets none of it, and nothing is unmapped for it.
    let (calls, _other) = bench.calls_of(|bench| bench.alloc(&pages(2).on(B)));
    assert_eq!((calls.create, calls.unmap), (2, 0));
}

#[test]
fn a_block_goes_to_the_end_while_queued_work_uses_a_page_of_the_best_place_through_an_old_mapping()
{
    for (completed, place, unmapped) in [(5, 10, 0), (6, 3, 2)] {
        let mut bench = pending(0);
        let _moved = bench.alloc(&pages(4).on(A));
        bench.paged.get_mut().set_limit(u64::MAX);
        bench.complete(point(1, completed));
        let (calls, block) = bench.calls_of(|bench| bench.alloc(&pages(2).on(A)));
        assert_eq!((page_of(&block), calls.unmap), (place, unmapped));
    }
}

#[test]
fn a_place_that_stays_busy_costs_one_new_place_and_no_more() {
    let mut bench = Bench::new(config(512, Backing::Billed));
    let [ten, _guard] = bench.blocks([10, 2]);
    bench.free_after(ten, point(0, 1));
    bench.paged.get_mut().set_limit(13 * PAGE);
    // Moved away, while queued work still uses its old place.
    let _eleven = bench.alloc(&pages(11));
    bench.paged.get_mut().set_limit(100 * PAGE);
    for event in 2..40 {
        let block = bench.alloc(&pages(10));
        bench.free_after(block, point(0, event));
        assert!(bench.held() <= 23, "{event}");
    }
}

#[test]
fn the_range_grows_behind_memory_that_another_stream_uses() {
    for backing in [
        Backing::Billed,
        Backing::Budget(64 * PAGE),
        Backing::InPlace,
    ] {
        let mut bench = Bench::new(config(64, backing));
        let block = bench.alloc(&pages(4));
        bench.free_after(block, point(0, 5));
        // Sixty pages of addresses are left, and no limit.
        let block = bench.alloc(&pages(8).on(StreamId::new(1)));
        assert_eq!((page_of(&block), bench.held()), (4, 12));
    }
}

#[test]
fn what_is_idle_does_not_depend_on_the_number_of_the_stream() {
    let idle = [0, 1].map(|stream| {
        let mut bench = Bench::new(config(64, Backing::Billed));
        let block = bench.alloc(&pages(4).on(StreamId::new(stream)));
        bench.free_after(block, point(stream, 5));
        bench.paged.page_stats().idle_bytes
    });
    assert_eq!(idle[0], idle[1]);
}

#[test]
fn what_queued_work_uses_does_not_make_room_for_its_own_stream_either() {
    let mut config = config(64, Backing::InPlace);
    config.limit_bytes = 5 * PAGE;
    let mut bench = Bench::new(config);
    let [a, _b, c] = bench.blocks([2, 1, 2]);
    bench.free_after(a, point(0, 5));
    bench.free(c);
    let picture = bench.picture();
    assert!(bench.try_alloc(&pages(3)).is_err());
    assert_eq!((bench.without_unmapped_end(), bench.held()), (picture, 5));
    bench.complete(point(0, 5));
    let _block = bench.alloc(&pages(3));
    assert_eq!(bench.paged.source().peak_bytes(), 5 * PAGE);
}

#[test]
fn at_the_limit_what_points_keep_apart_is_joined_above_a_hole_without_memory() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let stream = StreamId::new(1);
    let quarter = Request::new(PAGE / 4).on(stream).without_wait();
    let hole = bench.alloc(&pages(2).on(stream));
    let [_before, mine, nobodys] = [(); 3].map(|()| bench.alloc(&quarter));
    let _behind = bench.alloc(&quarter.on(StreamId::new(2)));
    bench.free(hole);
    assert_eq!(bench.release(2), 2);
    let held = bench.held();
    bench.paged.get_mut().set_limit(held * PAGE);
    bench.free_after(mine, point(1, 1));
    bench.free(nobodys);
    let half = Request::new(PAGE / 2).on(stream).without_wait();
    let block = bench.alloc(&half);
    assert_eq!(block.addr().get(), BASE + 2 * PAGE + PAGE / 4);
    bench.check();
}
