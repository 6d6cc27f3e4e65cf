//! The end of a job at any moment, and refused driver calls at the end of a run.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use larder_core::limits::LimitAnswer;
use larder_cuda::Returned;
use larder_cuda::driver::abi::Code;
use larder_cuda::job::Job;
use larder_cuda::job::larder_control::{Group, OnError};

use super::common::refusal::{SWEEP, Sweep};
use super::common::{MIB, alone, alone_and_clean, assert_clean};
use super::{Folder, by_hand, job, setup, until, used, with_job, with_thread};

#[test]
fn the_last_status_says_that_the_job_has_ended_and_limits_stay() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        let (_, job) = job(by_hand(&folder));
        let (_context, memory, _stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        folder.order(8, 1, None);
        job.poll();
        assert!(!folder.larder().ended);
        drop(job);
        assert!(folder.larder().ended);
        assert_eq!(folder.report().limit_bytes, 8 * MIB);
        assert_eq!(memory.limit_bytes(), 8 * MIB);
    });
}

#[test]
fn a_job_without_runs_obeys_and_tells_by_its_threads() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        let job = Job::new(with_thread(&folder)).unwrap();
        let (_context, memory, stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        let block = memory.alloc(&stream, 16 * MIB).unwrap();
        folder.order(8, 1, None);
        until(|| folder.has_status() && folder.larder().control_version == Some(1));
        assert_eq!(folder.report().deferred_bytes, 8 * MIB);
        memory.free(&stream, block).unwrap();
        stream.synchronize().unwrap();
        memory.end_step();
        until(|| folder.report().deferred_bytes == 0);
        drop(job);
        assert!(folder.larder().ended);
    });
}

#[test]
fn a_job_may_be_dropped_inside_a_callback_of_its_own_allocator() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    // The callback runs on the thread that frees, or on the listener's thread, which holds the job's state.
    for in_listener in [false, true] {
        let folder = Folder::new();
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
            folder.order(4, 1, None);
        } else {
            let deferred = LimitAnswer::Deferred { bytes: 8 * MIB };
            assert_eq!(memory.set_limit(8 * MIB), deferred);
            memory.free(&stream, block).unwrap();
            memory.end_step();
        }
        let (was_there, by) = told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(was_there);
        assert_eq!(by != thread::current().id(), in_listener);
        // On the listener's thread, the last status is written after the callback.
        until(|| folder.has_status() && folder.larder().ended);
        drop(watch);
        drop((memory, stream, context));
        // The job's threads may still hold the memory and the stream for a moment.
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
        let folder = Folder::new();
        let (_, job) = job(by_hand(&folder));
        let (context, memory, stream) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        let [first, second, kept] = [4, 6, 2].map(|mib| memory.alloc(&stream, mib * MIB).unwrap());
        let run = || {
            job.run(0, || {
                memory.free(&stream, first).unwrap();
                memory.free(&stream, second).unwrap();
                folder.order(2, 1, None);
                job.poll();
            })
        };
        let ((), end) = refusal.around(run).unwrap();
        assert_eq!(end.adjusted.len(), 1);
        let report = folder.report();
        assert_eq!((report.version, report.limit_bytes), (1, 2 * MIB));
        // The held bytes in the status are those that the driver has allocated.
        assert_eq!(report.held_bytes, used());
        // The end of the next run completes the adjustment.
        context.settle();
        drop(job.run(0, || ()).unwrap());
        assert_eq!(used(), 2 * MIB);
        job.want(1);
        job.poll();
        assert_eq!(folder.report().deferred_bytes, 0);
        memory.free(&stream, kept).unwrap();
    });
}

#[test]
fn am_9_an_action_that_fails_a_run_gives_the_value_back_and_stops_the_later_ones() {
    with_job(|rig| {
        let failing = |run: &larder_cuda::job::Run| match run.graph {
            1 => Err("graph 1".into()),
            _ => Ok(()),
        };
        let actions = rig.job.actions();
        let id = actions.add(Group::Post, 1, "after", OnError::Fail, failing);
        let order = || {
            rig.order(8, None, None);
            7
        };
        match rig.job.run(1, order) {
            Err(Returned {
                value: Some(7),
                error,
            }) => assert_eq!(error.name, "after"),
            other => panic!("{other:?}"),
        }
        // The failure in phase 1 skipped phase 2, which applies limits. The end of the next run applies it.
        assert_eq!(rig.limit(), 64);
        drop(rig.job.run(2, || ()).unwrap());
        assert_eq!(rig.limit(), 8);
        assert!(actions.remove(id));
        actions.add(Group::Pre, 0, "before", OnError::Fail, failing);
        let ran = rig.job.run(1, || panic!("it must not begin"));
        assert!(matches!(ran, Err(Returned { value: None, .. })));
    });
}
