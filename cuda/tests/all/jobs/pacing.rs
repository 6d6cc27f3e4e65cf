//! The share of the time: pauses between launches, at the end of runs, and suspensions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use larder_cuda::driver::abi::stand_in::KernelCall;
use larder_cuda::driver::{HostLaunch, StandIn};
use larder_cuda::job::larder_control::{Clock, Waited};
use larder_cuda::job::{Job, LaunchPaced, Pauses};
use larder_cuda::{Context, Launch};

use super::common::{MIB, alone};
use super::{Folder, by_hand, job, setup};

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry jobs_count(.param .u64 to) { ret; }
";

/// Counts its runs in the memory that it is given.
unsafe extern "C" fn count(call: *const KernelCall) {
    // SAFETY: the stand-in gives a launch with this parameter.
    let launch = unsafe { HostLaunch::of(call) };
    if let Some([to]) = launch.write::<u64>(0, 1) {
        *to += 1;
    }
}

fn kernel(control: &StandIn, context: &Context) -> CudaFunction {
    // SAFETY: the only `jobs_count` of this program.
    unsafe { control.register_kernel("jobs_count", count) }.unwrap();
    let module = context.cudarc().load_module(Ptx::from_src(PTX)).unwrap();
    module.load_function("jobs_count").unwrap()
}

/// Lets a suspended job go, so that a test that fails ends.
struct LetsGo<'j>(&'j Job);

impl Drop for LetsGo<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn am_10_pauses_between_real_launches_are_the_plan_within_one_share() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("launches");
    let (clock, job) = job(by_hand(&folder));
    let (context, memory, stream) = setup(64 * MIB);
    let count = kernel(control, &context);
    let mut counter = memory.zeros::<u64>(&stream, 1).unwrap();
    let pacer = job.pacer();
    let launches = 20;
    let step = |counter: &mut larder_cuda::DeviceBuffer<u64>| {
        let (start, before) = (clock.now(), pacer.report().inserted);
        let (inside, end) = job
            .run(0, || {
                for _ in 0..launches {
                    let mut launch = Launch::on(&stream, &count);
                    launch.arg(&mut *counter);
                    // SAFETY: the kernel takes one address of a number.
                    unsafe { launch.launch_paced(&pacer, LaunchConfig::for_num_elems(1)) }.unwrap();
                    // The work of the launch.
                    clock.advance(MILLISECOND);
                }
                pacer.report().inserted - before
            })
            .unwrap();
        assert_eq!(end.paused, Waited::Done);
        (inside, clock.now() - start)
    };
    // Full share: not even counted.
    let (inside, took) = step(&mut counter);
    assert_eq!((inside, took), (Duration::ZERO, launches * MILLISECOND));
    assert_eq!(pacer.report().launches, 0);
    folder.order(None, None, Some(50));
    job.poll();
    // It knows neither launches nor time: paused at its end.
    let (inside, took) = step(&mut counter);
    assert_eq!((inside, took), (Duration::ZERO, 2 * launches * MILLISECOND));
    for _ in 0..5 {
        let (inside, took) = step(&mut counter);
        let plan = launches * MILLISECOND;
        assert!(
            plan.abs_diff(inside) <= MILLISECOND,
            "{inside:?} of {plan:?}"
        );
        assert_eq!(took, 2 * plan);
    }
    folder.order(None, None, Some(25));
    job.poll();
    let before = clock.now();
    for _ in 0..4 {
        step(&mut counter);
    }
    let four = clock.now() - before;
    assert!(
        four.abs_diff(4 * 4 * launches * MILLISECOND) <= 4 * MILLISECOND,
        "{four:?}"
    );
    assert_eq!(
        stream.clone_dtoh(&counter).unwrap(),
        [11 * u64::from(launches)]
    );
}

