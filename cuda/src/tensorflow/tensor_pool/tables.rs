//! The tables of a pool.

use larder_core::lifetime::prmalloc::{
    AllocStat, BinRecord, BlockRecord, LiveRecord, PlanTables, PolicyTables, PoolBin, PoolBlock,
    PoolTables, PoolVirtual, VirtualRecord,
};

use super::TensorPoolConfig;
use crate::lock_wait::Yield;
use crate::with_tables::Tables;

/// Tables as long as the configuration says.
pub(super) fn lend(tables: &mut Tables, config: &TensorPoolConfig) -> PoolTables<'static, Yield> {
    fn table<T>(records: usize, vacant: impl Fn() -> T) -> Box<[T]> {
        (0..records).map(|_| vacant()).collect()
    }
    PoolTables {
        pending: tables.lend(vec![AllocStat::VACANT; config.stats]),
        plans: PlanTables {
            stats: tables.lend(vec![AllocStat::VACANT; config.stats]),
            order: tables.lend(vec![0; config.stats]),
            policies: [(); 3].map(|()| of_policy(tables, config)),
            small: config.plans_small.then(|| of_policy(tables, config)),
        },
        bins: [(); 2].map(|()| &*tables.lend(table(config.bins, PoolBin::vacant))),
        blocks: [(); 2].map(|()| &*tables.lend(table(config.blocks, PoolBlock::vacant))),
        virtuals: [(); 2].map(|()| &*tables.lend(table(config.virtuals, PoolVirtual::vacant))),
        // As many again, so that they are found quickly.
        live: tables.lend(vec![LiveRecord::VACANT; config.live.saturating_mul(2)]),
    }
}

fn of_policy(tables: &mut Tables, config: &TensorPoolConfig) -> PolicyTables<'static> {
    PolicyTables {
        bins: tables.lend(vec![BinRecord::VACANT; config.bins]),
        blocks: tables.lend(vec![BlockRecord::VACANT; config.blocks]),
        virtuals: tables.lend(vec![VirtualRecord::VACANT; config.virtuals]),
        members: tables.lend(vec![0; config.stats]),
    }
}
