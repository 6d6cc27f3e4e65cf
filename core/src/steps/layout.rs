//! The places of a shape's blocks, around blocks that are already live.
//!
//! A block that is live when the layout is made is an *obstacle*. It stays where it is, for the whole step or until the
//! tick at which it is freed according to the shape. Blocks that are known to outlive the step are stacked first, in
//! the lowest gaps, out of the way of later steps. If the layout would then be higher than the maximum that was live in
//! any step, these blocks are packed like the others. All other blocks are packed by [`pack`](crate::pack).
//!
//! # Cost
//! O(chunks + allocations log allocations), plus the work that [`StepConfig`](super::StepConfig) allows.

use super::Tag;
use super::place_allocator::PlaceAllocator;
use super::shape::{Entry, Inherited};
use crate::pack::{Lifetime, PackTables, Packer, RECORDS_PER_BUCKET};
use crate::units::Align;

/// Maximum number of records that a step of the search examines for each lifetime.
const RECORDS_PER_WORK: u64 = 8;

/// Number of buckets that cost as much as preparing a lifetime.
const BUCKETS_PER_LIFETIME: u64 = 4;

/// Number of buckets for each lifetime with which a layout is usually as low as with more.
const FAIR_BUCKETS: u64 = 64;

/// One range in use at the start of a layout, in granules from the start of the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacle {
    start: u32,
    end: u32,
    /// First tick at which the range is free.
    until: u32,
}

impl Obstacle {
    /// An empty record, for filling a table.
    pub const EMPTY: Self = Self {
        start: 0,
        end: 0,
        until: 0,
    };

    /// Returns whether the obstacle stays for the whole step.
    const fn stays(&self) -> bool {
        self.until == Entry::OUTLIVES
    }
}

/// Tables for a layout. A layout that needs longer tables is not made.
#[derive(Debug)]
pub struct Places<'t> {
    /// Ranges in use, and blocks that outlive the step. Adjacent ranges that are freed at the same time count as one.
    pub obstacles: &'t mut [Obstacle],
    /// The blocks to place and the obstacles: one record for each allocation of a step and for each obstacle.
    pub lifetimes: &'t mut [Lifetime],
    /// The allocation of each block to place: one record for each allocation of a step.
    pub order: &'t mut [u32],
    /// Tables for as many lifetimes as `lifetimes` holds.
    pub pack: PackTables<'t>,
}

/// The live ranges that one layout avoids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Obstacles {
    count: usize,
    /// Whether there were more obstacles than the table holds.
    overrun: bool,
    /// End of the highest one, in granules.
    pub(super) height: u32,
    /// A hash of all obstacles, never 0.
    pub(super) fingerprint: u64,
}

impl Obstacles {
    /// Returns the buckets that a good layout of this many allocations usually takes.
    pub(super) const fn fair_work(&self, allocations: u32) -> u64 {
        (allocations as u64 + self.count as u64) * FAIR_BUCKETS
    }
}

/// The allocations that a layout places: those of a shape, starting with number `from`.
pub(super) struct Unplaced<'e> {
    pub(super) entries: &'e mut [Entry],
    pub(super) from: u32,
    /// The layout whose offsets are set.
    pub(super) layout: usize,
    /// Whether entries that outlive the step get no place.
    pub(super) within_plans: bool,
}

/// The effort for a layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayoutEffort {
    /// Buckets that may be spent.
    pub(super) buckets: u64,
    /// Steps of the search after the greedy packings, times lifetimes.
    pub(super) work: u64,
    /// Height in granules at which the search may stop.
    pub(super) enough: u32,
    /// Buckets spent so far.
    pub(super) spent: u64,
}

