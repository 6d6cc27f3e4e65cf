//! The state behind a pool's lock: the plans, the blocks of the backend, the counts.
//!
//! Invariants:
//! * PRPOOL1: each of the two plans is in one field, or with a thread that works on it outside the lock.
//! * PRPOOL2: a plan that drains has blocks in use, or the thread that freed the last one is about to take the plan and
//!   release its slabs. A plan in `idle` has no blocks in use.
//! * PRPOOL3: if a plan in `idle` has slabs, the backend refused to take them back. Such a plan is not reused for a new
//!   one.

use super::config::PlanCapacity;
use super::counts::{PoolCounts, StepWatch};
use super::life::{AllocStat, BackendBlock, BackendBlocks, OpenLife};
use super::served_plan::ServedPlan;
use super::stacks::Miss;
use crate::error::ConfigError;
use crate::units::{Addr, Align};

/// The state of a pool.
pub(super) struct PoolState {
    pub(super) serving: Option<ServedPlan>,
    /// The former plan, kept until its last block is freed.
    draining: Option<ServedPlan>,
    /// The plans that are not in use, by their numbers.
    idle: [Option<ServedPlan>; 2],
    pub(super) live: BackendBlocks,
    ticks: u64,
    pub(super) counts: PoolCounts,
    pub(super) watch: StepWatch,
}

/// A block that was freed.
pub(super) enum FreedState {
    /// The block belonged to a plan.
    Planned(OpenLife),
    /// The block came from the backend.
    Direct(BackendBlock),
}

impl PoolState {
    pub(super) fn new(room: PlanCapacity, live: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            serving: None,
            draining: None,
            idle: [
                Some(ServedPlan::new(0, room)?),
                Some(ServedPlan::new(1, room)?),
            ],
            live: BackendBlocks::new(live)?,
            ticks: 0,
            counts: PoolCounts::default(),
            watch: StepWatch::default(),
        })
    }

    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Begins the life of a block.
    pub(super) fn begin_life(&mut self, bytes: u64, align: Align, born_step: u64) -> OpenLife {
        let tick = self.tick();
        OpenLife {
            stat: AllocStat::new(tick, tick, bytes).aligned(align),
            born_step,
        }
    }

    /// Takes a block of the plan that serves.
    pub(super) fn take(&mut self, life: OpenLife) -> Option<Addr> {
        let count = match self.serving.as_mut()?.take(life) {
            Ok(addr) => {
                self.counts.hits += 1;
                return Some(addr);
            }
            Err(Miss::NoBlock) => &mut self.counts.missed,
            Err(Miss::NoBin) => &mut self.counts.no_bin,
        };
        *count += 1;
        None
    }

    /// Frees the block in use that begins at `addr`, and ends its life.
    pub(super) fn give_back(&mut self, addr: Addr) -> Option<FreedState> {
        let end = self.tick();
        let mut plans = self.serving.iter_mut().chain(&mut self.draining);
        if let Some(mut life) = plans.find_map(|plan| plan.give_back(addr)) {
            life.stat.end = end;
            return Some(FreedState::Planned(life));
        }
        let mut live = self.live.remove(addr)?;
        live.life.stat.end = end;
        Some(FreedState::Direct(live))
    }

    pub(super) fn has_drained(&self) -> bool {
        self.draining.as_ref().is_some_and(ServedPlan::is_unused)
    }

    /// Takes the former plan, once its last block is freed.
    pub(super) fn take_drained(&mut self) -> Option<ServedPlan> {
        self.draining.take_if(|plan| plan.is_unused())
    }

    /// Takes a plan that can be reused for a new one.
    pub(super) fn take_vacant(&mut self) -> Option<ServedPlan> {
        let mut idle = self.idle.iter_mut();
        idle.find_map(|plan| plan.take_if(|plan| plan.slab_bytes() == 0))
    }

    pub(super) fn has_vacant(&self) -> bool {
        let mut idle = self.idle.iter().flatten();
        idle.any(|plan| plan.slab_bytes() == 0)
    }

    /// Takes the plan that serves, if none of its blocks is in use.
    pub(super) fn take_unused(&mut self) -> Option<ServedPlan> {
        self.serving.take_if(|plan| plan.is_unused())
    }

    /// Serves from `plan` from now on. Returns the previous plan if it has no block in use; otherwise the previous plan
    /// drains.
    pub(super) fn serve(&mut self, plan: ServedPlan) -> Option<ServedPlan> {
        self.watch.begin(self.counts);
        let former = self.serving.replace(plan)?;
        if former.is_unused() {
            return Some(former);
        }
        self.draining = Some(former);
        None
    }

    /// Takes a plan whose slabs the backend refused.
    pub(super) fn take_refused(&mut self) -> Option<ServedPlan> {
        let mut idle = self.idle.iter_mut();
        idle.find_map(|plan| plan.take_if(|plan| plan.slab_bytes() > 0))
    }

    /// Makes a plan idle after its slabs were offered to the backend, which took `gone_bytes` of them.
    pub(super) fn put_away(&mut self, plan: ServedPlan, gone_bytes: u64) {
        self.counts.slab_bytes -= gone_bytes;
        let number = plan.number;
        self.idle[number] = Some(plan);
    }
}
