//! How far each lane is: the frontier of completed epochs, and the reading of stored stamps.
//!
//! A free chunk stores the low 32 bits of its epoch. Invariant E1: a stored epoch lies within
//! 2^31 of its lane's frontier, on either side, so that the difference of the low halves, read as
//! a signed number, is exact. Ahead it holds because a free too far ahead is refused; behind it
//! holds because completed stamps are cleared as soon as a frontier has moved by 2^30 since the
//! last sweep ([`must_sweep`](Lanes::must_sweep)), and it moves by at most 2^30 at once.

use crate::lane::{Epoch, Lane, Stamp};

pub(crate) struct Lanes {
    frontier: [u64; Lane::COUNT],
    /// Frontier of each lane at the last sweep.
    swept: [u64; Lane::COUNT],
    /// Whether any frontier moved since the last sweep.
    moved: bool,
}

impl Lanes {
    pub(crate) const fn new() -> Self {
        Self {
            frontier: [0; Lane::COUNT],
            swept: [0; Lane::COUNT],
            moved: false,
        }
    }

    pub(crate) fn frontier(&self, lane: Lane) -> u64 {
        self.frontier[usize::from(lane.number())]
    }

    /// How far the epoch of a stored stamp is ahead of the frontier; 0 or less means completed.
    pub(crate) fn ahead(&self, lane: Lane, epoch_low: u32) -> i64 {
        let frontier = self.frontier(lane) as u32;
        i64::from(epoch_low.wrapping_sub(frontier).cast_signed())
    }

    /// The stored stamp, if its epoch is not completed yet.
    pub(crate) fn pending(&self, stored: Option<(Lane, u32)>) -> Option<Stamp> {
        let (lane, low) = stored?;
        let ahead = u64::try_from(self.ahead(lane, low)).ok()?;
        (ahead > 0).then(|| Stamp {
            lane,
            epoch: Epoch::new(self.frontier(lane) + ahead),
        })
    }

    /// Whether the frontier of the lane has moved so far since the last sweep that stamps of
    /// completed epochs must be cleared now for E1 to hold.
    pub(crate) fn must_sweep(&self, lane: Lane) -> bool {
        let lane = usize::from(lane.number());
        self.frontier[lane] - self.swept[lane] >= Epoch::WINDOW
    }

    pub(crate) fn advance(&mut self, lane: Lane, epoch: Epoch) {
        let frontier = &mut self.frontier[usize::from(lane.number())];
        if epoch.number() > *frontier {
            *frontier = epoch.number();
            self.moved = true;
        }
    }

    pub(crate) fn moved(&self) -> bool {
        self.moved
    }

    /// Every stamp of a completed epoch has been cleared.
    pub(crate) fn set_swept(&mut self) {
        self.swept = self.frontier;
        self.moved = false;
    }
}
