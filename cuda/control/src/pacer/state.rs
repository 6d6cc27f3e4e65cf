//! The pacer's arithmetic, in whole nanoseconds, without a lock or a clock.
//!
//! PACER1. All time of a step up to `at` is accounted for: as busy, as inserted or as suspended.
//! `at` lies ahead of the clock during a pause, and is never moved back beyond the present. The
//! busy time of a queued step is the time reported for it, during the step or later.
//! PACER2. `debt` is the time of pauses due for busy time, less the time inserted, less the time
//! forgotten. At full share the whole debt is forgotten. At the end of a step, time paused before
//! it was due is forgotten as far as it exceeds `carry_bound`.
//! PACER3. The first k of n launches have inserted k/n of a plan, less the time put off because of
//! the minimum pause, and plus the time overslept; all n launches have inserted all of the plan.

use std::time::Duration;

use super::{PacerConfig, PacerReport, Pause};
use crate::perf::PerfControl;

#[derive(Debug)]
pub(super) struct PacerState {
    config: PacerConfig,
    /// Time up to which everything is accounted for (PACER1).
    at: u64,
    in_step: bool,
    /// Whether the busy time of this step is the reported time instead of the clock's.
    queued: bool,
    /// Number of earlier queued steps whose busy time is still unreported.
    unreported: u64,
    /// The share in force at `at`.
    perf: PerfControl,
    /// The last step, which is the prediction for this step.
    prediction: PacerStep,
    /// The current step so far.
    step: PacerStep,
    /// The time due if positive; the time paused ahead if negative (PACER2).
    debt: i128,
    /// The fraction of a nanosecond due, in units of 1/`perf` nanoseconds.
    parts: u128,
    plan: PausePlan,
    steps: u64,
    launches: u64,
    busy: u64,
    inserted: u64,
    suspended: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct PacerStep {
    busy: u64,
    launches: u64,
}

/// The time that a number of launches should insert.
#[derive(Clone, Copy, Debug, Default)]
struct PausePlan {
    time: u64,
    launches: u64,
    launched: u64,
    inserted: u64,
}

impl PacerState {
    pub(super) fn new(config: PacerConfig) -> Self {
        Self {
            config,
            at: 0,
            in_step: false,
            queued: false,
            unreported: 0,
            perf: PerfControl::FULL,
            prediction: PacerStep::default(),
            step: PacerStep::default(),
            debt: 0,
            parts: 0,
            plan: PausePlan::default(),
            steps: 0,
            launches: 0,
            busy: 0,
            inserted: 0,
            suspended: 0,
        }
    }

    /// Begins a step; for a queued step, `queued` is the number of unreported steps before it.
    pub(super) fn begin(&mut self, now: Duration, perf: PerfControl, queued: Option<u64>) {
        if self.in_step {
            self.account(nanos(now));
            self.close_step();
        }
        let now = nanos(now);
        self.at = self.at.max(now);
        self.in_step = true;
        self.queued = queued.is_some();
        self.unreported = queued.unwrap_or(0);
        self.step = PacerStep::default();
        self.set_share(now, perf);
        self.make_plan();
    }

    pub(super) fn launch(&mut self, now: Duration, perf: PerfControl) -> Pause {
        let now = nanos(now);
        self.account(now);
        self.set_share(now, perf);
        if perf.is_suspended() {
            return Pause::Suspended;
        }
        if self.in_step {
            self.step.launches += 1;
            self.launches += 1;
            let share = self.plan.launch(nanos(self.config.min_pause));
            self.insert(share);
        }
        self.pause(now)
    }

    pub(super) fn end(&mut self, now: Duration, perf: PerfControl) -> Pause {
        let now = nanos(now);
        self.account(now);
        self.set_share(now, perf);
        if perf.is_suspended() {
            return Pause::Suspended;
        }
        if self.in_step {
            let last = self.last_pause(self.debt);
            if !self.queued || last >= nanos(self.config.min_pause) {
                self.insert(last);
            }
            self.close_step();
        }
        self.pause(now)
    }

    /// Records the device's busy time for a queued step: this step or an earlier one.
    pub(super) fn ran(&mut self, busy: Duration) {
        let busy = nanos(busy);
        self.unreported = self.unreported.saturating_sub(1);
        self.prediction.busy = busy;
        if !self.perf.is_suspended() {
            self.charge(busy);
        }
    }

    /// Returns whether the next launch of a queued step waits. A suspension begins with that launch, not
    /// here.
    pub(super) fn is_pause_next(&mut self, now: Duration, perf: PerfControl) -> bool {
        if !self.in_step || !self.queued || perf.is_suspended() {
            return self.in_step && self.queued;
        }
        let now = nanos(now);
        self.account(now);
        self.set_share(now, perf);
        let mut plan = self.plan;
        plan.launch(nanos(self.config.min_pause)) > 0
    }

    /// Returns whether the end of a queued step would wait if each unreported step took as long as the last
    /// reported one. A step without a prediction waits.
    pub(super) fn is_pause_at_end(&mut self, now: Duration, perf: PerfControl) -> bool {
        if !self.in_step || !self.queued || perf.is_full() {
            return false;
        }
        if perf.is_suspended() || self.prediction.busy == 0 {
            return true;
        }
        let now = nanos(now);
        self.account(now);
        self.set_share(now, perf);
        let last = self.last_pause(
            self.debt
                .saturating_add(self.expected(self.prediction.busy)),
        );
        last > 0 && last >= nanos(self.config.min_pause)
    }

