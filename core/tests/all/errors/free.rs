//! `FreeError`: a block that is unknown, foreign or freed too far ahead is handed back.

use super::{BASE, FIXED, GRANULE, fixed};
use crate::common::{Pool, point};
use larder_core::{Addr, BestFit, Block, ChunkHandle, EventNumber, FreeError, RawBlock};

#[test]
fn a_double_free_through_raw_is_unknown_until_the_place_is_used_again() {
    let mut pool = fixed(4);
    let block = pool.alloc(GRANULE);
    let kept = pool.alloc(GRANULE);
    let raw = block.into_raw();
    let block = pool.shared.get_mut().block_from_raw(raw).expect("in use");
    assert_eq!((block.addr(), block.bytes()), (raw.addr, GRANULE));
    pool.free(block);
    let again = pool.unchanged(|pool| pool.shared.get_mut().block_from_raw(raw));
    assert_eq!(again, Err(FreeError::Unknown));
    pool.free(kept);
    assert_eq!(
        pool.shared.get_mut().block_from_raw(raw),
        Err(FreeError::Unknown),
        "merged away"
    );
}

#[test]
fn two_blocks_for_one_chunk_free_it_once() {
    let mut pool = fixed(4);
    let raw = pool.alloc(GRANULE).into_raw();
    let [one, two] = [0, 1].map(|_| pool.shared.get_mut().block_from_raw(raw).expect("in use"));
    pool.free(one);
    let rejected = pool
        .unchanged(|pool| pool.shared.get_mut().free(two))
        .expect_err("freed already");
    assert_eq!(
        (rejected.error, rejected.value.addr()),
        (FreeError::Unknown, raw.addr)
    );
    assert_eq!(pool.shared.get_mut().requested_bytes(&rejected.value), None);
    assert_eq!(pool.shared.get_mut().allocation_id(&rejected.value), None);
    let rejected = pool
        .unchanged(|pool| {
            pool.shared
                .get_mut()
                .free_after(rejected.value, point(1, 1))
        })
        .expect_err("freed already");
    assert_eq!(rejected.error, FreeError::Unknown);
}

#[test]
fn foreign_handles_and_wrong_addresses_are_unknown() {
    let mut pool = fixed(16);
    let blocks: Vec<Block> = (0..4).map(|_| pool.alloc(2 * GRANULE)).collect();
    let raws: Vec<RawBlock> = blocks.into_iter().map(Block::into_raw).collect();
    let mut wrong = Vec::new();
    for raw in &raws {
        let addr = raw.addr.get();
        for addr in [
            0,
            1,
            addr - 1,
            addr + 1,
            addr + GRANULE,
            addr + 2 * GRANULE,
            u64::MAX,
        ] {
            wrong.push((Addr::new(addr), raw.handle));
        }
        for number in [raw.handle.get() + 100, 1 << 20, u32::MAX] {
            wrong.push((raw.addr, ChunkHandle::new(number).expect("not 0")));
        }
        for other in raws.iter().filter(|other| other.handle != raw.handle) {
            wrong.push((raw.addr, other.handle));
        }
    }
    for (addr, handle) in wrong {
        let raw = RawBlock { addr, handle };
        let result = pool.unchanged(|pool| pool.shared.get_mut().block_from_raw(raw));
        assert_eq!(result, Err(FreeError::Unknown), "{raw:?}");
    }
    for raw in raws {
        let block = pool
            .shared
            .get_mut()
            .block_from_raw(raw)
            .expect("still in use");
        pool.free(block);
    }
    assert_eq!(ChunkHandle::new(0), None);
}

#[test]
fn a_block_of_another_allocator_comes_back() {
    let mut ours = fixed(4);
    let _own = ours.alloc(GRANULE);
    let mut other = Pool::with_regions(FIXED, &[(16 * BASE, 4 * GRANULE)]);
    let foreign = other.alloc(GRANULE);
    let addr = foreign.addr();
    assert_eq!(ours.shared.get_mut().requested_bytes(&foreign), None);
    let rejected = ours
        .unchanged(|pool| pool.shared.get_mut().free(foreign))
        .expect_err("foreign");
    assert_eq!(
        (rejected.error, rejected.value.addr()),
        (FreeError::Unknown, addr)
    );
    let rejected = ours
        .unchanged(|pool| {
            pool.shared
                .get_mut()
                .free_after(rejected.value, point(3, 1))
        })
        .expect_err("foreign");
    assert_eq!(
        (rejected.error, rejected.value.addr()),
        (FreeError::Unknown, addr)
    );
    other.free(rejected.value);
}

#[test]
fn an_event_too_far_gives_the_block_back() {
    let mut pool = fixed(4);
    let block = pool.alloc(GRANULE);
    let rejected = pool
        .unchanged(|pool| {
            pool.shared
                .get_mut()
                .free_after(block, point(1, EventNumber::WINDOW + 1))
        })
        .expect_err("too far");
    assert_eq!(rejected.error, FreeError::EventTooFar);
    pool.free(rejected.value);
}
