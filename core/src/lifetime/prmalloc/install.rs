//! From a plan to one that serves: bins written down, stacks filled, slabs asked for.
//!
//! The slot is vacant and the caller's alone. Writing down happens while the plan cannot change;
//! the slabs are asked for after that, with no lock held.

use super::class::Classes;
use super::error::PlanError;
use super::plans::Plans;
use super::policy::ClassPolicy;
use super::pool_tables::{PoolBin, StackTops};
use super::slot::{FIRST_LARGE_KEY, PlanSlot, SlotRange};
use super::tables::RecordLink;
use crate::sub_allocator::{GrowRequest, SubAllocator};
use crate::sync::{Ordering, Wait};
use crate::units::{AddrRange, Align, round_up};

/// The number of a class among those of both tables.
fn key(classes: Classes, class: u64) -> u64 {
    match classes {
        Classes::Small => class,
        Classes::Above(_) => class.saturating_add(FIRST_LARGE_KEY),
    }
}

impl<W: Wait> PlanSlot<'_, W> {
    /// Writes the cheapest plan down. O(bins + blocks + virtual blocks x log bins).
    ///
    /// # Errors
    /// The slot's tables are too small. It stays vacant.
    pub(super) fn write_down(&self, plans: &Plans<'_>) -> Result<(), PlanError> {
        let interval = plans.best().interval;
        let both = || plans.small().into_iter().chain([plans.policy(interval)]);
        self.bin_count.store(0, Ordering::Relaxed);
        self.small_count.store(0, Ordering::Relaxed);
        self.interval.store(interval as u32, Ordering::Relaxed);
        let mut blocks = 0;
        for policy in both() {
            blocks = self.write_bins(policy, blocks)?;
        }
        let mut virtuals = 0;
        for policy in both() {
            virtuals = self.write_virtuals(policy, virtuals)?;
        }
        Ok(())
    }

    fn write_bins(&self, policy: &ClassPolicy<'_>, mut blocks: u32) -> Result<u32, PlanError> {
        for plan in policy.bins().filter(|plan| plan.blocks + plan.virtuals > 0) {
            let at = self.bins_in_use();
            let bin = self.tables.bins.get(at).ok_or(PlanError::TablesFull)?;
            bin.key
                .store(key(policy.classes(), plan.class), Ordering::Relaxed);
            bin.stride_bytes
                .store(plan.stride_bytes(), Ordering::Relaxed);
            bin.blocks.store(plan.blocks, Ordering::Relaxed);
            bin.first_block.store(blocks, Ordering::Relaxed);
            bin.align_log2.store(plan.align.log2(), Ordering::Relaxed);
            bin.heads.with(|heads| *heads = StackTops::EMPTY);
            let end = blocks.checked_add(plan.blocks);
            let end = end.filter(|end| *end as usize <= self.tables.blocks.len());
            let end = end.ok_or(PlanError::TablesFull)?;
            for block in (blocks..end).rev() {
                let record = &self.tables.blocks[block as usize];
                record.used_bytes.store(0, Ordering::Relaxed);
                record.lent.write(RecordLink::NIL);
                self.push(at, block as usize);
            }
            blocks = end;
            self.bin_count.store(at as u32 + 1, Ordering::Relaxed);
            if policy.classes() == Classes::Small {
                self.small_count.store(at as u32 + 1, Ordering::Relaxed);
            }
        }
        Ok(blocks)
    }

    fn write_virtuals(
        &self,
        policy: &ClassPolicy<'_>,
        mut count: usize,
    ) -> Result<usize, PlanError> {
        let position = |class| {
            let at = self.position_of(key(policy.classes(), class));
            at.ok_or(PlanError::TablesFull)
        };
        for plan in policy.bins().filter(|plan| plan.virtuals > 0) {
            let owner = position(plan.class)?;
            for (_, target_class) in policy.virtuals_of(plan.class) {
                let target = position(target_class)?;
                let record = self.tables.virtuals.get(count);
                let record = record.ok_or(PlanError::TablesFull)?;
                // Bins are fewer than 32 bits count: `bin_count` counts them.
                record.owner.store(owner as u32, Ordering::Relaxed);
                record.target.store(target as u32, Ordering::Relaxed);
                self.push_virtual(owner, count);
                count += 1;
            }
        }
        Ok(count)
    }

    /// Asks for the two slabs, each a multiple of `unit`.
    ///
    /// # Errors
    /// The backend refused. What was given so far is among the slabs.
    pub(super) fn fill(&self, backend: &impl SubAllocator, unit: Align) -> Result<(), ()> {
        let (small, count) = (self.small_bins(), self.bins_in_use());
        for (slab, bins) in self.slabs.iter().zip([0..small, small..count]) {
            slab.set(lay_out(&self.tables.bins[bins], backend, unit)?);
        }
        Ok(())
    }

    /// What its slabs hold.
    pub(super) fn slab_bytes(&self) -> u64 {
        let slabs = self.slabs.iter().filter_map(SlotRange::range);
        // Ranges that do not overlap: their sum is a number.
        slabs.map(AddrRange::bytes).sum()
    }

    /// Gives the slabs back. The slot is the caller's alone. Gives the bytes that went, and whether
    /// that was all.
    pub(super) fn give_back(&self, backend: &impl SubAllocator) -> (u64, bool) {
        let (mut gone, mut all) = (0, true);
        for slab in &self.slabs {
            if let Some(range) = slab.range() {
                if backend.release(range).is_ok() {
                    slab.let_go();
                    gone += range.bytes();
                } else {
                    all = false;
                }
            }
        }
        (gone, all)
    }
}

/// One slab for these bins, one behind the other, each at a multiple of its alignment; `None` if they
/// have no blocks.
fn lay_out<W: Wait>(
    bins: &[PoolBin<W>],
    backend: &impl SubAllocator,
    unit: Align,
) -> Result<Option<AddrRange>, ()> {
    let with_blocks = bins
        .iter()
        .filter(|bin| bin.blocks.load(Ordering::Relaxed) > 0);
    let (mut bytes, mut align) = (0_u64, unit);
    for bin in with_blocks {
        let size = u64::from(bin.blocks.load(Ordering::Relaxed))
            .checked_mul(bin.stride_bytes.load(Ordering::Relaxed));
        let start = round_up(bytes, bin.align()).ok_or(())?;
        bytes = size.and_then(|size| start.checked_add(size)).ok_or(())?;
        align = align.max(bin.align());
    }
    if bytes == 0 {
        return Ok(None);
    }
    let bytes = round_up(bytes, align).ok_or(())?;
    let request = GrowRequest {
        bytes,
        align,
        at: None,
    };
    let slab = backend.grow(request).map_err(|_| ())?;
    if slab.bytes() < bytes || !slab.start().is_aligned(align) {
        // The slab stays with a backend that answers so, if that does not take it either.
        let _ = backend.release(slab);
        return Err(());
    }
    let mut next = slab.start().get();
    for bin in bins {
        if bin.blocks.load(Ordering::Relaxed) > 0 {
            // Counted above: all of it lies inside the slab.
            next = round_up(next, bin.align()).unwrap_or(next);
        }
        bin.base.store(next, Ordering::Relaxed);
        next += bin.bytes();
    }
    Ok(Some(slab))
}
