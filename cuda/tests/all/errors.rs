//! Texts and effects of errors. Memory that the driver refuses to take back is not lost.

use crate::common;

use std::process::Command;

use common::{MIB, alone_and_clean, request, together};
use larder_core::{Align, GrowRequest, SubAllocError, SubAllocator};
use larder_cuda::driver::Rule;
use larder_cuda::{
    Context, DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceMemory, DriverError,
    DriverPool, Event, EventConfig, LoadError, ManagedMemory, VirtualConfig, VirtualMemory,
};
use larder_cuda_abi::{Code, constants};

#[test]
fn a_main_that_returns_an_error_prints_what_to_do() {
    let value = "gpu".to_owned();
    let errors: [Box<dyn std::error::Error>; 2] = [
        Box::new(LoadError::Choice { value }),
        Box::new(DeviceAllocError::Stream),
    ];
    let words = [
        "must be stand-in, real or auto",
        "make one in the allocator",
    ];
    for (error, words) in errors.iter().zip(words) {
        let said = format!("{error:?}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn no_memory_is_an_error_that_names_the_call() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let source = DeviceMemory::new(&context);
    let all = context.device_info().unwrap().total_bytes;
    assert_eq!(source.last_error(), None);
    assert_eq!(source.grow(request(2 * all)), Err(SubAllocError));
    let error = source.last_error().unwrap();
    let expected = DriverError::Call {
        function: "cuMemAlloc_v2",
        code: Code::OUT_OF_MEMORY,
    };
    assert_eq!(error, expected);
    assert!(error.is_out_of_memory());
}

#[test]
fn nothing_has_no_size() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let alloc = context.try_current(|driver| driver.alloc_device(0));
    assert_eq!(alloc, Err(DriverError::Size { bytes: 0 }));
    let range = VirtualMemory::new(&context, 0).unwrap_err();
    assert_eq!(range, DriverError::Size { bytes: 0 });
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let _turn = together();
    // Truncated to 32 bits, `1 << 32` would be device 0.
    for ordinal in [4711, 1 << 32, usize::MAX] {
        let error = Context::new(ordinal).unwrap_err();
        let LoadError::Call(DriverError::Call { code, function }) = error else {
            panic!("{error}");
        };
        assert_eq!(code, Code::INVALID_DEVICE);
        assert_eq!(function, "cuDeviceGet");
        assert!(error.to_string().contains("device_count"), "{error}");
    }
}

#[test]
fn what_is_refused_half_way_goes_later() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let pages = VirtualMemory::new(&context, 64 * MIB).unwrap();
        let range = pages.grow(request(8 * MIB)).unwrap();
        control
            .fail(Rule::of("cuMemUnmap").after(1).times(2))
            .unwrap();
        pages.release(range).unwrap();
        assert!(pages.held_bytes() > 0, "one piece keeps its place");
        // The next call first unmaps the rest, so the address is free.
        assert_eq!(pages.grow(request(8 * MIB)), Ok(range));
        pages.release(range).unwrap();
        assert_eq!(control.used(0), 0);
    });
}

#[test]
fn what_is_refused_in_a_drop_is_deferred_and_goes_with_the_next_release() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let device = DeviceMemory::new(&context);
        device.grow(request(2 * MIB)).unwrap();
        let event = Event::new(&context, EventConfig::default()).unwrap();
        control.fail(Rule::of("cuMemFree_v2")).unwrap();
        drop(device);
        assert_eq!(context.refused_frees(), 1);
        assert!(control.used(0) > 0);
        drop(event);
        assert_eq!(context.refused_frees(), 0);
        assert_eq!(control.used(0), 0);
    });
}

#[test]
fn refused_frees_serve_when_memory_is_short() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let max = common::DEVICE_BYTES / 4 * 3;
        let first = DeviceMemory::new(&context);
        first.grow(request(max)).unwrap();
        control.fail(Rule::of("cuMemFree_v2")).unwrap();
        drop(first);
        let second = DeviceMemory::new(&context);
        second.grow(request(max)).unwrap();
        assert_eq!(context.refused_frees(), 0);
    });
}

#[test]
fn managed_regions_together_are_never_more_than_the_device_holds() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let source = ManagedMemory::new(&context).unwrap();
        let part = source.max_bytes() / 5 * 3;
        // The memory is never touched, so the device's free memory does not change.
        let first = source.grow(request(part)).unwrap();
        assert_eq!(source.grow(request(part)), Err(SubAllocError));
        let error = source.last_error().unwrap();
        assert!(error.is_out_of_memory(), "{error}");
        assert!(
            matches!(error, DriverError::Oversubscribed { .. }),
            "{error}"
        );
        source.release(first).unwrap();
        source.grow(request(part)).unwrap();
    });
}

