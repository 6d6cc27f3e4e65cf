//! Budgets and callbacks: names, floors, threads, callbacks that panic or use the objects that they watch.

use std::sync::{Arc, Mutex};

use larder_core::limits::{BudgetConfig, BudgetError, LimitAnswer, LimitEventKind};
use larder_cuda::{
    Context, DeviceAllocator, DeviceConfig, LimitEvent, LimitWatch, Limits, PinnedAllocator,
    PinnedConfig,
};

use super::common::{MIB, alone_and_clean};
use super::{plain, stream};

#[test]
fn a_budget_goes_with_its_last_pool() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let floor = BudgetConfig {
            floor_bytes: 64 * MIB,
            ..BudgetConfig::new(64 * MIB)
        };
        let tenant = limits
            .process()
            .tenant_with("a tenant with quite a long name", floor);
        let tenant = tenant.unwrap();
        assert_eq!(tenant.name().as_str(), "a tenant with quite a l");
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        drop(tenant);
        let again = limits.process().tenant_with("b", floor);
        assert!(
            matches!(again, Err(BudgetError::BelowFloor { .. })),
            "{again:?}"
        );
        drop(memory);
        assert!(limits.process().tenant_with("b", floor).is_ok());
        assert!(matches!(
            limits.process().set_with_soft(MIB, 2 * MIB),
            LimitAnswer::Refused(_)
        ));
        let config = DeviceConfig {
            limit_bytes: 0,
            ..plain()
        };
        let memory = DeviceAllocator::in_budget(&context, config, limits.process()).unwrap();
        assert!(memory.alloc(&stream(&context), 1).is_err());
    });
}

#[test]
fn two_threads_lower_and_raise_while_others_allocate() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("t", 64 * MIB).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        std::thread::scope(|scope| {
            for budget in [limits.process(), &tenant] {
                scope.spawn(move || {
                    for round in 0..400 {
                        let _ = budget.set(if round % 2 == 0 { 6 * MIB } else { 40 * MIB });
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    let queue = stream(&context);
                    for _ in 0..800 {
                        if let Ok(block) = memory.alloc(&queue, 3 * MIB) {
                            memory.free(&queue, block).unwrap();
                        }
                    }
                });
            }
        });
        // Whichever thread was last, the pool follows the budgets.
        assert_eq!(limits.process().set(40 * MIB), LimitAnswer::Applied);
        assert_eq!(tenant.set(32 * MIB), LimitAnswer::Applied);
        let queue = stream(&context);
        let block = memory.alloc(&queue, 32 * MIB).unwrap();
        assert!(memory.alloc(&queue, 2 * MIB).is_err());
        memory.free(&queue, block).unwrap();
    });
}

/// The kinds of events that were reported, newest last.
type Kinds = Arc<Mutex<Vec<LimitEventKind>>>;

fn note(kinds: &Kinds) -> impl Fn(&LimitEvent) + Send + Sync + 'static {
    let kinds = kinds.clone();
    move |event| kinds.lock().unwrap().push(event.kind)
}

fn take(kinds: &Kinds) -> Vec<LimitEventKind> {
    kinds.lock().unwrap().split_off(0)
}

#[test]
fn a_shrink_that_ends_with_its_pinned_pool_is_reported() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let kinds = Kinds::default();
        let _watch = limits.watch(note(&kinds));
        let config = PinnedConfig::default();
        let memory =
            PinnedAllocator::in_budget(&context, config, u64::MAX, limits.process()).unwrap();
        let buffer = memory.zeros::<u8>(1 << 20).unwrap();
        let answer = limits.process().set(0);
        assert!(matches!(answer, LimitAnswer::Deferred { .. }), "{answer:?}");
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
        // The next call that may report events reports this one.
        memory.end_step();
        assert_eq!(take(&kinds), [LimitEventKind::SoftCrossed]);
    });
}

#[test]
fn a_callback_may_use_the_allocator_the_limits_and_its_own_watch() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let memory = DeviceAllocator::in_budget(&context, plain(), limits.process()).unwrap();
        let queue = stream(&context);
        let own: Arc<Mutex<Option<LimitWatch>>> = Arc::default();
        let calls = Arc::new(Mutex::new(0));
        let callback = {
            let (memory, limits, queue) = (memory.clone(), limits.clone(), queue.clone());
            let (own, calls) = (Arc::downgrade(&own), calls.clone());
            move |event: &LimitEvent| {
                *calls.lock().unwrap() += 1;
                let block = memory.alloc(&queue, MIB).unwrap();
                memory.free(&queue, block).unwrap();
                assert!(limits.process().usage().used_bytes >= event.limit_bytes);
                let _ = limits.process().set_with_soft(32 * MIB, 16 * MIB);
                drop(limits.watch(|_| {}));
                drop(own.upgrade().and_then(|own| own.lock().unwrap().take()));
            }
        };
        *own.lock().unwrap() = Some(limits.watch(callback));
        assert_eq!(
            limits.process().set_with_soft(64 * MIB, 3 * MIB),
            LimitAnswer::Applied
        );
        let step = memory.step(&queue).unwrap();
        let block = memory.alloc(&queue, 4 * MIB).unwrap();
        let large = memory.alloc(&queue, 24 * MIB).unwrap();
        drop(step);
        assert_eq!(*calls.lock().unwrap(), 1, "it unregistered itself");
        assert_eq!(limits.process().usage().config.hard_bytes, 32 * MIB);
        memory.free(&queue, block).unwrap();
        memory.free(&queue, large).unwrap();
    });
}
