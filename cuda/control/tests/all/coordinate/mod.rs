//! A coordinator over jobs that are slow, silent, disobedient or dead.

mod random;
mod turns;

use std::collections::VecDeque;
use std::time::Duration;

use larder_control::{
    Command, CoordinateError, Coordinator, CoordinatorConfig, JobId, JobPolicy, JobReport,
    PerfControl,
};
use larder_model::Random;

const CALM: Duration = Duration::from_secs(10);

pub(crate) fn coordinator(total_bytes: u64, step_bytes: u64) -> Coordinator {
    Coordinator::new(CoordinatorConfig {
        total_bytes,
        step_bytes,
        calm: CALM,
        turn: None,
    })
}

pub(crate) fn policy(priority: u32, floor_bytes: u64) -> JobPolicy {
    JobPolicy {
        name: format!("job {priority}"),
        priority,
        floor_bytes,
        perf_beside: PerfControl::new(20).unwrap(),
    }
}

fn seconds(time: u64) -> Duration {
    Duration::from_secs(time)
}

/// How a job treats a limit.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Manner {
    /// Sets the limit as given.
    Obeys,
    /// Sets at least what it holds, which is what AntMan does.
    Raises,
    /// Sets at most this limit.
    Cuts(u64),
    /// Reports anything.
    Lies,
}

/// A job that grants nothing above its limit.
#[derive(Clone, Debug)]
struct Job {
    id: JobId,
    policy: JobPolicy,
    manner: Manner,
    alive: bool,
    version: u64,
    limit: u64,
    held: u64,
    wanted: u64,
    /// The part of `wanted` that the job does not give back.
    guaranteed: Option<u64>,
    /// The version and the limit on their way to the job.
    sent: Option<(u64, u64)>,
    /// Reports on their way to the coordinator.
    reports: VecDeque<JobReport>,
}

impl Job {
    fn report(&self) -> JobReport {
        JobReport {
            version: self.version,
            limit_bytes: self.limit,
            held_bytes: self.held,
            deferred_bytes: self.held.saturating_sub(self.limit),
            wanted_bytes: self.wanted,
            guaranteed_bytes: self.guaranteed,
            ..JobReport::default()
        }
    }

    /// Returns the bytes that the job wants and does not give back.
    fn kept(&self) -> u64 {
        self.guaranteed.unwrap_or(u64::MAX).min(self.wanted)
    }

    fn read(&mut self) {
        if let Some((version, limit)) = self.sent.take() {
            self.version = version;
            self.limit = match self.manner {
                Manner::Raises => limit.max(self.held),
                Manner::Cuts(max) => limit.min(max),
                Manner::Obeys | Manner::Lies => limit,
            };
        }
    }

    /// Allocates up to the limit what the job wants, and frees the rest.
    fn live(&mut self) {
        self.held = self.wanted.min(self.limit);
    }

    /// Returns the bytes that the job may hold from now on without another command.
    fn may_hold(&self) -> u64 {
        let limit = if self.alive { self.limit } else { 0 };
        limit.max(self.held)
    }
}

/// The jobs of one device and their coordinator.
struct World {
    random: Random,
    coordinator: Coordinator,
    total: u64,
    jobs: Vec<Job>,
    now: Duration,
}

impl World {
    fn new(total: u64, step: u64) -> Self {
        Self {
            random: Random::new(0),
            coordinator: coordinator(total, step),
            total,
            jobs: Vec::new(),
            now: Duration::ZERO,
        }
    }

    /// Makes a world with a job for each priority and want.
    fn of(total: u64, step: u64, jobs: &[(u32, u64)]) -> Self {
        let mut world = Self::new(total, step);
        for (priority, wanted) in jobs {
            world.join(policy(*priority, 0), Manner::Obeys).unwrap();
            world.jobs.last_mut().unwrap().wanted = *wanted;
        }
        world
    }

    fn join(&mut self, policy: JobPolicy, manner: Manner) -> Result<(), CoordinateError> {
        self.jobs.push(Job {
            id: self.coordinator.join(policy.clone())?,
            policy,
            manner,
            alive: true,
            version: 0,
            limit: 0,
            held: 0,
            wanted: 0,
            guaranteed: None,
            sent: None,
            reports: VecDeque::new(),
        });
        Ok(())
    }

    fn report(&mut self, index: usize) -> Result<(), CoordinateError> {
        let job = &self.jobs[index];
        self.coordinator.report(job.id, job.report(), self.now)
    }

    /// Makes a job read its limit, adjust its memory, and report.
    fn answer(&mut self, index: usize) {
        self.jobs[index].read();
        self.jobs[index].live();
        self.report(index).unwrap();
    }