#[test]
fn am_6_a_loop_of_its_own_pauses_at_the_ends_of_its_runs_by_upstreams_formula() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("formula");
    let mut config = by_hand(&folder);
    config.pauses = Pauses::AtRunEnd;
    let (clock, job) = job(config);
    folder.order(None, None, Some(50));
    job.poll();
    let run = Duration::from_millis(100);
    let pause = Duration::from_micros(99_950);
    assert_eq!(job.end_run(0, run).unwrap().paused, Waited::Done);
    assert_eq!(clock.now(), pause);
    // The same around a run.
    drop(job.run(0, || clock.advance(run)).unwrap());
    assert_eq!(clock.now(), pause + run + pause);
}

#[test]
fn a_suspended_job_waits_in_its_launch_until_another_thread_resumes_it() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("suspended");
    let (_, job) = job(by_hand(&folder));
    folder.order(None, None, Some(0));
    job.poll();
    let (pacer, launched) = (job.pacer(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _lets_go = LetsGo(&job);
        let worker = scope.spawn(|| {
            let ran = job.run(0, || {
                pacer.launch();
                launched.store(true, Ordering::SeqCst);
            });
            ran.unwrap().1.paused
        });
        // Several orders that do not resume it.
        for _ in 0..3 {
            folder.order(Some(MIB), None, Some(0));
            job.poll();
            assert!(!launched.load(Ordering::SeqCst));
        }
        folder.order(None, None, Some(100));
        job.poll();
        assert_eq!(worker.join().unwrap(), Waited::Done);
    });
}

#[test]
fn a_suspended_job_obeys_limits_inside_of_its_run_and_is_let_go_by_cancel() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("suspended_limits");
    let (_, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    let pacer = job.pacer();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let (go, going) = mpsc::channel::<()>();
        let _lets_go = LetsGo(&job);
        let job = &job;
        let worker = scope.spawn(move || {
            let ran = job.run(0, || {
                tell.send(()).unwrap();
                let _ = going.recv();
                pacer.launch();
            });
            ran.unwrap().1.paused
        });
        told.recv().unwrap();
        folder.order(Some(16 * MIB), Some(1), None);
        job.poll();
        assert_eq!(memory.limit_bytes(), 64 * MIB, "a run is under way");
        folder.order(Some(8 * MIB), Some(2), Some(0));
        job.poll();
        assert_eq!(memory.limit_bytes(), 8 * MIB);
        assert_eq!(folder.status().larder.unwrap().control_version, Some(2));
        go.send(()).unwrap();
        job.cancel();
        let paused = worker.join().unwrap();
        assert_eq!(paused, Waited::Cancelled);
    });
}

#[test]
fn limits_are_put_in_force_in_the_pause_at_the_end_of_a_run() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("pause");
    let (clock, job) = job(by_hand(&folder));
    let (_context, memory, _stream) = setup(64 * MIB);
    job.manage(&memory).unwrap();
    folder.order(None, None, Some(50));
    job.poll();
    let job = Arc::new(job);
    let (inside, seen) = (Arc::clone(&job), Arc::new(AtomicBool::new(false)));
    let (met, limit) = (Arc::clone(&seen), memory.clone());
    let text = folder.files().control.unwrap();
    // In the middle of the pause.
    clock.at(Duration::from_millis(15), move || {
        let order =
            r#"{"gpuConfigInfo": {"01:00.0": {"maxDeviceMem": 8388608}}, "perfControl": 50}"#;
        std::fs::write(text, order).unwrap();
        inside.poll();
        met.store(limit.limit_bytes() == 8 * MIB, Ordering::SeqCst);
    });
    let (_, end) = job
        .run(0, || clock.advance(Duration::from_millis(10)))
        .unwrap();
    assert_eq!(end.paused, Waited::Done);
    assert_eq!(clock.now(), Duration::from_millis(20));
    assert!(seen.load(Ordering::SeqCst));
}

#[test]
fn a_dropped_job_lets_its_launches_go() {
    let Some((_, _turn)) = alone() else {
        return;
    };
    let folder = Folder::new("dropped");
    folder.order(None, None, Some(0));
    let (_, job) = job(by_hand(&folder));
    let pacer = job.pacer();
    let worker = thread::spawn(move || pacer.launch());
    drop(job);
    // Cancelled in its wait, or free since it came later.
    worker.join().unwrap();
}
