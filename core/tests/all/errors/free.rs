//! `FreeError`: an unknown block is returned to the caller. `foreign.rs` tests blocks of other allocators.

use crate::common::{GRANULE, Pool};
use larder_core::{Addr, BestFit, Block, ChunkHandle, FreeError, RawBlock};

#[test]
fn a_double_free_through_raw_is_unknown_until_the_place_is_used_again() {
    let mut pool = Pool::fixed(4);
    let block = pool.alloc(GRANULE);
    let kept = pool.alloc(GRANULE);
    let raw = block.into_raw();
    let block = pool.shared.get_mut().block_from_raw(raw).expect("in use");
    assert_eq!((block.addr(), block.bytes()), (raw.addr, GRANULE));
    pool.free(block);
    let again = pool.unchanged(|pool| pool.shared.get_mut().block_from_raw(raw));
    assert_eq!(again, Err(FreeError::Unknown));
    pool.free(kept);
    let again = pool.shared.get_mut().block_from_raw(raw);
    assert_eq!(again, Err(FreeError::Unknown), "merged away");
}

#[test]
fn two_blocks_for_one_chunk_free_it_once() {
    let mut pool = Pool::fixed(4);
    let one = pool.alloc(GRANULE);
    let two = pool.second(&one);
    pool.free(one);
    drop(pool.refuses_free(two));
}

#[test]
fn foreign_handles_and_wrong_addresses_are_unknown() {
    let mut pool = Pool::fixed(16);
    let blocks: Vec<Block> = (0..4).map(|_| pool.alloc(2 * GRANULE)).collect();
    let raws: Vec<RawBlock> = blocks.into_iter().map(Block::into_raw).collect();
    let mut wrong = Vec::new();
    for raw in &raws {
        let addr = raw.addr.get();
        for off in [1, u64::MAX, GRANULE, 2 * GRANULE] {
            wrong.push((addr.wrapping_add(off), raw.handle));
        }
        for addr in [0, 1, u64::MAX] {
            wrong.push((addr, raw.handle));
        }
        for number in [raw.handle.get() + 100, 1 << 20, u32::MAX] {
            wrong.push((addr, ChunkHandle::new(number).expect("not 0")));
        }
        for other in raws.iter().filter(|other| other.handle != raw.handle) {
            wrong.push((addr, other.handle));
        }
    }
    for (addr, handle) in wrong {
        let addr = Addr::new(addr);
        let raw = RawBlock { addr, handle };
        let result = pool.unchanged(|pool| pool.shared.get_mut().block_from_raw(raw));
        assert_eq!(result, Err(FreeError::Unknown), "{raw:?}");
    }
    for raw in raws {
        let block = pool.shared.get_mut().block_from_raw(raw);
        pool.free(block.expect("still in use"));
    }
    assert_eq!(ChunkHandle::new(0), None);
}
