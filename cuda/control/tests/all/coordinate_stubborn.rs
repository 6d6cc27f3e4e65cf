//! A coordinator over jobs that answer otherwise than they were asked, lie, and come to their senses, with
//! totals from nothing to all that 64 bits hold.

use std::time::Duration;

use larder_control::{
    Command, CoordinateError, Coordinator, JobId, JobPolicy, JobReport, PerfControl,
};
use larder_model::Random;

use crate::coordinate::{CALM, coordinator};

fn policy(priority: u32, floor_bytes: u64) -> JobPolicy {
    JobPolicy {
        name: String::new(),
        priority,
        floor_bytes,
        perf_beside: PerfControl::FULL,
    }
}

/// What a job makes of a limit.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Manner {
    /// What it says.
    Obeys,
    /// Sets at least what it holds, which is what AntMan does.
    Raises,
    /// Sets at most this limit.
    Cuts(u64),
    /// Reports anything, and holds anything.
    Lies,
}

#[derive(Clone, Debug)]
struct Stubborn {
    id: JobId,
    policy: JobPolicy,
    manner: Manner,
    version: u64,
    limit: u64,
    held: u64,
    wanted: u64,
    sent: Option<(u64, u64)>,
    report: Option<JobReport>,
}

impl Stubborn {
    fn new(coordinator: &mut Coordinator, policy: JobPolicy, manner: Manner) -> Option<Self> {
        Some(Self {
            id: coordinator.join(policy.clone()).ok()?,
            policy,
            manner,
            version: 0,
            limit: 0,
            held: 0,
            wanted: 0,
            sent: None,
            report: None,
        })
    }

    fn read(&mut self) {
        let Some((version, limit)) = self.sent.take() else {
            return;
        };
        self.version = version;
        self.limit = match self.manner {
            Manner::Raises => limit.max(self.held),
            Manner::Cuts(max) => limit.min(max),
            Manner::Obeys | Manner::Lies => limit,
        };
    }

    /// Takes what it wants and may have, gives back what it does not want.
    fn live(&mut self) {
        self.held = self.wanted.min(self.limit);
    }

    fn says(&self, random: &mut Random) -> JobReport {
        if self.manner == Manner::Lies {
            return JobReport {
                version: random.below(self.version.saturating_add(3)),
                limit_bytes: any(random),
                held_bytes: any(random),
                deferred_bytes: any(random),
                wanted_bytes: any(random),
                ..JobReport::default()
            };
        }
        JobReport {
            version: self.version,
            limit_bytes: self.limit,
            held_bytes: self.held,
            deferred_bytes: self.held.saturating_sub(self.limit),
            wanted_bytes: self.wanted,
            ..JobReport::default()
        }
    }
}

/// Any number of any size.
fn any(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 0,
        1 => u64::MAX,
        _ => random.next_u64() >> random.below(64),
    }
}

