//! The planner: counts steps, records lives while it should, and says when a round is due.
//!
//! It runs nothing by itself: a due round is a value, and whoever got it runs it, at once or on
//! another thread. Steps may come from many threads; the plan belongs to the planner, so that loads
//! of different shape are planned apart by giving each its own.
//!
//! Locks: the state (plans and counts of rounds), then the notes. Whoever frees a block takes the second
//! only, and a round holds that just to take over what was recorded.

use super::config::{PlanCapacity, PlannerConfig};
use super::error::PlanError;
use super::life::AllocStat;
use super::plans::{Best, Plans};
use super::records::MAX_RECORDS;
use crate::error::ConfigError;
use crate::sync::{AtomicU64, Locked, Ordering, Spin, Wait};
use crate::table::fixed_vec::FixedVec;

/// Records steps and plans their memory.
pub struct Planner<W: Wait = Spin> {
    config: PlannerConfig,
    steps: AtomicU64,
    state: Locked<PlannerState, W>,
    notes: Locked<Notes, W>,
}

/// What rounds work on.
struct PlannerState {
    plans: Plans,
    rounds: i64,
    stable_rounds: i64,
    failed: Option<PlanError>,
}

/// What was recorded since the last round, and what the planner is doing.
struct Notes {
    stage: PlannerStage,
    generation: Generation,
    stats: FixedVec<AllocStat>,
    lost: u64,
}

/// How often recording began or was given up. A step or round belongs to one of these times.
type Generation = u64;

/// What a planner is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlannerStage {
    /// Nothing is recorded yet.
    Off,
    /// Lives are recorded.
    On,
    /// A round is due or under way.
    Rounding,
    /// The plan is made, or could not be.
    Done,
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

impl<W: Wait> Planner<W> {
    /// A planner at step 0.
    ///
    /// # Errors
    /// The heap has no memory for so many records.
    pub fn new(config: PlannerConfig, room: PlanCapacity) -> Result<Self, ConfigError> {
        Ok(Self {
            config,
            steps: AtomicU64::new(0),
            state: Locked::new(PlannerState {
                plans: Plans::new(room)?,
                rounds: 0,
                stable_rounds: 0,
                failed: None,
            }),
            notes: Locked::new(Notes {
                stage: PlannerStage::Off,
                generation: 0,
                stats: FixedVec::new(room.stats.min(MAX_RECORDS))?,
                lost: 0,
            }),
        })
    }

    /// A step begins. O(1).
    pub fn start(&self) -> OpenStep {
        if !self.config.enabled {
            return OpenStep { generation: 0 };
        }
        // A count that passes 2^63 counts as passed windows.
        let step = i64::try_from(self.steps.fetch_add(1, Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.notes.with(|notes| {
            if step == self.config.window.start && notes.stage == PlannerStage::Off {
                notes.begin(PlannerStage::On);
            }
            OpenStep {
                generation: notes.generation,
            }
        })
    }

    /// A step ends. The round of a step that began in it is due then. O(1).
    pub fn stop(&self, step: OpenStep) -> Option<Round> {
        let OpenStep { generation } = step;
        let due = self.notes.with(|notes| {
            let due = notes.is(PlannerStage::On, generation);
            if due {
                notes.stage = PlannerStage::Rounding;
            }
            due
        });
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
        finish: impl FnOnce(&mut Plans) -> T,
    ) -> Result<RoundEnd<T>, PlanError> {
        self.state.with(|state| {
            // Nobody ends or resets it but under the state's lock.
            let is_due = self.notes.with(|notes| {
                let is_due = notes.is(PlannerStage::Rounding, round.generation);
                if is_due {
                    let lost = core::mem::take(&mut notes.lost);
                    state.plans.swap_stats(&mut notes.stats, lost);
                }
                is_due
            });
            if !is_due {
                return Err(PlanError::Outdated);
            }
            state.rounds += 1;
            match state.plans.fit() {
                Ok(true) => state.stable_rounds += 1,
                Ok(false) => state.stable_rounds = 0,
                Err(error) => {
                    state.failed = Some(error);
                    self.end();
                    return Err(error);
                }
            }
            let window = self.config.window;
            if state.stable_rounds <= window.stable && state.rounds <= window.max {
                self.notes.with(|notes| notes.begin(PlannerStage::On));
                return Ok(RoundEnd::Again);
            }
            let taken = finish(&mut state.plans);
            self.end();
            Ok(RoundEnd::Finished(taken))
        })
    }

    fn end(&self) {
        self.notes.with(|notes| notes.stage = PlannerStage::Done);
    }

    /// Records that a block was freed that was allocated in step `born_step`, if lives are recorded
    /// and it is not too old for the plan. A life without a record is counted and fails the next
    /// round. O(1).
    pub fn record(&self, stat: AllocStat, born_step: u64) {
        let age = self.steps().saturating_sub(born_step);
        if age <= self.config.max_age_steps {
            self.notes.with(|notes| notes.record(stat));
        }
    }

    /// Steps begun so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The cheapest plan so far, which with nothing recorded is an empty one; `None` if the planner
    /// is off for good or a round failed.
    pub fn best(&self) -> Option<Best> {
        self.with_plans(Plans::best)
    }

    /// Reads the plans, under their lock; `None` as for [`best`](Self::best). A
    /// [`TensorPool`](super::TensorPool) takes the bins of the cheapest one when that is made.
    pub fn with_plans<R>(&self, f: impl FnOnce(&Plans) -> R) -> Option<R> {
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
            state: self.state(),
            failed: state.failed,
        })
    }

    /// What it is doing. O(1).
    pub fn state(&self) -> PlannerStage {
        self.notes.with(|notes| notes.stage)
    }

    /// Makes the planner new: step 0, nothing recorded, no rounds, no plan. Steps and rounds of before
    /// mean nothing any more.
    pub fn reset(&self) {
        self.state.with(|state| {
            self.steps.store(0, Ordering::Relaxed);
            self.forget(state, PlannerStage::Off);
        });
    }

    /// Begins to record anew if the planner is done and `may` says so, which is asked when no round can
    /// end. Says whether it does.
    pub(super) fn restart_if(&self, may: impl FnOnce() -> bool) -> bool {
        self.state.with(|state| {
            let done = self.config.enabled && self.state() == PlannerStage::Done;
            let begins = done && may();
            if begins {
                self.forget(state, PlannerStage::On);
            }
            begins
        })
    }

    fn forget(&self, state: &mut PlannerState, stage: PlannerStage) {
        state.plans.clear();
        state.rounds = 0;
        state.stable_rounds = 0;
        state.failed = None;
        self.notes.with(|notes| {
            notes.stats.clear();
            notes.lost = 0;
            notes.begin(stage);
        });
    }
}

impl Notes {
    fn is(&self, stage: PlannerStage, generation: Generation) -> bool {
        self.stage == stage && self.generation == generation
    }

    /// Begins a stage to which steps and rounds of before do not belong.
    fn begin(&mut self, stage: PlannerStage) {
        self.stage = stage;
        self.generation += 1;
    }

    fn record(&mut self, stat: AllocStat) {
        let recorded = matches!(self.stage, PlannerStage::On | PlannerStage::Rounding);
        if recorded && !self.stats.push(stat) {
            self.lost += 1;
        }
    }
}
