//! Every driver call that a runtime makes is refused once. The request returns an allocator or an error; after an
//! error the next request succeeds. Nothing is left.

use std::sync::Arc;

use larder_core::{AllocatorAttributes, BlockAllocator, Request};
use larder_cuda::CudaStream;
use larder_cuda::driver::Rule;
use larder_cuda::runtime::{Device, GpuOptions, Node, Route, Runtime, RuntimeError, Visited};

use crate::common::refusal::SWEEP;
use crate::common::{MIB, alone_and_clean};
use crate::runtime::rig::{Diary, end, gpu, numa, runtime, ways};

/// Makes everything that needs a driver. The caller keeps the streams and drops them once no call is refused, because
/// cudarc tries to destroy a stream only once.
fn build(
    runtime: &Runtime,
    options: &GpuOptions,
    streams: &mut Vec<Arc<CudaStream>>,
) -> Result<(), RuntimeError> {
    let gpu = runtime.gpu(1, options)?.allocator;
    let stream = gpu.context().cudarc().new_stream();
    let pinned = runtime.pinned_allocator(Some(Node::new(2)))?;
    if let Ok(grant) = pinned.alloc(&Request::new(1000)) {
        pinned.free(grant.block).unwrap();
    }
    let mut wanted = AllocatorAttributes::NONE;
    wanted.set_on_host(true);
    let route = runtime.route(Device::Gpu(1), wanted, options)?;
    assert!(matches!(route, Route::Host(_)));
    let Ok(stream) = stream else { return Ok(()) };
    streams.push(stream.clone());
    if let Ok(block) = gpu.alloc(&stream, MIB)
        && let Err(rejected) = gpu.free(&stream, block)
    {
        gpu.free(&stream, rejected.value).unwrap();
    }
    Ok(())
}

#[test]
fn every_call_refused_once_leaves_an_answer_and_nothing_else() {
    for mut way in ways() {
        println!("{}", way.words());
        way.config.numa = true;
        SWEEP.run(20, |refusal| {
            let runtime = runtime(way.config.clone());
            let mut streams = Vec::new();
            let outcome = refusal.around(|| build(&runtime, &way.options, &mut streams));
            assert!(refusal.happened() || outcome.is_ok(), "{outcome:?}");
            // The driver refuses no more calls, and the runtime works.
            build(&runtime, &way.options, &mut streams).unwrap();
            drop(streams);
            end(runtime);
        });
    }
}

#[test]
fn a_gpu_that_could_not_be_made_makes_no_visitor_late() {
    alone_and_clean(|control| {
        let runtime = runtime(numa());
        let options = GpuOptions::default();
        control.fail(Rule::of("cuMemAddressReserve")).unwrap();
        assert!(runtime.gpu_allocator(0, &options, 8 * MIB).is_err());
        control.clear_failures();
        assert!(!runtime.gpus_enabled());
        let diary = Diary::of(&runtime, Visited::Gpu(Node::ZERO));
        let given = gpu(&runtime, 0, 8);
        let late = runtime.add_alloc_visitor(Visited::Gpu(Node::ZERO), diary.visitor("B"));
        assert!(late.is_err());
        drop(given);
        end(runtime);
    });
}
