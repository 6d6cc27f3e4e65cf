//! Memory that streams still use, behind a block and in a cut-off end.

use super::{BASE, GRANULE, blocks, refused};
use crate::common::{Pool, Source, point};
use larder_core::{
    Block, ChunkState, EventNumber, RegionConfig, Request, Resize, ResizeError, StreamId,
};

fn to(granules: u64, stream: u8) -> Resize {
    Resize::to(granules * GRANULE).on(StreamId::new(stream))
}

/// `(first granule, granules, pending)` of the free chunks.
fn free_granules(pool: &Pool) -> Vec<(u64, u64, bool)> {
    let chunks = pool.chunks().into_iter();
    chunks
        .filter_map(|chunk| match chunk.state {
            ChunkState::Free { pending } => {
                let first = (chunk.range.start().get() - BASE) / GRANULE;
                Some((first, chunk.range.bytes() / GRANULE, pending))
            }
            _ => None,
        })
        .collect()
}

#[track_caller]
fn grown(pool: &mut Pool, block: Block, granules: u64, stream: u8) -> Block {
    let block = pool.resize(block, to(granules, stream)).expect("room");
    assert_eq!(block.bytes(), granules * GRANULE);
    block
}

#[test]
fn what_another_stream_still_uses_is_not_taken_before_that_is_completed() {
    let (mut pool, [block, hole, _behind]) = blocks(RegionConfig::fixed(), 8, [2, 4, 2]);
    pool.free_after(hole, 1, 5);
    let (block, error) = refused(&mut pool, block, to(3, 0));
    assert_eq!(error, ResizeError::NoRoom);
    pool.complete(1, 4);
    let (block, _) = refused(&mut pool, block, to(3, 2));
    // Its own stream runs in order.
    let block = grown(&mut pool, block, 3, 1);
    assert_eq!(free_granules(&pool), [(3, 3, true)]);
    pool.complete(1, 5);
    let block = grown(&mut pool, block, 6, 2);
    assert_eq!(free_granules(&pool), []);
    pool.free(block);
}

#[test]
fn a_block_grows_over_several_chunks_that_points_keep_apart() {
    let (mut pool, [block, a, b, c, last]) = blocks(RegionConfig::fixed(), 16, [2, 2, 3, 4, 1]);
    // The wilderness is named by nobody, b by the stream 1, a and c by none; with two streams known, they
    // stay apart.
    drop(pool.grant(&Request::new(4 * GRANULE).on(StreamId::new(2))));
    pool.free_after(b, 1, 5);
    pool.free(a);
    pool.free(c);
    let apart = [(2, 2, false), (4, 3, true), (7, 4, false)];
    assert_eq!(free_granules(&pool), apart);
    let (block, _) = refused(&mut pool, block, to(5, 0));
    let (block, _) = refused(&mut pool, block, to(12, 1));
    let block = grown(&mut pool, block, 5, 1);
    assert_eq!(free_granules(&pool), [(5, 2, true), (7, 4, false)]);
    let block = grown(&mut pool, block, 8, 1);
    assert_eq!(free_granules(&pool), [(8, 3, false)]);
    let block = grown(&mut pool, block, 11, 0);
    pool.free_all([block, last]);
    assert_eq!(free_granules(&pool), [(0, 12, false)]);
}

#[test]
fn the_end_that_is_cut_off_waits_for_the_stream_that_uses_it() {
    let (mut pool, [block, _behind]) = blocks(RegionConfig::fixed(), 8, [6, 2]);
    let until = |granules, event| to(granules, 1).used_until(EventNumber::new(event));
    let (block, error) = refused(&mut pool, block, until(2, EventNumber::WINDOW + 1));
    assert_eq!(error, ResizeError::EventTooFar);
    let block = pool.resize(block, until(4, 7)).expect("smaller");
    assert_eq!(free_granules(&pool), [(4, 2, true)]);
    let block = pool.resize(block, until(3, 9)).expect("smaller");
    assert_eq!(free_granules(&pool), [(3, 3, true)]);
    let other = Request::new(3 * GRANULE).on(StreamId::new(2));
    assert!(pool.try_grant(&other.without_wait()).is_err());
    let grant = pool.grant(&other);
    assert_eq!(grant.wait, Some(point(1, 9)));
    pool.free_all([grant.block]);
    pool.complete(1, 9);
    let block = pool.resize(block, until(1, 9)).expect("smaller");
    assert_eq!(free_granules(&pool), [(1, 5, false)], "completed already");
    pool.free(block);
}

#[test]
fn a_resize_names_no_stream() {
    let (mut pool, [block, used]) = blocks(RegionConfig::fixed(), 8, [2, 2]);
    let block = grown(&mut pool, block, 2, 5);
    // Had a second stream been named, the two would stay apart.
    pool.free_after(used, 0, 5);
    assert_eq!(free_granules(&pool), [(2, 6, true)]);
    pool.free(block);
    assert_eq!(free_granules(&pool), [(0, 8, true)]);
}

#[test]
fn fresh_memory_behind_an_end_of_its_stream_stays_everybodys() {
    let mut pool = Pool::over(super::ranged(u64::MAX), Source::contiguous(), 64);
    let block = pool.alloc(GRANULE);
    let end = pool.alloc(255 * GRANULE);
    pool.free_after(end, 1, 5);
    let (block, error) = refused(&mut pool, block, to(300, 0));
    assert_eq!(error, ResizeError::NoRoom, "the end is stream 1's");
    let grown = pool.resize_over(block, to(300, 1)).expect("one more unit");
    assert_eq!(grown.bytes(), 300 * GRANULE);
    let free = pool.report_of_free();
    assert_eq!(free, [(512 - 300, false)]);
    pool.free(grown);
}

impl Pool {
    /// `(granules, pending)` of the free chunks, wherever they lie.
    fn report_of_free(&self) -> Vec<(u64, bool)> {
        let chunks = self.chunks().into_iter();
        chunks
            .filter_map(|chunk| match chunk.state {
                ChunkState::Free { pending } => Some((chunk.range.bytes() / GRANULE, pending)),
                _ => None,
            })
            .collect()
    }
}
