//! The plans of one load under three ways to classify sizes. [`Plans`] takes stats and returns the cheapest plan.
//!
//! It has no clock, no lock and no steps; [`Planner`](super::Planner) adds the lock and the steps.

use core::mem;

use super::class::{Classes, Interval};
use super::config::PlanCapacity;
use super::error::PlanError;
use super::fit::FitWay;
use super::life::AllocStat;
use super::policy::ClassPolicy;
use super::records::MAX_RECORDS;
use crate::error::ConfigError;
use crate::table::fixed_vec::FixedVec;

/// Stats, and a plan for each interval.
#[derive(Debug)]
pub struct Plans {
    stats: FixedVec<AllocStat>,
    /// Whether the stats are those of the last round, to which the blocks refer.
    fitted: bool,
    lost: u64,
    /// The order in which a fit takes the stats.
    order: FixedVec<u32>,
    policies: [ClassPolicy; 3],
    small: Option<ClassPolicy>,
    /// The cheapest plan, once a pool has taken it.
    taken: Option<Best>,
}

/// The cheapest plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Best {
    /// The interval of its classes.
    pub interval: Interval,
    /// Bytes that the plan needs, without sizes up to 32 KiB.
    pub bytes: u64,
}

impl Plans {
    /// Creates plans with nothing recorded.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for the records.
    pub fn new(room: PlanCapacity) -> Result<Self, ConfigError> {
        let above = |interval| ClassPolicy::new(Classes::Above(interval), room);
        let small = room.small.then(|| ClassPolicy::new(Classes::Small, room));
        Ok(Self {
            stats: FixedVec::new(room.stats.min(MAX_RECORDS))?,
            fitted: false,
            lost: 0,
            order: FixedVec::new(room.stats.min(MAX_RECORDS))?,
            policies: [
                above(Interval::KiB4)?,
                above(Interval::KiB8)?,
                above(Interval::KiB16)?,
            ],
            small: small.transpose()?,
            taken: None,
        })
    }

    /// Records a block's life for the next round. If there is no room for a life, the round will fail. O(1).
    pub fn push(&mut self, stat: AllocStat) {
        self.forget_fitted();
        if !self.stats.push(stat) {
            self.lost += 1;
        }
    }

    /// Swaps the stats of the last round with those of the next one. There was no room for `lost` more stats.
    pub(super) fn swap_stats(&mut self, stats: &mut FixedVec<AllocStat>, lost: u64) {
        self.forget_fitted();
        self.lost += lost;
        mem::swap(&mut self.stats, stats);
    }

    /// Fits the lives recorded since the last round. Returns whether the round was stable: no bin
    /// needed another block.
    ///
    /// # Errors
    /// [`PlanError`] if a table is full. The plans are then incomplete.
    pub fn fit(&mut self) -> Result<bool, PlanError> {
        if self.lost > 0 {
            return Err(PlanError::StatsFull { lost: self.lost });
        }
        // Without this, the members after an empty round would be those of the previous round.
        self.forget_fitted();
        let mut stable = true;
        self.order.resize(self.stats.len(), 0);
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            let blocks = policy.blocks.len();
            fit_policy(policy, &self.stats, &mut self.order)?;
            stable &= policy.blocks.len() == blocks;
        }
        self.fitted = true;
        Ok(stable)
    }

    /// Returns the plan of an interval.
    pub fn policy(&self, interval: Interval) -> &ClassPolicy {
        &self.policies[interval as usize]
    }

    /// Returns the plan of sizes up to 32 KiB, or `None` if these are not planned.
    pub fn small(&self) -> Option<&ClassPolicy> {
        self.small.as_ref()
    }

    /// Returns the bytes that an interval's plan needs.
    pub fn memory_bytes(&self, interval: Interval) -> u64 {
        self.policy(interval).memory_bytes()
    }

    /// Returns the cheapest plan. The smallest interval wins a tie.
    pub fn best(&self) -> Best {
        let bytes = |interval| self.memory_bytes(interval);
        let cheapest = || {
            let interval = Interval::ALL
                .into_iter()
                .min_by_key(|&interval| bytes(interval))
                .unwrap_or(Interval::KiB4);
            Best {
                interval,
                bytes: bytes(interval),
            }
        };
        self.taken.unwrap_or_else(cheapest)
    }

    /// Returns the bytes that a pool takes for the cheapest plan, sizes up to 32 KiB included.
    pub fn pool_bytes(&self) -> u64 {
        let small = self.small.as_ref().map_or(0, ClassPolicy::memory_bytes);
        self.best().bytes.saturating_add(small)
    }

    /// Returns the stats of the last round; see [`ClassPolicy::blocks`].
    pub fn stats(&self) -> &[AllocStat] {
        &self.stats
    }

    /// Swaps the cheapest plan with spare policies. [`best`](Self::best) still returns it, until
    /// the plans are [cleared](Self::clear).
    pub(super) fn swap_best(&mut self, small: &mut Option<ClassPolicy>, large: &mut ClassPolicy) {
        let best = self.best();
        self.taken = Some(best);
        let planned = &mut self.policies[best.interval as usize];
        large.clear(planned.classes());
        mem::swap(planned, large);
        if let Some(small) = small {
            small.clear(Classes::Small);
        }
        mem::swap(&mut self.small, small);
    }

    /// Forgets every stat and plan.
    pub fn clear(&mut self) {
        self.stats.clear();
        self.fitted = false;
        self.lost = 0;
        self.taken = None;
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            policy.clear(policy.classes());
        }
    }

    /// Forgets the stats of the last round, but keeps the end of each block's last life, so that lives that reach from
    /// one round into the next still count.
    fn forget_fitted(&mut self) {
        if !self.fitted {
            return;
        }
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            policy.note_ends(&self.stats);
            policy.forget_members();
        }
        self.stats.clear();
        self.fitted = false;
    }
}

/// Fits the stats into one policy twice, sorted and in the order of the frees, and keeps the smaller plan. So an
/// anomaly of first fit never makes the plan larger than upstream's.
fn fit_policy(
    policy: &mut ClassPolicy,
    stats: &[AllocStat],
    order: &mut [u32],
) -> Result<(), PlanError> {
    policy.open_bins(stats)?;
    let mark = policy.mark();
    policy.fit(stats, order, FitWay::Sorted)?;
    let bytes = policy.memory_bytes();
    policy.back_to(mark);
    let other = policy.fit(stats, order, FitWay::AsFreed);
    if other.is_err() || policy.memory_bytes() >= bytes {
        policy.back_to(mark);
        policy.fit(stats, order, FitWay::Sorted)?;
    }
    Ok(())
}
