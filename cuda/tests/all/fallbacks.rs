//! Devices and systems that lack something: few addresses, no virtual memory.

use larder_cuda::driver::StandIn;
use larder_cuda::{Context, DeviceAllocator, DeviceConfig, DriverError, VirtualMemory};

use crate::common::{DEVICE_BYTES, MIB, alone_and_clean, assert_filled, fill};

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
