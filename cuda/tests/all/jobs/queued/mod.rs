//! Runs queued on a stream, whose busy time the device's clock measures. Here the stand-in's kernels take time by
//! its own clock, which is also the job's.

mod refused;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use larder_cuda::driver::StandIn;
use larder_cuda::driver::abi::stand_in::KernelCall;
use larder_cuda::job::larder_control::{Clock, ControlFile, Group, OnError, SleepState, Waited};
use larder_cuda::job::{Job, JobConfig, LaunchPaced, Pauses, Recorded};
use larder_cuda::{Context, DeviceAllocator, Launch};

use super::common::{MIB, alone_and_clean};
use super::{Folder, by_hand, plain, until, used};

const PTX: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry jobs_spin(.param .u32 nothing) { ret; }
";

unsafe extern "C" fn spin(_: *const KernelCall) {}

/// The stand-in's clock as a job's clock, with a count of the job's sleeps.
#[derive(Debug)]
struct DeviceClock {
    control: &'static StandIn,
    sleeps: Arc<AtomicU64>,
}

impl Clock for DeviceClock {
    fn now(&self) -> Duration {
        self.control.advance(Duration::ZERO)
    }

    fn sleep(&self, time: Duration) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        self.control.advance(time);
    }
}

/// A job, and a stream with a kernel that takes a while.
struct World {
    control: &'static StandIn,
    folder: Folder,
    job: Job,
    stream: Arc<CudaStream>,
    spin: CudaFunction,
    sleeps: Arc<AtomicU64>,
}

fn device(ordinal: usize) -> (Arc<CudaStream>, CudaFunction) {
    let context = Context::new(ordinal).unwrap();
    let module = context.cudarc().load_module(Ptx::from_src(PTX)).unwrap();
    let spin = module.load_function("jobs_spin").unwrap();
    (context.cudarc().new_stream().unwrap(), spin)
}

const MS: Duration = Duration::from_millis(1);

/// Runs a test in which each kernel takes a given time and the job has a share of the time.
#[track_caller]
fn with_world(takes: Duration, percent: i32, test: impl FnOnce(World)) {
    alone_and_clean(|control| test(World::new(control, takes, percent, |_| ())));
}

impl World {
    fn new(
        control: &'static StandIn,
        takes: Duration,
        percent: i32,
        change: impl FnOnce(&mut JobConfig),
    ) -> Self {
        let folder = Folder::new();
        // SAFETY: the body is empty, so it is sound for every launch.
        unsafe { control.register_kernel("jobs_spin", spin) }.unwrap();
        control.set_kernel_time("jobs_spin", takes).unwrap();
        let (stream, spin) = device(0);
        let mut config = by_hand(&folder);
        change(&mut config);
        let sleeps = Arc::<AtomicU64>::default();
        let clock = DeviceClock {
            control,
            sleeps: Arc::clone(&sleeps),
        };
        let job = Job::with_clock(config, Arc::new(clock)).unwrap();
        folder.order(None, None, Some(percent));
        job.poll();
        Self {
            control,
            job,
            folder,
            sleeps,
            stream,
            spin,
        }
    }

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

    /// Queues a run of launches without waiting for them.
    fn queue(&self, launches: u32, paced: bool) {
        let work = || (0..launches).for_each(|_| self.launch(paced));
        let (_, end) = self.job.run_on(&self.stream, 0, work).unwrap();
        assert_eq!(end.paused, Waited::Done);
        assert!(end.warnings.is_empty());
    }

    /// Returns the time until `act` and its queued work are done, and the part of it in which the device was busy.
    fn measure(&self, act: impl FnOnce()) -> (Duration, Duration) {
        let now = || (self.now(), self.control.busy(0));
        let (start, busy) = now();
        act();
        self.stream.synchronize().unwrap();
        let (end, busy_then) = now();
        (end - start, busy_then - busy)
    }

    /// Writes a control file with a share of the time and an order to sleep or wake, and polls.
    fn tell(&self, percent: i32, asleep: bool) {
        let order = |file: &mut ControlFile| {
            (file.perf_control, file.asleep) = (Some(percent), Some(asleep));
        };
        self.folder.tell(order);
        self.job.poll();
    }

    fn sleep_state(&self) -> SleepState {
        self.folder.larder().sleep.unwrap().state
    }

