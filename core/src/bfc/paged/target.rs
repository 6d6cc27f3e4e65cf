//! The target of a plan: the chunks under the block it is for, and the pages they touch.

use super::place::Spot;
use super::{Bfc, Link, PagePlan, Paged, State};
use crate::bfc::chunk::Chunk;
use crate::bfc::index::AddressIndex;

impl<I: AddressIndex> Bfc<'_, I, Paged<'_>> {
    /// Makes the chunks under the block, and the pages they touch, the plan's. `None` if the chunk
    /// table is full.
    pub(super) fn take_target(&mut self, plan: &mut PagePlan, spot: Spot) -> Option<()> {
        let floor = plan.start / self.memory.page * self.memory.page;
        let ceiling = self.ceiling(plan);
        let mut link = spot.chunk;
        plan.behind = floor;
        while link.is_some() && self.table.at(link).start < plan.end {
            let (from, to) = if self.table.at(link).is_unmapped() {
                (floor, ceiling)
            } else {
                (plan.start, plan.end)
            };
            let taken = self.take_out(link, from, to)?;
            link = self.own(plan, taken)?;
        }
        if plan.end > self.end() {
            if floor > self.end() {
                let empty = self.add_at_end(floor - self.end(), State::Unmapped)?;
                self.join_unmapped(empty);
            }
            let filling = self.add_at_end(ceiling - self.end(), State::Filling)?;
            self.own(plan, filling)?;
        }
        Some(())
    }

    /// First granule behind the pages that come with the block.
    pub(super) fn ceiling(&self, plan: &PagePlan) -> u32 {
        let pages = plan.end.div_ceil(self.memory.page);
        let mapping = self.memory.pages.at(pages.wrapping_sub(1));
        let first = self.memory.pages.mapping(mapping).page;
        let reused = mapping.is_some() && self.can_reuse(mapping, first, plan.start, plan.end);
        let reused =
            reused && first * self.memory.page >= plan.start / self.memory.page * self.memory.page;
        let pages = if reused {
            self.memory.pages.end(mapping)
        } else {
            pages
        };
        pages * self.memory.page
    }

    /// Takes what a free or unmapped chunk has between two granules out of it and its list.
    pub(super) fn take_out(&mut self, link: Link, from: u32, to: u32) -> Option<Link> {
        let chunk = *self.table.at(link);
        let cuts = u32::from(chunk.start < from) + u32::from(chunk.end() > to);
        if self.table.available() < cuts {
            return None;
        }
        let is_unmapped = chunk.is_unmapped();
        let relist = |this: &mut Self, link| {
            if is_unmapped {
                this.list_unmapped(link);
            } else {
                this.list(link);
            }
        };
        if is_unmapped {
            self.unlist_unmapped(link);
        } else {
            self.unlist(link);
        }
        let mut taken = link;
        if chunk.start < from {
            taken = self.cut_in_two(link, from - chunk.start)?;
        }
        let rest = if chunk.end() > to {
            Some(self.cut_in_two(taken, to - self.table.at(taken).start)?)
        } else {
            None
        };
        let state = if is_unmapped {
            State::Filling
        } else {
            State::Moving
        };
        self.table.at_mut(taken).set_state(state);
        // Only now, as what ends the range is listed otherwise.
        if taken != link {
            relist(self, link);
        }
        if let Some(rest) = rest {
            relist(self, rest);
        }
        Some(taken)
    }

    /// Makes a taken chunk part of the target, cut at the block's ends; gives the chunk behind it.
    pub(super) fn own(&mut self, plan: &mut PagePlan, taken: Link) -> Option<Link> {
        if plan.target.is_nil() {
            plan.target = taken;
        }
        let mut part = taken;
        for at in [plan.start, plan.end] {
            let chunk = *self.table.at(part);
            plan.behind = chunk.end();
            if chunk.start < at && at < chunk.end() {
                part = self.cut_in_two(part, at - chunk.start)?;
            }
        }
        Some(self.table.at(part).next)
    }

    /// Cuts an unlisted chunk in two behind its first granules; gives the second.
    pub(super) fn cut_in_two(&mut self, link: Link, front: u32) -> Option<Link> {
        let old = *self.table.at(link);
        let mut rest = old;
        rest.start += front;
        rest.size -= front;
        rest.prev = link;
        let new = self.table.insert(rest)?;
        if rest.state() != State::Unmapped {
            self.streams.count(None, rest.point());
        }
        let chunk = self.table.at_mut(link);
        chunk.size = front;
        chunk.next = new;
        self.link_before(old.next, new, &rest);
        Some(new)
    }

    /// A chunk in no list behind the last one.
    pub(super) fn add_at_end(&mut self, granules: u32, state: State) -> Option<Link> {
        if let Some(id) = self.memory.region {
            let region = *self.regions.get(id);
            let mut chunk = Chunk::new(region.granules(), granules, id);
            chunk.prev = Link(region.last());
            chunk.set_state(state);
            let link = self.table.insert(chunk)?;
            if self.wilderness.is_some() {
                let old = core::mem::take(&mut self.wilderness);
                self.bins.insert(&mut self.table, old);
            }
            self.table.at_mut(chunk.prev).next = link;
            let region = self.regions.get_mut(id);
            region.set_granules(chunk.end());
            region.set_last(link.0);
            return Some(link);
        }
        let link = self.table.insert(Chunk::VACANT)?;
        let base = self.memory.config.addresses.start().get();
        let Some(id) = self.regions.insert(base, granules, link.0) else {
            self.table.remove(link);
            return None;
        };
        let mut chunk = Chunk::new(0, granules, id);
        chunk.set_state(state);
        *self.table.at_mut(link) = chunk;
        self.set_newest(id);
        self.memory.region = Some(id);
        Some(link)
    }

    /// The runs of filling pages of the target, the first at or behind `page`.
    pub(super) fn filling_run(&self, plan: &PagePlan, page: u32) -> Option<(u32, u32)> {
        let mut run: Option<(u32, u32)> = None;
        let mut link = plan.target;
        while link.is_some() && self.table.at(link).start < plan.behind {
            let chunk = self.table.at(link);
            let filling = chunk.state() == State::Filling;
            match &mut run {
                Some((_, end)) if filling => *end = chunk.end().div_ceil(self.memory.page),
                Some(_) => return run,
                None if filling && chunk.start / self.memory.page >= page => {
                    run = Some((
                        chunk.start / self.memory.page,
                        chunk.end().div_ceil(self.memory.page),
                    ));
                }
                None => {}
            }
            link = chunk.next;
        }
        run
    }
}
