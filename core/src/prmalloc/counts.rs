//! The counts of a pool, and the rule by which its plan is worn out.

use super::config::Replan;

/// Requests that a pool served, and bytes that it holds. The first three counts leave out sizes that are not planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolCounts {
    /// Requests served by the plan.
    pub hits: u64,
    /// Requests that the plan did not serve because all suitable blocks were in use.
    pub missed: u64,
    /// Requests that the plan did not serve because it has no bin for the size.
    pub no_bin: u64,
    /// Bytes held in slabs.
    pub slab_bytes: u64,
    /// Bytes held for blocks of the backend.
    pub direct_bytes: u64,
}

impl PoolCounts {
    /// Returns the bytes held from the backend.
    pub const fn reserved_bytes(&self) -> u64 {
        self.slab_bytes + self.direct_bytes
    }
}

/// The counts when the last step ended.
#[derive(Debug, Default)]
pub(super) struct StepWatch {
    last: PoolCounts,
    bad_steps: u32,
}

impl StepWatch {
    /// Begins to watch a plan.
    pub(super) fn begin(&mut self, counts: PoolCounts) {
        self.last = counts;
        self.bad_steps = 0;
    }

    /// Notes the end of a step. Returns whether the plan is now worn out.
    pub(super) fn is_worn_out(&mut self, rule: Replan, counts: PoolCounts) -> bool {
        let misses = |counts: PoolCounts| counts.missed.saturating_add(counts.no_bin);
        let missed = misses(counts).saturating_sub(misses(self.last));
        let hit = counts.hits.saturating_sub(self.last.hits);
        self.last = counts;
        let of_all = hit.saturating_add(missed).saturating_mul(rule.miss_percent);
        if missed.saturating_mul(100) > of_all {
            self.bad_steps += 1;
        } else {
            self.bad_steps = 0;
        }
        let worn_out = self.bad_steps >= rule.steps;
        if worn_out {
            self.bad_steps = 0;
        }
        worn_out
    }
}
