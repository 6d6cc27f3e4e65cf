//! Upstream's own test cases, retold with their numbers. Upstream asserts that no block is null; here all blocks are
//! aligned, none overlap, and everything is released.

use std::sync::atomic::Ordering;

use larder_core::prmalloc::PlannedPoolConfig;
use larder_model::prmalloc::Form;

use crate::prmalloc::books::{KIB, MIB};
use crate::prmalloc::rig::{AnyPool, InUse, Op, pool_with, upstream};

const GIB: u64 = 1 << 30;

/// Upstream's CPU form, its GPU form on a device, and ours.
fn each_form(test: impl Fn(&dyn AnyPool, bool)) {
    test(&upstream(Form::CPU, false), false);
    let device = upstream(Form::GPU, true);
    device.backend().capacity_bytes.store(GIB, Ordering::SeqCst);
    test(&device, true);
    test(&pool_with(PlannedPoolConfig::new(), true, 1 << 13), false);
}

/// 100 times five alignments by five sizes.
fn loop_of_sizes(pool: &dyn AnyPool) {
    let mut in_use = InUse::default();
    let mut name = 0;
    for _ in 0..100 {
        for align in [8, 16, 32, 64, 128] {
            for size in [100, 512, 2048, 128 * KIB, 100 * KIB] {
                in_use.alloc(pool, name, size, align);
                name += 1;
            }
        }
    }
    in_use.free_all(pool);
}

fn steps(pool: &dyn AnyPool, count: u32, sizes: &[u64], aligns: &[u64], times: u32) {
    let mut ops = Vec::new();
    let mut name = 0;
    for _ in 0..times {
        for &align in aligns {
            for &size in sizes {
                ops.push(Op::Alloc(name, size, align));
                name += 1;
            }
        }
    }
    ops.extend((0..name).map(Op::Free));
    let mut in_use = InUse::default();
    for _ in 0..count {
        in_use.step(pool, &ops).unwrap();
    }
}

#[test]
fn upstream_single_blocks() {
    each_form(|pool, _| {
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
        for (align, size) in cases {
            let mut in_use = InUse::default();
            in_use.alloc(pool, 0, size, align);
            in_use.free_all(pool);
        }
        assert_eq!(pool.backend().out_bytes(), 0);
    });
}

#[test]
fn upstream_loop_of_sizes_on_one_thread_and_on_three() {
    each_form(|pool, _| {
        loop_of_sizes(pool);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| loop_of_sizes(pool));
            }
        });
        assert_eq!(pool.backend().out_bytes(), 0);
    });
}

#[test]
fn upstream_2000_steps_then_other_sizes_then_again_after_reset() {
    each_form(|pool, _| {
        for _ in 0..2 {
            let sizes = [100, 128, 1024, 128 * KIB];
            steps(pool, 2000, &sizes, &[8, 16, 64, 128], 2);
            assert!(pool.is_planned());
            let (planned, calls) = (pool.counts().slab_bytes, pool.backend().calls());
            assert!(planned >= 8 * 128 * KIB);
            steps(pool, 1, &[128 * KIB], &[8, 16, 64, 128], 2);
            assert_eq!(pool.backend().calls(), calls, "planned for");
            loop_of_sizes(pool);
            assert_eq!(pool.backend().out_bytes(), planned);
            pool.reset();
        }
    });
}

#[test]
fn upstream_two_sizes_twice_and_huge_ones() {
    each_form(|pool, device| {
        steps(pool, 300, &[128 * KIB, 64 * KIB], &[64], 2);
        assert!(pool.is_planned());
        pool.reset();
        let huge = if device {
            [16 * MIB, 8 * MIB]
        } else {
            [512 * MIB, 64 * MIB]
        };
        steps(pool, 300, &huge, &[64], 2);
        let planned = pool.planned_bytes();
        // No interval divides none of them: 2 blocks of each, one class up at most.
        assert!(planned >= 2 * (huge[0] + huge[1]));
        let calls = pool.backend().calls();
        steps(pool, 1, &huge, &[64], 2);
        assert_eq!(pool.backend().calls(), calls);
    });
}

#[test]
fn pr_10_small_blocks_of_the_gpu_form_come_from_the_second_slab() {
    let pool = upstream(Form::GPU, true);
    let grows = pool.backend().calls().0;
    assert_eq!(grows, 0);
    let ops = &[
        Op::Alloc(0, 100, 8),
        Op::Alloc(1, 100_000, 8),
        Op::Alloc(2, 1000, 8),
        Op::Free(0),
        Op::Free(1),
        Op::Free(2),
    ];
    let mut in_use = InUse::default();
    while !pool.is_planned() {
        in_use.step(&pool, ops).unwrap();
    }
    // 112 and 1024 bytes, rounded to the backend's unit; and 100 KiB.
    assert_eq!(pool.counts().slab_bytes, 1280 + 102_400);
    let calls = pool.backend().calls();
    in_use.step(&pool, ops).unwrap();
    assert_eq!(pool.backend().calls(), calls);
    assert_eq!(
        pool.counts().hits,
        3 + 3,
        "the step that planned was served already"
    );
}
