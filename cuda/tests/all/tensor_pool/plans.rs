//! PR-4 to PR-8 on a device: which requests the plan serves, and where all memory is released.

use larder_core::Align;
use larder_core::prmalloc::{PlanError, Replan};

use crate::common::{alone_and_clean, together};
use crate::tensor_pool::rig::{Device, InUse, Log, MIB, Op, STEP, align, soon, until_planned};

#[test]
fn pr_4_4276545_bytes_go_out_and_come_back_in_every_state() {
    const BYTES: u64 = 4_276_545;
    let _turn = together();
    let device = Device::new();
    let pool = device.pool(soon());
    let mut log = Log::new(&device);
    let mut in_use = InUse::default();
    in_use.alloc(&pool, 0, BYTES, 256);
    in_use.free(&pool, &mut log, 0);
    until_planned(&pool, &mut log, &[Op::Alloc(0, BYTES, 256), Op::Free(0)]);
    let before = pool.counts();
    in_use.alloc(&pool, 0, BYTES, 256);
    in_use.alloc(&pool, 1, BYTES, 256);
    let counts = pool.counts();
    assert_eq!(
        (counts.hits, counts.missed),
        (before.hits + 1, before.missed + 1)
    );
    in_use.free_all(&pool, &mut log);
    log.check();
    drop(pool);
    assert_eq!(device.use_of_memory().1, 0);
}

#[test]
fn pr_5_alignments_that_were_not_planned_for_are_kept() {
    let _turn = together();
    let device = Device::new();
    for first in [64, 256] {
        let pool = device.pool(soon());
        let mut log = Log::new(&device);
        let mut in_use = InUse::default();
        // Before there is a plan.
        for to in [4096, 64 << 10, 2 * MIB, 4 * MIB] {
            in_use.alloc(&pool, 0, 100_000, to);
            in_use.free_all(&pool, &mut log);
        }
        let ops = [Op::Alloc(0, 100_000, first), Op::Free(0)];
        until_planned(&pool, &mut log, &ops);
        let missed = pool.counts().missed;
        for to in [4096, 64 << 10, 2 * MIB] {
            in_use.alloc(&pool, 0, 100_000, to);
            in_use.free_all(&pool, &mut log);
        }
        assert_eq!(
            pool.counts().missed,
            missed + 3,
            "the device's allocator gave them"
        );
        log.check();
    }
    assert_eq!(device.use_of_memory().1, 0);
}

#[test]
fn pr_5_without_a_wish_a_block_is_aligned_as_all_of_the_device_are() {
    let _turn = together();
    let device = Device::new();
    let pool = device.pool(soon());
    for _ in 0..4 {
        let _step = pool.step();
        let blocks = [1, 100, 1000, 33_000].map(|bytes| pool.alloc(bytes).unwrap());
        for block in blocks {
            assert!(block.addr().is_aligned(align(256)));
            pool.free(block).unwrap();
        }
    }
    assert!(pool.is_planned());
    assert!(pool.counts().hits > 0);
}

/// A plan serves without the device's allocator, and the driver is asked whether the stream captures only.
#[test]
fn pr_6_after_init_a_repeating_step_asks_nobody() {
    alone_and_clean(|control| {
        let device = Device::new();
        let pool = device.pool(soon());
        let mut log = Log::new(&device);
        until_planned(&pool, &mut log, STEP);
        // Settled: nothing waits for the next step any more.
        drop(pool.step());
        let planned = pool.counts().slab_bytes;
        let (before, counts) = (device.use_of_memory(), pool.counts());
        control.reset_calls();
        for _ in 0..10 {
            let step = pool.step();
            let mut blocks = [const { None }; 5];
            for op in STEP {
                match *op {
                    Op::Alloc(name, bytes, to) => {
                        blocks[name] = Some(pool.alloc_aligned(bytes, align(to)).unwrap());
                    }
                    Op::Free(name) => pool.free(blocks[name].take().unwrap()).unwrap(),
                }
            }
            step.end().unwrap();
        }
        let asked = [("cuStreamIsCapturing".to_owned(), 50)];
        assert_eq!(control.call_table(), asked, "driver calls");
        assert_eq!(
            device.use_of_memory(),
            before,
            "allocations of the device's allocator"
        );
        let now = pool.counts();
        assert_eq!(
            (now.hits - counts.hits, now.missed - counts.missed),
            (50, 0)
        );
        assert_eq!((now.slab_bytes, now.direct_bytes), (planned, 0));
        log.check();
    });
}

/// Two slabs, one for sizes above 32 KiB and one for the others, and nothing else.
#[test]
fn pr_6_a_plan_takes_two_slabs() {
    let _turn = together();
    let device = Device::new();
    for (plans_small, slabs) in [(true, 2), (false, 1)] {
        let mut config = soon();
        config.plans_small = plans_small;
        let pool = device.pool(config);
        let mut in_use = InUse::default();
        let mut log = Log::new(&device);
        in_use.step(&pool, &mut log, STEP);
        let step = pool.step();
        for op in STEP {
            match *op {
                Op::Alloc(name, bytes, to) => {
                    in_use.alloc(&pool, name, bytes, to);
                }
                Op::Free(name) => in_use.free(&pool, &mut log, name),
            }
        }
        let (before, _) = device.use_of_memory();
        step.end().unwrap();
        assert!(pool.is_planned());
        assert_eq!(device.use_of_memory().0, before + slabs);
        log.check();
    }
}