    /// Sends the coordinator's commands. Returns the limits in them, and the number of commands.
    fn decide(&mut self) -> (Vec<(usize, u64)>, usize) {
        let before = self.coordinator.charged_bytes();
        let commands = self.coordinator.decide(self.now);
        let charged = self.coordinator.charged_bytes();
        assert!(
            charged <= self.total.max(before),
            "{before} charged, now {charged} of {}",
            self.total
        );
        let mut limits = Vec::new();
        for command in &commands {
            let Command::SetLimit {
                job,
                limit_bytes,
                version,
            } = *command
            else {
                continue;
            };
            let index = self.jobs.iter().position(|other| other.id == job).unwrap();
            let job = &mut self.jobs[index];
            let lies = job.manner == Manner::Lies;
            assert!(limit_bytes <= self.total.max(job.limit) || lies);
            assert!(version > job.version);
            assert!(job.sent.is_none() || lies, "two under way: {job:?}");
            let floor = job.policy.floor_bytes;
            let honest = matches!(job.manner, Manner::Obeys | Manner::Raises);
            assert!(!honest || limit_bytes >= floor.min(job.limit), "{job:?}");
            job.sent = Some((version, limit_bytes));
            limits.push((index, limit_bytes));
        }
        (limits, commands.len())
    }

    /// Plays rounds in which all jobs answer, until no command is sent.
    fn settle(&mut self, time: Duration) {
        self.now = time;
        for _ in 0..200 {
            (0..self.jobs.len()).for_each(|index| self.answer(index));
            if self.decide().1 == 0 {
                return;
            }
        }
        panic!("no end of commands: {:?}", self.coordinator);
    }

    fn limits(&self) -> Vec<u64> {
        self.jobs.iter().map(|job| job.limit).collect()
    }
}

#[test]
fn memory_goes_from_one_job_to_another_only_after_it_has_gone() {
    let mut world = World::new(100, 1);
    world.join(policy(1, 10), Manner::Obeys).unwrap();
    world.jobs[0].wanted = 100;
    world.settle(seconds(0));
    assert_eq!((world.limits(), world.jobs[0].held), (vec![100], 100));
    world.join(policy(2, 0), Manner::Obeys).unwrap();
    world.jobs[1].wanted = 70;
    world.report(1).unwrap();
    assert_eq!(world.decide().0, [(0, 30)]);
    // The job has not reported since, so nothing is decided.
    assert_eq!(world.decide().0, []);
    // A report that is older than the limit changes nothing, whatever the job holds.
    world.jobs[0].held = 30;
    world.report(0).unwrap();
    assert_eq!(world.decide().0, []);
    // The limit is in force, but first 25 and then 5 bytes are held above it.
    world.jobs[0].read();
    world.jobs[0].held = 55;
    world.report(0).unwrap();
    assert_eq!(world.decide().0, [(1, 45)]);
    world.jobs[0].held = 35;
    world.report(0).unwrap();
    // The first raise is not confirmed yet.
    assert_eq!(world.decide().0, []);
    world.jobs[1].read();
    world.report(1).unwrap();
    assert_eq!(world.decide().0, [(1, 65)]);
    world.jobs[0].held = 30;
    world.report(0).unwrap();
    world.jobs[1].read();
    world.report(1).unwrap();
    assert_eq!(world.decide().0, [(1, 70)]);
}

#[test]
fn lent_memory_goes_to_whoever_wants_memory_for_itself_and_comes_back() {
    // A cache of high priority, of which 20 are guaranteed, and a job that wants nothing yet.
    let mut world = World::of(100, 1, &[(9, 90), (1, 0)]);
    world.jobs[0].guaranteed = Some(20);
    world.settle(seconds(0));
    assert_eq!(world.limits(), [90, 0]);
    world.jobs[1].wanted = 60;
    world.settle(seconds(1));
    assert_eq!(world.limits(), [40, 60]);
    // The cache needs more for itself.
    world.jobs[0].guaranteed = Some(70);
    world.settle(seconds(2));
    assert_eq!(world.limits(), [70, 30]);
    // A guarantee that is lowered counts after a while, as a want does.
    world.jobs[0].guaranteed = Some(20);
    world.settle(seconds(3));
    assert_eq!(world.limits(), [70, 30]);
    world.settle(seconds(3) + CALM);
    assert_eq!(world.limits(), [40, 60]);
    world.jobs[1].wanted = 0;
    for round in 1..3 {
        world.settle(seconds(4) + CALM * 2 * round);
    }
    assert_eq!(world.limits(), [90, 10]);
}

#[test]
fn a_report_of_a_version_before_the_confirmed_one_is_passed_over() {
    let mut world = World::of(100, 1, &[(1, 20)]);
    world.settle(seconds(0));
    let old = world.jobs[0].report();
    world.jobs[0].wanted = 70;
    world.settle(seconds(0));
    let id = world.jobs[0].id;
    assert_eq!(world.coordinator.charge_bytes(id), Some(70));
    world.coordinator.report(id, old, seconds(0)).unwrap();
    assert_eq!(world.coordinator.charge_bytes(id), Some(70));
}

