//! A policy that serves: the blocks of a bin are adjacent in one slab, and the free ones are on the bin's stack.
//!
//! Blocks have no headers: a block is found from the number of strides between its bin's base and its address.
//!
//! Invariants:
//! * STACK1: a block is either on its own bin's stack, or is in use and has a life.
//! * STACK2: a virtual block is either on its owner's stack, or is named in `lent` of the block that was allocated
//!   through it. So a bin never borrows more blocks of larger bins than were planned.

use super::life::OpenLife;
use super::policy::ClassPolicy;
use super::records::{Listed, RecordLink};
use crate::sub_allocator::GrowRequest;
use crate::units::{Addr, AddrRange, Align, round_up};

/// The reason why a plan does not serve a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Miss {
    /// No bin has the size's class.
    NoBin,
    /// All blocks are in use, or less aligned than the request requires.
    NoBlock,
}

impl ClassPolicy {
    /// Turns the lists of the bins into stacks, with the oldest block and the newest virtual block on top, and gives
    /// each block a place. O(records).
    pub(super) fn fill_stacks(&mut self) {
        self.places.clear();
        for (at, bin) in self.bins.iter_mut().enumerate() {
            bin.first_place = self.places.len();
            let mut link = bin.blocks.first;
            while let Some(index) = link.index() {
                let block = &mut self.blocks[index];
                (block.bin, block.place) = (at, self.places.len());
                link = *block.next();
                // There is room for one place per block, and links have 32 bits.
                let _has_room = self.places.push(index as u32);
            }
            bin.virtuals.reverse(&mut self.virtuals);
        }
    }

    /// Returns the request for a slab that holds all bins, each at a multiple of its alignment. The request is for 0
    /// bytes if there are no blocks. Returns `None` if the size does not fit 64 bits. O(bins).
    pub(super) fn slab_request(&self, unit: Align) -> Option<GrowRequest> {
        let (mut bytes, mut align) = (0, unit);
        for bin in self.bins().filter(|bin| bin.blocks > 0) {
            bytes = round_up(bytes, bin.align)?.checked_add(bin.bytes())?;
            align = align.max(bin.align);
        }
        Some(GrowRequest {
            bytes: round_up(bytes, align)?,
            align,
            at: None,
        })
    }

    /// Lays the bins out in their slab. O(bins).
    pub(super) fn place_in(&mut self, slab: AddrRange) {
        let mut next = slab.start().get();
        for at in 0..self.bins.len() {
            let plan = self.plan_of(&self.bins[at]);
            if plan.blocks > 0 {
                // The slab's size includes all bins, so they lie inside it.
                next = round_up(next, plan.align).unwrap_or(next);
            }
            self.bins[at].base = next;
            next += plan.bytes();
        }
        self.slab = Some(slab);
    }

    /// Takes a block for a life. O(log bins), plus O(virtual blocks) if the bin itself has no free block.
    pub(super) fn take(&mut self, life: OpenLife) -> Result<Addr, Miss> {
        let class = self.classes().class_of(life.stat.bytes);
        let bin = class.and_then(|class| self.position_of(class));
        let bin = bin.ok_or(Miss::NoBin)?;
        let align = life.stat.align;
        let index = self.pop(bin, align).or_else(|| self.borrow(bin, align));
        let block = &mut self.blocks[index.ok_or(Miss::NoBlock)?];
        block.life = Some(life);
        let bin = &self.bins[block.bin];
        let strides = (block.place - bin.first_place) as u64;
        // The address lies inside the slab, so it fits 64 bits.
        Ok(Addr::new(
            bin.base + strides * self.plan_of(bin).stride_bytes(),
        ))
    }

    fn pop(&mut self, bin: usize, align: Align) -> Option<usize> {
        let bin = &mut self.bins[bin];
        let block = if align <= bin.align {
            bin.blocks.pop(&mut self.blocks)?
        } else {
            return None;
        };
        self.blocks[block].lent = RecordLink::NIL;
        Some(block)
    }

    /// Takes a block of a larger bin, through the first of the bin's virtual blocks whose bin has a suitable free
    /// block.
    fn borrow(&mut self, bin: usize, align: Align) -> Option<usize> {
        let mut before = RecordLink::NIL;
        let mut link = self.bins[bin].virtuals.first;
        while let Some(index) = link.index() {
            let rest = self.virtuals[index].next;
            let planned = self.virtuals[index].block as usize;
            if let Some(block) = self.pop(self.blocks[planned].bin, align) {
                match before.index() {
                    Some(before) => self.virtuals[before].next = rest,
                    None => self.bins[bin].virtuals.first = rest,
                }
                self.blocks[block].lent = link;
                return Some(block);
            }
            (before, link) = (link, rest);
        }
        None
    }

    /// Frees the block in use that begins at `addr`, and returns its life. O(log bins).
    pub(super) fn give_back(&mut self, addr: Addr) -> Option<OpenLife> {
        let index = self.find(addr)?;
        let block = &mut self.blocks[index];
        let life = block.life.take()?;
        let (bin, lent) = (block.bin, block.lent);
        self.bins[bin].blocks.push(&mut self.blocks, index);
        if let Some(index) = lent.index()
            && let Some(owner) = self.position_of(self.virtuals[index].class)
        {
            self.bins[owner].virtuals.push(&mut self.virtuals, index);
        }
        Some(life)
    }

    /// Returns the block that begins at `addr`, in use or free.
    fn find(&self, addr: Addr) -> Option<usize> {
        let byte = AddrRange::new(addr, 1)?;
        self.slab.filter(|slab| slab.contains(byte))?;
        // This is the last bin that begins at or before the address. A bin without blocks begins where the next bin
        // begins.
        let behind = self.bins.partition_point(|bin| bin.base <= addr.get());
        let bin = self.bins.get(behind.checked_sub(1)?)?;
        let (offset, plan) = (addr.get() - bin.base, self.plan_of(bin));
        if offset >= plan.bytes() || !offset.is_multiple_of(plan.stride_bytes()) {
            return None;
        }
        // The quotient is less than the bin's number of blocks, which fits 32 bits.
        let place = bin.first_place + (offset / plan.stride_bytes()) as usize;
        Some(*self.places.get(place)? as usize)
    }
}
