//! From a plan to one that serves: bins written down, slabs asked for, stacks filled, gate opened.
//!
//! The slot is vacant and the caller's alone. Writing down happens while the plan cannot change;
//! the slabs are asked for after that, with no lock held.

use super::class::Classes;
use super::error::InstallError;
use super::plans::Plans;
use super::policy::Policy;
use super::pool_config::Slabs;
use super::pool_tables::Heads;
use super::slot::{FIRST_LARGE_KEY, Slot};
use super::tables::Link;
use crate::sub_allocator::{GrowRequest, SubAllocator};
use crate::sync::{Ordering, Wait};
use crate::units::{Align, round_up};

/// The number of a class among those of both tables.
fn key(classes: Classes, class: u64) -> u64 {
    match classes {
        Classes::Small => class,
        Classes::Above(_) => class.saturating_add(FIRST_LARGE_KEY),
    }
}

impl<W: Wait> Slot<'_, W> {
    /// Writes the cheapest plan down. O(bins + blocks + virtual blocks x log bins).
    ///
    /// # Errors
    /// The slot's tables are too small. It stays vacant.
    pub(super) fn write_down(&self, plans: &Plans<'_>) -> Result<(), InstallError> {
        let interval = plans.best().interval;
        let both = || plans.small().into_iter().chain([plans.policy(interval)]);
        self.bin_count.store(0, Ordering::Relaxed);
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

    fn write_bins(&self, policy: &Policy<'_>, mut blocks: u32) -> Result<u32, InstallError> {
        for plan in policy.bins().filter(|plan| plan.blocks + plan.virtuals > 0) {
            let at = self.bins_in_use();
            let bin = self.tables.bins.get(at).ok_or(InstallError::TablesFull)?;
            bin.key
                .store(key(policy.classes(), plan.class), Ordering::Relaxed);
            // Bins without blocks stand behind all others.
            bin.base.store(u64::MAX, Ordering::Relaxed);
            bin.stride_bytes
                .store(plan.stride_bytes(), Ordering::Relaxed);
            bin.blocks.store(plan.blocks, Ordering::Relaxed);
            bin.first_block.store(blocks, Ordering::Relaxed);
            bin.align_log2.store(plan.align.log2(), Ordering::Relaxed);
            bin.virtuals.store(0, Ordering::Relaxed);
            bin.slab_bytes.store(0, Ordering::Relaxed);
            bin.heads.with(|heads| *heads = Heads::EMPTY);
            let end = blocks.checked_add(plan.blocks);
            let end = end.filter(|end| *end as usize <= self.tables.blocks.len());
            let end = end.ok_or(InstallError::TablesFull)?;
            for block in (blocks..end).rev() {
                let record = &self.tables.blocks[block as usize];
                record.used_bytes.store(0, Ordering::Relaxed);
                record.lent.write(Link::NIL);
                self.push(at, block as usize);
            }
            blocks = end;
            self.bin_count.store(at as u32 + 1, Ordering::Relaxed);
        }
        Ok(blocks)
    }

    fn write_virtuals(&self, policy: &Policy<'_>, mut count: usize) -> Result<usize, InstallError> {
        let position = |class| {
            let at = self.position_of(key(policy.classes(), class));
            at.ok_or(InstallError::TablesFull)
        };
        for plan in policy.bins().filter(|plan| plan.virtuals > 0) {
            let owner = position(plan.class)?;
            let bin = &self.tables.bins[owner];
            // Records are named by links, which 32 bits count.
            bin.first_virtual.store(count as u32, Ordering::Relaxed);
            bin.virtuals.store(plan.virtuals, Ordering::Relaxed);
            for (_, target_class) in policy.virtuals_of(plan.class) {
                let target = position(target_class)?;
                let record = self.tables.virtuals.get(count);
                let record = record.ok_or(InstallError::TablesFull)?;
                // Bins are fewer than 32 bits count: `bin_count` counts them.
                record.owner.store(owner as u32, Ordering::Relaxed);
                record.target.store(target as u32, Ordering::Relaxed);
                self.push_virtual(owner, count);
                count += 1;
            }
        }
        Ok(count)
    }

    /// Asks for the slabs, each a multiple of `unit`, and opens the gate. Gives what they hold.
    ///
    /// # Errors
    /// The backend refused. The slot stays vacant; what was given so far is in its bins still.
    pub(super) fn fill(
        &self,
        backend: &impl SubAllocator,
        slabs: Slabs,
        unit: Align,
    ) -> Result<u64, ()> {
        let bins = self.bins_in_use();
        let small = self.tables.bins[..bins]
            .iter()
            .take_while(|bin| bin.key.load(Ordering::Relaxed) < FIRST_LARGE_KEY)
            .count();
        let filled = match slabs {
            Slabs::One => self
                .fill_one(backend, unit, 0..small)
                .and_then(|few| Ok(few + self.fill_one(backend, unit, small..bins)?)),
            Slabs::PerBin => (0..bins).try_fold(0, |sum: u64, at| {
                Ok(sum + self.fill_one(backend, unit, at..at + 1)?)
            }),
        };
        if filled.is_ok() {
            self.sort_by_address(bins);
            self.gate.open();
        }
        filled
    }

    /// One slab for these bins, one behind the other, each at a multiple of its alignment.
    fn fill_one(
        &self,
        backend: &impl SubAllocator,
        unit: Align,
        bins: core::ops::Range<usize>,
    ) -> Result<u64, ()> {
        let bins = &self.tables.bins[bins];
        let bins = || {
            bins.iter()
                .filter(|bin| bin.blocks.load(Ordering::Relaxed) > 0)
        };
        let mut bytes: u64 = 0;
        for bin in bins() {
            let size = u64::from(bin.blocks.load(Ordering::Relaxed))
                .checked_mul(bin.stride_bytes.load(Ordering::Relaxed));
            let start = round_up(bytes, bin.align()).ok_or(())?;
            bytes = size.and_then(|size| start.checked_add(size)).ok_or(())?;
        }
        let Some(align) = bins().map(|bin| bin.align().max(unit)).max() else {
            return Ok(0);
        };
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
        for (at, bin) in bins().enumerate() {
            // Counted above: all of it lies inside the slab, which begins with the first bin.
            next = round_up(next, bin.align()).unwrap_or(next);
            bin.base.store(next, Ordering::Relaxed);
            next += bin.bytes();
            if at == 0 {
                bin.slab_bytes.store(slab.bytes(), Ordering::Relaxed);
            }
        }
        Ok(slab.bytes())
    }

    fn sort_by_address(&self, bins: usize) {
        let bins = &self.tables.bins[..bins];
        let base = |at: u32| bins[at as usize].base.load(Ordering::Relaxed);
        let (mut low, mut high) = (u64::MAX, 0);
        for at in 0..bins.len() {
            // By insertion: with one slab they stand in this order already. Fewer than 2^32.
            let mut place = at;
            while place > 0
                && base(bins[place - 1].by_address.load(Ordering::Relaxed)) > base(at as u32)
            {
                let moved = bins[place - 1].by_address.load(Ordering::Relaxed);
                bins[place].by_address.store(moved, Ordering::Relaxed);
                place -= 1;
            }
            bins[place].by_address.store(at as u32, Ordering::Relaxed);
            if bins[at].blocks.load(Ordering::Relaxed) > 0 {
                low = low.min(base(at as u32));
                high = high.max(base(at as u32) + bins[at].bytes());
            }
        }
        self.low.store(low, Ordering::Relaxed);
        self.high.store(high, Ordering::Relaxed);
    }

    /// What its slabs hold.
    pub(super) fn slab_bytes(&self) -> u64 {
        let bins = self.tables.bins[..self.bins_in_use()].iter();
        // Ranges that do not overlap: their sum is a number.
        bins.filter_map(|bin| bin.slab())
            .map(|slab| slab.bytes())
            .sum()
    }

    /// Gives the slabs back. The slot is the caller's alone. Gives the bytes that went, and whether
    /// that was all.
    pub(super) fn give_back(&self, backend: &impl SubAllocator) -> (u64, bool) {
        let (mut gone, mut all) = (0, true);
        for bin in &self.tables.bins[..self.bins_in_use()] {
            if let Some(slab) = bin.slab() {
                if backend.release(slab).is_ok() {
                    bin.slab_bytes.store(0, Ordering::Relaxed);
                    gone += slab.bytes();
                } else {
                    all = false;
                }
            }
        }
        (gone, all)
    }
}
