//! Devices and systems that lack something: few addresses, or no virtual memory. A script covers the blocks of regions.

use larder_cuda::driver::StandIn;
use larder_cuda::{
    Context, DeviceAllocator, DeviceBacking, DeviceConfig, DriverError, SleepError, VirtualMemory,
};

use crate::common::setup::Setup;
use crate::common::{DEVICE_BYTES, MIB, alone_and_clean, assert_filled, fill};

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
fn what_regions_cannot_do_is_refused_in_words() {
    alone_and_clean(|control| {
        control.virtual_memory(false);
        let setup = Setup::new(1, DeviceConfig::new());
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        assert_eq!(memory.backing(), DeviceBacking::Regions);
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
        // A step allocates, but is not planned.
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
