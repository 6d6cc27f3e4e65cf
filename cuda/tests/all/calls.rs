//! Driver calls that no sub-allocator makes, or whose results they do not check.

use crate::common;

use std::alloc::{Layout, alloc_zeroed, dealloc};

use common::{MIB, assert_filled, driver, fill, together};
use larder_core::{Align, GrowRequest, SubAllocator};
use larder_cuda::driver::PointerKind;
use larder_cuda::{Context, DriverError, VirtualConfig, VirtualMemory};
use larder_cuda_abi::{StreamHandle, constants};

#[test]
fn a_device_says_what_it_has() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let info = context.device_info().unwrap();
    assert!(
        info.total_bytes > 0 && info.compute_capability.0 > 0,
        "{info:?}"
    );
    let (free, total) = context.try_current(|driver| driver.memory_info()).unwrap();
    assert!(free <= total && total <= info.total_bytes);
    let missing = driver().device_info(4711).unwrap_err();
    assert!(matches!(missing, DriverError::Call { .. }), "{missing}");
}

#[test]
fn memory_says_what_it_is() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let outcome = context.try_current(|driver| {
        let device = driver.alloc_device(MIB)?;
        assert_eq!(driver.pointer_kind(device)?, Some(PointerKind::Device));
        assert_eq!(driver.pointer_device(device)?, Some(0));
        // SAFETY: just allocated, and not in use.
        unsafe { driver.free_device(device) }?;

        let host = driver.alloc_host(MIB, constants::HOST_ALLOC_PORTABLE)?;
        assert_eq!(
            driver.pointer_kind(host.addr() as u64)?,
            Some(PointerKind::Host)
        );
        // SAFETY: just allocated, and not in use.
        unsafe { driver.free_host(host) }?;

        if context.device_info()?.managed {
            let managed = driver.alloc_managed(MIB)?;
            assert_eq!(driver.pointer_kind(managed)?, Some(PointerKind::Managed));
            // SAFETY: just allocated, and not in use.
            unsafe { driver.free_device(managed) }?;
        }
        let mine = 0u8;
        assert_eq!(driver.pointer_kind((&raw const mine).addr() as u64)?, None);
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
}

#[test]
fn memory_of_the_program_is_pinned_and_unpinned() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let layout = Layout::from_size_align(MIB as usize, 4096).unwrap();
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) };
    let outcome = context.try_current(|driver| {
        let place = start.cast();
        // SAFETY: the memory is not freed before the end of the test.
        unsafe { driver.register_host(place, MIB, constants::HOST_REGISTER_PORTABLE) }?;
        // SAFETY: it has just been pinned.
        let device = unsafe { driver.device_pointer(place) }?;
        fill(&stream, device, MIB, 9);
        stream.synchronize().unwrap();
        // SAFETY: no queued work uses the memory.
        unsafe { driver.unregister_host(place) }
    });
    assert_eq!(outcome, Ok(()));
    // SAFETY: the memory is initialized, and nothing writes to it any more.
    let bytes = unsafe { std::slice::from_raw_parts(start, MIB as usize) };
    assert!(bytes.iter().all(|byte| *byte == 9));
    // SAFETY: it was allocated above with this layout.
    unsafe { dealloc(start, layout) };
}

#[test]
fn the_devices_own_pool_serves_in_the_order_of_a_stream() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    if !context.device_info().unwrap().pools {
        println!("skipped: no pools");
        return;
    }
    let stream = context.cudarc().new_stream().unwrap();
    let handle = StreamHandle(stream.cu_stream().addr());
    let outcome = context.try_current(|driver| {
        let pool = driver.pool_of_device(context.device())?;
        // SAFETY: the stream exists, because the test holds it.
        let block = unsafe { driver.alloc_async(MIB, handle) }?;
        fill(&stream, block, MIB, 5);
        assert_filled(&stream, block, MIB, 5);
        // SAFETY: the device's own pool exists as long as the device.
        let used = unsafe { driver.pool_bytes(pool, constants::POOL_USED_CURRENT) }?;
        assert!(used >= MIB, "{used}");
        // SAFETY: the block came from a pool, and only work of this stream uses it.
        unsafe { driver.free_async(block, handle) }
    });
    assert_eq!(outcome, Ok(()));
    context.wait_for(&stream).unwrap();
}

#[test]
fn mapped_memory_says_who_may_use_it() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let request = GrowRequest {
        bytes: MIB,
        align: Align::new(256).unwrap(),
        at: None,
    };
    let alone = VirtualMemory::new(&context, 64 * MIB).unwrap();
    let at = alone.grow(request).unwrap().start().get();
    let both = u64::from(constants::MEM_ACCESS_READ_WRITE);
    assert_eq!(driver().access(at, 0), Ok(both));
    if driver().device_count().unwrap() < 2 || driver().can_access_peer(1, 0) != Ok(true) {
        println!("skipped: no second device that reaches the first");
        return;
    }
    let none = u64::from(constants::MEM_ACCESS_NONE);
    assert_eq!(driver().access(at, 1), Ok(none));
    let config = VirtualConfig {
        peers: vec![1],
        ..VirtualConfig::new(64 * MIB)
    };
    let shared = VirtualMemory::with_config(&context, &config).unwrap();
    let at = shared.grow(request).unwrap().start().get();
    for device in 0..2 {
        assert_eq!(driver().access(at, device), Ok(both), "device {device}");
    }
}
