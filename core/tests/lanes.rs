//! Stream order in the default configuration: who may have memory that queued work still uses,
//! what must be waited for, and how stamps merge, split, complete and are never lost.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::{KIB, MIB, Pool, Random, Source, range, stamp};
use larder_core::{
    Align, AllocError, BfcConfig, Block, Cause, ChunkState, Coalesce, Epoch, Fit, FreeError,
    Growth, Lane, Request, Split, Stamp,
};

const BASE: u64 = 0x10_0000;
const GRANULE: u64 = 256;
const WINDOW: u64 = Epoch::WINDOW;

fn lane(number: u8) -> Lane {
    Lane::new(number)
}

fn on(bytes: u64, number: u8) -> Request {
    Request::new(bytes).on(lane(number))
}

/// A region of so many granules, all of it in blocks of one.
fn full(granules: u64) -> (Pool, Vec<Option<Block>>) {
    full_of(BfcConfig::fixed(), granules)
}

fn full_of(config: BfcConfig, granules: u64) -> (Pool, Vec<Option<Block>>) {
    let mut pool = Pool::with_regions(config, &[(BASE, granules * GRANULE)]);
    let blocks: Vec<_> = (0..granules).map(|_| Some(pool.alloc(GRANULE))).collect();
    for (i, block) in blocks.iter().enumerate() {
        let addr = block.as_ref().map(|block| block.addr().get());
        assert_eq!(addr, Some(BASE + i as u64 * GRANULE));
    }
    (pool, blocks)
}

fn take(block: &mut Option<Block>) -> Block {
    block.take().expect("freed once")
}

/// `(first granule, granules, pending)` of the free chunks.
fn free_granules(pool: &Pool) -> Vec<(u64, u64, bool)> {
    let chunks = pool.chunks();
    let free = chunks.iter().filter_map(|chunk| match chunk.state {
        ChunkState::Free { pending } => {
            let first = (chunk.range.start().get() - BASE) / GRANULE;
            Some((first, chunk.range.bytes() / GRANULE, pending))
        }
        _ => None,
    });
    free.collect()
}

/// The cause of an out-of-memory error.
#[track_caller]
fn cause(pool: &mut Pool, request: &Request) -> Cause {
    match pool.unchanged(|pool| pool.try_grant(request)) {
        Err(AllocError::OutOfMemory(out)) => out.cause,
        other => panic!("{other:?}"),
    }
}

// Who gets it -----------------------------------------------------------------------------------

#[test]
fn the_same_lane_gets_its_memory_back_at_once_and_without_a_wait() {
    for number in [0, 1, 255] {
        let (mut pool, mut blocks) = full(1);
        pool.free_after(take(&mut blocks[0]), number, 7);
        for request in [on(GRANULE, number), on(GRANULE, number).without_wait()] {
            let grant = pool.grant(&request);
            assert_eq!((grant.block.addr().get(), grant.wait), (BASE, None));
            pool.free_after(grant.block, number, 8);
        }
    }
}

#[test]
fn another_lane_gets_it_with_the_stamp_as_wait() {
    for (freed_on, wanted_on) in [(0, 1), (1, 0), (3, 255), (255, 3)] {
        let (mut pool, mut blocks) = full(1);
        pool.free_after(take(&mut blocks[0]), freed_on, 7);
        let grant = pool.grant(&on(GRANULE, wanted_on));
        assert_eq!(grant.wait, Some(stamp(freed_on, 7)));
    }
}

#[test]
fn without_wait_skips_what_another_lane_uses_and_says_that_it_is_pending() {
    let (mut pool, mut blocks) = full(2);
    pool.free_after(take(&mut blocks[0]), 1, 7);
    assert_eq!(
        cause(&mut pool, &on(GRANULE, 2).without_wait()),
        Cause::Pending
    );
    pool.complete(1, 6);
    assert_eq!(
        cause(&mut pool, &on(GRANULE, 2).without_wait()),
        Cause::Pending
    );
    pool.complete(1, 7);
    let grant = pool.grant(&on(GRANULE, 2).without_wait());
    assert_eq!((grant.block.addr().get(), grant.wait), (BASE, None));
}

