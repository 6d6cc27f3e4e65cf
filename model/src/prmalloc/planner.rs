//! The planner, which counts steps, records lifetimes, and decides when a round is due.

use larder_core::prmalloc::{AllocStat, PlannerStage};

use super::{Fit, Plans};

/// The steps in which lifetimes are recorded, and the end of planning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// The older CPU form records from step `start` to step `stop`, and then runs one round.
    Once {
        /// The step, counted from 0, at whose start recording begins.
        start: i64,
        /// The step at whose start recording ends.
        stop: i64,
    },
    /// The CPU form runs a round at the end of each step, until more than `stable` rounds in a row were stable, or more
    /// than `max` rounds have run.
    Stable {
        /// The step, counted from 0, at whose start recording begins.
        start: i64,
        /// Planning ends after more consecutive stable rounds than this.
        stable: i64,
        /// Planning ends after more rounds than this.
        max: i64,
    },
    /// The GPU form runs a round at the start of each step up to step `stop`.
    EachStart {
        /// The step, counted from 0, at whose start recording begins.
        start: i64,
        /// The step at whose start recording ends.
        stop: i64,
    },
}

impl Window {
    /// The older CPU form's defaults.
    pub const ONCE: Self = Self::Once {
        start: 1000,
        stop: 1100,
    };
    /// The CPU form's defaults.
    pub const STABLE: Self = Self::Stable {
        start: 100,
        stable: 10,
        max: 100,
    };
    /// The GPU form's defaults.
    pub const EACH_START: Self = Self::EachStart {
        start: 10,
        stop: 110,
    };
}

/// Records steps and plans their memory.
#[derive(Debug)]
pub struct Planner {
    window: Window,
    fit: Fit,
    with_small: bool,
    plans: Plans,
    state: PlannerStage,
    pending: Vec<AllocStat>,
    steps: i64,
    rounds: i64,
    stable_rounds: i64,
}

impl Planner {
    /// Creates a planner at step 0; `with_small` includes sizes up to 32 KiB.
    pub fn new(window: Window, fit: Fit, with_small: bool) -> Self {
        Self {
            window,
            fit,
            with_small,
            plans: Plans::new(fit, with_small),
            state: PlannerStage::Off,
            pending: Vec::new(),
            steps: 0,
            rounds: 0,
            stable_rounds: 0,
        }
    }

    /// Begins a step. Returns whether a round is due before its first allocation.
    pub fn start(&mut self) -> bool {
        let step = self.steps;
        self.steps += 1;
        let (start, is_due) = match self.window {
            Window::Stable { start, .. } => (start, false),
            Window::Once { start, stop } => (start, step >= stop),
            Window::EachStart { start, .. } => (start, true),
        };
        let is_due = is_due && self.begin_round();
        if step == start && self.state == PlannerStage::Off {
            self.state = PlannerStage::On;
        }
        is_due
    }

    /// Ends a step, even one of another session. Returns whether a round is due now.
    pub fn stop(&mut self) -> bool {
        matches!(self.window, Window::Stable { .. }) && self.begin_round()
    }

    fn begin_round(&mut self) -> bool {
        let is_on = self.state == PlannerStage::On;
        if is_on {
            self.state = PlannerStage::Rounding;
        }
        is_on
    }

    /// Runs the round that is due. Returns whether the plan is complete.
    pub fn run(&mut self) -> bool {
        assert_eq!(self.state, PlannerStage::Rounding, "no round is due");
        let stats = core::mem::take(&mut self.pending);
        self.rounds += 1;
        if self.plans.round(&stats) {
            self.stable_rounds += 1;
        } else {
            self.stable_rounds = 0;
        }
        let is_made = match self.window {
            Window::Once { .. } => true,
            Window::Stable { stable, max, .. } => self.stable_rounds > stable || self.rounds > max,
            // The step was already counted.
            Window::EachStart { stop, .. } => self.steps > stop,
        };
        self.state = if is_made {
            PlannerStage::Done
        } else {
            PlannerStage::On
        };
        is_made
    }

    /// Records the lifetime of a freed block while recording is on and no round is due.
    pub fn record(&mut self, stat: AllocStat) {
        if self.state == PlannerStage::On {
            self.pending.push(stat);
        }
    }

    /// Resets the planner.
    pub fn reset(&mut self) {
        *self = Self::new(self.window, self.fit, self.with_small);
    }

    /// Returns the plans so far.
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// Returns the lifetimes recorded since the last round.
    pub fn pending(&self) -> &[AllocStat] {
        &self.pending
    }

    /// Returns the planner's stage.
    pub fn state(&self) -> PlannerStage {
        self.state
    }

    /// Returns the number of steps begun so far.
    pub fn steps(&self) -> u64 {
        self.steps.unsigned_abs()
    }

    /// Returns the number of rounds run.
    pub fn rounds(&self) -> i64 {
        self.rounds
    }
}
