//! The devices' allocators of each kind, each made once by the first request.

use std::sync::Barrier;

use larder_core::{AllocError, FreeError};
use larder_cuda::runtime::{
    GpuAllocator, GpuKind, GpuOptions, LimitMismatch, LogicalDevice, RuntimeError,
};
use larder_cuda::{DeviceAllocError, DeviceFreeError};

use crate::common::{
    DEVICE_BYTES, MIB, alone, alone_and_clean, assert_filled, fill, ran_in_child, streams,
};
use crate::runtime::rig::{
    each, end, gpu, growing, kinds, of_kind, on_gpus, runtime, stream_of, ways, with_devices,
};

#[test]
fn ps_1_two_requests_for_a_gpu_give_the_same_allocator() {
    each(kinds(), |way, runtime| {
        let request = |id| runtime.gpu_allocator(id, &way.options, 16 * MIB);
        let [first, again, other] = [0, 0, 1].map(|id| request(id).unwrap());
        assert!(first.allocator.is(&again.allocator));
        assert!(!first.allocator.is(&other.allocator));
        assert_eq!((first.mismatch, again.mismatch), (None, None));
        assert_eq!((other.allocator.id(), other.allocator.ordinal()), (1, 1));
        assert_eq!(first.allocator.limit_bytes(), 16 * MIB);
        let error = request(2).unwrap_err();
        assert_eq!(error, RuntimeError::Device { id: 2, count: 2 });
    });
}

#[test]
fn ps_7_another_limit_later_is_noted_and_changes_nothing() {
    each(kinds(), |way, runtime| {
        let first = way.gpu(runtime, 0, 16);
        for bytes in [16 * MIB - 1, 16 * MIB + 1, 0, u64::MAX] {
            let again = runtime.gpu_allocator(0, &way.options, bytes).unwrap();
            let note = LimitMismatch {
                asked_bytes: bytes,
                made_bytes: 16 * MIB,
            };
            assert_eq!(again.mismatch, Some(note));
            assert!(again.allocator.is(&first));
            assert_eq!(again.allocator.limit_bytes(), 16 * MIB);
        }
        assert_eq!(runtime.gpu(0, &way.options).unwrap().mismatch, None);
    });
}

#[test]
fn the_names_are_those_of_upstream() {
    each(ways(), |way, runtime| {
        let gpu = way.gpu(runtime, 1, 16);
        assert_eq!((gpu.name(), gpu.kind()), (way.name, way.kind));
    });
}

#[test]
fn the_type_is_empty_or_bfc() {
    on_gpus(of_kind(GpuKind::Default), |runtime| {
        let request = |text: &str| {
            let options = GpuOptions {
                allocator_type: text.to_owned(),
                ..growing()
            };
            runtime.gpu_allocator(0, &options, 16 * MIB)
        };
        for text in ["bfc", "BFC ", "cuda_malloc"] {
            let text = text.to_owned();
            let error = request(&text).unwrap_err();
            assert_eq!(error, RuntimeError::AllocatorType { text });
        }
        assert!(!runtime.gpus_enabled(), "nothing was made");
        request("BFC").unwrap();
        assert!(runtime.gpus_enabled());
    });
}

#[test]
fn of_many_first_requests_for_a_gpu_one_builds() {
    alone_and_clean(|control| {
        for way in kinds() {
            let runtime = runtime(way.config.clone());
            let together = Barrier::new(8);
            let function = match way.kind {
                GpuKind::CudaMallocAsync => "cuMemPoolCreate",
                _ => "cuMemAddressReserve",
            };
            let before = control.calls(Some(function));
            let request = |index| {
                together.wait();
                way.gpu(&runtime, 0, index)
            };
            std::thread::scope(|scope| {
                let start = |index| scope.spawn(move || request(index));
                let threads = [1, 2, 3, 4, 5, 6, 7, 8].map(start);
                let made = threads.map(|thread| thread.join().unwrap());
                assert!(made.iter().all(|one| one.is(&made[0])), "{}", way.words());
            });
            let built = control.calls(Some(function)) - before;
            let expected = u64::from(way.kind != GpuKind::CudaMalloc);
            assert_eq!(built, expected, "{}", way.words());
            end(runtime);
        }
    });
}

/// Allocates and frees blocks on two streams, with work in flight at each free, and requests more than the limit.
fn exercise(gpu: &GpuAllocator, limit_bytes: u64) {
    let streams = streams(gpu.context(), 2);
    for round in 0..4 {
        let mut live = Vec::new();
        for index in 0..6_u64 {
            let stream = &streams[index as usize % 2];
            let bytes = 1000 + index * 300_000;
            let block = gpu.alloc(stream, bytes).unwrap();
            assert_eq!(gpu.info(&block).unwrap().requested_bytes, bytes);
            fill(stream, block.addr().get(), bytes, round * 10 + index as u8);
            live.push((index, bytes, block));
        }
        for (index, bytes, block) in live {
            let stream = &streams[index as usize % 2];
            assert_filled(stream, block.addr().get(), bytes, round * 10 + index as u8);
            fill(stream, block.addr().get(), bytes, 255);
            gpu.free(stream, block).unwrap();
        }
    }
    let stream = &streams[0];
    let zero = DeviceAllocError::Memory {
        reason: AllocError::ZeroSize,
        driver: None,
    };
    assert_eq!(gpu.alloc(stream, 0), Err(zero));
    for bytes in [limit_bytes + 1, u64::MAX] {
        assert!(gpu.alloc(stream, bytes).is_err(), "{bytes}");
    }
    assert_eq!((gpu.live().blocks, gpu.take_finding()), (0, None));
}

