//! The live blocks of a replay, by address, for the check for overlaps.
//!
//! The map is independent of every contender: it uses only addresses and sizes.

use std::collections::BTreeMap;
use std::fmt;

use super::ReplayFault;

/// A live block and the addresses it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveBlock {
    /// The block's id in the trace.
    pub(crate) id: u32,
    /// First address.
    pub(crate) start: u64,
    /// One past the last address.
    pub(crate) end: u64,
}

impl fmt::Display for LiveBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} at [{}, {})", self.id, self.start, self.end)
    }
}

/// Live blocks by first address. No two of them overlap.
#[derive(Debug, Default)]
pub(crate) struct LiveMap {
    blocks: BTreeMap<u64, LiveBlock>,
    /// Sum of the live blocks' sizes.
    pub(super) bytes: u64,
}

impl LiveMap {
    /// Adds a block, or returns a fault if it overlaps a live one or has no end. O(log n) in the
    /// number of live blocks.
    pub(crate) fn insert(&mut self, id: u32, address: u64, bytes: u64) -> Result<(), ReplayFault> {
        let end =
            address
                .checked_add(bytes)
                .ok_or(ReplayFault::PastTheEnd { id, address, bytes })?;
        let new = LiveBlock {
            id,
            start: address,
            end,
        };
        // Live blocks are disjoint and not empty, so the last one that starts below `end` has the
        // highest end.
        if let Some((_, &old)) = self.blocks.range(..end).next_back()
            && old.end > address
        {
            return Err(ReplayFault::Overlap { new, old });
        }
        self.blocks.insert(address, new);
        self.bytes += bytes;
        Ok(())
    }

    /// Removes the block that starts at `address`, if any.
    pub(crate) fn remove(&mut self, address: u64) {
        if let Some(block) = self.blocks.remove(&address) {
            self.bytes -= block.end - block.start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_blocks_do_not_overlap() {
        let mut map = LiveMap::default();
        map.insert(0, 100, 100).unwrap();
        map.insert(1, 200, 50).unwrap();
        map.insert(2, 0, 100).unwrap();
        assert_eq!(map.bytes, 250);
    }

    #[test]
    fn every_kind_of_overlap_is_found_and_changes_nothing() {
        let mut map = LiveMap::default();
        map.insert(0, 100, 100).unwrap();
        let old = LiveBlock {
            id: 0,
            start: 100,
            end: 200,
        };
        for (start, bytes) in [
            (100, 100),
            (99, 2),
            (199, 1),
            (50, 200),
            (150, 10),
            (150, 500),
        ] {
            let new = LiveBlock {
                id: 7,
                start,
                end: start + bytes,
            };
            assert_eq!(
                map.insert(7, start, bytes),
                Err(ReplayFault::Overlap { new, old }),
                "{new}"
            );
        }
        assert_eq!(map.bytes, 100);
    }

    #[test]
    fn a_removed_block_leaves_its_place_free() {
        let mut map = LiveMap::default();
        map.insert(0, 100, 100).unwrap();
        map.remove(100);
        assert_eq!(map.bytes, 0);
        map.insert(1, 150, 10).unwrap();
    }

    #[test]
    fn a_block_past_the_end_of_the_address_space_is_found() {
        let mut map = LiveMap::default();
        let fault = ReplayFault::PastTheEnd {
            id: 3,
            address: u64::MAX - 1,
            bytes: 2,
        };
        assert_eq!(map.insert(3, u64::MAX - 1, 2), Err(fault));
        map.insert(3, u64::MAX - 1, 1).unwrap();
    }
}
