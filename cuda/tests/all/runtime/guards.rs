//! `memory_guard`: a device's memory with guards and resets, checked memory for each stream.

use std::sync::Arc;

use larder_core::decorate::{CheckError, QuarantineConfig, Which};
use larder_core::{AllocError, Block, Placement, StreamId};
use larder_cuda::driver::Rule;
use larder_cuda::runtime::{
    GpuAllocator, GpuKind, GpuOptions, Runtime, RuntimeConfig, RuntimeError,
};
use larder_cuda::{CheckedConfig, CudaStream, DeviceAllocError, DriverError};
use larder_cuda_abi::Code;
use larder_model::Random;

use crate::common::{MIB, alone_and_clean, fill, read};
use crate::runtime::gpu::{growing, of_kind};
use crate::runtime::rig::runtime;

fn guarded(memory_guard: CheckedConfig) -> (Runtime, GpuAllocator) {
    let runtime = runtime(RuntimeConfig {
        memory_guard,
        ..of_kind(GpuKind::MemoryGuard)
    });
    let given = runtime.gpu_allocator(0, &growing(), 64 * MIB).unwrap();
    (runtime, given.allocator)
}

fn stream_of(gpu: &GpuAllocator) -> Arc<CudaStream> {
    gpu.context().cudarc().new_stream().unwrap()
}

/// Writes bytes at an offset from the start of a block.
fn scribble(stream: &CudaStream, block: &Block, offset: i64, bytes: u64) {
    let at = block.addr().get().checked_add_signed(offset).unwrap();
    fill(stream, at, bytes, 0);
}

fn is_at(find: Option<CheckError>, block: u64, which: Which, offset: i64) {
    let Some(CheckError::Damaged(damage)) = find else {
        panic!("{find:?}")
    };
    let found = (damage.addr.get(), damage.which, damage.offset);
    assert_eq!(found, (block, which, offset));
}

