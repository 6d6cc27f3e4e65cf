//! How many are inside a plan's slabs, and who gives them back: one word.
//!
//! Invariants:
//! * GATE1: who entered and has not left is counted. A block in use counts as one inside, so does a
//!   thread that looks.
//! * GATE2: a closed gate lets nobody enter; to visit, somebody must be inside still, or it be open.
//! * GATE3: of all that leave or close, exactly one is told that the gate is closed and nobody inside.
//!   From then on the slabs are that one's alone, until it vacates.
//!
//! Orderings: entering acquires what `open` released, the plan's tables. Leaving releases, and the
//! last one acquires, so that whoever gives the slabs back comes after everybody's use of them.

use crate::sync::{AtomicU64, Ordering};

/// Nothing inside and nothing to enter.
const VACANT: u64 = 1 << 63;
/// Nobody enters any more.
const CLOSED: u64 = 1 << 62;

/// The word.
#[derive(Debug)]
pub(super) struct Gate(AtomicU64);

impl Gate {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(VACANT))
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.0.load(Ordering::Acquire) == VACANT
    }

    /// Lets the others in. The gate is vacant, and the caller is the only one to open it.
    pub(super) fn open(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// From vacant to closed with nobody inside: the caller must give the slabs back.
    pub(super) fn seal(&self) {
        self.0.store(CLOSED, Ordering::Release);
    }

    /// Goes in, if it is open.
    pub(super) fn enter(&self) -> bool {
        self.step_in(|word| word & (VACANT | CLOSED) == 0)
    }

    /// Goes in for a look, also while it drains.
    pub(super) fn visit(&self) -> bool {
        self.step_in(|word| word & VACANT == 0 && word != CLOSED)
    }

    fn step_in(&self, may: impl Fn(u64) -> bool) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        while may(word) {
            match self
                .0
                .compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// So many leave. True if the caller must give the slabs back.
    #[must_use]
    pub(super) fn leave(&self, count: u64) -> bool {
        self.0.fetch_sub(count, Ordering::AcqRel) - count == CLOSED
    }

    /// Lets nobody in any more. True if the caller must give the slabs back.
    #[must_use]
    pub(super) fn close(&self) -> bool {
        self.0.fetch_or(CLOSED, Ordering::AcqRel) == 0
    }

    /// Lets nobody in any more, if nobody is. True if the caller must give the slabs back.
    #[must_use]
    pub(super) fn close_if_empty(&self) -> bool {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether somebody was told to give the slabs back and has not vacated.
    pub(super) fn is_drained(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLOSED
    }

    /// The slabs are gone; another plan may come. Only for who was told to give them back.
    pub(super) fn vacate(&self) {
        self.0.store(VACANT, Ordering::Release);
    }
}
