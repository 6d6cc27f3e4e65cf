//! A job that sleeps and wakes as its control file says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use larder_core::Block;
use larder_cuda::driver::StandIn;
use larder_cuda::job::Job;
use larder_cuda::job::larder_control::{
    Clock, ControlFile, Group, ManualClock, OnError, SleepState, SleepStatus, Waited,
};
use larder_cuda::{DeviceAllocError, DeviceAllocator, DeviceConfig};

use super::common::{DEVICE_BYTES, MIB, alone, alone_and_clean, assert_clean, assert_filled, fill};
use super::endings::{until, with_thread};
use super::{Folder, by_hand, gpu, plain, setup};

const SECOND: Duration = Duration::from_secs(1);

/// A job that is looked at by hand, with a block in its memory.
struct Sleeper {
    control: &'static StandIn,
    folder: Arc<Folder>,
    clock: Arc<ManualClock>,
    job: Arc<Job>,
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    block: Option<Block>,
}

impl Sleeper {
    fn new(control: &'static StandIn, name: &str, config: DeviceConfig) -> Self {
        let folder = Arc::new(Folder::new(name));
        let (clock, job) = super::job(by_hand(&folder));
        let (context, _, stream) = setup(64 * MIB);
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        job.manage(&memory).unwrap();
        let block = memory.alloc(&stream, 8 * MIB).unwrap();
        fill(&stream, block.addr().get(), 8 * MIB, 7);
        Self {
            control,
            folder,
            clock,
            job: Arc::new(job),
            memory,
            stream,
            block: Some(block),
        }
    }

    /// After so many seconds, in the thread that waits then: says so in the control file and has the job look.
    fn at(&self, seconds: u32, asleep: bool) {
        let (job, folder) = (Arc::clone(&self.job), Arc::clone(&self.folder));
        self.clock.at(seconds * SECOND, move || {
            tell(&folder, asleep);
            job.poll();
        });
    }

    fn tell(&self, asleep: bool) {
        tell(&self.folder, asleep);
        self.job.poll();
    }

    fn status(&self) -> SleepStatus {
        status(&self.folder)
    }

    #[track_caller]
    fn check(&self) {
        assert!(!self.memory.is_asleep());
        let block = self.block.as_ref().unwrap();
        assert_filled(&self.stream, block.addr().get(), 8 * MIB, 7);
    }

    fn end(mut self) {
        self.memory
            .free(&self.stream, self.block.take().unwrap())
            .unwrap();
        let control = self.control;
        drop(self);
        assert_clean(control);
    }
}

fn tell(folder: &Folder, asleep: bool) {
    let mut file = ControlFile::default();
    file.asleep = Some(asleep);
    folder.say(&file.to_text());
}

fn status(folder: &Folder) -> SleepStatus {
    folder.status().larder.unwrap().sleep.unwrap()
}

/// Eagerly, and under some seeds.
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
        let sleeper = Sleeper::new(control, "asleep", plain(64 * MIB));
        let seen = Arc::new(AtomicBool::new(false));
        let (memory, folder) = (sleeper.memory.clone(), Arc::clone(&sleeper.folder));
        let sees = Arc::clone(&seen);
        sleeper.clock.at(SECOND, move || {
            let status = status(&folder);
            assert_eq!(status.state, SleepState::Asleep);
            assert_eq!((status.copied_bytes, status.wake_bytes), (8 * MIB, 8 * MIB));
            assert_eq!(status.problem, None);
            assert_eq!(folder.status().larder.unwrap().gpus[&gpu()].held_bytes, 0);
            assert!(memory.is_asleep());
            assert_eq!(control.used(0), 0);
            sees.store(true, Ordering::Relaxed);
        });
        sleeper.at(2, false);
        let ran = sleeper.job.run(0, || {
            sleeper.tell(true);
            sleeper.check();
        });
        assert_eq!(ran.unwrap().1.paused, Waited::Done);
        assert!(seen.load(Ordering::Relaxed));
        assert_eq!(sleeper.clock.now(), 2 * SECOND);
        assert_eq!(sleeper.status(), SleepStatus::default());
        sleeper.check();
        // Told between two runs, it sleeps before the next one begins.
        sleeper.tell(true);
        sleeper.check();
        sleeper.at(3, false);
        let ran = sleeper.job.run(0, || {
            assert_eq!(sleeper.clock.now(), 3 * SECOND);
            sleeper.check();
        });
        drop(ran.unwrap());
        // So does one in a loop of the program's own, at the end of a run.
        sleeper.tell(true);
        sleeper.at(4, false);
        drop(sleeper.job.end_run(0, SECOND).unwrap());
        assert_eq!(sleeper.clock.now(), 4 * SECOND);
        sleeper.check();
        sleeper.end();
    });
}

