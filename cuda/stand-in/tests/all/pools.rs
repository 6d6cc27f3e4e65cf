//! Memory pools and memory in the order of streams.

use std::ptr::null_mut;
use std::sync::MutexGuard;

use larder_cuda_abi::{AccessDesc, Code, Location, PoolProps, constants as c};

use crate::common::{alive, alone, findings, ok};
use crate::driver::*;

const MIB: usize = 1 << 20;

/// A fresh driver with one context of device 0 and two streams that wait for nobody.
fn begin(bytes: usize, seed: Option<u64>) -> (MutexGuard<'static, ()>, [usize; 2]) {
    let guard = alone();
    let mut streams = [0; 2];
    larder_stand_in_reset(2, bytes as u64);
    ok(cuInit(0));
    ok(cuCtxSetCurrent(0));
    ok(cuCtxCreate_v2(&mut 0, 0, 0));
    for stream in &mut streams {
        ok(cuStreamCreate(stream, c::STREAM_NON_BLOCKING));
    }
    if let Some(seed) = seed {
        larder_stand_in_schedule(1, seed);
    }
    (guard, streams)
}

fn try_alloc(bytes: usize, stream: usize) -> Result<u64, Code> {
    let mut at = 0;
    cuMemAllocAsync(&mut at, bytes, stream).check()?;
    Ok(at)
}

fn alloc(bytes: usize, stream: usize) -> u64 {
    try_alloc(bytes, stream).unwrap()
}

fn fill(at: u64, bytes: usize, stream: usize) -> Code {
    cuMemsetD8Async(at, 7, bytes, stream)
}

fn free(at: u64, stream: usize) -> Code {
    cuMemFreeAsync(at, stream)
}

fn sync(stream: usize) -> Code {
    cuStreamSynchronize(stream)
}

/// Makes `later` wait for what is in `first`.
fn order(first: usize, later: usize) {
    let mut event = 0;
    ok(cuEventCreate(&mut event, 0));
    ok(cuEventRecord(event, first));
    ok(cuStreamWaitEvent(later, event, 0));
}

fn get(pool: usize, attribute: u32) -> u64 {
    let mut value = 0_u64;
    let place = &raw mut value as usize;
    ok(cuMemPoolGetAttribute(pool, attribute, place));
    value
}

fn set(pool: usize, attribute: u32, mut value: u64) -> Code {
    cuMemPoolSetAttribute(pool, attribute, &raw mut value as usize)
}

