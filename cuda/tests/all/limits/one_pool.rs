//! The limit of one pool, without budgets above it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::limits::LimitAnswer;
use larder_core::{AllocError, Cause};
use larder_cuda::{Context, DeviceAllocError, DeviceAllocator, PinnedAllocator};
use larder_model::Random;

use super::common::{MIB, alone_and_clean, ran_in_child};
use super::{check, fill, plain, size, stream};

#[test]
fn am_3_a_limit_is_lowered_and_raised_in_every_way() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queue = stream(&context);
        let alloc = |bytes| memory.alloc(&queue, bytes);
        assert_eq!(memory.limit_bytes(), u64::MAX);
        let kept = alloc(2 * MIB).unwrap();
        let [a, b] = [4, 6].map(|mib| alloc(mib * MIB).unwrap());
        // Not below what is held: nothing goes.
        let held = control.used(0);
        assert_eq!(memory.set_limit(held), LimitAnswer::Applied);
        assert_eq!(control.used(0), held);
        assert!(alloc(2 * MIB).is_err(), "what is held is full");
        // Part of it, which one idle piece gives exactly.
        memory.free(&queue, a).unwrap();
        assert_eq!(memory.set_limit(held - 4 * MIB), LimitAnswer::Applied);
        assert_eq!(control.used(0), held - 4 * MIB);
        // Below what is in use: all but that goes, and the rest is deferred.
        memory.free(&queue, b).unwrap();
        assert_eq!(memory.set_limit(MIB), LimitAnswer::Deferred { bytes: MIB });
        assert_eq!((control.used(0), memory.limit_bytes()), (2 * MIB, MIB));
        assert_eq!(memory.pool_stats().stable_bytes, 2 * MIB);
        let refused = alloc(1).unwrap_err();
        let DeviceAllocError::Memory {
            reason: AllocError::OutOfMemory(out),
            ..
        } = refused
        else {
            panic!("{refused}");
        };
        assert_eq!((out.cause, out.limit_bytes), (Cause::Limit, MIB));
        // The block is freed, and what was deferred goes with it.
        memory.free(&queue, kept).unwrap();
        assert_eq!(control.used(0), 0);
        assert_eq!(memory.set_limit(0), LimitAnswer::Applied);
        assert!(alloc(1).is_err());
        assert_eq!(memory.set_limit(8 * MIB), LimitAnswer::Applied);
        let block = alloc(8 * MIB).unwrap();
        fill(&queue, &block, 7);
        check(&queue, &block, 7);
        memory.free(&queue, block).unwrap();
    });
}

#[test]
fn a_limit_that_falls_while_another_thread_allocates_holds_from_its_answer_on() {
    const ROUNDS: u64 = 200;
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let kept = memory.alloc(&stream(&context), 6 * MIB).unwrap();
        // Odd from the answer to a lowered limit until just before it is raised.
        let turn = AtomicU64::new(0);
        let mut judged = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let answer = memory.set_limit(4 * MIB);
                    assert!(matches!(answer, LimitAnswer::Deferred { .. }), "{answer:?}");
                    turn.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(50));
                    turn.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(memory.set_limit(40 * MIB), LimitAnswer::Applied);
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            let queue = stream(&context);
            loop {
                let before = turn.load(Ordering::SeqCst);
                let block = memory.alloc(&queue, MIB);
                let was_low = before % 2 == 1 && turn.load(Ordering::SeqCst) == before;
                assert!(!was_low || block.is_err(), "granted above the limit");
                judged += u64::from(was_low);
                if let Ok(block) = block {
                    memory.free(&queue, block).unwrap();
                }
                if before == 2 * ROUNDS {
                    break;
                }
            }
        });
        assert!(judged > 0, "a check that never looked");
        memory.free(&stream(&context), kept).unwrap();
    });
}

/// The sizes of the allocator's tables, none of which may grow.
fn table_sizes(memory: &DeviceAllocator) -> [usize; 4] {
    let snapshot = memory.snapshot();
    let pages = snapshot.pages;
    [
        snapshot.chunks.len(),
        pages.handles as usize,
        (pages.active_mappings + pages.cached_mappings) as usize,
        pages.address_bytes as usize,
    ]
}

#[test]
fn am_3_ten_thousand_limits_leave_the_tables_as_large_as_they_were() {
    if ran_in_child() {
        return;
    }
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queue = stream(&context);
        let kept = memory.alloc(&queue, 3 * MIB).unwrap();
        let mut after_first = None;
        for round in 0..10_000_u32 {
            let blocks = [5 * MIB, 2 * MIB].map(|bytes| memory.alloc(&queue, bytes).unwrap());
            for block in blocks {
                memory.free(&queue, block).unwrap();
            }
            let answer = memory.set_limit(MIB);
            assert_eq!(answer, LimitAnswer::Deferred { bytes: 3 * MIB });
            assert_eq!(control.used(0), 4 * MIB, "round {round}");
            assert_eq!(memory.set_limit(u64::MAX), LimitAnswer::Applied);
            let now = table_sizes(&memory);
            assert_eq!(now, *after_first.get_or_insert(now), "round {round}");
        }
        memory.free(&queue, kept).unwrap();
    });
}