/// Runs in a child process with an old driver, and does nothing elsewhere.
#[test]
fn child_with_an_old_driver() {
    let Ok(version) = std::env::var("LARDER_STAND_IN_VERSION") else {
        return;
    };
    let version: u32 = version.parse().unwrap();
    let context = Context::new(0).unwrap();
    assert_eq!(context.driver().version(), version);
    let missing = |function, needs_version| DriverError::Missing {
        function,
        needs_version,
        version,
    };
    let pool = DriverPool::new(&context).map(|_| ());
    assert_eq!(pool, Err(missing("cuMemPoolCreate", 11_020)));
    let pages = VirtualMemory::new(&context, MIB).map(|_| ());
    let device = DeviceMemory::new(&context);
    device.grow(request(MIB)).unwrap();
    if version < 10_020 {
        let error = missing("cuMemGetAllocationGranularity", 10_020);
        assert_eq!(pages, Err(error));
    } else {
        assert_eq!(pages, Ok(()));
    }
}

#[test]
fn an_old_driver_misses_functions_and_nothing_panics() {
    for version in ["11010", "10010"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["errors::child_with_an_old_driver", "--exact", "--nocapture"])
            .env("LARDER_CUDA_DRIVER", "stand-in")
            .env("LARDER_STAND_IN_VERSION", version)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{version}: {said}{text}"
        );
    }
}

#[test]
fn a_peer_that_cannot_reach_the_memory_is_refused_at_once() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let with_peers = |peers| {
            let config = VirtualConfig {
                peers,
                ..VirtualConfig::new(64 * MIB)
            };
            VirtualMemory::with_config(&context, &config)
        };
        let error = with_peers(vec![7]).unwrap_err();
        assert_eq!(error.code(), Some(Code::INVALID_DEVICE));
        assert!(with_peers(vec![-1]).is_err());

        // A peer that is named twice, or is the device itself, counts once.
        let memory = with_peers(vec![1, 0, 1]).unwrap();
        let range = memory.grow(request(MIB)).unwrap();
        let driver = context.driver();
        for device in 0..2 {
            let access = driver.access(range.start().get(), device).unwrap();
            assert_eq!(access, u64::from(constants::MEM_ACCESS_READ_WRITE));
        }
    });
}

#[test]
fn no_addresses_left_is_an_error_that_says_so() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let memory = VirtualMemory::new(&context, 8 * MIB).unwrap();
        let held = memory.grow(request(6 * MIB)).unwrap();
        memory.grow(request(4 * MIB)).unwrap_err();
        let error = memory.last_error().unwrap();
        assert!(matches!(error, DriverError::Addresses { .. }), "{error:?}");
        assert!(error.to_string().contains("reserve more"), "{error}");
        memory.grow(request(2 * MIB)).unwrap();
        memory.grow(request(1)).unwrap_err();
        memory.release(held).unwrap();
        memory.grow(request(4 * MIB)).unwrap();
        for bytes in [0, u64::MAX, u64::MAX - MIB, 1 << 63] {
            memory.grow(request(bytes)).unwrap_err();
            assert!(VirtualMemory::new(&context, bytes).is_err(), "{bytes}");
        }
        let far = GrowRequest {
            align: Align::new(1 << 63).unwrap(),
            ..request(MIB)
        };
        memory.grow(far).unwrap_err();
        assert!(DeviceMemory::new(&context).grow(far).is_err());
    });
}

#[test]
fn errors_and_objects_go_to_other_threads() {
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    fn is_shared<T: Send + Sync + 'static>() {}
    is_error::<DriverError>();
    is_error::<LoadError>();
    is_shared::<Context>();
    is_shared::<Event>();
    is_shared::<DeviceMemory>();
    is_shared::<ManagedMemory>();
    is_shared::<DriverPool>();
    is_shared::<VirtualMemory>();
}

#[test]
fn an_error_says_whether_memory_was_missing() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let config = DeviceConfig::with_budget(4 * MIB);
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let is_out = |bytes| memory.alloc(&stream, bytes).unwrap_err().is_out_of_memory();
        assert!(is_out(5 * MIB));
        assert!(!is_out(0));
        let window = memory.prime(&stream, MIB).unwrap();
        assert!(is_out(2 * MIB), "more than the window has");
        drop(window);
        for (code, expected) in [(Code::OUT_OF_MEMORY, true), (Code::UNKNOWN, false)] {
            let rule = Rule::of("cuStreamIsCapturing").with(code);
            control.fail(rule).unwrap();
            assert_eq!(is_out(MIB), expected, "{code:?}");
        }
        control.clear_failures();
        memory.sleep().unwrap();
        assert!(!is_out(MIB), "asleep");
    });
}

#[test]
fn statistics_are_lines_for_people() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let config = DeviceConfig::with_budget(4 * MIB);
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let block = memory.alloc(&stream, MIB).unwrap();
        let line = "live 1 MiB (most 1 MiB), held 2 MiB (most 2 MiB), limit 4 MiB (4,194,304 bytes); 1 allocations, \
                    the largest 1 MiB";
        assert_eq!(memory.stats().to_string(), line);
        memory.free(&stream, block).unwrap();
        let of_stream = memory.streams()[0].to_string();
        let expected =
            ": 1 allocations of 1 MiB, 1 frees of 1 MiB, an arena of 0 bytes, 0 waits, 0 events";
        assert!(
            of_stream.starts_with("stream 0x") && of_stream.ends_with(expected),
            "{of_stream}"
        );
    });
}
