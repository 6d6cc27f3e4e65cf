//! Abnormal ends: work that failed for good, a context that is reset under its objects, and a panic while the driver
//! refuses everything. Nothing panics again, loops or grows without bound.

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use common::{MIB, alone, alone_and_clean, assert_clean, fill, request};
use cudarc::driver::{CudaStream, sys};
use larder_core::SubAllocator;
use larder_core::pages::{PageCall, PageDriver};
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{
    Context, DeviceMemory, DriverPool, Event, EventConfig, ManagedMemory, PinnedMemory,
    StreamAllocator, VirtualMemory,
};
use larder_cuda_abi::Code;

const MANY: u64 = 50;

/// Objects of every kind, each holding something.
struct Objects {
    events: Vec<Event>,
    pool: DriverPool,
    sources: Vec<Box<dyn SubAllocator + Send + Sync>>,
    pages: VirtualMemory,
    stream: Arc<CudaStream>,
    context: Context,
}

impl Objects {
    fn new() -> Self {
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let event = |_| Event::new(&context, EventConfig::default()).unwrap();
        let pool = DriverPool::new(&context).unwrap();
        let _ = pool.alloc(&stream, MIB).unwrap();
        let sources: Vec<Box<dyn SubAllocator + Send + Sync>> = vec![
            Box::new(DeviceMemory::new(&context)),
            Box::new(PinnedMemory::new(&context)),
            Box::new(ManagedMemory::new(&context).unwrap()),
            Box::new(VirtualMemory::new(&context, 256 * MIB).unwrap()),
        ];
        for source in &sources {
            for _ in 0..MANY {
                source.grow(request(MIB)).unwrap();
            }
        }
        let pages = VirtualMemory::new(&context, 64 * MIB).unwrap();
        let bytes = pages.page_bytes();
        for handle in 0..4 {
            pages.call(PageCall::Create { handle, bytes }).unwrap();
        }
        Self {
            events: (0..MANY).map(event).collect(),
            pool,
            sources,
            pages,
            stream,
            context,
        }
    }

    /// Uses everything and ignores the answers.
    fn use_all(&self) {
        let _ = self.events[0].record(&self.stream);
        let _ = self.events[0].query();
        let _ = self.pool.alloc(&self.stream, MIB);
        let _ = self.pool.driver_stats();
        for source in &self.sources {
            let _ = source.grow(request(MIB));
        }
        let bytes = self.pages.page_bytes();
        let _ = self.pages.call(PageCall::Release { handle: 1, bytes });
        let _ = self.context.synchronize();
        let _ = self.context.settle();
    }

    /// An upper limit of the driver calls that dropping everything makes.
    fn max_calls() -> u64 {
        let things = 6 * MANY + 20;
        // A page is two objects. Each release enters and leaves the context and retries four other releases. All of
        // them are retried once for each kind of memory that runs out, and three times at the end.
        things * 60
    }
}

fn refuse_all(control: &StandIn, code: Code) {
    control
        .fail(Rule::any().times(u64::MAX).with(code))
        .unwrap();
}

#[test]
fn objects_end_quietly_after_work_failed_for_good() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let objects = Objects::new();
    control.schedule_deferred(1);
    let block = objects.pool.alloc(&objects.stream, MIB).unwrap();
    let at = block.addr().get();
    objects.pool.free(&objects.stream, block).unwrap();
    fill(&objects.stream, at, MIB, 1);
    let error = objects.context.synchronize().unwrap_err();
    assert_eq!(error.code(), Some(Code::ILLEGAL_ADDRESS));
    assert!(error.to_string().contains("start anew"), "{error}");
    objects.use_all();
    control.reset_calls();
    drop(objects);
    let calls = control.calls(None);
    assert!(calls < Objects::max_calls(), "{calls} calls");
    control.reset(2, common::DEVICE_BYTES);
}

#[test]
fn objects_end_quietly_after_their_context_was_reset() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let objects = Objects::new();
    // SAFETY: the driver is the stand-in, which refuses handles that the reset has destroyed.
    let code = unsafe { sys::cuDevicePrimaryCtxReset_v2(objects.context.device()) };
    assert_eq!(code as u32, 0);
    objects.use_all();
    control.reset_calls();
    drop(objects);
    let calls = control.calls(None);
    assert!(calls < Objects::max_calls(), "{calls} calls");
    control.reset(2, common::DEVICE_BYTES);
}

#[test]
fn a_panic_among_refusals_gives_everything_back_later() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for code in [Code::UNKNOWN, Code::OUT_OF_MEMORY, Code::INVALID_CONTEXT] {
        let objects = Objects::new();
        let context = objects.context.clone();
        let outcome = catch_unwind(AssertUnwindSafe(move || {
            objects.use_all();
            refuse_all(control, code);
            objects.use_all();
            panic!("on purpose");
        }));
        assert!(outcome.is_err());
        control.clear_failures();
        assert!(context.refused_frees() > 0);
        // An object that others depend on is released in a later round.
        while context.refused_frees() > 0 {
            let before = context.refused_frees();
            assert!(context.settle() < before, "{before} owed");
        }
        drop(context);
        assert_clean(control);
    }
}

#[test]
fn refusals_in_many_threads_lose_nothing() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let device = DeviceMemory::new(&context);
        let pages = VirtualMemory::new(&context, 256 * MIB).unwrap();
        thread::scope(|scope| {
            for index in 0..4 {
                let (context, device, pages) = (&context, &device, &pages);
                scope.spawn(move || {
                    for round in 0..200 {
                        let function = match (index + round) % 3 {
                            0 => Some("cuMemFree_v2"),
                            1 => Some("cuMemUnmap"),
                            _ => None,
                        };
                        let rule = Rule {
                            function,
                            skip: 2,
                            times: 3,
                            code: Code::UNKNOWN,
                        };
                        control.fail(rule).unwrap();
                        let source: &dyn SubAllocator = if round % 2 == 0 { device } else { pages };
                        let _event = Event::new(context, EventConfig::default());
                        if let Ok(range) = source.grow(request(MIB)) {
                            // A refused range is still held, so it is released again.
                            while source.release(range).is_err() {}
                        }
                    }
                });
            }
        });
        control.clear_failures();
        assert_eq!(device.held_bytes(), 0);
        pages.grow(request(MIB)).unwrap();
        assert_eq!(pages.mappings(), 1);
        assert_eq!(context.settle(), 0);
    });
}
