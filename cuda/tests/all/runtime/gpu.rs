//! The devices' allocators: made once, by the first request, of each kind.

use std::sync::{Arc, Barrier};

use larder_core::{AllocError, FreeError};
use larder_cuda::runtime::{
    GpuAllocator, GpuKind, GpuOptions, LimitMismatch, LogicalDevice, RuntimeConfig, RuntimeError,
};
use larder_cuda::{CudaStream, DeviceAllocError, DeviceFreeError};

use crate::common::{
    MIB, alone, alone_and_clean, assert_clean, assert_filled, fill, ran_in_child, streams,
};
use crate::runtime::rig::{runtime, with_devices};

pub(crate) const KINDS: [GpuKind; 5] = [
    GpuKind::Default,
    GpuKind::CudaMalloc,
    GpuKind::CudaMallocAsync,
    GpuKind::TensorPool,
    GpuKind::MemoryGuard,
];

pub(crate) fn of_kind(gpu_kind: GpuKind) -> RuntimeConfig {
    RuntimeConfig {
        gpu_kind,
        vmem: false,
        ..RuntimeConfig::default()
    }
}

pub(crate) fn growing() -> GpuOptions {
    GpuOptions {
        allow_growth: true,
        ..GpuOptions::default()
    }
}

#[test]
fn ps_1_two_requests_for_a_gpu_give_the_same_allocator() {
    alone_and_clean(|_| {
        for kind in KINDS {
            let runtime = runtime(of_kind(kind));
            let first = runtime.gpu_allocator(0, &growing(), 16 * MIB).unwrap();
            let again = runtime.gpu_allocator(0, &growing(), 16 * MIB).unwrap();
            let other = runtime.gpu_allocator(1, &growing(), 16 * MIB).unwrap();
            assert!(first.allocator.is(&again.allocator));
            assert!(!first.allocator.is(&other.allocator));
            assert_eq!((first.mismatch, again.mismatch), (None, None));
            assert_eq!((other.allocator.id(), other.allocator.ordinal()), (1, 1));
            assert_eq!(first.allocator.limit_bytes(), 16 * MIB);
            let error = runtime.gpu_allocator(2, &growing(), 16 * MIB).unwrap_err();
            assert_eq!(error, RuntimeError::Device { id: 2, count: 2 });
            drop((first, again, other));
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

#[test]
fn ps_7_another_limit_later_is_noted_and_changes_nothing() {
    alone_and_clean(|_| {
        for kind in KINDS {
            let runtime = runtime(of_kind(kind));
            let first = runtime.gpu_allocator(0, &growing(), 16 * MIB).unwrap();
            for bytes in [16 * MIB - 1, 16 * MIB + 1, 0, u64::MAX] {
                let again = runtime.gpu_allocator(0, &growing(), bytes).unwrap();
                let note = LimitMismatch {
                    asked_bytes: bytes,
                    made_bytes: 16 * MIB,
                };
                assert_eq!(again.mismatch, Some(note));
                assert!(again.allocator.is(&first.allocator));
                assert_eq!(again.allocator.limit_bytes(), 16 * MIB);
            }
            assert!(runtime.gpu(0, &growing()).unwrap().mismatch.is_none());
        }
    });
}

#[test]
fn the_names_are_those_of_upstream() {
    let Some((_control, _turn)) = alone() else {
        return;
    };
    let names = [
        "GPU_1_bfc",
        "GPU_1_cuda_malloc",
        "GPU_1_cuda_malloc_async",
        "GPU_1_tensorpool",
        "GPU_1_bfc",
    ];
    for (kind, name) in KINDS.into_iter().zip(names) {
        let gpu = runtime(of_kind(kind))
            .gpu_allocator(1, &growing(), 16 * MIB)
            .unwrap()
            .allocator;
        assert_eq!((gpu.name(), gpu.kind()), (name, kind));
    }
}

#[test]
fn the_type_is_empty_or_bfc() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let runtime = runtime(of_kind(GpuKind::Default));
    for text in ["bfc", "BFC ", "cuda_malloc"] {
        let options = GpuOptions {
            allocator_type: text.to_owned(),
            ..growing()
        };
        let error = runtime.gpu_allocator(0, &options, MIB).unwrap_err();
        assert_eq!(
            error,
            RuntimeError::AllocatorType {
                text: text.to_owned()
            }
        );
    }
    assert!(!runtime.gpus_enabled(), "nothing was made");
    let options = GpuOptions {
        allocator_type: "BFC".to_owned(),
        ..growing()
    };
    assert!(runtime.gpu_allocator(0, &options, 16 * MIB).is_ok());
    assert!(runtime.gpus_enabled());
    assert_clean_after(control, runtime);
}

fn assert_clean_after(control: &larder_cuda::driver::StandIn, runtime: larder_cuda::Runtime) {
    assert!(runtime.shutdown().unwrap().is_clean());
    assert_clean(control);
}

#[test]
fn of_many_first_requests_for_a_gpu_one_builds() {
    alone_and_clean(|control| {
        for kind in KINDS {
            let runtime = runtime(of_kind(kind));
            let together = Barrier::new(8);
            let reserved = control.calls(Some("cuMemAddressReserve"));
            let pools = control.calls(Some("cuMemPoolCreate"));
            let made: Vec<GpuAllocator> = std::thread::scope(|scope| {
                let request = |index: u64| {
                    let (runtime, together) = (&runtime, &together);
                    move || {
                        together.wait();
                        runtime
                            .gpu_allocator(0, &growing(), index * MIB)
                            .unwrap()
                            .allocator
                    }
                };
                let threads: Vec<_> = (1..=8).map(|index| scope.spawn(request(index))).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            assert!(made.iter().all(|one| one.is(&made[0])), "{kind:?}");
            let built = match kind {
                GpuKind::CudaMallocAsync => control.calls(Some("cuMemPoolCreate")) - pools,
                GpuKind::CudaMalloc => 1,
                _ => control.calls(Some("cuMemAddressReserve")) - reserved,
            };
            assert_eq!(built, 1, "{kind:?}");
            drop(made);
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

/// Blocks on two streams, with work in flight when they are freed, up to the limit.
fn exercise(gpu: &GpuAllocator, limit_bytes: u64) {
    let streams: Vec<Arc<CudaStream>> = streams(gpu.context(), 2);
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
    let zero = gpu.alloc(stream, 0).unwrap_err();
    let reason = AllocError::ZeroSize;
    let driver = None;
    assert_eq!(zero, DeviceAllocError::Memory { reason, driver });
    assert!(
        gpu.alloc(stream, limit_bytes + 1).is_err(),
        "{}",
        gpu.name()
    );
    assert!(gpu.alloc(stream, u64::MAX).is_err());
    assert_eq!(gpu.live().blocks, 0, "{}", gpu.name());
    assert_eq!(gpu.take_finding(), None, "{}", gpu.name());
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
            for kind in KINDS {
                let runtime = runtime(of_kind(kind));
                let gpu = runtime
                    .gpu_allocator(0, &growing(), 64 * MIB)
                    .unwrap()
                    .allocator;
                exercise(&gpu, 64 * MIB);
                drop(gpu);
                assert!(runtime.shutdown().unwrap().is_clean(), "{kind:?}");
            }
            // With so little host memory behind it that the refusals are refusals still.
            let runtime_with_host = runtime(RuntimeConfig {
                vmem_host_limit_bytes: 8 * MIB,
                ..RuntimeConfig::default()
            });
            let given = runtime_with_host.gpu_allocator(0, &growing(), 64 * MIB);
            let gpu = given.unwrap().allocator;
            exercise(&gpu, 64 * MIB);
            drop(gpu);
            assert!(runtime_with_host.shutdown().unwrap().is_clean());
            let unified = GpuOptions {
                unified_memory: true,
                ..growing()
            };
            let runtime = runtime(of_kind(GpuKind::Default));
            let gpu = runtime
                .gpu_allocator(0, &unified, 64 * MIB)
                .unwrap()
                .allocator;
            assert!(gpu.device_allocator().is_none());
            exercise(&gpu, 64 * MIB);
            drop(gpu);
            assert!(runtime.shutdown().unwrap().is_clean());
        }
        control.schedule_eagerly();
    });
}

#[test]
fn the_limit_of_each_kind_is_met_exactly() {
    alone_and_clean(|_| {
        for kind in KINDS {
            let runtime = runtime(of_kind(kind));
            let gpu = runtime
                .gpu_allocator(0, &growing(), 16 * MIB)
                .unwrap()
                .allocator;
            let stream = gpu.context().cudarc().new_stream().unwrap();
            // Guards are memory too: as many bytes in front as the block is aligned to, 16 behind it.
            let guards = match kind {
                GpuKind::MemoryGuard => 256 + 16,
                _ => 0,
            };
            let max_bytes = 16 * MIB - guards;
            assert!(gpu.alloc(&stream, max_bytes + 1).is_err(), "{kind:?}");
            let whole = gpu.alloc(&stream, max_bytes).unwrap();
            let error = gpu.alloc(&stream, 1).unwrap_err();
            assert!(error.to_string().contains("limit"), "{kind:?}: {error}");
            gpu.free(&stream, whole).unwrap();
            let again = gpu.alloc(&stream, max_bytes).unwrap();
            gpu.free(&stream, again).unwrap();
            drop(gpu);
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

#[test]
fn a_block_of_another_device_is_refused_and_comes_back() {
    alone_and_clean(|_| {
        for kind in KINDS {
            let devices = LogicalDevice::parts(0, &[64, 64]);
            let runtime = with_devices(of_kind(kind), devices);
            let [one, two] = [0, 1].map(|id| runtime.gpu(id, &growing()).unwrap().allocator);
            let stream = one.context().cudarc().new_stream().unwrap();
            let block = one.alloc(&stream, 1000).unwrap();
            let rejected = two.free(&stream, block).unwrap_err();
            assert_eq!(rejected.error, DeviceFreeError::Block(FreeError::Unknown));
            one.free(&stream, rejected.value).unwrap();
            drop((one, two));
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

#[test]
fn memory_of_blocks_that_are_out_is_left_alone_and_reported() {
    let Some((control, turn)) = alone() else {
        return;
    };
    let unified = GpuOptions {
        unified_memory: true,
        ..growing()
    };
    let ways = KINDS.map(|kind| (kind, growing(), false));
    let more = [
        (GpuKind::Default, unified, false),
        (GpuKind::Default, growing(), true),
    ];
    for (kind, options, vmem) in ways.into_iter().chain(more) {
        let config = RuntimeConfig {
            vmem,
            ..of_kind(kind)
        };
        let runtime = runtime(config);
        let gpu = runtime
            .gpu_allocator(0, &options, 16 * MIB)
            .unwrap()
            .allocator;
        let context = gpu.context().clone();
        let stream = context.cudarc().new_stream().unwrap();
        let block = gpu.alloc(&stream, MIB).unwrap();
        fill(&stream, block.addr().get(), MIB, 77);
        let name = gpu.name().to_owned();
        drop(gpu);
        let report = runtime.shutdown().unwrap();
        assert_eq!(report.blocks(), 1, "{kind:?}");
        assert_eq!(
            (&report.left[0].name, report.left[0].shared),
            (&name, false)
        );
        assert!(report.left[0].bytes >= MIB);
        // It is still there, and nobody else's.
        assert_filled(&stream, block.addr().get(), MIB, 77);
        stream.synchronize().unwrap();
    }
    assert_eq!(control.findings(), Vec::<String>::new());
    // What was left on purpose is none of the next test's.
    control.reset(2, crate::common::DEVICE_BYTES);
    drop(turn);
}

#[test]
fn an_allocator_that_is_held_outlives_its_runtime() {
    alone_and_clean(|_| {
        for kind in KINDS {
            let runtime = runtime(of_kind(kind));
            let gpu = runtime
                .gpu_allocator(0, &growing(), 64 * MIB)
                .unwrap()
                .allocator;
            let report = runtime.shutdown().unwrap();
            assert!(report.left[0].shared && report.blocks() == 0);
            exercise(&gpu, 64 * MIB);
            drop(gpu);
        }
    });
}

#[test]
fn a_tensor_pool_plans_the_steps_of_its_stream() {
    alone_and_clean(|_| {
        let runtime = runtime(of_kind(GpuKind::TensorPool));
        let gpu = runtime
            .gpu_allocator(0, &growing(), 256 * MIB)
            .unwrap()
            .allocator;
        let [stream, other] = [0, 1].map(|_| gpu.context().cudarc().new_stream().unwrap());
        assert!(
            gpu.tensor_pool(&stream).is_none(),
            "not before its first block"
        );
        let first = gpu.alloc(&stream, 1000).unwrap();
        let pool = gpu.tensor_pool(&stream).unwrap();
        // Freed on another stream, it is ordered before its own stream gets it again.
        fill(&stream, first.addr().get(), 1000, 1);
        gpu.device_allocator()
            .unwrap()
            .order_after(&other, &stream)
            .unwrap();
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
        drop((gpu, pool, stream, other));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}