#[test]
fn deferred_bytes_count_even_if_what_is_held_does_not_show_them() {
    let mut world = World::of(100, 1, &[(1, 50)]);
    world.report(0).unwrap();
    world.decide();
    let deferred = JobReport {
        version: 1,
        limit_bytes: 20,
        deferred_bytes: 15,
        ..world.jobs[0].report()
    };
    let id = world.jobs[0].id;
    world.coordinator.report(id, deferred, seconds(0)).unwrap();
    assert_eq!(world.coordinator.charge_bytes(id), Some(35));
}

#[test]
fn floors_are_promised_up_to_the_total_and_never_taken() {
    let mut world = World::new(100, 10);
    world.join(policy(1, 60), Manner::Obeys).unwrap();
    let refused = world.join(policy(9, 41), Manner::Obeys);
    let left_bytes = 40;
    assert_eq!(
        refused,
        Err(CoordinateError::FloorsExceedTotal { left_bytes })
    );
    world.join(policy(9, 40), Manner::Obeys).unwrap();
    world.jobs[1].wanted = 1000;
    world.settle(seconds(0));
    assert_eq!(world.limits(), [60, 40]);
}

#[test]
fn a_job_that_dies_counts_until_it_is_reported_gone_and_a_new_one_starts_with_nothing() {
    let mut world = World::of(100, 1, &[(1, 90)]);
    world.settle(seconds(0));
    world.join(policy(1, 0), Manner::Obeys).unwrap();
    world.jobs[1].wanted = 90;
    // The old job is silent. Both jobs have the same priority: the old one should give up 40 bytes and does not.
    for second in 1..100 {
        world.now = seconds(second);
        world.decide();
        world.answer(1);
    }
    assert_eq!(world.limits(), [90, 10]);
    let old = world.jobs.remove(0).id;
    assert_eq!(world.coordinator.charge_bytes(old), Some(90));
    world.coordinator.gone(old).unwrap();
    assert_eq!(world.coordinator.gone(old), Err(CoordinateError::Unknown));
    assert_eq!(world.coordinator.charge_bytes(old), None);
    world.settle(seconds(100));
    assert_eq!(world.limits(), [90]);
}

#[test]
fn wants_that_swing_faster_than_the_calm_move_no_limit() {
    let mut world = World::of(100, 10, &[(9, 80), (1, 1000)]);
    world.settle(seconds(0));
    assert_eq!(world.limits(), [80, 20]);
    for second in 1..=200 {
        // Far below 80 for nine of ten seconds, and below it by less than a step in the tenth.
        world.jobs[0].wanted = if second % 10 == 0 {
            78
        } else {
            20 + second % 7
        };
        world.now = seconds(second);
        (0..2).for_each(|index| world.answer(index));
        assert_eq!(world.decide().1, 0, "second {second}");
    }
    // A fall that lasts is believed, down to the most that was wanted in the meantime.
    world.jobs[0].wanted = 35;
    for second in [201, 210] {
        world.now = seconds(second);
        world.answer(0);
        assert_eq!(world.decide().1, 0);
    }
    world.settle(seconds(211));
    assert_eq!(world.limits(), [40, 60]);
}

#[test]
fn nobody_is_lowered_for_nobody() {
    let mut world = World::of(100, 1, &[(1, 90)]);
    world.settle(seconds(0));
    world.jobs[0].wanted = 5;
    for second in [1, 100] {
        world.settle(seconds(second));
    }
    assert_eq!(world.limits(), [90]);
}

#[test]
fn limits_move_by_whole_steps() {
    let mut world = World::of(98, 10, &[(1, 90)]);
    world.settle(seconds(0));
    world.jobs[0].wanted = 40;
    for second in [1, 20] {
        world.settle(seconds(second));
    }
    assert_eq!(world.limits(), [90]);
    world.join(policy(9, 0), Manner::Obeys).unwrap();
    world.jobs[1].wanted = 10;
    world.report(1).unwrap();
    // Eight bytes are free, fewer than a step. A whole step is taken for the two missing bytes.
    assert_eq!(world.decide().0, [(0, 80)]);
    world.answer(0);
    assert_eq!(world.decide().0, [(1, 10)]);
}

#[test]
fn jobs_that_come_with_more_than_there_is_are_lowered_until_it_fits() {
    let mut world = World::of(100, 10, &[(1, 60), (2, 70)]);
    for (index, bytes) in [60, u64::MAX].into_iter().enumerate() {
        world.jobs[index].limit = bytes;
        let above = world.report(index);
        assert_eq!(above, Err(CoordinateError::AboveLimit { bytes }));
    }
    world.settle(seconds(0));
    assert_eq!(world.limits(), [30, 70]);
    assert_eq!(world.coordinator.charged_bytes(), 100);
}

