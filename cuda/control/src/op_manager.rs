//! How upstream's executor spends a slot: it inserts a share of what is *left* behind each queued operation.
//!
//! The shares shrink as they are spent, so n operations insert 1 - (1 - 1/n)^n of a slot: 75 % for 2, 65 %
//! for 10, 63.4 % for 100. [`Pacer`](crate::Pacer) divides the slot as planned at the start instead. This
//! module serves comparisons with upstream, with [`Slots::Kept`](crate::Slots::Kept).

use std::time::Duration;

/// One step of upstream's operation manager, in whole microseconds.
#[derive(Clone, Copy, Debug)]
pub struct OpManager {
    left_us: u64,
    known_ops: u64,
    ops: u64,
}

impl OpManager {
    /// Starts a step with `idle_left` of its slot. `known_ops` is the largest number of operations of a step
    /// so far, 0 while none is known. `None` if the step has nothing to insert.
    pub fn start(idle_left: Duration, known_ops: u64) -> Option<Self> {
        let left_us = u64::try_from(idle_left.as_micros()).unwrap_or(u64::MAX);
        (left_us > 0).then_some(Self {
            left_us,
            known_ops,
            ops: 0,
        })
    }

    /// The pause behind the next operation. It is 0 while no count is known, and once fewer microseconds are
    /// left than there are known operations; the rest then stays.
    pub fn op(&mut self) -> Duration {
        self.ops += 1;
        let idle_us = self.left_us.checked_div(self.known_ops).unwrap_or(0);
        self.left_us -= idle_us;
        Duration::from_micros(idle_us)
    }

    /// The time that is left of the slot.
    pub const fn idle_left(&self) -> Duration {
        Duration::from_micros(self.left_us)
    }

    /// The `known_ops` to start the next step with.
    pub const fn known_ops(&self) -> u64 {
        if self.ops > self.known_ops {
            self.ops
        } else {
            self.known_ops
        }
    }
}
