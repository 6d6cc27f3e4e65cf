//! The points of chunks after joins and splits.

use super::{BASE, GRANULE, free_granules, full, on, take};
use crate::common::{MIB, Pool, Source, point};
use larder_core::{Align, BestFit, Block, Growth, RegionConfig};

#[test]
fn neighbours_of_one_stream_merge_and_carry_the_later_event() {
    for (first, second) in [(5, 9), (9, 5), (7, 7)] {
        for order in [[0, 1], [1, 0]] {
            let (mut pool, mut blocks) = full(3);
            let events = [first, second];
            for i in order {
                pool.free_after(take(&mut blocks[i]), 1, events[i]);
            }
            let later = first.max(second);
            assert_eq!(free_granules(&pool), [(0, 2, true)]);
            pool.complete(1, later - 1);
            assert_eq!(free_granules(&pool), [(0, 2, true)]);
            let grant = pool.grant(&on(2 * GRANULE, 2));
            assert_eq!(grant.wait, Some(point(1, later)));
        }
    }
}

#[test]
fn a_block_freed_between_two_of_its_stream_leaves_one_with_the_latest_event() {
    for events in [[5, 6, 7], [7, 6, 5], [5, 7, 6], [6, 5, 7]] {
        let (mut pool, mut blocks) = full(4);
        for i in [0, 2, 1] {
            pool.free_after(take(&mut blocks[i]), 1, events[i]);
        }
        assert_eq!(free_granules(&pool), [(0, 3, true)]);
        assert_eq!(pool.grant(&on(3 * GRANULE, 2)).wait, Some(point(1, 7)));
    }
}

#[test]
fn in_a_program_with_one_stream_a_plain_free_beside_a_pending_one_merges_with_it() {
    let (mut pool, mut blocks) = full(3);
    pool.free_after(take(&mut blocks[0]), 0, 5);
    pool.free(take(&mut blocks[1]));
    assert_eq!(free_granules(&pool), [(0, 2, true)]);
    assert_eq!(pool.grant(&on(2 * GRANULE, 0)).wait, None);
}

#[test]
fn with_several_streams_a_plain_free_stays_apart_and_joins_for_a_request_that_needs_both() {
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
        assert_eq!(free_granules(&pool), [(0, 1, true), (1, 1, false)]);
        assert!(pool.try_grant(&on(2 * GRANULE, 2).without_wait()).is_err());
        assert_eq!(pool.grant(&on(2 * GRANULE, 2)).wait, Some(point(1, 5)));
    }
}

#[test]
fn neighbours_of_different_streams_stay_apart_until_one_stream_is_through() {
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
        let event = if other == 1 { 5 } else { 6 };
        assert_eq!(grant.wait, Some(point(other, event)));
    }
}

#[test]
fn neighbours_of_different_streams_serve_one_large_request_before_anything_grows() {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: MIB,
            ahead_divisor: None,
        },
        ..RegionConfig::default()
    };
    let mut pool = Pool::over(config, Source::contiguous(), 64);
    let mut blocks: Vec<Block> = (0..4).map(|_| pool.alloc(MIB / 4)).collect();
    assert_eq!(pool.source().take_log().len(), 1);
    for number in (0..4).rev() {
        pool.free_after(blocks.pop().expect("four"), number, 5);
    }
    assert_eq!(pool.free_chunks().len(), 4);
    for number in 0..4 {
        pool.complete(number, 5);
        assert_eq!(
            pool.free_chunks().len(),
            4,
            "points are cleared when it is needed"
        );
    }
    let grant = pool.grant(&on(MIB, 7).without_wait());
    assert_eq!((grant.block.bytes(), grant.wait), (MIB, None));
    assert_eq!(pool.source().take_log(), [], "nothing grew");
}

#[test]
fn a_plain_block_between_two_streams_stays_everybodys() {
    let (mut pool, mut blocks) = full(4);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    pool.free_after(take(&mut blocks[2]), 2, 5);
    pool.free(take(&mut blocks[1]));
    let free = free_granules(&pool);
    assert_eq!(free, [(0, 1, true), (1, 1, false), (2, 1, true)]);
    pool.complete(1, 5);
    pool.complete(2, 5);
    assert_eq!(pool.grant(&on(3 * GRANULE, 3)).wait, None);
}

/// Found by reading: the point of the middle chunk was completed and not cleared yet; losing it in
/// a merge made the result joinable with the chunk in front, which nobody tried (BFC2).
#[test]
fn a_merge_that_loses_a_completed_point_looks_at_the_next_neighbour_too() {
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
fn both_parts_of_a_split_chunk_keep_the_point() {
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(BASE, 16 * GRANULE)]);
    let block = pool.alloc(16 * GRANULE);
    pool.free_after(block, 1, 5);
    let front = pool.grant(&on(4 * GRANULE, 2));
    assert_eq!(
        (front.block.addr().get(), front.wait),
        (BASE, Some(point(1, 5)))
    );
    assert_eq!(free_granules(&pool), [(4, 12, true)]);
    let own = pool.grant(&on(4 * GRANULE, 1));
    assert_eq!(
        (own.block.addr().get(), own.wait),
        (BASE + 4 * GRANULE, None)
    );
    let rest = pool.grant(&on(8 * GRANULE, 3));
    assert_eq!(rest.wait, Some(point(1, 5)));
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
fn the_padding_in_front_of_an_aligned_block_keeps_the_point() {
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(BASE + GRANULE, 31 * GRANULE)]);
    let block = pool.alloc(31 * GRANULE);
    pool.free_after(block, 1, 5);
    let align = Align::new(8 * GRANULE).expect("a power of two");
    let grant = pool.grant(&on(8 * GRANULE, 2).aligned(align));
    assert_eq!(grant.block.addr().get(), BASE + 8 * GRANULE);
    assert_eq!(grant.wait, Some(point(1, 5)));
    assert_eq!(free_granules(&pool), [(1, 7, true), (16, 16, true)]);
    pool.complete(1, 5);
    assert_eq!(free_granules(&pool), [(1, 7, false), (16, 16, false)]);
}

/// One small block of another stream must not make all the free memory beside it wait.
#[test]
fn a_small_pending_block_does_not_take_the_settled_memory_beside_it() {
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(BASE, MIB)]);
    let block = pool.alloc(GRANULE);
    pool.free_after(block, 1, 5);
    assert_eq!(pool.shared.get_mut().report().pending_bytes, GRANULE);
    let grant = pool.grant(&on(MIB - GRANULE, 0).without_wait());
    assert_eq!((grant.block.bytes(), grant.wait), (MIB - GRANULE, None));
}

#[test]
fn pieces_of_two_streams_are_never_joined_for_one_request() {
    let (mut pool, mut blocks) = full(3);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    pool.free_after(take(&mut blocks[1]), 2, 5);
    pool.free(take(&mut blocks[2]));
    assert!(pool.try_grant(&on(3 * GRANULE, 3)).is_err());
    assert_eq!(pool.grant(&on(2 * GRANULE, 3)).wait, Some(point(2, 5)));
}
