//! Tables for plans, and plans as lists of numbers.

use larder_core::Align;
use larder_core::lifetime::prmalloc::{
    AllocStat, BinRecord, BlockRecord, Interval, MemberRecord, PlanTables, PlannerConfig, Plans,
    Policy, PolicyTables, VirtualRecord,
};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

pub fn align(bytes: u64) -> Align {
    Align::new(bytes).unwrap()
}

/// Tables for so many stats and so many bins, blocks and virtual blocks, which live as long as the
/// program.
pub fn tables(stats: usize, records: usize) -> PlanTables<'static> {
    let policy = || PolicyTables {
        bins: vec![BinRecord::VACANT; records].leak(),
        blocks: vec![BlockRecord::VACANT; records].leak(),
        virtuals: vec![VirtualRecord::VACANT; records].leak(),
        members: vec![MemberRecord::VACANT; stats].leak(),
    };
    PlanTables {
        stats: vec![AllocStat::VACANT; stats].leak(),
        order: vec![0; stats].leak(),
        policies: [policy(), policy(), policy()],
        small: None,
    }
}

pub fn with_small(mut tables: PlanTables<'static>) -> PlanTables<'static> {
    let (stats, records) = (tables.stats.len(), tables.policies[0].blocks.len());
    let [small, ..] = self::tables(stats, records).policies;
    tables.small = Some(small);
    tables
}

pub fn plans(config: PlannerConfig) -> Plans<'static> {
    Plans::new(config, tables(256, 256))
}

/// The plans of one round with these stats: (begin, end, size).
pub fn planned(config: PlannerConfig, stats: &[(u64, u64, u64)]) -> Plans<'static> {
    let mut plans = plans(config);
    for &(begin, end, bytes) in stats {
        plans.push(AllocStat::new(begin, end, bytes));
    }
    plans.fit().unwrap();
    check(&plans, config);
    plans
}

/// Memory of the 4, 8 and 16 KiB plans.
pub fn totals(plans: &Plans<'_>) -> [u64; 3] {
    Interval::ALL.map(|interval| plans.memory_bytes(interval))
}

/// For each bin in use: its class, its own blocks, and the class of each virtual block's target.
pub type Layout = Vec<(u64, u32, Vec<u64>)>;

pub fn layout(policy: &Policy<'_>) -> Layout {
    let bins = policy.bins().map(|bin| {
        let targets: Vec<u64> = policy
            .virtuals_of(bin.class)
            .map(|(_, class)| class)
            .collect();
        assert_eq!(targets.len(), bin.virtuals as usize);
        (bin.class, bin.blocks, targets)
    });
    bins.collect()
}

/// Every stat stands in exactly one block that is large enough, and no two that overlap share one.
pub fn check(plans: &Plans<'_>, config: PlannerConfig) {
    let stats = plans.stats();
    for interval in Interval::ALL {
        let policy = plans.policy(interval);
        let mut seen = vec![0; stats.len()];
        for block in policy.blocks() {
            let members: Vec<usize> = policy.members_of(block).collect();
            for (i, &a) in members.iter().enumerate() {
                seen[a] += 1;
                assert!(stats[a].bytes <= interval.chunk_bytes(block.class).unwrap());
                for &b in &members[..i] {
                    assert!(
                        !config.touching.overlap(&stats[a], &stats[b]),
                        "{:?} and {:?} share a block",
                        stats[a],
                        stats[b]
                    );
                }
            }
        }
        for (stat, seen) in stats.iter().zip(seen) {
            assert_eq!(seen, usize::from(interval.class_of(stat.bytes).is_some()));
        }
    }
}

/// The most bytes alive at a tick, of those that bins serve.
pub fn max_live(stats: &[AllocStat]) -> u64 {
    let at = |tick: u64| {
        let alive = stats.iter().filter(|s| s.begin <= tick && tick < s.end);
        alive.map(|s| s.bytes).filter(|b| *b > 32 * KIB).sum()
    };
    stats.iter().map(|s| at(s.begin)).max().unwrap_or(0)
}
