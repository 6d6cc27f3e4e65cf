//! The planner: counts steps, records lives while it should, and says when a round is due.
//!
//! It runs nothing by itself: a due round is a value, and whoever got it runs it, at once or on
//! another thread. Steps may come from many threads; the plan belongs to the planner, so that loads
//! of different shape are planned apart by giving each its own.
//!
//! Locks: the state (plans and counts of rounds), then the pending lives. Whoever frees a block
//! takes the second only, and a round holds that just to copy what was recorded.

use super::AllocStat;
use super::config::PlannerConfig;
use super::error::PlanError;
use super::plans::{Best, Plans};
use super::switch::{Generation, PlannerStage, Switch};
use super::tables::PlanTables;
use crate::sync::{AtomicU64, Locked, Ordering, Spin, Wait};

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
pub struct OpenStep {
    generation: Generation,
}

/// A round that is due: to be run once, by whom and where the caller likes.
#[derive(Debug)]
#[must_use = "nothing is recorded until the round has been run"]
pub struct Round {
    generation: Generation,
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
#[non_exhaustive]
pub struct Progress {
    /// Steps begun.
    pub steps: u64,
    /// Rounds run.
    pub rounds: i64,
    /// How many of the last ones in a row were stable.
    pub stable_rounds: i64,
    /// What it is doing.
    pub state: PlannerStage,
    /// Why there is no plan, if a round failed.
    pub failed: Option<PlanError>,
}

impl<'t, W: Wait> Planner<'t, W> {
    /// A planner at step 0. Of `pending` it takes a record for each block freed between two rounds.
    pub fn new(config: PlannerConfig, pending: &'t mut [AllocStat], plans: PlanTables<'t>) -> Self {
        Self {
            config,
            steps: AtomicU64::new(0),
            switch: Switch::new(),
            state: Locked::new(PlannerState {
                plans: Plans::new(plans),
                rounds: 0,
                stable_rounds: 0,
                failed: None,
            }),
            pending: Locked::new(Pending {
                stats: pending,
                count: 0,
                lost: 0,
            }),
        }
    }

    /// A step begins. O(1).
    pub fn start(&self) -> OpenStep {
        if !self.config.enabled {
            return OpenStep { generation: 0 };
        }
        // A count that passes 2^63 counts as passed windows.
        let step = i64::try_from(self.steps.fetch_add(1, Ordering::Relaxed)).unwrap_or(i64::MAX);
        if step == self.config.window.start {
            self.switch.turn_on(PlannerStage::Off);
        }
        let (_, generation) = self.switch.read();
        OpenStep { generation }
    }

    /// A step ends. The round of a step that began in it is due then. O(1).
    pub fn stop(&self, step: OpenStep) -> Option<Round> {
        let OpenStep { generation } = step;
        let due = self.config.enabled && self.switch.begin_round(generation);
        due.then_some(Round { generation })
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
            if self.switch.read() != (PlannerStage::Rounding, round.generation) {
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
            let window = self.config.window;
            if state.stable_rounds <= window.stable && state.rounds <= window.max {
                self.switch.end_round(round.generation, true);
                return Ok(RoundEnd::Again);
            }
            let taken = finish(&state.plans);
            self.switch.end_round(round.generation, false);
            Ok(RoundEnd::Finished(taken))
        })
    }

    /// Records that a block was freed that was allocated in step `born_step`, if lives are recorded
    /// and it is not too old for the plan. A life without a record is counted and fails the next
    /// round. O(1).
    pub fn record(&self, stat: AllocStat, born_step: u64) {
        let recorded = matches!(
            self.switch.read().0,
            PlannerStage::On | PlannerStage::Rounding
        );
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
    pub fn state(&self) -> PlannerStage {
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

    /// Begins to record anew if the planner is done and `may` says so, which is asked when no round can
    /// end. Says whether it does.
    pub(super) fn restart_if(&self, may: impl FnOnce() -> bool) -> bool {
        self.state.with(|state| {
            let done = self.config.enabled && self.switch.read().0 == PlannerStage::Done;
            let begins = done && may();
            if begins {
                self.forget(state);
                self.switch.turn_on(PlannerStage::Done);
            }
            begins
        })
    }

    /// The tables, for another planner.
    pub fn into_tables(self) -> (&'t mut [AllocStat], PlanTables<'t>) {
        let plans = self.state.into_inner().plans.into_tables();
        (self.pending.into_inner().stats, plans)
    }

    fn forget(&self, state: &mut PlannerState<'t>) {
        state.plans.clear();
        state.rounds = 0;
        state.stable_rounds = 0;
        state.failed = None;
        self.pending.with(Pending::clear);
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
