//! Cuts time into sections and loads a part into the tables of the search.
//!
//! A section is a moment at which as many lifetimes of the part live together as possible. There is one before each end
//! that follows a beginning. Two lifetimes meet if and only if they share a section, so the search needs no ticks.

use crate::pack::Lifetime;

use super::bucket::aligned;
use super::item::Item;
use super::tables::{PackTables, Part};
use crate::units::Align;

/// One section of time, with the state that the search keeps for it.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The lowest offset of any unplaced item in the section.
    pub(super) floor: u64,
    /// Bytes of unplaced items.
    pub(super) left: u64,
    /// Weighted number of branches that died here; recent deaths weigh more.
    pub(super) deaths: f64,
}

impl Section {
    /// An empty record.
    pub const VACANT: Self = Self {
        floor: 0,
        left: 0,
        deaths: 1.0,
    };
}

/// Fills `items`, `sections` and `neighbours`. Returns the number of items and of sections, or `None` if the neighbours
/// do not fit their table.
pub(super) fn load(
    lifetimes: &[Lifetime],
    tables: &mut PackTables<'_>,
    part: Part,
    align: Align,
) -> Option<(usize, usize)> {
    let range = part.start as usize..part.end as usize;
    let count = range.len();
    for (item, &id) in tables.items.iter_mut().zip(&tables.order[range]) {
        let lifetime = &lifetimes[id as usize];
        *item = Item {
            id,
            ticks: lifetime.end - lifetime.begin,
            bytes: aligned(lifetime.bytes, align),
            asked: lifetime.bytes,
            align: lifetime.align,
            pinned: lifetime.pinned.is_some(),
            ..Item::VACANT
        };
    }
    let sections = cut(lifetimes, tables, count);
    let items = &mut tables.items[..count];
    // This comes first: an item has at most one section more than it has neighbours, so the neighbours that fit bound
    // the rest of the work.
    meet(items, tables.neighbours)?;
    for section in &mut tables.sections[..sections] {
        *section = Section::VACANT;
    }
    for item in items.iter() {
        for section in &mut tables.sections[item.lo as usize..item.hi as usize] {
            section.left += item.bytes;
        }
    }
    for item in items.iter_mut() {
        let own = &tables.sections[item.lo as usize..item.hi as usize];
        item.live = own.iter().map(|section| section.left).max().unwrap_or(0);
    }
    Some((count, sections))
}

/// Sets the sections of each item.
fn cut(lifetimes: &[Lifetime], tables: &mut PackTables<'_>, count: usize) -> usize {
    let items = &mut tables.items[..count];
    let by_end = &mut tables.by_key[..count];
    for (index, slot) in by_end.iter_mut().enumerate() {
        *slot = index as u32;
    }
    let lifetime = |items: &[Item], index: usize| lifetimes[items[index].id as usize];
    by_end.sort_unstable_by_key(|&index| (lifetime(items, index as usize).end, index));
    let mut section = 0;
    let mut ended = 0;
    let mut after_end = false;
    for begun in 0..count {
        let begin = lifetime(items, begun).begin;
        while ended < count && lifetime(items, by_end[ended] as usize).end <= begin {
            items[by_end[ended] as usize].hi = section + 1;
            ended += 1;
            after_end = true;
        }
        section += u32::from(after_end);
        after_end = false;
        items[begun].lo = section;
    }
    for &index in &by_end[ended..] {
        items[index as usize].hi = section + 1;
    }
    section as usize + 1
}

/// Lists the neighbours of each item. Items are in the order of their first sections.
fn meet(items: &mut [Item], neighbours: &mut [u32]) -> Option<()> {
    let mut total = 0;
    for index in 0..items.len() {
        let hi = items[index].hi;
        let later = items[index + 1..].partition_point(|other| other.lo < hi);
        total += 2 * later;
        if total > neighbours.len() {
            return None;
        }
        items[index].neighbours += later as u32;
        for other in &mut items[index + 1..=index + later] {
            other.neighbours += 1;
        }
    }
    let mut first = 0;
    for item in items.iter_mut() {
        item.first = first;
        first += item.neighbours;
        item.neighbours = 0;
    }
    for index in 0..items.len() {
        let hi = items[index].hi;
        let later = items[index + 1..].partition_point(|other| other.lo < hi);
        for other in index + 1..=index + later {
            for (from, to) in [(index, other), (other, index)] {
                let item = &mut items[from];
                neighbours[item.first as usize + item.neighbours as usize] = to as u32;
                item.neighbours += 1;
            }
        }
    }
    Some(())
}
