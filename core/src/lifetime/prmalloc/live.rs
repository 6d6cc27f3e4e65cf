//! Blocks of the backend by address: what takes the place of a header.
//!
//! The records are the slots of a [probed](crate::table::probe) table.

use super::AllocStat;
use crate::table::probe;
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
        let start = live.range.start().get();
        let Err(place) = probe::find(self.records, start, key_of) else {
            return false;
        };
        self.records[place].0 = Some(live);
        self.used += 1;
        true
    }

    /// The block at the address, which is in the map no more.
    pub(super) fn remove(&mut self, addr: Addr) -> Option<Live> {
        let place = probe::find(self.records, addr.get(), key_of).ok()?;
        self.used -= 1;
        probe::remove(self.records, place, LiveRecord::VACANT, key_of)?.0
    }
}

fn key_of(record: &LiveRecord) -> Option<u64> {
    record.0.map(|live| live.range.start().get())
}

#[cfg(all(test, not(larder_loom)))]
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
