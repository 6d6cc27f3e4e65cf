//! Pauses between launches: how much is inserted, and which share of the time remains.

mod queued;
mod scripts;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use larder_control::{
    Clock, DutyCycle, ManualClock, Pacer, PacerConfig, PacerReport, Pause, PerfControl,
    SystemClock, Waited,
};
use larder_model::Random;

fn perf(percent: u64) -> PerfControl {
    PerfControl::new(percent).unwrap()
}

fn us(time: u64) -> Duration {
    Duration::from_micros(time)
}

fn ns(time: u64) -> Duration {
    Duration::from_nanos(time)
}

/// Inserts each share by itself and combines none.
const PLAIN: PacerConfig = PacerConfig {
    carry_bound: Duration::from_secs(1),
    min_pause: Duration::ZERO,
};

struct World {
    clock: Arc<ManualClock>,
    duty_cycle: Arc<DutyCycle>,
    pacer: Pacer<Arc<ManualClock>>,
}

impl World {
    fn new(percent: u64, config: PacerConfig) -> Self {
        let clock = Arc::new(ManualClock::new());
        let duty_cycle = Arc::new(DutyCycle::new());
        let pacer = Pacer::with_config(Arc::clone(&clock), duty_cycle.reader(), config);
        duty_cycle.set(perf(percent));
        Self {
            clock,
            duty_cycle,
            pacer,
        }
    }

    /// Launches after `busy` of work. Returns the length of the pause.
    fn launch(&self, busy: Duration) -> Duration {
        self.clock.advance(busy);
        let start = self.clock.now();
        assert_eq!(self.pacer.launch_wait(), Waited::Done);
        self.clock.now() - start
    }

    fn end(&self) -> Duration {
        let start = self.clock.now();
        assert_eq!(self.pacer.end_wait(), Waited::Done);
        self.clock.now() - start
    }

    /// Plays a step with `busy` of work before each launch. Returns the pauses, the one at the end
    /// last.
    fn step(&self, launches: u64, busy: Duration) -> Vec<Duration> {
        self.pacer.begin();
        let mut pauses: Vec<_> = (0..launches).map(|_| self.launch(busy)).collect();
        pauses.push(self.end());
        pauses
    }

    fn turn_at(&self, time: Duration, percent: u64) {
        let duty_cycle = Arc::clone(&self.duty_cycle);
        self.clock.at(time, move || duty_cycle.set(perf(percent)));
    }
}

/// Returns the nanoseconds of pause that busy time at a share requires.
fn due_after(busy: Duration, percent: u64) -> u128 {
    busy.as_nanos() * u128::from(100 - percent) / u128::from(percent)
}

/// Returns whether all that is due was inserted, except for what the report says is due or ahead.
fn balances(report: &PacerReport, due: u128, slack: u128) -> bool {
    let paid = report.inserted.as_nanos() + report.due.as_nanos();
    paid.abs_diff(due + report.ahead.as_nanos()) <= slack
}

#[test]
fn am_10_the_first_step_pauses_at_its_end_and_the_next_ones_in_equal_shares() {
    for launches in [1, 2, 10, 100] {
        let world = World::new(25, PLAIN);
        let first = world.step(launches, us(100));
        let plan = us(300) * launches as u32;
        assert_eq!(
            first[..launches as usize],
            vec![Duration::ZERO; launches as usize]
        );
        assert_eq!(first[launches as usize], plan);
        for _ in 0..3 {
            let mut shares = vec![us(300); launches as usize];
            shares.push(Duration::ZERO);
            assert_eq!(world.step(launches, us(100)), shares, "{launches} launches");
        }
    }
}

#[test]
fn am_10_a_plan_that_cannot_be_shared_evenly_is_inserted_whole() {
    let world = World::new(50, PLAIN);
    world.step(7, ns(100));
    // The device was busy for 7 x 100 ns once. 1000 ns cannot be divided evenly by 7.
    world.pacer.begin();
    world.clock.advance(ns(1000));
    for _ in 0..7 {
        let _ = world.pacer.launch_wait();
    }
    let _ = world.pacer.end_wait();
    let pauses = world.step(7, ns(0));
    let total: Duration = pauses[..7].iter().sum();
    // The 1000 ns less the 700 ns inserted are owed, and another 1000 ns are expected.
    assert_eq!(total, ns(1300));
    let (least, max) = (pauses[..7].iter().min(), pauses[..7].iter().max());
    assert_eq!((least, max), (Some(&ns(185)), Some(&ns(186))));
}