#[test]
fn pr_7_a_changed_step_is_planned_anew_and_the_old_slabs_go_back() {
    let _turn = together();
    let device = Device::new();
    let mut config = soon();
    config.pool.replan = Some(Replan::DEFAULT);
    let pool = device.pool(config);
    let mut log = Log::new(&device);
    let mut in_use = InUse::default();
    until_planned(&pool, &mut log, &[Op::Alloc(0, 10 * MIB, 256), Op::Free(0)]);
    let first = pool.counts().slab_bytes;
    // Stays in use while the next plan comes.
    in_use.alloc(&pool, 9, 10 * MIB, 256);
    let other = [Op::Alloc(0, 3 * MIB, 256), Op::Free(0)];
    for _ in 0..8 {
        in_use.step(&pool, &mut log, &other);
    }
    assert!(pool.counts().no_bin >= 3);
    let both = pool.counts().slab_bytes;
    assert!(both > first, "{both}");
    let (_, live) = device.use_of_memory();
    in_use.free(&pool, &mut log, 9);
    assert_eq!(pool.counts().slab_bytes, both - first);
    assert!(device.use_of_memory().1 <= live - first);
    log.check();
}

#[test]
fn pr_8_blocks_are_freed_whatever_was_planned_meanwhile() {
    let _turn = together();
    let device = Device::new();
    let ops = [Op::Alloc(0, 200_000, 256), Op::Free(0)];
    let pool = device.pool(soon());
    let mut log = Log::new(&device);
    let mut in_use = InUse::default();
    // Before, before.
    in_use.alloc(&pool, 0, 200_000, 256);
    in_use.free_all(&pool, &mut log);
    // Before, after.
    in_use.alloc(&pool, 0, 200_000, 256);
    until_planned(&pool, &mut log, &ops);
    let direct = pool.counts().direct_bytes;
    assert!(direct > 0);
    in_use.free_all(&pool, &mut log);
    drop(pool.step());
    assert_eq!(pool.counts().direct_bytes, 0);
    // After, after.
    let hits = pool.counts().hits;
    in_use.alloc(&pool, 0, 200_000, 256);
    assert_eq!(pool.counts().hits, hits + 1);
    in_use.free_all(&pool, &mut log);
    // After, before: the planner begins anew while the block is out.
    in_use.alloc(&pool, 0, 200_000, 256);
    pool.reset();
    in_use.free_all(&pool, &mut log);
    until_planned(&pool, &mut log, &ops);
    log.check();
    drop(pool);
    assert_eq!(device.use_of_memory().1, 0);
}

#[test]
fn defect_12_no_memory_for_the_plan_is_an_error_and_the_pool_goes_on_without_it() {
    let _turn = together();
    let device = Device::with_limit(64 * MIB);
    let ops = [Op::Alloc(0, 20 * MIB, 256), Op::Free(0)];
    let pool = device.pool(soon());
    let mut log = Log::new(&device);
    let mut in_use = InUse::default();
    in_use.step(&pool, &mut log, &ops);
    let step = pool.step();
    in_use.alloc(&pool, 0, 20 * MIB, 256);
    in_use.free_all(&pool, &mut log);
    let held = device.memory.alloc(&device.stream, 50 * MIB).unwrap();
    let ended = step.end();
    drop(pool.step());
    let error = pool.plan_error();
    assert!(matches!(error, Some(PlanError::OutOfMemory { bytes }) if bytes >= 20 * MIB));
    assert_eq!(ended, Err(error.unwrap()));
    assert!(!pool.is_planned());
    assert_eq!(pool.counts().slab_bytes, 0);
    device.memory.free(&device.stream, held).unwrap();
    for _ in 0..5 {
        in_use.step(&pool, &mut log, &ops);
    }
    let counts = pool.counts();
    assert_eq!(
        counts.hits + counts.missed + counts.no_bin,
        0,
        "pass-through"
    );
    assert!(pool.replan());
    until_planned(&pool, &mut log, &ops);
    assert_eq!(pool.plan_error(), None);
    log.check();
    drop(pool);
    assert_eq!(device.use_of_memory().1, 0);
}

#[test]
fn a_dropped_pool_gives_everything_back_blocks_in_use_too() {
    alone_and_clean(|_| {
        let device = Device::new();
        let pool = device.pool(soon());
        let mut log = Log::new(&device);
        let early = pool.alloc(MIB).unwrap();
        let queued = pool.alloc(MIB).unwrap();
        until_planned(&pool, &mut log, STEP);
        log.check();
        let of_the_plan = pool.alloc(200_000).unwrap();
        let missed = pool
            .alloc_aligned(200_000, Align::new(MIB).unwrap())
            .unwrap();
        pool.free(queued).unwrap();
        assert!(device.use_of_memory().1 > 0);
        drop(pool);
        assert_eq!(device.use_of_memory().1, 0);
        drop((early, of_the_plan, missed));
    });
}
