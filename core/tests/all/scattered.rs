//! A source whose ranges are never adjacent, as an operating system's or a driver's may be.

use std::cell::Cell;

use larder_core::{
    Addr, AddrRange, BestFit, BlockAllocator, Chunk, GrowRequest, MAX_REGIONS, RegionConfig,
    RegionPool, Request, Shared, SubAllocError, SubAllocator,
};

/// Leaves a hole behind each range.
struct Scattered(Cell<u64>);

impl SubAllocator for Scattered {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let start = self.0.get();
        self.0.set(start + request.bytes + (1 << 20));
        AddrRange::new(Addr::new(start), request.bytes).ok_or(SubAllocError)
    }

    fn release(&self, _: AddrRange) -> Result<(), SubAllocError> {
        Ok(())
    }
}

#[test]
fn the_region_table_does_not_fill_before_the_memory_does() {
    let mut table = vec![Chunk::VACANT; 1 << 17];
    let pool = RegionPool::new(RegionConfig::new(64 << 30), &mut table).unwrap();
    let mut shared = Shared::new(pool, Scattered(Cell::new(1 << 30)));
    let mut live = 0;
    // In 2 MiB steps 256 regions would end at half a GiB.
    while live < 48 << 30 {
        let block = shared.alloc(&Request::new(1 << 20)).unwrap().block;
        live += block.bytes();
    }
    let pool = shared.get_mut();
    let regions = pool.report().regions as usize;
    assert!(regions < MAX_REGIONS / 2, "{regions} regions");
    assert_eq!(pool.check_invariants(), Ok(()));
}
