//! Upstream's own GPU tests, retold with their numbers, on a device of 1 GiB. Upstream asserts that no
//! block is null; here all blocks are aligned and keep their contents, and everything is released.

use larder_core::prmalloc::Window;
use larder_cuda::{DeviceTensorPool, TensorPoolConfig};

use crate::common::{fill, read, together};
use crate::tensor_pool::rig::{Device, InUse, KIB, Log, MIB, Op, align};

/// Ours with upstream's window. Upstream's own form stands in the core's tests of the same cases.
fn on_a_device(test: impl Fn(&Device, TensorPoolConfig)) {
    let _turn = together();
    let device = Device::new();
    let mut config = TensorPoolConfig::new();
    config.pool.planner.window = Window {
        start: 10,
        stable: 10,
        max: 100,
    };
    test(&device, config);
    assert_eq!(device.use_of_memory().1, 0, "all came back");
}

/// 100 times five alignments by five sizes.
fn loop_of_sizes(pool: &DeviceTensorPool) {
    let mut blocks = Vec::new();
    for turn in 0..100_u8 {
        for to in [8, 16, 32, 64, 128] {
            for size in [100, 512, 2048, 128 * KIB, 100 * KIB] {
                let block = pool.alloc_aligned(size, align(to)).unwrap();
                assert!(block.addr().is_aligned(align(to)));
                fill(pool.stream(), block.addr().get(), size, turn);
                blocks.push((block, turn));
            }
        }
    }
    for (block, turn) in blocks {
        let seen = read(pool.stream(), block.addr().get(), 100);
        assert!(seen.iter().all(|byte| *byte == turn));
        pool.free(block).unwrap();
    }
}

/// Ends a step, when the pool releases memory that it can, and begins the next.
fn settle(pool: &DeviceTensorPool) {
    drop(pool.step());
    drop(pool.step());
}

/// Returns a step's operations: it allocates, and frees at its end, each size at each alignment, twice.
fn ops(sizes: &[u64], aligns: &[u64]) -> Vec<Op> {
    let each = || {
        aligns
            .iter()
            .flat_map(|to| sizes.iter().map(move |size| (*size, *to)))
    };
    let mut ops: Vec<Op> = each()
        .chain(each())
        .enumerate()
        .map(|(name, (size, to))| Op::Alloc(name, size, to))
        .collect();
    ops.extend((0..ops.len()).map(Op::Free));
    ops
}

/// Steps whose every block is filled and looked at.
fn steps(device: &Device, pool: &DeviceTensorPool, count: u32, ops: &[Op]) {
    let mut in_use = InUse::default();
    for _ in 0..count {
        let mut log = Log::new(device);
        in_use.step(pool, &mut log, ops);
        log.check();
    }
}

/// Steps that only allocate and free.
fn bare_steps(pool: &DeviceTensorPool, count: u32, ops: &[Op]) {
    for _ in 0..count {
        let _step = pool.step();
        let mut blocks = Vec::new();
        for op in ops {
            match *op {
                Op::Alloc(_, bytes, to) => {
                    blocks.push(Some(pool.alloc_aligned(bytes, align(to)).unwrap()));
                }
                Op::Free(name) => pool.free(blocks[name].take().unwrap()).unwrap(),
            }
        }
    }
}

#[test]
fn pr_gpu_single_blocks() {
    on_a_device(|device, config| {
        let cases = [
            (32, 100),
            (8, 100),
            (16, 100),
            (16, 128),
            (64, 100),
            (64, 100_000),
            (64, MIB),
            (64, 128 * KIB),
            (16, 1_000_000),
        ];
        for (to, size) in cases {
            let pool = device.pool(config);
            let (mut in_use, mut log) = (InUse::default(), Log::new(device));
            in_use.alloc(&pool, 0, size, to);
            in_use.free_all(&pool, &mut log);
            log.check();
        }
    });
}

#[test]
fn pr_gpu_loop_of_sizes_on_one_thread_and_on_three() {
    on_a_device(|device, config| {
        let pool = device.pool(config);
        loop_of_sizes(&pool);
        settle(&pool);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| loop_of_sizes(&pool));
            }
        });
        settle(&pool);
        assert_eq!(device.use_of_memory().1, 0);
    });
}

#[test]
fn pr_gpu_2000_steps_then_other_sizes_then_again_after_reset() {
    on_a_device(|device, config| {
        let pool = device.pool(config);
        let ops = ops(&[100, 128, 1024, 128 * KIB], &[8, 16, 64, 128]);
        for _ in 0..2 {
            steps(device, &pool, 120, &ops);
            assert!(pool.is_planned());
            let planned = pool.counts().slab_bytes;
            assert!(planned >= 8 * 128 * KIB);
            let (allocations, _) = device.use_of_memory();
            bare_steps(&pool, 1880, &ops);
            assert_eq!(device.use_of_memory().0, allocations, "all from the plan");
            loop_of_sizes(&pool);
            settle(&pool);
            assert_eq!(
                (pool.counts().slab_bytes, pool.counts().direct_bytes),
                (planned, 0)
            );
            pool.reset();
        }
    });
}

#[test]
fn pr_gpu_two_sizes_twice() {
    on_a_device(|device, config| {
        let pool = device.pool(config);
        steps(device, &pool, 120, &ops(&[128 * KIB, 64 * KIB], &[64]));
        assert!(pool.is_planned());
    });
}

#[test]
fn pr_gpu_huge_blocks_of_16_and_8_mib_twice() {
    on_a_device(|device, config| {
        let pool = device.pool(config);
        let ops = ops(&[16 * MIB, 8 * MIB], &[64]);
        steps(device, &pool, 120, &ops);
        assert!(pool.counts().slab_bytes >= 48 * MIB);
        let (before, hits) = (device.use_of_memory().1, pool.counts().hits);
        steps(device, &pool, 1, &ops);
        assert_eq!(
            (device.use_of_memory().1, pool.counts().hits),
            (before, hits + 4)
        );
    });
}