#[test]
fn a_refusal_is_believed_for_a_while_and_then_asked_again() {
    let mut world = World::of(100, 1, &[(1, 80), (9, 0)]);
    world.jobs[0].manner = Manner::Raises;
    world.settle(seconds(0));
    world.jobs[1].wanted = 90;
    // The first job reads and reports, but keeps what it holds.
    let asked = |world: &mut World, now| {
        world.now = now;
        let mut asked = 0;
        for _ in 0..10 {
            for index in 0..2 {
                world.jobs[index].read();
                world.report(index).unwrap();
            }
            asked += usize::from(world.decide().0.iter().any(|(index, _)| *index == 0));
        }
        asked
    };
    assert_eq!(
        (asked(&mut world, seconds(0)), world.limits()),
        (1, vec![80, 20])
    );
    // The job now holds less and still wants the same.
    world.jobs[0].held = 5;
    let before = CALM - Duration::from_nanos(1);
    assert_eq!(asked(&mut world, before), 0);
    assert_eq!((asked(&mut world, CALM), world.limits()), (1, vec![10, 90]));
}

#[test]
fn a_job_of_lower_priority_is_slowed_while_a_higher_one_wants_memory() {
    let mut world = World::of(100, 1, &[(1, 0), (2, 7)]);
    world.report(1).unwrap();
    let job = world.jobs[0].id;
    let slowed = |perf| Command::SetPerf { job, perf };
    let half = slowed(PerfControl::new(20).unwrap());
    assert!(world.coordinator.decide(seconds(0)).contains(&half));
    assert!(!world.coordinator.decide(seconds(0)).contains(&half));
    world.coordinator.gone(world.jobs[1].id).unwrap();
    let full = slowed(PerfControl::FULL);
    assert_eq!(world.coordinator.decide(seconds(0)), [full]);
}

#[test]
fn reports_that_cannot_be_are_refused_and_disobedience_stops_all_raises() {
    let mut world = World::of(100, 1, &[(1, 50), (2, 0)]);
    world.settle(seconds(0));
    let (id, report) = (world.jobs[0].id, world.jobs[0].report());
    let never = JobReport {
        version: report.version + 1,
        ..report
    };
    let error = CoordinateError::NeverSent {
        version: report.version,
    };
    assert_eq!(world.coordinator.report(id, never, seconds(0)), Err(error));
    world.jobs[0].held = 95;
    let error = CoordinateError::AboveLimit { bytes: 45 };
    assert_eq!(world.report(0), Err(error));
    world.jobs[1].wanted = 30;
    world.answer(1);
    assert!(world.decide().0.contains(&(1, 5)));
    let huge = JobReport {
        held_bytes: u64::MAX,
        limit_bytes: u64::MAX,
        deferred_bytes: 9,
        ..report
    };
    let _ = world.coordinator.report(id, huge, seconds(0));
    let _ = world.coordinator.decide(seconds(0));
    assert_eq!(world.coordinator.charged_bytes(), u64::MAX);
}

#[test]
fn a_coordinator_that_begins_while_jobs_run_goes_on_from_their_numbers() {
    let mut world = World::of(100, 1, &[(1, 0), (1, 0)]);
    for (round, wanted) in [[80, 30], [20, 90], [60, 40]].into_iter().enumerate() {
        (world.jobs[0].wanted, world.jobs[1].wanted) = (wanted[0], wanted[1]);
        (0..3).for_each(|calm| world.settle(CALM * (3 * round as u32 + calm)));
    }
    assert_eq!(
        world.jobs.iter().map(|job| job.held).collect::<Vec<_>>(),
        [60, 40]
    );
    // A new coordinator learns what the jobs hold before it decides.
    world.coordinator = coordinator(100, 1);
    world.join(policy(9, 0), Manner::Obeys).unwrap();
    for job in &mut world.jobs[..2] {
        job.id = world.coordinator.join(policy(1, 0)).unwrap();
    }
    world.jobs[2].wanted = 50;
    (0..3).for_each(|calm| world.settle(CALM * calm));
    assert_eq!(world.jobs[2].held, 50);
    // No coordinator has sent the highest version, since no version could follow it.
    let liar = world.coordinator.join(policy(1, 0)).unwrap();
    let report = JobReport {
        version: u64::MAX,
        ..world.jobs[0].report()
    };
    assert_eq!(
        world.coordinator.report(liar, report, seconds(0)),
        Err(CoordinateError::NeverSent { version: 0 })
    );
}
