//! A job that sleeps and wakes as its control file orders.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUstreamCaptureMode;
use larder_core::Block;
use larder_cuda::driver::StandIn;
use larder_cuda::job::Job;
use larder_cuda::job::larder_control::{Clock, Group, OnError, SleepState, SleepStatus, Waited};
use larder_cuda::{DeviceAllocError, DeviceAllocator, DeviceConfig};

use super::common::graph::Graph;
use super::common::{DEVICE_BYTES, MIB, alone, alone_and_clean, assert_clean, assert_filled, fill};
use super::{Folder, Rig, by_hand, plain, setup, until, used, with_thread};

const SECOND: Duration = Duration::from_secs(1);

struct Sleeper {
    control: &'static StandIn,
    rig: Arc<Rig>,
    block: Option<Block>,
}

impl Deref for Sleeper {
    type Target = Arc<Rig>;

    fn deref(&self) -> &Arc<Rig> {
        &self.rig
    }
}

impl Sleeper {
    fn new(control: &'static StandIn, config: DeviceConfig) -> Self {
        let folder = Folder::new();
        let job = by_hand(&folder);
        let rig = Rig::new(config, folder, job);
        let block = rig.memory.alloc(&rig.stream, 8 * MIB).unwrap();
        fill(&rig.stream, block.addr().get(), 8 * MIB, 7);
        Self {
            control,
            rig,
            block: Some(block),
        }
    }

    /// Orders the job to sleep in a run, and checks that it is awake again after `seconds`.
    #[track_caller]
    fn sleep_until(&self, seconds: u32) {
        let end = self.run(|| self.sleeps(true));
        assert_eq!(end.paused, Waited::Done);
        assert_eq!(self.clock.now(), seconds * SECOND);
        assert_eq!(self.rig.sleep(), SleepStatus::default());
        self.check();
    }

    #[track_caller]
    fn check(&self) {
        assert!(!self.memory.is_asleep());
        let block = self.block.as_ref().unwrap();
        assert_filled(&self.stream, block.addr().get(), 8 * MIB, 7);
    }

    #[track_caller]
    fn end(mut self) {
        self.check();
        let block = self.block.take().unwrap();
        self.memory.free(&self.stream, block).unwrap();
        let control = self.control;
        drop(self);
        assert_clean(control);
    }
}

impl Rig {
    /// Orders the job to sleep or to wake, and polls.
    fn sleeps(&self, asleep: bool) {
        self.tell(|file| file.asleep = Some(asleep));
    }

    /// Does the same once the clock is at `seconds`, on the thread that is then waiting.
    fn sleeps_at(self: &Arc<Self>, seconds: u32, asleep: bool) {
        self.at(seconds * SECOND, move |rig| rig.sleeps(asleep));
    }

    fn sleep(&self) -> SleepStatus {
        self.larder().sleep.unwrap()
    }
}

fn under_schedules(act: impl Fn(&'static StandIn)) {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..=2 {
        control.poison(true);
        match seed {
            0 => control.schedule_eagerly(),
            seed => control.schedule_deferred(seed),
        }
        act(control);
    }
    control.poison(false);
    control.schedule_eagerly();
}

#[test]
fn a_job_that_is_told_to_sleep_does_so_at_the_end_of_its_run_and_wakes_before_the_next_one() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, plain(64 * MIB));
        let seen = Arc::new(AtomicBool::new(false));
        let sees = Arc::clone(&seen);
        sleeper.at(SECOND, move |rig| {
            let status = rig.sleep();
            assert_eq!(status.state, SleepState::Asleep);
            assert_eq!((status.copied_bytes, status.wake_bytes), (8 * MIB, 8 * MIB));
            assert_eq!(status.problem, None);
            assert_eq!(rig.report().held_bytes, 0);
            assert!(rig.memory.is_asleep());
            assert_eq!(used(), 0);
            sees.store(true, Ordering::Relaxed);
        });
        sleeper.sleeps_at(2, false);
        sleeper.sleep_until(2);
        assert!(seen.load(Ordering::Relaxed));
        // Ordered to sleep again at once, the job first ends another run.
        sleeper.sleeps(true);
        sleeper.sleeps_at(3, false);
        drop(sleeper.run(|| assert_eq!(sleeper.clock.now(), 2 * SECOND)));
        assert_eq!(sleeper.clock.now(), 3 * SECOND);
        sleeper.check();
        drop(sleeper.run(|| ()));
        // Ordered to sleep between two runs, the job sleeps before the next run begins.
        sleeper.sleeps(true);
        sleeper.check();
        sleeper.sleeps_at(4, false);
        drop(sleeper.run(|| {
            assert_eq!(sleeper.clock.now(), 4 * SECOND);
            sleeper.check();
        }));
        // In a program's own loop, it sleeps at the end of a run.
        sleeper.sleeps(true);
        sleeper.sleeps_at(5, false);
        drop(sleeper.job.end_run(0, SECOND).unwrap());
        assert_eq!(sleeper.clock.now(), 5 * SECOND);
        sleeper.end();
    });
}

