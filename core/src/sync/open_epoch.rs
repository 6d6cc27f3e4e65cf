//! [`OpenEpoch`]: the epoch that frees of a lane carry now, read without a lock.

use super::{AtomicU8, AtomicU64, Ordering};
use crate::lane::Epoch;

/// The open epoch of a lane, and whether anything was freed in it.
///
/// Whoever closes an epoch opens the next one *before* the mark (an event) of the closed one goes
/// into the lane's queue. So a thread that still reads the closed epoch read it before, its work was
/// queued before that, and the mark comes behind it, if the queue takes one thing at a time. A free
/// may carry a later epoch than it needs, never an earlier one.
///
/// Closing threads take turns; that is the caller's lock.
#[derive(Debug)]
pub struct OpenEpoch {
    open: AtomicU64,
    freed: AtomicU8,
}

impl OpenEpoch {
    /// Nothing was freed yet, and this epoch is open.
    pub fn new(open: Epoch) -> Self {
        Self {
            open: AtomicU64::new(open.number()),
            freed: AtomicU8::new(0),
        }
    }

    /// What a free carries whose work is queued already. Two loads.
    #[inline]
    pub fn stamp(&self) -> Epoch {
        // Acquire: whoever sees an epoch open also sees `freed` as it was reset before that.
        let open = self.open.load(Ordering::Acquire);
        if self.freed.load(Ordering::Relaxed) == 0 {
            self.freed.store(1, Ordering::Relaxed);
        }
        Epoch::new(open)
    }

    /// The open epoch.
    pub fn now(&self) -> Epoch {
        Epoch::new(self.open.load(Ordering::Acquire))
    }

    /// Whether something was freed in the open epoch.
    pub fn has_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) == 1
    }

    /// Opens the next epoch and gives the one that is closed; its mark is queued after this.
    pub fn close(&self) -> Epoch {
        self.freed.store(0, Ordering::Relaxed);
        let closed = self.open.load(Ordering::Relaxed);
        self.open.store(closed + 1, Ordering::Release);
        Epoch::new(closed)
    }

    /// The mark of a closed epoch was refused: there is still something to close.
    pub fn reopen(&self) {
        self.freed.store(1, Ordering::Relaxed);
    }
}
