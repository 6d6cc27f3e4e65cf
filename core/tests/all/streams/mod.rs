//! Stream order in the default configuration: which streams may get memory that queued work still uses, which waits
//! that takes, and how points merge, split, complete and are never lost.

use crate::common;

mod chunks;
mod events;
mod places;
mod random;
mod regions;
mod waits;

use common::Pool;
use larder_core::{AllocError, Block, Cause, ChunkState, RegionConfig, Request, StreamId};

const BASE: u64 = 0x10_0000;
const GRANULE: u64 = 256;

fn stream(number: u8) -> StreamId {
    StreamId::new(number)
}

fn on(bytes: u64, number: u8) -> Request {
    Request::new(bytes).on(stream(number))
}

/// Creates a region of `granules` granules, all in blocks of one.
fn full(granules: u64) -> (Pool, Vec<Option<Block>>) {
    let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(BASE, granules * GRANULE)]);
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