#[test]
fn a_wake_that_is_refused_says_what_is_missing_and_is_tried_again() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, "refused", plain(64 * MIB));
        sleeper
            .clock
            .at(SECOND, move || control.set_memory(0, 4 * MIB).unwrap());
        sleeper.at(2, false);
        let folder = Arc::clone(&sleeper.folder);
        sleeper.clock.at(3 * SECOND, move || {
            let status = status(&folder);
            assert_eq!(status.state, SleepState::Waking);
            assert_eq!(status.wake_bytes, 8 * MIB);
            let problem = status.problem.unwrap();
            assert!(problem.contains("no memory for what sleeps"), "{problem}");
            control.set_memory(0, DEVICE_BYTES).unwrap();
        });
        let ran = sleeper.job.run(0, || sleeper.tell(true));
        drop(ran.unwrap());
        assert!(sleeper.clock.now() >= 3 * SECOND);
        assert_eq!(sleeper.status(), SleepStatus::default());
        sleeper.check();
        // Told to sleep again while it waits for memory, it gives up what is back of it.
        sleeper
            .clock
            .at(4 * SECOND, move || control.set_memory(0, 4 * MIB).unwrap());
        sleeper.at(5, false);
        sleeper.at(6, true);
        let folder = Arc::clone(&sleeper.folder);
        sleeper.clock.at(7 * SECOND, move || {
            assert_eq!(status(&folder).state, SleepState::Asleep);
            assert_eq!(control.used(0), 0);
            control.set_memory(0, DEVICE_BYTES).unwrap();
        });
        sleeper.at(8, false);
        let ran = sleeper.job.run(0, || sleeper.tell(true));
        drop(ran.unwrap());
        assert_eq!(sleeper.clock.now(), 8 * SECOND);
        sleeper.check();
        sleeper.end();
    });
}

#[test]
fn a_job_about_to_wake_looks_once_more_whether_it_still_shall() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, "once_more", plain(64 * MIB));
        let (job, folder) = (Arc::clone(&sleeper.job), Arc::clone(&sleeper.folder));
        sleeper.clock.at(SECOND, move || {
            tell(&folder, false);
            job.poll();
            // The order is taken back before the job has said that it wakes.
            tell(&folder, true);
        });
        let (memory, folder) = (sleeper.memory.clone(), Arc::clone(&sleeper.folder));
        sleeper.clock.at(2 * SECOND, move || {
            assert!(memory.is_asleep());
            assert_eq!(status(&folder).state, SleepState::Asleep);
        });
        sleeper.at(3, false);
        let ran = sleeper.job.run(0, || sleeper.tell(true));
        drop(ran.unwrap());
        assert_eq!(sleeper.clock.now(), 3 * SECOND);
        sleeper.check();
        sleeper.end();
    });
}

#[test]
fn a_job_that_cannot_sleep_says_why_goes_on_and_sleeps_when_it_can() {
    under_schedules(|control| {
        let mut config = plain(64 * MIB);
        config.shareable = true;
        let sleeper = Sleeper::new(control, "cannot", config);
        let exported = sleeper
            .memory
            .export(sleeper.block.as_ref().unwrap())
            .unwrap();
        let ran = sleeper.job.run(0, || sleeper.tell(true));
        drop(ran.unwrap());
        sleeper.check();
        let status = sleeper.status();
        assert_eq!(status.state, SleepState::Awake);
        let problem = status.problem.unwrap();
        assert!(problem.contains("export"), "{problem}");
        assert_eq!(sleeper.folder.status().report(gpu()).unwrap().sleep, None);
        drop(exported);
        // Not at once: each try waits for all work.
        drop(sleeper.job.run(0, || sleeper.check()).unwrap());
        sleeper.clock.advance(SECOND);
        sleeper.at(2, false);
        drop(sleeper.job.run(0, || ()).unwrap());
        assert_eq!(sleeper.clock.now(), 2 * SECOND);
        assert_eq!(sleeper.status(), SleepStatus::default());
        sleeper.check();
        // A capture under way.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let stream = sleeper.memory.context().cudarc().new_stream().unwrap();
        sleeper.memory.add_stream(&stream).unwrap();
        stream.begin_capture(mode).unwrap();
        let ran = sleeper.job.run(0, || sleeper.tell(true));
        drop(ran.unwrap());
        let problem = sleeper.status().problem.unwrap();
        assert!(problem.contains("captures"), "{problem}");
        sleeper.tell(false);
        assert_eq!(sleeper.status().problem, None, "nobody asks any more");
        drop(
            stream
                .end_capture(
                    CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
                )
                .unwrap(),
        );
        drop(stream);
        sleeper.check();
        sleeper.end();
    });
}

