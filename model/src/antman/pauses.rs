//! The pauses of a job that has a share of the GPU's time, in microseconds.

/// The cost of a pause in addition to its length.
const PAUSE_COST: u64 = 50;

/// A job's action at the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Continues the steps.
    Nothing,
    /// Sleeps this long, even if the share changes in the meantime.
    Sleep(u64),
    /// Waits, and checks every 100 microseconds whether the share is still 0.
    Suspend,
}

/// The formula for the pause at the end of a run.
///
/// Pauses that an [`OpManager`] inserted into a run do not count as busy time. The planned slot outlasts a suspension.
/// It also remains at full share, where it continues to be inserted until a run adjusts a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pauses {
    /// T: the last planned slot.
    slot: u64,
    /// R: the rest of the slot, which is still to be inserted.
    pub left: u64,
    /// Whether a limit was adjusted in this run.
    pub has_adjusted: bool,
}

impl Pauses {
    /// Plans the pause after a run at a share in percent.
    pub fn after_run(&mut self, percent: u64, run: u64) -> Plan {
        let has_adjusted = core::mem::take(&mut self.has_adjusted);
        if percent == 100 {
            if has_adjusted {
                *self = Self::default();
            }
            return Plan::Nothing;
        }
        if percent == 0 {
            return Plan::Suspend;
        }
        let inserted = self.slot.saturating_sub(self.left);
        let busy = run.saturating_sub(inserted).max(1);
        let whole = u128::from(busy) * 100 / u128::from(percent);
        let spent = u128::from(run) + u128::from(PAUSE_COST);
        let pause = u64::try_from(whole.saturating_sub(spent)).unwrap_or(u64::MAX);
        (self.slot, self.left) = (pause, pause);
        match pause {
            0 => Plan::Nothing,
            pause => Plan::Sleep(pause),
        }
    }
}

/// One step of the operation manager, which inserts a share of the *rest* of the slot after each queued operation.
///
/// Each share is smaller than the one before, so n operations insert 1 - (1 - 1/n)^n of a slot: 75 % for 2, 65 % for
/// 10, 63.4 % for 100.
#[derive(Clone, Copy, Debug)]
pub struct OpManager {
    left: u64,
    known_ops: u64,
    ops: u64,
}

impl OpManager {
    /// Starts a step with the rest of its slot. `known_ops` is the largest number of operations in a step so far, or 0
    /// if none is known. Returns `None` if the step has nothing to insert.
    pub fn start(left: u64, known_ops: u64) -> Option<Self> {
        (left > 0).then_some(Self {
            left,
            known_ops,
            ops: 0,
        })
    }

    /// Returns the pause after the next operation. It is 0 if no number of operations is known, or if fewer
    /// microseconds are left than there are known operations; these microseconds are then not inserted.
    pub fn op(&mut self) -> u64 {
        self.ops += 1;
        let pause = self.left.checked_div(self.known_ops).unwrap_or(0);
        self.left -= pause;
        pause
    }

    /// Returns the rest of the slot.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Returns the `known_ops` for the next step.
    pub fn known_ops(&self) -> u64 {
        self.ops.max(self.known_ops)
    }
}
