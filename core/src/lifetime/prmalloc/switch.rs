//! Whether lives are recorded, in one word that threads change by compare-and-swap.
//!
//! The word holds a state and a generation, which rises whenever recording begins anew. A round is
//! entered by one swap from *on* to *rounding* of one generation, so that of all threads that stop
//! at once exactly one wins it; a step knows the generation in which it began.
//!
//! Orderings: what a round reads was written under the planner's locks, so that the word itself
//! publishes nothing but the plan of a finished planner. It acquires and releases, which costs
//! nothing where it happens once a step.

use crate::sync::{AtomicU64, Ordering};

/// What the planner is doing.
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

const STATE_BITS: u32 = 2;

/// A count of beginnings; which one a step or round belongs to.
pub(super) type Generation = u64;

/// The word.
#[derive(Debug)]
pub(super) struct Switch(AtomicU64);

const fn word(state: PlannerStage, generation: Generation) -> u64 {
    generation << STATE_BITS | state as u64
}

impl Switch {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(word(PlannerStage::Off, 0)))
    }

    pub(super) fn read(&self) -> (PlannerStage, Generation) {
        let word = self.0.load(Ordering::Acquire);
        let state = match word % (1 << STATE_BITS) {
            0 => PlannerStage::Off,
            1 => PlannerStage::On,
            2 => PlannerStage::Rounding,
            _ => PlannerStage::Done,
        };
        (state, word >> STATE_BITS)
    }

    /// Begins recording if the state is `from`.
    pub(super) fn turn_on(&self, from: PlannerStage) -> bool {
        let (state, generation) = self.read();
        state == from && self.swap((state, generation), (PlannerStage::On, generation + 1))
    }

    /// Wins the round of a generation.
    pub(super) fn begin_round(&self, generation: Generation) -> bool {
        self.swap(
            (PlannerStage::On, generation),
            (PlannerStage::Rounding, generation),
        )
    }

    /// Ends a round that was won. False if the planner was reset meanwhile.
    pub(super) fn end_round(&self, generation: Generation, again: bool) -> bool {
        let next = if again {
            (PlannerStage::On, generation + 1)
        } else {
            (PlannerStage::Done, generation)
        };
        self.swap((PlannerStage::Rounding, generation), next)
    }

    /// Off, whatever it was; rounds and steps of before are of no generation any more.
    pub(super) fn turn_off(&self) {
        loop {
            let (state, generation) = self.read();
            if self.swap((state, generation), (PlannerStage::Off, generation + 1)) {
                return;
            }
        }
    }

    fn swap(&self, old: (PlannerStage, Generation), new: (PlannerStage, Generation)) -> bool {
        let (old, new) = (word(old.0, old.1), word(new.0, new.1));
        self.0
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}