#[test]
fn a_cancel_wakes_or_lets_go_and_what_sleeps_is_the_programs_then() {
    under_schedules(|control| {
        for refused in [false, true] {
            let sleeper = Sleeper::new(control, "cancelled", plain(64 * MIB));
            let job = Arc::clone(&sleeper.job);
            sleeper.clock.at(SECOND, move || {
                if refused {
                    control.set_memory(0, 4 * MIB).unwrap();
                }
                job.cancel();
            });
            let ran = sleeper.job.run(0, || sleeper.tell(true));
            assert_eq!(ran.unwrap().1.paused, Waited::Cancelled);
            assert_eq!(sleeper.clock.now(), SECOND);
            assert_eq!(sleeper.memory.is_asleep(), refused);
            if refused {
                // Runs begin all the same.
                let ran = sleeper
                    .job
                    .run(0, || sleeper.memory.alloc(&sleeper.stream, MIB));
                let (alloc, _) = ran.unwrap();
                assert!(matches!(alloc, Err(DeviceAllocError::Asleep)), "{alloc:?}");
                control.set_memory(0, DEVICE_BYTES).unwrap();
                sleeper.memory.wake().unwrap();
            }
            sleeper.check();
            sleeper.end();
        }
    });
}

#[test]
fn time_asleep_is_no_work_also_behind_a_run_whose_action_failed() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, "no_work", plain(64 * MIB));
        let half = |asleep| {
            let mut file = ControlFile::default();
            (file.perf_control, file.asleep) = (Some(50), Some(asleep));
            sleeper.folder.say(&file.to_text());
            sleeper.job.poll();
        };
        half(false);
        let fails = Arc::new(AtomicBool::new(true));
        let once = Arc::clone(&fails);
        let fail = move |_: &larder_cuda::job::Run| match once.swap(false, Ordering::Relaxed) {
            true => Err("no".into()),
            false => Ok(()),
        };
        let actions = sleeper.job.actions();
        actions.add(Group::Post, 0, "fails", OnError::Fail, fail);
        let work = || sleeper.clock.advance(SECOND);
        assert!(sleeper.job.run(0, work).is_err());
        half(true);
        sleeper.at(100, false);
        drop(sleeper.job.run(0, work).unwrap());
        // A second of work each, and as much again of pauses; the first one's may have passed asleep.
        let report = sleeper.job.pacer().report();
        assert_eq!(report.busy, 2 * SECOND);
        let now = sleeper.clock.now();
        assert!(now <= 103 * SECOND, "{now:?}");
        sleeper.check();
        sleeper.end();
    });
}

#[test]
fn a_job_that_is_half_asleep_goes_on_to_sleep_when_it_can() {
    under_schedules(|control| {
        let sleeper = Sleeper::new(control, "half_asleep", plain(64 * MIB));
        let mut config = plain(64 * MIB);
        config.shareable = true;
        let other = DeviceAllocator::with_config(sleeper.memory.context(), config).unwrap();
        sleeper.job.manage(&other).unwrap();
        let block = other.alloc(&sleeper.stream, 2 * MIB).unwrap();
        let exported = other.export(&block).unwrap();
        // One sleeps, the other one cannot, and somebody takes the memory of the first meanwhile.
        control.set_memory(0, 8 * MIB).unwrap();
        let folder = Arc::clone(&sleeper.folder);
        sleeper.clock.at(SECOND, move || {
            assert_eq!(status(&folder).state, SleepState::Waking);
            drop(exported);
        });
        let (memories, folder) = (
            [sleeper.memory.clone(), other.clone()],
            Arc::clone(&sleeper.folder),
        );
        sleeper.clock.at(2 * SECOND, move || {
            assert_eq!(status(&folder).state, SleepState::Asleep);
            assert!(memories.iter().all(DeviceAllocator::is_asleep));
            assert_eq!(control.used(0), 0);
            control.set_memory(0, DEVICE_BYTES).unwrap();
        });
        sleeper.at(3, false);
        drop(sleeper.job.run(0, || sleeper.tell(true)).unwrap());
        assert_eq!(sleeper.clock.now(), 3 * SECOND);
        sleeper.check();
        other.free(&sleeper.stream, block).unwrap();
        drop(other);
        sleeper.end();
    });
}

#[test]
fn runs_of_many_threads_never_meet_an_allocator_that_sleeps() {
    alone_and_clean(|_| {
        let folder = Folder::new("threads_asleep");
        // Every run is paced.
        folder.order(None, None, Some(80));
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
                        // One has queued runs.
                        let ran = match value {
                            1 => job.run_on(&stream, 0, work),
                            _ => job.run(0, work),
                        };
                        drop(ran.unwrap());
                        // Whoever ends last falls asleep.
                        if round.wait().is_leader() {
                            stops.store(stop.load(Ordering::Relaxed), Ordering::Relaxed);
                        }
                        round.wait();
                    }
                    memory.free(&stream, kept).unwrap();
                });
            }
            for _ in 0..5 {
                tell(&folder, true);
                until(|| folder.has_status() && status(&folder).state == SleepState::Asleep);
                assert!(memory.is_asleep());
                tell(&folder, false);
                until(|| status(&folder).state == SleepState::Awake);
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop((job, memory, context));
    });
}
