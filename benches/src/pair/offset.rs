//! The crate `offset-allocator`: bins by a small floating-point number, O(1).
//!
//! The crate counts in `u32`, here in granules: a request's bytes divided by 256, rounded up.

use std::ops::Range;

use offset_allocator::{Allocation, Allocator};

use super::{GRANULE_BYTES, PairContender, PairScript};

/// The allocator over the script's pool.
pub struct OffsetAllocator {
    inner: Allocator,
    granules: u32,
}

impl OffsetAllocator {
    /// Creates an allocator with as many nodes as the script has records.
    ///
    /// # Errors
    /// If the pool has more granules than the crate can count.
    pub fn try_new(script: &PairScript) -> Result<Self, String> {
        let granules = script.pool_bytes() / u64::from(GRANULE_BYTES);
        let granules = u32::try_from(granules).map_err(|error| error.to_string())?;
        let nodes = u32::try_from(script.records()).map_err(|error| error.to_string())?;
        Ok(Self {
            inner: Allocator::with_max_allocs(granules, nodes),
            granules,
        })
    }
}

impl PairContender for OffsetAllocator {
    type Block = Allocation;

    #[inline]
    fn alloc(&mut self, bytes: u32) -> Option<Allocation> {
        self.inner.allocate(bytes.div_ceil(GRANULE_BYTES))
    }

    #[inline]
    fn free(&mut self, block: Allocation) -> Option<()> {
        self.inner.free(block);
        Some(())
    }

    fn address(&self, block: &Allocation) -> u64 {
        u64::from(block.offset) * u64::from(GRANULE_BYTES)
    }

    fn pool(&self) -> Range<u64> {
        0..u64::from(self.granules) * u64::from(GRANULE_BYTES)
    }

    fn check_empty(&mut self) -> Result<(), String> {
        let free = self.inner.storage_report().total_free_space;
        let bins = self.inner.storage_report_full().free_regions;
        let chunks: u32 = bins.iter().map(|bin| bin.count).sum();
        if free == self.granules && chunks == 1 {
            return Ok(());
        }
        let granules = self.granules;
        Err(format!(
            "{free} of {granules} granules free in {chunks} chunks"
        ))
    }
}
