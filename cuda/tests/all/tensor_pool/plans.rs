//! PR-4 to PR-8 on a device: which requests the plan serves, and when all memory is released.

use larder_core::prmalloc::{PlanError, Replan};

use crate::common::{alone_and_clean, together};
use crate::tensor_pool::rig::{
    AnyPool, Device, GIB, InUse, MIB, STEP, Tested, align, on_a_device, soon, until_planned,
};

#[test]
fn pr_4_4276545_bytes_go_out_and_come_back_in_every_state() {
    on_a_device(GIB, soon(), |pool| {
        let mut in_use = InUse::default();
        in_use.run(pool, "0=4276545@256 -0");
        until_planned(pool, "0=4276545@256 -0");
        let before = pool.counts();
        in_use.run(pool, "0=4276545@256 1=4276545@256");
        let now = pool.counts();
        let served = (now.hits - before.hits, now.missed - before.missed);
        assert_eq!(served, (1, 1));
        in_use.free_all(pool);
    });
}

#[test]
fn pr_5_alignments_that_were_not_planned_for_are_kept() {
    for first in [64, 256] {
        on_a_device(GIB, soon(), |pool| {
            let mut in_use = InUse::default();
            // These alignments are requested before there is a plan.
            for to in [4096, 64 << 10, 2 * MIB, 4 * MIB] {
                in_use.run(pool, &format!("0=100000@{to} -0"));
            }
            until_planned(pool, &format!("0=100000@{first} -0"));
            let missed = pool.counts().missed;
            for to in [4096, 64 << 10, 2 * MIB] {
                in_use.run(pool, &format!("0=100000@{to} -0"));
            }
            let by_the_device = pool.counts().missed - missed;
            assert_eq!(by_the_device, 3, "planned for {first}");
        });
    }
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

/// A plan serves without the device's allocator, and the only driver call is the check whether the stream is being
/// captured.
#[test]
fn pr_6_after_init_a_repeating_step_asks_nobody() {
    alone_and_clean(|control| {
        let device = Device::new();
        let pool = Tested::new(&device, soon());
        until_planned(&pool, STEP);
        // An empty step, after which nothing waits for the next one.
        drop(pool.pool.step());
        let planned = pool.counts().slab_bytes;
        let (before, counts) = (device.use_of_memory(), pool.counts());
        control.reset_calls();
        let mut in_use = InUse::bare();
        for _ in 0..10 {
            in_use.step(&pool, STEP).unwrap();
        }
        let asked = [("cuStreamIsCapturing".to_owned(), 50)];
        assert_eq!(control.call_table(), asked, "driver calls");
        let now = device.use_of_memory();
        assert_eq!(now, before, "allocations of the device's allocator");
        let now = pool.counts();
        let served = (now.hits - counts.hits, now.missed - counts.missed);
        assert_eq!(served, (50, 0));
        assert_eq!((now.slab_bytes, now.direct_bytes), (planned, 0));
        pool.end();
    });
}

/// A plan takes one slab for sizes above 32 KiB and one for the others, and nothing else.
#[test]
fn pr_6_a_plan_takes_two_slabs() {
    for (plans_small, slabs) in [(true, 2), (false, 1)] {
        let mut config = soon();
        config.plans_small = plans_small;
        on_a_device(GIB, config, |pool| {
            let mut in_use = InUse::default();
            in_use.step(pool, STEP).unwrap();
            let step = pool.pool.step();
            in_use.run(pool, STEP);
            let (before, _) = pool.backend_calls();
            step.end().unwrap();
            assert!(pool.is_planned());
            assert_eq!(pool.backend_calls().0, before + slabs);
        });
    }
}

#[test]
fn pr_7_a_changed_step_is_planned_anew_and_the_old_slabs_go_back() {
    let mut config = soon();
    config.pool.replan = Some(Replan::DEFAULT);
    on_a_device(GIB, config, |pool| {
        let mut in_use = InUse::default();
        until_planned(pool, "0=10485760@256 -0");
        let first = pool.counts().slab_bytes;
        // Stays in use while the next plan is made.
        in_use.run(pool, "9=10485760@256");
        for _ in 0..8 {
            in_use.step(pool, "0=3145728@256 -0").unwrap();
        }
        assert!(pool.counts().no_bin >= 3);
        let both = pool.counts().slab_bytes;
        assert!(both > first, "{both}");
        let live = pool.backend_bytes();
        in_use.run(pool, "-9");
        assert_eq!(pool.counts().slab_bytes, both - first);
        assert!(pool.backend_bytes() <= live - first);
    });
}

#[test]
fn pr_8_blocks_are_freed_whatever_was_planned_meanwhile() {
    on_a_device(GIB, soon(), |pool| {
        let ops = "0=200000@256 -0";
        let mut in_use = InUse::default();
        // Allocated and freed before the plan.
        in_use.run(pool, ops);
        // Allocated before the plan, freed after it.
        in_use.run(pool, "0=200000@256");
        until_planned(pool, ops);
        assert!(pool.counts().direct_bytes > 0);
        in_use.free_all(pool);
        drop(pool.pool.step());
        assert_eq!(pool.counts().direct_bytes, 0);
        // Allocated and freed after the plan.
        let hits = pool.counts().hits;
        in_use.run(pool, ops);
        assert_eq!(pool.counts().hits, hits + 1);
        // Allocated after the plan, and freed once the planner has started again.
        in_use.run(pool, "0=200000@256");
        pool.reset();
        in_use.free_all(pool);
        until_planned(pool, ops);
    });
}

#[test]
fn defect_12_no_memory_for_the_plan_is_an_error_and_the_pool_goes_on_without_it() {
    let _turn = together();
    let device = Device::with_limit(64 * MIB);
    let tested = Tested::new(&device, soon());
    let (pool, ops) = (&tested.pool, "0=20971520@256 -0");
    let mut in_use = InUse::default();
    in_use.step(&tested, ops).unwrap();
    let step = pool.step();
    in_use.run(&tested, ops);
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
        in_use.step(&tested, ops).unwrap();
    }
    let counts = pool.counts();
    let planned = counts.hits + counts.missed + counts.no_bin;
    assert_eq!(planned, 0, "pass-through");
    assert!(pool.replan());
    until_planned(&tested, ops);
    assert_eq!(pool.plan_error(), None);
    tested.end();
}

#[test]
fn a_dropped_pool_gives_everything_back_blocks_in_use_too() {
    alone_and_clean(|_| {
        let device = Device::new();
        let pool = Tested::new(&device, soon());
        let mut in_use = InUse::default();
        in_use.run(&pool, "0=1048576@256 1=1048576@256");
        until_planned(&pool, STEP);
        // One block of the plan, one that misses it, and one whose release is queued.
        in_use.run(&pool, "2=200000@256 3=200000@1048576 -1");
        assert!(pool.backend_bytes() > 0);
        pool.end();
    });
}
