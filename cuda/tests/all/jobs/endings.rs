//! Ends of jobs at any moment, and drivers that refuse.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use larder_core::limits::LimitAnswer;
use larder_cuda::Returned;
use larder_cuda::driver::abi::Code;
use larder_cuda::job::larder_control::{Group, OnError, WatchMode};
use larder_cuda::job::{Job, JobConfig};

use super::common::refusal::{SWEEP, Sweep};
use super::common::{MIB, alone, alone_and_clean, assert_clean};
use super::{Folder, by_hand, gpu, job, looking, setup};

/// Waits for what another thread does; fails after a time that no machine needs.
#[track_caller]
pub(super) fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "never came true");
        thread::yield_now();
    }
}

pub(super) fn with_thread(folder: &Folder) -> JobConfig {
    let mut config = JobConfig::new("test", folder.files());
    config.listener = looking(WatchMode::Poll);
    config.listener.interval = Duration::from_millis(1);
    config
}

#[test]
fn the_last_status_says_that_the_job_has_ended_and_limits_stay() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("ended");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    folder.order(Some(8 * MIB), Some(1), None);
    job.poll();
    assert!(!folder.status().larder.unwrap().ended);
    drop(job);
    let last = folder.status().larder.unwrap();
    assert!(last.ended);
    assert_eq!(last.gpus[&gpu()].limit_bytes, 8 * MIB);
    assert_eq!(memory.limit_bytes(), 8 * MIB);
}

#[test]
fn a_job_without_runs_obeys_and_tells_by_its_threads() {
    alone_and_clean(|_| {
        let folder = Folder::new("threads");
        let job = Job::new(with_thread(&folder)).unwrap();
        let (_context, memory, stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        let block = memory.alloc(&stream, 16 * MIB).unwrap();
        folder.order(Some(8 * MIB), Some(1), None);
        until(|| {
            folder.has_status()
                && folder
                    .status()
                    .report(gpu())
                    .is_some_and(|report| report.version == 1)
        });
        assert_eq!(
            folder.status().report(gpu()).unwrap().deferred_bytes,
            8 * MIB
        );
        memory.free(&stream, block).unwrap();
        stream.synchronize().unwrap();
        memory.end_step();
        until(|| folder.status().report(gpu()).unwrap().deferred_bytes == 0);
        drop(job);
        assert!(folder.status().larder.unwrap().ended);
    });
}

#[test]
fn a_job_may_be_dropped_inside_a_callback_of_its_own_allocator() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    // In the thread that frees; in the listener's, which has the job's state.
    for in_listener in [false, true] {
        let folder = Folder::new(&format!("callback_{in_listener}"));
        let (context, memory, stream) = setup(64 * MIB);
        let block = memory.alloc(&stream, 16 * MIB).unwrap();
        let job = match in_listener {
            true => Job::new(with_thread(&folder)).unwrap(),
            false => job(by_hand(&folder)).1,
        };
        job.manage(&memory).unwrap();
        let place = Arc::new(Mutex::new(Some(job)));
        let (tell, told) = mpsc::channel();
        let watch = memory.watch_limit(move |_| {
            let job = place.lock().unwrap().take();
            let was_there = job.is_some();
            drop(job);
            tell.send((was_there, thread::current().id())).unwrap();
        });
        if in_listener {
            memory.free(&stream, block).unwrap();
            stream.synchronize().unwrap();
            folder.order(Some(4 * MIB), Some(1), None);
        } else {
            let deferred = LimitAnswer::Deferred { bytes: 8 * MIB };
            assert_eq!(memory.set_limit(8 * MIB), deferred);
            memory.free(&stream, block).unwrap();
            memory.end_step();
        }
        let (was_there, by) = told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(was_there);
        assert_eq!(by != thread::current().id(), in_listener);
        // In the listener's thread the last status comes behind the callback.
        until(|| folder.has_status() && folder.status().larder.is_some_and(|last| last.ended));
        drop(watch);
        drop((memory, stream, context));
        // The job's threads may have them for a moment still.
        until(|| control.alive().iter().all(|alive| alive.kind == "context"));
        assert_clean(control);
    }
}

#[test]
fn every_call_of_the_driver_at_the_end_of_a_run_is_refused_once() {
    let sweep = Sweep {
        codes: &[Code::UNKNOWN],
        each_code: true,
        ..SWEEP
    };
    sweep.run(4, |refusal| {
        let used = || refusal.control.used(0);
        let folder = Folder::new("refused");
        let (_, job) = job(by_hand(&folder));
        let (context, memory, stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        let [first, second, kept] = [4, 6, 2].map(|mib| memory.alloc(&stream, mib * MIB).unwrap());
        let run = || {
            job.run(0, || {
                memory.free(&stream, first).unwrap();
                memory.free(&stream, second).unwrap();
                folder.order(Some(2 * MIB), Some(1), None);
                job.poll();
            })
        };
        let ((), end) = refusal.around(run).unwrap();
        assert_eq!(end.adjusted.len(), 1);
        let report = folder.status().report(gpu()).unwrap();
        assert_eq!((report.version, report.limit_bytes), (1, 2 * MIB));
        // The status is the truth: what is held is what the driver has given.
        assert_eq!(report.held_bytes, used());
        // The next run's end completes what was left.
        context.settle();
        drop(job.run(0, || ()).unwrap());
        assert_eq!(used(), 2 * MIB);
        job.want(1);
        job.poll();
        assert_eq!(folder.status().report(gpu()).unwrap().deferred_bytes, 0);
        memory.free(&stream, kept).unwrap();
    });
}

#[test]
fn am_9_an_action_that_fails_a_run_gives_the_value_back_and_stops_the_later_ones() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("actions");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    let failing = |run: &larder_cuda::job::Run| match run.graph {
        1 => Err("graph 1".into()),
        _ => Ok(()),
    };
    let actions = job.actions();
    let id = actions.add(Group::Post, 1, "after", OnError::Fail, failing);
    let order = || {
        folder.order(Some(8 * MIB), None, None);
        job.poll();
        7
    };
    match job.run(1, order) {
        Err(Returned {
            value: Some(7),
            error,
        }) => assert_eq!(error.name, "after"),
        other => panic!("{other:?}"),
    }
    // Phase 2 did not run; the next end does it.
    assert_eq!(memory.limit_bytes(), 64 * MIB);
    drop(job.run(2, || ()).unwrap());
    assert_eq!(memory.limit_bytes(), 8 * MIB);
    assert!(actions.remove(id));
    actions.add(Group::Pre, 0, "before", OnError::Fail, failing);
    let mut done = false;
    let ran = job.run(1, || done = true);
    assert!(matches!(ran, Err(Returned { value: None, .. })));
    assert!(!done);
}
