//! Random jobs: late messages, silence, deaths, and answers other than those asked for. In the end all jobs answer.
//! Totals range from 0 to `u64::MAX`.

use std::time::Duration;

use larder_model::Random;

use super::{CALM, Job, JobReport, Manner, World, coordinator, policy};

/// Returns a random number of a random size.
fn any(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 0,
        1 => u64::MAX,
        _ => random.next_u64() >> random.below(64),
    }
}

/// The kind of jobs in a world.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// All jobs obey, numbers are small, and priorities differ, so that the final limits can be computed.
    Honest,
    /// Jobs in any manner but `Lies`.
    Stubborn,
    /// Jobs in any manner.
    Lying,
}

struct Drawn {
    world: World,
    kind: Kind,
}

impl Drawn {
    fn new(seed: u64, kind: Kind) -> Self {
        let mut random = Random::new(seed);
        let (total, step) = match kind {
            Kind::Honest => (1 + random.below(200), random.below(20)),
            _ => (any(&mut random), any(&mut random) >> random.below(64)),
        };
        let mut world = World::new(total, step);
        (world.random, world.coordinator) = (random, coordinator(total, step));
        Self { world, kind }
    }

    fn step(&mut self) {
        let random = &mut self.world.random;
        self.world.now += Duration::from_millis(random.below(3000));
        match random.below(10) {
            0 => drop(self.world.decide()),
            1 if self.world.jobs.len() < 6 => self.join(),
            _ if !self.world.jobs.is_empty() => {
                let index = random.index(self.world.jobs.len());
                self.live(index);
            }
            _ => {}
        }
    }

    fn join(&mut self) {
        let (random, total) = (&mut self.world.random, self.world.total);
        let priority = random.next_u64() as u32;
        let manner = match random.below(4) {
            _ if self.kind == Kind::Honest => Manner::Obeys,
            0 => Manner::Raises,
            1 => Manner::Cuts(any(random)),
            2 if self.kind == Kind::Lying => Manner::Lies,
            _ => Manner::Obeys,
        };
        let (priority, floor) = match self.kind {
            Kind::Honest => (priority, random.below(total / 2 + 1)),
            _ => (priority % 4, any(random) % (total / 2 + 1)),
        };
        // A floor above the total is refused.
        let _ = self.world.join(policy(priority, floor), manner);
    }

    /// Makes a random change to one job.
    fn live(&mut self, index: usize) {
        let world = &mut self.world;
        let (random, job) = (&mut world.random, &mut world.jobs[index]);
        if !job.alive {
            // A dead job's memory is freed all at once, some time after its end. Only then is the job reported gone.
            match job.held {
                0 => {
                    let job = world.jobs.remove(index);
                    world.coordinator.gone(job.id).unwrap();
                }
                _ if random.below(4) == 0 => job.held = 0,
                _ => {}
            }
            return;
        }
        match random.below(32) {
            0 => job.alive = false,
            1..4 if self.kind == Kind::Honest => {
                job.wanted = random.below(world.total * 2);
                job.guaranteed = (random.below(2) == 0).then(|| random.below(world.total * 2));
            }
            1..4 => {
                job.wanted = any(random);
                job.guaranteed = (random.below(2) == 0).then(|| any(random));
            }
            4..12 => job.read(),
            12..15 => job.live(),
            15..18 if job.held < job.limit => {
                job.held += random.below(job.limit - job.held) + 1;
            }
            15..20 => job.held -= random.below(job.held.saturating_add(1)),
            20..26 if job.manner == Manner::Lies => {
                let report = JobReport {
                    version: random.below(job.version.saturating_add(3)),
                    limit_bytes: any(random),
                    held_bytes: any(random),
                    deferred_bytes: any(random),
                    wanted_bytes: any(random),
                    guaranteed_bytes: Some(any(random)),
                    ..JobReport::default()
                };
                job.reports.push_back(report);
            }
            20..26 => job.reports.push_back(job.report()),
            _ => {
                if let Some(report) = job.reports.pop_front() {
                    let heard = world.coordinator.report(job.id, report, world.now);
                    assert!(heard.is_ok() || job.manner == Manner::Lies, "{heard:?}");
                }
            }
        }
    }

