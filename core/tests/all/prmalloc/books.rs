//! The capacities of plans, and their contents as lists of numbers.

use larder_core::Align;
use larder_core::prmalloc::{AllocStat, Interval, PlanCapacity, Plans};
use larder_model::prmalloc as upstream;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

pub fn align(bytes: u64) -> Align {
    Align::new(bytes).unwrap()
}

/// Returns room for `stats` stats and for `records` bins, blocks and virtual blocks each.
pub fn room(stats: usize, records: usize) -> PlanCapacity {
    PlanCapacity {
        stats,
        bins: records,
        blocks: records,
        virtuals: records,
        small: false,
    }
}

/// For each bin in use: its class, the number of its own blocks, and the class of each virtual block's target.
pub type Layout = Vec<(u64, u32, Vec<u64>)>;

pub trait AnyPlans {
    /// Plans a round with these lives. Returns whether no bin needed another block.
    fn round(&mut self, stats: &[AllocStat]) -> bool;
    fn memory_bytes(&self, interval: Interval) -> u64;
    fn best(&self) -> (Interval, u64);
    fn layout(&self, interval: Interval) -> Layout;
    /// Returns the class of each block, and the lives that it serves.
    fn blocks(&self, interval: Interval) -> Vec<(u64, Vec<AllocStat>)>;

    fn totals(&self) -> [u64; 3] {
        Interval::ALL.map(|interval| self.memory_bytes(interval))
    }
}

pub fn plans() -> Plans {
    Plans::new(room(256, 256)).unwrap()
}

impl AnyPlans for Plans {
    fn round(&mut self, stats: &[AllocStat]) -> bool {
        stats.iter().for_each(|stat| self.push(*stat));
        self.fit().unwrap()
    }

    fn memory_bytes(&self, interval: Interval) -> u64 {
        Plans::memory_bytes(self, interval)
    }

    fn best(&self) -> (Interval, u64) {
        let best = Plans::best(self);
        (best.interval, best.bytes)
    }

    fn layout(&self, interval: Interval) -> Layout {
        let policy = self.policy(interval);
        let bins = policy.bins().map(|bin| {
            let targets = policy.virtuals_of(bin.class).map(|(_, class)| class);
            let targets: Vec<u64> = targets.collect();
            assert_eq!(targets.len(), bin.virtuals as usize);
            (bin.class, bin.blocks, targets)
        });
        bins.collect()
    }

    fn blocks(&self, interval: Interval) -> Vec<(u64, Vec<AllocStat>)> {
        let policy = self.policy(interval);
        let blocks = policy.blocks().map(|(class, members)| {
            let lives = members.map(|stat| self.stats()[stat]);
            (class, lives.collect())
        });
        blocks.collect()
    }
}

impl AnyPlans for upstream::Plans {
    fn round(&mut self, stats: &[AllocStat]) -> bool {
        upstream::Plans::round(self, stats)
    }

    fn memory_bytes(&self, interval: Interval) -> u64 {
        self.of(interval).memory_bytes()
    }

    fn best(&self) -> (Interval, u64) {
        let best = upstream::Plans::best(self);
        (best.interval, best.bytes)
    }

    fn layout(&self, interval: Interval) -> Layout {
        let plan = self.of(interval);
        let class_of = |block: &usize| plan.blocks[*block].class;
        let bins = plan.bins.iter().map(|(class, bin)| {
            let targets = bin.virtuals.iter().map(class_of).collect();
            (*class, bin.blocks.len() as u32, targets)
        });
        bins.collect()
    }

    fn blocks(&self, interval: Interval) -> Vec<(u64, Vec<AllocStat>)> {
        let blocks = self.of(interval).blocks.iter();
        blocks
            .map(|block| (block.class, block.lives.clone()))
            .collect()
    }
}

/// Plans one round with stats (begin, end, size).
pub fn planned<P: AnyPlans>(mut plans: P, touching_share: bool, stats: &[(u64, u64, u64)]) -> P {
    let stats: Vec<AllocStat> = stats
        .iter()
        .map(|&(begin, end, bytes)| AllocStat::new(begin, end, bytes))
        .collect();
    plans.round(&stats);
    check(&plans, touching_share, &stats);
    plans
}

/// Checks that each stat is in exactly one block, which is large enough, and that no overlapping ones share a block.
pub fn check(plans: &impl AnyPlans, touching_share: bool, stats: &[AllocStat]) {
    let is_over = |a: &AllocStat, b: &AllocStat| {
        a.end < b.begin || touching_share && a.end == b.begin && a.begin < a.end
    };
    let key = |stat: &AllocStat| (stat.begin, stat.end, stat.bytes, stat.align);
    for interval in Interval::ALL {
        let mut seen = Vec::new();
        for (class, lives) in plans.blocks(interval) {
            for (i, a) in lives.iter().enumerate() {
                assert!(a.bytes <= interval.chunk_bytes(class).unwrap());
                for b in &lives[..i] {
                    assert!(
                        is_over(a, b) || is_over(b, a),
                        "{a:?} and {b:?} share a block"
                    );
                }
            }
            seen.extend(lives.iter().map(key));
        }
        let with_class = |stat: &&AllocStat| interval.class_of(stat.bytes).is_some();
        let mut all: Vec<_> = stats.iter().filter(with_class).map(key).collect();
        seen.sort_unstable();
        all.sort_unstable();
        assert_eq!(seen, all);
    }
}

/// Returns the most bytes alive at a tick, counting only the lives that bins serve.
pub fn max_live(stats: &[AllocStat]) -> u64 {
    let at = |tick: u64| {
        let alive = stats.iter().filter(|s| s.begin <= tick && tick < s.end);
        alive.map(|s| s.bytes).filter(|b| *b > 32 * KIB).sum()
    };
    stats.iter().map(|s| at(s.begin)).max().unwrap_or(0)
}
