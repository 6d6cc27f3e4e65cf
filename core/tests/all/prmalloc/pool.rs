//! PR-4 to PR-8: the pool over a backend that counts.

use std::sync::atomic::Ordering;

use larder_core::prmalloc::{Interval, PlanError, PlannedPoolConfig, PlannerStage};
use larder_core::{Addr, AllocError, Cause, FreeError, OutOfMemory};
use larder_model::prmalloc::{Form, Window};

use crate::prmalloc::books::{KIB, align};
use crate::prmalloc::rig::{
    AnyPool, CountedBackend, InUse, OverMock, planned, planned_pool, pool, pool_with, soon,
    until_planned, upstream, upstream_soon,
};

pub const STEP: &str = "0=200000 1=100000 -0 2=60000 3=100000 -1 -2 -3";

pub const LARGE: &str = "0=200000 -0";

/// Ours and upstream's CPU form, made anew, each planning soon.
fn both() -> [Box<dyn OverMock>; 2] {
    [Box::new(pool(soon())), Box::new(upstream_soon())]
}

#[test]
fn pr_4_4276545_bytes_go_out_and_come_back_in_every_state() {
    const BYTES: u64 = 4_276_545;
    assert_eq!(BYTES as u32, u32::from_le_bytes(*b"AAA\0"));
    let ops = &format!("0={BYTES} -0");
    for pool in both() {
        let before = pool.alloc(BYTES, align(64)).unwrap();
        pool.free(before).unwrap();
        assert_eq!(pool.backend().out_bytes(), 0);
        until_planned(&*pool, ops);
        let planned = pool.alloc(BYTES, align(64)).unwrap();
        let direct = pool.alloc(BYTES, align(64)).unwrap();
        assert_eq!((pool.counts().hits, pool.counts().missed), (1, 1));
        pool.free(planned).unwrap();
        pool.free(direct).unwrap();
        assert_eq!(pool.counts().direct_bytes, 0);
    }
}

#[test]
fn defect_1_a_block_of_4276545_bytes_is_freed_as_what_it_is() {
    // Nothing stands before a block; a small one and a large one differ in nothing but size.
    for bytes in [4_276_545, 4_276_545 + (1 << 32), 100] {
        let pool = pool(soon());
        let block = pool.alloc(bytes, align(8)).unwrap();
        assert_eq!(pool.free(block), Ok(()));
        assert_eq!(pool.free(block), Err(FreeError::Unknown));
        assert_eq!(pool.backend().calls(), (1, 1));
    }
}

#[test]
fn defect_2_null_foreign_and_double_frees_are_errors_and_so_is_a_refusing_backend() {
    let pool = planned_pool(soon(), LARGE);
    assert_eq!(pool.free(Addr::new(0)), Err(FreeError::Unknown));
    assert_eq!(pool.free(Addr::new(0xdead_0000)), Err(FreeError::Unknown));
    let block = pool.alloc(200_000, align(64)).unwrap();
    for inside in [1, 64, 199_999, 200_704] {
        let inside = Addr::new(block.get() + inside);
        assert_eq!(pool.free(inside), Err(FreeError::Unknown));
    }
    pool.free(block).unwrap();
    assert_eq!(pool.free(block), Err(FreeError::Unknown));
    assert_eq!(pool.alloc(0, align(8)), Err(AllocError::ZeroSize));
    let huge = pool.alloc(u64::MAX, align(64)).unwrap_err();
    assert_eq!(
        huge,
        AllocError::TooLarge {
            requested_bytes: u64::MAX
        }
    );
    let direct = pool.alloc(100, align(64)).unwrap();
    pool.backend().capacity_bytes.store(0, Ordering::SeqCst);
    let out = pool.alloc(101, align(64)).unwrap_err();
    assert_eq!(
        out,
        AllocError::OutOfMemory(OutOfMemory::of(Cause::SubAllocator, 101))
    );
    pool.backend().refuse_releases.store(1, Ordering::SeqCst);
    assert_eq!(pool.free(direct), Err(FreeError::SubAllocator));
    assert_eq!(pool.free(direct), Ok(()));
}

