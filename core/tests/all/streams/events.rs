//! Events: the effects of completing one, and the distance that one may have from the completed point.

use super::{BASE, GRANULE, free_granules, full, on, take};
use crate::common::point;
use larder_core::{BestFit, EventNumber, FreeError};

const WINDOW: u64 = EventNumber::WINDOW;

#[test]
fn completing_an_event_frees_what_was_with_point_up_to_it_and_nothing_later() {
    let (mut pool, mut blocks) = full(8);
    for (i, event) in [(0, 5), (2, 6), (4, 7)] {
        pool.free_after(take(&mut blocks[i]), 1, event);
    }
    assert_eq!(pool.shared.get_mut().report().pending_bytes, 3 * GRANULE);
    pool.complete(1, 6);
    assert_eq!(pool.shared.get_mut().report().pending_bytes, GRANULE);
    pool.complete(2, 100);
    pool.complete(1, 3);
    assert_eq!(
        pool.shared.get_mut().report().pending_bytes,
        GRANULE,
        "an older event changes nothing"
    );
    let mut given = [0, 1].map(|_| {
        let grant = pool.grant(&on(GRANULE, 9).without_wait());
        assert_eq!(grant.wait, None);
        grant.block.addr().get()
    });
    given.sort_unstable();
    assert_eq!(given, [BASE, BASE + 2 * GRANULE]);
    assert_eq!(pool.grant(&on(GRANULE, 9)).wait, Some(point(1, 7)));
}

#[test]
fn freeing_with_a_completed_event_is_a_plain_free() {
    for event in [0, 1, 99, 100] {
        let pictures = [false, true].map(|with_point| {
            let (mut pool, mut blocks) = full(4);
            pool.complete(1, 100);
            for i in [0, 1, 2] {
                let block = take(&mut blocks[i]);
                if with_point {
                    pool.free_after(block, 1, event);
                } else {
                    pool.free(block);
                }
            }
            assert_eq!(free_granules(&pool), [(0, 3, false)]);
            pool.picture()
        });
        assert_eq!(pictures[0], pictures[1]);
    }
    // So far behind that the low 32 bits alone would look as if it were ahead.
    for (completed, event) in [
        (1 << 31, 1),
        ((1 << 32) + 5, 6),
        (u64::MAX, 0),
        (u64::MAX, 1 << 31),
    ] {
        let (mut pool, mut blocks) = full(1);
        pool.complete(1, completed);
        pool.free_after(take(&mut blocks[0]), 1, event);
        assert_eq!(
            free_granules(&pool),
            [(0, 1, false)],
            "{event} before {completed}"
        );
    }
    let (mut pool, mut blocks) = full(1);
    pool.free_after(take(&mut blocks[0]), 0, 0);
    assert_eq!(
        free_granules(&pool),
        [(0, 1, false)],
        "event 0 is completed from the start"
    );
}

#[test]
fn an_event_may_lie_a_window_ahead_and_no_further() {
    for completed in [
        0,
        1,
        12_345,
        WINDOW,
        u64::from(u32::MAX),
        1 << 40,
        u64::MAX - WINDOW - 1,
    ] {
        let (mut pool, mut blocks) = full(8);
        pool.complete(1, completed);
        for (i, ahead) in [(0, WINDOW - 1), (2, WINDOW)] {
            pool.free_after(take(&mut blocks[i]), 1, completed + ahead);
        }
        let block = take(&mut blocks[4]);
        let addr = block.addr();
        let rejected = pool
            .unchanged(|pool| pool.try_free_after(block, 1, completed + WINDOW + 1))
            .expect_err("one too far");
        assert_eq!(
            (rejected.error, rejected.value.addr()),
            (FreeError::EventTooFar, addr)
        );
        pool.free_after(rejected.value, 2, 1);
        assert_eq!(pool.shared.get_mut().report().pending_bytes, 3 * GRANULE);
        // Each is cleared exactly by its event.
        pool.complete(1, completed + WINDOW - 2);
        assert_eq!(pool.shared.get_mut().report().pending_bytes, 3 * GRANULE);
        pool.complete(1, completed + WINDOW - 1);
        assert_eq!(pool.shared.get_mut().report().pending_bytes, 2 * GRANULE);
        let done = pool.grant(&on(GRANULE, 9).without_wait()).block;
        assert_eq!(done.addr().get(), BASE);
        let own = pool.grant(&on(GRANULE, 2).without_wait()).block;
        assert_eq!(own.addr(), addr);
        assert_eq!(
            pool.grant(&on(GRANULE, 2)).wait,
            Some(point(1, completed + WINDOW))
        );
    }
}

