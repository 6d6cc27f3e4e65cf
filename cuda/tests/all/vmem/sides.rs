//! Requests that neither side serves, and allocators dropped with blocks in use.

use larder_core::Placement;
use larder_cuda::{DeviceAllocError, DeviceMemory, DriverError, HostSide, StreamAllocator};

use super::{DEVICE, Setup};
use crate::common::{DEVICE_BYTES, MIB, alone, alone_and_clean, assert_clean, fill};

#[test]
fn managed_memory_never_oversubscribes_the_device() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::Managed, 1);
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let _first = memory.alloc(stream, DEVICE).unwrap();
        let too_much = memory.alloc(stream, DEVICE_BYTES + 256);
        assert!(matches!(too_much, Err(DeviceAllocError::Both { .. })));
        // Another sub-allocator takes nearly all of the rest.
        let other = DeviceMemory::new(&setup.context);
        let request = larder_core::GrowRequest {
            bytes: DEVICE_BYTES - DEVICE - 4 * MIB,
            align: larder_core::Align::new(256).unwrap(),
            at: None,
        };
        let taken = larder_core::SubAllocator::grow(&other, request).unwrap();
        let refused = memory
            .alloc(stream, 8 * MIB)
            .expect_err("not so much is free");
        let DeviceAllocError::Both { host, .. } = refused else {
            panic!("{refused}");
        };
        let DeviceAllocError::Memory { driver, .. } = *host else {
            panic!("{host}");
        };
        assert!(
            matches!(driver, Some(DriverError::Oversubscribed { .. })),
            "{driver:?}"
        );
        larder_core::SubAllocator::release(&other, taken).unwrap();
        let block = memory.alloc(stream, 8 * MIB).unwrap();
        assert_eq!(memory.placement(&block), Placement::Host);
    });
}

#[test]
fn a_block_of_another_allocator_comes_back_in_the_error() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::Pinned(16 * MIB), 1);
        let other = Setup::new(HostSide::Pinned(16 * MIB), 0);
        let stream = &setup.streams[0];
        let device = setup.memory.alloc(stream, DEVICE).unwrap();
        let host = setup.memory.alloc(stream, MIB).unwrap();
        for block in [device, host] {
            let place = (block.addr(), setup.memory.placement(&block));
            let rejected = other.memory.free(stream, block).expect_err("another's");
            assert_eq!(
                (
                    rejected.value.addr(),
                    setup.memory.placement(&rejected.value)
                ),
                place
            );
            assert_eq!(other.memory.vmem_stats().joint_live_bytes, 0);
            setup.memory.free(stream, rejected.value).unwrap();
        }
        assert_eq!(setup.memory.vmem_stats().joint_live_bytes, 0);
    });
}

#[test]
fn both_orders_of_drop_leave_nothing_with_blocks_in_use() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..16 {
        control.schedule_deferred(seed);
        for device_first in [false, true] {
            let Setup {
                context,
                device,
                memory,
                streams,
            } = Setup::new(HostSide::Pinned(16 * MIB), 1);
            let first = memory.alloc(&streams[0], DEVICE).unwrap();
            let second = memory.alloc(&streams[0], MIB).unwrap();
            for block in [&first, &second] {
                fill(&streams[0], block.addr().get(), block.bytes(), 1);
            }
            // Whichever side is not dropped may still be used.
            if device_first {
                drop(device);
                let block = memory.alloc(&streams[0], MIB).unwrap();
                memory.free(&streams[0], block).unwrap();
                drop(memory);
            } else {
                drop(memory);
                assert!(
                    device.alloc(&streams[0], MIB).is_err(),
                    "the block is in use"
                );
                drop(device);
            }
            drop((streams, context));
        }
        control.schedule_eagerly();
        assert_clean(control);
    }
}
