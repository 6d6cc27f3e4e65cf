//! The current pool of a device, and the counters and properties of pools.

use larder_cuda_abi::{Code, PoolHandle, constants};

use super::{BYTES, Pool, ask};
use crate::{
    api::{basic, context, copy, pool},
    gpu::portable,
    own::{Stream, read},
    refused::refusals,
};

refusals! {
    /// Rule: a query of an attribute that does not exist returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API,
    /// Stream Ordered Memory Allocator, cuMemPoolGetAttribute, list of errors).
    fn unknown_attributes_of_a_pool_are_refused(own = Pool::new()) {
        pool::attribute(own.0, 9999), pool::set_attribute(own.0, 9999, 0)
    } => INVALID_VALUE;

    /// Rule: the current figures are read-only (source: CUDA Driver API, Stream Ordered Memory Allocator,
    /// cuMemPoolSetAttribute, which lists no current figure).
    fn current_figures_are_not_set(own = Pool::new()) {
        pool::set_attribute(own.0, constants::POOL_USED_CURRENT, 0),
        pool::set_attribute(own.0, constants::POOL_RESERVED_CURRENT, 0)
    } => INVALID_VALUE | _;
}

/// Rule: a device's current pool is its default pool until another is set (source: CUDA Driver API, Device Management,
/// cuDeviceGetMemPool, cuDeviceGetDefaultMemPool).
#[test]
fn the_default_pool_is_current() {
    let _gpu = portable();
    let default = pool::default_of(0).expect("a pool");
    assert_ne!(default, PoolHandle::NULL);
    assert_eq!(pool::default_of(0), Ok(default));
    assert_eq!(pool::current_of(0), Ok(default));
}

/// Rule: cuMemAllocAsync allocates from the current pool of the stream's device (source: CUDA Driver API, Stream
/// Ordered Memory Allocator, cuMemAllocAsync; Device Management, cuDeviceSetMemPool).
#[test]
fn allocations_come_from_the_current_pool() {
    let _gpu = portable();
    let default = pool::default_of(0).expect("a pool");
    let (stream, own) = (Stream::blocking(), Pool::new());
    pool::set_current_of(0, own.0).expect("a pool");
    assert_eq!(pool::current_of(0), Ok(own.0));
    let at = pool::alloc(BYTES, stream.0).expect("memory");
    let used = ask(own.0, constants::POOL_USED_CURRENT);
    pool::free(at, stream.0).expect("memory");
    stream.finish();
    pool::set_current_of(0, default).expect("a pool");
    assert!(used >= BYTES as u64, "{used}");
}

/// Rule: destroying the current pool makes the default pool current (source: CUDA Driver API, Stream Ordered Memory
/// Allocator, cuMemPoolDestroy).
#[test]
fn destroying_the_current_pool_brings_back_the_default() {
    let _gpu = portable();
    let own = pool::create(0).expect("a pool");
    pool::set_current_of(0, own).expect("a pool");
    assert_eq!(pool::destroy(own), Ok(()));
    assert_eq!(pool::current_of(0), pool::default_of(0));
}

/// Rule: the default pool cannot be destroyed (source: CUDA Driver API, Stream Ordered Memory Allocator,
/// cuMemPoolDestroy; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
#[test]
fn the_default_pool_is_not_destroyed() {
    let _gpu = portable();
    let default = pool::default_of(0).expect("a pool");
    assert_eq!(pool::destroy(default), Err(Code::INVALID_VALUE));
    assert_eq!(pool::current_of(0), Ok(default));
}

/// Rule: a new pool has a release threshold of 0 and all three ways of reuse enabled (source: CUDA Driver API, Data
/// types, CUmemPool_attribute: "default 0", "default enabled").
#[test]
fn a_pool_starts_with_its_defaults() {
    let _gpu = portable();
    let own = Pool::new();
    let on = [
        constants::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        constants::POOL_REUSE_ALLOW_OPPORTUNISTIC,
        constants::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ];
    let zero = [
        constants::POOL_RELEASE_THRESHOLD,
        constants::POOL_USED_CURRENT,
        constants::POOL_USED_HIGH,
    ];
    assert_eq!(on.map(|attribute| ask(own.0, attribute)), [1; 3]);
    assert_eq!(zero.map(|attribute| ask(own.0, attribute)), [0; 3]);
}

