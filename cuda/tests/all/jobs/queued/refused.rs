//! Queued runs where the driver refuses events, and beside captures.

use cudarc::driver::{DevicePtr, result, sys};
use larder_cuda::Context;
use larder_cuda::driver::Rule;

use super::super::common::{alone, alone_and_clean};
use super::super::{Folder, by_hand, job};
use super::{MS, World};
use crate::foreign_captures::beside;

#[test]
fn a_run_whose_events_are_refused_is_timed_by_the_host() {
    alone_and_clean(|control| {
        let world = World::new(control, "refused_events", 2 * MS, 50);
        let mut runs = 0;
        for function in [
            "cuStreamIsCapturing",
            "cuEventCreate",
            "cuEventRecord",
            "cuEventQuery",
            "cuEventSynchronize",
            "cuEventElapsedTime",
            "cuThreadExchangeStreamCaptureMode",
            "cuCtxGetCurrent",
        ] {
            for (skip, times) in (0..8).flat_map(|skip| [1, 3, 1000].map(|times| (skip, times))) {
                control
                    .fail(Rule::of(function).after(skip).times(times))
                    .unwrap();
                for _ in 0..3 {
                    let pacer = world.job.pacer();
                    let run = world.job.run_on(&world.stream, runs, || pacer.launch());
                    assert!(run.unwrap().1.warnings.is_empty());
                    runs += 1;
                }
                control.clear_failures();
            }
        }
        // And then by the device again.
        world.queue(1, false);
        world.queue(1, false);
        let (took, busy) = world.measure(|| (0..10).for_each(|_| world.queue(1, false)));
        assert_eq!((took, busy), (40 * MS, 20 * MS));
        let World {
            job,
            stream,
            spin,
            folder,
            ..
        } = world;
        // A job keeps no stream.
        drop((stream, spin));
        assert!(control.alive().iter().all(|alive| alive.kind != "stream"));
        drop(job);
        // Each of them counts.
        assert_eq!(folder.status().durations.len() as u64, runs);
    });
}

#[test]
fn a_queued_run_may_be_captured_and_spoils_no_capture() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("captured");
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let (_, job) = job(by_hand(&folder));
    folder.order(None, None, Some(50));
    job.poll();
    let memory = stream.alloc_zeros::<u8>(64).unwrap();
    let (address, _synced) = memory.device_ptr(&stream);
    let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let fill = || {
        // SAFETY: the memory lives until the end.
        unsafe { result::memset_d8_async(address, 1, 64, stream.cu_stream()) }.unwrap();
    };
    let end = || {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream captures; the handle outlives the call.
        let code = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
        code.result().expect("a whole capture");
        // SAFETY: the graph was made just now.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    };
    let run = |work: &dyn Fn()| drop(job.run_on(&stream, 0, work).unwrap());
    // A whole run in a capture, one in which it begins, one in which it ends.
    stream.begin_capture(global).unwrap();
    run(&fill);
    run(&fill);
    end();
    run(&|| stream.begin_capture(global).unwrap());
    run(&|| (fill(), job.pacer().launch(), end()).2);
    run(&fill);
    stream.synchronize().unwrap();
}

#[test]
fn a_job_that_times_queued_runs_spoils_no_foreign_capture() {
    let folder = Folder::new("foreign_queued");
    beside(|_, _, streams| {
        let (_, job) = job(by_hand(&folder));
        for percent in [100, 50] {
            folder.order(None, None, Some(percent));
            job.poll();
            for round in 0..6 {
                drop(
                    job.run_on(&streams[round % 2], 0, || job.pacer().launch())
                        .unwrap(),
                );
            }
        }
        drop(job);
    });
}
