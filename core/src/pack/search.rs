//! The search for a packing of one part within one height: places or raises items, and undoes that.
//!
//! # Invariants
//! * PACK1 `rest` of an unplaced item is the offset at which it rests on the placed items that it meets, moved up past
//!   pins in its way and to its alignment. `lowest >= rest`, and a placed item lies at `lowest`.
//! * PACK2 an item is placed only while no unplaced neighbour's `lowest` is below its own, so no item is placed under
//!   it afterwards.
//! * PACK3 `floor` of a section outside `dirty` is the least `lowest` of its unplaced items.
//! * PACK4 the records of `undo_log` from the mark of a choice onwards restore the offsets from before the choice.

use super::bucket::aligned;
use super::choose::{Heuristic, choose};
use super::item::PLACED;
use super::prepare::LifetimeFacts;
use super::tables::{PackTables, UndoRecord};

/// The outcome of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SearchOutcome {
    /// The search is not finished.
    Open,
    /// Every item is placed under the height.
    Packed,
    /// This part has no packing within the height.
    Impossible,
    /// The undo log does not fit its table.
    NoRoom,
}

/// Factor by which each death weighs more than the previous death.
const MORE_PER_DEATH: f64 = 1.01;
/// Weight above which all weights are scaled down.
const MAX_DEATHS: f64 = 1e100;

/// The state of the search; the rest of it is in the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackSearch {
    items: usize,
    pub(super) sections: usize,
    pins: bool,
    max_pad_bytes: u64,
    /// The height to meet.
    pub(super) height: u64,
    /// The height plus the padding from rounding sizes up. No top lies above this.
    pub(super) limit: u64,
    pub(super) unplaced: usize,
    undo_log: usize,
    choices: usize,
    /// Sections whose floors must be recomputed.
    dirty: (u32, u32),
    /// Whether the current choices may still lead to a packing.
    alive: bool,
    /// The section where the last branch died.
    pub(super) died: usize,
    death: f64,
    no_room: bool,
    /// Records examined.
    pub(super) records: u64,
}

impl PackSearch {
    /// Creates the search for a loaded part.
    pub(super) const fn new(items: usize, sections: usize, common: &LifetimeFacts) -> Self {
        Self {
            items,
            sections,
            pins: common.pins,
            max_pad_bytes: common.max_pad_bytes,
            height: 0,
            limit: 0,
            unplaced: 0,
            undo_log: 0,
            choices: 0,
            dirty: (0, 0),
            alive: false,
            died: usize::MAX,
            death: 1.0,
            no_room: false,
            records: 0,
        }
    }

    /// Restarts the search, with nothing placed, for packings of at most `height`.
    pub(super) fn start(
        &mut self,
        tables: &mut PackTables<'_>,
        pins: &dyn Fn(u32) -> u64,
        height: u64,
    ) {
        self.height = height;
        self.limit = height.saturating_add(self.max_pad_bytes);
        self.unplaced = self.items;
        self.undo_log = 0;
        self.choices = 0;
        self.no_room = false;
        self.died = usize::MAX;
        for section in &mut tables.sections[..self.sections] {
            section.left = 0;
        }
        for index in 0..self.items {
            tables.unplaced[index] = index as u32;
            let item = &mut tables.items[index];
            item.slot = index as u32;
            item.rest = if item.pinned { pins(item.id) } else { 0 };
            item.lowest = item.rest;
            for section in &mut tables.sections[item.lo as usize..item.hi as usize] {
                section.left += item.bytes;
            }
        }
        if self.pins {
            for index in 0..self.items {
                let rest = self.lifted(tables, index, tables.items[index].rest);
                tables.items[index].rest = rest;
                tables.items[index].lowest = rest;
            }
        }
        self.dirty = (0, self.sections as u32);
        self.alive = self.check(tables);
    }

