//! Callbacks.

use std::sync::{Arc, Mutex};

use larder_core::limits::{LimitAnswer, LimitEventKind};
use larder_cuda::{Context, DeviceAllocator, LimitEvent, LimitWatch, Limits};

use super::common::{MIB, alone_and_clean};
use super::{plain, stream};

type Seen = Arc<Mutex<Vec<LimitEvent>>>;

fn note(seen: &Seen) -> impl Fn(&LimitEvent) + Send + Sync + 'static {
    let seen = seen.clone();
    move |event| seen.lock().unwrap().push(*event)
}

fn take(seen: &Seen) -> Vec<(String, LimitEventKind)> {
    let events = seen.lock().unwrap().split_off(0);
    let name = |event: LimitEvent| (event.budget.to_string(), event.kind);
    events.into_iter().map(name).collect()
}

#[test]
fn a_soft_limit_that_is_crossed_is_reported_once() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let limits = Limits::new(64 * MIB).unwrap();
        let tenant = limits.process().tenant("t", 64 * MIB).unwrap();
        assert_eq!(
            tenant.set_with_soft(64 * MIB, 4 * MIB),
            LimitAnswer::Applied
        );
        let memory = DeviceAllocator::in_budget(&context, plain(), &tenant).unwrap();
        let (all, own, none) = (Seen::default(), Seen::default(), Seen::default());
        let _all = limits.watch(note(&all));
        let watch = tenant.watch(note(&own));
        let _none = limits.process().watch(note(&none));
        let queue = stream(&context);
        let first = memory.alloc(&queue, 4 * MIB).unwrap();
        assert_eq!(take(&all), []);
        let more = memory.alloc(&queue, 4 * MIB).unwrap();
        let crossed = [("t".to_owned(), LimitEventKind::SoftCrossed)];
        assert_eq!(take(&all), crossed);
        assert_eq!(take(&own), crossed);
        drop(watch);
        for block in [first, more] {
            memory.free(&queue, block).unwrap();
        }
        memory.release(u64::MAX);
        let again = memory.alloc(&queue, 6 * MIB).unwrap();
        assert_eq!(take(&all), crossed);
        assert_eq!(
            (take(&own), take(&none)),
            (vec![], vec![]),
            "not any more; never"
        );
        memory.free(&queue, again).unwrap();
    });
}

#[test]
fn a_shrink_that_is_over_is_reported_when_the_block_comes_back() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain()).unwrap();
        let seen = Seen::default();
        let _watch = memory.watch_limit(note(&seen));
        let queue = stream(&context);
        let block = memory.alloc(&queue, 4 * MIB).unwrap();
        assert_eq!(
            memory.set_limit(MIB),
            LimitAnswer::Deferred { bytes: 3 * MIB }
        );
        assert_eq!(take(&seen), []);
        memory.free(&queue, block).unwrap();
        assert_eq!(
            take(&seen),
            [("device memory".to_owned(), LimitEventKind::ShrinkDone)]
        );
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
