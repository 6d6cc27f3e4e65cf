//! The conformance suite of `larder-model` on device memory and on each decorator over it, in the eager schedule and in
//! deferred ones.

use larder_core::BlockAllocator;
use larder_core::decorate::{
    GuardConfig, Guarded, Poisoned, QuarantineConfig, Quarantined, Tracked,
};
use larder_core::{MemoryAccess, Pattern};
use larder_cuda::{ArenaPolicy, CheckedConfig, DeviceConfig};
use larder_model::conformance::{Expect, run};

use super::Setup;
use crate::common::alone_and_clean;

/// A free after a point takes effect in stream order, so no event number is too far ahead.
const IN_ORDER: Expect = Expect {
    refuses_far_events: false,
    ..Expect::strict()
};

/// Expectations of an allocator in stream order whose freed blocks wait.
const KEEPS_BACK: Expect = Expect {
    frees_at_once: false,
    ..IN_ORDER
};

fn run_decorated<A: BlockAllocator>(allocator: &A, access: &impl MemoryAccess) {
    let guards = GuardConfig::new();
    let quarantine = QuarantineConfig::new(64 << 10);
    run(allocator, access, IN_ORDER);
    run(&Tracked::new(allocator, 8).unwrap(), access, IN_ORDER);
    let guarded = Guarded::new(allocator, access, guards, 32).unwrap();
    run(&guarded, access, IN_ORDER);
    assert_eq!(guarded.take_finding(), None);
    let reset = Poisoned::new(allocator, access, Pattern::F32_NAN).unwrap();
    run(&reset, access, IN_ORDER);
    assert_eq!(reset.failures(), 0);
    let held = Quarantined::new(allocator, access, quarantine, 16).unwrap();
    run(&held, access, KEEPS_BACK);
    held.drain();
    assert_eq!(held.take_finding(), None);

    let tracked = Tracked::new(allocator, 8).unwrap();
    let guarded = Guarded::new(&tracked, access, guards, 48).unwrap();
    let held = Quarantined::new(&guarded, access, quarantine, 16).unwrap();
    let reset = Poisoned::new(&held, access, Pattern::F64_NAN).unwrap();
    run(&reset, access, KEEPS_BACK);
    held.drain();
    assert_eq!((held.take_finding(), guarded.take_finding()), (None, None));
    assert_eq!(tracked.track_stats().live_blocks, 0);
}

#[test]
fn a_streams_memory_and_every_decorator_over_it_keep_the_promises_of_the_trait() {
    alone_and_clean(|_| {
        // Stream arenas make no difference here.
        for arenas in [ArenaPolicy::Never, ArenaPolicy::Always] {
            let setup = Setup::with_config(DeviceConfig {
                arenas,
                ..DeviceConfig::new()
            });
            let (memory, access) = setup.on_stream();
            run_decorated(&memory, &access);
            let (small, other) = (setup.memory.alloc(&setup.stream, 100), Setup::new());
            let small = small.unwrap();
            assert!(memory.owns(&small) && !other.on_stream().0.owns(&small));
            memory.free(small).unwrap();
            memory.clear_stats();
            assert_eq!(memory.stats().allocations, 0);
            assert_eq!(memory.stats().live_bytes, 0);
            assert_eq!(access.last_error(), None);
        }
    });
}

#[test]
fn checked_memory_keeps_the_promises_of_the_trait_whatever_the_order_of_work() {
    alone_and_clean(|control| {
        let setup = Setup::new();
        // SAFETY: the suite accesses only blocks that it holds.
        let access = unsafe { setup.memory.on(&setup.stream).unwrap().access() };
        for seed in [None, Some(1), Some(2)] {
            match seed {
                None => control.schedule_eagerly(),
                Some(seed) => control.schedule_deferred(seed),
            }
            let memory = setup.checked(CheckedConfig {
                quarantine: QuarantineConfig::new(64 << 10),
                blocks: 64,
                waiting_blocks: 16,
                ..CheckedConfig::new()
            });
            run(&memory, &access, KEEPS_BACK);
            assert_eq!(memory.check_all(|find| panic!("{find}")), 0);
            memory.drain();
            assert_eq!(memory.take_finding(), None);
            assert_eq!(memory.reset_failures(), 0);
            // TensorFlow's `memory_guard`, with blocks aligned as requested.
            let memory = setup.checked(CheckedConfig::memory_guard());
            let expect = Expect {
                zero_size: true,
                ..IN_ORDER
            };
            run(&memory, &access, expect);
            assert_eq!((memory.take_finding(), memory.reset_failures()), (None, 0));
            memory.clear_stats();
            assert_eq!(memory.stats().allocations, 0);
            drop(memory);
            let memory = setup.checked(CheckedConfig {
                reset: None,
                ..CheckedConfig::tensorflow()
            });
            let expect = Expect {
                max_align: 16,
                ..expect
            };
            run(&memory, &access, expect);
            assert_eq!(memory.take_finding(), None);
            assert_eq!(setup.memory.stats().live_bytes, 0, "{seed:?}");
        }
        control.schedule_eagerly();
    });
}
