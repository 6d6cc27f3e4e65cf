//! Threads and their current contexts: every call leaves the caller's current context as it was.

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{MIB, alone, alone_and_clean, driver, ran_in_child, regions_of, request, together};
use larder_core::{BlockAllocator, Chunk, RegionPool, Request, Shared, SubAllocator};
use larder_cuda::driver::Rule;
use larder_cuda::{
    Context, DeviceMemory, DriverError, Event, EventConfig, PinnedMemory, VirtualMemory,
};
use larder_cuda_abi::{Code, ContextHandle};

fn current() -> ContextHandle {
    driver().current_context().unwrap()
}

#[test]
fn memory_of_one_thread_is_freed_by_another() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let device = DeviceMemory::new(&context);
    let pages = VirtualMemory::new(&context, 64 * MIB).unwrap();
    let pinned = PinnedMemory::new(&context);
    let event = Event::new(&context, EventConfig::default()).unwrap();
    for source in [&device as &(dyn SubAllocator + Sync), &pages, &pinned] {
        let range = thread::scope(|scope| {
            let grow = scope.spawn(|| source.grow(request(2 * MIB)).unwrap());
            grow.join().unwrap()
        });
        thread::scope(|scope| {
            scope.spawn(|| source.release(range).unwrap());
        });
    }
    thread::spawn(move || drop((device, pages, pinned, event)))
        .join()
        .unwrap();
    assert_eq!(context.refused_frees(), 0);
}

#[test]
fn a_thread_without_a_context_has_none_afterwards() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(current(), ContextHandle::NULL);
            let device = DeviceMemory::new(&context);
            let range = device.grow(request(MIB)).unwrap();
            assert_eq!(current(), ContextHandle::NULL);
            device.release(range).unwrap();
            let event = Event::new(&context, EventConfig::default()).unwrap();
            assert_eq!(event.query(), Ok(true));
            drop(event);
            assert_eq!(current(), ContextHandle::NULL);
        });
    });
}

#[test]
fn another_devices_context_stays_current() {
    let _turn = together();
    if driver().device_count().unwrap() < 2 {
        println!("skipped: one device");
        return;
    }
    let other = Context::new(1).unwrap();
    let context = Context::new(0).unwrap();
    let of_first = current();
    let device = DeviceMemory::new(&other);
    let range = device.grow(request(MIB)).unwrap();
    assert_eq!(current(), of_first);
    let of = context.try_current(|driver| driver.pointer_device(range.start().get()));
    assert_eq!(of, Ok(Some(1)));
    drop(device);
    assert_eq!(current(), of_first);
}

#[test]
fn the_primary_context_of_a_library_leaves_current_what_was() {
    let _turn = together();
    thread::scope(|scope| {
        scope.spawn(|| {
            let context = Context::primary(0).unwrap();
            assert_eq!(current(), ContextHandle::NULL);
            context.with_current(|_| ()).unwrap();
            assert!(Context::primary(10_000).is_err());
            assert_eq!(current(), ContextHandle::NULL);
        });
    });
    if driver().device_count().unwrap() < 2 {
        println!("skipped: one device");
        return;
    }
    let _first = Context::new(0).unwrap();
    let of_first = current();
    let _other = Context::primary(1).unwrap();
    assert_eq!(current(), of_first);
}

#[test]
fn what_was_current_is_so_after_a_panic() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                context.with_current(|_| panic!("on purpose"))
            }));
            assert!(panicked.is_err());
            assert_eq!(current(), ContextHandle::NULL);
            let inside = context.with_current(|driver| driver.current_context());
            assert_ne!(inside.unwrap(), Ok(ContextHandle::NULL));
        });
    });
}

