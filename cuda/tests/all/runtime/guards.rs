//! `memory_guard`: device memory with guards and resets, checked for each stream.

use std::sync::Arc;

use larder_core::decorate::{CheckError, QuarantineConfig, Which};
use larder_core::{AllocError, Block, Placement, StreamId};
use larder_cuda::driver::Rule;
use larder_cuda::runtime::{GpuAllocator, GpuKind, RuntimeConfig, RuntimeError};
use larder_cuda::{CheckedConfig, CudaStream, DeviceAllocError, DriverError};
use larder_cuda_abi::Code;
use larder_model::Random;

use crate::common::{MIB, alone_and_clean, fill, read};
use crate::runtime::rig::{end, gpu, growing, of_kind, on_gpus, runtime, stream_of, unified};

/// Runs a test with guarded memory of 64 MiB and a stream, and ends its runtime.
#[track_caller]
fn guarded(memory_guard: CheckedConfig, test: impl FnOnce(&GpuAllocator, &Arc<CudaStream>)) {
    let runtime = runtime(RuntimeConfig {
        memory_guard,
        ..of_kind(GpuKind::MemoryGuard)
    });
    let gpu = gpu(&runtime, 0, 64);
    let stream = stream_of(&gpu);
    test(&gpu, &stream);
    drop((gpu, stream));
    end(runtime);
}

/// Upstream's guards, but blocks keep their alignment.
const GUARD: CheckedConfig = CheckedConfig::memory_guard();

fn scribble(stream: &CudaStream, block: &Block, offset: i64, bytes: u64) {
    let at = block.addr().get().checked_add_signed(offset).unwrap();
    fill(stream, at, bytes, 0);
}

#[track_caller]
fn is_at(find: Option<CheckError>, block: u64, which: Which, offset: i64) {
    let Some(CheckError::Damaged(damage)) = find else {
        panic!("{find:?}")
    };
    let found = (damage.addr.get(), damage.which, damage.offset);
    assert_eq!(found, (block, which, offset));
}

/// Checks all blocks, and returns the one finding.
#[track_caller]
fn the_find(gpu: &GpuAllocator) -> Option<CheckError> {
    let mut found = Vec::new();
    assert_eq!(gpu.check_all(|find| found.push(find)), 1);
    found.pop()
}

#[test]
fn ps_2_the_variable_that_says_memory_guard_gives_guards_and_the_name_of_the_best_fit() {
    alone_and_clean(|control| {
        let text = |name: &str| (name == "TF_GPU_ALLOCATOR").then(|| "memory_guard".to_owned());
        let (config, bad) = RuntimeConfig::from_vars(text).unwrap();
        assert!(bad.is_empty() && config.vmem, "as if vmem were to be on");
        assert_eq!(config.memory_guard, GUARD);
        let runtime = runtime(config);
        let pinned = control.calls(Some("cuMemHostAlloc"));
        let gpu = gpu(&runtime, 1, 16);
        assert_eq!(gpu.name(), "GPU_1_bfc");
        assert_eq!(gpu.kind(), GpuKind::MemoryGuard);
        assert!(gpu.vmem_allocator().is_none(), "no host side");
        let stream = stream_of(&gpu);
        assert!(gpu.checked_memory(&stream).is_none(), "not before a block");
        let block = gpu.alloc(&stream, 1000).unwrap();
        assert_eq!(gpu.info(&block).unwrap().placement, Placement::Device);
        assert!(gpu.alloc(&stream, 16 * MIB).is_err());
        assert_eq!(control.calls(Some("cuMemHostAlloc")), pinned);
        let checked = gpu.checked_memory(&stream).unwrap();
        assert_eq!(checked.quarantine_stats().waiting_blocks, 0);
        gpu.free(&stream, block).unwrap();
        drop((gpu, checked, stream));
        end(runtime);
    });
}

#[test]
fn a_guard_on_managed_memory_is_refused_in_words() {
    on_gpus(of_kind(GpuKind::MemoryGuard), |runtime| {
        let error = runtime.gpu_allocator(0, &unified(), MIB).unwrap_err();
        assert!(matches!(error, RuntimeError::Unsupported { .. }), "{error}");
        assert!(runtime.gpu_allocator(0, &growing(), MIB).is_ok());
    });
}

#[test]
fn one_byte_too_far_on_either_side_is_found_by_a_check_and_by_the_free() {
    alone_and_clean(|_| {
        guarded(GUARD, |gpu, stream| {
            for (offset, which) in [(1000, Which::Tail), (1015, Which::Tail), (-1, Which::Front)] {
                let block = gpu.alloc(stream, 1000).unwrap();
                let at = block.addr().get();
                assert_eq!(gpu.check(&block), Ok(()));
                assert_eq!(gpu.check_all(|find| panic!("{find}")), 0);
                scribble(stream, &block, 0, 1000);
                assert_eq!(gpu.check(&block), Ok(()), "all its bytes are its own");
                scribble(stream, &block, offset, 1);
                is_at(gpu.check(&block).err(), at, which, offset);
                is_at(the_find(gpu), at, which, offset);
                assert_eq!(gpu.take_finding(), None, "a check keeps nothing");
                gpu.free(stream, block).unwrap();
                is_at(gpu.take_finding(), at, which, offset);
                assert_eq!(gpu.take_finding(), None);
            }
            assert_eq!(gpu.finding_counts().damaged, 3);
        });
    });
}