#[test]
fn am_4_stable_is_what_a_limit_of_0_leaves_for_every_random_heap() {
    alone_and_clean(|control| {
        // Work that ends between the two questions makes more of it free.
        control.schedule_eagerly();
        let context = Context::new(0).unwrap();
        for seed in 0..60 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let mut config = plain();
            if seed % 3 == 2 {
                config.arenas = larder_cuda::ArenaPolicy::Always;
            }
            let memory = DeviceAllocator::with_config(&context, config).unwrap();
            let queues = [stream(&context), stream(&context)];
            let mut live = Vec::new();
            for _ in 0..120 {
                let queue = &queues[random.below(2) as usize];
                if random.below(3) > 0 {
                    live.push(memory.alloc(queue, size(&mut random)).unwrap());
                } else if !live.is_empty() {
                    let at = random.index(live.len());
                    memory.free(queue, live.swap_remove(at)).unwrap();
                }
            }
            let keep = random.below(1 + live.len() as u64 / 4) as usize;
            for block in live.split_off(keep) {
                memory.free(&queues[0], block).unwrap();
            }
            let stats = memory.pool_stats();
            assert_eq!(stats.pool_bytes, control.used(0));
            let answer = memory.set_limit(0);
            assert_eq!(answer, LimitAnswer::with_excess(stats.stable_bytes));
            assert_eq!(control.used(0), stats.stable_bytes);
            for block in live {
                memory.free(&queues[1], block).unwrap();
            }
            memory.end_step();
            assert_eq!(control.used(0), 0, "all came back");
            assert_eq!(memory.set_limit(0), LimitAnswer::Applied);
        }
    });
}

#[test]
fn am_4_stable_is_what_a_limit_of_0_leaves_of_pinned_memory() {
    alone_and_clean(|control| {
        let pinned = || {
            let alive = control.alive();
            let pinned = alive.iter().find(|alive| alive.kind == "pinned");
            pinned.map_or(0, |alive| alive.bytes)
        };
        let context = Context::new(0).unwrap();
        for seed in 0..40 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let memory = PinnedAllocator::new(&context).unwrap();
            let mut live = Vec::new();
            for _ in 0..60 {
                if random.below(3) > 0 {
                    let count = 1 + random.below(MIB) as usize;
                    live.push(memory.zeros::<u8>(count).unwrap());
                } else if !live.is_empty() {
                    let at = random.index(live.len());
                    live.swap_remove(at);
                }
            }
            live.truncate(random.below(4) as usize);
            let stats = memory.pool_stats();
            assert_eq!(stats.pool_bytes, pinned());
            // A wish smaller than any region takes a whole one.
            let held = pinned();
            if stats.stable_bytes < held {
                assert_eq!(memory.set_limit(held - 1), LimitAnswer::Applied);
                assert!(pinned() < held);
            }
            let answer = memory.set_limit(0);
            assert_eq!(answer, LimitAnswer::with_excess(stats.stable_bytes));
            assert_eq!(pinned(), stats.stable_bytes);
            assert!(memory.zeros::<u8>(1).is_err());
            live.clear();
            assert_eq!(pinned(), 0, "what was owed went with the last buffer");
            assert_eq!(memory.set_limit(u64::MAX), LimitAnswer::Applied);
            assert_eq!(memory.zeros::<u8>(5).unwrap().len(), 5);
        }
    });
}

#[test]
fn dropped_buffers_complete_a_shrink_too() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queues = [stream(&context), stream(&context)];
        let first = memory.zeros::<u8>(&queues[0], 4 << 20).unwrap();
        let second = memory.zeros::<u8>(&queues[1], 4 << 20).unwrap();
        queues.iter().for_each(|queue| queue.synchronize().unwrap());
        assert_eq!(
            memory.set_limit(0),
            LimitAnswer::Deferred { bytes: 8 * MIB }
        );
        drop(first);
        assert_eq!(control.used(0), 4 * MIB);
        drop(second);
        assert_eq!(control.used(0), 0);
        // What two streams use comes back when both have passed.
        assert_eq!(memory.set_limit(4 * MIB), LimitAnswer::Applied);
        let block = memory.alloc(&queues[0], 4 * MIB).unwrap();
        assert_eq!(
            memory.set_limit(0),
            LimitAnswer::Deferred { bytes: 4 * MIB }
        );
        memory.free_used_on(&queues, block).unwrap();
        memory.end_step();
        assert_eq!(control.used(0), 0);
    });
}

#[test]
fn arenas_grant_nothing_while_a_limit_is_not_met() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let mut config = plain();
        config.arenas = larder_cuda::ArenaPolicy::Always;
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        let queue = stream(&context);
        let block = memory.alloc(&queue, 1024).unwrap();
        assert!(memory.streams()[0].arena_bytes > 0);
        let answer = memory.set_limit(64 << 10);
        assert!(matches!(answer, LimitAnswer::Deferred { .. }), "{answer:?}");
        // There is room in the arena's piece, but the piece is more than the limit.
        assert!(memory.alloc(&queue, 1024).is_err());
        memory.free(&queue, block).unwrap();
        assert_eq!(control.used(0), 0);
        assert_eq!(memory.set_limit(4 * MIB), LimitAnswer::Applied);
        let block = memory.alloc(&queue, 1024).unwrap();
        memory.free(&queue, block).unwrap();
    });
}

#[test]
fn what_queued_work_uses_stays_until_its_stream_has_passed() {
    alone_and_clean(|control| {
        for seed in 0..30 {
            println!("seed {seed}");
            control.schedule_eagerly();
            let context = Context::new(0).unwrap();
            let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
            let queue = stream(&context);
            let block = memory.alloc(&queue, 4 * MIB).unwrap();
            control.schedule_deferred(seed);
            fill(&queue, &block, 9);
            memory.free(&queue, block).unwrap();
            let answer = memory.set_limit(0);
            // Only the stream knows whether it has passed; if not, nothing was waited for.
            let held = control.used(0);
            assert_eq!(answer, LimitAnswer::with_excess(held));
            queue.synchronize().unwrap();
            memory.end_step();
            assert_eq!(control.used(0), 0, "it has passed");
            assert_eq!(memory.set_limit(0), LimitAnswer::Applied);
            assert_eq!(control.findings(), Vec::<String>::new());
        }
        control.schedule_eagerly();
    });
}