#[test]
fn am_10_what_is_inserted_equals_the_plan_within_one_share_whatever_the_number_of_launches() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let percent = 1 + random.below(99);
        let world = World::new(percent, PLAIN);
        let busy = us(1 + random.below(20_000));
        let mut expected = 0;
        let mut carried = 0;
        for step in 0..20 {
            let launches = [1, 2, 10, 100, random.below(200), 0][random.below(6) as usize];
            let plan = due_after(busy, percent) + carried;
            world.pacer.begin();
            let slice = busy / launches.max(1) as u32;
            let mut inserted = Duration::ZERO;
            for _ in 0..launches {
                inserted += world.launch(slice);
            }
            world.clock.advance(busy - slice * launches as u32);
            inserted += world.end();
            // If no launch is expected, there are no shares and all of it is due at the end.
            let share = plan / u128::from(std::cmp::max(expected, 1)) + 1;
            let share = if expected == 0 { 1 } else { share };
            assert!(
                inserted.as_nanos().abs_diff(plan) <= share,
                "seed {seed} step {step}: {launches} launches, {expected} expected, {inserted:?} for {plan}"
            );
            expected = launches;
            carried = world.pacer.report().due.as_nanos();
        }
        let report = world.pacer.report();
        assert!(
            balances(&report, due_after(report.busy, percent), 0),
            "seed {seed}: {report:?}"
        );
    }
}

#[test]
fn am_10_the_share_of_the_time_is_met_over_random_steps() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let percent = 1 + random.below(99);
        let mut config = PLAIN;
        // No pause is that far ahead, so overestimates are never forgotten.
        config.carry_bound = Duration::from_secs(3600);
        config.min_pause = us([0, 50, 5000][random.below(3) as usize]);
        let world = World::new(percent, config);
        for _ in 0..200 {
            world.pacer.begin();
            for _ in 0..random.below(30) {
                world.launch(ns(random.below(2_000_000)));
            }
            world.clock.advance(ns(random.below(2_000_000)));
            let _ = world.end();
            // The time between steps does not count.
            world.clock.advance(us(random.below(1000)));
        }
        let report = world.pacer.report();
        assert_eq!(report.steps, 200);
        assert!(
            balances(&report, due_after(report.busy, percent), 0),
            "seed {seed}, {percent} %: {report:?}"
        );
        assert_eq!(report.inserted, world.clock.slept(), "seed {seed}");
        // At most the error of one step's forecast is carried over.
        let step = due_after(us(62_000), percent);
        assert!(report.due.as_nanos() <= step, "seed {seed}: {report:?}");
    }
}

#[test]
fn am_10_a_share_that_changes_at_any_moment_is_met_from_then_on() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut percent = 1 + random.below(99);
        let world = World::new(percent, PLAIN);
        let mut due = 0;
        let mut changes = 0;
        for _ in 0..40 {
            world.pacer.begin();
            for _ in 0..random.below(12) {
                let busy = ns(random.below(1_000_000));
                due += due_after(busy, percent);
                world.launch(busy);
                if random.below(4) == 0 {
                    percent = 1 + random.below(99);
                    world.duty_cycle.set(perf(percent));
                    changes += 1;
                    // The next launch notices the change.
                    world.launch(Duration::ZERO);
                }
            }
            let _ = world.end();
        }
        let report = world.pacer.report();
        let slack = u128::from(report.launches + changes) + 1;
        assert!(
            balances(&report, due, slack),
            "seed {seed}: {report:?}, due {due}"
        );
    }
}

#[test]
fn pauses_of_several_threads_lie_end_to_end() {
    const THREADS: u64 = 4;
    const LAUNCHES: u64 = 50;
    let world = World::new(20, PLAIN);
    world.step(THREADS * LAUNCHES, us(10));
    let before = (world.clock.now(), world.pacer.report());
    world.pacer.begin();
    // All the work comes first, then the launches of all threads in any order.
    world.clock.advance(us(10) * (THREADS * LAUNCHES) as u32);
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..LAUNCHES {
                    assert_eq!(world.pacer.launch_wait(), Waited::Done);
                }
            });
        }
    });
    assert_eq!(world.end(), us(0));
    let report = world.pacer.report();
    assert_eq!(report.launches - before.1.launches, THREADS * LAUNCHES);
    assert_eq!(report.inserted - before.1.inserted, us(8000));
    assert_eq!(world.clock.now() - before.0, us(2000 + 8000));
}

#[test]
fn threads_launch_while_the_share_is_turned_and_cancelled_in_real_time() {
    let duty_cycle = DutyCycle::new();
    let pacer = Pacer::new(SystemClock::new(), duty_cycle.reader());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| while pacer.launch_wait() != Waited::Cancelled {});
        }
        scope.spawn(|| {
            loop {
                pacer.begin();
                if pacer.end_wait() == Waited::Cancelled {
                    break;
                }
            }
        });
        for percent in (0..2000).map(|turn| turn * 37 % 101) {
            duty_cycle.set(perf(percent));
        }
        duty_cycle.set(perf(0));
        duty_cycle.cancel();
    });
    let report = pacer.report();
    assert!(report.due <= Duration::from_secs(1), "{report:?}");
}

#[test]
fn what_is_due_for_centuries_is_paused_and_not_forgotten() {
    let world = World::new(1, PLAIN);
    world.pacer.begin();
    world
        .clock
        .advance(Duration::from_secs(10 * 365 * 24 * 3600));
    assert_eq!(world.pacer.end(), Pause::Until(ns(u64::MAX)));
}