#[test]
fn ps_2_the_variable_that_says_memory_guard_gives_guards_and_the_name_of_the_best_fit() {
    alone_and_clean(|control| {
        let text = |name: &str| (name == "TF_GPU_ALLOCATOR").then(|| "memory_guard".to_owned());
        let (config, bad) = RuntimeConfig::from_vars(text).unwrap();
        assert!(bad.is_empty() && config.vmem, "as if vmem were to be on");
        assert_eq!(config.memory_guard, CheckedConfig::memory_guard());
        let runtime = runtime(config);
        let pinned = control.calls(Some("cuMemHostAlloc"));
        let gpu = runtime
            .gpu_allocator(1, &growing(), 16 * MIB)
            .unwrap()
            .allocator;
        assert_eq!(
            (gpu.name(), gpu.kind()),
            ("GPU_1_bfc", GpuKind::MemoryGuard)
        );
        assert!(gpu.vmem_allocator().is_none(), "no host side");
        let stream = stream_of(&gpu);
        assert!(gpu.checked_memory(&stream).is_none(), "not before a block");
        let block = gpu.alloc(&stream, 1000).unwrap();
        assert!(gpu.info(&block).unwrap().placement == Placement::Device);
        assert!(gpu.alloc(&stream, 16 * MIB).is_err());
        assert_eq!(control.calls(Some("cuMemHostAlloc")), pinned);
        let checked = gpu.checked_memory(&stream).unwrap();
        assert_eq!(checked.quarantine_stats().waiting_blocks, 0);
        gpu.free(&stream, block).unwrap();
        drop((gpu, checked, stream));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn a_guard_on_managed_memory_is_refused_in_words() {
    alone_and_clean(|_| {
        let runtime = runtime(of_kind(GpuKind::MemoryGuard));
        let unified = GpuOptions {
            unified_memory: true,
            ..growing()
        };
        let error = runtime.gpu_allocator(0, &unified, MIB).unwrap_err();
        assert!(matches!(error, RuntimeError::Unsupported { .. }), "{error}");
        assert!(runtime.gpu_allocator(0, &growing(), MIB).is_ok());
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn one_byte_too_far_on_either_side_is_found_by_a_check_and_by_the_free() {
    alone_and_clean(|_| {
        let (runtime, gpu) = guarded(CheckedConfig::memory_guard());
        let stream = stream_of(&gpu);
        for (offset, which) in [(1000, Which::Tail), (1015, Which::Tail), (-1, Which::Front)] {
            let block = gpu.alloc(&stream, 1000).unwrap();
            let at = block.addr().get();
            assert_eq!(gpu.check(&block), Ok(()));
            assert_eq!(gpu.check_all(|find| panic!("{find}")), 0);
            scribble(&stream, &block, 0, 1000);
            assert_eq!(gpu.check(&block), Ok(()), "all its bytes are its own");
            scribble(&stream, &block, offset, 1);
            is_at(gpu.check(&block).err(), at, which, offset);
            let mut found = Vec::new();
            assert_eq!(gpu.check_all(|find| found.push(find)), 1);
            is_at(found.pop(), at, which, offset);
            assert_eq!(gpu.take_finding(), None, "a check keeps nothing");
            gpu.free(&stream, block).unwrap();
            is_at(gpu.take_finding(), at, which, offset);
            assert_eq!(gpu.take_finding(), None);
        }
        assert_eq!(gpu.finding_counts().damaged, 3);
        drop((gpu, stream));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn blocks_begin_where_those_of_the_other_kinds_do_and_hold_no_numbers() {
    alone_and_clean(|_| {
        let ways = [
            (CheckedConfig::memory_guard(), 256),
            (CheckedConfig::new(), 256),
            (CheckedConfig::tensorflow(), 16),
        ];
        for (config, align) in ways {
            let (runtime, gpu) = guarded(config);
            let stream = stream_of(&gpu);
            let blocks: Vec<Block> = [1, 16, 255, 256, 257, 4096]
                .map(|bytes| gpu.alloc(&stream, bytes).unwrap())
                .into();
            let least = blocks.iter().map(|block| block.addr().get());
            let least = least.map(u64::trailing_zeros).min().unwrap();
            assert_eq!(1_u64 << least.min(8), align, "{config:?}");
            let at = blocks[5].addr().get();
            for value in read(&stream, at, 4096).chunks(4) {
                assert!(f32::from_le_bytes(value.try_into().unwrap()).is_nan());
            }
            for block in blocks {
                gpu.free(&stream, block).unwrap();
            }
            assert_eq!(gpu.take_finding(), None);
            drop((gpu, stream));
            // Those that wait are nobody's.
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

#[test]
fn a_block_freed_on_another_stream_is_checked_behind_its_work_and_goes_back_to_its_stream() {
    alone_and_clean(|control| {
        for seed in 0..24 {
            control.schedule_deferred(seed);
            let (runtime, gpu) = guarded(CheckedConfig::memory_guard());
            let [origin, other] = [0, 1].map(|_| stream_of(&gpu));
            let memory = gpu.device_allocator().unwrap();
            let [sound, hurt] = [500, 3000].map(|bytes| gpu.alloc(&origin, bytes).unwrap());
            let at = hurt.addr().get();
            scribble(&origin, &sound, 0, 500);
            memory.order_after(&other, &origin).unwrap();
            scribble(&other, &sound, 0, 500);
            // Queued on the other stream, and not done when the block is freed.
            scribble(&other, &hurt, 3000, 1);
            gpu.free(&other, sound).unwrap();
            gpu.free(&other, hurt).unwrap();
            is_at(gpu.take_finding(), at, Which::Tail, 3000);
            assert_eq!(gpu.take_finding(), None, "seed {seed}");
            assert!(gpu.checked_memory(&other).is_none(), "it never allocated");
            // Its own stream has it again at once.
            let again = gpu.alloc(&origin, 3000).unwrap();
            scribble(&origin, &again, 0, 3000);
            gpu.free(&origin, again).unwrap();
            drop((gpu, origin, other));
            assert!(runtime.shutdown().unwrap().is_clean(), "seed {seed}");
        }
        control.schedule_eagerly();
    });
}

#[test]
fn a_free_that_cannot_be_ordered_gives_the_block_back() {
    alone_and_clean(|control| {
        let (runtime, gpu) = guarded(CheckedConfig::memory_guard());
        let [origin, other] = [0, 1].map(|_| stream_of(&gpu));
        let block = gpu.alloc(&origin, 100).unwrap();
        // The other stream's work is something to wait for.
        gpu.device_allocator()
            .unwrap()
            .order_after(&other, &origin)
            .unwrap();
        scribble(&other, &block, 0, 100);
        let rule = |function: &'static str| Rule::of(function).times(8);
        // Neither by an event nor by a wait of the host.
        for function in ["cuEventCreate", "cuEventRecord", "cuStreamSynchronize"] {
            control.fail(rule(function)).unwrap();
        }
        let rejected = gpu.free(&other, block).unwrap_err();
        control.clear_failures();
        assert!(
            rejected.to_string().contains("cuStreamSynchronize"),
            "{rejected}"
        );
        assert_eq!(gpu.check(&rejected.value), Ok(()));
        gpu.free(&other, rejected.value).unwrap();
        assert_eq!((gpu.live().blocks, gpu.take_finding()), (0, None));
        drop((gpu, origin, other));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn what_the_driver_refuses_is_named_and_what_cannot_be_read_is_a_find() {
    alone_and_clean(|control| {
        let (runtime, gpu) = guarded(CheckedConfig::memory_guard());
        let stream = stream_of(&gpu);
        let refuse = |function, times| {
            control.fail(Rule::of(function).times(times)).unwrap();
        };
        refuse("cuMemsetD8Async", 1);
        let error = gpu.alloc(&stream, 100).unwrap_err();
        let call = DriverError::Call {
            function: "cuMemsetD8Async",
            code: Code::UNKNOWN,
        };
        assert_eq!(error, DeviceAllocError::Driver(call));
        refuse("cuMemCreate", 100);
        let error = gpu.alloc(&stream, 32 * MIB).unwrap_err();
        assert!(error.to_string().contains("cuMemCreate"), "{error}");
        control.clear_failures();
        assert_eq!(gpu.live().blocks, 0);
        let block = gpu.alloc(&stream, 100).unwrap();
        refuse("cuMemcpyDtoHAsync_v2", 1);
        gpu.free(&stream, block).unwrap();
        let find = gpu.take_finding();
        assert!(matches!(find, Some(CheckError::Access { .. })), "{find:?}");
        let counts = gpu.finding_counts();
        assert_eq!((counts.damaged, counts.unreachable), (0, 1));
        drop((gpu, stream));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn as_many_blocks_and_streams_as_there_are_places_and_no_more() {
    alone_and_clean(|_| {
        let (runtime, gpu) = guarded(CheckedConfig {
            blocks: 3,
            ..CheckedConfig::memory_guard()
        });
        let streams: Vec<_> = (0..StreamId::COUNT).map(|_| stream_of(&gpu)).collect();
        let mut out = Vec::new();
        for stream in &streams {
            for _ in 0..3 {
                out.push((stream, gpu.alloc(stream, 10).unwrap()));
            }
        }
        let error = gpu.alloc(&streams[0], 10).unwrap_err();
        let full = AllocError::TableFull { records: 3 };
        let full = DeviceAllocError::Memory {
            reason: full,
            driver: None,
        };
        assert_eq!(error, full);
        let one_more = stream_of(&gpu);
        let error = gpu.alloc(&one_more, 10).unwrap_err();
        assert_eq!(error, DeviceAllocError::Streams);
        assert_eq!(gpu.live().blocks, 3 * StreamId::COUNT as u64);
        for (stream, block) in out {
            gpu.free(stream, block).unwrap();
        }
        let stats = gpu.stats();
        assert_eq!((gpu.live().blocks, stats.live_bytes), (0, 0));
        gpu.device_allocator().unwrap().clear_stats();
        assert_eq!(gpu.stats().allocations, 0);
        drop((gpu, streams, one_more));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

#[test]
fn blocks_without_guards_and_those_of_others_are_not_checked() {
    alone_and_clean(|_| {
        let (runtime, gpu) = guarded(CheckedConfig::memory_guard());
        let (other_runtime, other) = guarded(CheckedConfig::memory_guard());
        let plain_runtime = crate::runtime::rig::runtime(of_kind(GpuKind::Default));
        let plain = plain_runtime
            .gpu_allocator(0, &growing(), 16 * MIB)
            .unwrap();
        let plain = plain.allocator;
        let stream = stream_of(&gpu);
        let [one, two, three] = [&gpu, &other, &plain].map(|gpu| gpu.alloc(&stream, 10).unwrap());
        assert_eq!(gpu.check(&one), Ok(()));
        assert_eq!(gpu.check(&two), Err(CheckError::Unknown));
        assert_eq!(plain.check(&three), Err(CheckError::Unknown));
        assert_eq!(plain.check_all(|find| panic!("{find}")), 0);
        assert_eq!(
            (plain.take_finding(), plain.finding_counts()),
            (None, Default::default())
        );
        assert!(plain.checked_memory(&stream).is_none());
        for (gpu, block) in [(&gpu, one), (&other, two), (&plain, three)] {
            gpu.free(&stream, block).unwrap();
        }
        drop((gpu, other, plain, stream));
        for runtime in [runtime, other_runtime, plain_runtime] {
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

#[test]
fn a_freed_block_that_waits_is_compared_and_is_nobodys_at_the_end() {
    alone_and_clean(|_| {
        let (runtime, gpu) = guarded(CheckedConfig {
            quarantine: QuarantineConfig::new(MIB),
            ..CheckedConfig::new()
        });
        let stream = stream_of(&gpu);
        let [hurt, sound] = [0, 1].map(|_| gpu.alloc(&stream, 4000).unwrap());
        let at = hurt.addr().get();
        gpu.free(&stream, hurt).unwrap();
        gpu.free(&stream, sound).unwrap();
        fill(&stream, at + 17, 1, 0);
        assert!(gpu.stats().live_bytes > 8000, "both wait");
        assert_eq!(gpu.live().blocks, 0);
        let mut found = Vec::new();
        assert_eq!(gpu.check_all(|find| found.push(find)), 1);
        is_at(found.pop(), at, Which::Freed, 17);
        assert_eq!(gpu.finding_counts().damaged, 1);
        drop((gpu, stream));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}

/// Random blocks on three streams, freed on any of them, some hurt: each damage is found by the free, once.
fn random(seed: u64) {
    let (runtime, gpu) = guarded(CheckedConfig::memory_guard());
    let streams: Vec<_> = (0..3).map(|_| stream_of(&gpu)).collect();
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
    drop((gpu, streams));
    assert!(runtime.shutdown().unwrap().is_clean(), "seed {seed}");
}

#[test]
fn every_damage_on_any_stream_is_found_once_by_the_free() {
    alone_and_clean(|control| {
        for seed in 0..20 {
            control.schedule_deferred(seed);
            random(seed);
        }
        control.schedule_eagerly();
    });
}
