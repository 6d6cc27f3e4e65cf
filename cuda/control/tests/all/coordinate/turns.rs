//! Jobs that take turns: through files that are read and written at any moment, and by the clock.

use std::time::Duration;

use larder_control::{Command, Coordinator, CoordinatorConfig, JobId, JobReport, SleepState};
use larder_model::Random;

use super::{CALM, policy, seconds};

const TURN: Duration = Duration::from_secs(10);

fn coordinator(total_bytes: u64) -> Coordinator {
    Coordinator::new(CoordinatorConfig {
        total_bytes,
        step_bytes: 1,
        calm: CALM,
        turn: Some(TURN),
    })
}

/// The content of a job's control file.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    version: u64,
    limit: u64,
    asleep: bool,
}

/// A job with its two files, which acts as `larder_cuda::job` does.
#[derive(Clone, Debug)]
struct Sleeper {
    id: JobId,
    priority: u32,
    wanted: u64,
    /// The control file. `read` is what the job has read of it, and `status` is the status file.
    file: Orders,
    read: Orders,
    status: JobReport,
    phase: SleepState,
    /// Whether the job has read its orders a last time and takes memory whatever they say later.
    commits: bool,
    held: u64,
    /// Whether the job no longer does anything.
    is_stuck: bool,
    /// Whether the job stays awake when it is told to sleep.
    refuses: bool,
}

impl Sleeper {
    fn new(coordinator: &mut Coordinator, priority: u32, wanted: u64) -> Self {
        let mut job = Self {
            id: coordinator.join(policy(priority, 0)).unwrap(),
            priority,
            wanted,
            file: Orders::default(),
            read: Orders::default(),
            status: JobReport::default(),
            phase: SleepState::Awake,
            commits: false,
            held: 0,
            is_stuck: false,
            refuses: false,
        };
        job.publish();
        job
    }

    fn publish(&mut self) {
        let is_awake = self.phase == SleepState::Awake;
        let complains = self.refuses && self.read.asleep && is_awake;
        self.status = JobReport {
            version: self.read.version,
            limit_bytes: self.read.limit,
            held_bytes: self.held,
            deferred_bytes: 0,
            wanted_bytes: self.wanted,
            sleep: (!complains).then_some(self.phase),
            ..JobReport::default()
        };
    }

    fn step(&mut self) {
        if self.is_stuck {
            return;
        }
        match self.phase {
            SleepState::Awake if self.read.asleep && !self.refuses => {
                (self.phase, self.held) = (SleepState::Asleep, 0);
            }
            SleepState::Asleep if !self.read.asleep => self.phase = SleepState::Waking,
            SleepState::Waking if !self.commits => {
                self.read = self.file;
                if self.read.asleep {
                    self.phase = SleepState::Asleep;
                } else {
                    self.commits = true;
                }
            }
            SleepState::Waking => (self.phase, self.commits) = (SleepState::Awake, false),
            _ => {}
        }
        if self.phase == SleepState::Awake {
            self.held = self.wanted.min(self.read.limit);
        }
        self.publish();
    }

    /// Returns the bytes that the job may hold without reading its orders again.
    fn may_hold(&self) -> u64 {
        match self.phase {
            SleepState::Awake => self.held.max(self.read.limit),
            SleepState::Waking if self.commits => self.read.limit,
            _ => 0,
        }
    }
}

/// Returns a coordinator of 100 bytes, and a job for each priority and want.
fn sleepers(jobs: &[(u32, u64)]) -> (Coordinator, Vec<Sleeper>) {
    let mut coordinator = coordinator(100);
    let job = |(priority, wanted): &(u32, u64)| Sleeper::new(&mut coordinator, *priority, *wanted);
    let jobs = jobs.iter().map(job).collect();
    (coordinator, jobs)
}

