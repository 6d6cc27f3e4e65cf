//! [`Ranges`]: a sub-allocator that allocates each region with one driver call and frees it with another.
//!
//! No two ranges touch. The driver refuses a copy across the border of two allocations, and an allocator that
//! joins ranges could place a block there. So if a new allocation touches a held one, a larger allocation is
//! made in its place, and the ends of that one are left out.
//!
//! The lock is held only for the table, never during a driver call.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use larder_core::{
    Addr, AddrRange, Align, BestFit, ChunkState, GrowRequest, MAX_REGIONS, RegionPool,
    SubAllocError, SubAllocator, round_up,
};

use crate::Context;
use crate::driver::refused_free::RefusedFree;
use crate::driver::{DriverError, locked};
use crate::limits::{Charge, OverBudget, TreeNode};
use crate::source::virtual_memory::{RegionWatch, RegionWatcher};
use crate::stream::pool::{PoolSource, SharedPool};

/// Makes and frees single allocations.
pub trait RangeSource: Send + Sync {
    /// Returns the context that the allocations live in.
    fn context(&self) -> &Context;

    /// Makes an allocation, at a multiple of [`ALIGN_BYTES`].
    fn alloc(&self, bytes: u64) -> Result<u64, DriverError>;

    /// Returns the free that releases the allocation at an address.
    fn refused_free(&self, address: u64) -> RefusedFree;

    /// Subtracts an allocation from the counts, since it was freed, or will be once the driver accepts the
    /// free.
    fn gone(&self, _bytes: u64) {}
}

impl RangeSource for Box<dyn RangeSource> {
    fn context(&self) -> &Context {
        (**self).context()
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        (**self).alloc(bytes)
    }

    fn refused_free(&self, address: u64) -> RefusedFree {
        (**self).refused_free(address)
    }

    fn gone(&self, bytes: u64) {
        (**self).gone(bytes);
    }
}

/// Alignment of every allocation that the driver makes.
const ALIGN_BYTES: u64 = 256;

/// An allocation, keyed by the start of the part of it that is granted.
#[derive(Debug)]
struct Allocation {
    bytes: u64,
    base: u64,
    base_bytes: u64,
    charge: Option<Charge>,
}

/// An allocation, before a part of it is granted.
struct Raw {
    base: u64,
    bytes: u64,
    charge: Option<Charge>,
}

#[derive(Default)]
struct RangeTable {
    pieces: BTreeMap<u64, Allocation>,
    /// Start and end of each piece that the driver is being asked to free, one for each thread that releases.
    /// If the driver refuses, the piece returns to the table.
    leaving: Vec<(u64, u64)>,
    /// Bytes of all allocations, including the ends that are left out.
    held_bytes: u64,
    last_error: Option<DriverError>,
    /// A budget's refusal, if a budget refused the newest request for memory.
    over_budget: Option<OverBudget>,
}

impl RangeTable {
    /// Returns whether a granted range ends where this range starts, or starts where this range ends.
    fn touches(&self, start: u64, bytes: u64) -> bool {
        let below = self.pieces.range(..start).next_back();
        let above = self.pieces.range(start..).next();
        below.is_some_and(|(at, piece)| at + piece.bytes == start)
            || above.is_some_and(|(at, _)| *at == start + bytes)
            || self
                .leaving
                .iter()
                .any(|(from, to)| *to == start || *from == start + bytes)
    }

    fn insert(&mut self, start: u64, piece: Allocation) {
        self.held_bytes += piece.base_bytes;
        self.pieces.insert(start, piece);
    }

    /// Removes the piece whose granted part is `range`, until the driver [has answered](Self::left).
    fn remove(&mut self, range: AddrRange) -> Result<Allocation, DriverError> {
        let start = range.start().get();
        let whole = |piece: &Allocation| piece.bytes == range.bytes();
        if self.pieces.get(&start).is_some_and(whole)
            && let Some(piece) = self.pieces.remove(&start)
        {
            self.leaving.push((start, range.end().get()));
            self.held_bytes -= piece.base_bytes;
            return Ok(piece);
        }
        Err(DriverError::NotOurs { address: start })
    }

    /// Ends the removal of a piece, after the driver has answered.
    fn left(&mut self, range: AddrRange) {
        let ends = (range.start().get(), range.end().get());
        if let Some(index) = self.leaving.iter().position(|piece| *piece == ends) {
            self.leaving.swap_remove(index);
        }
    }
}

/// Regions of one kind of memory, each from one driver call.
///
/// A region is released whole or not at all, and no two regions touch, so that no block lies across two
/// allocations (the driver refuses copies there). Any thread may call this, with any context current. If the
/// driver refuses a free, the region stays with the caller, or in [`drop`] with the [`Context`], which
/// retries the free. Dropping this frees everything, so no block may be in use then, not even by queued work.
///
/// Cost: O(log regions) and the driver's calls.
pub struct Ranges<S: RangeSource> {
    source: S,
    /// Node to which held memory is charged.
    node: Option<Arc<TreeNode>>,
    table: Mutex<RangeTable>,
    /// Watcher of regions that are made and released.
    watcher: RegionWatcher,
}