    /// Makes one decision, or undoes one. The time depends on the number of unplaced items and their sections.
    pub(super) fn step(
        &mut self,
        tables: &mut PackTables<'_>,
        heuristic: &Heuristic,
    ) -> SearchOutcome {
        if self.alive && self.unplaced == 0 {
            if self.top(tables) <= self.height {
                return SearchOutcome::Packed;
            }
            self.alive = false;
        }
        if self.alive {
            let (index, records) = choose(self, tables, heuristic);
            self.records += records;
            let item = tables.items[index];
            if item.lowest > item.rest {
                // It was decided before that the item does not lie where it rests.
                self.alive = self.raise(tables, index)
                    && tables.items[index].lowest > item.lowest
                    && self.check(tables);
            } else {
                tables.choices[self.choices] = (index as u32, self.undo_log as u32);
                self.choices += 1;
                self.alive = self.place(tables, index) && self.check(tables);
            }
        } else {
            self.remember_death(tables);
            if self.choices == 0 {
                return SearchOutcome::Impossible;
            }
            self.choices -= 1;
            let (index, mark) = tables.choices[self.choices];
            self.unplace(tables, index as usize);
            self.fall_back(tables, mark as usize);
            self.alive = self.raise_with_twins(tables, index as usize) && self.check(tables);
        }
        if self.no_room {
            SearchOutcome::NoRoom
        } else {
            SearchOutcome::Open
        }
    }

    /// Returns the height of the placed items.
    pub(super) fn top(&self, tables: &PackTables<'_>) -> u64 {
        let items = tables.items[..self.items].iter();
        items
            .map(|item| item.lowest + item.asked)
            .max()
            .unwrap_or(0)
    }

    /// Copies each item's offset to its lifetime.
    pub(super) fn each_offset(&self, tables: &mut PackTables<'_>) {
        for item in &tables.items[..self.items] {
            tables.offsets[item.id as usize] = item.lowest;
        }
    }

    /// Places an item where it rests, and its unplaced neighbours above it.
    fn place(&mut self, tables: &mut PackTables<'_>, index: usize) -> bool {
        let item = tables.items[index];
        self.unplaced -= 1;
        let last = tables.unplaced[self.unplaced];
        tables.unplaced[item.slot as usize] = last;
        tables.items[last as usize].slot = item.slot;
        tables.items[index].old_slot = item.slot;
        tables.items[index].slot = PLACED;
        for section in &mut tables.sections[item.lo as usize..item.hi as usize] {
            section.left -= item.bytes;
        }
        self.soil(item.lo, item.hi);
        let top = item.top();
        self.records += u64::from(item.neighbours);
        for at in item.range() {
            let neighbour = tables.neighbours[at] as usize;
            let other = tables.items[neighbour];
            if other.slot == PLACED || other.rest >= top {
                continue;
            }
            if other.pinned {
                self.died = other.lo as usize;
                return false;
            }
            let rest = self.lifted(tables, neighbour, top);
            self.set(tables, neighbour, rest, rest.max(other.lowest));
        }
        true
    }

    fn unplace(&mut self, tables: &mut PackTables<'_>, index: usize) {
        let item = tables.items[index];
        let slot = item.old_slot;
        let moved = tables.unplaced[slot as usize];
        if slot as usize != self.unplaced {
            tables.unplaced[self.unplaced] = moved;
            tables.items[moved as usize].slot = self.unplaced as u32;
        }
        tables.unplaced[slot as usize] = index as u32;
        tables.items[index].slot = slot;
        self.unplaced += 1;
        for section in &mut tables.sections[item.lo as usize..item.hi as usize] {
            section.left += item.bytes;
        }
        self.soil(item.lo, item.hi);
    }

    /// Raises the item above the offset at which it rests. Some unplaced neighbour must then lie in the way, below the
    /// top that the item would have there. Returns whether that is possible.
    fn raise(&mut self, tables: &mut PackTables<'_>, index: usize) -> bool {
        let item = tables.items[index];
        let top = item.rest + item.bytes;
        let mut lowest = u64::MAX;
        for &neighbour in &tables.neighbours[item.range()] {
            let other = &tables.items[neighbour as usize];
            if other.slot != PLACED && other.lowest < top && !other.is_twin(&item) {
                lowest = lowest.min(other.top());
            }
        }
        if item.pinned || lowest > self.limit {
            self.died = item.lo as usize;
            return false;
        }
        let lowest = self.lifted(tables, index, lowest);
        if lowest > item.lowest {
            self.set(tables, index, item.rest, lowest);
        }
        true
    }

