//! Memory released to the driver, at once and later, and steps beside everything else.

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::setup::Setup;
use common::{MIB, alone, alone_and_clean, assert_clean, fill, ran_in_child};
use larder_core::{AllocError, Block, ChunkState};
use larder_cuda::driver::Rule;
use larder_cuda::{ArenaPolicy, DeviceAllocError, DeviceConfig};

/// Seeds of deferred schedules.
const SEEDS: u64 = 40;

#[test]
fn what_goes_later_goes_when_the_work_is_done() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let mut later = 0;
    for seed in 0..SEEDS {
        let setup = Setup::new(2, DeviceConfig::new());
        let idle = setup.alloc(0, 4 * MIB, 1);
        let busy = setup.alloc(1, 6 * MIB, 1);
        setup.context.synchronize().unwrap();
        setup.free(0, idle);
        control.schedule_deferred(seed);
        setup.free_pending(1, busy);
        let released = setup.memory.release(u64::MAX);
        let held = setup.memory.stats().reserved_bytes;
        assert_eq!(held, 10 * MIB - released.now_bytes);
        assert_eq!(held, released.later_bytes, "seed {seed}");
        later += u64::from(held > 0);
        setup.context.synchronize().unwrap();
        setup.memory.end_step();
        assert_eq!(setup.memory.stats().reserved_bytes, 0, "seed {seed}");
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
    assert!(later > 0, "all was done at once");
}

/// Two releases before the first one's memory could go: both go.
#[test]
fn a_second_release_does_not_forget_the_first() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let mut later = 0;
    for seed in 0..SEEDS {
        // Beside a limit memory comes in pieces of a page.
        let setup = Setup::new(2, DeviceConfig::with_budget(16 * MIB));
        let blocks = [setup.alloc(1, 6 * MIB, 1), setup.alloc(0, 2 * MIB, 1)];
        control.schedule_deferred(seed);
        let [busy, other] = blocks;
        setup.free_pending(1, busy);
        let first = setup.memory.release(4 * MIB);
        setup.free_pending(0, other);
        let second = setup.memory.release(MIB);
        later += u64::from(first.later_bytes > 0 && second.later_bytes > 0);
        setup.context.synchronize().unwrap();
        setup.memory.end_step();
        // 5 MiB were asked for, and go in whole pages.
        let left = setup.memory.stats().reserved_bytes;
        assert!(left <= 3 * MIB, "seed {seed}: {left}");
        assert!(left > 0, "more than was asked for");
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
    assert!(later > 0, "all was done at once");
}

#[test]
fn a_refused_wait_is_no_block_of_anybody() {
    alone_and_clean(|control| {
        let setup = Setup::new(2, DeviceConfig::with_budget(4 * MIB));
        let block = setup.alloc(0, 3 * MIB, 1);
        control.schedule_deferred(1);
        setup.free_pending(0, block);
        control.fail(Rule::of("cuStreamWaitEvent")).unwrap();
        let error = setup.memory.alloc(&setup.streams[1], 3 * MIB).unwrap_err();
        assert!(matches!(error, DeviceAllocError::Driver(_)), "{error}");
        control.clear_failures();
        for stats in setup.memory.streams() {
            let its_own = stats.stream == setup.streams[0].cu_stream().addr();
            let counted = [stats.allocations, stats.frees];
            assert_eq!(counted, [u64::from(its_own); 2]);
            let bytes = [stats.allocated_bytes, stats.freed_bytes];
            assert_eq!(bytes, [3 * MIB * u64::from(its_own); 2]);
        }
        control.schedule_eagerly();
    });
}

