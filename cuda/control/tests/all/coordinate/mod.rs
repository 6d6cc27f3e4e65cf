//! A coordinator over jobs that are slow, silent, disobedient or dead.

mod random;
mod turns;

use std::collections::VecDeque;
use std::time::Duration;

use larder_control::{
    Command, CoordinateError, Coordinator, CoordinatorConfig, JobId, JobPolicy, JobReport,
    PerfControl,
};

pub(crate) const CALM: Duration = Duration::from_secs(10);

pub(crate) fn coordinator(total_bytes: u64, step_bytes: u64) -> Coordinator {
    Coordinator::new(CoordinatorConfig {
        total_bytes,
        step_bytes,
        calm: CALM,
        turn: None,
    })
}

fn policy(priority: u32, floor_bytes: u64) -> JobPolicy {
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

/// A job's side, as it should be: grants nothing above its limit, gives back when it can.
#[derive(Clone, Debug)]
struct Process {
    id: JobId,
    policy: JobPolicy,
    alive: bool,
    version: u64,
    limit: u64,
    held: u64,
    wanted: u64,
    sent: VecDeque<(u64, u64)>,
    reports: VecDeque<JobReport>,
}

impl Process {
    fn new(coordinator: &mut Coordinator, policy: JobPolicy) -> Result<Self, CoordinateError> {
        Ok(Self {
            id: coordinator.join(policy.clone())?,
            policy,
            alive: true,
            version: 0,
            limit: 0,
            held: 0,
            wanted: 0,
            sent: VecDeque::new(),
            reports: VecDeque::new(),
        })
    }

    fn report(&self) -> JobReport {
        JobReport {
            version: self.version,
            limit_bytes: self.limit,
            held_bytes: self.held,
            deferred_bytes: self.held.saturating_sub(self.limit),
            wanted_bytes: self.wanted,
            ..JobReport::default()
        }
    }

    fn obey(&mut self) {
        if let Some((version, limit)) = self.sent.pop_front() {
            (self.version, self.limit) = (version, limit);
        }
    }

    /// What it may hold from now on without another command.
    fn may_hold(&self) -> u64 {
        let limit = if self.alive { self.limit } else { 0 };
        limit.max(self.held)
    }
}

/// All at once: obey, hold what is wanted and allowed, report.
fn answer(coordinator: &mut Coordinator, process: &mut Process, now: Duration) {
    while !process.sent.is_empty() {
        process.obey();
    }
    process.held = process.wanted.min(process.limit);
    coordinator
        .report(process.id, process.report(), now)
        .unwrap();
}

fn send(processes: &mut [Process], commands: &[Command]) {
    for command in commands {
        if let Command::SetLimit {
            job,
            limit_bytes,
            version,
        } = *command
        {
            let process = processes
                .iter_mut()
                .find(|process| process.id == job)
                .unwrap();
            process.sent.push_back((version, limit_bytes));
        }
    }
}

/// Rounds until no command is sent.
fn converge(coordinator: &mut Coordinator, processes: &mut [Process], now: Duration) {
    for _ in 0..50 {
        for process in processes.iter_mut() {
            answer(coordinator, process, now);
        }
        let commands = coordinator.decide(now);
        send(processes, &commands);
        if commands.is_empty() {
            return;
        }
    }
    panic!("no end of commands: {coordinator:?}");
}

#[test]
fn memory_goes_from_one_job_to_another_only_after_it_has_gone() {
    let mut coordinator = coordinator(100, 1);
    let mut low = Process::new(&mut coordinator, policy(1, 10)).unwrap();
    low.wanted = 100;
    let both = &mut [low];
    converge(&mut coordinator, both, seconds(0));
    let [mut low] = both.clone();
    assert_eq!((low.limit, low.held), (100, 100));

    let high = Process::new(&mut coordinator, policy(2, 0)).unwrap();
    let wants = JobReport {
        wanted_bytes: 70,
        ..high.report()
    };
    coordinator.report(high.id, wants, seconds(1)).unwrap();
    let limits = |commands: Vec<Command>| -> Vec<_> {
        let limit = |command| match command {
            Command::SetLimit {
                job, limit_bytes, ..
            } => Some((job, limit_bytes)),
            _ => None,
        };
        commands.into_iter().filter_map(limit).collect()
    };
    assert_eq!(limits(coordinator.decide(seconds(1))), [(low.id, 30)]);
    // Nothing is known of it: nothing.
    assert_eq!(limits(coordinator.decide(seconds(1))), []);
    // A report that is older than the limit says nothing either, whatever it holds.
    low.held = 30;
    coordinator
        .report(low.id, low.report(), seconds(1))
        .unwrap();
    assert_eq!(limits(coordinator.decide(seconds(1))), []);
    // In force, but 25 and then 5 bytes are above it.
    (low.version, low.limit, low.held) = (low.version + 1, 30, 55);
    coordinator
        .report(low.id, low.report(), seconds(1))
        .unwrap();
    assert_eq!(limits(coordinator.decide(seconds(1))), [(high.id, 45)]);
    low.held = 35;
    coordinator
        .report(low.id, low.report(), seconds(1))
        .unwrap();
    // The first raise is not confirmed yet.
    assert_eq!(limits(coordinator.decide(seconds(1))), []);
    let mut high_report = JobReport {
        version: 1,
        limit_bytes: 45,
        ..wants
    };
    coordinator
        .report(high.id, high_report, seconds(1))
        .unwrap();
    assert_eq!(limits(coordinator.decide(seconds(1))), [(high.id, 65)]);
    low.held = 30;
    coordinator
        .report(low.id, low.report(), seconds(1))
        .unwrap();
    (high_report.version, high_report.limit_bytes) = (2, 65);
    coordinator
        .report(high.id, high_report, seconds(1))
        .unwrap();
    assert_eq!(limits(coordinator.decide(seconds(1))), [(high.id, 70)]);
}

#[test]
fn a_report_of_a_version_before_the_confirmed_one_is_passed_over() {
    let mut coordinator = coordinator(100, 1);
    let mut jobs = vec![Process::new(&mut coordinator, policy(1, 0)).unwrap()];
    jobs[0].wanted = 20;
    converge(&mut coordinator, &mut jobs, seconds(0));
    let old = jobs[0].report();
    jobs[0].wanted = 70;
    converge(&mut coordinator, &mut jobs, seconds(0));
    assert_eq!(coordinator.charge_bytes(jobs[0].id), Some(70));
    coordinator.report(jobs[0].id, old, seconds(0)).unwrap();
    assert_eq!(coordinator.charge_bytes(jobs[0].id), Some(70));
}

#[test]
fn deferred_bytes_count_even_if_what_is_held_does_not_show_them() {
    let mut coordinator = coordinator(100, 1);
    let job = coordinator.join(policy(1, 0)).unwrap();
    let report = JobReport {
        version: 0,
        limit_bytes: 0,
        held_bytes: 0,
        deferred_bytes: 0,
        wanted_bytes: 50,
        ..JobReport::default()
    };
    coordinator.report(job, report, seconds(0)).unwrap();
    let _ = coordinator.decide(seconds(0));
    let deferred = JobReport {
        version: 1,
        limit_bytes: 20,
        deferred_bytes: 15,
        ..report
    };
    coordinator.report(job, deferred, seconds(0)).unwrap();
    assert_eq!(coordinator.charge_bytes(job), Some(35));
}

#[test]
fn floors_are_promised_up_to_the_total_and_never_taken() {
    let mut coordinator = coordinator(100, 10);
    let mut jobs = vec![Process::new(&mut coordinator, policy(1, 60)).unwrap()];
    let refused = coordinator.join(policy(9, 41)).unwrap_err();
    assert_eq!(
        refused,
        CoordinateError::FloorsExceedTotal { left_bytes: 40 }
    );
    jobs.push(Process::new(&mut coordinator, policy(9, 40)).unwrap());
    jobs[1].wanted = 1000;
    converge(&mut coordinator, &mut jobs, seconds(0));
    assert_eq!((jobs[0].limit, jobs[1].limit), (60, 40));
}

#[test]
fn a_job_that_dies_counts_until_it_is_reported_gone_and_a_new_one_starts_with_nothing() {
    let mut coordinator = coordinator(100, 1);
    let mut jobs = vec![Process::new(&mut coordinator, policy(1, 0)).unwrap()];
    jobs[0].wanted = 90;
    converge(&mut coordinator, &mut jobs, seconds(0));
    let old = jobs.remove(0);
    jobs.push(Process::new(&mut coordinator, policy(1, 0)).unwrap());
    jobs[0].wanted = 90;
    // The old one is silent. The two are equals: it is to give up 40, and does not.
    for second in 1..100 {
        let commands = coordinator.decide(seconds(second));
        let for_new: Vec<_> = commands
            .into_iter()
            .filter(|command| !matches!(command, Command::SetLimit { job, .. } if *job == old.id))
            .collect();
        send(&mut jobs, &for_new);
        answer(&mut coordinator, &mut jobs[0], seconds(second));
    }
    assert_eq!(jobs[0].limit, 10);
    assert_eq!(coordinator.charge_bytes(old.id), Some(90));
    coordinator.gone(old.id).unwrap();
    assert_eq!(coordinator.gone(old.id), Err(CoordinateError::Unknown));
    assert_eq!(coordinator.charge_bytes(old.id), None);
    converge(&mut coordinator, &mut jobs, seconds(100));
    assert_eq!(jobs[0].limit, 90);
}

#[test]
fn wants_that_swing_faster_than_the_calm_move_no_limit() {
    let mut coordinator = coordinator(100, 10);
    let mut jobs = Vec::new();
    for priority in [9, 1] {
        jobs.push(Process::new(&mut coordinator, policy(priority, 0)).unwrap());
    }
    (jobs[0].wanted, jobs[1].wanted) = (80, 1000);
    converge(&mut coordinator, &mut jobs, seconds(0));
    assert_eq!((jobs[0].limit, jobs[1].limit), (80, 20));
    for second in 1..=200 {
        // Below 80 for nine seconds of ten, and above by less than a step.
        jobs[0].wanted = if second % 10 == 0 {
            78
        } else {
            20 + second % 7
        };
        for job in &mut jobs {
            answer(&mut coordinator, job, seconds(second));
        }
        assert_eq!(coordinator.decide(seconds(second)), [], "second {second}");
    }
    // A fall that lasts is believed, at the most that was wanted meanwhile.
    jobs[0].wanted = 35;
    for second in [201, 210] {
        answer(&mut coordinator, &mut jobs[0], seconds(second));
        assert_eq!(coordinator.decide(seconds(second)), []);
    }
    converge(&mut coordinator, &mut jobs, seconds(211));
    assert_eq!((jobs[0].limit, jobs[1].limit), (40, 60));
}

#[test]
fn nobody_is_lowered_for_nobody() {
    let mut coordinator = coordinator(100, 1);
    let mut jobs = vec![Process::new(&mut coordinator, policy(1, 0)).unwrap()];
    jobs[0].wanted = 90;
    converge(&mut coordinator, &mut jobs, seconds(0));
    jobs[0].wanted = 5;
    converge(&mut coordinator, &mut jobs, seconds(1));
    converge(&mut coordinator, &mut jobs, seconds(100));
    assert_eq!(jobs[0].limit, 90);
}

#[test]
fn jobs_that_come_with_more_than_there_is_are_lowered_until_it_fits() {
    let mut coordinator = coordinator(100, 10);
    let mut jobs = Vec::new();
    for (priority, limit) in [(1, 60), (2, u64::MAX)] {
        let mut process = Process::new(&mut coordinator, policy(priority, 0)).unwrap();
        process.limit = limit;
        process.wanted = limit.min(70);
        let above = coordinator.report(process.id, process.report(), seconds(0));
        assert_eq!(
            above,
            Err(CoordinateError::AboveLimit { bytes: limit }),
            "it came with that"
        );
        jobs.push(process);
    }
    converge(&mut coordinator, &mut jobs, seconds(0));
    assert_eq!((jobs[0].limit, jobs[1].limit), (30, 70));
    assert_eq!(coordinator.charged_bytes(), 100);
}

#[test]
fn a_job_that_makes_another_limit_of_one_is_not_asked_again_and_again() {
    let mut coordinator = coordinator(100, 1);
    let mut jobs = Vec::new();
    for priority in [1, 9] {
        jobs.push(Process::new(&mut coordinator, policy(priority, 0)).unwrap());
    }
    jobs[0].wanted = 80;
    converge(&mut coordinator, &mut jobs, seconds(0));
    jobs[1].wanted = 90;
    answer(&mut coordinator, &mut jobs[1], seconds(1));
    let commands = coordinator.decide(seconds(1));
    send(&mut jobs, &commands);
    // It will not go below 60.
    let (version, limit) = jobs[0].sent.pop_front().unwrap();
    assert_eq!(limit, 10);
    (jobs[0].version, jobs[0].limit, jobs[0].held) = (version, 60, 60);
    jobs[0].wanted = 80;
    coordinator
        .report(jobs[0].id, jobs[0].report(), seconds(1))
        .unwrap();
    converge(&mut coordinator, &mut jobs, seconds(1));
    assert_eq!((jobs[0].limit, jobs[1].limit), (60, 40));
}

#[test]
fn a_job_of_lower_priority_is_slowed_while_a_higher_one_wants_memory() {
    let mut coordinator = coordinator(100, 1);
    let low = coordinator.join(policy(1, 0)).unwrap();
    let high = Process::new(&mut coordinator, policy(2, 0)).unwrap();
    let wants = JobReport {
        wanted_bytes: 7,
        ..high.report()
    };
    coordinator.report(high.id, wants, seconds(0)).unwrap();
    let perf = PerfControl::new(20).unwrap();
    let slowed = Command::SetPerf { job: low, perf };
    assert!(coordinator.decide(seconds(0)).contains(&slowed));
    assert!(!coordinator.decide(seconds(0)).contains(&slowed));
    coordinator.gone(high.id).unwrap();
    let full = Command::SetPerf {
        job: low,
        perf: PerfControl::FULL,
    };
    assert_eq!(coordinator.decide(seconds(0)), [full]);
}

#[test]
fn reports_that_cannot_be_are_refused_and_disobedience_stops_all_raises() {
    let mut coordinator = coordinator(100, 1);
    let mut jobs = Vec::new();
    for priority in [1, 2] {
        jobs.push(Process::new(&mut coordinator, policy(priority, 0)).unwrap());
    }
    jobs[0].wanted = 50;
    converge(&mut coordinator, &mut jobs, seconds(0));
    let report = jobs[0].report();
    let never = JobReport {
        version: report.version + 1,
        ..report
    };
    let error = CoordinateError::NeverSent {
        version: report.version,
    };
    assert_eq!(
        coordinator.report(jobs[0].id, never, seconds(0)),
        Err(error)
    );
    let above = JobReport {
        held_bytes: 95,
        ..report
    };
    let error = CoordinateError::AboveLimit { bytes: 45 };
    assert_eq!(
        coordinator.report(jobs[0].id, above, seconds(0)),
        Err(error)
    );
    jobs[1].wanted = 30;
    answer(&mut coordinator, &mut jobs[1], seconds(0));
    let raised = coordinator
        .decide(seconds(0))
        .into_iter()
        .find_map(|command| match command {
            Command::SetLimit {
                limit_bytes, job, ..
            } if job == jobs[1].id => Some(limit_bytes),
            _ => None,
        });
    assert_eq!(raised, Some(5));
    let huge = JobReport {
        held_bytes: u64::MAX,
        limit_bytes: u64::MAX,
        deferred_bytes: 9,
        ..report
    };
    let _ = coordinator.report(jobs[0].id, huge, seconds(0));
    let _ = coordinator.decide(seconds(0));
    assert_eq!(coordinator.charged_bytes(), u64::MAX);
}