#[test]
fn blocks_begin_where_those_of_the_other_kinds_do_and_hold_no_numbers() {
    alone_and_clean(|_| {
        for (config, align) in [
            (GUARD, 256),
            (CheckedConfig::new(), 256),
            (CheckedConfig::tensorflow(), 16),
        ] {
            // Blocks that are still in quarantine at the end are not reported as left.
            guarded(config, |gpu, stream| {
                let sizes = [1, 16, 255, 256, 257, 4096];
                let blocks = sizes.map(|bytes| gpu.alloc(stream, bytes).unwrap());
                let least = blocks.iter().map(|block| block.addr().get());
                let least = least.map(u64::trailing_zeros).min().unwrap();
                assert_eq!(1_u64 << least.min(8), align, "{config:?}");
                let at = blocks[5].addr().get();
                for value in read(stream, at, 4096).chunks(4) {
                    assert!(f32::from_le_bytes(value.try_into().unwrap()).is_nan());
                }
                for block in blocks {
                    gpu.free(stream, block).unwrap();
                }
                assert_eq!(gpu.take_finding(), None);
            });
        }
    });
}

#[test]
fn a_free_that_cannot_be_ordered_gives_the_block_back() {
    alone_and_clean(|control| {
        guarded(GUARD, |gpu, origin| {
            let other = stream_of(gpu);
            let block = gpu.alloc(origin, 100).unwrap();
            // The free has to wait for this work on the other stream.
            let memory = gpu.device_allocator().unwrap();
            memory.order_after(&other, origin).unwrap();
            scribble(&other, &block, 0, 100);
            // The free cannot be ordered by an event, nor by a wait on the host.
            for function in ["cuEventCreate", "cuEventRecord", "cuStreamSynchronize"] {
                control.fail(Rule::of(function).times(8)).unwrap();
            }
            let rejected = gpu.free(&other, block).unwrap_err();
            control.clear_failures();
            let words = rejected.to_string();
            assert!(words.contains("cuStreamSynchronize"), "{words}");
            assert_eq!(gpu.check(&rejected.value), Ok(()));
            gpu.free(&other, rejected.value).unwrap();
            assert_eq!((gpu.live().blocks, gpu.take_finding()), (0, None));
            assert!(gpu.checked_memory(&other).is_none(), "it never allocated");
        });
    });
}

#[test]
fn what_the_driver_refuses_is_named_and_what_cannot_be_read_is_a_find() {
    alone_and_clean(|control| {
        let refuse = |function, times| control.fail(Rule::of(function).times(times)).unwrap();
        guarded(GUARD, |gpu, stream| {
            refuse("cuMemsetD8Async", 1);
            let call = DriverError::Call {
                function: "cuMemsetD8Async",
                code: Code::UNKNOWN,
            };
            let refused = gpu.alloc(stream, 100);
            assert_eq!(refused, Err(DeviceAllocError::Driver(call)));
            refuse("cuMemCreate", 100);
            let error = gpu.alloc(stream, 32 * MIB).unwrap_err();
            assert!(error.to_string().contains("cuMemCreate"), "{error}");
            control.clear_failures();
            assert_eq!(gpu.live().blocks, 0);
            let block = gpu.alloc(stream, 100).unwrap();
            refuse("cuMemcpyDtoHAsync_v2", 1);
            gpu.free(stream, block).unwrap();
            let find = gpu.take_finding();
            assert!(matches!(find, Some(CheckError::Access { .. })), "{find:?}");
            let counts = gpu.finding_counts();
            assert_eq!((counts.damaged, counts.unreachable), (0, 1));
        });
    });
}

#[test]
fn as_many_blocks_and_streams_as_there_are_places_and_no_more() {
    alone_and_clean(|_| {
        guarded(CheckedConfig { blocks: 3, ..GUARD }, |gpu, one_more| {
            let streams: Vec<_> = (0..StreamId::COUNT).map(|_| stream_of(gpu)).collect();
            let thrice = streams.iter().flat_map(|stream| [stream; 3]);
            let out = thrice.map(|stream| (stream, gpu.alloc(stream, 10).unwrap()));
            let out: Vec<_> = out.collect();
            let full = DeviceAllocError::Memory {
                reason: AllocError::TableFull { records: 3 },
                driver: None,
            };
            assert_eq!(gpu.alloc(&streams[0], 10), Err(full));
            let none = gpu.alloc(one_more, 10);
            assert_eq!(none, Err(DeviceAllocError::Streams));
            assert_eq!(gpu.live().blocks, 3 * StreamId::COUNT as u64);
            for (stream, block) in out {
                gpu.free(stream, block).unwrap();
            }
            assert_eq!((gpu.live().blocks, gpu.stats().live_bytes), (0, 0));
            gpu.device_allocator().unwrap().clear_stats();
            assert_eq!(gpu.stats().allocations, 0);
        });
    });
}

