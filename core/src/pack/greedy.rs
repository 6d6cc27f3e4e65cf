//! One greedy packing in one order: each block is placed in the lowest gap that is free during its lifetime. The
//! packing can be stopped after any block, and the remaining blocks can then be stacked on top.

use crate::pack::Lifetime;

use super::bucket::{Buckets, aligned};
use super::skyline::Skyline;
use super::tables::PackTables;

/// The order of a greedy packing; larger keys come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GreedyOrder {
    Bytes,
    BytesByTicks,
    Ticks,
    Begin,
    End,
    LiveBytes,
    LiveThenArea,
}

impl GreedyOrder {
    /// All orders, beginning with those that win most often.
    pub(super) const ALL: [Self; 7] = [
        Self::Bytes,
        Self::BytesByTicks,
        Self::LiveThenArea,
        Self::Ticks,
        Self::LiveBytes,
        Self::Begin,
        Self::End,
    ];

    /// Returns a lifetime's key. `live` is the maximum of live bytes during the lifetime, and `max` the maximum at any
    /// tick.
    fn key(self, lifetime: &Lifetime, live: f64, max: f64) -> f64 {
        let bytes = lifetime.bytes as f64;
        let ticks = f64::from(lifetime.end - lifetime.begin);
        match self {
            Self::Bytes => bytes,
            Self::BytesByTicks => bytes * ticks,
            Self::Ticks => ticks,
            Self::Begin => -f64::from(lifetime.begin),
            Self::End => f64::from(lifetime.end),
            Self::LiveBytes => live,
            // Live bytes in 256 grades, then area. A lifetime has at most 2^32 ticks.
            Self::LiveThenArea => grade(live, max) + bytes / max * ticks / TICKS,
        }
    }
}

const TICKS: f64 = 4_294_967_296.0;

fn grade(live: f64, max: f64) -> f64 {
    f64::from((live / max * 256.0) as u32)
}

/// A packing under way: the first `next` lifetimes of `by_key` have their places, in `trial`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greedy {
    count: usize,
    next: usize,
    /// Number of lifetimes, in the order of `unplaced`, that have ended and were removed from the buckets, because no
    /// later lifetime meets them. `None` unless the order is that of first ticks.
    gone: Option<usize>,
    buckets: Buckets,
}

impl Greedy {
    /// Sorts the lifetimes that take space, which are `order[..count]`, and places none yet.
    pub(super) fn begin(
        lifetimes: &[Lifetime],
        tables: &mut PackTables<'_>,
        count: usize,
        order: GreedyOrder,
        max: u64,
    ) -> Self {
        let by_key = &mut tables.by_key[..count];
        by_key.copy_from_slice(&tables.order[..count]);
        for &id in by_key.iter() {
            let index = id as usize;
            let live = tables.live[index] as f64;
            tables.keys[index] = order.key(&lifetimes[index], live, max as f64);
        }
        let keys = &*tables.keys;
        by_key.sort_unstable_by(|&left, &right| {
            let pins = |id: u32| lifetimes[id as usize].pinned.is_none();
            pins(left)
                .cmp(&pins(right))
                .then(keys[right as usize].total_cmp(&keys[left as usize]))
                .then(left.cmp(&right))
        });
        let sweeps = order == GreedyOrder::Begin;
        let begin = |id: &u32| lifetimes[*id as usize].begin;
        let first = tables.order[..count].first().map(begin);
        let mut pins = by_key
            .iter()
            .take_while(|&&id| lifetimes[id as usize].pinned.is_some());
        let pins_begin_first = pins.all(|id| Some(begin(id)) == first);
        if sweeps {
            let by_end = &mut tables.unplaced[..count];
            by_end.copy_from_slice(&tables.order[..count]);
            by_end.sort_unstable_by_key(|&id| lifetimes[id as usize].end);
        }
        Self {
            count,
            next: 0,
            gone: sweeps.then_some(0),
            // Pins are placed first. A lifetime need not meet a pin that begins later.
            buckets: Buckets::new(tables.buckets, sweeps && pins_begin_first),
        }
    }

    /// Places lifetimes until about `most` buckets are examined. Returns how many were examined.
    pub(super) fn go_on(
        &mut self,
        lifetimes: &[Lifetime],
        tables: &mut PackTables<'_>,
        most: u64,
    ) -> u64 {
        let before = self.buckets.work;
        while let Some(&id) = tables.by_key[..self.count].get(self.next) {
            if self.buckets.work - before >= most {
                break;
            }
            let lifetime = &lifetimes[id as usize];
            let offset = match lifetime.pinned {
                Some(pin) => pin,
                None => {
                    self.let_go(lifetimes, tables, lifetime.begin);
                    self.buckets.lowest_gap(tables.buckets, lifetime)
                }
            };
            self.buckets.insert(tables.buckets, lifetime, offset);
            tables.trial[id as usize] = offset;
            self.next += 1;
        }
        self.buckets.work - before
    }

    /// Removes the lifetimes that end by this tick from the buckets. They began earlier, so they are there.
    fn let_go(&mut self, lifetimes: &[Lifetime], tables: &mut PackTables<'_>, tick: u32) {
        let Some(gone) = &mut self.gone else { return };
        while let Some(&id) = tables.unplaced[..self.count].get(*gone) {
            let lifetime = &lifetimes[id as usize];
            if lifetime.end > tick {
                break;
            }
            let offset = tables.trial[id as usize];
            self.buckets.remove(tables.buckets, lifetime, offset);
            *gone += 1;
        }
    }

    /// Returns whether every lifetime has its place.
    pub(super) const fn is_complete(&self) -> bool {
        self.next == self.count
    }

    /// Sets all offsets: placed lifetimes keep theirs, and each of the others, in the same order, gets the lowest
    /// offset above everything that it meets. O(n log n).
    pub(super) fn stack_rest(&self, lifetimes: &[Lifetime], tables: &mut PackTables<'_>) {
        let order = &tables.order[..self.count];
        // Two lifetimes meet if and only if the later of their first ticks is a tick of the other one.
        let ticks = |lifetime: &Lifetime| {
            let before =
                |tick: u32| order.partition_point(|&id| lifetimes[id as usize].begin < tick);
            before(lifetime.begin)..before(lifetime.end)
        };
        let mut skyline = Skyline::new(tables.undo_log, self.count);
        for (at, &id) in tables.by_key[..self.count].iter().enumerate() {
            let lifetime = &lifetimes[id as usize];
            let range = ticks(lifetime);
            let offset = if at < self.next {
                tables.trial[id as usize]
            } else {
                let above = || aligned(skyline.highest(range.clone()), lifetime.align);
                lifetime.pinned.unwrap_or_else(above)
            };
            tables.offsets[id as usize] = offset;
            skyline.raise(range, offset + lifetime.bytes);
        }
    }
}
