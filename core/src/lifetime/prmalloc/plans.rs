//! The plans of one load under three ways to class sizes: stats in, the cheapest plan out.
//!
//! A value without clock, lock or steps; [`Planner`](super::Planner) puts them around it.

use super::class::{Classes, Interval};
use super::config::{Candidates, ChunkRounding, History, Order, PlannerConfig};
use super::error::PlanError;
use super::fit::Rules;
use super::policy::Policy;
use super::tables::{PlanTables, nameable};
use super::{AllocStat, Touching};

/// Stats, and a plan for each interval.
#[derive(Debug)]
pub struct Plans<'t> {
    config: PlannerConfig,
    stats: &'t mut [AllocStat],
    stat_count: usize,
    /// Stats before this one were fitted in former rounds.
    fitted: usize,
    lost: u64,
    order: &'t mut [u32],
    policies: [Policy<'t>; 3],
    small: Option<Policy<'t>>,
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
    pub fn new(config: PlannerConfig, tables: PlanTables<'t>) -> Self {
        let [a, b, c] = tables.policies;
        let above = |interval, tables| Policy::new(Classes::Above(interval), tables);
        Self {
            config,
            stats: nameable(tables.stats),
            stat_count: 0,
            fitted: 0,
            lost: 0,
            order: nameable(tables.order),
            policies: [
                above(Interval::KiB4, a),
                above(Interval::KiB8, b),
                above(Interval::KiB16, c),
            ],
            small: tables
                .small
                .map(|tables| Policy::new(Classes::Small, tables)),
        }
    }

    /// Records a block's life for the next round. What finds no record makes the round fail. O(1).
    pub fn push(&mut self, stat: AllocStat) {
        self.push_all(&[stat], 0);
    }

    /// Records several; `lost` more were lost on the way here.
    pub(super) fn push_all(&mut self, stats: &[AllocStat], lost: u64) {
        self.lost += lost;
        if self.config.history != History::All && self.fitted == self.stat_count {
            self.forget_fitted();
        }
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
        if self.config.history != History::All && self.fitted == self.stat_count {
            // An empty round: the members would be those of the round before.
            self.forget_fitted();
        }
        let stats = &self.stats[..self.stat_count];
        if self.order.len() < stats.len() - self.fitted {
            return Err(PlanError::MembersFull);
        }
        let mut stable = true;
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            let blocks = policy.block_count;
            fit_policy(policy, &self.config, stats, self.fitted, self.order)?;
            stable &= policy.block_count == blocks;
        }
        self.fitted = self.stat_count;
        Ok(stable)
    }

    /// The plan of an interval.
    pub fn policy(&self, interval: Interval) -> &Policy<'t> {
        &self.policies[interval as usize]
    }

    /// The plan of sizes up to 32 KiB, if there are tables for it.
    pub fn small(&self) -> Option<&Policy<'t>> {
        self.small.as_ref()
    }

    /// The memory of an interval's plan.
    pub fn memory_bytes(&self, interval: Interval) -> u64 {
        self.policy(interval).memory_bytes(self.config.rounding)
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

    /// What a pool takes for the cheapest plan, sizes up to 32 KiB included, with every chunk
    /// rounded up to its alignment.
    pub fn pool_bytes(&self) -> u64 {
        let small = self
            .small
            .as_ref()
            .map_or(0, |small| small.memory_bytes(ChunkRounding::ToAlign));
        let best = self.policy(self.best().interval);
        best.memory_bytes(ChunkRounding::ToAlign)
            .saturating_add(small)
    }

    /// The stats of the rounds that blocks still know; see [`Policy::members_of`].
    pub fn stats(&self) -> &[AllocStat] {
        &self.stats[..self.stat_count]
    }

    /// The tables, for other plans.
    pub fn into_tables(self) -> PlanTables<'t> {
        PlanTables {
            stats: self.stats,
            order: self.order,
            policies: self.policies.map(Policy::into_tables),
            small: self.small.map(Policy::into_tables),
        }
    }

    /// Forgets every stat and plan.
    pub fn clear(&mut self) {
        self.stat_count = 0;
        self.fitted = 0;
        self.lost = 0;
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            policy.clear();
        }
    }

    /// Keeps of the former rounds what the configuration says blocks remember.
    fn forget_fitted(&mut self) {
        let stats = &self.stats[..self.stat_count];
        for policy in self.policies.iter_mut().chain(&mut self.small) {
            if self.config.history == History::LastEnd {
                policy.note_ends(stats);
            } else {
                policy.forget_virtuals();
            }
            policy.forget_members();
        }
        self.stat_count = 0;
        self.fitted = 0;
    }
}

/// Fits the new stats into one policy, in the ways the configuration names, and keeps the smallest.
fn fit_policy(
    policy: &mut Policy<'_>,
    config: &PlannerConfig,
    stats: &[AllocStat],
    first: usize,
    order: &mut [u32],
) -> Result<(), PlanError> {
    policy.open_bins(stats, first)?;
    let configured = Rules {
        order: config.order,
        touching: config.touching,
        virtuals: config.virtuals,
    };
    let mark = policy.mark();
    policy.fit(stats, first, order, configured)?;
    // With the stats of all rounds in the blocks there is no way back to before this round.
    if config.candidates == Candidates::One || config.history == History::All {
        return Ok(());
    }
    let upstream = Rules {
        order: Order::Arrival,
        touching: Touching::Overlaps,
        ..configured
    };
    let bytes = policy.memory_bytes(config.rounding);
    policy.back_to(mark);
    let other = policy.fit(stats, first, order, upstream);
    if other.is_err() || policy.memory_bytes(config.rounding) >= bytes {
        policy.back_to(mark);
        policy.fit(stats, first, order, configured)?;
    }
    Ok(())
}
