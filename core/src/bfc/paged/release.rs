//! Giving idle memory back, by order and by age, and the counters of pages.
//!
//! By order: so many bytes, as when a limit was lowered or another process wants them. By age: what
//! no moment of the last steps needed, which is what is held less the most that was live. (The age
//! of a single page says less: one that is idle at every step's end may be needed in its middle.)
//!
//! Addresses are kept, and so is what the floor says. Pinned memory stays, and memory that queued
//! work may still use through any of its mappings, as an unmap does not wait for it.

use super::idle::Wanted;
use super::{Bfc, PagePlan, Paged};
use crate::stats::PoolStats;

/// How many steps are remembered.
const STEPS: usize = 16;

/// Most granules live in each of the last steps.
pub(super) struct LastSteps {
    peaks: [u64; STEPS],
    steps: usize,
}

impl LastSteps {
    pub(super) const fn new() -> Self {
        Self {
            peaks: [0; STEPS],
            steps: 0,
        }
    }

    pub(super) fn end_step(&mut self, peak: u64) {
        if let Some(oldest) = self.peaks.get_mut(self.steps % STEPS) {
            *oldest = peak;
        }
        self.steps += 1;
    }

    /// Most live in the last `steps` steps; `None` if there were fewer, or more are asked for than
    /// are remembered.
    fn peak(&self, steps: usize) -> Option<u64> {
        if steps == 0 || steps > self.steps.min(STEPS) {
            return None;
        }
        let last = (self.steps - steps..self.steps).map(|step| self.peaks[step % STEPS]);
        last.max()
    }
}

/// Counters of pages and handles now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PageStats {
    /// Pieces of physical memory held.
    pub handles: u32,
    /// Mappings through which they are used: one a handle.
    pub active_mappings: u32,
    /// Mappings that the driver knows and nobody uses.
    pub cached_mappings: u32,
    /// Mappings that the driver refused to undo; their handles cannot be released.
    pub lost_mappings: u32,
    /// Bytes of handles that no block touches and no pin holds: what could move, as far as one search sees.
    pub idle_bytes: u64,
    /// Bytes of addresses ever used, mapped or unmapped.
    pub address_bytes: u64,
    /// Bytes the driver neither uses for us nor took back, after it refused to undo a plan. They
    /// count against the limit.
    pub lost_bytes: u64,
    /// Chunks, handles and stretches of pages that searches have looked at in vain so far.
    pub looks: u64,
}

impl Bfc<'_, Paged<'_>> {
    /// A plan that gives back at least `wanted_bytes` of idle memory, as far as there is so much
    /// and the floor allows; `None` if nothing can go. What lies in the largest chunks goes first. A plan is of one
    /// search, which ends after 1,024 handles: with more idle, the next plan gives the rest.
    pub fn plan_release(&mut self, wanted_bytes: u64) -> Option<PagePlan> {
        self.plan_release_of(wanted_bytes, true)
    }

    /// A plan that gives back idle memory; no more than wanted unless `more` is allowed.
    fn plan_release_of(&mut self, wanted_bytes: u64, more: bool) -> Option<PagePlan> {
        let held = self.reserved_bytes();
        let max = held.saturating_sub(self.memory.config.floor_bytes);
        let wanted = wanted_bytes.min(max);
        if wanted == 0 {
            return None;
        }
        self.sweep();
        let mut plan = PagePlan::new(self.table.owner());
        self.memory.plans += 1;
        for most in [wanted, if more { max } else { wanted }] {
            // The last one may give more than is wanted.
            let wanted = Wanted {
                counts_all: true,
                ..self.releasable(&plan, wanted, most)
            };
            self.release_idle(&mut plan, wanted);
        }
        if plan.releasing == 0 {
            self.abandon(plan);
            return None;
        }
        Some(plan)
    }

    /// How far the limit could be lowered now: what is held or under way, and what of it would stay if
    /// [`plan_release`](Self::plan_release) were asked for all: what blocks and queued work use, pins, the
    /// floor, and what was lost. Exact unless a search ends before it has seen all. O(idle handles), and O(chunks) if streams
    /// have points.
    pub(super) fn pool_stats_of_pages(&mut self) -> PoolStats {
        let held = self.reserved_bytes();
        let max = held.saturating_sub(self.memory.config.floor_bytes);
        self.sweep();
        let all = self.releasable(&PagePlan::new(self.table.owner()), u64::MAX, max);
        let idle = self.find_idle(all);
        let releasable = self.page_bytes(idle.pages);
        let pool_bytes = self.taken_bytes();
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(releasable),
        }
    }

    /// A plan that gives back what no moment of the last `steps` steps and of the present one
    /// needed; `None` if there is nothing, fewer steps have ended, or `steps` is 0 or above 16.
    /// Cost as [`plan_release`](Self::plan_release).
    pub fn plan_release_unneeded(&mut self, steps: usize) -> Option<PagePlan> {
        let counters = &self.counters;
        let needed = self.memory.window.peak(steps)?.max(counters.step_peak());
        let needed_bytes = needed * self.granule.bytes();
        let unneeded = self.reserved_bytes().saturating_sub(needed_bytes);
        // No more, as that would be asked for again.
        self.plan_release_of(unneeded, false)
    }

    /// Bytes the driver neither uses for us nor took back. O(1).
    pub const fn lost_bytes(&self) -> u64 {
        self.memory.lost
    }

    /// Counters of pages; those that a plan under way creates are counted. O(idle handles).
    pub fn page_stats(&mut self) -> PageStats {
        let idle = self.find_idle(Wanted::new(None, u32::MAX));
        let (handles, mappings) = (&self.memory.pages.handles, &self.memory.pages.mappings);
        let lost = self.memory.lost_mappings;
        let active = handles.in_use() - self.memory.lost_handles;
        PageStats {
            handles: handles.in_use(),
            active_mappings: active,
            cached_mappings: mappings.in_use().saturating_sub(active + lost),
            lost_mappings: lost,
            idle_bytes: self.page_bytes(idle.pages),
            address_bytes: self.granule.bytes_of(self.end()),
            lost_bytes: self.memory.lost,
            looks: self.memory.looks,
        }
    }
}