fn default_pool() -> usize {
    let mut pool = 0;
    ok(cuDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

fn create(max_bytes: usize) -> usize {
    let props = PoolProps {
        kind: c::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: 0,
        location: Location {
            kind: c::MEM_LOCATION_DEVICE,
            id: 0,
        },
        win32_security_attributes: null_mut(),
        max_bytes,
        usage: 0,
        reserved: [0; 54],
    };
    let mut pool = 0;
    ok(cuMemPoolCreate(&mut pool, &raw const props));
    pool
}

#[test]
fn memory_is_alive_between_allocation_and_free_in_any_order_of_the_queue() {
    for seed in 0..20 {
        let (_guard, [a, b]) = begin(64 * MIB, Some(seed));
        for _ in 0..10 {
            let at = alloc(1000, a);
            ok(fill(at, 1000, a));
            order(a, b);
            ok(fill(at, 1000, b));
            order(b, a);
            ok(free(at, a));
        }
        ok(sync(a));
        assert_eq!(findings(), "", "seed {seed}");
        assert!(!alive().contains("pooled"));
    }
}

#[test]
fn a_use_after_the_free_is_an_illegal_address() {
    for seed in [None, Some(1), Some(2)] {
        let (_guard, [a, _]) = begin(64 * MIB, seed);
        let at = alloc(1000, a);
        ok(free(at, a));
        ok(fill(at, 1000, a));
        assert_eq!(sync(a), Code::ILLEGAL_ADDRESS);
        assert!(findings().contains("not allocated"));
    }
}

#[test]
fn a_use_beyond_the_request_is_an_illegal_address_though_the_block_has_room() {
    let (_guard, [a, _]) = begin(64 * MIB, None);
    let at = alloc(1000, a);
    assert_eq!(fill(at, 1001, a), Code::INVALID_VALUE);
    ok(free(at, a));
    assert_eq!(alloc(600, a), at);
    assert_eq!(fill(at, 601, a), Code::INVALID_VALUE);
    ok(fill(at, 600, a));
    ok(sync(a));
}

#[test]
fn a_use_in_another_stream_needs_an_event() {
    let (guard, [a, b]) = begin(64 * MIB, None);
    let at = alloc(1000, a);
    ok(fill(at, 1000, b));
    assert!(findings().starts_with("race: a fill"));
    drop(guard);
    let (_guard, [a, b]) = begin(64 * MIB, None);
    let at = alloc(1000, a);
    order(a, b);
    ok(fill(at, 1000, b));
    assert_eq!(findings(), "");
    ok(free(at, a));
    assert!(findings().starts_with("race: "));
}

#[test]
fn the_same_stream_gets_freed_memory_at_once_and_another_one_when_it_may() {
    let (_guard, [a, b]) = begin(64 * MIB, Some(0));
    let pool = default_pool();
    for flag in 1..=3 {
        ok(set(pool, flag, 0));
    }
    let first = alloc(MIB, a);
    ok(free(first, a));
    assert_eq!(alloc(MIB, a), first);
    ok(free(first, a));
    order(a, b);
    assert_ne!(alloc(MIB, b), first);
    ok(set(pool, c::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1));
    assert_eq!(alloc(MIB, b), first);
    ok(sync(b));
    assert_eq!(findings(), "");
}

#[test]
fn a_done_free_may_serve_any_stream_and_the_last_resort_waits() {
    let (_guard, [a, b]) = begin(64 * MIB, None);
    ok(set(
        default_pool(),
        c::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        0,
    ));
    let first = alloc(MIB, a);
    ok(free(first, a));
    assert_eq!(alloc(MIB, b), first);
    assert_eq!(findings(), "");
}

#[test]
fn the_last_resort_is_to_wait_for_a_free() {
    for internal in [1, 0] {
        let (_guard, [a, b]) = begin(64 * MIB, Some(5));
        let pool = default_pool();
        ok(set(pool, c::POOL_REUSE_ALLOW_OPPORTUNISTIC, 0));
        ok(set(
            pool,
            c::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
            internal,
        ));
        let first = alloc(40 * MIB, a);
        ok(fill(first, 40 * MIB, a));
        ok(free(first, a));
        if internal == 1 {
            assert_eq!(alloc(40 * MIB, b), first);
            ok(fill(first, 40 * MIB, b));
            ok(sync(b));
            assert_eq!(findings(), "");
        } else if let Ok(other) = try_alloc(40 * MIB, b) {
            // The free was done by chance and its memory given back first.
            assert_ne!(other, first);
        }
    }
}

#[test]
fn unused_memory_goes_back_when_the_host_waits_down_to_the_threshold() {
    let (_guard, [a, _]) = begin(64 * MIB, None);
    let pool = default_pool();
    let blocks: Vec<u64> = (0..4).map(|_| alloc(MIB, a)).collect();
    assert_eq!(get(pool, c::POOL_USED_CURRENT), 4 * MIB as u64);
    for at in blocks {
        ok(free(at, a));
    }
    assert_eq!(get(pool, c::POOL_USED_CURRENT), 0);
    assert_eq!(get(pool, c::POOL_USED_HIGH), 4 * MIB as u64);
    assert_eq!(larder_stand_in_used(0), 4 * MIB as u64);
    ok(set(pool, c::POOL_RELEASE_THRESHOLD, 2 * MIB as u64));
    ok(sync(a));
    assert_eq!(get(pool, c::POOL_RESERVED_CURRENT), 2 * MIB as u64);
    assert_eq!(get(pool, c::POOL_RESERVED_HIGH), 4 * MIB as u64);
    ok(cuMemPoolTrimTo(pool, MIB));
    assert_eq!(larder_stand_in_used(0), MIB as u64);
    ok(set(pool, c::POOL_RELEASE_THRESHOLD, 0));
    ok(cuCtxSynchronize());
    assert_eq!(larder_stand_in_used(0), 0);
    assert_eq!(set(pool, c::POOL_USED_HIGH, 1), Code::INVALID_VALUE);
    assert_eq!(set(pool, c::POOL_USED_CURRENT, 0), Code::INVALID_VALUE);
    ok(set(pool, c::POOL_USED_HIGH, 0));
    assert_eq!(get(pool, c::POOL_USED_HIGH), 0);
}

#[test]
fn a_full_device_makes_the_pool_give_back_what_does_not_fit() {
    let (_guard, [a, _]) = begin(64 * MIB, None);
    let first = alloc(20 * MIB, a);
    ok(free(first, a));
    let second = alloc(60 * MIB, a);
    assert_eq!(try_alloc(5 * MIB, a), Err(Code::OUT_OF_MEMORY));
    assert_eq!(try_alloc(0, a), Err(Code::INVALID_VALUE));
    ok(free(second, a));
}

#[test]
fn a_destroyed_pool_lives_until_its_blocks_are_free() {
    let (_guard, [a, _]) = begin(64 * MIB, None);
    assert_eq!(cuMemPoolDestroy(default_pool()), Code::INVALID_VALUE);
    let pool = create(2 * MIB);
    ok(cuDeviceSetMemPool(0, pool));
    assert_eq!(cuDeviceSetMemPool(1, pool), Code::INVALID_VALUE);
    let at = alloc(MIB, a);
    assert_eq!(try_alloc(2 * MIB, a), Err(Code::OUT_OF_MEMORY));
    assert!(alive().contains("pool 1 1048576\npooled 1 1048576\n"));
    ok(cuMemPoolDestroy(pool));
    let mut current = 0;
    ok(cuDeviceGetMemPool(&mut current, 0));
    assert_eq!(current, default_pool());
    let code = cuMemAllocFromPoolAsync(&mut 0, MIB, pool, a);
    assert_eq!(code, Code::INVALID_VALUE);
    ok(fill(at, MIB, a));
    ok(free(at, a));
    ok(sync(a));
    assert_eq!(larder_stand_in_used(0), 0);
    assert_eq!(findings(), "");
}

#[test]
fn either_free_takes_either_memory() {
    let (_guard, [a, _]) = begin(64 * MIB, Some(4));
    let pooled = alloc(MIB, a);
    ok(fill(pooled, MIB, a));
    ok(sync(a));
    ok(cuMemFree_v2(pooled));
    assert_eq!(cuMemFree_v2(pooled), Code::INVALID_VALUE);
    assert_eq!(free(pooled, a), Code::INVALID_VALUE);
    let mut plain = 0;
    ok(cuMemAlloc_v2(&mut plain, MIB));
    ok(fill(plain, MIB, a));
    ok(free(plain, a));
    assert_eq!(free(plain, a), Code::INVALID_VALUE);
    ok(sync(a));
    assert_eq!(larder_stand_in_used(0), 0);
    assert_eq!(findings(), "");
}

#[test]
fn a_free_by_the_host_waits_for_no_work() {
    let (_guard, [a, _]) = begin(64 * MIB, None);
    let at = alloc(MIB, a);
    ok(fill(at, MIB, a));
    ok(cuMemFree_v2(at));
    assert!(findings().starts_with("race: a free by the host"));
}

#[test]
fn other_devices_use_a_pool_only_with_access() {
    let (_guard, _) = begin(64 * MIB, None);
    let pool = default_pool();
    let location = |id| Location {
        kind: c::MEM_LOCATION_DEVICE,
        id,
    };
    let access = AccessDesc {
        location: location(1),
        flags: c::MEM_ACCESS_READ_WRITE,
    };
    let flags = |id| {
        let mut flags = 9;
        ok(cuMemPoolGetAccess(&mut flags, pool, &mut location(id)));
        flags
    };
    assert_eq!(
        (flags(0), flags(1)),
        (c::MEM_ACCESS_READ_WRITE, c::MEM_ACCESS_NONE)
    );
    ok(cuMemPoolSetAccess(pool, &raw const access, 1));
    assert_eq!(flags(1), c::MEM_ACCESS_READ_WRITE);
}
