//! A source whose ranges are never adjacent, as an operating system's or a driver's may be.

use larder_core::{
    BestFit, BlockAllocator, MAX_REGIONS, RegionConfig, RegionPool, Request, Shared,
};

use crate::common::{GIB, MIB, apart, table};

#[test]
fn the_region_table_does_not_fill_before_the_memory_does() {
    let pool = RegionPool::new(RegionConfig::new(64 * GIB), table(1 << 17)).unwrap();
    let mut shared = Shared::new(pool, apart());
    let mut live = 0;
    // In steps of 2 MiB, 256 regions would hold only half a GiB.
    while live < 48 * GIB {
        let block = shared.alloc(&Request::new(MIB)).unwrap().block;
        live += block.bytes();
    }
    let pool = shared.get_mut();
    let regions = pool.report().regions as usize;
    assert!(regions < MAX_REGIONS / 2, "{regions} regions");
    assert_eq!(pool.check_invariants(), Ok(()));
}