/// Replaces the jobs' coordinator with a new one.
fn another(jobs: &mut [Sleeper]) -> Coordinator {
    let mut coordinator = coordinator(100);
    for job in jobs {
        job.id = coordinator.join(policy(job.priority, 0)).unwrap();
    }
    coordinator
}

fn write(jobs: &mut [Sleeper], commands: &[Command]) {
    for command in commands {
        let id = command.job();
        let job = jobs.iter_mut().find(|job| job.id == id).unwrap();
        match *command {
            Command::SetLimit {
                limit_bytes,
                version,
                ..
            } => (job.file.limit, job.file.version) = (limit_bytes, version),
            Command::SetAsleep { asleep, .. } => job.file.asleep = asleep,
            _ => {}
        }
    }
}

fn read(coordinator: &mut Coordinator, jobs: &[Sleeper], now: Duration) {
    for job in jobs {
        coordinator.report(job.id, job.status, now).unwrap();
    }
}

#[test]
fn a_turn_may_be_as_long_as_a_number_can_say() {
    let mut coordinator = Coordinator::new(CoordinatorConfig {
        total_bytes: 100,
        step_bytes: 1,
        calm: CALM,
        turn: Some(Duration::MAX),
    });
    let jobs = [3, 3].map(|priority| coordinator.join(policy(priority, 0)).unwrap());
    for now in [0, 1000].map(seconds) {
        for job in jobs {
            let report = JobReport {
                wanted_bytes: 80,
                sleep: Some(SleepState::Awake),
                ..JobReport::default()
            };
            coordinator.report(job, report, now).unwrap();
        }
        let told = coordinator.decide(now).into_iter();
        let asleep =
            told.filter(|command| matches!(command, Command::SetAsleep { asleep: true, .. }));
        // The first job's turn never ends.
        assert_eq!(asleep.count(), usize::from(now.is_zero()));
    }
}

#[test]
fn whoever_writes_and_reads_when_no_two_are_awake_whose_sum_is_above_the_total() {
    let rounds = std::env::var("LARDER_JOBS").map_or(300, |rounds| rounds.parse().unwrap());
    let mut moved = 0;
    for seed in 0..rounds {
        let mut random = Random::new(seed);
        let total = 10 + random.below(90);
        let mut coordinator = coordinator(total);
        let mut jobs: Vec<Sleeper> = Vec::new();
        let mut now = seconds(0);
        for step in 0..800 {
            now += Duration::from_millis(random.below(1000));
            match random.below(12) {
                0 if jobs.len() < 4 => {
                    let (priority, wanted) = (random.below(12) as u32, 1 + random.below(total + 5));
                    let job = Sleeper::new(&mut coordinator, priority, wanted);
                    jobs.push(job);
                }
                0 if !jobs.is_empty() && random.below(20) == 0 => {
                    let gone = jobs.swap_remove(random.index(jobs.len()));
                    coordinator.gone(gone.id).unwrap();
                }
                1..4 => {
                    read(&mut coordinator, &jobs, now);
                    // Jobs continue between the coordinator's reads and its writes.
                    for _ in 0..random.below(4) {
                        step_one(&mut jobs, &mut random);
                    }
                    let commands = coordinator.decide(now);
                    moved += commands
                        .iter()
                        .filter(|command| matches!(command, Command::SetAsleep { .. }))
                        .count();
                    write(&mut jobs, &commands);
                }
                _ => step_one(&mut jobs, &mut random),
            }
            let sum: u64 = jobs.iter().map(Sleeper::may_hold).sum();
            assert!(
                sum <= total,
                "seed {seed}, step {step}: {sum} of {total}: {jobs:#?}"
            );
            let charged = coordinator.charged_bytes();
            assert!(
                charged <= total,
                "seed {seed}, step {step}: {charged} of {total}"
            );
        }
    }
    assert!(moved > 1000, "{moved} turns");
}

