//! Where the blocks of a shape go, around what is live already.

use super::below::Below;
use super::shape::{Entry, Inherited};
use super::steps::Tag;

/// One range that is in use at the start of a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacle {
    start: u32,
    end: u32,
    /// First tick at which it is free.
    until: u32,
}

impl Obstacle {
    /// An empty record, for filling a table.
    pub const EMPTY: Self = Self {
        start: 0,
        end: 0,
        until: 0,
    };
}

/// Tables for laying out.
#[derive(Debug)]
pub struct Places<'t> {
    /// What is in use; the ranges side by side count once.
    pub obstacles: &'t mut [Obstacle],
    /// As many as a step may have allocations.
    pub order: &'t mut [u32],
    /// As many as both.
    pub gaps: &'t mut [(u32, u32)],
    pub(super) count: u32,
    pub(super) full: bool,
}

impl<'t> Places<'t> {
    /// Of these tables.
    pub fn new(
        obstacles: &'t mut [Obstacle],
        order: &'t mut [u32],
        gaps: &'t mut [(u32, u32)],
    ) -> Self {
        Self {
            obstacles,
            order,
            gaps,
            count: 0,
            full: false,
        }
    }

    /// Notes what is in use, and until when as far as the shape knows. Gives a number that stands
    /// for all of it, never 0.
    pub(super) fn collect(
        &mut self,
        below: &impl Below,
        tags: &[Tag],
        step: u32,
        (from, entries): (u32, &[Entry]),
        inherited: &[Entry],
    ) -> u64 {
        self.count = 0;
        self.full = false;
        let base = below.addresses().start().get();
        let granule = below.granule();
        let mut print = Print::new();
        print.add(u64::from(from));
        below.for_each_block(&mut |handle, range| {
            let number = |bytes: u64| granule.count_up(bytes).unwrap_or(u32::MAX);
            let start = number(range.start().get() - base);
            let end = number(range.end().get() - base);
            let tag = tags
                .get(handle.get() as usize)
                .copied()
                .unwrap_or(Tag::NONE);
            let until = if tag.step == step {
                entries
                    .get(tag.position as usize)
                    .map_or(Entry::OUTLIVES, |entry| entry.end)
            } else if tag.step != 0 && tag.step == step.wrapping_sub(1) {
                let known = inherited.binary_search_by_key(&tag.position, |entry| entry.offset);
                let known = known.ok().map(|index| Inherited::from(inherited[index]));
                known
                    .filter(|known| known.granules == end - start)
                    .map_or(Entry::OUTLIVES, |known| known.end)
            } else {
                Entry::OUTLIVES
            };
            print.add(u64::from(start) << 32 | u64::from(end));
            print.add(u64::from(until));
            self.add(Obstacle { start, end, until });
        });
        print.number()
    }

    fn add(&mut self, obstacle: Obstacle) {
        if let Some(last) = self.count.checked_sub(1) {
            let last = &mut self.obstacles[last as usize];
            if last.end == obstacle.start && last.until == obstacle.until {
                last.end = obstacle.end;
                return;
            }
        }
        match self.obstacles.get_mut(self.count as usize) {
            Some(slot) => {
                *slot = obstacle;
                self.count += 1;
            }
            None => self.full = true,
        }
    }
}

/// A running hash.
struct Print(u64);

impl Print {
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

/// Lays out the entries from position `from` on; gives the height, `None` if the tables are short.
pub(super) fn place(
    places: &mut Places<'_>,
    entries: &mut [Entry],
    from: u32,
    most: u32,
) -> Option<u32> {
    if places.full {
        return None;
    }
    let stacked = place_all(places, entries, from, true)?;
    if stacked <= most.saturating_add(most / 512) {
        return Some(stacked);
    }
    let free = place_all(places, entries, from, false)?;
    Some(free)
}

fn place_all(
    places: &mut Places<'_>,
    entries: &mut [Entry],
    from: u32,
    stack: bool,
) -> Option<u32> {
    let n = entries.len();
    let obstacles = &places.obstacles[..places.count as usize];
    let mut height = obstacles.iter().map(|o| o.end).max().unwrap_or(0);
    let order = places.order.get_mut(..n)?;
    let mut count = 0;
    for (i, e) in entries.iter().enumerate() {
        if i as u32 >= from && e.granules > 0 {
            order[count] = i as u32;
            count += 1;
        }
    }
    let order = &mut order[..count];
    order.sort_unstable_by_key(|&i| {
        let e = &entries[i as usize];
        let out = e.end == Entry::OUTLIVES;
        (
            !(stack && out),
            if stack && out { i } else { 0 },
            core::cmp::Reverse(e.granules),
            core::cmp::Reverse(e.end - i),
            i,
        )
    });
    for k in 0..count {
        let i = order[k];
        let e = entries[i as usize];
        let (begin, end) = if stack && e.end == Entry::OUTLIVES {
            (from, u32::MAX)
        } else {
            (i, e.end)
        };
        let mut m = 0;
        for o in obstacles {
            if begin < o.until {
                *places.gaps.get_mut(m)? = (o.start, o.end);
                m += 1;
            }
        }
        for &j in &order[..k] {
            let f = &entries[j as usize];
            let fb = if stack && f.end == Entry::OUTLIVES {
                from
            } else {
                j
            };
            if fb < end && begin < f.end {
                *places.gaps.get_mut(m)? = (f.offset, f.offset + f.granules);
                m += 1;
            }
        }
        let gaps = &mut places.gaps[..m];
        gaps.sort_unstable();
        let mut at = 0u32;
        for &(s, t) in gaps.iter() {
            if s >= at && s - at >= e.granules {
                break;
            }
            at = at.max(t);
        }
        entries[i as usize].offset = at;
        height = height.max(at.checked_add(e.granules)?);
    }
    Some(height)
}
