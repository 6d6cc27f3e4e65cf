//! Jobs at random: late messages, silence, deaths; then all answer.

use std::time::Duration;

use larder_control::Coordinator;
use larder_model::Random;

use super::{CALM, Process, answer, converge, coordinator, policy, seconds, send};

/// Random jobs over one device, with every message late.
struct World {
    random: Random,
    coordinator: Coordinator,
    total: u64,
    processes: Vec<Process>,
    now: Duration,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let total = 1 + random.below(200);
        let step = random.below(20);
        Self {
            random,
            coordinator: coordinator(total, step),
            total,
            processes: Vec::new(),
            now: seconds(0),
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(1000));
        let below = self.random.below(10);
        if below == 0 {
            let commands = self.coordinator.decide(self.now);
            send(&mut self.processes, &commands);
        } else if below == 1 && self.processes.len() < 6 {
            // Priorities differ, so that the end can be computed.
            let priority = self.random.next_u64() as u32;
            let floor = self.random.below(self.total / 2 + 1);
            let joined = Process::new(&mut self.coordinator, policy(priority, floor));
            self.processes.extend(joined);
        } else if !self.processes.is_empty() {
            let index = self.random.index(self.processes.len());
            self.live(index);
        }
    }

    /// Something happens to one job.
    fn live(&mut self, index: usize) {
        let (random, process) = (&mut self.random, &mut self.processes[index]);
        if !process.alive {
            // Its memory goes at once, some time after its end; then somebody says so.
            match process.held {
                0 => {
                    let process = self.processes.remove(index);
                    self.coordinator.gone(process.id).unwrap();
                }
                _ if random.below(4) == 0 => process.held = 0,
                _ => {}
            }
            return;
        }
        match random.below(32) {
            0 => process.alive = false,
            1..4 => process.wanted = random.below(self.total * 2),
            4..10 => process.obey(),
            10..12 => {
                // It reads the newest only.
                while process.sent.len() > 1 {
                    process.sent.pop_front();
                }
                process.obey();
            }
            12..18 if process.held < process.limit => {
                process.held += random.below(process.limit - process.held) + 1;
            }
            12..20 => process.held -= random.below(process.held + 1),
            20..26 => process.reports.push_back(process.report()),
            26..32 => {
                if let Some(report) = process.reports.pop_front() {
                    self.coordinator
                        .report(process.id, report, self.now)
                        .unwrap();
                }
            }
            _ => unreachable!(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut sum = 0;
        for process in &self.processes {
            let charge = self.coordinator.charge_bytes(process.id).unwrap();
            if process.may_hold() > charge {
                return Err(format!("{process:?} is charged {charge}"));
            }
            sum += process.may_hold();
        }
        let charged = self.coordinator.charged_bytes();
        if sum > self.total || charged > self.total {
            return Err(format!("{sum} held, {charged} charged of {}", self.total));
        }
        Ok(())
    }

    /// Everybody answers from now on; the dead are reported gone.
    fn calm_down(&mut self) {
        for process in core::mem::take(&mut self.processes) {
            if process.alive {
                self.processes.push(process);
            } else {
                self.coordinator.gone(process.id).unwrap();
            }
        }
        for process in &mut self.processes {
            while let Some(report) = process.reports.pop_front() {
                self.coordinator
                    .report(process.id, report, self.now)
                    .unwrap();
            }
            answer(&mut self.coordinator, process, self.now);
        }
        // What was wanted before is forgotten, twice: a fall that began before counts as its most.
        for _ in 0..3 {
            self.now += CALM;
            converge(&mut self.coordinator, &mut self.processes, self.now);
        }
    }

    /// What each job should have at least: the slow and obvious way.
    fn check_end(&self) {
        let mut by_priority: Vec<_> = self.processes.iter().collect();
        by_priority.sort_by_key(|process| std::cmp::Reverse(process.policy.priority));
        let floors: u64 = by_priority
            .iter()
            .map(|process| process.policy.floor_bytes)
            .sum();
        let mut left = self.total - floors;
        for process in by_priority {
            let floor = process.policy.floor_bytes;
            let more = process.wanted.saturating_sub(floor).min(left);
            assert!(
                process.limit >= floor + more,
                "{process:?} should have {}",
                floor + more
            );
            // Wants are rounded up to steps, of less than 20 bytes.
            left -= more.min(left);
            left = left.saturating_sub(20);
        }
    }
}

#[test]
fn the_total_is_kept_at_every_moment_and_all_converges_when_jobs_answer() {
    let rounds = std::env::var("LARDER_JOBS").map_or(400, |rounds| rounds.parse().unwrap());
    for seed in 0..rounds {
        let mut world = World::new(seed);
        for step in 0..1500 {
            world.step();
            if let Err(error) = world.check() {
                panic!("seed {seed}, step {step}: {error}");
            }
        }
        world.calm_down();
        if let Err(error) = world.check() {
            panic!("seed {seed}, at the end: {error}");
        }
        world.check_end();
    }
}
