//! Devices and systems that lack something: few addresses, no virtual memory.

use larder_cuda::driver::StandIn;
use larder_cuda::{
    ArenaPolicy, Context, DeviceAllocError, DeviceAllocator, DeviceBacking, DeviceConfig,
    DriverError, SleepError, VirtualMemory,
};

use crate::common::setup::Setup;
use crate::common::{DEVICE_BYTES, MIB, alone_and_clean, assert_filled, fill, under_all_schedules};

/// Bytes of all reservations.
fn reserved(control: &StandIn) -> u64 {
    let alive = control.alive();
    let found = alive.iter().find(|alive| alive.kind == "reservation");
    found.map_or(0, |alive| alive.bytes)
}

#[test]
fn fewer_addresses_are_reserved_where_the_system_gives_no_more() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let quarter = DEVICE_BYTES / 4;
        for (limit, expected) in [
            (u64::MAX, 8 * DEVICE_BYTES),
            (8 * DEVICE_BYTES - MIB, 4 * DEVICE_BYTES),
            (3 * DEVICE_BYTES, 2 * DEVICE_BYTES),
            (2 * DEVICE_BYTES - MIB, 5 * quarter),
            (5 * quarter, 5 * quarter),
        ] {
            control.set_addresses(limit);
            let memory = DeviceAllocator::new(&context).unwrap();
            assert_eq!(reserved(control), expected, "of {limit}");
            let stream = context.cudarc().new_stream().unwrap();
            let block = memory.alloc(&stream, DEVICE_BYTES / 2).unwrap();
            fill(&stream, block.addr().get(), MIB, 7);
            assert_filled(&stream, block.addr().get(), MIB, 7);
            memory.free(&stream, block).unwrap();
        }
    });
}

#[test]
fn addresses_that_the_program_names_are_reserved_whole_or_not() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        control.set_addresses(2 * DEVICE_BYTES);
        let config = DeviceConfig {
            address_bytes: 4 * DEVICE_BYTES,
            ..DeviceConfig::new()
        };
        let refused = DeviceAllocator::with_config(&context, config).unwrap_err();
        assert!(
            refused.to_string().contains("cuMemAddressReserve"),
            "{refused}"
        );
        assert_eq!(reserved(control), 0);
    });
}

#[test]
fn virtual_memory_that_the_device_lacks_is_named() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        control.virtual_memory(false);
        let refused = VirtualMemory::new(&context, 64 * MIB).unwrap_err();
        let expected = DriverError::Unsupported {
            what: "virtual memory",
            device: 0,
        };
        assert_eq!(refused, expected);
    });
}

#[test]
fn without_virtual_memory_blocks_come_from_regions() {
    alone_and_clean(|control| {
        // Not even five quarters of the device, or no virtual memory at all.
        for virtual_memory in [true, false] {
            control.set_addresses(DEVICE_BYTES);
            control.virtual_memory(virtual_memory);
            for arenas in [ArenaPolicy::Never, ArenaPolicy::Always] {
                under_all_schedules(control, 8, || {
                    let config = DeviceConfig {
                        arenas,
                        ..DeviceConfig::new()
                    };
                    let setup = Setup::new(2, config);
                    let memory = &setup.memory;
                    assert_eq!(memory.backing(), DeviceBacking::Regions);
                    let mut blocks = Vec::new();
                    for (value, bytes) in [1000, MIB, 300, 7 * MIB, 60_000, 3 * MIB]
                        .iter()
                        .enumerate()
                    {
                        blocks.push((value, setup.alloc(value % 2, *bytes, value as u8)));
                    }
                    let live: u64 = blocks.iter().map(|(_, block)| block.bytes()).sum();
                    assert_eq!(memory.stats().live_bytes, live);
                    for (value, block) in blocks {
                        let at = block.addr().get();
                        assert_filled(&setup.streams[value % 2], at, block.bytes(), value as u8);
                        setup.free_pending(value % 2, block);
                    }
                    // What the other stream used is given after a wait of the device.
                    for stream in [0, 1, 0] {
                        let block = setup.alloc(stream, 9 * MIB, 9);
                        assert_filled(&setup.streams[stream], block.addr().get(), MIB, 9);
                        setup.free(stream, block);
                    }
                    setup.context.synchronize().unwrap();
                    let held = memory.stats().reserved_bytes;
                    assert_eq!(memory.release(u64::MAX).now_bytes, held);
                    assert_eq!(memory.stats().reserved_bytes, 0);
                });
            }
        }
    });
}

#[test]
fn regions_obey_limits_and_are_given_back_for_others() {
    alone_and_clean(|control| {
        control.virtual_memory(false);
        let setup = Setup::new(1, DeviceConfig::with_budget(8 * MIB));
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let small = [(); 3].map(|()| setup.alloc(0, 2 * MIB, 1));
        let refused = memory.alloc(stream, 4 * MIB).unwrap_err();
        assert!(
            matches!(refused, DeviceAllocError::Memory { .. }),
            "{refused}"
        );
        small.into_iter().for_each(|block| setup.free(0, block));
        // The three regions go, and one of their length comes.
        let large = setup.alloc(0, 8 * MIB, 2);
        assert_eq!(memory.stats().reserved_bytes, 8 * MIB);
        assert_eq!(control.used(0), 8 * MIB);
        let _ = memory.set_limit(4 * MIB);
        setup.free(0, large);
        assert_eq!(memory.stats().reserved_bytes, 0);
        assert!(memory.alloc(stream, 5 * MIB).is_err());
        let block = setup.alloc(0, 4 * MIB, 3);
        setup.free(0, block);
    });
}

#[test]
fn what_regions_cannot_do_is_refused_in_words() {
    alone_and_clean(|control| {
        control.virtual_memory(false);
        let setup = Setup::new(1, DeviceConfig::new());
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let block = setup.alloc(0, MIB, 1);
        let slept = memory.sleep().unwrap_err();
        assert_eq!(slept, SleepError::Regions);
        assert!(slept.to_string().contains("no virtual memory"), "{slept}");
        assert!(!memory.is_asleep());
        assert_eq!(memory.wake(), Ok(0));
        #[cfg(unix)]
        assert!(memory.export(&block).is_err());
        setup.free(0, block);
        let refused = memory.alloc_fixed(MIB).unwrap_err();
        assert!(
            refused.to_string().contains("stays where it is"),
            "{refused}"
        );
        // A step serves, and plans nothing.
        for _ in 0..4 {
            let _step = memory.step(stream).unwrap();
            let block = setup.alloc(0, MIB, 1);
            setup.free(0, block);
        }
        assert_eq!(memory.step_stats(stream), None);
        let window = memory.prime(stream, MIB).unwrap();
        drop(window);
        assert_eq!(memory.driver_calls().total(), 0);
        for (shareable, peers) in [(true, vec![]), (false, vec![1])] {
            let config = DeviceConfig {
                shareable,
                peers,
                ..DeviceConfig::new()
            };
            let refused = DeviceAllocator::with_config(&setup.context, config).unwrap_err();
            assert!(refused.to_string().contains("virtual memory"), "{refused}");
        }
    });
}