#[test]
fn a_wake_that_is_refused_says_what_is_missing_and_is_tried_again() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, plain(64 * MIB));
        let shrink = move |_: &Rig| control.set_memory(0, 4 * MIB).unwrap();
        let grow = move || control.set_memory(0, DEVICE_BYTES).unwrap();
        sleeper.at(SECOND, shrink);
        sleeper.sleeps_at(2, false);
        sleeper.at(3 * SECOND, move |rig| {
            let status = rig.sleep();
            assert_eq!(status.state, SleepState::Waking);
            assert_eq!(status.wake_bytes, 8 * MIB);
            let problem = status.problem.unwrap();
            assert!(problem.contains("no memory for what sleeps"), "{problem}");
            grow();
        });
        drop(sleeper.run(|| sleeper.sleeps(true)));
        assert!(sleeper.clock.now() >= 3 * SECOND);
        assert_eq!(sleeper.rig.sleep(), SleepStatus::default());
        sleeper.check();
        // Ordered to sleep again while it waits for memory, the job releases what it has already restored.
        sleeper.at(4 * SECOND, shrink);
        sleeper.sleeps_at(5, false);
        sleeper.sleeps_at(6, true);
        sleeper.at(7 * SECOND, move |rig| {
            assert_eq!(rig.sleep().state, SleepState::Asleep);
            assert_eq!(used(), 0);
            grow();
        });
        sleeper.sleeps_at(8, false);
        sleeper.sleep_until(8);
        sleeper.end();
    });
}

#[test]
fn a_job_about_to_wake_looks_once_more_whether_it_still_shall() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, plain(64 * MIB));
        sleeper.at(SECOND, |rig| {
            rig.sleeps(false);
            // The order to wake is withdrawn before the job has reported that it is waking.
            rig.folder.tell(|file| file.asleep = Some(true));
        });
        sleeper.at(2 * SECOND, |rig| {
            assert!(rig.memory.is_asleep());
            assert_eq!(rig.sleep().state, SleepState::Asleep);
        });
        sleeper.sleeps_at(3, false);
        sleeper.sleep_until(3);
        sleeper.end();
    });
}

#[test]
fn a_job_that_cannot_sleep_says_why_goes_on_and_sleeps_when_it_can() {
    under_schedules(|control| {
        let mut config = plain(64 * MIB);
        config.shareable = true;
        let sleeper = Sleeper::new(control, config);
        let block = sleeper.block.as_ref().unwrap();
        let exported = sleeper.memory.export(block).unwrap();
        drop(sleeper.run(|| sleeper.sleeps(true)));
        sleeper.check();
        let status = sleeper.rig.sleep();
        assert_eq!(status.state, SleepState::Awake);
        let problem = status.problem.unwrap();
        assert!(problem.contains("export"), "{problem}");
        assert_eq!(sleeper.report().sleep, None);
        drop(exported);
        // The job does not try again at once, because each try waits for all work.
        drop(sleeper.run(|| sleeper.check()));
        sleeper.clock.advance(SECOND);
        sleeper.sleeps_at(2, false);
        drop(sleeper.run(|| ()));
        assert_eq!(sleeper.clock.now(), 2 * SECOND);
        assert_eq!(sleeper.rig.sleep(), SleepStatus::default());
        sleeper.check();
        // A job does not sleep during a capture either.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let stream = sleeper.context.cudarc().new_stream().unwrap();
        sleeper.memory.add_stream(&stream).unwrap();
        stream.begin_capture(mode).unwrap();
        drop(sleeper.run(|| sleeper.sleeps(true)));
        let problem = sleeper.rig.sleep().problem.unwrap();
        assert!(problem.contains("being captured"), "{problem}");
        sleeper.sleeps(false);
        let problem = sleeper.rig.sleep().problem;
        assert_eq!(problem, None, "nobody asks any more");
        drop(Graph::end_capture(&stream).unwrap());
        drop(stream);
        sleeper.end();
    });
}

#[test]
fn a_cancel_wakes_or_lets_go_and_what_sleeps_is_the_programs_then() {
    under_schedules(|control| {
        for refused in [false, true] {
            let sleeper = Sleeper::new(control, plain(64 * MIB));
            sleeper.at(SECOND, move |rig| {
                if refused {
                    control.set_memory(0, 4 * MIB).unwrap();
                }
                rig.job.cancel();
            });
            let end = sleeper.run(|| sleeper.sleeps(true));
            assert_eq!(end.paused, Waited::Cancelled);
            assert_eq!(sleeper.clock.now(), SECOND);
            assert_eq!(sleeper.memory.is_asleep(), refused);
            if refused {
                // Runs begin although the allocator is asleep.
                drop(sleeper.run(|| {
                    let alloc = sleeper.memory.alloc(&sleeper.stream, MIB);
                    assert!(matches!(alloc, Err(DeviceAllocError::Asleep)), "{alloc:?}");
                }));
                control.set_memory(0, DEVICE_BYTES).unwrap();
                sleeper.memory.wake().unwrap();
            }
            sleeper.end();
        }
    });
}

