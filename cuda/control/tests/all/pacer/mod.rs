//! Pauses between launches: what is inserted, and what share of the time remains.

mod queued;

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

/// Every share apart, nothing put together.
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

    /// A launch after so much work: how long it paused.
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

    /// A step of launches with so much work before each: the pauses, that of the end last.
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

/// What busy time at one share owes.
fn due_after(busy: Duration, percent: u64) -> u128 {
    busy.as_nanos() * u128::from(100 - percent) / u128::from(percent)
}

/// All that is due was inserted, but for what the report says.
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
    // 7 x 100 ns were busy once; 1000 over 7 do not come out even.
    world.pacer.begin();
    world.clock.advance(ns(1000));
    for _ in 0..7 {
        let _ = world.pacer.launch_wait();
    }
    let _ = world.pacer.end_wait();
    let pauses = world.step(7, ns(0));
    let total: Duration = pauses[..7].iter().sum();
    // Owed are the 1000 less the 700 inserted, and 1000 more are expected.
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
            // No launch expected, no share: then all is due at the end.
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
        // Overestimates are never forgotten: nothing is paused ahead so far.
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
            // Between steps nothing counts.
            world.clock.advance(us(random.below(1000)));
        }
        let report = world.pacer.report();
        assert_eq!(report.steps, 200);
        assert!(
            balances(&report, due_after(report.busy, percent), 0),
            "seed {seed}, {percent} %: {report:?}"
        );
        assert_eq!(report.inserted, world.clock.slept(), "seed {seed}");
        // What is carried is the error of one step's forecast.
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
                    // Noticed at once.
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
fn a_change_of_the_share_ends_a_pause_and_what_is_missing_is_inserted_later() {
    let world = World::new(50, PLAIN);
    world.step(2, us(1000));
    world.pacer.begin();
    let change = world.clock.now() + us(1400);
    world.turn_at(change, 80);
    assert_eq!(world.launch(us(1000)), us(400));
    // 600 us are due, and 250 for what is expected: the one launch left inserts them.
    assert_eq!(world.launch(us(1000)), us(850));
    assert_eq!(world.end(), us(0));
}

#[test]
fn full_share_ends_a_pause_and_forgets_what_is_due() {
    let world = World::new(50, PLAIN);
    world.step(1, us(1000));
    world.pacer.begin();
    world.turn_at(world.clock.now() + us(1300), 100);
    assert_eq!(world.launch(us(1000)), us(300));
    assert_eq!(world.end(), us(0));
    assert_eq!(world.pacer.report().due, us(0));
    assert_eq!(world.step(1, us(1000)), [us(0), us(0)]);
    // It goes on learning meanwhile.
    world.duty_cycle.set(perf(50));
    assert_eq!(world.step(1, us(1000)), [us(1000), us(0)]);
}

#[test]
fn a_suspension_is_neither_busy_nor_paused() {
    let world = World::new(50, PLAIN);
    world.step(2, us(1000));
    let before = world.pacer.report();
    world.pacer.begin();
    world.duty_cycle.set(perf(0));
    world.turn_at(world.clock.now() + us(70_000), 50);
    assert_eq!(world.launch(us(1000)), us(69_000) + us(1000));
    assert_eq!(world.launch(us(1000)), us(1000));
    assert_eq!(world.end(), us(0));
    let report = world.pacer.report();
    assert_eq!(report.busy - before.busy, us(2000));
    assert_eq!(report.inserted - before.inserted, us(2000));
}

#[test]
fn a_suspension_in_the_middle_of_a_pause_holds_the_launch() {
    let world = World::new(50, PLAIN);
    world.step(1, us(1000));
    world.pacer.begin();
    let start = world.clock.now();
    world.turn_at(start + us(1100), 0);
    world.turn_at(start + us(9000), 50);
    assert_eq!(world.launch(us(1000)), us(8000));
    // 100 us were paused; the other 900 come at the end, with no launch left to share them.
    assert_eq!(world.end(), us(900));
}

#[test]
fn a_step_is_held_at_its_end_and_a_launch_outside_of_steps_by_a_suspension_only() {
    let world = World::new(30, PLAIN);
    assert_eq!(world.launch(us(500)), us(0));
    world.duty_cycle.set(perf(0));
    world.turn_at(us(1500), 30);
    assert_eq!(world.launch(us(500)), us(500));
    world.pacer.begin();
    world.duty_cycle.set(perf(0));
    world.turn_at(us(5000), 100);
    assert_eq!(world.end(), us(3500));
    assert_eq!(world.pacer.report().launches, 0);
}

#[test]
fn cancelling_ends_pauses_and_suspensions() {
    for percent in [0, 10] {
        let world = World::new(10, PLAIN);
        world.step(1, us(1000));
        world.pacer.begin();
        world.duty_cycle.set(perf(percent));
        let duty_cycle = Arc::clone(&world.duty_cycle);
        let start = world.clock.now();
        world
            .clock
            .at(start + us(2000), move || duty_cycle.cancel());
        world.clock.advance(us(1000));
        assert_eq!(world.pacer.launch_wait(), Waited::Cancelled);
        assert_eq!(world.clock.now(), start + us(2000));
        assert_eq!(world.pacer.end_wait(), Waited::Cancelled);
        assert_eq!(world.clock.now(), start + us(2000));
    }
}