#[test]
fn blocks_of_each_kind_hold_their_bytes_in_the_order_of_streams() {
    if ran_in_child() {
        return;
    }
    alone_and_clean(|control| {
        for seed in [None, Some(1), Some(2), Some(3)] {
            match seed {
                None => control.schedule_eagerly(),
                Some(seed) => control.schedule_deferred(seed),
            }
            for way in ways() {
                println!("{}, seed {seed:?}", way.words());
                let runtime = runtime(way.config.clone());
                let gpu = way.gpu(&runtime, 0, 64);
                let is_managed = way.options.unified_memory;
                let driver_pools = [GpuKind::CudaMalloc, GpuKind::CudaMallocAsync];
                let is_device = !is_managed && !driver_pools.contains(&way.kind);
                assert_eq!(gpu.device_allocator().is_some(), is_device);
                exercise(&gpu, 64 * MIB);
                drop(gpu);
                end(runtime);
            }
        }
        control.schedule_eagerly();
    });
}

#[test]
fn the_limit_of_each_kind_is_met_exactly() {
    each(kinds(), |way, runtime| {
        let gpu = way.gpu(runtime, 0, 16);
        let stream = stream_of(&gpu);
        // Guards count as well: the front guard has as many bytes as the block's alignment, the tail guard 16.
        let guards = match way.kind {
            GpuKind::MemoryGuard => 256 + 16,
            _ => 0,
        };
        let max_bytes = 16 * MIB - guards;
        assert!(gpu.alloc(&stream, max_bytes + 1).is_err());
        for _ in 0..2 {
            let whole = gpu.alloc(&stream, max_bytes).unwrap();
            let error = gpu.alloc(&stream, 1).unwrap_err();
            assert!(error.to_string().contains("limit"), "{error}");
            gpu.free(&stream, whole).unwrap();
        }
    });
}

#[test]
fn a_block_of_another_device_is_refused_and_comes_back() {
    alone_and_clean(|_| {
        for way in kinds() {
            let runtime = with_devices(way.config.clone(), LogicalDevice::parts(0, &[64, 64]));
            let [one, two] = [0, 1].map(|id| way.gpu(&runtime, id, 64));
            let stream = stream_of(&one);
            let block = one.alloc(&stream, 1000).unwrap();
            let rejected = two.free(&stream, block).unwrap_err();
            let unknown = DeviceFreeError::Block(FreeError::Unknown);
            assert_eq!(rejected.error, unknown, "{}", way.words());
            one.free(&stream, rejected.value).unwrap();
            drop((one, two));
            end(runtime);
        }
    });
}

#[test]
fn memory_of_blocks_that_are_out_is_left_alone_and_reported() {
    let Some((control, turn)) = alone() else {
        return;
    };
    for way in ways() {
        println!("{}", way.words());
        let runtime = runtime(way.config.clone());
        let gpu = way.gpu(&runtime, 0, 16);
        let (stream, name) = (stream_of(&gpu), gpu.name().to_owned());
        let block = gpu.alloc(&stream, MIB).unwrap();
        fill(&stream, block.addr().get(), MIB, 77);
        drop(gpu);
        let report = runtime.shutdown().unwrap();
        let left = &report.left[0];
        assert_eq!((report.blocks(), left.shared), (1, false));
        assert!(left.name == name && left.bytes >= MIB, "{report}");
        // The block's memory still exists, and nothing else uses it.
        assert_filled(&stream, block.addr().get(), MIB, 77);
        stream.synchronize().unwrap();
    }
    assert_eq!(control.findings(), Vec::<String>::new());
    // Removes the blocks that were left on purpose, before the next test.
    control.reset(2, DEVICE_BYTES);
    drop(turn);
}

#[test]
fn an_allocator_that_is_held_outlives_its_runtime() {
    alone_and_clean(|_| {
        for way in ways() {
            println!("{}", way.words());
            let runtime = runtime(way.config.clone());
            let gpu = way.gpu(&runtime, 0, 64);
            let report = runtime.shutdown().unwrap();
            assert!(report.left[0].shared && report.blocks() == 0);
            exercise(&gpu, 64 * MIB);
        }
    });
}

#[test]
fn a_tensor_pool_plans_the_steps_of_its_stream() {
    on_gpus(of_kind(GpuKind::TensorPool), |runtime| {
        let gpu = gpu(runtime, 0, 256);
        let [stream, other] = [0, 1].map(|_| stream_of(&gpu));
        let none = gpu.tensor_pool(&stream);
        assert!(none.is_none(), "not before its first block");
        let first = gpu.alloc(&stream, 1000).unwrap();
        let pool = gpu.tensor_pool(&stream).unwrap();
        // After the free on `other`, `stream` reuses the block only behind `other`'s work.
        fill(&stream, first.addr().get(), 1000, 1);
        let memory = gpu.device_allocator().unwrap();
        memory.order_after(&other, &stream).unwrap();
        fill(&other, first.addr().get(), 1000, 2);
        gpu.free(&other, first).unwrap();
        for _ in 0..300 {
            let step = pool.step();
            let blocks = [2, 3, 5].map(|size| gpu.alloc(&stream, size * MIB).unwrap());
            for block in blocks {
                fill(&stream, block.addr().get(), block.bytes(), 3);
                gpu.free(&stream, block).unwrap();
            }
            drop(step);
        }
        assert!(pool.is_planned());
    });
}
