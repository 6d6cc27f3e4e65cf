//! Every driver call that a runtime makes is refused once: the answer is an allocator or a reason, the slot
//! stays empty, the next request succeeds, and nothing is left.

use larder_core::{AllocatorAttributes, BlockAllocator, Request};
use std::sync::Arc;

use larder_cuda::CudaStream;
use larder_cuda::driver::Rule;
use larder_cuda::runtime::{Device, GpuOptions, Node, Route, Runtime, RuntimeError, Visited};
use larder_cuda_abi::Code;

use crate::common::{MIB, alone, alone_and_clean, assert_clean, ran_in_child};
use crate::runtime::gpu::{KINDS, of_kind};
use crate::runtime::rig::{Diary, numa, runtime};

const CODES: [Code; 3] = [Code::OUT_OF_MEMORY, Code::UNKNOWN, Code::INVALID_VALUE];

/// Makes all that needs a driver. Streams are the test's: they end when the driver is well, since cudarc tries once.
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
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    let growing = GpuOptions {
        allow_growth: true,
        ..GpuOptions::default()
    };
    let unified = GpuOptions {
        unified_memory: true,
        ..growing.clone()
    };
    let ways = KINDS.map(|kind| (kind, growing.clone()));
    let ways = ways.map(|(kind, options)| (kind, options, false));
    let more = [(KINDS[0], unified, false), (KINDS[0], growing, true)];
    for (place, (kind, options, vmem)) in ways.into_iter().chain(more).enumerate() {
        let mut refused = 0;
        for skip in 0.. {
            let config = larder_cuda::RuntimeConfig {
                numa: true,
                vmem,
                ..of_kind(kind)
            };
            let runtime = runtime(config);
            let code = CODES[(skip as usize + place) % CODES.len()];
            control.fail(Rule::any().after(skip).with(code)).unwrap();
            let mut streams = Vec::new();
            let before = control.calls(None);
            let outcome = build(&runtime, &options, &mut streams);
            let happened = control.calls(None) - before > skip;
            control.clear_failures();
            refused += u64::from(happened);
            assert!(happened || outcome.is_ok(), "{kind:?} {skip}: {outcome:?}");
            // The driver is well again, and so is the runtime.
            let again = build(&runtime, &options, &mut streams);
            again.unwrap_or_else(|error| panic!("{kind:?} {skip}: {error}"));
            drop(streams);
            let report = runtime.shutdown().unwrap();
            assert!(report.is_clean(), "{kind:?} {skip}: {report}");
            assert_clean(control);
            if !happened {
                break;
            }
        }
        println!("{kind:?}: {refused} calls refused");
        assert!(refused > 20, "{kind:?}");
    }
}

#[test]
fn a_gpu_that_could_not_be_made_makes_no_visitor_late() {
    alone_and_clean(|control| {
        let runtime = runtime(numa());
        let options = GpuOptions::default();
        control
            .fail(Rule::of("cuMemAddressReserve").with(Code::UNKNOWN))
            .unwrap();
        assert!(runtime.gpu_allocator(0, &options, 8 * MIB).is_err());
        control.clear_failures();
        assert!(!runtime.gpus_enabled());
        let diary = Diary::default();
        runtime
            .add_alloc_visitor(Visited::Gpu(Node::ZERO), diary.visitor("A"))
            .unwrap();
        let given = runtime.gpu_allocator(0, &options, 8 * MIB).unwrap();
        assert!(
            runtime
                .add_alloc_visitor(Visited::Gpu(Node::ZERO), diary.visitor("B"))
                .is_err()
        );
        drop(given);
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}