/// Rule: the threshold and the ways of reuse can be set (source: CUDA Driver API, Stream Ordered Memory Allocator,
/// cuMemPoolSetAttribute).
#[test]
fn a_pool_keeps_its_settings() {
    let _gpu = portable();
    let own = Pool::new();
    let threshold = constants::POOL_RELEASE_THRESHOLD;
    for value in [1 << 30, u64::MAX, 0] {
        pool::set_attribute(own.0, threshold, value).expect("a threshold");
        assert_eq!(ask(own.0, threshold), value);
    }
    let reuse = constants::POOL_REUSE_ALLOW_OPPORTUNISTIC;
    pool::set_attribute(own.0, reuse, 0).expect("a setting");
    assert_eq!(ask(own.0, reuse), 0);
}

/// Rule: the bytes in use grow with an allocation and shrink with its free; the reserved bytes are never fewer (source:
/// CUDA Driver API, Data types, CUmemPool_attribute).
#[test]
fn a_pool_counts_what_is_in_use() {
    let _gpu = portable();
    let (stream, own) = (Stream::blocking(), Pool::new());
    let at = pool::alloc_from(own.0, BYTES, stream.0).expect("memory");
    let used = ask(own.0, constants::POOL_USED_CURRENT);
    let reserved = ask(own.0, constants::POOL_RESERVED_CURRENT);
    pool::free(at, stream.0).expect("memory");
    stream.finish();
    assert!(used >= BYTES as u64, "{used}");
    assert!(reserved >= used, "{reserved} of {used}");
    assert_eq!(ask(own.0, constants::POOL_USED_CURRENT), 0);
}

/// Rule: the high-water marks stay until they are reset by writing 0; other values are refused (source: CUDA Driver
/// API, Data types, CU_MEMPOOL_ATTR_USED_MEM_HIGH: "since the last time the attribute was reset to 0. Users can only
/// reset to 0"; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
#[test]
fn high_marks_are_reset_to_zero_only() {
    let _gpu = portable();
    let (stream, own) = (Stream::blocking(), Pool::new());
    let at = pool::alloc_from(own.0, BYTES, stream.0).expect("memory");
    pool::free(at, stream.0).expect("memory");
    stream.finish();
    let (high, reserved) = (constants::POOL_USED_HIGH, constants::POOL_RESERVED_HIGH);
    assert!(ask(own.0, high) >= BYTES as u64);
    assert!(ask(own.0, reserved) >= BYTES as u64);
    for mark in [high, reserved] {
        let answer = pool::set_attribute(own.0, mark, 1);
        assert_eq!(answer, Err(Code::INVALID_VALUE));
        assert_eq!(pool::set_attribute(own.0, mark, 0), Ok(()));
    }
    assert_eq!(ask(own.0, high), 0);
}

/// Rule: with a threshold of 0, a pool releases unused memory at the next synchronisation (source: CUDA Driver API,
/// Data types, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
#[test]
fn without_a_threshold_memory_goes_back_at_a_synchronization() {
    let _gpu = portable();
    let (stream, own) = (Stream::blocking(), Pool::new());
    let at = pool::alloc_from(own.0, 64 * BYTES, stream.0).expect("memory");
    pool::free(at, stream.0).expect("memory");
    stream.finish();
    context::synchronize().expect("work that ends well");
    let reserved = ask(own.0, constants::POOL_RESERVED_CURRENT);
    assert!(reserved < 64 * BYTES as u64, "{reserved}");
}

