//! Releasing idle memory, and the counters of pages.
//!
//! A release keeps the addresses and the bytes of the floor. It also keeps pinned memory, and memory that queued work
//! may still use through any of its mappings, because an unmap does not wait for that work.

use super::idle::IdleSearch;
use super::{PagePlan, PagePool};
use crate::stats::PoolStats;

/// The current counters of pages and handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PageStats {
    /// Number of handles held, that is, of pieces of physical memory.
    pub handles: u32,
    /// Number of mappings through which handles are used, one for each handle.
    pub active_mappings: u32,
    /// Number of mappings that the driver has and no block uses.
    pub cached_mappings: u32,
    /// Number of mappings that the driver refused to undo. Their handles cannot be released.
    pub lost_mappings: u32,
    /// Bytes of handles that no block touches and no pin holds. This memory could move. A search is bounded, so there
    /// may be more.
    pub idle_bytes: u64,
    /// Bytes of addresses ever used, mapped or unmapped.
    pub address_bytes: u64,
    /// Bytes that the pool cannot use and the driver has not taken back, because it refused to undo a plan. They count
    /// against the limit.
    pub lost_bytes: u64,
    /// Number of chunks, handles and runs of pages that searches have examined without success so far.
    pub looks: u64,
}

impl PagePool<'_> {
    /// Returns a plan that releases at least `wanted_bytes` of idle memory, or as much as there is and the floor
    /// allows. Returns `None` if nothing can be released. Handles in the largest chunks are released first. A plan
    /// comes from one search, which ends after 1,024 handles; the next plan then releases more.
    pub fn plan_release(&mut self, wanted_bytes: u64) -> Option<PagePlan> {
        let held = self.chunks.reserved_bytes();
        let max = held.saturating_sub(self.config.floor_bytes);
        let wanted = wanted_bytes.min(max);
        if wanted == 0 {
            return None;
        }
        self.chunks.sweep();
        let mut plan = PagePlan::new(self.chunks.id());
        self.plans += 1;
        for most in [wanted, max] {
            // The last handle may exceed the wanted bytes.
            let wanted = IdleSearch {
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

    /// Returns how far the limit could be lowered now: the bytes held or under way, and the part of them that would
    /// stay if [`plan_release`](Self::plan_release) released all it can. These stay: memory of blocks and of queued
    /// work, pinned memory, the floor, and lost memory. The result is exact unless the search ends before it has seen
    /// all handles. O(idle handles), and O(chunks) if streams have points.
    pub(super) fn stats_of_pages(&mut self) -> PoolStats {
        let held = self.chunks.reserved_bytes();
        let max = held.saturating_sub(self.config.floor_bytes);
        self.chunks.sweep();
        let all = self.releasable(&PagePlan::new(self.chunks.id()), u64::MAX, max);
        let idle = self.find_idle(all);
        let releasable = self.page_bytes(idle.pages);
        let pool_bytes = self.chunks.taken_bytes();
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(releasable),
        }
    }

    /// Returns the bytes that the pool cannot use and the driver has not taken back. O(1).
    pub const fn lost_bytes(&self) -> u64 {
        self.lost
    }

    /// Returns the counters of pages and handles. They include handles and mappings that a plan under way creates.
    /// O(idle handles).
    pub fn page_stats(&mut self) -> PageStats {
        let idle = self.find_idle(IdleSearch::new(None, u32::MAX));
        let (handles, mappings) = (&self.pages.handles, &self.pages.mappings);
        let lost = self.lost_mappings;
        let active = handles.in_use() - self.lost_handles;
        PageStats {
            handles: handles.in_use(),
            active_mappings: active,
            cached_mappings: mappings.in_use().saturating_sub(active + lost),
            lost_mappings: lost,
            idle_bytes: self.page_bytes(idle.pages),
            address_bytes: self.chunks.granule().bytes_of(self.end()),
            lost_bytes: self.lost,
            looks: self.looks,
        }
    }
}
