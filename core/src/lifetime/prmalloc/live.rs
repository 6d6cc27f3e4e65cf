//! Blocks of the backend by address: what takes the place of a header.
//!
//! Open addressing with the next free place; a removed record is closed up, so that a search ends
//! at the first vacant one. Blocks that are freed but not given back yet stand in a queue, linked by
//! address, as records move.
//!
//! Invariants:
//! * V1: between a record's home and its place none is vacant.
//! * V2: the queue, from `first` to `last`, holds each freed record once and no other.

use super::AllocStat;
use crate::units::{Addr, AddrRange};

/// A block in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Live {
    /// What the backend gave.
    pub(super) range: AddrRange,
    /// Begin, size and alignment as requested; the end is not known yet.
    pub(super) stat: AllocStat,
    pub(super) born_step: u64,
}

/// Whether a block is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    InUse,
    /// Freed, and in front of that one in the queue.
    Queued {
        next: Option<Addr>,
    },
}

/// A block, and whether it is in use.
#[derive(Clone, Copy, Debug)]
struct Entry {
    live: Live,
    used: Use,
}

/// The record of a block.
#[derive(Clone, Copy, Debug)]
pub struct LiveRecord(Option<Entry>);

impl LiveRecord {
    /// What stands in a fresh table.
    pub const VACANT: Self = Self(None);
}

/// The table.
#[derive(Debug)]
pub(super) struct LiveMap<'t> {
    records: &'t mut [LiveRecord],
    used: usize,
    queue: Queue,
}

/// The freed blocks, oldest first, by address.
#[derive(Clone, Copy, Debug)]
struct Queue {
    /// First and last.
    ends: Option<(Addr, Addr)>,
    length: usize,
}

impl<'t> LiveMap<'t> {
    pub(super) fn new(records: &'t mut [LiveRecord]) -> Self {
        records.fill(LiveRecord::VACANT);
        let queue = Queue {
            ends: None,
            length: 0,
        };
        Self {
            records,
            used: 0,
            queue,
        }
    }

