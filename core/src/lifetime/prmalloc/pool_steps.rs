//! Steps of a pool: rounds, and plans that come, drain and go.
//!
//! A plan is installed by whoever ran its last round: written into a vacant slot, filled with slabs,
//! named as the one that serves. The one before is closed then, and whoever leaves it last gives its
//! slabs back.

use super::error::PlanError;
use super::planner::{OpenStep, Round, RoundEnd};
use super::plans::Plans;
use super::pool::TensorPool;
use super::slot::PlanSlot;
use super::switch::PlannerStage;
use crate::sub_allocator::SubAllocator;
use crate::sync::{Ordering, Wait};

impl<'t, S: SubAllocator, W: Wait> TensorPool<'t, S, W> {
    /// A step begins.
    pub fn start(&self) -> OpenStep {
        self.planner.start()
    }

    /// A step ends, with a round if one is due. To run rounds elsewhere, use [`stop`](Self::stop).
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn end_step(&self, step: OpenStep) -> Result<(), PlanError> {
        match self.stop(step) {
            Some(round) => self.run(round).map(|_| ()),
            None => Ok(()),
        }
    }

    /// A step ends. Looks whether the plan still serves, and whether slabs wait to go back.
    pub fn stop(&self, step: OpenStep) -> Option<Round> {
        let round = self.planner.stop(step);
        self.offer_refused();
        self.plan_again_if_needed();
        round
    }

    /// Runs a round and, if it was the last, installs the plan.
    ///
    /// # Errors
    /// There is no plan, or no memory or room for it. The pool serves on from the plan it had, if
    /// blocks of that are in use or it was not yet asked for memory, else in pass-through.
    pub fn run(&self, round: Round) -> Result<RoundEnd, PlanError> {
        // Only this round can end here: the plans are locked until `installing` says that they are
        // being installed.
        let end = self.planner.run_and(round, |plans| {
            let alone = self.installing.swap(1, Ordering::Acquire) == 0;
            alone.then(|| self.write_down(plans))
        });
        let written = match end? {
            RoundEnd::Again => return Ok(RoundEnd::Again),
            RoundEnd::Finished(None) => return Err(PlanError::Draining),
            RoundEnd::Finished(Some(written)) => written,
        };
        let installed = written.and_then(|(slot, bytes)| self.switch_to(slot, bytes));
        self.installing.store(0, Ordering::Release);
        installed.map(RoundEnd::Finished)
    }

    /// Writes the plan into a vacant slot. Gives which, and what the plan needs.
    fn write_down(&self, plans: &Plans<'t>) -> Result<(usize, u64), PlanError> {
        let slot = self.slots.iter().position(|slot| slot.gate.is_vacant());
        let slot = slot.ok_or(PlanError::Draining)?;
        let (bytes, cap_bytes) = (plans.pool_bytes(), self.config.cap_bytes);
        if bytes > cap_bytes {
            return Err(PlanError::AboveCap { bytes, cap_bytes });
        }
        self.slots[slot].write_down(plans)?;
        Ok((slot, bytes))
    }

    /// Fills a slot and serves from it. The plan before goes first if none of its blocks is in use,
    /// so that the two need not fit side by side; otherwise it drains.
    fn switch_to(&self, index: usize, bytes: u64) -> Result<(), PlanError> {
        let former = self.current.swap(0, Ordering::AcqRel);
        let old = former.checked_sub(1).map(|old| &self.slots[old as usize]);
        let gone = old.is_none_or(|old| {
            let empty = old.gate.close_if_empty();
            if empty {
                self.retire(old);
            }
            empty
        });
        let filled = self.fill(&self.slots[index], bytes);
        // Two slots: the index is 0 or 1.
        let serves = match filled {
            Ok(()) => index as u32 + 1,
            Err(_) if gone => 0,
            Err(_) => former,
        };
        self.current.store(serves, Ordering::Release);
        filled?;
        if let Some(old) = old.filter(|_| !gone)
            && old.gate.close()
        {
            self.retire(old);
        }
        self.watch.with(|watch| watch.begin(self.counters.read()));
        Ok(())
    }

    fn fill(&self, slot: &PlanSlot<'t, W>, bytes: u64) -> Result<(), PlanError> {
        let filled = slot.fill(&self.backend, self.config.unit);
        self.counters.took_slabs(slot.slab_bytes());
        if filled.is_ok() {
            slot.gate.open();
            return Ok(());
        }
        // What came of it goes as that of a drained plan does.
        slot.gate.seal();
        self.retire(slot);
        Err(PlanError::OutOfMemory { bytes })
    }

    pub(super) fn leave(&self, slot: &PlanSlot<'t, W>, count: u64) {
        if slot.gate.leave(count) {
            self.retire(slot);
        }
    }

    /// Gives the slabs of a drained plan back; the slot is ours alone.
    fn retire(&self, slot: &PlanSlot<'t, W>) {
        let (bytes, all) = slot.give_back(&self.backend);
        self.counters.gave_slabs(bytes);
        if all {
            slot.gate.vacate();
        } else {
            self.refused.store(1, Ordering::Release);
        }
    }

    /// Offers slabs again that the backend refused.
    fn offer_refused(&self) {
        if self.refused.load(Ordering::Relaxed) == 0 || self.refused.swap(0, Ordering::AcqRel) == 0
        {
            return;
        }
        // Nobody else gives these back: a plan drains only if the other slot was vacant when the
        // next one came, and slabs that were refused keep theirs from being so.
        for slot in self.slots.iter().filter(|slot| slot.gate.is_drained()) {
            self.retire(slot);
        }
    }

    fn plan_again_if_needed(&self) {
        let Some(rule) = self.config.replan else {
            return;
        };
        if self.planner.state() != PlannerStage::Done || self.serving().is_none() {
            return;
        }
        let counts = self.counters.read();
        if self.watch.with(|watch| watch.is_worn_out(rule, counts)) {
            self.replan();
        }
    }

    /// Begins to record for another plan, if one can be installed when it is made: the planner is
    /// done, and no older plan has blocks in use. Says whether it did.
    pub fn replan(&self) -> bool {
        self.planner.restart_if(|| {
            let installing = self.installing.load(Ordering::Acquire) == 1;
            !installing && self.slots.iter().any(|slot| slot.gate.is_vacant())
        })
    }
}
