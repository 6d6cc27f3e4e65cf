//! How far each lane is, and how much memory it still uses: the frontier of completed epochs, the
//! count of stamps, and the reading of stored stamps.
//!
//! A free chunk stores the low 32 bits of its epoch. Invariant E1: a stored epoch lies within
//! 2^31 of its lane's frontier, on either side, so that the difference of the low halves, read as
//! a signed number, is exact. Ahead it holds because a free too far ahead is refused; behind it
//! holds because completed stamps are cleared as soon as the frontiers together have moved by 2^30
//! since the last sweep ([`must_sweep`](Lanes::must_sweep)), and one moves by at most 2^30 at once.

use crate::lane::{Epoch, Lane, Stamp};

pub(crate) struct Lanes {
    frontier: [u64; Lane::COUNT],
    /// Free chunks that carry a stamp of the lane.
    stamps: [u32; Lane::COUNT],
    /// The same over all lanes.
    stamped: u32,
    /// The first lane that was named, and whether another one ever was.
    first: Option<Lane>,
    many: bool,
    /// How far all frontiers together moved since the last sweep.
    advanced: u64,
}

impl Lanes {
    pub(crate) const fn new() -> Self {
        Self {
            frontier: [0; Lane::COUNT],
            stamps: [0; Lane::COUNT],
            stamped: 0,
            first: None,
            many: false,
            advanced: 0,
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

    /// A free chunk has lost its stamp `before` and carries `after`.
    pub(crate) fn count(&mut self, before: Option<(Lane, u32)>, after: Option<(Lane, u32)>) {
        if let Some((lane, _)) = before {
            let stamps = &mut self.stamps[usize::from(lane.number())];
            *stamps -= 1;
            self.stamped -= 1;
        }
        if let Some((lane, _)) = after {
            let stamps = &mut self.stamps[usize::from(lane.number())];
            *stamps += 1;
            self.stamped += 1;
        }
    }

    /// A free chunk that carries a stamp of the lane took the place of so many that did.
    #[inline]
    pub(crate) fn count_joined(&mut self, lane: Lane, absorbed: u32) {
        let stamps = &mut self.stamps[usize::from(lane.number())];
        *stamps = *stamps + 1 - absorbed;
        self.stamped = self.stamped + 1 - absorbed;
    }

    /// Free chunks that carry a stamp.
    #[inline]
    pub(crate) const fn stamped(&self) -> u32 {
        self.stamped
    }

    /// Free chunks that carry a stamp of this lane.
    #[inline]
    pub(crate) fn stamped_by(&self, lane: Lane) -> u32 {
        self.stamps[usize::from(lane.number())]
    }

    /// A request or a stamp names this lane.
    #[inline]
    pub(crate) fn meet(&mut self, lane: Lane) {
        if self.first != Some(lane) {
            self.many |= self.first.is_some();
            self.first = Some(lane);
        }
    }

    /// Whether more than one lane was ever named.
    #[inline]
    pub(crate) const fn many(&self) -> bool {
        self.many
    }

    /// Whether the frontiers have moved so far since the last sweep that stamps of completed
    /// epochs must be cleared now for E1 to hold.
    pub(crate) const fn must_sweep(&self) -> bool {
        self.advanced >= Epoch::WINDOW
    }

    pub(crate) fn advance(&mut self, lane: Lane, epoch: Epoch) {
        let frontier = &mut self.frontier[usize::from(lane.number())];
        let by = epoch.number().saturating_sub(*frontier);
        *frontier += by;
        self.advanced = self.advanced.saturating_add(by);
    }

    /// Whether any frontier moved since the last sweep.
    pub(crate) const fn moved(&self) -> bool {
        self.advanced > 0
    }

    /// Every stamp of a completed epoch has been cleared.
    pub(crate) const fn set_swept(&mut self) {
        self.advanced = 0;
    }
}