    pub(super) fn into_records(self) -> &'t mut [LiveRecord] {
        self.records
    }

    pub(super) fn capacity(&self) -> usize {
        self.records.len()
    }

    /// Whether it went in: the table is full, or holds the address already, if not.
    pub(super) fn insert(&mut self, live: Live) -> bool {
        // One place stays vacant, so that every search ends.
        if self.used + 1 >= self.records.len() {
            return false;
        }
        let place = self.search(live.range.start());
        let free = self.records[place].0.is_none();
        if free {
            let used = Use::InUse;
            self.records[place].0 = Some(Entry { live, used });
            self.used += 1;
        }
        free
    }

    /// The block in use at the address, which is in the map no more.
    pub(super) fn remove(&mut self, addr: Addr) -> Option<Live> {
        let place = self.in_use(addr)?;
        self.take(place)
    }

    /// The block in use at the address, which is freed from now on and at the end of the queue.
    pub(super) fn queue(&mut self, addr: Addr) -> Option<Live> {
        let place = self.in_use(addr)?;
        let entry = self.records[place].0.as_mut()?;
        entry.used = Use::Queued { next: None };
        let live = entry.live;
        let first = match self.queue.ends {
            None => addr,
            Some((first, last)) => {
                let before = self.search(last);
                if let Some(before) = &mut self.records[before].0 {
                    before.used = Use::Queued { next: Some(addr) };
                }
                first
            }
        };
        self.queue.ends = Some((first, addr));
        self.queue.length += 1;
        Some(live)
    }

    /// The oldest of the queue, which is in the map no more.
    pub(super) fn pop_queued(&mut self) -> Option<Live> {
        let (first, last) = self.queue.ends?;
        let place = self.search(first);
        let next = match self.records[place].0?.used {
            Use::Queued { next } => next,
            Use::InUse => None,
        };
        self.queue.ends = next.map(|next| (next, last));
        self.queue.length -= 1;
        self.take(place)
    }

    /// How many are queued.
    pub(super) fn queued(&self) -> usize {
        self.queue.length
    }

    fn in_use(&self, addr: Addr) -> Option<usize> {
        if self.used == 0 {
            return None;
        }
        let place = self.search(addr);
        (self.records[place].0?.used == Use::InUse).then_some(place)
    }

    fn take(&mut self, mut gap: usize) -> Option<Live> {
        let removed = self.records[gap].0.take()?;
        self.used -= 1;
        let mut place = gap;
        loop {
            place = self.after(place);
            let Some(entry) = self.records[place].0 else {
                return Some(removed.live);
            };
            let home = self.home(entry.live.range.start());
            if self.distance(home, place) >= self.distance(gap, place) {
                self.records[gap].0 = self.records[place].0.take();
                gap = place;
            }
        }
    }

    /// The place of the address, or the vacant one where it would go.
    fn search(&self, addr: Addr) -> usize {
        let mut place = self.home(addr);
        while let Some(entry) = self.records[place].0 {
            if entry.live.range.start() == addr {
                break;
            }
            place = self.after(place);
        }
        place
    }

    fn home(&self, addr: Addr) -> usize {
        // Multiplied by 2^64 over the golden ratio; the upper bits are mixed best.
        let mixed = addr.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // Below the length, which is a `usize`.
        (mixed % self.records.len() as u64) as usize
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) % self.records.len()
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        (to + self.records.len() - from) % self.records.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FIRST: AddrRange = AddrRange::new(Addr::new(64), 1).unwrap();

    fn live(place: u64) -> Live {
        let start = Addr::new(64 * (place + 1));
        Live {
            range: AddrRange::new(start, 1).unwrap_or(FIRST),
            stat: AllocStat::VACANT,
            born_step: place,
        }
    }

    #[test]
    fn random_inserts_and_removes_are_those_of_a_plain_list() {
        let mut records = [LiveRecord::VACANT; 17];
        let mut map = LiveMap::new(&mut records);
        let mut plain = [None; 40];
        let mut seed: u64 = 7;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = (seed >> 33) % 40;
            let there = plain[place as usize];
            if seed >> 63 == 0 {
                let goes_in = plain.iter().flatten().count() < 16 && there.is_none();
                assert_eq!(map.insert(live(place)), goes_in);
                if goes_in {
                    plain[place as usize] = Some(live(place));
                }
            } else {
                assert_eq!(map.remove(live(place).range.start()), there);
                plain[place as usize] = None;
            }
        }
    }

    #[test]
    fn the_queue_keeps_its_order_while_records_move() {
        let mut records = [LiveRecord::VACANT; 17];
        let mut map = LiveMap::new(&mut records);
        let (mut in_use, mut queued) = ([false; 40], [None; 16]);
        let mut length = 0;
        let mut seed: u64 = 7;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = (seed >> 33) % 40;
            let at = live(place).range.start();
            match seed >> 62 {
                0 => {
                    let others = in_use.iter().filter(|used| **used).count();
                    let known = in_use[place as usize] || queued[..length].contains(&Some(place));
                    let goes_in = others + length < 16 && !known;
                    assert_eq!(map.insert(live(place)), goes_in);
                    in_use[place as usize] |= goes_in;
                }
                1 => {
                    let there = core::mem::take(&mut in_use[place as usize]);
                    assert_eq!(map.queue(at).is_some(), there, "a queued one is not in use");
                    if there {
                        queued[length] = Some(place);
                        length += 1;
                    }
                }
                2 => {
                    let there = core::mem::take(&mut in_use[place as usize]);
                    assert_eq!(map.remove(at).is_some(), there);
                }
                _ => {
                    let oldest = queued[0].filter(|_| length > 0);
                    assert_eq!(map.pop_queued(), oldest.map(live));
                    if length > 0 {
                        queued.copy_within(1..length, 0);
                        length -= 1;
                    }
                }
            }
            assert_eq!(map.queued(), length);
        }
    }

    #[test]
    fn a_table_without_records_takes_nothing() {
        let mut map = LiveMap::new(&mut []);
        assert!(!map.insert(live(0)));
        assert_eq!(map.remove(FIRST.start()), None);
        assert_eq!(map.queue(FIRST.start()), None);
        assert_eq!(map.pop_queued(), None);
    }
}