struct World {
    random: Random,
    coordinator: Coordinator,
    total: u64,
    jobs: Vec<Stubborn>,
    now: Duration,
    liars: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let total = any(&mut random);
        let step = any(&mut random) >> random.below(64);
        Self {
            coordinator: coordinator(total, step),
            total,
            jobs: Vec::new(),
            now: Duration::ZERO,
            liars: random.below(3) == 0,
            random,
        }
    }

    fn decide(&mut self) -> usize {
        let before = self.coordinator.charged_bytes();
        let commands = self.coordinator.decide(self.now);
        let charged = self.coordinator.charged_bytes();
        assert!(
            charged <= self.total.max(before),
            "{before} charged, now {charged} of {}",
            self.total
        );
        for command in &commands {
            let Command::SetLimit {
                job,
                limit_bytes,
                version,
            } = *command
            else {
                continue;
            };
            let job = self.jobs.iter_mut().find(|other| other.id == job).unwrap();
            assert!(limit_bytes <= self.total || job.manner == Manner::Lies);
            assert!(version > job.version);
            assert!(
                job.sent.is_none() || job.manner == Manner::Lies,
                "two limits under way: {job:?}"
            );
            let floor = job.policy.floor_bytes;
            let honest = matches!(job.manner, Manner::Obeys | Manner::Raises);
            assert!(!honest || limit_bytes >= floor.min(job.limit), "{job:?}");
            job.sent = Some((version, limit_bytes));
        }
        commands.len()
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(3000));
        let random = &mut self.random;
        match random.below(8) {
            0 => {
                self.decide();
            }
            1 if self.jobs.len() < 6 => {
                let manner = match random.below(4) {
                    0 => Manner::Raises,
                    1 => Manner::Cuts(any(random)),
                    2 if self.liars => Manner::Lies,
                    _ => Manner::Obeys,
                };
                let floor = any(random) % (self.total / 2 + 1);
                let policy = policy(random.below(4) as u32, floor);
                self.jobs
                    .extend(Stubborn::new(&mut self.coordinator, policy, manner));
            }
            2 if !self.jobs.is_empty() && random.below(8) == 0 => {
                let index = random.index(self.jobs.len());
                let job = self.jobs.remove(index);
                self.coordinator.gone(job.id).unwrap();
            }
            _ if !self.jobs.is_empty() => {
                let index = random.index(self.jobs.len());
                let job = &mut self.jobs[index];
                match random.below(5) {
                    0 => job.read(),
                    1 => job.live(),
                    2 => job.wanted = any(random),
                    3 => job.report = Some(job.says(random)),
                    _ => {
                        if let Some(report) = job.report.take() {
                            let heard = self.coordinator.report(job.id, report, self.now);
                            assert!(heard.is_ok() || job.manner == Manner::Lies, "{heard:?}");
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// What may be held by those who do not lie never exceeds the total.
    fn check(&self) {
        let mut sum = 0_u128;
        for job in self.jobs.iter().filter(|job| job.manner != Manner::Lies) {
            sum += u128::from(job.limit.max(job.held));
            assert!(self.coordinator.charge_bytes(job.id).unwrap() >= job.limit.max(job.held));
        }
        assert!(sum <= u128::from(self.total), "{sum} of {}", self.total);
    }

    /// The liars end, the others live and answer.
    fn calm_down(&mut self) {
        for job in core::mem::take(&mut self.jobs) {
            if job.manner == Manner::Lies {
                self.coordinator.gone(job.id).unwrap();
            } else {
                self.jobs.push(job);
            }
        }
        for _ in 0..3 {
            self.now += CALM;
            let mut quiet = 0;
            for _ in 0..200 {
                for job in &mut self.jobs {
                    job.read();
                    job.live();
                    let report = job.says(&mut self.random);
                    self.coordinator.report(job.id, report, self.now).unwrap();
                }
                quiet = if self.decide() == 0 { quiet + 1 } else { 0 };
                self.check();
                if quiet == 3 {
                    break;
                }
            }
            assert_eq!(quiet, 3, "no end of commands");
        }
    }

    /// Nobody lacks what one of lower priority has above its floor and does not hold.
    fn check_end(&self) {
        for low in &self.jobs {
            let spare = low
                .limit
                .saturating_sub(low.held.max(low.policy.floor_bytes));
            for high in &self.jobs {
                let may_have_more = !matches!(high.manner, Manner::Cuts(_));
                let lacks = high.wanted.saturating_sub(high.limit);
                assert!(
                    high.policy.priority <= low.policy.priority
                        || !may_have_more
                        || lacks == 0
                        || spare == 0,
                    "{high:?} lacks {lacks}, {low:?} has {spare} to spare"
                );
            }
        }
    }
}

#[test]
fn a_job_that_begins_with_a_limit_of_its_own_is_brought_down_to_what_fits() {
    let mut coordinator = coordinator(100, 10);
    let mut rounds = 0;
    let own = coordinator.join(policy(1, 0)).unwrap();
    let other = coordinator.join(policy(1, 0)).unwrap();
    let (mut limits, mut versions) = ([u64::MAX, 0], [0, 0]);
    loop {
        for (index, (job, wanted)) in [(own, 40), (other, 50)].into_iter().enumerate() {
            let report = JobReport {
                version: versions[index],
                limit_bytes: limits[index],
                held_bytes: limits[index].min(wanted),
                deferred_bytes: 0,
                wanted_bytes: wanted,
                ..JobReport::default()
            };
            // The first report of a limit that nobody allowed is an error, and counts.
            let heard = coordinator.report(job, report, Duration::ZERO);
            assert_eq!(heard.is_err(), rounds == 0 && index == 0);
        }
        let commands = coordinator.decide(Duration::ZERO);
        if commands.is_empty() {
            break;
        }
        for command in commands {
            if let Command::SetLimit {
                job,
                limit_bytes,
                version,
            } = command
            {
                let index = usize::from(job == other);
                (limits[index], versions[index]) = (limit_bytes, version);
            }
        }
        rounds += 1;
        assert!(rounds < 10, "{limits:?}");
    }
    assert!(limits[0] <= 50, "{limits:?}");
    assert_eq!(limits[1], 50);
    assert!(coordinator.charged_bytes() <= 100);
}

#[test]
fn a_refusal_is_believed_for_a_while_and_then_asked_again() {
    let mut coordinator = coordinator(100, 1);
    let mut jobs: Vec<_> = [(1, Manner::Raises), (9, Manner::Obeys)]
        .into_iter()
        .map(|(priority, manner)| {
            Stubborn::new(&mut coordinator, policy(priority, 0), manner).unwrap()
        })
        .collect();
    let mut round = |jobs: &mut [Stubborn], now| {
        let mut asked = 0;
        for job in jobs.iter_mut() {
            job.read();
            let report = job.says(&mut Random::new(0));
            coordinator.report(job.id, report, now).unwrap();
        }
        for command in coordinator.decide(now) {
            if let Command::SetLimit {
                job,
                limit_bytes,
                version,
            } = command
            {
                let job = jobs.iter_mut().find(|other| other.id == job).unwrap();
                job.sent = Some((version, limit_bytes));
                asked += u64::from(job.policy.priority == 1);
            }
        }
        asked
    };
    jobs[0].wanted = 80;
    for _ in 0..3 {
        round(&mut jobs, Duration::ZERO);
        jobs[0].live();
    }
    assert_eq!(jobs[0].held, 80);
    jobs[1].wanted = 90;
    let asked: u64 = (0..10).map(|_| round(&mut jobs, Duration::ZERO)).sum();
    assert_eq!((asked, jobs[0].limit, jobs[1].limit), (1, 80, 20));
    // It holds less now, and still wants the same.
    jobs[0].held = 5;
    let asked: u64 = (0..10)
        .map(|_| round(&mut jobs, CALM - Duration::from_nanos(1)))
        .sum();
    assert_eq!(asked, 0);
    let asked: u64 = (0..10).map(|_| round(&mut jobs, CALM)).sum();
    assert_eq!((asked, jobs[0].limit, jobs[1].limit), (1, 10, 90));
}

#[test]
fn a_coordinator_that_begins_while_jobs_run_goes_on_from_their_numbers() {
    let mut first = coordinator(100, 1);
    let mut jobs: Vec<_> = (0..2)
        .map(|_| Stubborn::new(&mut first, policy(1, 0), Manner::Obeys).unwrap())
        .collect();
    let run = |coordinator: &mut Coordinator, jobs: &mut [Stubborn], rounds| {
        for round in 0..rounds {
            for job in jobs.iter_mut() {
                job.read();
                job.live();
                let report = job.says(&mut Random::new(0));
                let heard = coordinator.report(job.id, report, CALM * round);
                assert_eq!(heard, Ok(()), "{job:?}");
            }
            for command in coordinator.decide(CALM * round) {
                if let Command::SetLimit {
                    job,
                    limit_bytes,
                    version,
                } = command
                {
                    let job = jobs.iter_mut().find(|other| other.id == job).unwrap();
                    assert!(version > job.version, "{job:?} was sent {version}");
                    job.sent = Some((version, limit_bytes));
                }
            }
            let sum: u64 = jobs.iter().map(|job| job.limit.max(job.held)).sum();
            assert!(sum <= 100 && coordinator.charged_bytes() <= 100);
        }
    };
    for wanted in [[80, 30], [20, 90], [60, 40]] {
        (jobs[0].wanted, jobs[1].wanted) = (wanted[0], wanted[1]);
        run(&mut first, &mut jobs, 10);
    }
    assert_eq!((jobs[0].held, jobs[1].held), (60, 40));
    // Another one: it learns what there is before it decides.
    let mut second = coordinator(100, 1);
    let mut newcomer = Stubborn::new(&mut second, policy(9, 0), Manner::Obeys).unwrap();
    for job in &mut jobs {
        job.id = second.join(policy(1, 0)).unwrap();
    }
    newcomer.wanted = 50;
    jobs.push(newcomer);
    run(&mut second, &mut jobs, 10);
    assert_eq!(jobs[2].held, 50);
    // Numbers that leave no room for more are nobody's.
    let liar = second.join(policy(1, 0)).unwrap();
    let report = JobReport {
        version: u64::MAX,
        ..jobs[0].says(&mut Random::new(0))
    };
    assert_eq!(
        second.report(liar, report, Duration::ZERO),
        Err(CoordinateError::NeverSent { version: 0 })
    );
}

#[test]
fn the_total_is_kept_whatever_jobs_answer_and_nobody_starves_beside_idle_memory() {
    let rounds = std::env::var("LARDER_JOBS").map_or(1000, |rounds| rounds.parse().unwrap());
    for seed in 0..rounds {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
            world.check();
        }
        world.calm_down();
        world.check_end();
    }
}