impl Places<'_> {
    /// Collects the ranges in use, each with the tick of its free if the shape knows it. O(chunks).
    pub(super) fn collect(
        &mut self,
        below: &impl PlaceAllocator,
        tags: &[Tag],
        step: u32,
        (from, entries): (u32, &[Entry]),
        inherited: &[Entry],
    ) -> Obstacles {
        let base = below.addresses().start().get();
        let granule = below.granule();
        let mut fingerprint = Fingerprint::new();
        fingerprint.add(u64::from(from));
        let (mut count, mut overrun, mut height) = (0, false, 0);
        below.for_each_block(&mut |handle, range| {
            let number = |bytes: u64| granule.count_up(bytes).unwrap_or(u32::MAX);
            let start = number(range.start().get() - base);
            let end = number(range.end().get() - base);
            let tag = tags.get(handle.get() as usize).copied();
            let tag = tag.unwrap_or(Tag::NONE);
            let until = if tag.step == step {
                let entry = entries.get(tag.position as usize);
                entry.map_or(Entry::OUTLIVES, |entry| entry.end)
            } else if tag.step != 0 && tag.step == step.wrapping_sub(1) {
                goes_at(inherited, tag.position, end - start)
            } else {
                Entry::OUTLIVES
            };
            height = height.max(end);
            fingerprint.add(u64::from(start) << 32 | u64::from(end));
            fingerprint.add(u64::from(until));
            overrun |= !self.add(&mut count, Obstacle { start, end, until });
        });
        Obstacles {
            count,
            overrun,
            height,
            fingerprint: fingerprint.number(),
        }
    }

    /// Adds an obstacle after the first `count`. Returns whether there was room.
    fn add(&mut self, count: &mut usize, obstacle: Obstacle) -> bool {
        if let Some(last) = self.obstacles[..*count].last_mut()
            && last.end == obstacle.start
            && last.until == obstacle.until
        {
            last.end = obstacle.end;
            return true;
        }
        match self.obstacles.get_mut(*count) {
            Some(slot) => {
                *slot = obstacle;
                *count += 1;
                true
            }
            None => false,
        }
    }

    /// Sets the offsets of the entries. Returns the height in granules, or `None` if a table is too short or the
    /// heights exceed 32 bits of granules.
    pub(super) fn place(
        &mut self,
        obstacles: Obstacles,
        mut unplaced: Unplaced<'_>,
        effort: &mut LayoutEffort,
    ) -> Option<u32> {
        if obstacles.overrun {
            return None;
        }
        let mut entries = unplaced.entries.iter().skip(unplaced.from as usize);
        let stacks = !unplaced.within_plans && entries.any(Entry::outlives);
        let stacked = stacks
            .then(|| self.stack(obstacles.count, &mut unplaced))
            .flatten()
            .and_then(|total| self.pack(obstacles.count, total, &mut unplaced, effort));
        match stacked {
            Some(height) if height <= effort.enough => Some(height),
            _ => self.pack(obstacles.count, obstacles.count, &mut unplaced, effort),
        }
    }

    /// Puts the entries that outlive the step into the lowest gaps between the first `count` obstacles, and adds them
    /// to the obstacles. Returns the new number of obstacles.
    fn stack(&mut self, count: usize, unplaced: &mut Unplaced<'_>) -> Option<usize> {
        let mut total = count;
        // The obstacles are in the order of their addresses, and so are the stacked entries.
        let (mut at, mut next) = (0, 0);
        let entries = unplaced.entries.iter_mut().skip(unplaced.from as usize);
        for entry in entries.filter(|entry| entry.outlives()) {
            let start = loop {
                let start = round_up(at, entry.align_granules())?;
                let end = start.checked_add(entry.granules)?;
                match self.obstacles[..count].get(next) {
                    Some(obstacle) if obstacle.start < end => {
                        at = at.max(obstacle.end);
                        next += 1;
                    }
                    _ => {
                        at = end;
                        break start;
                    }
                }
            };
            entry.offsets[unplaced.layout] = start;
            let end = at;
            let stays = Obstacle {
                start,
                end,
                until: Entry::OUTLIVES,
            };
            let mut tail = total - count;
            let (_, behind) = self.obstacles.split_at_mut(count);
            if tail > 0 && behind[tail - 1].end == start {
                behind[tail - 1].end = end;
            } else {
                *behind.get_mut(tail)? = stays;
                tail += 1;
            }
            total = count + tail;
        }
        Some(total)
    }

    /// Packs the entries that are not stacked. They are packed around the first `count` obstacles and the stacked
    /// entries, which are the obstacles from `count` to `total`.
    fn pack(
        &mut self,
        count: usize,
        total: usize,
        unplaced: &mut Unplaced<'_>,
        effort: &mut LayoutEffort,
    ) -> Option<u32> {
        let from = unplaced.from;
        let entries = &mut *unplaced.entries;
        let last = entries.len() as u32;
        let floor = self.floor(count, total, entries);
        let mut taken = 0;
        for (position, entry) in (from..).zip(&entries[from as usize..]) {
            if (total > count || unplaced.within_plans) && entry.outlives() {
                continue;
            }
            *self.order.get_mut(taken)? = position;
            *self.lifetimes.get_mut(taken)? = Lifetime {
                align: Align::new(u64::from(entry.align_granules()))?,
                ..Lifetime::new(position, entry.end.min(last), u64::from(entry.granules))
            };
            taken += 1;
        }
        let (mut all, mut height) = (taken, floor);
        for obstacle in &self.obstacles[..total] {
            height = height.max(obstacle.end);
            if obstacle.end <= floor || obstacle.until <= from {
                continue;
            }
            let start = obstacle.start.max(floor);
            let bytes = u64::from(obstacle.end - start);
            *self.lifetimes.get_mut(all)? = Lifetime {
                pinned: Some(u64::from(start - floor)),
                ..Lifetime::new(from, obstacle.until.min(last), bytes)
            };
            all += 1;
        }
        effort.spent += all as u64 * BUCKETS_PER_LIFETIME;
        let mut packer = Packer::new(&self.lifetimes[..all], self.pack.lend()).ok()?;
        let left = |effort: &LayoutEffort| effort.buckets.saturating_sub(effort.spent);
        packer.first_within(left(effort));
        let searched = left(effort).saturating_sub(packer.work()) * RECORDS_PER_BUCKET;
        packer.stop_after(searched.min(effort.work.saturating_mul(RECORDS_PER_WORK)));
        // A height below the bytes that may be held anyway is not worth a search.
        packer.stop_at(u64::from(effort.enough.saturating_sub(floor)));
        packer.improve(effort.work / (all as u64 + 1));
        effort.spent += packer.work();
        for (&position, &offset) in self.order[..taken].iter().zip(packer.offsets()) {
            let entry = &mut entries[position as usize];
            let offset = floor.checked_add(u32::try_from(offset).ok()?)?;
            entry.offsets[unplaced.layout] = offset;
            height = height.max(offset.checked_add(entry.granules)?);
        }
        Some(height)
    }

    /// Returns the end of the obstacles that stay at the bottom, as a multiple of all alignments. Everything is packed
    /// above it.
    fn floor(&self, count: usize, total: usize, entries: &[Entry]) -> u32 {
        // Both lists are in the order of their addresses.
        let (below, stacked) = self.obstacles[..total].split_at(count);
        let mut runs = [below, stacked].map(|run| run.iter().filter(|o| o.stays()).peekable());
        let mut floor = 0;
        let reaches = |floor: u32| move |obstacle: &&Obstacle| obstacle.start <= floor;
        while let Some(obstacle) = runs.iter_mut().find_map(|run| run.next_if(reaches(floor))) {
            floor = floor.max(obstacle.end);
        }
        let align = entries.iter().map(Entry::align_granules).max();
        let align = align.unwrap_or(1);
        // The part of the last obstacle above the floor is then an obstacle like any other.
        floor / align * align
    }
}

const fn round_up(number: u32, multiple: u32) -> Option<u32> {
    number.checked_next_multiple_of(multiple)
}

/// Returns the tick at which a block of the previous step, with this position and size, is freed.
fn goes_at(inherited: &[Entry], position: u32, granules: u32) -> u32 {
    let known = inherited.binary_search_by_key(&position, Entry::position);
    let known = known.ok().map(|index| Inherited::from(inherited[index]));
    known
        .filter(|known| known.granules == granules)
        .map_or(Entry::OUTLIVES, |known| known.end)
}

/// A running hash.
struct Fingerprint(u64);

impl Fingerprint {
    const fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    const fn add(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn number(&self) -> u64 {
        self.0.max(1)
    }
}
