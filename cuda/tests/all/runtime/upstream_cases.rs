//! The cases of upstream's device tests that use its process state, which has no tests of its own.

use larder_core::{Block, Placement};
use larder_cuda::runtime::{
    GpuAllocator, GpuKind, GpuOptions, LogicalDevice, Runtime, RuntimeConfig, RuntimeError,
    limit_of_available, limit_of_fraction,
};
use larder_cuda::{Context, DeviceAllocError, DriverError};

use crate::common::{DEVICE_BYTES, MIB, alone, alone_and_clean, assert_filled, fill};
use crate::runtime::rig::{end, of_kind, on_gpus, stream_of, unified, with, with_devices};

fn is_on_host(gpu: &GpuAllocator, block: &Block) -> bool {
    gpu.info(block).unwrap().placement == Placement::Host
}

/// Returns device 0's allocator, which has its whole limit from the start.
fn whole(runtime: &Runtime, bytes: u64) -> GpuAllocator {
    let given = runtime.gpu_allocator(0, &GpuOptions::default(), bytes);
    given.unwrap().allocator
}

/// Checks that each virtual device of device 0 has its number and its limit, and that there are no more devices.
fn virtual_devices(mebibytes: &[u64]) {
    alone_and_clean(|_| {
        let devices = LogicalDevice::parts(0, mebibytes);
        let runtime = with_devices(RuntimeConfig::default(), devices);
        let options = GpuOptions::default();
        assert_eq!(runtime.gpu_count(), Ok(mebibytes.len()));
        for (id, mebibytes) in mebibytes.iter().enumerate() {
            let gpu = runtime.gpu(id, &options).unwrap().allocator;
            assert_eq!(gpu.limit_bytes(), mebibytes * MIB);
            assert_eq!((gpu.id(), gpu.ordinal()), (id, 0));
        }
        assert!(runtime.gpu(mebibytes.len(), &options).is_err());
        end(runtime);
    });
}

#[test]
fn s1_7_one_virtual_device_of_123_mib() {
    virtual_devices(&[123]);
}

#[test]
fn s1_7_two_virtual_devices_of_123_and_456_mib() {
    virtual_devices(&[123, 456]);
}

#[test]
fn s1_7_a_fraction_above_one_is_a_limit_above_the_device() {
    on_gpus(with(|_| ()), |runtime| {
        let options = GpuOptions {
            memory_fraction: 1.2,
            ..GpuOptions::default()
        };
        let limit = (DEVICE_BYTES as f64 * 1.2) as u64;
        assert_eq!(runtime.memory_limit(0, &options), Ok(limit));
        let gpu = runtime.gpu(0, &options).unwrap().allocator;
        assert_eq!(gpu.limit_bytes(), limit);
        // One block of the whole limit fits only in host memory.
        let stream = stream_of(&gpu);
        let all = gpu.alloc(&stream, limit / MIB * MIB).unwrap();
        assert!(is_on_host(&gpu, &all));
        gpu.free(&stream, all).unwrap();
        // Smaller blocks fill the device before the host.
        let blocks = [(); 12].map(|()| gpu.alloc(&stream, 100 * MIB).unwrap());
        let on_host = blocks.each_ref().map(|block| is_on_host(&gpu, block));
        assert!(!on_host[0]);
        assert_eq!(on_host.into_iter().filter(|on_host| *on_host).count(), 2);
        assert_eq!(gpu.live().blocks, 12);
        for block in blocks {
            gpu.free(&stream, block).unwrap();
        }
        assert_eq!(gpu.live().blocks, 0);
    });
}

#[test]
fn s1_7_a_fraction_above_one_on_an_older_device_is_oversubscription() {
    let Some((_control, _turn)) = alone() else {
        return;
    };
    let mut device = Context::new(0).unwrap().device_info().unwrap();
    assert_eq!(limit_of_fraction(&device, 2.0), Ok(2 * DEVICE_BYTES));
    device.compute_capability = (6, 0);
    assert!(limit_of_fraction(&device, 1.2).is_ok());
    for (capability, managed) in [((5, 9), true), ((9, 0), false)] {
        device.compute_capability = capability;
        device.managed = managed;
        let error = limit_of_fraction(&device, 1.2).unwrap_err();
        let wanted = RuntimeError::Oversubscription {
            fraction: 1.2,
            compute_capability: capability,
        };
        assert_eq!(error, wanted);
        assert!(error.to_string().contains("oversubscription"));
        assert_eq!(limit_of_fraction(&device, 1.0), Ok(DEVICE_BYTES));
        assert_eq!(limit_of_fraction(&device, 0.5), Ok(DEVICE_BYTES / 2));
    }
    for fraction in [-0.1, f64::NAN, f64::INFINITY, 0.0, 1e300] {
        let error = limit_of_fraction(&device, fraction).unwrap_err();
        assert!(matches!(error, RuntimeError::Fraction { .. }), "{error}");
    }
}