#[test]
fn time_asleep_is_no_work_also_behind_a_run_whose_action_failed() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, plain(64 * MIB));
        let half = |asleep| {
            sleeper.tell(|file| (file.perf_control, file.asleep) = (Some(50), Some(asleep)));
        };
        half(false);
        let fails = AtomicBool::new(true);
        let fail = move |_: &larder_cuda::job::Run| match fails.swap(false, Ordering::Relaxed) {
            true => Err("no".into()),
            false => Ok(()),
        };
        let actions = sleeper.job.actions();
        actions.add(Group::Post, 0, "fails", OnError::Fail, fail);
        let work = || sleeper.clock.advance(SECOND);
        assert!(sleeper.job.run(0, work).is_err());
        half(true);
        sleeper.sleeps_at(100, false);
        drop(sleeper.run(work));
        // Each run works for a second and owes a pause of a second. The first pause may pass during the sleep.
        let report = sleeper.job.pacer().report();
        assert_eq!(report.busy, 2 * SECOND);
        let now = sleeper.clock.now();
        assert!(now <= 103 * SECOND, "{now:?}");
        sleeper.end();
    });
}

#[test]
fn a_job_that_is_half_asleep_goes_on_to_sleep_when_it_can() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, plain(64 * MIB));
        let mut config = plain(64 * MIB);
        config.shareable = true;
        let other = DeviceAllocator::with_config(&sleeper.context, config).unwrap();
        sleeper.job.manage(&other).unwrap();
        let block = other.alloc(&sleeper.stream, 2 * MIB).unwrap();
        let exported = other.export(&block).unwrap();
        // One allocator sleeps and the other cannot. On the smaller device, the first has no room to wake.
        control.set_memory(0, 8 * MIB).unwrap();
        sleeper.at(SECOND, move |rig| {
            assert_eq!(rig.sleep().state, SleepState::Waking);
            drop(exported);
        });
        let second = other.clone();
        sleeper.at(2 * SECOND, move |rig| {
            assert_eq!(rig.sleep().state, SleepState::Asleep);
            assert!(rig.memory.is_asleep() && second.is_asleep());
            assert_eq!(used(), 0);
            control.set_memory(0, DEVICE_BYTES).unwrap();
        });
        sleeper.sleeps_at(3, false);
        sleeper.sleep_until(3);
        other.free(&sleeper.stream, block).unwrap();
        drop(other);
        sleeper.end();
    });
}

#[test]
fn runs_of_many_threads_never_meet_an_allocator_that_sleeps() {
    alone_and_clean(|_| {
        let folder = Folder::new();
        // Every run is paced.
        folder.order(None, None, 80);
        let job = Job::new(with_thread(&folder)).unwrap();
        let (context, memory, _) = setup(64 * MIB);
        job.manage(&memory).unwrap();
        let (stop, stops) = (AtomicBool::new(false), AtomicBool::new(false));
        let round = Barrier::new(3);
        thread::scope(|scope| {
            for value in 1..4 {
                let (context, memory, job) = (&context, &memory, &job);
                let (stop, stops, round) = (&stop, &stops, &round);
                scope.spawn(move || {
                    let stream = context.cudarc().new_stream().unwrap();
                    let ran = job.run(0, || {
                        let kept = memory.alloc(&stream, 2 * MIB).unwrap();
                        fill(&stream, kept.addr().get(), 2 * MIB, value);
                        kept
                    });
                    let kept = ran.unwrap().0;
                    while !stops.load(Ordering::Relaxed) {
                        let work = || {
                            let block = memory.alloc(&stream, MIB).unwrap();
                            fill(&stream, block.addr().get(), MIB, 9);
                            assert_filled(&stream, kept.addr().get(), 4096, value);
                            memory.free(&stream, block).unwrap();
                        };
                        let ran = match value {
                            1 => job.run_on(&stream, 0, work),
                            _ => job.run(0, work),
                        };
                        drop(ran.unwrap());
                        // The thread whose run ends last puts the job to sleep.
                        if round.wait().is_leader() {
                            stops.store(stop.load(Ordering::Relaxed), Ordering::Relaxed);
                        }
                        round.wait();
                    }
                    memory.free(&stream, kept).unwrap();
                });
            }
            let state = || {
                folder
                    .has_status()
                    .then(|| folder.larder().sleep.unwrap().state)
            };
            for _ in 0..5 {
                folder.tell(|file| file.asleep = Some(true));
                until(|| state() == Some(SleepState::Asleep));
                assert!(memory.is_asleep());
                folder.tell(|file| file.asleep = Some(false));
                until(|| state() == Some(SleepState::Awake));
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
