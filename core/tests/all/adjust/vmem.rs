//! A block of neither side, and random blocks of both sides compared with a map.

use std::collections::BTreeMap;

use crate::common::{BASE, KIB, MIB, apart, at_once, range, ranged, table};
use larder_core::{
    BestFit, Block, BlockAllocator, FixedRange, FreeError, Placement, RegionPool, Request, Shared,
};
use larder_model::antman::{Vmem, VmemError};
use larder_model::{Random, Source};

type Side<S> = Shared<RegionPool<'static>, S>;

/// Returns both sides: 4 MiB of a device, taken at once, and 8 MiB of the host.
fn sides() -> Vmem<Side<Source>, Side<FixedRange>> {
    let device = RegionPool::new(at_once(4 * MIB), table(1 << 11)).expect("good");
    let host = RegionPool::new(ranged(MIB, 8 * MIB), table(1 << 11)).expect("good");
    let memory = FixedRange::new(range(BASE, 8 * MIB));
    Vmem::new(Shared::new(device, apart()), Shared::new(host, memory))
}

#[test]
fn a_block_of_neither_side_is_given_back_and_counts_nowhere() {
    let (vmem, other) = (sides(), sides());
    let block = other.alloc(&Request::new(1000)).expect("memory").block;
    assert!(!vmem.owns(&block));
    assert_eq!(vmem.requested_bytes(&block), None);
    let rejected = vmem.free(block).expect_err("another's");
    assert_eq!(rejected.error, FreeError::Unknown);
    assert_eq!(vmem.vmem_stats().joint_live_bytes, 0);
    other.free(rejected.value).expect("its block");
}

#[test]
fn f8_placement_and_sizes_are_as_in_a_map_of_every_block() {
    for seed in 0..40 {
        run_against_a_map(seed);
    }
}

fn run_against_a_map(seed: u64) {
    let mut random = Random::new(seed);
    let vmem = sides();
    let mut live: BTreeMap<u64, (Block, Placement, u64)> = BTreeMap::new();
    let mut granted = [0u64; 2];
    let mut peak = 0;
    let mut ids = [0u64; 2];
    for turn in 0..400 {
        let at = format!("seed {seed}, turn {turn}");
        let index = |placement: Placement| usize::from(placement == Placement::Host);
        if random.below(5) < 3 {
            let max = [2000, 100 * KIB, MIB][random.below(3) as usize];
            let bytes = 1 + random.below(max);
            let fits = vmem
                .device()
                .with(|bfc| bfc.report().largest_free_bytes >= bytes.next_multiple_of(256))
                || vmem.device().stats().reserved_bytes == 0;
            match vmem.alloc_placed(&Request::new(bytes)) {
                Ok(placed) => {
                    let (placement, block) = (placed.placement, placed.grant.block);
                    assert_eq!(placement == Placement::Device, fits, "{at}");
                    let side = index(placement);
                    ids[side] += 1;
                    granted[side] += block.bytes();
                    peak = peak.max(granted[0] + granted[1]);
                    assert_eq!(vmem.allocation_id(&block), Some(ids[side]), "{at}");
                    let below = live.range(..=block.addr().get()).next_back();
                    assert!(below.is_none_or(|(_, b)| b.0.range().end() <= block.addr()));
                    live.insert(block.addr().get(), (block, placement, bytes));
                }
                Err(VmemError::Both { .. }) => assert!(!fits, "{at}"),
                Err(error) => panic!("{at}: {error}"),
            }
        } else if !live.is_empty() {
            let which = random.index(live.len());
            let addr = *live.keys().nth(which).expect("that many");
            let (block, placement, _) = live.remove(&addr).expect("it is there");
            granted[index(placement)] -= block.bytes();
            vmem.free(block).expect("its block");
        }
        for (block, placement, bytes) in live.values() {
            assert_eq!(vmem.placement(block), Some(*placement), "{at}");
            assert_eq!(vmem.requested_bytes(block), Some(*bytes), "{at}");
        }
        let stats = vmem.vmem_stats();
        assert_eq!(stats.device.live_bytes, granted[0], "{at}");
        assert_eq!(stats.host.live_bytes, granted[1], "{at}");
        assert_eq!(stats.joint_live_bytes, granted[0] + granted[1], "{at}");
        assert_eq!(stats.joint_peak_bytes, peak, "{at}");
    }
}
