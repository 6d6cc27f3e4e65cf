//! One policy: bins with blocks, and virtual blocks that borrow from larger bins.
//!
//! Invariants:
//! * POLICY1: `bins[..bin_count]` ascend by class.
//! * POLICY2: a bin's list holds the blocks of its class, oldest first; a block's members ascend by
//!   beginning and no two overlap.
//! * POLICY3: a virtual block's target belongs to a larger bin of the same policy.

use super::class::Classes;
use super::error::PlanError;
use super::tables::{BinRecord, BlockRecord, PolicyTables, RecordLink, VirtualRecord, nameable};
use crate::units::{Align, round_up};

/// The bins, blocks and virtual blocks of one way to class sizes.
#[derive(Debug)]
pub struct ClassPolicy<'t> {
    classes: Classes,
    pub(super) bins: &'t mut [BinRecord],
    pub(super) bin_count: usize,
    pub(super) blocks: &'t mut [BlockRecord],
    pub(super) block_count: usize,
    virtuals: &'t mut [VirtualRecord],
    virtual_count: usize,
    pub(super) members: &'t mut [u32],
}

/// A bin as it is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BinPlan {
    /// The size class.
    pub class: u64,
    /// The class's chunk, not rounded.
    pub chunk_bytes: u64,
    /// The largest alignment a stat of the bin had.
    pub align: Align,
    /// Blocks of its own.
    pub blocks: u32,
    /// Virtual blocks.
    pub virtuals: u32,
}

impl BinPlan {
    /// From one block to the next in a slab: the chunk, rounded up to the alignment.
    pub fn stride_bytes(&self) -> u64 {
        round_up(self.chunk_bytes, self.align).unwrap_or(u64::MAX)
    }
}

/// How many records were in use.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    blocks: usize,
    virtuals: usize,
}

impl<'t> ClassPolicy<'t> {
    pub(super) fn new(classes: Classes, tables: PolicyTables<'t>) -> Self {
        Self {
            classes,
            bins: nameable(tables.bins),
            bin_count: 0,
            blocks: nameable(tables.blocks),
            block_count: 0,
            virtuals: nameable(tables.virtuals),
            virtual_count: 0,
            members: nameable(tables.members),
        }
    }

