//! What a pool counts, and when its plan no longer serves.

use super::config::Replan;

/// What a pool served and holds. Sizes below the smallest bin count nowhere in the first three.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolCounts {
    /// Served by the plan.
    pub hits: u64,
    /// Not, because all blocks of the bin were in use.
    pub missed: u64,
    /// Not, because the plan has no bin for the size.
    pub no_bin: u64,
    /// Held in slabs.
    pub slab_bytes: u64,
    /// Held for blocks of the backend.
    pub direct_bytes: u64,
}

impl PoolCounts {
    /// Held from the backend.
    pub const fn reserved_bytes(&self) -> u64 {
        self.slab_bytes + self.direct_bytes
    }
}

/// What was counted when the last step ended.
#[derive(Debug, Default)]
pub(super) struct Watch {
    last: PoolCounts,
    bad_steps: u32,
}

impl Watch {
    /// A plan begins to serve.
    pub(super) fn begin(&mut self, counts: PoolCounts) {
        self.last = counts;
        self.bad_steps = 0;
    }

    /// A step ended. Whether it was the last that the plan was given.
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