fn step_one(jobs: &mut [Sleeper], random: &mut Random) {
    if jobs.is_empty() {
        return;
    }
    let index = random.index(jobs.len());
    let job = &mut jobs[index];
    match random.below(200) {
        0 => job.is_stuck = !job.is_stuck,
        1 => job.refuses = !job.refuses,
        2..80 if !job.is_stuck => {
            job.read = job.file;
            job.publish();
        }
        _ => job.step(),
    }
}

/// Plays one round per second with jobs that answer at once. Returns which jobs hold memory after each round.
fn play(
    coordinator: &mut Coordinator,
    jobs: &mut [Sleeper],
    time: core::ops::Range<u64>,
) -> Vec<Vec<bool>> {
    let mut story = Vec::new();
    for now in time.map(seconds) {
        read(coordinator, jobs, now);
        let commands = coordinator.decide(now);
        write(jobs, &commands);
        for job in &mut *jobs {
            if !job.is_stuck {
                job.read = job.file;
            }
            // A job falls asleep in one step and wakes in three.
            (0..3).for_each(|_| job.step());
        }
        story.push(jobs.iter().map(|job| job.held > 0).collect());
    }
    story
}

/// Returns how long a job had memory, or had none, each time except the first and the last.
fn times(story: &[Vec<bool>], job: usize, has: bool) -> Vec<usize> {
    let all: Vec<bool> = story.iter().map(|now| now[job]).collect();
    let mut chunks: Vec<_> = all.chunk_by(|a, b| a == b).collect();
    chunks.pop();
    let chunks = chunks.into_iter().skip(1);
    chunks
        .filter(|chunk| chunk[0] == has)
        .map(<[_]>::len)
        .collect()
}

#[test]
fn turns_last_as_long_as_the_priority_says_and_nobody_waits_longer_than_the_others_turns() {
    for priorities in [&[1, 1][..], &[1, 3], &[0, 2, 5], &[40, 1]] {
        let wants: Vec<_> = priorities.iter().map(|priority| (*priority, 80)).collect();
        let (mut coordinator, mut jobs) = sleepers(&wants);
        let story = play(&mut coordinator, &mut jobs, 0..2000);
        let turn = |job: usize| 10 * jobs[job].priority.clamp(1, 10) as usize;
        let all: usize = (0..jobs.len()).map(turn).sum();
        for job in 0..jobs.len() {
            let (had, waited) = (times(&story, job, true), times(&story, job, false));
            assert!(had.len() > 5, "{priorities:?}: {had:?}");
            // A turn is longer by some rounds, until all jobs have reported and read.
            let slack = 3 * jobs.len();
            let is_one_turn = |time: &usize| (turn(job)..=turn(job) + slack).contains(time);
            assert!(
                had.iter().all(is_one_turn),
                "{priorities:?}, {job}: {had:?}"
            );
            let longest = all - turn(job) + 2 * slack;
            assert!(
                waited.iter().all(|time| *time <= longest),
                "{priorities:?}: {waited:?}"
            );
        }
    }
}

#[test]
fn jobs_that_fit_beside_each_other_are_awake_together_and_who_is_alone_is_not_disturbed() {
    let (mut coordinator, mut jobs) = sleepers(&[(1, 30), (1, 80), (1, 60)]);
    let story = play(&mut coordinator, &mut jobs, 0..500);
    let both = story.iter().filter(|now| now[0] && now[2]).count();
    assert!(both > 100, "{both}");
    assert!(times(&story, 1, true).len() > 5);
    assert!(story.iter().all(|now| !now[1] || !(now[0] || now[2])));
    for gone in jobs.drain(1..) {
        coordinator.gone(gone.id).unwrap();
    }
    let story = play(&mut coordinator, &mut jobs, 500..1100);
    assert!(story[5..].iter().all(|now| now[0]));
}

