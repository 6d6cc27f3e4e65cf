//! One policy: bins with blocks, and virtual blocks through which bins borrow from larger ones.
//!
//! Invariants:
//! * POLICY1: bins ascend by class.
//! * POLICY2: a bin's list holds the blocks of its class, oldest first. The members of a block are in order of
//!   beginnings and do not overlap.
//! * POLICY3: the block to which a virtual block leads belongs to a larger bin of the same policy.

use super::class::Classes;
use super::config::PlanCapacity;
use super::error::PlanError;
use super::records::{Bin, MAX_RECORDS, PlanBlock, RecordLink, RecordList, VirtualBlock};
use crate::error::ConfigError;
use crate::table::fixed_vec::FixedVec;
use crate::units::{AddrRange, Align, round_up};

/// The bins, blocks and virtual blocks of one way to classify sizes.
#[derive(Debug)]
pub struct ClassPolicy {
    classes: Classes,
    pub(super) bins: FixedVec<Bin>,
    pub(super) blocks: FixedVec<PlanBlock>,
    pub(super) virtuals: FixedVec<VirtualBlock>,
    /// For each stat of the last round, the next stat in its block.
    pub(super) members: FixedVec<RecordLink>,
    /// In a plan that serves, the blocks by their place.
    pub(super) places: FixedVec<u32>,
    /// In a plan that serves, the memory of its blocks.
    pub(super) slab: Option<AddrRange>,
}

/// A bin as it is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BinPlan {
    /// The size class.
    pub class: u64,
    /// The size of the class's chunks, not rounded up to the alignment.
    pub chunk_bytes: u64,
    /// The largest alignment of a stat of the bin.
    pub align: Align,
    /// Number of the bin's own blocks.
    pub blocks: u32,
    /// Virtual blocks.
    pub virtuals: u32,
}

impl BinPlan {
    /// Returns the distance between blocks in a slab: the chunk size, rounded up to the alignment.
    pub fn stride_bytes(&self) -> u64 {
        round_up(self.chunk_bytes, self.align).unwrap_or(u64::MAX)
    }

    /// Returns the bytes of all blocks of the bin, or `u64::MAX` if they do not fit 64 bits.
    pub fn bytes(&self) -> u64 {
        // A stride that does not fit 64 bits matters only if the bin has blocks.
        self.stride_bytes().saturating_mul(u64::from(self.blocks))
    }
}

/// Numbers of records in use, to which a policy can be reset.
#[derive(Clone, Copy)]
pub(super) struct RecordMark {
    blocks: usize,
    virtuals: usize,
}

impl ClassPolicy {
    pub(super) fn new(classes: Classes, room: PlanCapacity) -> Result<Self, ConfigError> {
        let blocks = room.blocks.min(MAX_RECORDS);
        Ok(Self {
            classes,
            bins: FixedVec::new(room.bins)?,
            blocks: FixedVec::new(blocks)?,
            virtuals: FixedVec::new(room.virtuals.min(MAX_RECORDS))?,
            members: FixedVec::new(room.stats.min(MAX_RECORDS))?,
            places: FixedVec::new(blocks)?,
            slab: None,
        })
    }

    /// Returns how the policy classifies sizes.
    pub fn classes(&self) -> Classes {
        self.classes
    }

    /// Returns the bins by ascending class, including those without blocks.
    pub fn bins(&self) -> impl Iterator<Item = BinPlan> {
        self.bins.iter().map(|bin| self.plan_of(bin))
    }

    pub(super) fn plan_of(&self, bin: &Bin) -> BinPlan {
        BinPlan {
            class: bin.class,
            // A class in the table is the class of some size, so it has a chunk size.
            chunk_bytes: self.classes.chunk_bytes(bin.class).unwrap_or(u64::MAX),
            align: bin.align,
            blocks: bin.block_count,
            virtuals: bin.virtual_count,
        }
    }

    /// Returns the blocks to which a bin's virtual blocks lead, oldest first: the index of each in the table of blocks,
    /// and its class.
    pub fn virtuals_of(&self, class: u64) -> impl Iterator<Item = (u32, u64)> {
        let bin = self.position_of(class).map(|at| &self.bins[at]);
        let mut link = bin.map_or(RecordLink::NIL, |bin| bin.virtuals.first);
        core::iter::from_fn(move || {
            let record = &self.virtuals[link.index()?];
            link = record.next;
            Some((record.block, self.blocks[record.block as usize].class))
        })
    }

