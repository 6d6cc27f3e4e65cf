//! PR-9: several sessions on one pool, on real threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::prmalloc::{
    AllocStat, PlannedPoolConfig, Planner, PlannerConfig, PlannerStage, Replan, RoundEnd, Window,
};
use larder_model::Random;

use crate::prmalloc::books::align;
use crate::prmalloc::planner::planner_with;
use crate::prmalloc::rig::{CountedBackend, Pool, pool_with, soon};

/// Plays the steps of one session. `owner` marks each page with the session that has it; the mock checks the rest.
fn session(pool: &Pool, seed: u64, steps: u32, owner: &[AtomicU64]) {
    let mut random = Random::new(seed);
    for step_number in 0..steps {
        // The load changes from time to time, so that plans are replaced.
        let scale = 1 + u64::from(step_number / 40) % 3;
        let step = pool.start();
        let mut held = Vec::new();
        for _ in 0..12 {
            let bytes = scale * (40_000 + random.below(4) * 30_000);
            let block = pool.alloc(bytes, align(64)).unwrap();
            let pages = (block.get() >> 12)..((block.get() + bytes) >> 12);
            for page in pages.clone().skip(1) {
                let mark = &owner[page as usize % owner.len()];
                assert_eq!(
                    mark.swap(seed, Ordering::SeqCst),
                    0,
                    "page {page} is somebody's"
                );
            }
            held.push((block, pages));
            if random.below(2) == 0 {
                let (block, pages) = held.swap_remove(random.index(held.len()));
                give_back(pool, block, pages, seed, owner);
            }
        }
        for (block, pages) in held {
            give_back(pool, block, pages, seed, owner);
        }
        // This may fail, because other sessions may keep two plans in use.
        let _ = pool.end_step(step);
    }
}

fn give_back(
    pool: &Pool,
    block: larder_core::Addr,
    pages: std::ops::Range<u64>,
    seed: u64,
    owner: &[AtomicU64],
) {
    for page in pages.skip(1) {
        let mark = &owner[page as usize % owner.len()];
        assert_eq!(
            mark.swap(0, Ordering::SeqCst),
            seed,
            "page {page} was taken"
        );
    }
    pool.free(block).unwrap();
}

#[test]
fn pr_9_sessions_share_a_pool_that_plans_and_switches_under_them() {
    let config = PlannedPoolConfig {
        replan: Some(Replan {
            miss_percent: 5,
            steps: 2,
        }),
        ..soon()
    };
    // There is room for every life of the test, because the thread that runs a round may be preempted while the others
    // go on.
    let pool = pool_with(config, false, 1 << 15);
    // More marks than the mock gives pages in this test, so that no two pages share a mark.
    let owner: Vec<AtomicU64> = (0..1 << 22).map(|_| AtomicU64::new(0)).collect();
    let four_at_once = || {
        std::thread::scope(|scope| {
            for seed in 1..=4 {
                let (pool, owner) = (&pool, &owner);
                scope.spawn(move || session(pool, seed * 0x9e37_79b9, 240, owner));
            }
        });
    };
    four_at_once();
    // The number of rounds so far depends on the scheduler; one session makes the rest.
    for _ in 0..60 {
        session(&pool, 5, 1, &owner);
    }
    assert!(pool.serving().is_some(), "{:?}", pool.planner().progress());
    four_at_once();
    let counts = pool.counts();
    assert_eq!(counts.direct_bytes, 0);
    assert_eq!(counts.slab_bytes, pool.backend().out_bytes());
    assert!(counts.hits > 0 && pool.serving().is_some(), "{counts:?}");
}

#[test]
fn pr_9_each_round_is_given_to_one_of_the_threads_that_stop() {
    let window = Window {
        start: 0,
        stable: i64::MAX,
        max: i64::MAX,
    };
    let config = PlannerConfig::new().with_window(window);
    let planner: Planner = planner_with(config, 1 << 12, 64);
    let (won, running, clock) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let wrong = AtomicU64::new(0);
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (planner, won, running, barrier) = (&planner, &won, &running, &barrier);
            let (clock, wrong) = (&clock, &wrong);
            scope.spawn(move || {
                for _ in 0..200 {
                    barrier.wait();
                    let step = planner.start();
                    let tick = clock.fetch_add(2, Ordering::SeqCst);
                    let stat = AllocStat::new(tick, tick + 1, 40_000 + thread);
                    planner.record(stat, planner.steps());
                    barrier.wait();
                    let round = planner.stop(step);
                    barrier.wait();
                    if let Some(round) = round {
                        // Counted instead of asserted, because the others wait for this thread at the barrier.
                        let alone = running.fetch_add(1, Ordering::SeqCst) == 0;
                        let again = planner.run(round) == Ok(RoundEnd::Again);
                        wrong.fetch_add(u64::from(!alone || !again), Ordering::SeqCst);
                        running.fetch_sub(1, Ordering::SeqCst);
                        won.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(wrong.load(Ordering::SeqCst), 0);
    assert_eq!(won.load(Ordering::SeqCst), 200);
    let progress = planner.progress();
    assert_eq!((progress.steps, progress.rounds), (800, 200));
    assert_eq!(progress.state, PlannerStage::On);
}
