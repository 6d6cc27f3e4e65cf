//! The records a pool keeps, in tables that the caller lends: bins, blocks and virtual blocks of a
//! plan that serves, and the blocks of the backend.
//!
//! They are shared among threads. What describes a plan is written while its gate is vacant and
//! only read after that; the links of a stack are touched under the lock of the stack's bin. Both
//! hand over what they guard, so that every access here is relaxed.

use super::AllocStat;
use super::live::LiveRecord;
use super::tables::{PlanTables, RecordLink};
use crate::sync::{AtomicU32, AtomicU64, Locked, Ordering, Spin, Wait};
use crate::units::Align;

/// A link that threads share.
#[derive(Debug)]
pub(super) struct SharedLink(AtomicU32);

impl SharedLink {
    fn nil() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(super) fn read(&self) -> RecordLink {
        RecordLink::from_place(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn write(&self, link: RecordLink) {
        self.0.store(link.place(), Ordering::Relaxed);
    }
}

/// A bin that serves: where its blocks lie, and which are free.
pub struct PoolBin<W: Wait = Spin> {
    /// Classes up to 32 KiB come first; see `PlanSlot::key_of`.
    pub(super) key: AtomicU64,
    /// Where its blocks begin, or would.
    pub(super) base: AtomicU64,
    pub(super) stride_bytes: AtomicU64,
    pub(super) blocks: AtomicU32,
    pub(super) first_block: AtomicU32,
    pub(super) align_log2: AtomicU32,
    /// The stacks; the lock of a smaller bin may be held when that of a larger one is taken.
    pub(super) heads: Locked<StackTops, W>,
}

/// The tops of a bin's two stacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackTops {
    /// Free blocks.
    pub(super) own: RecordLink,
    /// Virtual blocks that are not lent out.
    pub(super) virtuals: RecordLink,
}

impl StackTops {
    pub(super) const EMPTY: Self = Self {
        own: RecordLink::NIL,
        virtuals: RecordLink::NIL,
    };
}

impl<W: Wait> PoolBin<W> {
    /// What stands in a fresh table.
    pub fn vacant() -> Self {
        Self {
            key: AtomicU64::new(0),
            base: AtomicU64::new(0),
            stride_bytes: AtomicU64::new(0),
            blocks: AtomicU32::new(0),
            first_block: AtomicU32::new(0),
            align_log2: AtomicU32::new(0),
            heads: Locked::new(StackTops::EMPTY),
        }
    }

    pub(super) fn align(&self) -> Align {
        Align::new(1 << self.align_log2.load(Ordering::Relaxed)).unwrap_or(Align::ONE)
    }

    /// Bytes of its blocks together. Counted before the slab was asked for.
    pub(super) fn bytes(&self) -> u64 {
        let blocks = u64::from(self.blocks.load(Ordering::Relaxed));
        blocks * self.stride_bytes.load(Ordering::Relaxed)
    }
}

/// A block of a plan that serves.
pub struct PoolBlock {
    pub(super) next: SharedLink,
    /// The virtual block through which it was lent, if it was.
    pub(super) lent: SharedLink,
    /// Requested bytes while in use, else 0.
    pub(super) used_bytes: AtomicU64,
    pub(super) begin: AtomicU64,
    pub(super) born_step: AtomicU64,
    pub(super) align_log2: AtomicU32,
}

impl PoolBlock {
    /// What stands in a fresh table.
    pub fn vacant() -> Self {
        Self {
            next: SharedLink::nil(),
            lent: SharedLink::nil(),
            used_bytes: AtomicU64::new(0),
            begin: AtomicU64::new(0),
            born_step: AtomicU64::new(0),
            align_log2: AtomicU32::new(0),
        }
    }
}

/// A virtual block of a plan that serves: a bin's leave to take one block of a larger bin.
pub struct PoolVirtual {
    pub(super) next: SharedLink,
    /// The bin that borrows.
    pub(super) owner: AtomicU32,
    /// The bin that lends.
    pub(super) target: AtomicU32,
}

impl PoolVirtual {
    /// What stands in a fresh table.
    pub fn vacant() -> Self {
        Self {
            next: SharedLink::nil(),
            owner: AtomicU32::new(0),
            target: AtomicU32::new(0),
        }
    }
}

/// The tables of one plan that serves.
pub(super) struct SlotTables<'t, W: Wait> {
    pub(super) bins: &'t [PoolBin<W>],
    pub(super) blocks: &'t [PoolBlock],
    pub(super) virtuals: &'t [PoolVirtual],
}

/// The tables of a [`TensorPool`](super::TensorPool). It has two plans at most: the one that serves, and
/// the one before it whose blocks are in use still.
pub struct PoolTables<'t, W: Wait = Spin> {
    /// For the planner: one a block freed between two rounds.
    pub pending: &'t mut [AllocStat],
    /// The tables of the plans that are made.
    pub plans: PlanTables<'t>,
    /// Of each plan one a bin with blocks or virtual blocks.
    pub bins: [&'t [PoolBin<W>]; 2],
    /// Of each plan one a block.
    pub blocks: [&'t [PoolBlock]; 2],
    /// Of each plan one a virtual block.
    pub virtuals: [&'t [PoolVirtual]; 2],
    /// One a block of the backend, and as many again so that they are found quickly.
    pub live: &'t mut [LiveRecord],
}
