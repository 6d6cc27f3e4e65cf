//! The planner: counts steps, records lives in its window, and returns a round when one is due.
//!
//! It runs nothing by itself: a due round is a value, and its holder runs it, immediately or on another thread. Steps
//! may come from many threads. A planner has one plan, so loads of different shapes need separate planners.
//!
//! Locks: the state (plans and counts of rounds), then the notes. A free takes only the lock of the notes, and a round
//! holds this lock only while it takes over the records.

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

/// The state that rounds work on.
struct PlannerState {
    plans: Plans,
    rounds: i64,
    stable_rounds: i64,
    failed: Option<PlanError>,
}

/// The lives recorded since the last round, and the planner's stage.
struct Notes {
    stage: PlannerStage,
    generation: Generation,
    stats: FixedVec<AllocStat>,
    lost: u64,
}

/// Number of times that recording has begun or was abandoned. A step or round belongs to one generation.
type Generation = u64;

/// The stage of a planner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlannerStage {
    /// Recording has not begun.
    Off,
    /// Lives are recorded.
    On,
    /// A round is due or under way.
    Rounding,
    /// The plan is made, or could not be made.
    Done,
}

/// A step that has begun.
#[derive(Debug)]
#[must_use = "a step ends with `stop`"]
pub struct OpenStep {
    generation: Generation,
}

/// A round that is due. The caller runs it once, on any thread.
#[derive(Debug)]
#[must_use = "nothing is recorded until the round has been run"]
pub struct Round {
    generation: Generation,
}

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundEnd<T = ()> {
    /// Recording continues.
    Again,
    /// The plan is made.
    Finished(T),
}

/// The progress of a planner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PlannerProgress {
    /// Number of steps begun.
    pub steps: u64,
    /// Number of rounds run.
    pub rounds: i64,
    /// Number of stable rounds in a row, up to the last round.
    pub stable_rounds: i64,
    /// The current stage.
    pub state: PlannerStage,
    /// The error, if a round failed.
    pub failed: Option<PlanError>,
}

impl<W: Wait> Planner<W> {
    /// Creates a planner at step 0.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for the records.
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

    /// Begins a step. O(1).
    pub fn start(&self) -> OpenStep {
        if !self.config.enabled {
            return OpenStep { generation: 0 };
        }
        // A step number of 2^63 or more is beyond every window.
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

    /// Ends a step. Returns a round if lives are recorded and the step began since the last round.
    /// O(1).
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

    /// Runs a round. O(n log n + n b) for n recorded lives and b planned blocks.
    ///
    /// # Errors
    /// [`PlanError`] if a table is full; there is then no plan, and the planner is done. [`PlanError::Outdated`] if the
    /// planner was reset after the round became due; nothing has changed then.
    pub fn run(&self, round: Round) -> Result<RoundEnd, PlanError> {
        self.run_and(round, |_| ())
    }

    /// Runs a round. Once the plan is made, `finish` takes it under the state's lock, before another round can begin.
    pub(super) fn run_and<T>(
        &self,
        round: Round,
        finish: impl FnOnce(&mut Plans) -> T,
    ) -> Result<RoundEnd<T>, PlanError> {
        self.state.with(|state| {
            // This stage ends, or is reset, only under the state's lock.
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

    /// Records the life of a freed block that was allocated in step `born_step`, if lives are recorded and the block is
    /// not too old for the plan. If there is no room for a life, the next round will fail. O(1).
    pub fn record(&self, stat: AllocStat, born_step: u64) {
        let age = self.steps().saturating_sub(born_step);
        if age <= self.config.max_age_steps {
            self.notes.with(|notes| notes.record(stat));
        }
    }

    /// Returns the number of steps that have begun.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Returns the cheapest plan so far, which is empty if nothing was recorded. Returns `None` if the planner is not
    /// enabled or a round failed.
    pub fn best(&self) -> Option<Best> {
        self.with_plans(Plans::best)
    }

    /// Runs `f` with the plans, under their lock. Returns `None` in the cases in which [`best`](Self::best) does. Once
    /// the cheapest plan is made, a [`TensorPool`](super::TensorPool) moves its bins out.
    pub fn with_plans<R>(&self, f: impl FnOnce(&Plans) -> R) -> Option<R> {
        self.state.with(|state| {
            let usable = self.config.enabled && state.failed.is_none();
            usable.then(|| f(&state.plans))
        })
    }

    /// Returns the planner's progress.
    pub fn progress(&self) -> PlannerProgress {
        self.state.with(|state| PlannerProgress {
            steps: self.steps(),
            rounds: state.rounds,
            stable_rounds: state.stable_rounds,
            state: self.state(),
            failed: state.failed,
        })
    }

    /// Returns the planner's stage. O(1).
    pub fn state(&self) -> PlannerStage {
        self.notes.with(|notes| notes.stage)
    }

    /// Resets the planner to step 0, with nothing recorded, no rounds and no plan. Earlier steps and rounds no longer
    /// have any effect.
    pub fn reset(&self) {
        self.state.with(|state| {
            self.steps.store(0, Ordering::Relaxed);
            self.forget(state, PlannerStage::Off);
        });
    }

    /// Restarts recording if the planner is done and `may` returns `true`. No round can end while `may` runs. Returns
    /// whether recording restarted.
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

    /// Begins a stage and a new generation, to which earlier steps and rounds do not belong.
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
