//! PR-7: outdated plans are replaced, and their slabs released.

use std::sync::atomic::Ordering;

use larder_core::FreeError;
use larder_core::prmalloc::{PlannedPoolConfig, PlannerStage, Replan};

use crate::prmalloc::books::{KIB, align};
use crate::prmalloc::pool::{LARGE, STEP};
use crate::prmalloc::rig::{CountedBackend, InUse, planned_pool, pool_with, soon, until_planned};

/// The default, looking for worn-out plans.
fn adaptive() -> PlannedPoolConfig {
    PlannedPoolConfig {
        replan: Some(Replan {
            miss_percent: 10,
            steps: 3,
        }),
        ..soon()
    }
}

#[test]
fn pr_7_a_changed_step_is_counted_planned_again_and_the_old_slabs_go_home_with_the_last_block() {
    let pool = planned_pool(adaptive(), LARGE);
    let first = pool.serving();
    let old_bytes = pool.counts().slab_bytes;
    let kept = pool.alloc(200_000, align(64)).unwrap();
    let changed = "0=900000 1=900000 -0 -1";
    let mut in_use = InUse::default();
    for step in 1..=3 {
        assert_eq!(pool.planner().state(), PlannerStage::Done);
        in_use.step(&pool, changed).unwrap();
        assert_eq!(pool.counts().no_bin, 2 * step);
    }
    assert_eq!(pool.planner().state(), PlannerStage::On, "three bad steps");
    while pool.planner().state() != PlannerStage::Done {
        in_use.step(&pool, changed).unwrap();
    }
    assert_ne!(pool.serving(), first);
    let new_bytes = pool.planner().best().unwrap().bytes;
    assert_eq!(
        pool.counts().slab_bytes,
        old_bytes + new_bytes,
        "the old one drains"
    );
    let calls = pool.backend().calls();
    in_use.step(&pool, changed).unwrap();
    assert_eq!(pool.backend().calls(), calls);
    // No third plan while the old one drains.
    assert!(!pool.replan());
    pool.free(kept).unwrap();
    assert_eq!(pool.backend().calls(), (calls.0, calls.1 + 1));
    assert_eq!(pool.counts().reserved_bytes(), new_bytes);
    assert_eq!(pool.backend().out_bytes(), new_bytes);
    assert_eq!(pool.free(kept), Err(FreeError::Unknown));
    assert!(pool.replan());
}

#[test]
fn pr_7_a_new_plan_knows_the_alignments_of_blocks_that_came_from_the_old_one() {
    let ops = "0=40000@65536 1=40000@65536 -0 -1";
    let pool = planned_pool(adaptive(), ops);
    assert!(pool.replan());
    let mut in_use = InUse::default();
    while pool.planner().state() != PlannerStage::Done {
        in_use.step(&pool, ops).unwrap();
    }
    assert_eq!(pool.counts().slab_bytes, 128 * KIB);
    assert_eq!(pool.counts().missed, 0);
}

#[test]
fn pr_10_small_sizes_share_no_blocks_with_larger_ones() {
    let pool = pool_with(soon(), true, 1 << 10);
    let ops = "0=16384 -0 1=8192 -1";
    until_planned(&pool, ops);
    assert_eq!(pool.counts().slab_bytes, 24 * KIB);
}

#[test]
fn defect_3_a_plan_without_blocks_in_use_goes_home_at_the_switch_again_and_again() {
    let pool = planned_pool(adaptive(), LARGE);
    let mut in_use = InUse::default();
    for size in 1..20_u64 {
        let step = &format!("0={} -0", size * 300_000);
        for _ in 0..8 {
            in_use.step(&pool, step).unwrap();
        }
        let planned = pool.planner().best().unwrap().bytes;
        assert_eq!(pool.backend().out_bytes(), planned);
        assert_eq!(planned, 4 * KIB * (size * 300_000).div_ceil(4 * KIB));
    }
}

#[test]
fn a_few_misses_do_not_wear_a_plan_out() {
    let pool = planned_pool(adaptive(), STEP);
    let mut in_use = InUse::default();
    for step in 0..30 {
        // One bad step in three, and twice in a row.
        let bad = step % 3 < 2;
        in_use.step(&pool, STEP).unwrap();
        if bad {
            in_use.step(&pool, "9=3145728 -9").unwrap();
        }
        assert_eq!(pool.planner().state(), PlannerStage::Done, "step {step}");
    }
}

#[test]
fn slabs_that_the_backend_refuses_are_offered_again_at_the_end_of_a_step() {
    let pool = planned_pool(adaptive(), LARGE);
    let mut in_use = InUse::default();
    assert!(pool.replan());
    pool.backend().refuse_releases.store(2, Ordering::SeqCst);
    let kept = pool.alloc(200_000, align(64)).unwrap();
    while pool.planner().state() != PlannerStage::Done {
        in_use.step(&pool, "").unwrap();
    }
    let both = pool.counts().slab_bytes;
    pool.free(kept).unwrap();
    assert_eq!(pool.counts().slab_bytes, both, "refused once");
    assert!(!pool.replan(), "its room is taken");
    in_use.step(&pool, "").unwrap();
    assert_eq!(pool.counts().slab_bytes, both, "refused twice");
    in_use.step(&pool, "").unwrap();
    assert_eq!(pool.backend().out_bytes(), pool.counts().slab_bytes);
    assert!(pool.counts().slab_bytes < both);
    assert!(pool.replan());
}

#[test]
fn slabs_of_a_plan_that_did_not_fit_are_offered_again_too() {
    let ops = "0=200000 1=20000 -0 -1";
    let pool = pool_with(adaptive(), true, 1 << 10);
    let mut in_use = InUse::default();
    in_use.step(&pool, ops).unwrap();
    // Room for the slab of 20,480 bytes and not for the other, and that one stays for a while.
    pool.backend()
        .capacity_bytes
        .store(220_100, Ordering::SeqCst);
    let step = pool.start();
    in_use.run(&pool, ops);
    pool.backend().refuse_releases.store(1, Ordering::SeqCst);
    assert!(pool.end_step(step).is_err());
    assert_eq!((pool.serving(), pool.counts().slab_bytes), (None, 20_480));
    assert_eq!(pool.backend().out_bytes(), 20_480);
    in_use.step(&pool, "").unwrap();
    assert_eq!(
        (pool.counts().slab_bytes, pool.backend().out_bytes()),
        (0, 0)
    );
    pool.backend()
        .capacity_bytes
        .store(u64::MAX, Ordering::SeqCst);
    assert!(pool.replan());
    until_planned(&pool, ops);
}
