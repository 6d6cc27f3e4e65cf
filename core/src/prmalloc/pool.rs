//! [`TensorPool`]: serves from the plan, and from the backend if the plan has no block.
//!
//! The pool touches no memory; its addresses are numbers. Before the first plan, and after a plan that could not be
//! installed, the pool is in *pass-through*: the backend serves everything. A block may be freed in any state of the
//! pool, because its address tells whether it belongs to a plan or to the backend.
//!
//! Two plans can be in use at a time: one serves and the older one drains. The slabs of the older plan are released
//! when its last block is freed.
//!
//! A plan is installed by the thread that ran its last round. The planned bins are swapped with those of a spare plan,
//! which then gets its slabs and serves.
//!
//! Locks: the planner's, then the pool's own. Neither is held during a call of the backend.

use super::class::SMALL_MAX_BYTES;
use super::config::{PlanCapacity, PlannedPoolConfig};
use super::counts::PoolCounts;
use super::error::PlanError;
use super::life::{BackendBlock, OpenLife};
use super::planner::{OpenStep, Planner, PlannerStage, Round, RoundEnd};
use super::plans::Plans;
use super::pool_state::{FreedState, PoolState};
use super::served_plan::ServedPlan;
use crate::error::{AllocError, Cause, ConfigError, FreeError, OutOfMemory};
use crate::sub_allocator::{GrowRequest, SubAllocator};
use crate::sync::{Locked, Spin, Wait};
use crate::units::{Addr, Align, round_up};

/// A pool for tensors, which gets its memory from a backend.
///
/// ```
/// use larder_core::prmalloc::*;
/// use larder_core::{Addr, AddrRange, Align, FixedRange};
///
/// let mut config = PlannedPoolConfig::new();
/// config.planner.window = Window { start: 0, stable: 1, max: 9 };
/// let room = PlanCapacity { stats: 8, bins: 4, blocks: 4, virtuals: 4, small: false };
/// let range = AddrRange::new(Addr::new(0x1000), 1 << 20).unwrap();
/// let pool: TensorPool<_> = TensorPool::new(config, room, 8, FixedRange::new(range))?;
/// for _ in 0..4 {
///     let step = pool.start();
///     let block = pool.alloc(100_000, Align::ONE)?;
///     pool.free(block)?;
///     pool.end_step(step)?;
/// }
/// // The fourth step was served by the plan of the first three.
/// assert_eq!(pool.counts().hits, 1);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct TensorPool<S, W: Wait = Spin> {
    config: PlannedPoolConfig,
    plans_small: bool,
    planner: Planner<W>,
    backend: S,
    state: Locked<PoolState, W>,
}