#[test]
fn a_job_that_does_not_answer_is_waited_for_by_those_alone_that_do_not_fit_beside_it() {
    // The job is awake or asleep when it stops answering.
    for awake in [true, false] {
        let (mut coordinator, mut jobs) = sleepers(&[(1, 60), (1, 70), (1, 35)]);
        play(&mut coordinator, &mut jobs, 0..200);
        let mut now = 200;
        while (jobs[0].phase == SleepState::Awake) != awake {
            play(&mut coordinator, &mut jobs, now..now + 1);
            now += 1;
            assert!(now < 500);
        }
        jobs[0].is_stuck = true;
        let story = play(&mut coordinator, &mut jobs, now..now + 400);
        let had = |job: usize| story[200..].iter().filter(|now| now[job]).count();
        if awake {
            assert_eq!(
                (had(1), had(2)),
                (0, 200),
                "one fits beside it, one does not"
            );
        } else {
            assert!(had(1) > 30 && had(2) > 30, "{} and {}", had(1), had(2));
        }
        // The stuck job is reported gone.
        let gone = jobs.remove(0);
        coordinator.gone(gone.id).unwrap();
        let story = play(&mut coordinator, &mut jobs, now + 400..now + 600);
        assert!(times(&story, 0, true).len() > 2 && times(&story, 1, true).len() > 2);
    }
}

#[test]
fn a_job_that_cannot_sleep_goes_on_and_others_divide_what_it_leaves() {
    let (mut coordinator, mut jobs) = sleepers(&[(1, 60), (1, 30), (1, 30)]);
    jobs[0].refuses = true;
    let story = play(&mut coordinator, &mut jobs, 0..500);
    assert!(story[100..].iter().all(|now| now[0]), "it has no turns");
    assert!(times(&story, 1, true).len() > 5 && times(&story, 2, true).len() > 5);
}

#[test]
fn another_coordinator_takes_the_turns_over() {
    let (mut first, mut jobs) = sleepers(&[(1, 80); 3]);
    play(&mut first, &mut jobs, 0..55);
    let mut second = another(&mut jobs);
    let story = play(&mut second, &mut jobs, 0..500);
    assert!(
        story
            .iter()
            .all(|now| now.iter().filter(|has| **has).count() <= 1)
    );
    for job in 0..3 {
        assert!(times(&story, job, true).len() > 5);
    }
}

#[test]
fn a_word_of_sleep_from_before_a_coordinator_began_is_no_answer_to_it() {
    let (_, mut jobs) = sleepers(&[(1, 80), (9, 80)]);
    let asleep = Orders {
        version: 1,
        limit: 80,
        asleep: true,
    };
    for job in &mut jobs {
        (job.file, job.read, job.phase) = (asleep, asleep, SleepState::Asleep);
        job.publish();
    }
    // The former coordinator told the job to wake, and the job has read that.
    jobs[0].file.asleep = false;
    jobs[0].read = jobs[0].file;
    let mut second = another(&mut jobs);
    read(&mut second, &jobs, seconds(0));
    for _ in 0..2 {
        jobs[0].step();
    }
    assert!(jobs[0].commits);
    let commands = second.decide(seconds(0));
    write(&mut jobs, &commands);
    let story = play(&mut second, &mut jobs, 1..200);
    assert!(story.iter().all(|now| !(now[0] && now[1])));
    assert!(times(&story, 1, true).len() > 1);
}

#[test]
fn jobs_that_come_and_go_beside_a_large_one_do_not_keep_it_waiting() {
    let (mut coordinator, mut jobs) = sleepers(&[(1, 30), (1, 90)]);
    let mut had = 0;
    for round in 0..20 {
        // Each small job is gone before its turn ends, and the next one joins before that.
        jobs.push(Sleeper::new(&mut coordinator, 1, 30));
        let story = play(&mut coordinator, &mut jobs, 5 * round..5 * round + 5);
        let large = jobs.iter().position(|job| job.wanted == 90).unwrap();
        had += story.iter().filter(|now| now[large]).count();
        let oldest = usize::from(large == 0);
        coordinator.gone(jobs.remove(oldest).id).unwrap();
    }
    assert!(had > 20, "{had} of 100 s");
}
