//! A job's share of the time: pauses between launches and at the end of runs, and suspensions.

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

use super::common::{alone_and_clean, driver};
use super::{Folder, by_hand, job, with_config, with_job};

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry jobs_count(.param .u64 to) { ret; }
";

/// Adds one to the number to which its parameter points.
unsafe extern "C" fn count(call: *const KernelCall) {
    // SAFETY: the stand-in lends the call, whose one parameter is the address of an aligned number that only this
    // kernel uses.
    let launch = unsafe { HostLaunch::of(call) };
    if let Some([to]) = launch.write::<u64>(0, 1) {
        *to += 1;
    }
}

fn kernel(control: &StandIn, context: &Context) -> CudaFunction {
    // SAFETY: every `jobs_count` of this program has this parameter, and the body makes no driver calls.
    unsafe { control.register_kernel("jobs_count", count) }.unwrap();
    let module = context.cudarc().load_module(Ptx::from_src(PTX)).unwrap();
    module.load_function("jobs_count").unwrap()
}

/// Cancels a job's waits when dropped, so that a failing test ends.
struct LetsGo<'j>(&'j Job);

impl Drop for LetsGo<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn am_10_pauses_between_real_launches_are_the_plan_within_one_share() {
    with_job(|rig| {
        let (job, clock, stream) = (&rig.job, &rig.clock, &rig.stream);
        let count = kernel(driver().stand_in().unwrap(), &rig.context);
        let mut counter = rig.memory.zeros::<u64>(stream, 1).unwrap();
        let pacer = job.pacer();
        let launches = 20;
        let plan = launches * MILLISECOND;
        // Returns the pauses inside a run, and the run's time including the pause at its end.
        let mut step = || {
            let (start, before) = (clock.now(), pacer.report().inserted);
            let (inside, end) = job
                .run(0, || {
                    for _ in 0..launches {
                        let mut launch = Launch::on(stream, &count);
                        launch.arg(&mut counter);
                        let one = LaunchConfig::for_num_elems(1);
                        // SAFETY: the kernel takes the address of one number.
                        unsafe { launch.launch_paced(&pacer, one) }.unwrap();
                        clock.advance(MILLISECOND);
                    }
                    pacer.report().inserted - before
                })
                .unwrap();
            assert_eq!(end.paused, Waited::Done);
            (inside, clock.now() - start)
        };
        // At full share, launches are not even counted.
        assert_eq!(step(), (Duration::ZERO, plan));
        assert_eq!(pacer.report().launches, 0);
        rig.order(None, None, 50);
        // The pacer knows neither the launches nor the time of a run yet, so it pauses at the run's end.
        assert_eq!(step(), (Duration::ZERO, 2 * plan));
        for _ in 0..5 {
            let (inside, took) = step();
            let off = plan.abs_diff(inside);
            assert!(off <= MILLISECOND, "{inside:?} of {plan:?}");
            assert_eq!(took, 2 * plan);
        }
        rig.order(None, None, 25);
        let four: Duration = (0..4).map(|_| step().1).sum();
        assert!(four.abs_diff(4 * 4 * plan) <= 4 * MILLISECOND, "{four:?}");
        let counted = stream.clone_dtoh(&counter).unwrap();
        assert_eq!(counted, [11 * u64::from(launches)]);
    });
}

#[test]
fn am_6_a_loop_of_its_own_pauses_at_the_ends_of_its_runs_by_upstreams_formula() {
    with_config(
        |_, config| config.pauses = Pauses::AtRunEnd,
        |rig| {
            rig.order(None, None, 50);
            let run = Duration::from_millis(100);
            let pause = Duration::from_micros(99_950);
            let end = rig.job.end_run(0, run).unwrap();
            assert_eq!((end.paused, rig.clock.now()), (Waited::Done, pause));
            // `run` measures the time itself, and pauses equally long.
            drop(rig.run(|| rig.clock.advance(run)));
            assert_eq!(rig.clock.now(), pause + run + pause);
        },
    );
}

#[test]
fn a_suspended_job_waits_in_its_launch_until_another_thread_resumes_it() {
    with_job(|rig| {
        rig.order(None, None, 0);
        let (pacer, launched) = (rig.job.pacer(), AtomicBool::new(false));
        let work = || {
            pacer.launch();
            launched.store(true, Ordering::SeqCst);
        };
        thread::scope(|scope| {
            let _lets_go = LetsGo(&rig.job);
            let worker = scope.spawn(|| rig.run(work).paused);
            // These orders do not resume the job.
            for _ in 0..3 {
                rig.order(1, None, 0);
                assert!(!launched.load(Ordering::SeqCst));
            }
            rig.order(None, None, 100);
            assert_eq!(worker.join().unwrap(), Waited::Done);
        });
    });
}

#[test]
fn a_suspended_job_obeys_limits_inside_of_its_run_and_is_let_go_by_cancel() {
    with_job(|rig| {
        let pacer = rig.job.pacer();
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let (go, going) = mpsc::channel::<()>();
            let _lets_go = LetsGo(&rig.job);
            let work = move || {
                tell.send(()).unwrap();
                let _ = going.recv();
                pacer.launch();
            };
            let worker = scope.spawn(|| rig.run(work).paused);
            told.recv().unwrap();
            rig.order(16, 1, None);
            assert_eq!(rig.limit(), 64, "a run is under way");
            rig.order(8, 2, 0);
            assert_eq!((rig.limit(), rig.larder().control_version), (8, Some(2)));
            go.send(()).unwrap();
            rig.job.cancel();
            assert_eq!(worker.join().unwrap(), Waited::Cancelled);
        });
    });
}

#[test]
fn limits_are_put_in_force_in_the_pause_at_the_end_of_a_run() {
    with_job(|rig| {
        rig.order(None, None, 50);
        let seen = Arc::new(AtomicBool::new(false));
        let met = Arc::clone(&seen);
        // The pause lasts from 10 to 20 ms.
        rig.at(Duration::from_millis(15), move |rig| {
            rig.order(8, None, 50);
            met.store(rig.limit() == 8, Ordering::SeqCst);
        });
        let end = rig.run(|| rig.clock.advance(Duration::from_millis(10)));
        assert_eq!(end.paused, Waited::Done);
        assert_eq!(rig.clock.now(), Duration::from_millis(20));
        assert!(seen.load(Ordering::SeqCst));
    });
}

#[test]
fn a_dropped_job_lets_its_launches_go() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        folder.order(None, None, 0);
        let (_, job) = job(by_hand(&folder));
        let pacer = job.pacer();
        let worker = thread::spawn(move || pacer.launch());
        drop(job);
        // The launch was cancelled while it waited, or it came after the drop and did not wait.
        worker.join().unwrap();
    });
}