    /// Returns the time that the end of the step inserts if `debt` is due.
    fn last_pause(&self, debt: i128) -> u64 {
        let due = whole(debt);
        let bound = nanos(self.config.carry_bound);
        let missing = self.plan.missing().map_or(due, |missing| missing.min(due));
        missing.max(due.saturating_sub(bound))
    }

    /// Returns the pauses for the unreported steps if each was busy for `busy`. The share is not 0.
    fn expected(&self, busy: u64) -> i128 {
        let perf = i128::from(self.perf.percent());
        let steps = 1 + i128::from(self.unreported);
        steps.saturating_mul(i128::from(busy) * (100 - perf) / perf)
    }

    /// Records that a pausing or suspended thread is awake. Returns the rest of the wait.
    pub(super) fn waited(&mut self, pause: Pause, now: Duration, perf: PerfControl) -> Pause {
        let now = nanos(now);
        let until = match pause {
            Pause::None => return Pause::None,
            Pause::Until(until) => nanos(until),
            Pause::Suspended => now,
        };
        if until == self.at && now > until && !self.perf.is_suspended() {
            // The thread overslept, and no other call has accounted for the time.
            self.insert(now - until);
            self.plan.inserted = self.plan.inserted.saturating_add(now - until);
        }
        self.set_share(now, perf);
        let until = until.min(self.at);
        if perf.is_suspended() {
            return Pause::Suspended;
        }
        if until > now {
            return Pause::Until(Duration::from_nanos(until));
        }
        Pause::None
    }

    pub(super) fn report(&self) -> PacerReport {
        let nanos = |debt: i128| Duration::from_nanos(whole(debt));
        PacerReport {
            steps: self.steps,
            launches: self.launches,
            busy: Duration::from_nanos(self.busy),
            inserted: Duration::from_nanos(self.inserted),
            suspended: Duration::from_nanos(self.suspended),
            due: nanos(self.debt),
            ahead: nanos(-self.debt),
        }
    }

    /// Accounts for the time up to now: busy at the share in force, unless suspended (PACER1).
    fn account(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        self.at += passed;
        if !self.in_step {
            return;
        }
        if self.perf.is_suspended() {
            self.suspended = self.suspended.saturating_add(passed);
        } else if !self.queued {
            self.step.busy = self.step.busy.saturating_add(passed);
            self.charge(passed);
        }
    }

    /// Adds the pauses that are due for `busy` to the debt. The share is not 0.
    fn charge(&mut self, busy: u64) {
        self.busy = self.busy.saturating_add(busy);
        let perf = u128::from(self.perf.percent());
        let due = u128::from(busy) * (100 - perf) + self.parts;
        self.parts = due % perf;
        self.debt += (due / perf) as i128;
    }

    /// Puts a share in force. If the share differs from the last one, pauses end, and the time that they have
    /// not inserted is due again.
    fn set_share(&mut self, now: u64, perf: PerfControl) {
        if self.perf.is_suspended() {
            // The first call after a suspension ends the suspension here, so that later time is not
            // counted as suspended (PACER1).
            self.account(now);
        }
        if perf == self.perf {
            return;
        }
        let back = self.at.saturating_sub(now);
        self.at -= back;
        self.inserted = self.inserted.saturating_sub(back);
        self.debt += i128::from(back);
        self.perf = perf;
        self.parts = 0;
        if perf.is_full() {
            self.debt = 0;
        }
        self.make_plan();
    }

    /// Divides the time that is due, or will be due, among the launches that are still predicted.
    fn make_plan(&mut self) {
        let busy = self.prediction.busy.saturating_sub(self.step.busy);
        let time = if self.perf.is_full() || self.perf.is_suspended() {
            0
        } else {
            self.debt.saturating_add(self.expected(busy))
        };
        self.plan = PausePlan {
            time: whole(time),
            launches: self.prediction.launches.saturating_sub(self.step.launches),
            ..PausePlan::default()
        };
    }

    fn close_step(&mut self) {
        let bound = i128::from(nanos(self.config.carry_bound));
        self.debt = self.debt.max(-bound);
        self.in_step = false;
        if self.queued {
            self.step.busy = self.prediction.busy;
        }
        self.prediction = self.step;
        self.steps += 1;
    }

    fn insert(&mut self, time: u64) {
        self.at = self.at.saturating_add(time);
        self.inserted = self.inserted.saturating_add(time);
        self.debt -= i128::from(time);
    }

    /// Returns the wait until all planned pauses are over, no matter which thread planned them.
    fn pause(&self, now: u64) -> Pause {
        if self.at > now {
            return Pause::Until(Duration::from_nanos(self.at));
        }
        Pause::None
    }
}

impl PausePlan {
    /// Counts one launch and returns the time that it inserts (PACER3).
    fn launch(&mut self, min_pause: u64) -> u64 {
        if self.launched >= self.launches {
            return 0;
        }
        self.launched += 1;
        let due = u128::from(self.time) * u128::from(self.launched) / u128::from(self.launches);
        let share = (due as u64).saturating_sub(self.inserted);
        if share < min_pause && self.launched < self.launches {
            return 0;
        }
        self.inserted += share;
        share
    }

    /// Returns the time that the missing launches would have inserted, if that is more than the share of one
    /// launch. Returns `None` if no launch was predicted, because then the plan is not divided among
    /// launches.
    fn missing(&self) -> Option<u64> {
        let share = self.time.checked_div(self.launches)?;
        let missing = self.time.saturating_sub(self.inserted);
        Some(if missing > share { missing } else { 0 })
    }
}

/// Returns whole nanoseconds; `u64::MAX` for more than 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time due, saturating; 0 if none is due.
fn whole(debt: i128) -> u64 {
    u64::try_from(debt.max(0)).unwrap_or(u64::MAX)
}
