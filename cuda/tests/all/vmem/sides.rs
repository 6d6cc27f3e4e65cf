//! The side that serves, and the reason if none does.

use larder_core::{AllocError, Cause, Placement};
use larder_cuda::{
    DeviceAllocError, DeviceMemory, DriverError, HostSide, StreamAllocator, VmemConfig,
};

use super::{DEVICE, Setup};
use crate::common::{DEVICE_BYTES, MIB, alone, alone_and_clean, assert_clean, assert_filled, fill};

#[test]
fn am_1_what_does_not_fit_the_device_goes_to_the_host_and_back_there_when_it_fits() {
    alone_and_clean(|_| {
        for host in [HostSide::Pinned(16 * MIB), HostSide::Managed] {
            let setup = Setup::new(host, 1);
            let (memory, stream) = (&setup.memory, &setup.streams[0]);
            let first = memory.alloc(stream, DEVICE).unwrap();
            let second = memory.alloc(stream, 2 * MIB).unwrap();
            assert_eq!(memory.placement(&first), Placement::Device);
            assert_eq!(memory.placement(&second), Placement::Host, "{host:?}");
            assert_eq!(memory.info(&second).unwrap().requested_bytes, 2 * MIB);
            for (block, value) in [(&first, 1), (&second, 2)] {
                fill(stream, block.addr().get(), block.bytes(), value);
            }
            assert_filled(stream, first.addr().get(), DEVICE, 1);
            assert_filled(stream, second.addr().get(), 2 * MIB, 2);
            let stats = memory.vmem_stats();
            assert_eq!(
                (stats.device.live_bytes, stats.host.live_bytes),
                (DEVICE, 2 * MIB)
            );
            assert_eq!(stats.joint_live_bytes, DEVICE + 2 * MIB);

            memory.free(stream, first).unwrap();
            let third = memory.alloc(stream, 4 * MIB).unwrap();
            assert_eq!(
                memory.placement(&third),
                Placement::Device,
                "there is room again"
            );
            memory.free(stream, second).unwrap();
            memory.free(stream, third).unwrap();
            let stats = memory.vmem_stats();
            assert_eq!(stats.joint_live_bytes, 0);
            assert_eq!(stats.joint_peak_bytes, DEVICE + 2 * MIB);
            // Both sides had their peak once, which never was together.
            assert_eq!(stats.antman().peak_live_bytes, DEVICE + 2 * MIB);
            setup.context.synchronize().unwrap();
            assert_eq!(memory.release_host(), 2 * MIB);
            assert_eq!(memory.vmem_stats().host.reserved_bytes, 0);
        }
    });
}

#[test]
fn am_1_without_a_host_side_the_devices_refusal_is_the_answer() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::None, 1);
        let refused = setup.memory.alloc(&setup.streams[0], DEVICE + 1);
        let reason = refused.expect_err("too much");
        let DeviceAllocError::Memory { reason, .. } = reason else {
            panic!("{reason}");
        };
        assert!(matches!(reason, AllocError::OutOfMemory(out) if out.limit_bytes == DEVICE));
        let block = setup.memory.alloc(&setup.streams[0], DEVICE).unwrap();
        setup.memory.free(&setup.streams[0], block).unwrap();
        assert_eq!(setup.memory.release_host(), 0);
    });
}

#[test]
fn am_1_when_both_sides_are_full_the_error_has_the_numbers_of_both() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::Pinned(4 * MIB), 1);
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let at_limit = memory.alloc(stream, DEVICE + 1);
        let reason = at_limit.expect_err("above either limit");
        let DeviceAllocError::Both { device, host } = &reason else {
            panic!("{reason}");
        };
        let limit = |error: &DeviceAllocError| match error {
            DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(out),
                ..
            } => (out.limit_bytes, out.cause),
            other => panic!("{other}"),
        };
        assert_eq!(limit(device).0, DEVICE);
        assert_eq!(limit(host), (4 * MIB, Cause::Limit));
        let words = reason.to_string();
        assert!(
            words.contains("8,388,608") && words.contains("4,194,304"),
            "{words}"
        );
        // The limit itself is served.
        let _first = memory.alloc(stream, DEVICE).unwrap();
        let second = memory.alloc(stream, 4 * MIB).unwrap();
        assert_eq!(memory.placement(&second), Placement::Host);
        assert!(memory.alloc(stream, 1).is_err());
        let zero = memory.alloc(stream, 0).expect_err("nothing");
        let alone = DeviceAllocError::Memory {
            reason: AllocError::ZeroSize,
            driver: None,
        };
        assert_eq!(zero, alone);
    });
}

#[test]
fn am_1_a_joint_peak_above_the_plan_refuses_the_host_with_the_numbers() {
    alone_and_clean(|_| {
        let config = VmemConfig {
            planned_percent: 1,
            ..VmemConfig::new(HostSide::Pinned(64 * MIB))
        };
        let setup = Setup::with_config(config, 1);
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        assert_eq!(memory.planned_bytes(), DEVICE_BYTES / 100);
        let first = memory.alloc(stream, DEVICE).unwrap();
        let second = memory.alloc(stream, 4 * MIB).unwrap();
        assert_eq!(
            memory.placement(&second),
            Placement::Host,
            "the plan held until now"
        );
        let refused = memory.alloc(stream, 256).expect_err("above the plan");
        let DeviceAllocError::Planned {
            peak_bytes,
            planned_bytes,
            ..
        } = refused
        else {
            panic!("{refused}");
        };
        assert_eq!((peak_bytes, planned_bytes), (12 * MIB, DEVICE_BYTES / 100));
        memory.free(stream, second).unwrap();
        assert!(memory.alloc(stream, 256).is_err(), "the peak stays");
        memory.clear_stats();
        let block = memory.alloc(stream, 256).unwrap();
        assert_eq!(memory.placement(&block), Placement::Host);
        for block in [first, block] {
            memory.free(stream, block).unwrap();
        }
    });
}

#[test]
fn managed_memory_never_oversubscribes_the_device() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::Managed, 1);
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let _first = memory.alloc(stream, DEVICE).unwrap();
        let too_much = memory.alloc(stream, DEVICE_BYTES + 256);
        assert!(matches!(too_much, Err(DeviceAllocError::Both { .. })));
        // Another takes nearly all that is left.
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
            // The one that stays may still be used.
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