    fn now(&self) -> Duration {
        self.control.advance(Duration::ZERO)
    }

    fn manage(&self) -> DeviceAllocator {
        let memory = DeviceAllocator::new(&Context::new(0).unwrap()).unwrap();
        self.job.manage(&memory).unwrap();
        memory
    }
}

#[test]
fn a_loop_that_runs_ahead_of_the_device_keeps_it_busy_for_its_share_of_the_time() {
    for percent in [50, 25, 80] {
        for (paced, launches) in [(false, 1), (false, 7), (true, 1), (true, 7)] {
            with_world(2 * MS, percent, |world| {
                let runs = 20;
                let (took, busy) =
                    world.measure(|| (0..runs).for_each(|_| world.queue(launches, paced)));
                assert_eq!(busy, 2 * MS * launches * runs);
                let due = busy * 100 / percent as u32;
                // One pause may be outstanding, or one may have been made ahead.
                let slack = 2 * MS * launches * 100 / percent as u32;
                assert!(
                    took.abs_diff(due) <= slack,
                    "{percent} %, {launches} launches, {paced}: {took:?} for {due:?}"
                );
            });
        }
    }
}

#[test]
fn short_runs_are_joined_and_waited_for_together() {
    let takes = Duration::from_micros(5);
    with_world(takes, 50, |world| {
        let runs = 1000;
        let context = Context::new(0).unwrap();
        let mut ahead = 0;
        let queue = |_| {
            world.queue(1, false);
            ahead += u32::from(!context.is_done(&world.stream).unwrap());
        };
        let (took, busy) = world.measure(|| (0..runs).for_each(queue));
        assert_eq!(busy, takes * runs);
        assert!(ahead > runs / 2, "{ahead}");
        assert!(took.abs_diff(2 * busy) <= 20 * takes, "{took:?}");
        // The device is idle once in ten runs, not after each run.
        let pauses = world.sleeps.load(Ordering::Relaxed);
        assert!(pauses.abs_diff(u64::from(runs) / 10) <= 20, "{pauses}");
    });
}

#[test]
fn at_full_share_only_a_run_far_behind_the_host_is_waited_for() {
    with_world(2 * MS, 100, |world| {
        for run in 0..70_u32 {
            world.queue(1, true);
            let waited_for = (run + 1).saturating_sub(64);
            assert_eq!(world.now(), 2 * MS * waited_for, "{run}");
        }
        assert_eq!(world.control.calls(Some("cuEventSynchronize")), 6);
        world.stream.synchronize().unwrap();
    });
}

#[test]
fn the_status_and_the_actions_have_the_time_of_the_device() {
    // At full share the host does not wait for the run, so its time is not known when it ends.
    for (percent, known, took) in [(100, None, 0), (50, Some(Recorded::Noted), 2)] {
        with_world(2 * MS, percent, |world| {
            let seen = Arc::new(AtomicU64::new(0));
            let see = Arc::clone(&seen);
            let look = move |run: &larder_cuda::job::Run| {
                see.store(run.duration.as_millis() as u64, Ordering::Relaxed);
                Ok(())
            };
            let actions = world.job.actions();
            actions.add(Group::Post, 0, "look", OnError::Ignore, look);
            let launch = || world.launch(false);
            let ran = world.job.run_on(&world.stream, 7, launch);
            assert_eq!(ran.unwrap().1.recorded, known, "{percent}");
            assert_eq!(seen.load(Ordering::Relaxed), took, "{percent}");
            world.stream.synchronize().unwrap();
            let World { job, folder, .. } = world;
            drop(job);
            let expected = [("graph_7".to_owned(), 2000)].into();
            assert_eq!(folder.status().durations, expected, "{percent}");
        });
    }
}

#[test]
fn a_loop_of_queued_runs_pauses_at_their_ends_by_upstreams_formula() {
    alone_and_clean(|control| {
        let change = |config: &mut JobConfig| config.pauses = Pauses::AtRunEnd;
        let world = World::new(control, 2 * MS, 50, change);
        for run in 1..=10_u32 {
            world.queue(1, true);
            let pause = 2 * MS - Duration::from_micros(50);
            assert_eq!(world.now(), run * (2 * MS + pause));
        }
    });
}