#[test]
fn a_full_table_of_the_backends_blocks_is_an_error_and_gives_the_range_back() {
    let pool = pool_with(soon(), false, 2);
    let blocks: Vec<Addr> = (0..3)
        .map(|_| pool.alloc(100, align(64)).unwrap())
        .collect();
    let full = pool.alloc(100, align(64));
    assert_eq!(full, Err(AllocError::TableFull { records: 4 }));
    assert_eq!(pool.backend().out_bytes(), 3 * 128);
    blocks
        .into_iter()
        .for_each(|block| pool.free(block).unwrap());
    assert_eq!(pool.backend().out_bytes(), 0);
}

#[test]
fn pr_5_a_block_of_a_bin_planned_with_64_is_not_given_for_4096() {
    for pool in both() {
        until_planned(&*pool, STEP);
        for bytes in [200_000, 100_000, 60_000] {
            let block = pool.alloc(bytes, align(4096)).unwrap();
            assert!(block.is_aligned(align(4096)));
            pool.free(block).unwrap();
        }
        assert_eq!(pool.counts().missed, 3, "the backend gave them");
        assert_eq!(pool.counts().hits, 0);
    }
}

#[test]
fn pr_5_a_borrowed_block_is_aligned_as_the_borrower_wants() {
    // The larger bin was planned with 64; the smaller one shares its block and wants 4096.
    let ops = "0=65600 -0 1=40064@4096 -1";
    for pool in both() {
        until_planned(&*pool, ops);
        let bytes = pool.counts().slab_bytes;
        assert_eq!(bytes, 69_632, "one block for both");
        let block = pool.alloc(40_064, align(4096)).unwrap();
        assert!(block.is_aligned(align(4096)));
        assert_eq!(pool.counts().hits, 1);
        pool.free(block).unwrap();
        let block = pool.alloc(40_064, align(8192)).unwrap();
        assert!(block.is_aligned(align(8192)));
        assert_eq!(pool.counts().missed, 1);
        pool.free(block).unwrap();
    }
}

#[test]
fn defect_5_alignments_above_the_chunks_own_are_planned_for() {
    let ops = "0=40000@65536 1=40000@65536 -0 -1";
    for pool in both() {
        until_planned(&*pool, ops);
        assert_eq!(pool.counts().slab_bytes, 128 * KIB);
        let calls = pool.backend().calls();
        let mut in_use = InUse::default();
        in_use.step(&*pool, ops).unwrap();
        assert_eq!(pool.backend().calls(), calls);
    }
}

#[test]
fn pr_6_after_init_a_repeating_step_asks_nobody_and_takes_what_was_planned() {
    let gpu = Form {
        window: Window::EachStart { start: 0, stop: 2 },
        ..Form::GPU
    };
    let [ours, cpu] = both();
    for pool in [ours, cpu, Box::new(upstream(gpu, false))] {
        until_planned(&*pool, STEP);
        let (planned, before) = (pool.planned_bytes(), pool.counts());
        let calls = pool.backend().calls();
        let mut in_use = InUse::default();
        for _ in 0..10 {
            in_use.step(&*pool, STEP).unwrap();
            assert_eq!(pool.backend().out_bytes(), planned);
        }
        assert_eq!(pool.backend().calls(), calls);
        let counts = pool.counts();
        assert_eq!(counts.hits - before.hits, 40);
        assert_eq!((counts.missed, counts.no_bin), (0, 0));
        assert_eq!((counts.slab_bytes, counts.direct_bytes), (planned, 0));
    }
}

#[test]
fn pr_6_sizes_up_to_32_kib_go_to_the_backend_and_count_nowhere() {
    let pool = planned_pool(soon(), LARGE);
    let before = pool.counts();
    let (grows, _) = pool.backend().calls();
    let block = pool.alloc(32 * KIB, align(64)).unwrap();
    assert_eq!(pool.backend().calls().0, grows + 1);
    pool.free(block).unwrap();
    assert_eq!(pool.counts(), before);
    let none = pool.alloc(32 * KIB + 1, align(64)).unwrap();
    assert_eq!(pool.counts().no_bin, 1);
    pool.free(none).unwrap();
}

