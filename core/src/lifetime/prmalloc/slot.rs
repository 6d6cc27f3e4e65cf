//! A plan that serves: bins over slabs, found by offset, with their stacks of free blocks.
//!
//! No headers: a block is the number of strides between its bin's base and its address.
//!
//! Invariants, while the gate is not vacant:
//! * PRSLOT1: `bins[..bin_count]` ascend by key. Those below `small_count` lie in the first slab and the
//!   others in the second, in this order.
//! * PRSLOT2: a block stands in its own bin's stack, is in use, or is on its way between two locks.
//! * PRSLOT3: a virtual block stands in its owner's stack, or is named by `lent` of the block that went
//!   out through it, so that a bin never borrows more blocks of a larger one than were planned.

use super::AllocStat;
use super::class::{Interval, SMALL_MAX_BYTES};
use super::gate::Gate;
use super::pool_tables::{PoolBlock, SlotTables, StackTops};
use super::small_class::SmallClass;
use super::tables::RecordLink;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Wait};
use crate::units::{Addr, AddrRange, Align};

/// Keys below this are small classes.
pub(super) const FIRST_LARGE_KEY: u64 = SmallClass::NUMBERS as u64;

/// Room for a plan that serves.
pub(super) struct PlanSlot<'t, W: Wait> {
    pub(super) gate: Gate,
    pub(super) tables: SlotTables<'t, W>,
    pub(super) bin_count: AtomicU32,
    pub(super) small_count: AtomicU32,
    /// Which of [`Interval::ALL`] the plan uses.
    pub(super) interval: AtomicU32,
    /// For sizes up to 32 KiB, and for those above.
    pub(super) slabs: [SlotRange; 2],
}

/// One range of the backend, or none. Read without entering, to spare others the look; so what is there
/// stays when the range has gone, and none is not written again.
#[derive(Debug)]
pub(super) struct SlotRange {
    start: AtomicU64,
    bytes: AtomicU64,
    /// 1 until the backend has taken it back.
    held: AtomicU32,
}

impl SlotRange {
    fn none() -> Self {
        Self {
            start: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            held: AtomicU32::new(0),
        }
    }

    /// The range that is held.
    pub(super) fn range(&self) -> Option<AddrRange> {
        let start = Addr::new(self.start.load(Ordering::Relaxed));
        let held = self.held.load(Ordering::Relaxed) == 1;
        AddrRange::new(start, self.bytes.load(Ordering::Relaxed)).filter(|_| held)
    }

    /// It is this, and before it was none or has gone.
    pub(super) fn set(&self, range: Option<AddrRange>) {
        if let Some(range) = range {
            self.start.store(range.start().get(), Ordering::Relaxed);
            self.bytes.store(range.bytes(), Ordering::Relaxed);
            self.held.store(1, Ordering::Relaxed);
        } else if self.bytes.load(Ordering::Relaxed) > 0 {
            self.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// The backend has it back.
    pub(super) fn let_go(&self) {
        self.held.store(0, Ordering::Relaxed);
    }

    fn holds(&self, addr: Addr) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let offset = || addr.get().checked_sub(self.start.load(Ordering::Relaxed));
        bytes > 0 && offset().is_some_and(|offset| offset < bytes)
    }
}

/// Where a block of a slot is.
#[derive(Clone, Copy)]
pub(super) struct SlotPlace {
    bin: usize,
    block: usize,
}

/// Why a plan does not serve a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Miss {
    /// No bin for the size.
    NoBin,
    /// All blocks are in use, or not aligned as wanted.
    Missed,
}

impl<'t, W: Wait> PlanSlot<'t, W> {
    pub(super) fn new(tables: SlotTables<'t, W>) -> Self {
        Self {
            gate: Gate::new(),
            tables,
            bin_count: AtomicU32::new(0),
            small_count: AtomicU32::new(0),
            interval: AtomicU32::new(0),
            slabs: [SlotRange::none(), SlotRange::none()],
        }
    }

    /// Whether the address lies in a slab. True for a block of this slot, whose holder has seen the
    /// plan; otherwise a guess.
    pub(super) fn may_hold(&self, addr: Addr) -> bool {
        self.slabs.iter().any(|slab| slab.holds(addr))
    }

    /// Takes a block for `stat`, which has all but its end. The caller is inside the gate, and stays
    /// there for the block; `step` counts steps so far. O(log bins), and O(virtual blocks) if the bin
    /// itself has none left.
    pub(super) fn take(&self, stat: AllocStat, step: u64) -> Result<Addr, Miss> {
        let key = self.key_of(stat.bytes).ok_or(Miss::NoBin)?;
        let bin = self.position_of(key).ok_or(Miss::NoBin)?;
        let place = self
            .pop(bin, stat.align)
            .or_else(|| self.borrow(bin, stat.align))
            .ok_or(Miss::Missed)?;
        let block = &self.tables.blocks[place.block];
        block.begin.store(stat.begin, Ordering::Relaxed);
        block.born_step.store(step, Ordering::Relaxed);
        block.align_log2.store(stat.align.log2(), Ordering::Relaxed);
        // Whoever frees the block got its address from us; the swap there needs the value only.
        block.used_bytes.store(stat.bytes, Ordering::Relaxed);
        Ok(self.addr_of(place))
    }