#[test]
fn ps_9_without_a_fraction_the_limit_is_the_formula_of_what_is_free() {
    on_gpus(with(|_| ()), |runtime| {
        let options = GpuOptions::default();
        let context = Context::new(0).unwrap();
        let (available, _) = context.try_current(|driver| driver.memory_info()).unwrap();
        let limit = limit_of_available(available);
        assert_eq!(limit, available - 225 * MIB);
        assert_eq!(runtime.memory_limit(0, &options), Ok(limit));
        let given = runtime.gpu(0, &options).unwrap();
        assert_eq!(given.allocator.limit_bytes(), limit);
    });
}

#[test]
fn s1_5_a_runtime_after_another_begins_anew() {
    for mebibytes in [16, 32, 16] {
        on_gpus(with(|_| ()), |runtime| {
            assert!(!runtime.gpus_enabled());
            let options = GpuOptions::default();
            let given = runtime.gpu_allocator(0, &options, mebibytes * MIB).unwrap();
            assert_eq!(given.mismatch, None);
            assert_eq!(given.allocator.limit_bytes(), mebibytes * MIB);
        });
    }
}

#[test]
fn managed_memory_is_never_more_than_the_device_has() {
    on_gpus(of_kind(GpuKind::Default), |runtime| {
        let given = runtime.gpu_allocator(0, &unified(), 2 * DEVICE_BYTES);
        let gpu = given.unwrap().allocator;
        let stream = stream_of(&gpu);
        let error = gpu.alloc(&stream, DEVICE_BYTES + MIB).unwrap_err();
        let DeviceAllocError::Memory { driver, .. } = error else {
            panic!("{error}")
        };
        assert!(matches!(driver, Some(DriverError::Oversubscribed { .. })));
        let block = gpu.alloc(&stream, DEVICE_BYTES / 2).unwrap();
        gpu.free(&stream, block).unwrap();
    });
}

#[test]
fn s7_1_a_device_that_is_full_goes_on_in_host_memory_unless_it_is_off() {
    for (vmem, name) in [(true, "GPUVMem_0_bfc"), (false, "GPU_0_bfc")] {
        let config = with(|config| {
            (config.vmem, config.vmem_host_limit_bytes) = (vmem, 32 * MIB);
        });
        on_gpus(config, |runtime| {
            let gpu = whole(runtime, 16 * MIB);
            assert_eq!((gpu.name(), gpu.limit_bytes()), (name, 16 * MIB));
            assert_eq!(gpu.vmem_allocator().is_some(), vmem);
            let stream = stream_of(&gpu);
            let first = gpu.alloc(&stream, 16 * MIB).unwrap();
            assert!(!is_on_host(&gpu, &first));
            match gpu.alloc(&stream, 16 * MIB) {
                Ok(second) => {
                    assert!(vmem && is_on_host(&gpu, &second));
                    fill(&stream, second.addr().get(), 16 * MIB, 42);
                    assert_filled(&stream, second.addr().get(), 16 * MIB, 42);
                    gpu.free(&stream, second).unwrap();
                }
                Err(error) => assert!(!vmem, "{error}"),
            }
            let more = gpu.alloc(&stream, 33 * MIB);
            assert!(more.is_err(), "more than the host's limit");
            gpu.free(&stream, first).unwrap();
        });
    }
}

#[test]
fn s7_1_the_planned_share_closes_the_host_side() {
    on_gpus(with(|config| config.planned_percent = 1), |runtime| {
        let gpu = whole(runtime, 16 * MIB);
        let stream = stream_of(&gpu);
        // The first block is already larger than one percent of the device.
        let first = gpu.alloc(&stream, 16 * MIB).unwrap();
        let error = gpu.alloc(&stream, MIB).unwrap_err();
        assert!(matches!(error, DeviceAllocError::Planned { .. }), "{error}");
        gpu.free(&stream, first).unwrap();
    });
}