/// Rule: a pool keeps unused memory up to its threshold at synchronisations (source: CUDA Driver API, Data types,
/// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
#[test]
fn a_threshold_keeps_memory_over_synchronizations() {
    let _gpu = portable();
    let (stream, own) = (Stream::blocking(), Pool::keeping(u64::MAX));
    let at = pool::alloc_from(own.0, 64 * BYTES, stream.0).expect("memory");
    let before = ask(own.0, constants::POOL_RESERVED_CURRENT);
    pool::free(at, stream.0).expect("memory");
    stream.finish();
    context::synchronize().expect("work that ends well");
    assert_eq!(ask(own.0, constants::POOL_RESERVED_CURRENT), before);
    assert_eq!(ask(own.0, constants::POOL_USED_CURRENT), 0);
}

/// Rule: cuMemPoolTrimTo releases unused memory until the given number of bytes is held, and never memory in use
/// (source: CUDA Driver API, Stream Ordered Memory Allocator, cuMemPoolTrimTo).
#[test]
fn trimming_gives_back_what_is_not_in_use() {
    let _gpu = portable();
    let (stream, own) = (Stream::blocking(), Pool::keeping(u64::MAX));
    let much = 64 * BYTES;
    let kept = pool::alloc_from(own.0, much, stream.0).expect("memory");
    let freed = pool::alloc_from(own.0, much, stream.0).expect("memory");
    copy::fill8_async(kept, 3, much, stream.0).expect("a fill");
    pool::free(freed, stream.0).expect("memory");
    stream.finish();
    let before = ask(own.0, constants::POOL_RESERVED_CURRENT);
    let enough = usize::try_from(before).expect("a size");
    assert_eq!(pool::trim(own.0, enough), Ok(()));
    assert_eq!(ask(own.0, constants::POOL_RESERVED_CURRENT), before);
    assert_eq!(pool::trim(own.0, 0), Ok(()));
    let after = ask(own.0, constants::POOL_RESERVED_CURRENT);
    assert!(
        much as u64 <= after && after < before,
        "{before} then {after}"
    );
    assert!(read(kept, much).iter().all(|byte| *byte == 3));
    pool::free(kept, stream.0).expect("memory");
    stream.finish();
    assert_eq!(pool::trim(own.0, 0), Ok(()));
    assert_eq!(ask(own.0, constants::POOL_RESERVED_CURRENT), 0);
}

/// Rule: a pool that is destroyed while its memory is in use is released when the last of its memory is freed (source:
/// CUDA Driver API, Stream Ordered Memory Allocator, cuMemPoolDestroy).
#[test]
fn a_destroyed_pool_lives_as_long_as_its_memory() {
    let _gpu = portable();
    let stream = Stream::blocking();
    let own = pool::create(0).expect("a pool");
    let at = pool::alloc_from(own, BYTES, stream.0).expect("memory");
    assert_eq!(pool::destroy(own), Ok(()));
    copy::fill8_async(at, 6, BYTES, stream.0).expect("a fill");
    assert!(read(at, BYTES).iter().all(|byte| *byte == 6));
    assert_eq!(pool::free(at, stream.0), Ok(()));
    stream.finish();
}

/// Rule: a pool's own device can read and write its memory (source: CUDA Driver API, Stream Ordered Memory Allocator,
/// cuMemPoolCreate: "intrinsically accessible" from its device).
#[test]
fn a_pool_is_its_devices() {
    let _gpu = portable();
    let own = Pool::new();
    assert_eq!(pool::access(own.0, 0), Ok(constants::MEM_ACCESS_READ_WRITE));
}

/// Rule: another device has no access to a pool until access is granted (source: CUDA Driver API, Stream Ordered Memory
/// Allocator, cuMemPoolCreate, cuMemPoolSetAccess).
#[test]
fn another_device_is_given_access_to_a_pool() {
    let gpu = portable();
    let Some(second) = gpu.second_device() else {
        return;
    };
    let own = Pool::new();
    assert_eq!(pool::access(own.0, second), Ok(constants::MEM_ACCESS_NONE));
    if basic::can_access_peer(second, 0) != Ok(1) {
        println!("skipped: the devices do not reach each other");
        return;
    }
    let both = constants::MEM_ACCESS_READ_WRITE;
    assert_eq!(pool::set_access(own.0, second, both), Ok(()));
    assert_eq!(pool::access(own.0, second), Ok(both));
}
