//! Blocks of the backend by address: what takes the place of a header.
//!
//! Open addressing with the next free place; a removed record is closed up, so that a search ends
//! at the first vacant one.
//!
//! Invariant LIVE1: between a record's home and its place none is vacant.

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

/// The record of a block.
#[derive(Clone, Copy, Debug)]
pub struct LiveRecord(Option<Live>);

impl LiveRecord {
    /// What stands in a fresh table.
    pub const VACANT: Self = Self(None);
}

/// The table.
#[derive(Debug)]
pub(super) struct LiveMap<'t> {
    records: &'t mut [LiveRecord],
    used: usize,
}

impl<'t> LiveMap<'t> {
    pub(super) fn new(records: &'t mut [LiveRecord]) -> Self {
        records.fill(LiveRecord::VACANT);
        Self { records, used: 0 }
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
            self.records[place].0 = Some(live);
            self.used += 1;
        }
        free
    }

    /// The block at the address, which is in the map no more.
    pub(super) fn remove(&mut self, addr: Addr) -> Option<Live> {
        if self.used == 0 {
            return None;
        }
        let mut gap = self.search(addr);
        let removed = self.records[gap].0.take()?;
        self.used -= 1;
        let mut place = gap;
        loop {
            place = self.after(place);
            let Some(live) = self.records[place].0 else {
                return Some(removed);
            };
            let home = self.home(live.range.start());
            if self.distance(home, place) >= self.distance(gap, place) {
                self.records[gap].0 = self.records[place].0.take();
                gap = place;
            }
        }
    }

    /// The place of the address, or the vacant one where it would go.
    fn search(&self, addr: Addr) -> usize {
        let mut place = self.home(addr);
        while let Some(live) = self.records[place].0 {
            if live.range.start() == addr {
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
    fn a_table_without_records_takes_nothing() {
        let mut map = LiveMap::new(&mut []);
        assert!(!map.insert(live(0)));
        assert_eq!(map.remove(FIRST.start()), None);
    }
}
