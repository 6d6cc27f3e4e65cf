//! Resizing a block in place, address for address: the part cut off and its joins, the memory taken, the requests to
//! the sub-allocator, and that a refusal changes nothing.

use crate::common;

mod grow;
mod over;
mod shared;
mod shrink;
mod streams;

use common::{KIB, Pool};
use larder_core::{BestFit, Block, Growth, RegionConfig, Resize, ResizeError};

const BASE: u64 = 0x10_0000;
const GRANULE: u64 = 256;
const UNIT: u64 = 64 * KIB;

/// Allocates blocks of these granules each, side by side from the start of a region of `granules`.
fn blocks<const N: usize>(
    config: RegionConfig,
    granules: u64,
    sizes: [u64; N],
) -> (Pool, [Block; N]) {
    let mut pool = Pool::with_regions(config, &[(BASE, granules * GRANULE)]);
    let blocks = sizes.map(|size| pool.alloc(size * GRANULE));
    let mut start = 0;
    for (block, size) in blocks.iter().zip(sizes) {
        assert_eq!(block.addr().get(), BASE + start * GRANULE);
        start += size;
    }
    (pool, blocks)
}

/// One range that grows in units of 64 KiB.
fn ranged(limit_bytes: u64) -> RegionConfig {
    RegionConfig {
        growth: Growth::Range {
            unit_bytes: UNIT,
            ahead_divisor: None,
        },
        ..RegionConfig::new(limit_bytes)
    }
}

/// `(first granule, granules)` of the free chunks of a pool that begins at `BASE`.
fn free_granules(pool: &Pool) -> Vec<(u64, u64)> {
    let places = pool.free_chunks().into_iter();
    places
        .map(|(start, bytes)| ((start - BASE) / GRANULE, bytes / GRANULE))
        .collect()
}

/// Resizes to `granules` and asserts that the block stays where it is, as the same allocation.
#[track_caller]
fn resized(pool: &mut Pool, block: Block, granules: u64) -> Block {
    let (addr, handle, id) = (
        block.addr(),
        block.handle(),
        pool.shared.get_mut().allocation_id(&block),
    );
    let block = pool
        .resize_over(block, granules * GRANULE)
        .expect("there is room");
    assert_eq!(block.bytes(), granules * GRANULE);
    assert_eq!((block.addr(), block.handle()), (addr, handle));
    assert_eq!(pool.shared.get_mut().allocation_id(&block), id);
    block
}

/// The refusal of a resize over the sub-allocator and of one without, after which nothing has
/// changed and the block is as before.
#[track_caller]
fn refused(pool: &mut Pool, block: Block, to: impl Into<Resize>) -> (Block, ResizeError) {
    let to = to.into();
    let place = (block.range(), block.handle());
    let held = pool.unchanged(|pool| pool.resize(block, to));
    let held = held.expect_err("no room in what is held");
    let over = pool.unchanged(|pool| pool.resize_over(held.value, to));
    let over = over.expect_err("no room behind what is held");
    assert_eq!((over.value.range(), over.value.handle()), place);
    assert!(held.error == over.error || held.error == ResizeError::NoRoom);
    (over.value, over.error)
}
