//! Memory that becomes free other than by a plain free completes a shrink too, and each event is reported
//! by the call that caused it.

use std::sync::{Arc, Mutex};

use larder_core::limits::{LimitAnswer, LimitEventKind};
use larder_cuda::driver::Rule;
use larder_cuda::{
    ArenaPolicy, Context, DeviceAllocator, DeviceConfig, LimitEvent, Limits, PinnedAllocator,
    PinnedConfig,
};
use larder_model::Random;

use super::common::{MIB, alone, alone_and_clean, assert_clean, ran_in_child};
use super::{plain, stream};

const DEFERRED: LimitAnswer = LimitAnswer::Deferred { bytes: 4 * MIB };

#[test]
fn a_window_that_is_dropped_completes_a_shrink() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queue = stream(&context);
        let window = memory.prime(&queue, 4 * MIB).unwrap();
        let block = memory.alloc(&queue, MIB).unwrap();
        assert_eq!(memory.set_limit(0), DEFERRED);
        memory.free(&queue, block).unwrap();
        assert_eq!(control.used(0), 4 * MIB);
        drop(window);
        assert_eq!(control.used(0), 0);
    });
}

#[test]
fn a_block_that_outlives_its_window_completes_a_shrink_however_it_is_freed() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queues = [stream(&context), stream(&context)];
        memory.add_stream(&queues[1]).unwrap();
        for streams in [&queues[..1], &queues[..], &[]] {
            assert_eq!(memory.set_limit(u64::MAX), LimitAnswer::Applied);
            let window = memory.prime(&queues[0], 4 * MIB).unwrap();
            let block = memory.alloc(&queues[0], MIB).unwrap();
            drop(window);
            assert_eq!(memory.set_limit(0), DEFERRED);
            memory.free_used_on(streams, block).unwrap();
            assert_eq!(control.used(0), 0, "{} streams", streams.len());
        }
    });
}

#[test]
fn a_block_that_nothing_uses_completes_a_shrink() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let other = Context::new(1).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queues = [stream(&context), stream(&other)];
        for streams in [&queues[..0], &queues[1..]] {
            assert_eq!(memory.set_limit(u64::MAX), LimitAnswer::Applied);
            let block = memory.alloc(&queues[0], 4 * MIB).unwrap();
            assert_eq!(memory.set_limit(0), DEFERRED);
            memory.free_used_on(streams, block).unwrap();
            assert_eq!(control.used(0), 0, "{} streams", streams.len());
        }
    });
}

#[test]
fn memory_that_the_driver_refused_to_take_is_offered_again_while_it_is_above_the_limit() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let queue = stream(&context);
        let [idle, kept] = [4 * MIB, 2 * MIB].map(|bytes| memory.alloc(&queue, bytes).unwrap());
        memory.free(&queue, idle).unwrap();
        control
            .fail(Rule::of("cuMemRelease").times(u64::MAX))
            .unwrap();
        assert_eq!(memory.set_limit(2 * MIB), DEFERRED);
        assert_eq!(control.used(0), 6 * MIB, "it exists, and is counted");
        control.clear_failures();
        memory.end_step();
        assert_eq!(control.used(0), 2 * MIB);
        assert_eq!(memory.pool_stats().pool_bytes, 2 * MIB);
        assert_eq!(memory.set_limit(8 * MIB), LimitAnswer::Applied);
        let more = memory.alloc(&queue, 6 * MIB).unwrap();
        assert_eq!(control.used(0), 8 * MIB, "it counts no more");
        memory.free(&queue, more).unwrap();
        memory.free(&queue, kept).unwrap();
    });
}

/// The kinds of events that are reported, newest last.
type Kinds = Arc<Mutex<Vec<LimitEventKind>>>;

fn note(kinds: &Kinds) -> impl Fn(&LimitEvent) + Send + Sync + 'static {
    let kinds = kinds.clone();
    move |event| kinds.lock().unwrap().push(event.kind)
}

fn take(kinds: &Kinds) -> Vec<LimitEventKind> {
    kinds.lock().unwrap().split_off(0)
}