#[test]
fn among_chunks_of_one_size_those_without_a_wait_go_first() {
    let (mut pool, mut blocks) = full(8);
    pool.free_after(take(&mut blocks[0]), 1, 3);
    pool.free_after(take(&mut blocks[2]), 2, 3);
    pool.free_after(take(&mut blocks[4]), 3, 3);
    let grant = pool.grant(&on(GRANULE, 2));
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE + 2 * GRANULE, None)
    );
    pool.free(take(&mut blocks[6]));
    let grant = pool.grant(&on(GRANULE, 2));
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE + 6 * GRANULE, None)
    );
    let grant = pool.grant(&on(GRANULE, 2));
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE, Some(stamp(1, 3)))
    );
}

/// Where sizes are not exact a class is searched for its best chunk: no wait, then the smallest,
/// then the lowest.
#[test]
fn a_larger_chunk_without_a_wait_goes_before_a_smaller_one_of_its_class_with_one() {
    for fit in [Fit::Exact, Fit::Near { scan: 4 }] {
        for waiting_first in [true, false] {
            let config = BfcConfig {
                fit,
                ..BfcConfig::fixed()
            };
            let mut pool = Pool::with_regions(config, &[(BASE, 1000 * GRANULE)]);
            // Sizes from 128 to 131 granules are of one class.
            let [a, _b, c, _d] = [129, 1, 130, 1].map(|n| pool.alloc(n * GRANULE));
            let (waits, serves) = if waiting_first { (a, c) } else { (c, a) };
            let expected = serves.addr();
            pool.free_after(waits, 1, 5);
            pool.free(serves);
            let grant = pool.grant(&on(128 * GRANULE, 2));
            assert_eq!((grant.block.addr(), grant.wait), (expected, None));
        }
    }
}

#[test]
fn a_demanded_epoch_binds_its_own_lane_and_not_the_others() {
    let (mut pool, mut blocks) = full(4);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    let request = on(GRANULE, 1).freed_by(Epoch::new(4));
    assert_eq!(cause(&mut pool, &request), Cause::Pending);
    pool.free_after(take(&mut blocks[2]), 2, 5);
    let grant = pool.grant(&request);
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE + 2 * GRANULE, Some(stamp(2, 5)))
    );
    let grant = pool.grant(&on(GRANULE, 1).freed_by(Epoch::new(5)));
    assert_eq!((grant.block.addr().get(), grant.wait), (BASE, None));
}

// Completing ------------------------------------------------------------------------------------

#[test]
fn completing_an_epoch_frees_what_was_stamped_up_to_it_and_nothing_later() {
    let (mut pool, mut blocks) = full(8);
    for (i, epoch) in [(0, 5), (2, 6), (4, 7)] {
        pool.free_after(take(&mut blocks[i]), 1, epoch);
    }
    assert_eq!(pool.bfc.report().pending_bytes, 3 * GRANULE);
    pool.complete(1, 6);
    assert_eq!(pool.bfc.report().pending_bytes, GRANULE);
    pool.complete(2, 100);
    pool.complete(1, 3);
    assert_eq!(
        pool.bfc.report().pending_bytes,
        GRANULE,
        "an older epoch changes nothing"
    );
    let mut given = [0, 1].map(|_| {
        let grant = pool.grant(&on(GRANULE, 9).without_wait());
        assert_eq!(grant.wait, None);
        grant.block.addr().get()
    });
    given.sort_unstable();
    assert_eq!(given, [BASE, BASE + 2 * GRANULE]);
    assert_eq!(pool.grant(&on(GRANULE, 9)).wait, Some(stamp(1, 7)));
}