impl<S: SubAllocator, W: Wait> TensorPool<S, W> {
    /// Creates a pool in pass-through. `live` is the number of slots for live blocks of the backend. Twice the maximum
    /// number of these blocks keeps look-ups short. One slot stays vacant.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for the records.
    pub fn new(
        config: PlannedPoolConfig,
        room: PlanCapacity,
        live: usize,
        backend: S,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            config,
            plans_small: room.small,
            planner: Planner::new(config.planner, room)?,
            backend,
            state: Locked::new(PoolState::new(room, live)?),
        })
    }

    /// Allocates a block of at least `bytes` bytes at a multiple of `align`. A block of the plan costs O(log bins),
    /// plus O(virtual blocks of the bin) once the bin's own blocks are in use. Any other block costs a call of the
    /// backend.
    ///
    /// # Errors
    /// [`AllocError`] if the plan has no block, and the backend or the table of its blocks has no room.
    pub fn alloc(&self, bytes: u64, align: Align) -> Result<Addr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let step = self.planner.steps();
        let (life, planned) = self.state.with(|state| {
            let life = state.begin_life(bytes, align, step);
            let planned = self.plans(bytes).then(|| state.take(life)).flatten();
            (life, planned)
        });
        match planned {
            Some(addr) => Ok(addr),
            None => self.alloc_direct(life),
        }
    }

    /// Returns whether blocks of this size are planned.
    fn plans(&self, bytes: u64) -> bool {
        self.plans_small || bytes > SMALL_MAX_BYTES
    }

    fn alloc_direct(&self, life: OpenLife) -> Result<Addr, AllocError> {
        let requested_bytes = life.stat.bytes;
        let align = life.stat.align.max(self.config.unit);
        let bytes = round_up(requested_bytes, align);
        let request = GrowRequest {
            bytes: bytes.ok_or(AllocError::TooLarge { requested_bytes })?,
            align,
            at: None,
        };
        let out = OutOfMemory::of(Cause::SubAllocator, requested_bytes);
        let out = AllocError::OutOfMemory(out);
        let range = self.backend.grow(request).map_err(|_| out)?;
        let serves = range.bytes() >= requested_bytes && range.start().is_aligned(life.stat.align);
        let entered = self.state.with(|state| {
            let entered = serves && state.live.insert(BackendBlock { range, life });
            if entered {
                state.counts.direct_bytes += range.bytes();
                return Ok(());
            }
            Err(u32::try_from(state.live.slots()).unwrap_or(u32::MAX))
        });
        entered.map(|()| range.start()).map_err(|records| {
            // If the backend does not take the range back, the pool has no record of it: accounting for it is up to the
            // backend.
            let _ = self.backend.release(range);
            if serves {
                AllocError::TableFull { records }
            } else {
                out
            }
        })
    }

    /// Frees a block of a plan or of the backend. O(log bins), or a call of the backend.
    ///
    /// # Errors
    /// [`FreeError`] if no block in use begins at `addr`, or if the backend refuses it. Nothing has changed then, unless
    /// other threads have filled the table meanwhile: a block that was refused is then left to the backend.
    pub fn free(&self, addr: Addr) -> Result<(), FreeError> {
        let give_back = |state: &mut PoolState| (state.give_back(addr), state.has_drained());
        let (freed, drained) = self.state.with(give_back);
        // The plan is moved only after this check, because moving it takes long. Only one of several threads gets it.
        if drained && let Some(plan) = self.state.with(PoolState::take_drained) {
            self.put_away(plan);
        }
        match freed {
            None => Err(FreeError::Unknown),
            Some(FreedState::Direct(live)) => self.free_direct(live),
            Some(FreedState::Planned(life)) => {
                self.record(life);
                Ok(())
            }
        }
    }

    fn free_direct(&self, live: BackendBlock) -> Result<(), FreeError> {
        let taken = self.backend.release(live.range).is_ok();
        self.state.with(|state| {
            if taken {
                state.counts.direct_bytes -= live.range.bytes();
            } else {
                // The block's slot became vacant only a moment ago. If another thread has taken the last vacant slot
                // since, the block is left to the backend.
                state.live.insert(live);
            }
        });
        if !taken {
            return Err(FreeError::SubAllocator);
        }
        self.record(live.life);
        Ok(())
    }

    fn record(&self, life: OpenLife) {
        if self.plans(life.stat.bytes) {
            self.planner.record(life.stat, life.born_step);
        }
    }

    /// Begins a step.
    pub fn start(&self) -> OpenStep {
        self.planner.start()
    }

    /// Ends a step, and runs the round that is due, if there is one. [`stop`](Self::stop) leaves the round to the
    /// caller.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn end_step(&self, step: OpenStep) -> Result<(), PlanError> {
        match self.stop(step) {
            Some(round) => self.run(round).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Ends a step. Slabs that the backend refused are offered to it again, and recording restarts if the plan misses
    /// too often ([`Replan`](super::Replan)). Returns the round that is due, if there is one.
    pub fn stop(&self, step: OpenStep) -> Option<Round> {
        let round = self.planner.stop(step);
        let refused = || self.state.with(PoolState::take_refused);
        // The slabs of each plan are offered only once, since the backend may refuse them again.
        let refused = [refused(), refused()].into_iter().flatten();
        refused.for_each(|plan| self.put_away(plan));
        self.plan_again_if_needed();
        round
    }

    fn plan_again_if_needed(&self) {
        let Some(rule) = self.config.replan else {
            return;
        };
        if self.planner.state() != PlannerStage::Done {
            return;
        }
        let is_worn_out = self.state.with(|state| {
            let counts = state.counts;
            state.serving.is_some() && state.watch.is_worn_out(rule, counts)
        });
        if is_worn_out {
            self.replan();
        }
    }

    /// Restarts recording for another plan and returns `true`, if the planner is done and there is a spare plan to
    /// install the new one in. There is none while an older plan drains or has slabs that the backend refused.
    pub fn replan(&self) -> bool {
        let may = || self.state.with(|state| state.has_vacant());
        self.planner.restart_if(may)
    }

    /// Runs a round and, if it was the last, installs the plan.
    ///
    /// # Errors
    /// [`PlanError`] if there is no plan, or no memory or room for it. The pool continues with the previous plan if
    /// some of its blocks are in use or no memory for the new plan has been requested yet. Otherwise it continues in
    /// pass-through.
    pub fn run(&self, round: Round) -> Result<RoundEnd, PlanError> {
        let end = self.planner.run_and(round, |plans| self.take_best(plans))?;
        match end {
            RoundEnd::Again => Ok(RoundEnd::Again),
            RoundEnd::Finished(taken) => {
                let (plan, bytes) = taken?;
                self.install(plan, bytes).map(RoundEnd::Finished)
            }
        }
    }

    /// Moves the cheapest plan into a spare one. Returns the spare one and the bytes that the plan needs.
    fn take_best(&self, plans: &mut Plans) -> Result<(ServedPlan, u64), PlanError> {
        let spare = self.state.with(PoolState::take_vacant);
        let mut plan = spare.ok_or(PlanError::Draining)?;
        let (bytes, cap_bytes) = (plans.pool_bytes(), self.config.cap_bytes);
        if bytes > cap_bytes {
            self.put_away(plan);
            return Err(PlanError::AboveCap { bytes, cap_bytes });
        }
        plan.take_best(plans);
        Ok((plan, bytes))
    }

    /// Requests the slabs of a plan and serves from the plan. If the previous plan has no block in use, its slabs are
    /// released first, so that there need not be memory for both plans. Otherwise the previous plan serves until the
    /// new one has its slabs, and then drains.
    fn install(&self, mut plan: ServedPlan, bytes: u64) -> Result<(), PlanError> {
        let unused = self.state.with(PoolState::take_unused);
        unused.into_iter().for_each(|former| self.put_away(former));
        let filled = plan.fill(&self.backend, self.config.unit);
        let slab_bytes = plan.slab_bytes();
        let former = self.state.with(|state| {
            state.counts.slab_bytes += slab_bytes;
            if filled {
                state.serve(plan)
            } else {
                Some(plan)
            }
        });
        former.into_iter().for_each(|plan| self.put_away(plan));
        filled.then_some(()).ok_or(PlanError::OutOfMemory { bytes })
    }

    /// Returns the slabs of an unused plan to the backend. A slab that the backend refuses stays with the plan.
    fn put_away(&self, mut plan: ServedPlan) {
        let gone_bytes = plan.empty(&self.backend);
        self.state.with(|state| state.put_away(plan, gone_bytes));
    }

    /// Returns which of the two plans serves, or `None` in pass-through.
    pub fn serving(&self) -> Option<usize> {
        let number = |plan: &ServedPlan| plan.number;
        self.state.with(|state| state.serving.as_ref().map(number))
    }

    /// Returns the counts. O(1).
    pub fn counts(&self) -> PoolCounts {
        self.state.with(|state| state.counts)
    }

    /// Returns the planner.
    pub fn planner(&self) -> &Planner<W> {
        &self.planner
    }

    /// Returns the backend.
    pub fn backend(&self) -> &S {
        &self.backend
    }
}