#[test]
fn a_suspension_in_a_queued_run_is_not_busy() {
    with_world(2 * MS, 50, |world| {
        world.queue(1, true);
        let start = world.now();
        let work = || {
            world.launch(false);
            world.tell(0, false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // The launch below waits for the device, and then for the order of this thread.
                    while world.now() < start + 500 * MS {
                        std::thread::yield_now();
                    }
                    world.tell(50, false);
                });
                world.launch(true);
            });
        };
        let (_, end) = world.job.run_on(&world.stream, 0, work).unwrap();
        assert_eq!(end.paused, Waited::Done);
        world.stream.synchronize().unwrap();
        world.queue(0, false);
        let report = world.job.pacer().report();
        assert_eq!(report.busy, 6 * MS);
        assert!(report.suspended >= 490 * MS, "{report:?}");
    });
}

#[test]
fn runs_that_were_on_the_device_when_the_job_fell_asleep_are_in_its_status() {
    with_world(2 * MS, 100, |world| {
        let _memory = world.manage();
        world.queue(1, false);
        world.tell(100, true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until(|| world.sleep_state() == SleepState::Asleep);
                let durations = world.folder.status().durations;
                world.tell(100, false);
                assert_eq!(durations, [("graph_0".to_owned(), 2000)].into());
            });
            world.queue(1, false);
        });
        world.stream.synchronize().unwrap();
    });
}

#[test]
fn a_queued_run_that_ends_in_a_suspension_and_a_sleep_is_busy_for_its_own_time() {
    with_world(2 * MS, 50, |world| {
        let memory = world.manage();
        world.queue(1, true);
        let start = world.now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until(|| world.sleep_state() == SleepState::Asleep);
                // The job wakes, but is still suspended.
                world.tell(0, false);
                until(|| world.sleep_state() == SleepState::Awake);
                world.control.advance(500 * MS);
                world.tell(50, false);
            });
            let work = || {
                world.launch(true);
                world.tell(0, true);
            };
            let (_, end) = world.job.run_on(&world.stream, 0, work).unwrap();
            assert_eq!(end.paused, Waited::Done);
        });
        assert!(world.now() >= start + 500 * MS);
        assert!(!memory.is_asleep());
        let (took, busy) = world.measure(|| (0..10).for_each(|_| world.queue(1, true)));
        assert_eq!(busy, 20 * MS);
        // The pause of the previous run may come late.
        assert!(took.abs_diff(40 * MS) <= 4 * MS, "{took:?}");
        // The time of a run is reported by the next run.
        world.queue(0, false);
        let report = world.job.pacer().report();
        assert_eq!(report.busy, 24 * MS, "{report:?}");
    });
}

#[test]
fn runs_that_take_longer_than_was_expected_are_noticed_after_four() {
    with_world(Duration::from_micros(1), 50, |world| {
        world.queue(1, false);
        world.control.set_kernel_time("jobs_spin", 2 * MS).unwrap();
        let (took, busy) = world.measure(|| (0..6).for_each(|_| world.queue(1, false)));
        // This includes the pause for the short run.
        let due = 12 * MS + Duration::from_micros(1);
        assert_eq!((took, busy), (12 * MS + due, 12 * MS));
    });
}

#[test]
fn runs_on_several_devices_are_each_timed() {
    with_world(2 * MS, 50, |mut world| {
        let (mut stream, mut spin) = device(1);
        for run in 1..=10 {
            world.queue(1, false);
            assert_eq!(world.now(), 4 * MS * run);
            std::mem::swap(&mut world.stream, &mut stream);
            std::mem::swap(&mut world.spin, &mut spin);
        }
    });
}

#[test]
fn s7_5_what_queued_work_uses_above_a_limit_goes_back_at_the_end_of_a_run() {
    with_world(2 * MS, 100, |world| {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, plain(u64::MAX)).unwrap();
        world.job.manage(&memory).unwrap();
        let block = memory.alloc(&world.stream, 4 * MIB).unwrap();
        world.launch(false);
        memory.free(&world.stream, block).unwrap();
        world.folder.order(0, None, None);
        world.job.poll();
        for (time, held_bytes) in [(MS, 4 * MIB), (MS, 0)] {
            world.control.advance(time);
            assert_eq!(used(), 4 * MIB, "nobody has looked");
            let (_, end) = world.job.run(0, || ()).unwrap();
            assert!(end.adjusted.is_empty());
            assert_eq!(used(), held_bytes);
        }
    });
}
