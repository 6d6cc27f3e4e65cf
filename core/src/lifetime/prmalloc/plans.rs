//! The plans of one load under three ways to class sizes: stats in, the cheapest plan out.
//!
//! A value without clock, lock or steps; [`Planner`](super::Planner) puts them around it.

use super::AllocStat;
use super::class::{Classes, Interval};
use super::error::PlanError;
use super::fit::FitWay;
use super::policy::ClassPolicy;
use super::tables::{PlanTables, nameable};

/// Stats, and a plan for each interval.
#[derive(Debug)]
pub struct Plans<'t> {
    stats: &'t mut [AllocStat],
    stat_count: usize,
    /// The stats are those of the last round, which blocks know by name.
    fitted: bool,
    lost: u64,
    order: &'t mut [u32],
    policies: [ClassPolicy<'t>; 3],
    small: Option<ClassPolicy<'t>>,
}

/// The cheapest plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Best {
    /// The interval of its classes.
    pub interval: Interval,
    /// What it needs, without sizes up to 32 KiB.
    pub bytes: u64,
}

impl<'t> Plans<'t> {
    /// Nothing recorded.
    pub fn new(tables: PlanTables<'t>) -> Self {
        let [a, b, c] = tables.policies;
        let above = |interval, tables| ClassPolicy::new(Classes::Above(interval), tables);
        Self {
            stats: nameable(tables.stats),
            stat_count: 0,
            fitted: false,
            lost: 0,
            order: nameable(tables.order),
            policies: [
                above(Interval::KiB4, a),
                above(Interval::KiB8, b),
                above(Interval::KiB16, c),
            ],
            small: tables
                .small
                .map(|tables| ClassPolicy::new(Classes::Small, tables)),
        }
    }

    /// Records a block's life for the next round. What finds no record makes the round fail. O(1).
    pub fn push(&mut self, stat: AllocStat) {
        self.push_all(&[stat], 0);
    }

    /// Records several; `lost` more were lost on the way here.
    pub(super) fn push_all(&mut self, stats: &[AllocStat], lost: u64) {
        self.lost += lost;
        self.forget_fitted();
        for stat in stats {
            match self.stats.get_mut(self.stat_count) {
                Some(record) => {
                    *record = *stat;
                    self.stat_count += 1;
                }
                None => self.lost += 1,
            }
        }
    }

    /// Fits what was recorded since the last round. Gives whether that was stable: no bin needed
    /// another block.
    ///
    /// # Errors
    /// A table was full. The plans are incomplete then.
    pub fn fit(&mut self) -> Result<bool, PlanError> {
        if self.lost > 0 {
            return Err(PlanError::StatsFull { lost: self.lost });
        }
        // In an empty round the members would be those of the round before.
        self.forget_fitted();
        let stats = &self.stats[..self.stat_count];
        if self.order.len() < stats.len() {
            return Err(PlanError::MembersFull);
        }
        let mut stable = true;
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            let blocks = policy.block_count;
            fit_policy(policy, stats, self.order)?;
            stable &= policy.block_count == blocks;
        }
        self.fitted = true;
        Ok(stable)
    }

    /// The plan of an interval.
    pub fn policy(&self, interval: Interval) -> &ClassPolicy<'t> {
        &self.policies[interval as usize]
    }

    /// The plan of sizes up to 32 KiB, if there are tables for it.
    pub fn small(&self) -> Option<&ClassPolicy<'t>> {
        self.small.as_ref()
    }

    /// The memory of an interval's plan.
    pub fn memory_bytes(&self, interval: Interval) -> u64 {
        self.policy(interval).memory_bytes()
    }

    /// The cheapest plan; the smallest interval wins a tie.
    pub fn best(&self) -> Best {
        let bytes = |interval| self.memory_bytes(interval);
        let interval = Interval::ALL
            .into_iter()
            .min_by_key(|&interval| bytes(interval))
            .unwrap_or(Interval::KiB4);
        Best {
            interval,
            bytes: bytes(interval),
        }
    }

    /// What a pool takes for the cheapest plan, sizes up to 32 KiB included.
    pub fn pool_bytes(&self) -> u64 {
        let small = self.small.as_ref().map_or(0, ClassPolicy::memory_bytes);
        self.best().bytes.saturating_add(small)
    }

    /// The stats of the last round; see [`ClassPolicy::blocks`].
    pub fn stats(&self) -> &[AllocStat] {
        &self.stats[..self.stat_count]
    }

    /// The tables, for other plans.
    pub fn into_tables(self) -> PlanTables<'t> {
        PlanTables {
            stats: self.stats,
            order: self.order,
            policies: self.policies.map(ClassPolicy::into_tables),
            small: self.small.map(ClassPolicy::into_tables),
        }
    }

    /// Forgets every stat and plan.
    pub fn clear(&mut self) {
        self.stat_count = 0;
        self.fitted = false;
        self.lost = 0;
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            policy.clear();
        }
    }

    /// Keeps of the last round when each block's last life ended, so that blocks that live across rounds
    /// still count.
    fn forget_fitted(&mut self) {
        if !self.fitted {
            return;
        }
        let stats = &self.stats[..self.stat_count];
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            policy.note_ends(stats);
            policy.forget_members();
        }
        self.stat_count = 0;
        self.fitted = false;
    }
}

/// Fits the stats into one policy, sorted and, so that first-fit anomalies never cost more than upstream
/// pays, as freed; keeps the smaller.
fn fit_policy(
    policy: &mut ClassPolicy<'_>,
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
