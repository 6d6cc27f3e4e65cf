//! Lives of blocks, and a table of the backend's blocks by address, which replaces headers.
//!
//! Ticks have 64 bits. They count events, or they are microseconds from the caller's clock; events can share a tick
//! only with a clock.

use crate::error::ConfigError;
use crate::table::fixed_vec::FixedVec;
use crate::table::probe;
use crate::units::{Addr, AddrRange, Align};

/// A block's life as it was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocStat {
    /// First tick.
    pub begin: u64,
    /// The tick of the free; never before `begin`.
    pub end: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The requested alignment.
    pub align: Align,
}

impl AllocStat {
    /// Creates the life of a block that needs no alignment. If a clock stepped back and `end` is before `begin`, the
    /// life ends at `begin`.
    pub const fn new(begin: u64, end: u64, bytes: u64) -> Self {
        Self {
            begin,
            end: if end < begin { begin } else { end },
            bytes,
            align: Align::ONE,
        }
    }

    /// Returns this life for a block aligned to `align`.
    pub const fn aligned(self, align: Align) -> Self {
        Self { align, ..self }
    }
}

/// The life of a block in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenLife {
    /// Beginning, size and alignment as requested; the end is not known yet.
    pub(super) stat: AllocStat,
    /// Number of steps that had begun when the block was allocated.
    pub(super) born_step: u64,
}

/// A live block of the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BackendBlock {
    /// The range from the backend.
    pub(super) range: AddrRange,
    pub(super) life: OpenLife,
}

/// The live blocks of the backend, in the slots of a [probed](crate::table::probe) table.
#[derive(Debug)]
pub(super) struct BackendBlocks {
    slots: FixedVec<Option<BackendBlock>>,
    used: usize,
}

impl BackendBlocks {
    /// Creates a map with `slots` slots, of which one stays vacant.
    pub(super) fn new(slots: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            slots: FixedVec::filled_with(slots, || None)?,
            used: 0,
        })
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Inserts a block. Returns `false` if the map is full or already holds the address.
    pub(super) fn insert(&mut self, live: BackendBlock) -> bool {
        // One slot must stay vacant, so that every search ends.
        if self.used + 1 >= self.slots.len() {
            return false;
        }
        let start = live.range.start().get();
        let Err(slot) = probe::find(&self.slots, start, key_of) else {
            return false;
        };
        self.slots[slot] = Some(live);
        self.used += 1;
        true
    }

    /// Removes the block at the address and returns it.
    pub(super) fn remove(&mut self, addr: Addr) -> Option<BackendBlock> {
        let slot = probe::find(&self.slots, addr.get(), key_of).ok()?;
        self.used -= 1;
        probe::remove(&mut self.slots, slot, None, key_of)?
    }
}

fn key_of(slot: &Option<BackendBlock>) -> Option<u64> {
    slot.map(|live| live.range.start().get())
}

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    const FIRST: AddrRange = AddrRange::new(Addr::new(64), 1).unwrap();

    fn map(slots: usize) -> BackendBlocks {
        BackendBlocks::new(slots).unwrap_or_else(|error| panic!("{error}"))
    }

    fn live(place: u64) -> BackendBlock {
        let start = Addr::new(64 * (place + 1));
        BackendBlock {
            range: AddrRange::new(start, 1).unwrap_or(FIRST),
            life: OpenLife {
                stat: AllocStat::new(0, 0, 0),
                born_step: place,
            },
        }
    }

    #[test]
    fn random_inserts_and_removes_are_those_of_a_plain_list() {
        let mut map = map(17);
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
    fn a_map_without_slots_takes_nothing() {
        let mut map = map(0);
        assert!(!map.insert(live(0)));
        assert_eq!(map.remove(FIRST.start()), None);
    }
}
