//! A plan that serves: bins over slabs, found by offset, with their stacks of free blocks.
//!
//! No headers: a block is the number of strides between its bin's base and its address.
//!
//! Invariants, while the gate is not vacant:
//! * S1: `bins[..bin_count]` ascend by key; `by_address` of them names each once, by base.
//! * S2: a block stands in its own bin's stack, is in use, or is on its way between two locks.
//! * S3: a virtual block stands in its owner's stack, or is named by `lent` of the block that went
//!   out through it, so that a bin never borrows more blocks of a larger one than were planned. Not
//!   where virtual blocks take turns: there they stand in the stack for ever and `lent` names none.

use super::AllocStat;
use super::class::{Interval, SMALL_MAX_BYTES};
use super::config::Virtuals;
use super::gate::Gate;
use super::pool_tables::{Heads, PoolBlock, SlotTables};
use super::small_class::SmallClass;
use super::tables::Link;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Wait};
use crate::units::{Addr, Align};

/// Keys below this are small classes.
pub(super) const FIRST_LARGE_KEY: u64 = SmallClass::NUMBERS as u64;

/// Room for a plan that serves.
pub(super) struct Slot<'t, W: Wait> {
    pub(super) gate: Gate,
    pub(super) tables: SlotTables<'t, W>,
    pub(super) bin_count: AtomicU32,
    /// Which of [`Interval::ALL`] the plan uses.
    pub(super) interval: AtomicU32,
    /// All slabs lie between the two; read without entering, to spare others the look.
    pub(super) low: AtomicU64,
    pub(super) high: AtomicU64,
}

/// Where a block of a slot is.
#[derive(Clone, Copy)]
pub(super) struct Place {
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

impl<'t, W: Wait> Slot<'t, W> {
    pub(super) fn new(tables: SlotTables<'t, W>) -> Self {
        Self {
            gate: Gate::new(),
            tables,
            bin_count: AtomicU32::new(0),
            interval: AtomicU32::new(0),
            low: AtomicU64::new(0),
            high: AtomicU64::new(0),
        }
    }

    /// Whether the address lies near the slabs. True for a block of this slot, whose holder has
    /// seen the plan; otherwise a guess.
    pub(super) fn may_hold(&self, addr: Addr) -> bool {
        let low = self.low.load(Ordering::Relaxed);
        let high = self.high.load(Ordering::Relaxed);
        low <= addr.get() && addr.get() < high
    }

    /// Takes a block for `stat`, which has all but its end. The caller is inside the gate, and stays
    /// there for the block; `step` counts steps so far. O(log bins), and O(virtual blocks) if the bin
    /// itself has none left.
    pub(super) fn take(
        &self,
        stat: AllocStat,
        step: u64,
        virtuals: Virtuals,
    ) -> Result<Addr, Miss> {
        let key = self.key_of(stat.bytes).ok_or(Miss::NoBin)?;
        let bin = self.position_of(key).ok_or(Miss::NoBin)?;
        let place = self
            .pop(bin, stat.align)
            .or_else(|| match virtuals {
                Virtuals::RoundRobin => self.borrow_in_turn(bin, stat.align, step),
                Virtuals::PerBlock | Virtuals::PerStat => self.borrow(bin, stat.align, virtuals),
            })
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
    pub(super) fn end_use(&self, addr: Addr) -> Option<(Place, AllocStat, u64)> {
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
    pub(super) fn put_back(&self, place: Place) {
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
            heads.own = Link::to(block);
        });
    }

    pub(super) fn push_virtual(&self, owner: usize, index: usize) {
        self.tables.bins[owner].heads.with(|heads| {
            self.tables.virtuals[index].next.write(heads.virtuals);
            heads.virtuals = Link::to(index);
        });
    }

    fn pop(&self, bin: usize, align: Align) -> Option<Place> {
        let record = &self.tables.bins[bin];
        if align > record.align() {
            return None;
        }
        record.heads.with(|heads| {
            let block = heads.own.index()?;
            let of_block: &PoolBlock = &self.tables.blocks[block];
            heads.own = of_block.next.read();
            of_block.lent.write(Link::NIL);
            Some(Place { bin, block })
        })
    }

    /// A block of a larger bin, through one of the bin's virtual blocks: the newest only, or the
    /// first that leads to one.
    fn borrow(&self, bin: usize, align: Align, virtuals: Virtuals) -> Option<Place> {
        self.tables.bins[bin].heads.with(|heads: &mut Heads| {
            let mut before = Link::NIL;
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
                if virtuals == Virtuals::PerStat {
                    return None;
                }
                before = link;
                link = record.next.read();
            }
            None
        })
    }

    /// A block of the larger bin whose turn it is, if that has one. The virtual block stays where it
    /// is: it may be lent again while this one is out.
    fn borrow_in_turn(&self, bin: usize, align: Align, step: u64) -> Option<Place> {
        let record = &self.tables.bins[bin];
        let virtuals = record.virtuals.load(Ordering::Relaxed);
        record.heads.with(|heads: &mut Heads| {
            if heads.turn_step != step {
                heads.turn_step = step;
                heads.turns = 0;
            }
            let turn = heads.turns.checked_rem(virtuals)?;
            heads.turns = turn + 1;
            let first = record.first_virtual.load(Ordering::Relaxed);
            let virtual_block = &self.tables.virtuals[(first + turn) as usize];
            self.pop(virtual_block.target.load(Ordering::Relaxed) as usize, align)
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

    pub(super) fn position_of(&self, key: u64) -> Option<usize> {
        let bins = &self.tables.bins[..self.bins_in_use()];
        let key_of = |bin: &super::PoolBin<W>| bin.key.load(Ordering::Relaxed);
        bins.binary_search_by_key(&key, key_of).ok()
    }

    fn find(&self, addr: Addr) -> Option<Place> {
        let bins = &self.tables.bins[..self.bins_in_use()];
        let base = |at: usize| bins[at].base.load(Ordering::Relaxed);
        let at_place = |place: usize| bins[place].by_address.load(Ordering::Relaxed) as usize;
        // How many bins begin no later; the block is in the last of them, if in any.
        let (mut low, mut high) = (0, bins.len());
        while low < high {
            let middle = low.midpoint(high);
            if base(at_place(middle)) <= addr.get() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let bin = at_place(low.checked_sub(1)?);
        let offset = addr.get() - base(bin);
        let stride = bins[bin].stride_bytes.load(Ordering::Relaxed);
        if offset >= bins[bin].bytes() || !offset.is_multiple_of(stride) {
            return None;
        }
        let first = bins[bin].first_block.load(Ordering::Relaxed) as usize;
        // Fewer than the bin's blocks, which 32 bits count.
        let block = first + (offset / stride) as usize;
        Some(Place { bin, block })
    }

    fn addr_of(&self, place: Place) -> Addr {
        let bin = &self.tables.bins[place.bin];
        let first = bin.first_block.load(Ordering::Relaxed) as usize;
        let strides = (place.block - first) as u64;
        // Inside the slab, which is a range.
        let offset = strides * bin.stride_bytes.load(Ordering::Relaxed);
        Addr::new(bin.base.load(Ordering::Relaxed) + offset)
    }
}