    /// Returns the blocks in the order in which they were planned: the class of each, and its stats as their numbers in
    /// the last round, in the order of their lives.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, impl Iterator<Item = usize>)> {
        let blocks = self.blocks.iter();
        blocks.map(|block| (block.class, self.members_from(block.first_member)))
    }

    fn members_from(&self, mut link: RecordLink) -> impl Iterator<Item = usize> {
        core::iter::from_fn(move || {
            let stat = link.index()?;
            link = self.members[stat];
            Some(stat)
        })
    }

    /// Returns the bytes that the plan needs, or `u64::MAX` if they do not fit 64 bits. Virtual blocks cost nothing.
    /// O(bins).
    pub fn memory_bytes(&self) -> u64 {
        let bytes = self.bins().map(|bin| bin.bytes());
        bytes.fold(0, u64::saturating_add)
    }

    pub(super) fn position_of(&self, class: u64) -> Option<usize> {
        self.bins.binary_search_by_key(&class, |bin| bin.class).ok()
    }

    /// Finds the bin of a class or creates it, and raises its alignment to `align`.
    pub(super) fn open_bin(&mut self, class: u64, align: Align) -> Result<(), PlanError> {
        let found = self.bins.binary_search_by_key(&class, |bin| bin.class);
        if let Err(at) = found
            && !self.bins.insert(at, Bin::new(class))
        {
            return Err(PlanError::BinsFull);
        }
        let bin = &mut self.bins[found.unwrap_or_else(|at| at)];
        bin.align = bin.align.max(align);
        Ok(())
    }

    /// Adds a block to the bin at `at`.
    pub(super) fn add_block(&mut self, at: usize) -> Result<usize, PlanError> {
        let block = self.blocks.len();
        if !self.blocks.push(PlanBlock::new(self.bins[at].class)) {
            return Err(PlanError::BlocksFull);
        }
        self.link_block(at, block);
        Ok(block)
    }

    fn link_block(&mut self, at: usize, block: usize) {
        let bin = &mut self.bins[at];
        bin.blocks.append(&mut self.blocks, block);
        bin.block_count += 1;
    }

    /// Returns whether the bin at `at` already borrows this block.
    pub(super) fn borrows(&self, at: usize, block: usize) -> bool {
        let mut of_bin = self.virtuals_of(self.bins[at].class);
        of_bin.any(|(target, _)| target as usize == block)
    }

    pub(super) fn add_virtual(&mut self, at: usize, block: usize) -> Result<(), PlanError> {
        let index = self.virtuals.len();
        let record = VirtualBlock {
            class: self.bins[at].class,
            // There are fewer blocks than `MAX_RECORDS`.
            block: block as u32,
            next: RecordLink::NIL,
        };
        if !self.virtuals.push(record) {
            return Err(PlanError::VirtualsFull);
        }
        self.link_virtual(at, index);
        Ok(())
    }

    fn link_virtual(&mut self, at: usize, index: usize) {
        let bin = &mut self.bins[at];
        bin.virtuals.append(&mut self.virtuals, index);
        bin.virtual_count += 1;
    }

    pub(super) fn mark(&self) -> RecordMark {
        RecordMark {
            blocks: self.blocks.len(),
            virtuals: self.virtuals.len(),
        }
    }

    /// Forgets blocks and virtual blocks added since the mark, and all members. Bins stay, with their alignment.
    /// O(records).
    pub(super) fn back_to(&mut self, mark: RecordMark) {
        self.blocks.truncate(mark.blocks);
        self.virtuals.truncate(mark.virtuals);
        self.forget_members();
        for bin in self.bins.iter_mut() {
            (bin.block_count, bin.virtual_count) = (0, 0);
            (bin.blocks, bin.virtuals) = (RecordList::EMPTY, RecordList::EMPTY);
        }
        for block in 0..self.blocks.len() {
            if let Some(at) = self.position_of(self.blocks[block].class) {
                self.link_block(at, block);
            }
        }
        for index in 0..self.virtuals.len() {
            if let Some(at) = self.position_of(self.virtuals[index].class) {
                self.link_virtual(at, index);
            }
        }
    }

    pub(super) fn forget_members(&mut self) {
        for block in self.blocks.iter_mut() {
            block.first_member = RecordLink::NIL;
            block.cursor = RecordLink::NIL;
        }
    }

    /// Forgets every bin and block. From then on `classes` classifies sizes.
    pub(super) fn clear(&mut self, classes: Classes) {
        self.classes = classes;
        self.bins.clear();
        self.blocks.clear();
        self.virtuals.clear();
    }
}