    /// The block in use that begins at `addr`, which is free from now on but in no stack yet, and
    /// its life so far. The caller is inside the gate. O(log bins).
    pub(super) fn end_use(&self, addr: Addr) -> Option<(SlotPlace, AllocStat, u64)> {
        let place = self.find(addr)?;
        let block = &self.tables.blocks[place.block];
        // Of two that free it one finds it in use.
        let bytes = match block.used_bytes.swap(0, Ordering::Relaxed) {
            0 => return None,
            bytes => bytes,
        };
        let align = Align::new(1 << block.align_log2.load(Ordering::Relaxed));
        let begin = block.begin.load(Ordering::Relaxed);
        let stat = AllocStat::new(begin, begin, bytes).aligned(align.unwrap_or(Align::ONE));
        Some((place, stat, block.born_step.load(Ordering::Relaxed)))
    }

    /// Puts a block whose use has ended back into its bin's stack.
    pub(super) fn put_back(&self, place: SlotPlace) {
        let lent = self.tables.blocks[place.block].lent.read();
        self.push(place.bin, place.block);
        if let Some(index) = lent.index() {
            let owner = self.tables.virtuals[index].owner.load(Ordering::Relaxed);
            self.push_virtual(owner as usize, index);
        }
    }

    pub(super) fn push(&self, bin: usize, block: usize) {
        self.tables.bins[bin].heads.with(|heads| {
            self.tables.blocks[block].next.write(heads.own);
            heads.own = RecordLink::to(block);
        });
    }

    pub(super) fn push_virtual(&self, owner: usize, index: usize) {
        self.tables.bins[owner].heads.with(|heads| {
            self.tables.virtuals[index].next.write(heads.virtuals);
            heads.virtuals = RecordLink::to(index);
        });
    }

    fn pop(&self, bin: usize, align: Align) -> Option<SlotPlace> {
        let record = &self.tables.bins[bin];
        if align > record.align() {
            return None;
        }
        record.heads.with(|heads| {
            let block = heads.own.index()?;
            let of_block: &PoolBlock = &self.tables.blocks[block];
            heads.own = of_block.next.read();
            of_block.lent.write(RecordLink::NIL);
            Some(SlotPlace { bin, block })
        })
    }

    /// A block of a larger bin, through the first of the bin's virtual blocks that leads to one.
    fn borrow(&self, bin: usize, align: Align) -> Option<SlotPlace> {
        self.tables.bins[bin].heads.with(|heads: &mut StackTops| {
            let mut before = RecordLink::NIL;
            let mut link = heads.virtuals;
            while let Some(index) = link.index() {
                let record = &self.tables.virtuals[index];
                let target = record.target.load(Ordering::Relaxed) as usize;
                if let Some(place) = self.pop(target, align) {
                    let rest = record.next.read();
                    match before.index() {
                        Some(before) => self.tables.virtuals[before].next.write(rest),
                        None => heads.virtuals = rest,
                    }
                    self.tables.blocks[place.block].lent.write(link);
                    return Some(place);
                }
                before = link;
                link = record.next.read();
            }
            None
        })
    }

    fn key_of(&self, bytes: u64) -> Option<u64> {
        if bytes <= SMALL_MAX_BYTES {
            return SmallClass::of(bytes).map(|class| u64::from(class.number()));
        }
        let interval = *Interval::ALL.get(self.interval.load(Ordering::Relaxed) as usize)?;
        interval.class_of(bytes)?.checked_add(FIRST_LARGE_KEY)
    }

    pub(super) fn bins_in_use(&self) -> usize {
        self.bin_count.load(Ordering::Relaxed) as usize
    }

    pub(super) fn small_bins(&self) -> usize {
        self.small_count.load(Ordering::Relaxed) as usize
    }

    pub(super) fn position_of(&self, key: u64) -> Option<usize> {
        let bins = &self.tables.bins[..self.bins_in_use()];
        let key_of = |bin: &super::PoolBin<W>| bin.key.load(Ordering::Relaxed);
        bins.binary_search_by_key(&key, key_of).ok()
    }

    fn find(&self, addr: Addr) -> Option<SlotPlace> {
        let (small, count) = (self.small_bins(), self.bins_in_use());
        let of_slab = if self.slabs[0].holds(addr) {
            0..small
        } else if self.slabs[1].holds(addr) {
            small..count
        } else {
            return None;
        };
        let bins = &self.tables.bins[..count];
        let base = |bin: &super::PoolBin<W>| bin.base.load(Ordering::Relaxed);
        // The last bin that begins no later; bins without blocks begin where the next one does.
        let behind = bins[of_slab.clone()].partition_point(|bin| base(bin) <= addr.get());
        let bin = of_slab.start + behind.checked_sub(1)?;
        let offset = addr.get() - base(&bins[bin]);
        let stride = bins[bin].stride_bytes.load(Ordering::Relaxed);
        if offset >= bins[bin].bytes() || !offset.is_multiple_of(stride) {
            return None;
        }
        let first = bins[bin].first_block.load(Ordering::Relaxed) as usize;
        // Fewer than the bin's blocks, which 32 bits count.
        let block = first + (offset / stride) as usize;
        Some(SlotPlace { bin, block })
    }

    fn addr_of(&self, place: SlotPlace) -> Addr {
        let bin = &self.tables.bins[place.bin];
        let first = bin.first_block.load(Ordering::Relaxed) as usize;
        let strides = (place.block - first) as u64;
        // Inside the slab, which is a range.
        let offset = strides * bin.stride_bytes.load(Ordering::Relaxed);
        Addr::new(bin.base.load(Ordering::Relaxed) + offset)
    }
}