    /// Raises an item and its twins. Twins can be exchanged, so if the first of them lies higher, so do the others.
    fn raise_with_twins(&mut self, tables: &mut PackTables<'_>, index: usize) -> bool {
        if !self.raise(tables, index) {
            return false;
        }
        let item = tables.items[index];
        item.range().all(|at| {
            let neighbour = tables.neighbours[at] as usize;
            let other = &tables.items[neighbour];
            let follows =
                other.slot != PLACED && other.rest == other.lowest && other.is_twin(&item);
            !follows || self.raise(tables, neighbour)
        })
    }

    /// Returns the lowest offset, not below `offset`, that is aligned and clear of unplaced pins.
    fn lifted(&mut self, tables: &PackTables<'_>, index: usize, offset: u64) -> u64 {
        let item = &tables.items[index];
        let mut offset = aligned(offset, item.align);
        if !self.pins || item.pinned {
            return offset;
        }
        let neighbours = &tables.neighbours[item.range()];
        // Pins in the order of their offsets, such as ranges already in use, take one round and a second one as a
        // check.
        loop {
            let before = offset;
            for &other in neighbours {
                let pin = &tables.items[other as usize];
                let is_pin = pin.pinned && pin.slot != PLACED;
                if is_pin && offset < pin.top() && pin.lowest < offset + item.bytes {
                    offset = aligned(pin.top(), item.align);
                }
            }
            self.records += neighbours.len() as u64;
            if offset == before {
                return offset;
            }
        }
    }

    /// Changes an item's offsets, and records the old ones so that they can be restored.
    fn set(&mut self, tables: &mut PackTables<'_>, index: usize, rest: u64, lowest: u64) {
        let Some(undo) = tables.undo_log.get_mut(self.undo_log) else {
            self.no_room = true;
            return;
        };
        let item = &mut tables.items[index];
        *undo = UndoRecord {
            item: index as u32,
            rest: item.rest,
            lowest: item.lowest,
        };
        self.undo_log += 1;
        item.rest = rest;
        item.lowest = lowest;
        let (lo, hi) = (item.lo, item.hi);
        self.soil(lo, hi);
    }

    fn fall_back(&mut self, tables: &mut PackTables<'_>, mark: usize) {
        while self.undo_log > mark {
            self.undo_log -= 1;
            let undo = tables.undo_log[self.undo_log];
            let item = &mut tables.items[undo.item as usize];
            item.rest = undo.rest;
            item.lowest = undo.lowest;
            let (lo, hi) = (item.lo, item.hi);
            self.soil(lo, hi);
        }
    }

    fn soil(&mut self, lo: u32, hi: u32) {
        self.dirty = (self.dirty.0.min(lo), self.dirty.1.max(hi));
    }

    /// Recomputes floors where they may have changed. Returns whether the unplaced bytes fit above them.
    fn check(&mut self, tables: &mut PackTables<'_>) -> bool {
        let (from, to) = self.dirty;
        let dirty = from as usize..to.max(from) as usize;
        for section in &mut tables.sections[dirty.clone()] {
            section.floor = u64::MAX;
        }
        self.records += (self.unplaced + dirty.len()) as u64;
        for &index in &tables.unplaced[..self.unplaced] {
            let item = &tables.items[index as usize];
            if item.lo >= to || item.hi <= from {
                continue;
            }
            if item.top() > self.limit {
                self.died = item.lo as usize;
                return false;
            }
            let own = item.lo.max(from) as usize..item.hi.min(to) as usize;
            self.records += own.len() as u64;
            for section in &mut tables.sections[own] {
                section.floor = section.floor.min(item.lowest);
            }
        }
        for (at, section) in tables.sections[dirty.clone()].iter().enumerate() {
            if section.left > 0 && section.floor + section.left > self.limit {
                self.died = dirty.start + at;
                return false;
            }
        }
        self.dirty = (u32::MAX, 0);
        true
    }

    fn remember_death(&mut self, tables: &mut PackTables<'_>) {
        let sections = &mut tables.sections[..self.sections];
        if let Some(section) = sections.get_mut(self.died) {
            section.deaths += self.death;
        }
        self.death *= MORE_PER_DEATH;
        if self.death > MAX_DEATHS {
            self.death /= MAX_DEATHS;
            for section in sections {
                section.deaths /= MAX_DEATHS;
            }
        }
    }
}