#[test]
fn what_is_due_above_the_bound_is_paused_at_the_end_and_what_was_ahead_is_forgotten() {
    let config = PacerConfig {
        carry_bound: us(500),
        ..PLAIN
    };
    // The second step is busier than was expected, by less, as much, and more than the bound.
    for (more, pause) in [(499, 0), (500, 0), (501, 1), (1700, 1200)] {
        let world = World::new(50, config);
        world.step(1, us(1000));
        assert_eq!(world.step(1, us(1000 + more)), [us(1000), us(pause)]);
        assert_eq!(world.pacer.report().due, us(more.min(500)));
    }
    // It is less busy: paused ahead, up to the bound.
    for (less, ahead) in [(499, 499), (500, 500), (501, 500), (900, 500)] {
        let world = World::new(50, config);
        world.step(1, us(1000));
        assert_eq!(world.step(1, us(1000 - less)), [us(1000), us(0)]);
        assert_eq!(world.pacer.report().ahead, us(ahead));
    }
}

#[test]
fn shares_below_the_least_pause_are_put_together() {
    let config = PacerConfig {
        min_pause: us(50),
        ..PLAIN
    };
    let world = World::new(50, config);
    world.step(10, us(20));
    let pauses: Vec<_> = world
        .step(10, us(20))
        .iter()
        .map(Duration::as_micros)
        .collect();
    assert_eq!(pauses, [0, 0, 60, 0, 0, 60, 0, 0, 60, 20, 0]);
}

#[test]
fn a_clock_that_oversleeps_is_made_up_for() {
    let world = World::new(50, PLAIN);
    world.step(4, us(100));
    world.pacer.begin();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        world.clock.advance(us(100));
        let pause = world.pacer.launch();
        if let Pause::Until(until) = pause {
            pauses.push((until - world.clock.now()).as_micros());
            world.clock.advance(until - world.clock.now() + us(130));
        }
        assert_eq!(world.pacer.waited(pause), Pause::None);
    }
    // 230 us for 100 and for 200: of 300, 70 are due; then 200 for 100 of 400.
    assert_eq!(pauses, [100, 70]);
    let report = world.pacer.report();
    assert_eq!(report.inserted, us(400) + us(100 + 130 + 70 + 130));
}

#[test]
fn whoever_wakes_early_learns_how_long_to_wait_still() {
    let world = World::new(50, PLAIN);
    world.step(1, us(100));
    world.pacer.begin();
    world.clock.advance(us(100));
    let pause = world.pacer.launch();
    world.clock.advance(us(40));
    assert_eq!(world.pacer.waited(pause), pause);
    world.duty_cycle.set(perf(0));
    assert_eq!(world.pacer.waited(pause), Pause::Suspended);
    assert_eq!(world.pacer.launch(), Pause::Suspended);
    assert_eq!(world.pacer.waited(Pause::Suspended), Pause::Suspended);
    world.duty_cycle.set(perf(10));
    assert_eq!(world.pacer.waited(Pause::Suspended), Pause::None);
}

#[test]
fn a_step_that_was_not_ended_ends_with_the_next_begin() {
    let world = World::new(50, PLAIN);
    world.pacer.begin();
    world.launch(us(100));
    world.pacer.begin();
    // The 100 us due and the 100 expected.
    assert_eq!(world.launch(us(100)), us(200));
    assert_eq!(world.pacer.report().steps, 1);
}

#[test]
fn pauses_of_several_threads_lie_end_to_end() {
    const THREADS: u64 = 4;
    const LAUNCHES: u64 = 50;
    let world = World::new(20, PLAIN);
    world.step(THREADS * LAUNCHES, us(10));
    let before = (world.clock.now(), world.pacer.report());
    world.pacer.begin();
    // All work at once, then the launches of all threads as they come.
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
fn work_after_a_suspension_that_ended_a_pause_is_busy() {
    let world = World::new(50, PLAIN);
    world.step(1, us(1000));
    let before = world.pacer.report();
    world.pacer.begin();
    let start = world.clock.now();
    world.turn_at(start + us(1100), 0);
    world.turn_at(start + us(9000), 50);
    assert_eq!(world.launch(us(1000)), us(8000));
    // 100 us were paused before the suspension: 2000 us of work owe 1900 more.
    let paused = world.launch(us(1000)) + world.end();
    let report = world.pacer.report();
    assert_eq!(report.busy - before.busy, us(2000));
    assert_eq!(paused, us(1900));
}

#[test]
fn a_suspension_that_ends_while_a_pause_waits_is_not_busy() {
    let world = World::new(50, PLAIN);
    world.step(2, us(1000));
    let before = world.pacer.report();
    world.pacer.begin();
    world.clock.advance(us(1000));
    let pausing = world.pacer.launch();
    assert_eq!(pausing, Pause::Until(world.clock.now() + us(1000)));
    // Another thread sees the suspension, this one sees its end only.
    world.duty_cycle.set(perf(0));
    assert_eq!(world.pacer.launch(), Pause::Suspended);
    world.clock.advance(us(9000));
    world.duty_cycle.set(perf(50));
    assert_eq!(world.pacer.waited(pausing), Pause::None);
    let _ = world.end();
    assert_eq!(world.pacer.report().busy - before.busy, us(1000));
}

#[test]
fn whoever_wakes_in_a_suspension_learns_it() {
    let world = World::new(50, PLAIN);
    world.step(1, us(1000));
    world.pacer.begin();
    world.clock.advance(us(1000));
    let pause = world.pacer.launch();
    assert_ne!(pause, Pause::None);
    world.duty_cycle.set(perf(0));
    assert_eq!(world.pacer.waited(pause), Pause::Suspended);
    world.clock.advance(us(5000));
    assert_eq!(world.pacer.waited(Pause::Suspended), Pause::Suspended);
    world.duty_cycle.set(perf(50));
    assert_eq!(world.pacer.waited(Pause::Suspended), Pause::None);
    // The launch went on; nothing of the suspension was busy.
    assert_eq!(world.end(), us(1000));
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