#[test]
fn defect_6_a_bin_without_blocks_gets_no_slab() {
    let ops = "0=65600 -0 1=40064 -1";
    let pool = pool(soon());
    let mut in_use = InUse::default();
    let mut grows = 0;
    while pool.serving().is_none() {
        grows = pool.backend().calls().0;
        in_use.step(&pool, ops).unwrap();
    }
    assert_eq!(
        pool.backend().calls().0,
        grows + 2 + 1,
        "two blocks, one slab"
    );
    // Nothing large in a step: a plan without slabs.
    let empty = planned_pool(soon(), "0=100@8 -0");
    assert_eq!(empty.counts().slab_bytes, 0);
    assert_eq!(empty.free(Addr::new(1 << 40)), Err(FreeError::Unknown));
}

#[test]
fn pr_8_blocks_are_freed_in_any_state_whatever_it_was_when_they_were_allocated() {
    for pool in both() {
        // Before, before.
        let block = pool.alloc(200_000, align(64)).unwrap();
        pool.free(block).unwrap();
        assert_eq!(pool.backend().out_bytes(), 0);
        // Before, after.
        let block = pool.alloc(200_000, align(64)).unwrap();
        until_planned(&*pool, LARGE);
        let releases = pool.backend().calls().1;
        pool.free(block).unwrap();
        assert_eq!(pool.backend().calls().1, releases + 1);
        // After, after.
        let calls = pool.backend().calls();
        let block = pool.alloc(200_000, align(64)).unwrap();
        pool.free(block).unwrap();
        assert_eq!(pool.backend().calls(), calls);
        // After, before: the planner begins anew while the block is out, and the plan still serves.
        let block = pool.alloc(200_000, align(64)).unwrap();
        pool.reset();
        pool.free(block).unwrap();
        assert_eq!(pool.backend().calls(), calls);
        until_planned(&*pool, LARGE);
    }
}

/// With room again, `again` has it planned again.
fn no_memory_for_the_plan<P: OverMock>(pool: P, again: impl Fn(&P)) {
    // 200,000 and then 100,000 bytes; planned apart they are more than both at once.
    let ops = "0=200000 1=100000 -0 -1";
    let mut in_use = InUse::default();
    in_use.step(&pool, ops).unwrap();
    let capacity = &pool.backend().capacity_bytes;
    capacity.store(300_100, Ordering::SeqCst);
    let error = in_use.step(&pool, ops).unwrap_err();
    let bytes = pool.planned_bytes();
    assert_eq!(error, PlanError::OutOfMemory { bytes });
    assert!(!pool.is_planned());
    assert_eq!(pool.backend().out_bytes(), 0);
    for _ in 0..5 {
        in_use.step(&pool, ops).unwrap();
    }
    let counts = pool.counts();
    assert_eq!(counts.hits + counts.missed + counts.no_bin, 0);
    capacity.store(u64::MAX, Ordering::SeqCst);
    again(&pool);
    until_planned(&pool, ops);
}

#[test]
fn defect_12_no_memory_for_the_plan_is_an_error_and_the_pool_goes_on_without_it() {
    no_memory_for_the_plan(pool(soon()), |pool| assert!(pool.replan()));
    no_memory_for_the_plan(upstream_soon(), AnyPool::reset);
}

#[test]
fn defect_12_the_end_of_a_slab_belongs_to_nobody() {
    let pool = planned_pool(soon(), LARGE);
    let block = pool.alloc(200_000, align(64)).unwrap();
    let stride = Interval::KiB4
        .chunk_bytes(Interval::KiB4.class_of(200_000).unwrap())
        .unwrap();
    let end = Addr::new(block.get() + stride);
    assert_eq!(pool.counts().slab_bytes, stride);
    assert_eq!(pool.free(end), Err(FreeError::Unknown));
    pool.free(block).unwrap();
}