impl<S: RangeSource> Ranges<S> {
    pub(crate) fn over(source: S) -> Self {
        Self {
            source,
            node: None,
            table: Mutex::default(),
            watcher: RegionWatcher::default(),
        }
    }

    /// Sets the watcher of regions made from now on. It is set once, before anything is held.
    pub(crate) fn watch(&self, watch: Box<dyn RegionWatch>) {
        self.watcher.set(watch);
    }

    /// Charges this source to a budget. The source must hold nothing yet.
    pub(crate) fn charged_to(mut self, node: Arc<TreeNode>) -> Self {
        self.node = Some(node);
        self
    }

    pub(crate) const fn source(&self) -> &S {
        &self.source
    }

    /// Returns the context of the regions.
    pub fn context(&self) -> &Context {
        self.source.context()
    }

    /// Returns the bytes held from the driver.
    pub fn held_bytes(&self) -> u64 {
        locked(&self.table).held_bytes
    }

    /// Returns the newest refusal, with the reason, which a [`SubAllocError`] does not have.
    pub fn last_error(&self) -> Option<DriverError> {
        locked(&self.table).last_error
    }

    /// Returns the bytes held for the region at `range`; 0 if there is none.
    fn held_for(&self, range: AddrRange) -> u64 {
        let table = locked(&self.table);
        let piece = table.pieces.get(&range.start().get());
        piece.map_or(0, |piece| piece.base_bytes)
    }

    /// Makes an allocation of exactly the size, if it can be granted whole.
    fn grow_plain(&self, request: GrowRequest) -> Result<AddrRange, Missed> {
        let bytes = request.bytes;
        let raw = self.alloc(bytes).map_err(Missed::Driver)?;
        let base = raw.base;
        let range = AddrRange::new(Addr::new(base), bytes);
        if let Some(range) = range.filter(|range| range.start().is_aligned(request.align)) {
            let mut table = locked(&self.table);
            if !table.touches(base, bytes) {
                let piece = Allocation {
                    bytes,
                    base,
                    base_bytes: bytes,
                    charge: raw.charge,
                };
                table.insert(base, piece);
                return Ok(range);
            }
        }
        self.give_back(raw);
        Err(Missed::Place)
    }

    /// Makes an allocation that is larger than the granted part at both ends.
    fn grow_apart(&self, request: GrowRequest) -> Result<AddrRange, DriverError> {
        let bytes = request.bytes;
        let refused = DriverError::Size { bytes };
        let gap = request.align.bytes().max(ALIGN_BYTES);
        let align = Align::new(gap).ok_or(refused)?;
        let more = gap.checked_mul(2).ok_or(refused)?;
        let base_bytes = bytes.checked_add(more).ok_or(refused)?;
        let raw = self.alloc(base_bytes)?;
        let base = raw.base;
        // The start is above the base by at most one gap, so the end is below the end of the allocation.
        let start = round_up(base + 1, align);
        let range = start.and_then(|start| AddrRange::new(Addr::new(start), bytes));
        let Some(range) = range else {
            self.give_back(raw);
            return Err(refused);
        };
        let piece = Allocation {
            bytes,
            base,
            base_bytes,
            charge: raw.charge,
        };
        locked(&self.table).insert(range.start().get(), piece);
        Ok(range)
    }

    /// Allocates. After a refusal, retries the context's refused frees and then the allocation.
    fn alloc(&self, bytes: u64) -> Result<Raw, DriverError> {
        let context = self.source.context();
        let charge = || {
            let charged = self.node.as_ref().map(|node| node.charge(bytes));
            charged.transpose()
        };
        let mut charged = charge();
        if charged.is_err() && context.refused_frees() > 0 {
            context.settle_at_once();
            charged = charge();
        }
        locked(&self.table).over_budget = charged.as_ref().err().copied();
        let charge = charged.map_err(|_| DriverError::Budget)?;
        let base = match self.source.alloc(bytes) {
            Err(error) if error.is_out_of_memory() && context.refused_frees() > 0 => {
                context.settle_at_once();
                self.source.alloc(bytes)
            }
            other => other,
        };
        base.map(|base| Raw {
            base,
            bytes,
            charge,
        })
    }

    fn give_back(&self, raw: Raw) {
        let thing = self.source.refused_free(raw.base);
        self.source.context().give_back_charged(thing, raw.charge);
        self.source.gone(raw.bytes);
    }