#[test]
fn what_was_current_is_so_although_the_driver_refused() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let context = Context::new(0).unwrap();
    for (function, times) in [("cuCtxPopCurrent_v2", 1), ("cuCtxPopCurrent_v2", 2)] {
        thread::scope(|scope| {
            scope.spawn(|| {
                control.fail(Rule::of(function).times(times)).unwrap();
                let answer = context.with_current(|_| 7);
                assert_eq!(answer, Ok(7), "what was done counts");
                assert_eq!(current(), ContextHandle::NULL);
            });
        });
    }
}

#[test]
fn a_context_that_cannot_be_current_is_an_error_and_nothing_ran() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let context = Context::new(0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for function in ["cuCtxGetCurrent", "cuCtxPushCurrent_v2"] {
                control
                    .fail(Rule::of(function).with(Code::INVALID_CONTEXT))
                    .unwrap();
                let code = Code::INVALID_CONTEXT;
                let answer = context.with_current(|_| unreachable!());
                assert_eq!(answer, Err::<(), _>(DriverError::Call { function, code }));
            }
        });
    });
}

#[test]
fn many_threads_share_one_allocator() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let source = DeviceMemory::new(&context);
        let mut table = vec![Chunk::VACANT; 1024];
        let bfc = RegionPool::new(regions_of(MIB, 256 * MIB), &mut table).unwrap();
        let pool = Shared::new(bfc, &source);
        thread::scope(|scope| {
            for worker in 0..4u64 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 1..40 {
                        let bytes = 64 * 1024 * (1 + (round * 7 + worker) % 40);
                        let one = pool.alloc(&Request::new(bytes)).unwrap().block;
                        let two = pool.alloc(&Request::new(bytes / 3)).unwrap().block;
                        pool.free(one).unwrap();
                        if round % 10 == 0 {
                            pool.trim();
                        }
                        pool.free(two).unwrap();
                    }
                });
            }
        });
        pool.adjust(0);
        assert_eq!(source.held_bytes(), 0);
        let events: Vec<_> = (0..8)
            .map(|_| Event::new(&context, EventConfig::default()).unwrap())
            .collect();
        thread::scope(|scope| {
            for event in events {
                scope.spawn(move || drop(event));
            }
        });
    });
}

/// A refused release leaves the range in use, so ranges that another thread gets meanwhile must not touch it.
#[test]
fn ranges_never_touch_although_releases_are_refused_meanwhile() {
    if ran_in_child() {
        return;
    }
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let device = DeviceMemory::new(&context);
        let kept = device.grow(request(MIB)).unwrap();
        for _ in 0..300 {
            control
                .fail(Rule::of("cuMemFree_v2").times(u64::MAX))
                .unwrap();
            let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
            let got = thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        device.release(kept).unwrap_err();
                        begun.store(true, Ordering::Relaxed);
                    }
                });
                while !begun.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                let got: Vec<_> = (0..3).map(|_| device.grow(request(MIB)).unwrap()).collect();
                over.store(true, Ordering::Relaxed);
                got
            });
            control.clear_failures();
            for range in &got {
                assert!(
                    range.end() != kept.start() && range.start() != kept.end(),
                    "{range:?} touches {kept:?}"
                );
            }
            for range in got {
                device.release(range).unwrap();
            }
            context.settle();
        }
    });
}

/// cudarc makes a context current in order to release it.
#[test]
fn what_was_current_is_so_after_the_end_of_a_context() {
    alone_and_clean(|_| {
        thread::spawn(|| {
            let other = Context::new(1).unwrap();
            let context = Context::new(0).unwrap();
            let event = Event::new(&context, EventConfig::default()).unwrap();
            drop(context);
            other.cudarc().bind_to_thread().unwrap();
            let before = current();
            drop(event);
            assert_eq!(current(), before, "the last of a context was dropped");
            other.with_current(|_| ()).unwrap();
        })
        .join()
        .unwrap();

        thread::spawn(|| {
            let context = thread::spawn(|| Context::new(0).unwrap()).join().unwrap();
            assert_eq!(current(), ContextHandle::NULL);
            drop(context);
            assert_eq!(current(), ContextHandle::NULL);
        })
        .join()
        .unwrap();
    });
}