#[test]
fn the_window_moves_with_the_completed_event() {
    let (mut pool, mut blocks) = full(1);
    let block = take(&mut blocks[0]);
    let rejected = pool
        .try_free_after(block, 1, WINDOW + 1)
        .expect_err("too far");
    pool.complete(1, 1);
    pool.free_after(rejected.value, 1, WINDOW + 1);
    assert_eq!(pool.grant(&on(GRANULE, 2)).wait, Some(point(1, WINDOW + 1)));
}

#[test]
fn jumps_of_any_size_complete_what_lies_behind_them_for_good_and_nothing_of_other_streams() {
    for jump in [
        1,
        WINDOW - 1,
        WINDOW,
        WINDOW + 1,
        (1 << 31) - 1,
        1 << 31,
        (1 << 31) + 1,
        (1 << 32) - 1,
        1 << 32,
        (1 << 32) + 1,
        1 << 40,
        u64::MAX / 7,
        u64::MAX,
    ] {
        let (mut pool, mut blocks) = full(8);
        pool.free_after(take(&mut blocks[0]), 1, 1);
        pool.free_after(take(&mut blocks[2]), 2, 1);
        pool.free_after(take(&mut blocks[4]), 3, WINDOW);
        pool.complete(1, 1);
        let pending = [(0, 1, false), (2, 1, true), (4, 1, true)];
        assert_eq!(free_granules(&pool), pending);
        let mut event = 1u64;
        for _ in 0..6 {
            event = event.saturating_add(jump);
            pool.complete(1, event);
            assert_eq!(free_granules(&pool), pending, "stream 1 at {event}");
        }
        assert_eq!(pool.grant(&on(GRANULE, 9).without_wait()).wait, None);
        assert_eq!(pool.grant(&on(GRANULE, 9)).wait, Some(point(2, 1)));
        assert_eq!(pool.grant(&on(GRANULE, 9)).wait, Some(point(3, WINDOW)));
    }
}

#[test]
fn points_ahead_of_a_jump_stay_and_points_behind_it_go() {
    for from in [0, 1 << 31, 1 << 32, 1 << 40, u64::MAX - 2 * WINDOW] {
        for jump in [1, 1000, WINDOW / 2, WINDOW - 1, WINDOW] {
            let (mut pool, mut blocks) = full(8);
            pool.complete(1, from);
            let events = [from + 1, from + jump, from + WINDOW];
            for (i, event) in events.iter().enumerate() {
                pool.free_after(take(&mut blocks[2 * i]), 1, *event);
            }
            pool.complete(1, from + jump);
            let pending = events.map(|event| event > from + jump);
            let found: Vec<bool> = free_granules(&pool).iter().map(|chunk| chunk.2).collect();
            assert_eq!(found, pending, "from {from} by {jump}");
            pool.complete(1, from + WINDOW);
            assert_eq!(pool.shared.get_mut().report().pending_bytes, 0);
        }
    }
}

#[test]
fn at_the_last_event_of_all_everything_is_a_plain_free() {
    let (mut pool, mut blocks) = full(2);
    pool.free_after(take(&mut blocks[0]), 1, WINDOW);
    pool.complete(1, u64::MAX);
    pool.free_after(take(&mut blocks[1]), 1, u64::MAX);
    pool.complete(1, u64::MAX);
    assert_eq!(pool.shared.get_mut().report().pending_bytes, 0);
    assert_eq!(pool.grant(&on(2 * GRANULE, 2)).wait, None);
}