    fn try_release(&self, range: AddrRange) -> Result<(), DriverError> {
        let piece = locked(&self.table).remove(range)?;
        self.watcher.leaving(range);
        let thing = self.source.refused_free(piece.base);
        let outcome = self.source.context().try_give_back(thing);
        let mut table = locked(&self.table);
        table.left(range);
        if outcome.is_err() {
            // The piece stays with the caller. Its addresses were not reused, since the driver still has them
            // allocated.
            table.insert(range.start().get(), piece);
            drop(table);
            self.watcher.held(range);
            return outcome;
        }
        drop(table);
        self.source.gone(piece.base_bytes);
        Ok(())
    }

    fn remember<T>(&self, outcome: Result<T, DriverError>) -> Result<T, SubAllocError> {
        outcome.map_err(|error| {
            locked(&self.table).last_error = Some(error);
            SubAllocError
        })
    }
}

impl<S: RangeSource> SubAllocator for Ranges<S> {
    /// O(log ranges) and one driver call, or three if the first allocation touches a range or is not aligned.
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let range = self.remember(self.grow_plain(request).or_else(|error| match error {
            Missed::Driver(error) => Err(error),
            Missed::Place => self.grow_apart(request),
        }))?;
        self.watcher.held(range);
        Ok(range)
    }

    /// Releases one whole region. O(log ranges) and one driver call.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.remember(self.try_release(range))
    }

    fn takes_ends(&self) -> bool {
        false
    }
}

impl<S: RangeSource> PoolSource<RegionPool<'static>> for Ranges<S> {
    fn last_error(&self) -> Option<DriverError> {
        Self::last_error(self)
    }

    fn over_budget(&self) -> Option<OverBudget> {
        locked(&self.table).over_budget
    }

    fn forget_over_budget(&self) {
        locked(&self.table).over_budget = None;
    }

    /// Returns the bytes in the left-out ends of allocations.
    fn left_out_bytes(&self) -> u64 {
        let table = locked(&self.table);
        let given: u64 = table.pieces.values().map(|piece| piece.bytes).sum();
        table.held_bytes.saturating_sub(given)
    }

    /// Returns the bytes of allocations that neither a block nor queued work uses.
    fn idle_bytes(core: &SharedPool<Self, RegionPool<'static>>) -> u64 {
        // Reserved before the lock is taken, since nothing is allocated on the host under it.
        let mut idle: Vec<AddrRange> = Vec::with_capacity(MAX_REGIONS);
        core.with(|pool| {
            pool.for_each_region(|region| {
                if region.live_bytes == 0 && idle.len() < idle.capacity() {
                    idle.push(region.range);
                }
            });
            pool.for_each_chunk(|chunk| {
                if let ChunkState::Free { pending: true } = chunk.state {
                    idle.retain(|range| !range.contains(chunk.range));
                }
            });
        });
        let held_for = |range| core.source().held_for(range);
        idle.into_iter().map(held_for).sum()
    }
}

impl<S: RangeSource> Drop for Ranges<S> {
    fn drop(&mut self) {
        let pieces = core::mem::take(&mut locked(&self.table).pieces);
        for (start, piece) in pieces {
            if let Some(range) = AddrRange::new(Addr::new(start), piece.bytes) {
                self.watcher.leaving(range);
            }
            self.give_back(Raw {
                base: piece.base,
                bytes: piece.base_bytes,
                charge: piece.charge,
            });
        }
    }
}

impl<S: RangeSource> fmt::Debug for Ranges<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranges")
            .field("context", self.source.context())
            .field("held_bytes", &self.held_bytes())
            .field("last_error", &self.last_error())
            .finish()
    }
}

/// The reason why an allocation of exactly the size cannot be granted.
enum Missed {
    Driver(DriverError),
    /// The allocation touches a granted range, or is not aligned.
    Place,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(base: u64, bytes: u64) -> Allocation {
        Allocation {
            bytes,
            base,
            base_bytes: bytes,
            charge: None,
        }
    }

    #[test]
    fn ranges_touch_end_to_start_and_start_to_end() {
        let mut table = RangeTable::default();
        table.insert(0x1000, piece(0x1000, 0x1000));
        assert!(table.touches(0x2000, 0x100));
        assert!(table.touches(0xf00, 0x100));
        assert!(!table.touches(0x2100, 0x100));
        assert!(!table.touches(0xe00, 0x100));
    }

    #[test]
    fn only_what_was_given_whole_is_taken_out() {
        let mut table = RangeTable::default();
        table.insert(0x1000, piece(0x1000, 0x1000));
        let range = |start, bytes| AddrRange::new(Addr::new(start), bytes).unwrap();
        assert!(table.remove(range(0x1000, 0x800)).is_err());
        assert!(table.remove(range(0x1800, 0x800)).is_err());
        assert!(table.remove(range(0x1000, 0x1000)).is_ok());
        assert_eq!(table.held_bytes, 0);
        assert!(table.touches(0x2000, 0x100), "it may come back");
        table.left(range(0x1000, 0x1000));
        assert!(!table.touches(0x2000, 0x100));
        assert!(table.remove(range(0x1000, 0x1000)).is_err());
    }
}