    /// Checks that jobs that do not lie can never hold more than the total.
    fn check(&self) {
        let (world, mut sum) = (&self.world, 0_u128);
        for job in world.jobs.iter().filter(|job| job.manner != Manner::Lies) {
            let charge = world.coordinator.charge_bytes(job.id).unwrap();
            assert!(job.may_hold() <= charge, "{job:?} is charged {charge}");
            sum += u128::from(job.may_hold());
        }
        let (total, charged) = (world.total, world.coordinator.charged_bytes());
        assert!(sum <= u128::from(total), "{sum} held of {total}");
        let lies = self.kind == Kind::Lying;
        assert!(lies || charged <= total, "{charged} charged of {total}");
    }

    /// Ends the liars and reports dead jobs gone. The others answer from now on.
    fn calm_down(&mut self) {
        let world = &mut self.world;
        for job in core::mem::take(&mut world.jobs) {
            if job.alive && job.manner != Manner::Lies {
                world.jobs.push(job);
            } else {
                world.coordinator.gone(job.id).unwrap();
            }
        }
        for job in &mut world.jobs {
            for report in job.reports.drain(..) {
                world.coordinator.report(job.id, report, world.now).unwrap();
            }
        }
        // Earlier wants are forgotten after two calm periods, because a fall that began before counts at the most that
        // was wanted. A job whose refusal is forgotten is asked again.
        for _ in 0..3 {
            let now = self.world.now + CALM;
            (0..3).for_each(|_| self.world.settle(now));
            self.check();
        }
    }

    /// Checks that no job lacks memory, of that which it does not give back, that one of lower priority has above its
    /// floor and does not hold.
    fn check_spare(&self) {
        for low in &self.world.jobs {
            let kept = low.held.max(low.policy.floor_bytes);
            let spare = low.limit.saturating_sub(kept);
            for high in &self.world.jobs {
                let may_have_more = !matches!(high.manner, Manner::Cuts(_));
                let lacks = high.kept().saturating_sub(high.limit);
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

    /// Computes in a simple way the least that each job should have.
    fn check_shares(&self) {
        let mut by_priority: Vec<_> = self.world.jobs.iter().collect();
        by_priority.sort_by_key(|job| std::cmp::Reverse(job.policy.priority));
        let floors: u64 = by_priority.iter().map(|job| job.policy.floor_bytes).sum();
        let mut left = self.world.total - floors;
        let mut shares: Vec<u64> = by_priority
            .iter()
            .map(|job| job.policy.floor_bytes)
            .collect();
        // First what the jobs do not give back, then the rest.
        for most in [Job::kept, |job: &Job| job.wanted] {
            for (share, job) in shares.iter_mut().zip(&by_priority) {
                let more = most(job).saturating_sub(*share).min(left);
                *share += more;
                // Wants are rounded up to steps of less than 20 bytes.
                left = left.saturating_sub(more + 20);
            }
        }
        for (share, job) in shares.into_iter().zip(by_priority) {
            assert!(job.limit >= share, "{job:?} should have {share}");
        }
    }
}

fn play(seed: u64, kind: Kind, steps: u32) -> Drawn {
    println!("seed {seed}");
    let mut drawn = Drawn::new(seed, kind);
    for _ in 0..steps {
        drawn.step();
        drawn.check();
    }
    drawn.calm_down();
    drawn.check_spare();
    drawn
}

fn rounds(usual: u64) -> u64 {
    std::env::var("LARDER_JOBS").map_or(usual, |rounds| rounds.parse().unwrap())
}

#[test]
fn the_total_is_kept_at_every_moment_and_all_converges_when_jobs_answer() {
    for seed in 0..rounds(400) {
        play(seed, Kind::Honest, 1500).check_shares();
    }
}

#[test]
fn the_total_is_kept_whatever_jobs_answer_and_nobody_starves_beside_idle_memory() {
    for seed in 0..rounds(1000) {
        let kind = if seed % 3 == 0 {
            Kind::Lying
        } else {
            Kind::Stubborn
        };
        play(seed, kind, 600);
    }
}