#[test]
fn a_plan_above_the_cap_or_the_tables_is_refused() {
    let config = PlannedPoolConfig {
        cap_bytes: 200_703,
        ..soon()
    };
    let capped = pool(config);
    let mut in_use = InUse::default();
    in_use.step(&capped, LARGE).unwrap();
    let error = in_use.step(&capped, LARGE);
    assert_eq!(
        error,
        Err(PlanError::AboveCap {
            bytes: 200_704,
            cap_bytes: 200_703
        })
    );
    assert_eq!(capped.serving(), None);
    until_planned(
        &pool(PlannedPoolConfig {
            cap_bytes: 200_704,
            ..soon()
        }),
        LARGE,
    );
    let crowded = pool_with(soon(), false, 8);
    let nine = |op: fn(u32) -> String| (0..9).map(op).collect::<String>();
    let ops = nine(|name| format!("{name}=40000@8 ")) + &nine(|name| format!("-{name} "));
    let error = in_use.step(&crowded, &ops).unwrap_err();
    assert!(matches!(error, PlanError::StatsFull { .. }), "{error}");
    assert_eq!(crowded.planner().state(), PlannerStage::Done);
    in_use.step(&crowded, LARGE).unwrap();
    assert_eq!(crowded.serving(), None);
}

#[test]
fn defect_4_all_blocks_that_were_planned_for_sharing_are_tried() {
    // Two stats of the small bin go into the same block of the large one, a third into another.
    let ops = "0=200000 -0 1=100000 -1 2=50000 3=50000 -2 -3 4=50000 -4 5=200000 6=100000 -5 -6";
    let pool = planned_pool(soon(), ops);
    let calls = pool.backend().calls();
    let mut in_use = InUse::default();
    for _ in 0..3 {
        in_use.step(&pool, ops).unwrap();
    }
    assert_eq!(pool.backend().calls(), calls);
    // Upstream has an entry for each stat, and tries the newest only.
    let small = Interval::KiB4.class_of(50_000).unwrap();
    assert!(
        planned(upstream_soon(), ops).virtuals_of(small) >= 3,
        "one a stat"
    );
}

#[test]
fn defect_4_a_block_in_use_does_not_hide_another_that_may_be_borrowed() {
    // Both 50,000s are alive at once: one borrows from 100,000, the newer one from 200,000.
    let ops = "0=200000 1=100000 -0 -1 2=50000 3=50000 -2 -3";
    let served = |pool: &dyn OverMock, taken: u64| {
        until_planned(pool, ops);
        pool.alloc(taken, align(64)).unwrap();
        pool.alloc(50_000, align(64)).unwrap();
        pool.counts().hits == 2
    };
    let by = [200_000, 100_000].map(|taken| both().map(|pool| served(&*pool, taken)));
    // Upstream looks at the newest entry only.
    assert_eq!(by, [[true, false], [true, true]], "ours, upstream's");
}

#[test]
fn defect_12_the_end_of_one_bin_is_no_block_of_another() {
    let ops = "0=200000 1=100000 -0 -1";
    for pool in both() {
        until_planned(&*pool, ops);
        let blocks = [200_000, 100_000].map(|bytes| pool.alloc(bytes, align(64)).unwrap());
        let ends = blocks.iter().flat_map(|block| {
            let ends = [102_400, 200_704].map(|stride| Addr::new(block.get() + stride));
            ends.into_iter().filter(|end| !blocks.contains(end))
        });
        for end in ends {
            assert_eq!(pool.free(end), Err(FreeError::Unknown));
        }
        for block in blocks {
            pool.free(block).unwrap();
        }
    }
}

#[test]
fn defect_10_each_pool_has_its_own_planner() {
    let (first, second) = (pool(soon()), pool(soon()));
    until_planned(&first, LARGE);
    assert_eq!(second.planner().steps(), 0);
    until_planned(&second, LARGE);
    assert!(first.serving().is_some() && second.serving().is_some());
}

#[test]
fn defect_9_counting_needs_no_signal() {
    let pool = planned_pool(soon(), LARGE);
    assert_eq!(pool.counts().hits, 0);
    let block = pool.alloc(200_000, align(64)).unwrap();
    assert_eq!(pool.counts().hits, 1);
    pool.free(block).unwrap();
}