#[test]
fn a_soft_limit_is_reported_by_the_call_that_crossed_it_also_for_an_arena_and_a_window() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let kinds = Kinds::default();
        let _watch = limits.watch(note(&kinds));
        let _ = limits.process().set_with_soft(64 * MIB, MIB);
        let config = DeviceConfig {
            arenas: ArenaPolicy::Always,
            ..plain()
        };
        let memory = DeviceAllocator::in_budget(&context, config, limits.process()).unwrap();
        let queue = stream(&context);
        let block = memory.alloc(&queue, 1024).unwrap();
        assert_eq!(
            take(&kinds),
            [LimitEventKind::SoftCrossed],
            "an arena's piece"
        );
        memory.free(&queue, block).unwrap();
        memory.release(u64::MAX);
        assert_eq!(limits.process().usage().used_bytes, 0);
        let window = memory.prime(&queue, 2 * MIB).unwrap();
        assert_eq!(take(&kinds), [LimitEventKind::SoftCrossed], "a window");
        drop(window);
    });
}

#[test]
fn a_shrink_that_ends_with_its_pool_is_reported() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let kinds = Kinds::default();
        let _watch = limits.watch(note(&kinds));
        let memory = DeviceAllocator::in_budget(&context, plain(), limits.process()).unwrap();
        let queue = stream(&context);
        let _lost = memory.alloc(&queue, 4 * MIB).unwrap();
        assert_eq!(limits.process().set(0), DEFERRED);
        drop(memory);
        assert_eq!(take(&kinds), [LimitEventKind::ShrinkDone]);

        let _ = limits.process().set(64 * MIB);
        let config = PinnedConfig::default();
        let memory =
            PinnedAllocator::in_budget(&context, config, u64::MAX, limits.process()).unwrap();
        let buffer = memory.zeros::<u8>(1 << 20).unwrap();
        assert!(matches!(
            limits.process().set(0),
            LimitAnswer::Deferred { .. }
        ));
        drop(memory);
        drop(buffer);
        assert_eq!(take(&kinds), [LimitEventKind::ShrinkDone]);
    });
}

#[test]
fn a_callback_that_panics_takes_no_event_from_the_others() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("t", 64 * MIB).unwrap();
        let _ = limits.process().set_with_soft(64 * MIB, MIB);
        let _ = tenant.set_with_soft(64 * MIB, MIB);
        let kinds = Kinds::default();
        let _bad = limits
            .process()
            .watch(|_| std::panic::resume_unwind(Box::new("a callback")));
        let _watch = tenant.watch(note(&kinds));
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        let queue = stream(&context);
        let ask = std::panic::AssertUnwindSafe(|| memory.alloc(&queue, 2 * MIB));
        assert!(std::panic::catch_unwind(ask).is_err());
        // The next call that may tell does.
        memory.end_step();
        assert_eq!(take(&kinds), [LimitEventKind::SoftCrossed]);
    });
}

#[test]
fn when_everything_is_freed_a_deferred_shrink_is_over_without_another_call() {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    // What is freed behind work that is under way goes with a later call.
    control.schedule_eagerly();
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let context = Context::new(0).unwrap();
        let config = DeviceConfig {
            arenas: [ArenaPolicy::Always, ArenaPolicy::Never][seed as usize % 2],
            ..plain()
        };
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        let queues = [stream(&context), stream(&context), stream(&context)];
        let step = memory.step(&queues[2]).unwrap();
        let mut live = Vec::new();
        let mut window = Some(memory.prime(&queues[0], 3 * MIB).unwrap());
        for round in 0..120 {
            let queue = &queues[random.below(3) as usize];
            match random.below(5) {
                0..3 => live.extend(memory.alloc(queue, super::size(&mut random) / 4 + 1)),
                _ if live.is_empty() => {}
                3 => {
                    let at = random.index(live.len());
                    memory.free(queue, live.swap_remove(at)).unwrap();
                }
                _ => {
                    let at = random.index(live.len());
                    memory
                        .free_used_on(&queues[..2], live.swap_remove(at))
                        .unwrap();
                }
            }
            // What is called stable is what a limit of 0 leaves.
            if random.below(20) == 0 {
                let stable = memory.pool_stats().stable_bytes;
                let answer = memory.set_limit(0);
                assert_eq!(answer, LimitAnswer::with_excess(stable), "round {round}");
                assert_eq!(control.used(0), stable, "round {round}");
                let _ = memory.set_limit(random.below(64) * MIB);
            }
        }
        let limit = random.below(3) * MIB;
        let _ = memory.set_limit(limit);
        let (early, late) = (random.below(2), random.below(2));
        if early == 0 {
            drop(window.take());
        }
        for block in live {
            if late == 0 {
                memory.free(&queues[1], block).unwrap();
            } else {
                memory.free_used_on(&queues, block).unwrap();
            }
        }
        drop(window);
        assert!(
            control.used(0) <= limit,
            "{} above {limit}",
            control.used(0)
        );
        drop((step, memory, queues, context));
        assert_clean(control);
    }
}