#[test]
fn blocks_without_guards_and_those_of_others_are_not_checked() {
    on_gpus(of_kind(GpuKind::Default), |plain| {
        let plain = gpu(plain, 0, 16);
        guarded(GUARD, |one, stream| {
            guarded(GUARD, |two, _| {
                let blocks = [one, two, &plain].map(|gpu| gpu.alloc(stream, 10).unwrap());
                assert_eq!(one.check(&blocks[0]), Ok(()));
                assert_eq!(one.check(&blocks[1]), Err(CheckError::Unknown));
                assert_eq!(plain.check(&blocks[2]), Err(CheckError::Unknown));
                assert_eq!(plain.check_all(|find| panic!("{find}")), 0);
                let found = (plain.take_finding(), plain.finding_counts());
                assert_eq!(found, (None, Default::default()));
                assert!(plain.checked_memory(stream).is_none());
                for (gpu, block) in [one, two, &plain].into_iter().zip(blocks) {
                    gpu.free(stream, block).unwrap();
                }
            });
        });
    });
}

#[test]
fn a_freed_block_that_waits_is_compared_and_is_nobodys_at_the_end() {
    alone_and_clean(|_| {
        let config = CheckedConfig {
            quarantine: QuarantineConfig::new(MIB),
            ..CheckedConfig::new()
        };
        guarded(config, |gpu, stream| {
            let [hurt, sound] = [0, 1].map(|_| gpu.alloc(stream, 4000).unwrap());
            let at = hurt.addr().get();
            gpu.free(stream, hurt).unwrap();
            gpu.free(stream, sound).unwrap();
            fill(stream, at + 17, 1, 0);
            assert!(gpu.stats().live_bytes > 8000, "both wait");
            assert_eq!(gpu.live().blocks, 0);
            is_at(the_find(gpu), at, Which::Freed, 17);
            assert_eq!(gpu.finding_counts().damaged, 1);
        });
    });
}

/// Allocates random blocks on three streams, frees them on any of these, and damages some before. The free finds each
/// damage once.
fn random(seed: u64, gpu: &GpuAllocator) {
    let streams: Vec<_> = (0..3).map(|_| stream_of(gpu)).collect();
    let memory = gpu.device_allocator().unwrap();
    let mut random = Random::new(seed);
    let (mut live, mut damaged) = (Vec::<(usize, Block)>::new(), 0);
    for step in 0..200 {
        if live.len() < 2 || (live.len() < 24 && random.below(2) == 0) {
            let at = random.below(3) as usize;
            let max = 1 << (1 + random.below(14));
            let bytes = 1 + random.below(max);
            let block = gpu.alloc(&streams[at], bytes).unwrap();
            scribble(&streams[at], &block, 0, bytes);
            live.push((at, block));
            continue;
        }
        let (origin, block) = live.swap_remove(random.index(live.len()));
        let on = random.below(3) as usize;
        memory.order_after(&streams[on], &streams[origin]).unwrap();
        scribble(&streams[on], &block, 0, block.bytes());
        let hurt = match random.below(4) {
            0 => Some((Which::Front, -1 - random.below(256) as i64)),
            1 => Some((Which::Tail, (block.bytes() + random.below(16)) as i64)),
            _ => None,
        };
        let at = block.addr().get();
        if let Some((_, offset)) = hurt {
            scribble(&streams[on], &block, offset, 1);
            damaged += 1;
        }
        gpu.free(&streams[on], block).unwrap();
        match hurt {
            Some((which, offset)) => is_at(gpu.take_finding(), at, which, offset),
            None => assert_eq!(gpu.take_finding(), None, "seed {seed}, step {step}"),
        }
    }
    assert_eq!(gpu.finding_counts().damaged, damaged, "seed {seed}");
    for (origin, block) in live {
        gpu.free(&streams[origin], block).unwrap();
    }
    assert_eq!((gpu.live().blocks, gpu.take_finding()), (0, None));
}

#[test]
fn every_damage_on_any_stream_is_found_once_by_the_free() {
    alone_and_clean(|control| {
        for seed in 0..20 {
            println!("seed {seed}");
            control.schedule_deferred(seed);
            guarded(GUARD, |gpu, _| random(seed, gpu));
        }
        control.schedule_eagerly();
    });
}
