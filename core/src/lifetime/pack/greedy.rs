//! One packing from one order: each block at the lowest gap that is free while it lives.

use crate::lifetime::Lifetime;

use super::bucket::Buckets;
use super::tables::PackTables;

/// What a greedy packing goes by; larger keys first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Bytes,
    BytesByTicks,
    Ticks,
    Begin,
    End,
    LiveBytes,
    LiveThenArea,
}

impl Order {
    /// All of them; the first ones win most often.
    pub(super) const ALL: [Self; 7] = [
        Self::Bytes,
        Self::BytesByTicks,
        Self::LiveThenArea,
        Self::Ticks,
        Self::LiveBytes,
        Self::Begin,
        Self::End,
    ];

    /// `live` is the most that lives during the lifetime, `max` the most at all.
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
            // Live bytes in 256 grades, then area; a lifetime has at most 2^32 ticks.
            Self::LiveThenArea => grade(live, max) + bytes / max * ticks / TICKS,
        }
    }
}

const TICKS: f64 = 4_294_967_296.0;

fn grade(live: f64, max: f64) -> f64 {
    f64::from((live / max * 256.0) as u32)
}

/// Packs all taken lifetimes (`order[..count]`) into `trial`; gives the buckets looked at.
pub(super) fn pack(
    lifetimes: &[Lifetime],
    tables: &mut PackTables<'_>,
    count: usize,
    order: Order,
    max: u64,
) -> u64 {
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
    let mut buckets = Buckets::new(tables.buckets);
    for &id in by_key.iter() {
        let lifetime = &lifetimes[id as usize];
        let offset = lifetime
            .pinned
            .unwrap_or_else(|| buckets.lowest_gap(lifetime));
        buckets.insert(lifetime, offset);
        tables.trial[id as usize] = offset;
    }
    buckets.work
}