    pub(super) fn into_tables(self) -> PolicyTables<'t> {
        PolicyTables {
            bins: self.bins,
            blocks: self.blocks,
            virtuals: self.virtuals,
            members: self.members,
        }
    }

    /// What its classes are.
    pub fn classes(&self) -> Classes {
        self.classes
    }

    /// The bins by ascending class, those without blocks too.
    pub fn bins(&self) -> impl Iterator<Item = BinPlan> {
        self.bins[..self.bin_count].iter().map(|bin| BinPlan {
            class: bin.class,
            // A class in the table is that of a size, so that it has a chunk.
            chunk_bytes: self.classes.chunk_bytes(bin.class).unwrap_or(u64::MAX),
            align: bin.align,
            blocks: bin.blocks,
            virtuals: bin.virtuals,
        })
    }

    /// For each virtual block of a bin, oldest first, the place of its target in the table of
    /// blocks and the class of that.
    pub fn virtuals_of(&self, class: u64) -> impl Iterator<Item = (u32, u64)> {
        let bin = self.position_of(class).map(|at| self.bins[at]);
        let mut link = bin.map_or(RecordLink::NIL, |bin| bin.first_virtual);
        core::iter::from_fn(move || {
            let record = self.virtuals[link.index()?];
            link = record.next;
            Some((record.block, self.blocks[record.block as usize].class))
        })
    }

    /// The blocks in the order in which they were planned: the class of each, and the stats in it by
    /// their numbers in the last round, in the order of their lives.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, impl Iterator<Item = usize>)> {
        let blocks = self.blocks[..self.block_count].iter();
        blocks.map(|block| (block.class, self.members_from(block.first_member)))
    }

    fn members_from(&self, mut link: RecordLink) -> impl Iterator<Item = usize> {
        core::iter::from_fn(move || {
            let stat = link.index()?;
            link = RecordLink::from_place(self.members[stat]);
            Some(stat)
        })
    }

    /// What the plan needs: virtual blocks cost nothing. `u64::MAX` if it cannot be counted. O(b)
    /// in bins.
    pub fn memory_bytes(&self) -> u64 {
        self.bins().fold(0, |sum: u64, bin| {
            // A bin whose stride cannot be counted matters only once it has blocks.
            sum.saturating_add(bin.stride_bytes().saturating_mul(u64::from(bin.blocks)))
        })
    }

    pub(super) fn position_of(&self, class: u64) -> Option<usize> {
        let bins = &self.bins[..self.bin_count];
        bins.binary_search_by_key(&class, |bin| bin.class).ok()
    }

    /// The bin of a class, made if there is none, aligned at least so.
    pub(super) fn open_bin(&mut self, class: u64, align: Align) -> Result<(), PlanError> {
        let bins = &self.bins[..self.bin_count];
        let at = match bins.binary_search_by_key(&class, |bin| bin.class) {
            Ok(at) => at,
            Err(at) => {
                if self.bin_count == self.bins.len() {
                    return Err(PlanError::BinsFull);
                }
                self.bins.copy_within(at..self.bin_count, at + 1);
                self.bins[at] = BinRecord {
                    class,
                    ..BinRecord::VACANT
                };
                self.bin_count += 1;
                at
            }
        };
        self.bins[at].align = self.bins[at].align.max(align);
        Ok(())
    }

    /// Makes a block in the bin at `at`.
    pub(super) fn add_block(&mut self, at: usize) -> Result<usize, PlanError> {
        let block = self.block_count;
        let record = self.blocks.get_mut(block).ok_or(PlanError::BlocksFull)?;
        *record = BlockRecord {
            class: self.bins[at].class,
            ..BlockRecord::VACANT
        };
        self.block_count += 1;
        self.link_block(at, block);
        Ok(block)
    }

    fn link_block(&mut self, at: usize, block: usize) {
        self.blocks[block].next = RecordLink::NIL;
        let link = RecordLink::to(block);
        match self.bins[at].last_block.index() {
            Some(last) => self.blocks[last].next = link,
            None => self.bins[at].first_block = link,
        }
        self.bins[at].last_block = link;
        self.bins[at].blocks += 1;
    }

    /// Whether the bin at `at` borrows this block already.
    pub(super) fn borrows(&self, at: usize, block: usize) -> bool {
        let mut of_bin = self.virtuals_of(self.bins[at].class);
        of_bin.any(|(target, _)| target as usize == block)
    }

    pub(super) fn add_virtual(&mut self, at: usize, block: usize) -> Result<(), PlanError> {
        let index = self.virtual_count;
        let record = self.virtuals.get_mut(index);
        *record.ok_or(PlanError::VirtualsFull)? = VirtualRecord {
            class: self.bins[at].class,
            // Links name at most as many blocks as a `u32` counts.
            block: block as u32,
            next: RecordLink::NIL,
        };
        self.virtual_count += 1;
        self.link_virtual(at, index);
        Ok(())
    }

    fn link_virtual(&mut self, at: usize, index: usize) {
        self.virtuals[index].next = RecordLink::NIL;
        let link = RecordLink::to(index);
        match self.bins[at].last_virtual.index() {
            Some(last) => self.virtuals[last].next = link,
            None => self.bins[at].first_virtual = link,
        }
        self.bins[at].last_virtual = link;
        self.bins[at].virtuals += 1;
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            blocks: self.block_count,
            virtuals: self.virtual_count,
        }
    }

    /// Forgets blocks and virtual blocks made since, and all members. Bins stay, with their
    /// alignment. O(records).
    pub(super) fn back_to(&mut self, mark: Mark) {
        self.block_count = mark.blocks;
        self.virtual_count = mark.virtuals;
        self.forget_members();
        for bin in &mut self.bins[..self.bin_count] {
            *bin = BinRecord {
                class: bin.class,
                align: bin.align,
                ..BinRecord::VACANT
            };
        }
        for block in 0..self.block_count {
            if let Some(at) = self.position_of(self.blocks[block].class) {
                self.link_block(at, block);
            }
        }
        for index in 0..self.virtual_count {
            if let Some(at) = self.position_of(self.virtuals[index].class) {
                self.link_virtual(at, index);
            }
        }
    }

    pub(super) fn forget_members(&mut self) {
        for block in &mut self.blocks[..self.block_count] {
            block.first_member = RecordLink::NIL;
            block.cursor = RecordLink::NIL;
        }
    }

    /// Forgets every bin and block.
    pub(super) fn clear(&mut self) {
        self.bin_count = 0;
        self.block_count = 0;
        self.virtual_count = 0;
    }
}
