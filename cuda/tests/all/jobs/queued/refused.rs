//! Queued runs when the driver refuses calls, and during captures.

use cudarc::driver::{DevicePtr, sys};
use larder_cuda::Context;
use larder_cuda::driver::Rule;

use super::super::common::graph::Graph;
use super::super::common::{alone_and_clean, fill};
use super::super::{Folder, by_hand, job};
use super::{MS, World, with_world};
use crate::foreign_captures::beside;

#[test]
fn a_run_whose_events_are_refused_is_timed_by_the_host() {
    with_world(2 * MS, 50, |world| {
        let control = world.control;
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
                    assert!(run.unwrap().1.warnings.is_empty(), "{function} {skip}");
                    runs += 1;
                }
                control.clear_failures();
            }
        }
        // Afterwards, runs are timed by the device again.
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
        // The job does not keep the stream alive.
        drop((stream, spin));
        assert!(control.alive().iter().all(|alive| alive.kind != "stream"));
        drop(job);
        // The status has every run.
        assert_eq!(folder.status().durations.len() as u64, runs);
    });
}

#[test]
fn a_queued_run_may_be_captured_and_spoils_no_capture() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let (_, job) = job(by_hand(&folder));
        folder.order(None, None, 50);
        job.poll();
        let memory = stream.alloc_zeros::<u8>(64).unwrap();
        let (address, synced) = memory.device_ptr(&stream);
        let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let begin = || stream.begin_capture(global).unwrap();
        let end = || drop(Graph::end_capture(&stream).expect("a whole capture"));
        let run = |work: &dyn Fn()| drop(job.run_on(&stream, 0, work).unwrap());
        let work = || fill(&stream, address, 64, 1);
        // Whole runs in a capture, a run in which a capture begins, and one in which it ends.
        begin();
        run(&work);
        run(&work);
        end();
        run(&begin);
        run(&|| {
            work();
            job.pacer().launch();
            end();
        });
        run(&work);
        stream.synchronize().unwrap();
        drop(synced);
    });
}

#[test]
fn a_job_that_times_queued_runs_spoils_no_foreign_capture() {
    let folder = Folder::new();
    beside(|_, _, streams| {
        let (_, job) = job(by_hand(&folder));
        for percent in [100, 50] {
            folder.order(None, None, percent);
            job.poll();
            for round in 0..6 {
                let run = job.run_on(&streams[round % 2], 0, || job.pacer().launch());
                drop(run.unwrap());
            }
        }
        drop(job);
    });
}
