//! The planner: counts steps, records lives while it should, and says when a round is due.
//!
//! It runs nothing by itself: a due round is a value, and whoever got it runs it, at once or on
//! another thread. Steps may come from many threads; the plan belongs to the planner, so that loads
//! of different shape are planned apart by giving each its own.
//!
//! Locks: the state (plans and counts of rounds), then the pending lives. Whoever frees a block
//! takes the second only, and a round holds that just to copy what was recorded.

use super::AllocStat;
use super::config::{PlannerConfig, Window};
use super::error::PlanError;
use super::plans::{Best, Plans};
use super::switch::{Generation, State, Switch};
use super::tables::PlanTables;
use crate::sync::{AtomicU64, Locked, Ordering, Spin, Wait};

/// The tables of a [`Planner`].
#[derive(Debug)]
pub struct PlannerTables<'t> {
    /// One a block freed between two rounds.
    pub pending: &'t mut [AllocStat],
    /// The tables of the plans.
    pub plans: PlanTables<'t>,
}

/// Records steps and plans their memory.
pub struct Planner<'t, W: Wait = Spin> {
    config: PlannerConfig,
    steps: AtomicU64,
    switch: Switch,
    state: Locked<PlannerState<'t>, W>,
    pending: Locked<Pending<'t>, W>,
}

/// What rounds work on.
struct PlannerState<'t> {
    plans: Plans<'t>,
    rounds: i64,
    stable_rounds: i64,
    failed: Option<PlanError>,
}

/// What was recorded since the last round.
struct Pending<'t> {
    stats: &'t mut [AllocStat],
    count: usize,
    lost: u64,
}

/// A step under way.
#[derive(Debug)]
#[must_use = "a step ends with `stop`"]
pub struct Step {
    generation: Generation,
}

/// A round that is due: to be run once, by whom and where the caller likes.
#[derive(Debug)]
#[must_use = "nothing is recorded until the round has been run"]
pub struct Round {
    generation: Generation,
    last: bool,
}

/// What came of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundEnd<T = ()> {
    /// Recording goes on.
    Again,
    /// The plan is made.
    Finished(T),
}

/// How far a planner is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Steps begun.
    pub steps: u64,
    /// Rounds run.
    pub rounds: i64,
    /// How many of the last ones in a row were stable.
    pub stable_rounds: i64,
    /// What it is doing.
    pub state: State,
    /// Why there is no plan, if a round failed.
    pub failed: Option<PlanError>,
}

