//! Runs that are queued on a stream: the device's clock says for how long it was busy. The stand-in's kernels
//! take time here, and the time is the stand-in's own.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use larder_cuda::control::larder_control::{Clock, Waited};
use larder_cuda::control::{Job, JobConfig, LaunchPaced, Pauses};
use larder_cuda::driver::abi::Code;
use larder_cuda::driver::abi::stand_in::KernelCall;
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{Context, Launch};

use super::common::{alone, assert_clean};
use super::{Folder, by_hand};

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry jobs_spin(.param .u32 nothing) { ret; }
";

unsafe extern "C" fn spin(_: *const KernelCall) {}

/// The stand-in's time is the job's.
#[derive(Debug)]
struct DeviceClock(&'static StandIn);

impl Clock for DeviceClock {
    fn now(&self) -> Duration {
        self.0.advance(Duration::ZERO)
    }

    fn sleep(&self, time: Duration) {
        self.0.advance(time);
    }
}

/// A job, and a stream with a kernel that takes a while.
struct World {
    control: &'static StandIn,
    folder: Folder,
    job: Job,
    stream: Arc<CudaStream>,
    spin: CudaFunction,
}

const MS: Duration = Duration::from_millis(1);

impl World {
    fn new(control: &'static StandIn, test: &str, takes: Duration, percent: i32) -> Self {
        Self::with(control, test, takes, percent, |_| ())
    }

    fn with(
        control: &'static StandIn,
        test: &str,
        takes: Duration,
        percent: i32,
        change: impl FnOnce(&mut JobConfig),
    ) -> Self {
        let folder = Folder::new(test);
        let context = Context::new(0).unwrap();
        // SAFETY: the only `jobs_spin` of this program.
        unsafe { control.register_kernel("jobs_spin", spin) }.unwrap();
        control.set_kernel_time("jobs_spin", takes).unwrap();
        let module = context.cudarc().load_module(Ptx::from_src(PTX)).unwrap();
        let mut config = by_hand(&folder);
        change(&mut config);
        let job = Job::with_clock(config, Arc::new(DeviceClock(control))).unwrap();
        folder.order(None, None, Some(percent));
        job.poll();
        Self {
            control,
            job,
            folder,
            stream: context.cudarc().new_stream().unwrap(),
            spin: module.load_function("jobs_spin").unwrap(),
        }
    }

    /// Queues the kernel, paced or not.
    fn launch(&self, paced: bool) {
        let pacer = self.job.pacer();
        let mut launch = Launch::on(&self.stream, &self.spin);
        launch.arg(&0_u32);
        let config = LaunchConfig::for_num_elems(1);
        if paced {
            // SAFETY: the kernel takes one number.
            unsafe { launch.launch_paced(&pacer, config) }.unwrap();
        } else {
            // SAFETY: the kernel takes one number.
            unsafe { launch.launch(config) }.unwrap();
        }
    }

    /// A run of launches that are not waited for.
    fn queue(&self, launches: u32, paced: bool) {
        let work = || (0..launches).for_each(|_| self.launch(paced));
        let (_, end) = self.job.run_on(&self.stream, 0, work).unwrap();
        assert_eq!(end.paused, Waited::Done);
        assert!(end.warnings.is_empty());
    }

    /// The time in which `act` and what it queued were done, and how much of it the device was busy.
    fn measure(&self, act: impl FnOnce()) -> (Duration, Duration) {
        let now = || (self.control.advance(Duration::ZERO), self.control.busy(0));
        let (start, busy) = now();
        act();
        self.stream.synchronize().unwrap();
        let (end, busy_then) = now();
        (end - start, busy_then - busy)
    }

    fn calls(&self, name: &str) -> u64 {
        self.control.calls(Some(name))
    }
}

#[test]
fn a_loop_that_runs_ahead_of_the_device_keeps_it_busy_for_its_share_of_the_time() {
    let Some((control, _turn)) = alone("a_loop_that_runs_ahead") else {
        return;
    };
    for percent in [50, 25, 80] {
        for paced in [false, true] {
            for launches in [1, 7] {
                control.reset(2, super::common::DEVICE_BYTES);
                let world = World::new(control, "ahead", 2 * MS, percent);
                let runs = 20;
                let (took, busy) =
                    world.measure(|| (0..runs).for_each(|_| world.queue(launches, paced)));
                assert_eq!(busy, 2 * MS * launches * runs);
                let due = busy * 100 / percent as u32;
                // A pause that is not made yet, and one that was made ahead.
                let slack = 2 * MS * launches * 100 / percent as u32;
                assert!(
                    took.abs_diff(due) <= slack,
                    "{percent} %, {launches} launches, {paced}: {took:?} for {due:?}"
                );
            }
        }
    }
}