#[test]
fn freeing_with_a_completed_epoch_is_a_plain_free() {
    for epoch in [0, 1, 99, 100] {
        let pictures = [false, true].map(|stamped| {
            let (mut pool, mut blocks) = full(4);
            pool.complete(1, 100);
            for i in [0, 1, 2] {
                let block = take(&mut blocks[i]);
                if stamped {
                    pool.free_after(block, 1, epoch);
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
    for (frontier, epoch) in [
        (1 << 31, 1),
        ((1 << 32) + 5, 6),
        (u64::MAX, 0),
        (u64::MAX, 1 << 31),
    ] {
        let (mut pool, mut blocks) = full(1);
        pool.complete(1, frontier);
        pool.free_after(take(&mut blocks[0]), 1, epoch);
        assert_eq!(
            free_granules(&pool),
            [(0, 1, false)],
            "{epoch} before {frontier}"
        );
    }
    let (mut pool, mut blocks) = full(1);
    pool.free_after(take(&mut blocks[0]), 0, 0);
    assert_eq!(
        free_granules(&pool),
        [(0, 1, false)],
        "epoch 0 is completed from the start"
    );
}

// Merging ---------------------------------------------------------------------------------------

#[test]
fn neighbours_of_one_lane_merge_and_carry_the_later_epoch() {
    for (first, second) in [(5, 9), (9, 5), (7, 7)] {
        for order in [[0, 1], [1, 0]] {
            let (mut pool, mut blocks) = full(3);
            let epochs = [first, second];
            for i in order {
                pool.free_after(take(&mut blocks[i]), 1, epochs[i]);
            }
            let later = first.max(second);
            assert_eq!(free_granules(&pool), [(0, 2, true)]);
            pool.complete(1, later - 1);
            assert_eq!(free_granules(&pool), [(0, 2, true)]);
            let grant = pool.grant(&on(2 * GRANULE, 2));
            assert_eq!(grant.wait, Some(stamp(1, later)));
        }
    }
}

#[test]
fn a_block_freed_between_two_of_its_lane_leaves_one_with_the_latest_epoch() {
    for epochs in [[5, 6, 7], [7, 6, 5], [5, 7, 6], [6, 5, 7]] {
        let (mut pool, mut blocks) = full(4);
        for i in [0, 2, 1] {
            pool.free_after(take(&mut blocks[i]), 1, epochs[i]);
        }
        assert_eq!(free_granules(&pool), [(0, 3, true)]);
        assert_eq!(pool.grant(&on(3 * GRANULE, 2)).wait, Some(stamp(1, 7)));
    }
}

#[test]
fn a_plain_free_beside_a_pending_one_merges_and_is_pending_with_it() {
    for order in [[0, 1], [1, 0]] {
        let (mut pool, mut blocks) = full(3);
        for i in order {
            let block = take(&mut blocks[i]);
            if i == 0 {
                pool.free_after(block, 1, 5);
            } else {
                pool.free(block);
            }
        }
        assert_eq!(free_granules(&pool), [(0, 2, true)]);
        assert_eq!(pool.grant(&on(2 * GRANULE, 2)).wait, Some(stamp(1, 5)));
    }
}

#[test]
fn neighbours_of_different_lanes_stay_apart_until_one_lane_is_through() {
    for first_done in [1, 2] {
        let (mut pool, mut blocks) = full(3);
        pool.free_after(take(&mut blocks[0]), 1, 5);
        pool.free_after(take(&mut blocks[1]), 2, 6);
        assert_eq!(free_granules(&pool), [(0, 1, true), (1, 1, true)]);
        let asked = pool.try_grant(&on(2 * GRANULE, 1));
        assert!(asked.is_err(), "no chunk is large enough: {asked:?}");
        pool.complete(first_done, 9);
        let other = 3 - first_done;
        let grant = pool.grant(&on(2 * GRANULE, first_done));
        let epoch = if other == 1 { 5 } else { 6 };
        assert_eq!(grant.wait, Some(stamp(other, epoch)));
    }
}

#[test]
fn neighbours_of_different_lanes_serve_one_large_request_before_anything_grows() {
    let config = BfcConfig {
        growth: Growth::Range {
            unit_bytes: MIB,
            ahead_divisor: None,
        },
        ..BfcConfig::default()
    };
    let mut pool = Pool::over(config, Source::contiguous(), 64);
    let mut blocks: Vec<Block> = (0..4).map(|_| pool.alloc(MIB / 4)).collect();
    assert_eq!(pool.source.take_log().len(), 1);
    for number in (0..4).rev() {
        pool.free_after(blocks.pop().expect("four"), number, 5);
    }
    assert_eq!(pool.free_chunks().len(), 4);
    for number in 0..4 {
        pool.complete(number, 5);
        assert_eq!(
            pool.free_chunks().len(),
            4,
            "stamps are cleared when it is needed"
        );
    }
    let grant = pool.grant(&on(MIB, 7).without_wait());
    assert_eq!((grant.block.bytes(), grant.wait), (MIB, None));
    assert_eq!(pool.source.take_log(), [], "nothing grew");
}

#[test]
fn a_plain_block_between_two_lanes_goes_to_one_of_them_and_the_other_stays_apart() {
    let (mut pool, mut blocks) = full(4);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    pool.free_after(take(&mut blocks[2]), 2, 5);
    pool.free(take(&mut blocks[1]));
    let free = free_granules(&pool);
    assert!(free == [(0, 2, true), (2, 1, true)] || free == [(0, 1, true), (1, 2, true)]);
    pool.complete(1, 5);
    pool.complete(2, 5);
    assert_eq!(pool.grant(&on(3 * GRANULE, 3)).wait, None);
}

/// Found by reading: the stamp of the middle chunk was completed and not cleared yet; losing it in
/// a merge made the result joinable with the chunk in front, which nobody tried (B2).
#[test]
fn a_merge_that_loses_a_completed_stamp_looks_at_the_next_neighbour_too() {
    for freed in [None, Some(1)] {
        for mirrored in [false, true] {
            let (mut pool, mut blocks) = full(5);
            let place = |i: usize| if mirrored { 4 - i } else { i };
            pool.free_after(take(&mut blocks[place(1)]), 1, 5);
            pool.free_after(take(&mut blocks[place(2)]), 2, 5);
            pool.complete(2, 5);
            let block = take(&mut blocks[place(3)]);
            match freed {
                None => pool.free(block),
                Some(number) => pool.free_after(block, number, 6),
            }
            assert_eq!(pool.grant(&on(3 * GRANULE, 1)).wait, None);
        }
    }
}

#[test]
fn under_tensorflows_rule_even_one_lanes_neighbours_wait_for_their_epoch() {
    let config = BfcConfig {
        coalesce: Coalesce::Settled,
        ..BfcConfig::fixed()
    };
    let (mut pool, mut blocks) = full_of(config, 4);
    for i in [0, 1] {
        pool.free_after(take(&mut blocks[i]), 1, 5);
    }
    pool.free(take(&mut blocks[2]));
    assert_eq!(
        free_granules(&pool),
        [(0, 1, true), (1, 1, true), (2, 1, false)]
    );
    pool.complete(1, 5);
    assert_eq!(pool.grant(&on(3 * GRANULE, 2)).wait, None);
}

#[test]
fn tensorflows_forced_merge_keeps_two_lanes_apart_until_one_is_through() {
    let (mut pool, mut blocks) = full_of(BfcConfig::tensorflow(4 * GRANULE), 4);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    pool.free_after(take(&mut blocks[1]), 1, 6);
    pool.free_after(take(&mut blocks[2]), 2, 7);
    assert!(pool.try_grant(&on(3 * GRANULE, 1)).is_err());
    assert_eq!(free_granules(&pool), [(0, 2, true), (2, 1, true)]);
    pool.complete(2, 7);
    let grant = pool.grant(&on(3 * GRANULE, 2));
    assert_eq!(grant.wait, Some(stamp(1, 6)));
}

// Splitting -------------------------------------------------------------------------------------

#[test]
fn both_parts_of_a_split_chunk_keep_the_stamp() {
    let mut pool = Pool::with_regions(BfcConfig::fixed(), &[(BASE, 16 * GRANULE)]);
    let block = pool.alloc(16 * GRANULE);
    pool.free_after(block, 1, 5);
    let front = pool.grant(&on(4 * GRANULE, 2));
    assert_eq!(
        (front.block.addr().get(), front.wait),
        (BASE, Some(stamp(1, 5)))
    );
    assert_eq!(free_granules(&pool), [(4, 12, true)]);
    let own = pool.grant(&on(4 * GRANULE, 1));
    assert_eq!(
        (own.block.addr().get(), own.wait),
        (BASE + 4 * GRANULE, None)
    );
    let rest = pool.grant(&on(8 * GRANULE, 3));
    assert_eq!(rest.wait, Some(stamp(1, 5)));
    for grant in [front, own, rest] {
        pool.free(grant.block);
    }
    assert_eq!(
        free_granules(&pool),
        [(0, 16, false)],
        "who frees vouches for it"
    );
}

#[test]
fn the_padding_in_front_of_an_aligned_block_keeps_the_stamp() {
    for split in [Split::Always, BfcConfig::tensorflow(0).split] {
        let config = BfcConfig {
            split,
            ..BfcConfig::fixed()
        };
        let mut pool = Pool::with_regions(config, &[(BASE + GRANULE, 31 * GRANULE)]);
        let block = pool.alloc(31 * GRANULE);
        pool.free_after(block, 1, 5);
        let align = Align::new(8 * GRANULE).expect("a power of two");
        let grant = pool.grant(&on(8 * GRANULE, 2).aligned(align));
        assert_eq!(grant.block.addr().get(), BASE + 8 * GRANULE);
        assert_eq!(grant.wait, Some(stamp(1, 5)));
        assert_eq!(free_granules(&pool), [(1, 7, true), (16, 16, true)]);
        pool.complete(1, 5);
        assert_eq!(free_granules(&pool), [(1, 7, false), (16, 16, false)]);
    }
}

// Growing and shrinking -------------------------------------------------------------------------

fn ranged(limit: u64) -> Pool {
    let config = BfcConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..BfcConfig::new(limit)
    };
    Pool::over(config, Source::contiguous(), 64)
}

/// New memory behind a pending end must serve the request it was asked for: joined with that end
/// it would carry its stamp, and the request would grow again and again.
#[test]
fn a_request_that_may_not_wait_is_served_by_new_memory_behind_a_pending_end() {
    for request in [
        on(64 * KIB, 2).without_wait(),
        on(64 * KIB, 1).freed_by(Epoch::new(4)),
    ] {
        let mut pool = ranged(MIB);
        let block = pool.alloc(64 * KIB);
        pool.free_after(block, 1, 5);
        pool.source.take_log();
        let result = pool.try_grant(&request);
        let calls = pool.source.take_log().len();
        assert!(calls <= 1, "{calls} calls for one block");
        assert_eq!(result.map(|grant| grant.wait), Ok(None));
        assert_eq!(pool.reserved_bytes(), 128 * KIB);
    }
}

#[test]
fn a_request_that_may_wait_grows_by_what_is_missing_behind_a_pending_end() {
    let mut pool = ranged(MIB);
    let block = pool.alloc(64 * KIB);
    pool.free_after(block, 1, 5);
    let grant = pool.grant(&on(128 * KIB, 2));
    assert_eq!(grant.wait, Some(stamp(1, 5)));
    assert_eq!(pool.reserved_bytes(), 128 * KIB);
}

#[test]
fn what_queued_work_uses_is_neither_trimmed_nor_released_until_it_is_through() {
    let mut pool = ranged(MIB);
    let anchor = pool.alloc(64 * KIB);
    let block = pool.alloc(256 * KIB);
    pool.free_after(block, 1, 5);
    assert_eq!(pool.trim(), 0);
    assert_eq!(pool.adjust(0).excess_bytes, 320 * KIB);
    pool.complete(1, 5);
    assert_eq!(pool.adjust(0).excess_bytes, 64 * KIB);
    pool.free_after(anchor, 2, 1);
    assert_eq!(pool.adjust(0).excess_bytes, 64 * KIB);
    pool.complete(2, 1);
    assert_eq!(pool.adjust(0).excess_bytes, 0);
}

/// `PoolStats::stable_bytes`: "the floor a lowered limit can reach at once".
#[test]
fn stable_bytes_count_regions_that_queued_work_uses() {
    let mut pool = Pool::with_regions(BfcConfig::fixed(), &[(BASE, 4 * GRANULE)]);
    let block = pool.alloc(GRANULE);
    pool.free_after(block, 1, 5);
    let stable = pool.bfc.pool_stats().stable_bytes;
    pool.check();
    let change = pool.adjust(0);
    assert_eq!(change.excess_bytes, stable);
}

/// Waiting for the lanes would help, so that is the cause to name.
#[test]
fn a_request_that_merging_after_completion_would_serve_fails_as_pending() {
    let (mut pool, mut blocks) = full(3);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    pool.free_after(take(&mut blocks[1]), 2, 5);
    assert_eq!(cause(&mut pool, &on(2 * GRANULE, 3)), Cause::Pending);
}

// The window ------------------------------------------------------------------------------------

#[test]
fn an_epoch_may_lie_a_window_ahead_and_no_further() {
    for frontier in [
        0,
        1,
        12_345,
        WINDOW,
        u64::from(u32::MAX),
        1 << 40,
        u64::MAX - WINDOW - 1,
    ] {
        let (mut pool, mut blocks) = full(8);
        pool.complete(1, frontier);
        for (i, ahead) in [(0, WINDOW - 1), (2, WINDOW)] {
            pool.free_after(take(&mut blocks[i]), 1, frontier + ahead);
        }
        let block = take(&mut blocks[4]);
        let addr = block.addr();
        let rejected = pool
            .unchanged(|pool| pool.try_free_after(block, 1, frontier + WINDOW + 1))
            .expect_err("one too far");
        assert_eq!(
            (rejected.error, rejected.block.addr()),
            (FreeError::EpochTooFar, addr)
        );
        pool.free_after(rejected.block, 2, 1);
        assert_eq!(pool.bfc.report().pending_bytes, 3 * GRANULE);
        // Each is cleared exactly by its epoch.
        pool.complete(1, frontier + WINDOW - 2);
        assert_eq!(pool.bfc.report().pending_bytes, 3 * GRANULE);
        pool.complete(1, frontier + WINDOW - 1);
        assert_eq!(pool.bfc.report().pending_bytes, 2 * GRANULE);
        let done = pool.grant(&on(GRANULE, 9).without_wait()).block;
        assert_eq!(done.addr().get(), BASE);
        let own = pool.grant(&on(GRANULE, 2).without_wait()).block;
        assert_eq!(own.addr(), addr);
        assert_eq!(
            pool.grant(&on(GRANULE, 2)).wait,
            Some(stamp(1, frontier + WINDOW))
        );
    }
}

#[test]
fn the_window_moves_with_the_completed_epoch() {
    let (mut pool, mut blocks) = full(1);
    let block = take(&mut blocks[0]);
    let rejected = pool
        .try_free_after(block, 1, WINDOW + 1)
        .expect_err("too far");
    pool.complete(1, 1);
    pool.free_after(rejected.block, 1, WINDOW + 1);
    assert_eq!(pool.grant(&on(GRANULE, 2)).wait, Some(stamp(1, WINDOW + 1)));
}

#[test]
fn jumps_of_any_size_complete_what_lies_behind_them_for_good_and_nothing_of_other_lanes() {
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
        let mut epoch = 1u64;
        for _ in 0..6 {
            epoch = epoch.saturating_add(jump);
            pool.complete(1, epoch);
            assert_eq!(free_granules(&pool), pending, "lane 1 at {epoch}");
        }
        assert_eq!(pool.grant(&on(GRANULE, 9).without_wait()).wait, None);
        assert_eq!(pool.grant(&on(GRANULE, 9)).wait, Some(stamp(2, 1)));
        assert_eq!(pool.grant(&on(GRANULE, 9)).wait, Some(stamp(3, WINDOW)));
    }
}

#[test]
fn stamps_ahead_of_a_jump_stay_and_stamps_behind_it_go() {
    for from in [0, 1 << 31, 1 << 32, 1 << 40, u64::MAX - 2 * WINDOW] {
        for jump in [1, 1000, WINDOW / 2, WINDOW - 1, WINDOW] {
            let (mut pool, mut blocks) = full(8);
            pool.complete(1, from);
            let epochs = [from + 1, from + jump, from + WINDOW];
            for (i, epoch) in epochs.iter().enumerate() {
                pool.free_after(take(&mut blocks[2 * i]), 1, *epoch);
            }
            pool.complete(1, from + jump);
            let pending = epochs.map(|epoch| epoch > from + jump);
            let found: Vec<bool> = free_granules(&pool).iter().map(|chunk| chunk.2).collect();
            assert_eq!(found, pending, "from {from} by {jump}");
            pool.complete(1, from + WINDOW);
            assert_eq!(pool.bfc.report().pending_bytes, 0);
        }
    }
}

#[test]
fn at_the_last_epoch_of_all_everything_is_a_plain_free() {
    let (mut pool, mut blocks) = full(2);
    pool.free_after(take(&mut blocks[0]), 1, WINDOW);
    pool.complete(1, u64::MAX);
    pool.free_after(take(&mut blocks[1]), 1, u64::MAX);
    pool.complete(1, u64::MAX);
    assert_eq!(pool.bfc.report().pending_bytes, 0);
    assert_eq!(pool.grant(&on(2 * GRANULE, 2)).wait, None);
}

// Random sequences ------------------------------------------------------------------------------

/// Slots that never merge; each predicted exactly.
#[test]
fn random_jumps_never_resurrect_or_lose_a_stamp() {
    const SLOTS: usize = 12;
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (mut pool, mut blocks) = full(2 * SLOTS as u64);
        let mut stamps: BTreeMap<u64, Stamp> = BTreeMap::new();
        let mut frontier = [0u64; 3];
        for _ in 0..150 {
            let number = random.below(3) as u8;
            let at = &mut frontier[usize::from(number)];
            match random.below(4) {
                0 => {
                    let log2 = random.below(42);
                    let jump = (1 << log2) + random.below(3) - 1;
                    let epoch = at.saturating_add(jump);
                    *at = (*at).max(epoch);
                    pool.complete(number, epoch);
                }
                1 => {
                    let i = 2 * random.below(SLOTS as u64) as usize;
                    let log2 = random.below(30);
                    let epoch = at.saturating_add(1 + random.below(1 << log2) + (1 << log2));
                    if let Some(block) = blocks[i].take() {
                        stamps.insert(block.addr().get(), stamp(number, epoch));
                        pool.free_after(block, number, epoch);
                    }
                }
                _ => {
                    if let Ok(grant) = pool.try_grant(&on(GRANULE, number)) {
                        let addr = grant.block.addr().get();
                        let freed = stamps.remove(&addr).expect("free by our books");
                        let done =
                            freed.epoch.number() <= frontier[usize::from(freed.lane.number())];
                        let waits = !done && freed.lane != lane(number);
                        assert_eq!(grant.wait, waits.then_some(freed));
                        blocks[((addr - BASE) / GRANULE) as usize] = Some(grant.block);
                    } else {
                        assert!(stamps.is_empty());
                    }
                }
            }
            let expected: Vec<(u64, u64, bool)> = stamps
                .iter()
                .map(|(addr, stamp)| {
                    let done = frontier[usize::from(stamp.lane.number())];
                    ((addr - BASE) / GRANULE, 1, stamp.epoch.number() > done)
                })
                .collect();
            assert_eq!(free_granules(&pool), expected);
        }
    }
}

/// What each granule was last used for, and whether a grant respects it.
struct Uses {
    last: BTreeMap<u64, Stamp>,
    done: [u64; 4],
    newest: [u64; 4],
}

impl Uses {
    fn granules(block: &Block) -> impl Iterator<Item = u64> + use<> {
        let start = block.addr().get() / GRANULE;
        start..start + block.bytes() / GRANULE
    }

    #[track_caller]
    fn check(&self, block: &Block, request: &Request, wait: Option<Stamp>) {
        assert!(wait.is_none() || request.may_wait);
        for granule in Self::granules(block) {
            let Some(last) = self.last.get(&granule) else {
                continue;
            };
            let number = usize::from(last.lane.number());
            let done = last.epoch.number() <= self.done[number];
            let own = last.lane == request.lane
                && request.freed_by.is_none_or(|epoch| last.epoch <= epoch);
            let waited = wait.is_some_and(|w| w.lane == last.lane && w.epoch >= last.epoch);
            assert!(
                done || own || waited,
                "{last:?} for {request:?}, wait {wait:?}"
            );
        }
    }
}

fn random_request(random: &mut Random, uses: &Uses) -> Request {
    let number = random.below(4) as u8;
    let log2 = random.below(8);
    let mut request = on(1 + random.below(GRANULE << log2), number);
    if random.below(4) == 0 {
        request = request.aligned(Align::new(1 << (8 + random.below(5))).expect("a power"));
    }
    if random.below(3) == 0 {
        request = request.without_wait();
    }
    if random.below(6) == 0 {
        let newest = uses.newest[usize::from(number)];
        request = request.freed_by(Epoch::new(newest.saturating_sub(random.below(6))));
    }
    request
}

fn configs() -> [BfcConfig; 4] {
    let ours = BfcConfig {
        growth: Growth::Range {
            unit_bytes: 16 * KIB,
            ahead_divisor: None,
        },
        ..BfcConfig::new(256 * KIB)
    };
    [
        ours,
        BfcConfig {
            coalesce: Coalesce::Settled,
            ..ours
        },
        BfcConfig {
            growth: Growth::Doubling {
                first_bytes: 16 * KIB,
            },
            ..ours
        },
        BfcConfig::tensorflow(256 * KIB),
    ]
}

#[test]
fn random_work_on_four_lanes_never_gets_memory_that_is_still_used() {
    for (which, config) in configs().into_iter().enumerate() {
        for seed in 0..30 {
            println!("configuration {which}, seed {seed}");
            let mut random = Random::new(seed);
            let mut pool = Pool::over(config, Source::contiguous(), 512);
            let mut live: Vec<(Block, u8)> = Vec::new();
            let mut uses = Uses {
                last: BTreeMap::new(),
                done: [0; 4],
                newest: [0; 4],
            };
            for _ in 0..200 {
                random_step(&mut random, &mut pool, &mut live, &mut uses);
                common::assert_disjoint(live.iter().map(|(block, _)| block));
            }
            for (block, number) in live {
                pool.free_after(block, number, uses.newest[usize::from(number)]);
            }
            for number in 0..4u8 {
                pool.complete(number, uses.newest[usize::from(number)]);
            }
            pool.trim();
            let report = pool.bfc.report();
            assert_eq!((report.pending_bytes, report.reserved_bytes), (0, 0));
            assert_eq!(pool.source.out_bytes(), 0);
        }
    }
}

fn random_step(random: &mut Random, pool: &mut Pool, live: &mut Vec<(Block, u8)>, uses: &mut Uses) {
    match random.below(20) {
        0..9 => {
            let request = random_request(random, uses);
            if let Ok(grant) = pool.try_grant(&request) {
                uses.check(&grant.block, &request, grant.wait);
                live.push((grant.block, request.lane.number()));
            }
        }
        9..16 if !live.is_empty() => {
            let i = random.below(live.len() as u64) as usize;
            let (block, number) = live.swap_remove(i);
            if random.below(4) == 0 {
                for granule in Uses::granules(&block) {
                    uses.last.remove(&granule);
                }
                pool.free(block);
            } else {
                let newest = &mut uses.newest[usize::from(number)];
                *newest += random.below(3);
                for granule in Uses::granules(&block) {
                    uses.last.insert(granule, stamp(number, *newest));
                }
                pool.free_after(block, number, *newest);
            }
        }
        16..19 => {
            let number = random.below(4) as usize;
            let behind = random.below(4);
            let epoch = uses.newest[number].saturating_sub(behind);
            uses.done[number] = uses.done[number].max(epoch);
            pool.complete(number as u8, epoch);
        }
        _ => {
            pool.trim();
        }
    }
}

#[test]
fn a_block_at_a_wanted_place_is_never_one_that_queued_work_uses() {
    let (mut pool, mut blocks) = full(3);
    pool.free_after(take(&mut blocks[1]), 1, 5);
    let place = range(BASE + GRANULE, GRANULE);
    let refused = pool.unchanged(|pool| pool.bfc.alloc_at(place));
    assert_eq!(refused, Err(AllocError::PlaceTaken));
    pool.complete(1, 5);
    assert!(pool.bfc.alloc_at(place).is_ok());
    pool.check();
}