impl<'t, W: Wait> Planner<'t, W> {
    /// A planner at step 0.
    pub fn new(config: PlannerConfig, tables: PlannerTables<'t>) -> Self {
        Self {
            config,
            steps: AtomicU64::new(0),
            switch: Switch::new(),
            state: Locked::new(PlannerState {
                plans: Plans::new(config, tables.plans),
                rounds: 0,
                stable_rounds: 0,
                failed: None,
            }),
            pending: Locked::new(Pending {
                stats: tables.pending,
                count: 0,
                lost: 0,
            }),
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &PlannerConfig {
        &self.config
    }

    /// A step begins. The round, if one is due, comes before the step's first allocation. O(1).
    pub fn start(&self) -> (Step, Option<Round>) {
        if !self.config.enabled {
            return (Step { generation: 0 }, None);
        }
        // A count that passes 2^63 counts as passed windows.
        let step = i64::try_from(self.steps.fetch_add(1, Ordering::Relaxed)).unwrap_or(i64::MAX);
        let (start, stop) = match self.config.window {
            Window::Stable { start, .. } => (start, None),
            Window::Once { start, stop } => (start, (step >= stop).then_some(true)),
            Window::EachStart { start, stop } => (start, Some(step >= stop)),
        };
        let round = stop.and_then(|last| {
            let generation = self.switch.begin_round(None)?;
            Some(Round { generation, last })
        });
        if step == start {
            self.switch.turn_on(State::Off);
        }
        let (_, generation) = self.switch.read();
        (Step { generation }, round)
    }

    /// A step ends. O(1).
    pub fn stop(&self, step: Step) -> Option<Round> {
        if !self.config.enabled || !matches!(self.config.window, Window::Stable { .. }) {
            return None;
        }
        let only = self.config.whole_steps.then_some(step.generation);
        let generation = self.switch.begin_round(only)?;
        Some(Round {
            generation,
            last: false,
        })
    }

    /// A step that runs due rounds itself: one now, and one when it is dropped.
    pub fn collect(&self) -> Collector<'_, 't, W> {
        let (step, round) = self.start();
        self.run_inline(round);
        Collector {
            planner: self,
            step: Some(step),
        }
    }

    /// Runs a round. O(n log n + n b) in lives recorded and blocks planned.
    ///
    /// # Errors
    /// A table was full: there is no plan, and the planner is done. Or it was reset since the round
    /// was due: nothing happens.
    pub fn run(&self, round: Round) -> Result<RoundEnd, PlanError> {
        self.run_and(round, |_| ())
    }

    /// Runs a round; when the plan is made, `finish` takes from it what it needs before anybody can begin
    /// another. It runs under the state's lock.
    pub(super) fn run_and<T>(
        &self,
        round: Round,
        finish: impl FnOnce(&Plans<'t>) -> T,
    ) -> Result<RoundEnd<T>, PlanError> {
        self.state.with(|state| {
            if self.switch.read() != (State::Rounding, round.generation) {
                return Err(PlanError::Outdated);
            }
            self.pending
                .with(|pending| pending.move_to(&mut state.plans));
            state.rounds += 1;
            match state.plans.fit() {
                Ok(true) => state.stable_rounds += 1,
                Ok(false) => state.stable_rounds = 0,
                Err(error) => {
                    state.failed = Some(error);
                    self.switch.end_round(round.generation, false);
                    return Err(error);
                }
            }
            if !round.last && !self.is_enough(state) {
                self.switch.end_round(round.generation, true);
                return Ok(RoundEnd::Again);
            }
            let taken = finish(&state.plans);
            self.switch.end_round(round.generation, false);
            Ok(RoundEnd::Finished(taken))
        })
    }

    fn is_enough(&self, state: &PlannerState<'_>) -> bool {
        match self.config.window {
            Window::Stable { stable, max, .. } => {
                state.stable_rounds > stable || state.rounds > max
            }
            Window::Once { .. } | Window::EachStart { .. } => false,
        }
    }

    /// Records that a block was freed that was allocated in step `born_step`, if lives are recorded
    /// and it is not too old for the plan. A life without a record is counted and fails the next
    /// round. O(1).
    pub fn record(&self, stat: AllocStat, born_step: u64) {
        let recorded = match self.switch.read().0 {
            State::On => true,
            State::Rounding => self.config.whole_steps,
            State::Off | State::Done => false,
        };
        let age = self.steps().saturating_sub(born_step);
        if recorded && age <= self.config.max_age_steps {
            self.pending.with(|pending| pending.push(stat));
        }
    }

    /// Steps begun so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The cheapest plan so far, which with nothing recorded is an empty one; `None` if the planner
    /// is off for good or a round failed.
    pub fn best(&self) -> Option<Best> {
        self.with_plans(|plans| plans.best())
    }

    /// Reads the plans, under their lock; `None` as for [`best`](Self::best).
    pub fn with_plans<R>(&self, f: impl FnOnce(&Plans<'t>) -> R) -> Option<R> {
        self.state.with(|state| {
            let usable = self.config.enabled && state.failed.is_none();
            usable.then(|| f(&state.plans))
        })
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.state.with(|state| Progress {
            steps: self.steps(),
            rounds: state.rounds,
            stable_rounds: state.stable_rounds,
            state: self.switch.read().0,
            failed: state.failed,
        })
    }

    /// What it is doing. O(1), without a lock.
    pub fn state(&self) -> State {
        self.switch.read().0
    }

    /// Makes the planner new: step 0, nothing recorded, no rounds, no plan. Steps and rounds of before
    /// mean nothing any more.
    pub fn reset(&self) {
        self.state.with(|state| {
            self.switch.turn_off();
            self.steps.store(0, Ordering::Relaxed);
            self.forget(state);
        });
    }

    /// Begins to record anew at once, if the planner is done. Says whether it was.
    pub fn restart(&self) -> bool {
        self.restart_if(|| true)
    }

    /// Begins to record anew if the planner is done and `may` says so, which is asked when no round can
    /// end. Says whether it does.
    pub(super) fn restart_if(&self, may: impl FnOnce() -> bool) -> bool {
        self.state.with(|state| {
            let done = self.config.enabled && self.switch.read().0 == State::Done;
            let begins = done && may();
            if begins {
                self.forget(state);
                self.switch.turn_on(State::Done);
            }
            begins
        })
    }

    /// The tables, for another planner.
    pub fn into_tables(self) -> PlannerTables<'t> {
        PlannerTables {
            pending: self.pending.into_inner().stats,
            plans: self.state.into_inner().plans.into_tables(),
        }
    }

    fn forget(&self, state: &mut PlannerState<'t>) {
        state.plans.clear();
        state.rounds = 0;
        state.stable_rounds = 0;
        state.failed = None;
        self.pending.with(Pending::clear);
    }

    fn run_inline(&self, round: Option<Round>) {
        if let Some(round) = round {
            // What went wrong stands in `progress`.
            let _ = self.run(round);
        }
    }
}

impl Pending<'_> {
    fn push(&mut self, stat: AllocStat) {
        match self.stats.get_mut(self.count) {
            Some(record) => {
                *record = stat;
                self.count += 1;
            }
            None => self.lost += 1,
        }
    }

    fn move_to(&mut self, plans: &mut Plans<'_>) {
        plans.push_all(&self.stats[..self.count], self.lost);
        self.clear();
    }

    fn clear(&mut self) {
        self.count = 0;
        self.lost = 0;
    }
}

/// A step of a [`Planner`] that ends when this is dropped.
#[must_use = "dropped at once, the step ends at once"]
pub struct Collector<'p, 't, W: Wait = Spin> {
    planner: &'p Planner<'t, W>,
    step: Option<Step>,
}

impl<W: Wait> Drop for Collector<'_, '_, W> {
    fn drop(&mut self) {
        if let Some(step) = self.step.take() {
            let round = self.planner.stop(step);
            self.planner.run_inline(round);
        }
    }
}
