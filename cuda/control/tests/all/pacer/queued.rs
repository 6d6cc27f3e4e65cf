//! Steps whose work is queued and whose busy times a device reports.

use std::collections::VecDeque;
use std::time::Duration;

use larder_control::{Clock, PacerConfig};
use larder_model::Random;

use super::{World, balances, due_after, us};

/// A device that executes queued work while the host's clock advances.
struct Device {
    world: World,
    /// The time at which all queued work is done.
    free: Duration,
    busy: Duration,
    /// For each unreported run, its end, its duration, and the pauses in it.
    runs: VecDeque<(Duration, Duration, Duration)>,
}

impl Device {
    fn queue(&mut self, busy: Duration) {
        self.free = self.free.max(self.world.clock.now()) + busy;
        self.busy += busy;
    }

    /// Reports runs that are done, and waits for the oldest ones until at most `left` remain.
    fn report(&mut self, left: usize) {
        while let Some((end, took, paused)) = self.runs.front().copied() {
            let late = end.saturating_sub(self.world.clock.now());
            if !late.is_zero() && self.runs.len() <= left {
                break;
            }
            self.world.clock.advance(late);
            self.runs.pop_front();
            self.world.pacer.ran(took - paused);
        }
    }

    fn step(&mut self, launches: u64, busy: Duration) {
        self.report(3);
        self.world.pacer.begin_queued(self.runs.len() as u64);
        let (start, before) = (
            self.free.max(self.world.clock.now()),
            self.world.pacer.report(),
        );
        for _ in 0..launches {
            if self.world.pacer.is_pause_next() {
                self.report(0);
                let late = self.free.saturating_sub(self.world.clock.now());
                self.world.clock.advance(late);
            }
            self.world.launch(Duration::ZERO);
            self.queue(busy);
        }
        let end = self.free.max(self.world.clock.now());
        let paused = self.world.pacer.report().inserted - before.inserted;
        self.runs.push_back((end, end - start, paused));
        let waits = self.world.pacer.is_pause_at_end();
        self.report(if waits { 0 } else { 4 });
        self.world.end();
    }
}

#[test]
fn steps_that_are_queued_keep_the_device_busy_for_the_share_of_the_time() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let percent = 1 + random.below(99);
        let config = PacerConfig {
            // Overestimates are never forgotten.
            carry_bound: Duration::from_secs(3600),
            min_pause: us([0, 50][random.below(2) as usize]),
        };
        let mut device = Device {
            world: World::new(percent, config),
            free: Duration::ZERO,
            busy: Duration::ZERO,
            runs: VecDeque::new(),
        };
        let (longest, launches) = (1 + random.below(2000), random.below(20));
        for _ in 0..200 {
            let launches = launches + random.below(2);
            device.step(launches, us(random.below(longest)));
        }
        device.report(0);
        let report = device.world.pacer.report();
        assert_eq!(report.busy, device.busy, "seed {seed}");
        assert!(
            balances(&report, due_after(device.busy, percent), 0),
            "seed {seed}, {percent} %: {report:?}"
        );
        // The device was idle during each pause: queued work hid none of it.
        let took = device.world.clock.now();
        assert_eq!(took, device.busy + report.inserted, "seed {seed}");
        // At most the forecast error of four steps and one pause that was too short are carried over.
        let carried = due_after(us(6 * longest * (launches + 2)), percent) + 50_000;
        assert!(report.due.as_nanos() <= carried, "seed {seed}: {report:?}");
        assert!(
            report.ahead.as_nanos() <= carried,
            "seed {seed}: {report:?}"
        );
    }
}