/// The host waits only when nothing else gives memory, and then for what several streams used too.
#[test]
fn deferred_blocks_are_memory_when_all_else_is_taken() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..SEEDS {
        let setup = Setup::new(3, DeviceConfig::with_budget(8 * MIB));
        let deferred = setup.alloc(0, 4 * MIB, 1);
        let bytes = deferred.bytes();
        control.schedule_deferred(seed);
        setup
            .memory
            .order_after(&setup.streams[1], &setup.streams[0])
            .unwrap();
        fill(&setup.streams[1], deferred.addr().get(), bytes, 2);
        let both = [setup.streams[0].clone(), setup.streams[1].clone()];
        setup.memory.free_used_on(&both, deferred).unwrap();
        assert_eq!(setup.memory.stats().live_bytes, bytes);
        control.reset_calls();
        let rest = setup.alloc(2, 4 * MIB, 3);
        assert_eq!(control.calls(Some("cuEventSynchronize")), 0);
        let again = setup.alloc(2, 4 * MIB, 4);
        assert_eq!(setup.memory.stats().live_bytes, 8 * MIB);
        let error = setup.memory.alloc(&setup.streams[2], MIB).unwrap_err();
        let DeviceAllocError::Memory {
            reason: AllocError::OutOfMemory(out),
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((out.live_bytes, out.free_bytes), (8 * MIB, 0));
        setup.free(2, rest);
        setup.free(2, again);
        drop(both);
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}

/// Threads that are short at the same time: what one finds passed, the other need not find again.
#[test]
fn threads_that_are_short_together_both_get_what_has_passed() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..10 {
        let setup = Setup::new(4, DeviceConfig::with_budget(8 * MIB));
        control.schedule_deferred(seed);
        thread::scope(|scope| {
            for mine in 0..2_usize {
                let setup = &setup;
                scope.spawn(move || {
                    // Never more than half of what there is for each.
                    for step in 0..200_usize {
                        let (own, other) = (mine * 2, mine * 2 + 1);
                        let block = setup.alloc(own, 4 * MIB, 1);
                        let used = [setup.streams[own].clone(), setup.streams[other].clone()];
                        setup.memory.order_after(&used[1], &used[0]).unwrap();
                        fill(&used[1], block.addr().get(), 64, 2);
                        match step % 3 {
                            0 => setup.memory.free_used_on(&used, block).unwrap(),
                            1 => setup.free(other, block),
                            _ => {
                                setup.memory.order_after(&used[0], &used[1]).unwrap();
                                setup.free(own, block);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}

#[test]
fn a_snapshot_is_of_one_moment() {
    alone_and_clean(|_| {
        let config = DeviceConfig {
            arenas: ArenaPolicy::Never,
            ..DeviceConfig::new()
        };
        let setup = Setup::new(2, config);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for mine in 0..2 {
                let (setup, over) = (&setup, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let blocks = [3 * MIB, 900, 70_000].map(|bytes| {
                            let stream = &setup.streams[mine];
                            setup.memory.alloc(stream, bytes).unwrap()
                        });
                        for block in blocks {
                            setup.free(mine, block);
                        }
                    }
                });
            }
            for _ in 0..300 {
                let snapshot = setup.memory.snapshot();
                let used = snapshot.chunks.iter().filter_map(|chunk| {
                    let used = matches!(chunk.state, ChunkState::Used { .. });
                    used.then(|| chunk.range.bytes())
                });
                let used: u64 = used.sum();
                if used != snapshot.stats.live_bytes {
                    over.store(true, Ordering::Relaxed);
                }
                assert_eq!(used, snapshot.stats.live_bytes);
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

/// A step's blocks: they deviate with the step and the thread, go to other streams, outlive steps.
fn steps_of_a_thread(setup: &Setup, mine: usize, rounds: usize) {
    let (own, other) = (&setup.streams[mine % 2], &setup.streams[2]);
    let mut outliving: Vec<Block> = Vec::new();
    for round in 0..rounds {
        let step = setup.memory.step(own).unwrap();
        let mut held = Vec::new();
        for index in 0..6_usize {
            let sizes = [700_000, 3000, 2 * MIB, MIB, 50_000, 900];
            // A step that deviates now and then.
            let bytes = sizes[(index + usize::from(round % 7 == 6)) % 6];
            match setup.memory.alloc(own, bytes) {
                Ok(block) => {
                    fill(own, block.addr().get(), block.bytes(), index as u8);
                    held.push(block);
                }
                Err(DeviceAllocError::Memory { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            if index == 3 && round % 5 == 4 {
                setup.memory.release([MIB, u64::MAX][round / 5 % 2]);
            }
        }
        for (index, block) in held.into_iter().enumerate() {
            match (index + round) % 4 {
                0 => {
                    setup.memory.order_after(other, own).unwrap();
                    setup.memory.free(other, block).unwrap();
                }
                1 => {
                    let both = [own.clone(), other.clone()];
                    setup.memory.order_after(other, own).unwrap();
                    setup.memory.free_used_on(&both, block).unwrap();
                }
                2 => outliving.push(block),
                _ => setup.memory.free(own, block).unwrap(),
            }
        }
        if round % 9 == 8 {
            // It ends by a panic.
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let _step = step;
                std::panic::resume_unwind(Box::new(()));
            }));
            assert!(ended.is_err());
        } else {
            drop(step);
        }
        if round % 11 == 10 {
            setup.memory.start_over(own);
        }
        while outliving.len() > 2 {
            let block = outliving.remove(0);
            setup.memory.free(own, block).unwrap();
        }
    }
    for block in outliving {
        setup.memory.free(own, block).unwrap();
    }
}

#[test]
fn steps_of_threads_keep_to_themselves() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..12_u64 {
        let config = match seed % 3 {
            0 => DeviceConfig::new(),
            // Too little for all.
            1 => DeviceConfig::with_budget(8 * MIB),
            _ => DeviceConfig {
                arenas: ArenaPolicy::Always,
                ..DeviceConfig::with_budget(16 * MIB)
            },
        };
        let setup = Setup::new(3, config);
        control.schedule_deferred(seed);
        thread::scope(|scope| {
            // Two threads on the first stream, one on the second.
            for mine in 0..3 {
                let setup = &setup;
                scope.spawn(move || steps_of_a_thread(setup, mine, 25));
            }
        });
        setup.context.synchronize().unwrap();
        setup.memory.release(u64::MAX);
        let stats = setup.memory.stats();
        assert_eq!((stats.live_bytes, stats.reserved_bytes), (0, 0), "{seed}");
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}

/// A window in a step: its blocks are no part of the plan, and the plan's none of the window.
#[test]
fn a_window_opens_and_closes_inside_a_step() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..SEEDS {
        let setup = Setup::new(2, DeviceConfig::new());
        control.schedule_deferred(seed);
        let stream = &setup.streams[0];
        let mut kept = None;
        for round in 0..6_u8 {
            let step = setup.memory.step(stream).unwrap();
            let first = setup.alloc(0, 3 * MIB, round);
            let window = setup.memory.prime(stream, 4 * MIB).unwrap();
            let inside = setup.alloc(0, 2 * MIB, 100);
            // A block from before the window goes back to the plan.
            setup.free(0, first);
            window.close();
            let second = setup.alloc(0, 3 * MIB, round);
            assert!(!second.range().overlaps(inside.range()));
            setup.free(0, inside);
            setup.free(0, second);
            drop(step);
            // Windows outlive the step, and one replaces another.
            drop(kept.replace(window));
        }
        drop(kept);
        setup.context.synchronize().unwrap();
        setup.memory.release(u64::MAX);
        let stats = setup.memory.stats();
        assert_eq!((stats.live_bytes, stats.reserved_bytes), (0, 0));
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        control.schedule_eagerly();
        drop(setup);
        assert_clean(control);
    }
}

/// What two streams freed side by side is one piece when both have passed, also where addresses without memory
/// would be long enough.
#[test]
fn neighbours_of_two_streams_that_have_passed_serve_before_a_limit_refuses() {
    alone_and_clean(|_| {
        let setup = Setup::new(3, DeviceConfig::with_budget(8 * MIB));
        let blocks = [(0, 1), (1, 3), (2, 3), (0, 1)];
        let [first, left, right, last] =
            blocks.map(|(stream, mib)| setup.alloc(stream, mib * MIB, 1));
        // All is held, and the range is longer from here on.
        assert!(setup.memory.alloc(&setup.streams[0], 6 * MIB).is_err());
        setup.free(1, left);
        setup.free(2, right);
        setup.context.synchronize().unwrap();
        let both = setup.alloc(0, 6 * MIB, 2);
        for block in [first, both, last] {
            setup.free(0, block);
        }
    });
}
