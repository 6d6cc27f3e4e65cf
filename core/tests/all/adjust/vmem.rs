//! AntMan's cases of device memory first and host memory after it, and our additions: a block's side, one count of
//! both sides, and a plan that stops the host's service.

#![expect(clippy::result_large_err, reason = "tests")]

use std::collections::BTreeMap;

use crate::adjust::sides::Sides;
use crate::common::{self, GIB, KIB, MIB, apart, at_once, point, tuple_of};
use larder_core::{
    AllocError, BestFit, Block, BlockAllocator, Cause, FreeError, OutOfMemory, Placement,
    RegionPool, Request, Shared,
};
use larder_model::Random;
use larder_model::antman::{Vmem, VmemError};

fn out_of_memory(error: AllocError) -> OutOfMemory {
    match error {
        AllocError::OutOfMemory(out) => out,
        other => panic!("{other}"),
    }
}

#[test]
fn am_1_a_host_limit_of_1025_mib_serves_what_the_device_cannot_and_1024_mib_does_not() {
    for (host_limit, served) in [(1025 * MIB, true), (1024 * MIB, false)] {
        let vmem = Sides::new(at_once(GIB), host_limit);
        let answer = vmem.try_alloc(GIB + 1024);
        match answer {
            Ok((placement, _)) => assert!(served && placement == Placement::Host),
            Err(VmemError::Both { device, host }) => {
                assert!(!served);
                let (device, host) = (out_of_memory(device), out_of_memory(host));
                assert_eq!(device.requested_bytes, GIB + 1024);
                assert_eq!((device.limit_bytes, host.limit_bytes), (GIB, 1024 * MIB));
                assert_eq!(host.cause, Cause::Limit);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn am_1_without_a_host_side_the_device_alone_answers() {
    let vmem = Sides::device_only(at_once(GIB));
    let refused = vmem.try_alloc(GIB + 1024);
    assert!(matches!(refused, Err(VmemError::Device(_))), "{refused:?}");
    let (placement, block) = vmem.try_alloc(GIB).expect("it fits");
    assert_eq!(placement, Placement::Device);
    assert_eq!(vmem.joint(), vmem.tuple(Placement::Device));
    assert_eq!(vmem.antman(), vmem.joint());
    vmem.vmem.free(block).expect("its block");
}

#[test]
fn am_1_no_dups_through_the_fallback_stay_on_the_device() {
    let vmem = Sides::new(at_once(GIB), GIB);
    let blocks: Vec<Block> = (1..1024)
        .map(|bytes| match vmem.try_alloc(bytes) {
            Ok((Placement::Device, block)) => block,
            other => panic!("{other:?}"),
        })
        .collect();
    common::assert_disjoint(&blocks);
    let full = (1023, 654_336, 654_336, 1024);
    assert_eq!((vmem.antman(), vmem.joint()), (full, full));
    let empty = (1023, 0, 654_336, 1024);
    vmem.free(blocks, empty);
    assert_eq!((vmem.antman(), vmem.joint()), (empty, empty));
}

#[test]
fn am_1_out_of_device_memory_goes_to_the_host_and_clearing_keeps_what_is_in_use() {
    let m = 512 * MIB;
    let vmem = Sides::new(at_once(GIB), GIB);
    let _first = vmem.alloc(m, Placement::Device, (1, m, m, m));
    assert!(vmem.vmem.device().alloc(&Request::new(m + 1024)).is_err());
    let host = (1, m + 1024, m + 1024, m + 1024);
    let _second = vmem.alloc(m + 1024, Placement::Host, host);
    assert_eq!(vmem.antman(), (1, m, 2 * m + 1024, m));
    assert_eq!(vmem.joint(), (2, 2 * m + 1024, 2 * m + 1024, m + 1024));
    vmem.vmem.clear_stats();
    assert_eq!(vmem.tuple(Placement::Device), (0, m, m, 0));
    assert_eq!(vmem.tuple(Placement::Host), (0, m + 1024, m + 1024, 0));
    assert_eq!(vmem.antman(), (0, m, 2 * m + 1024, 0));
    assert_eq!(vmem.joint(), (0, 2 * m + 1024, 2 * m + 1024, 0));
}

#[test]
fn am_1_zero_bytes_are_refused_and_the_host_is_not_asked() {
    let vmem = Sides::growing(GIB);
    let refused = vmem.try_alloc(0);
    assert_eq!(
        refused.map(drop),
        Err(VmemError::Device(AllocError::ZeroSize))
    );
    let host = vmem.side(Placement::Host);
    assert_eq!(host.source().take_log(), []);
}

#[test]
fn the_joint_peak_is_what_was_in_use_at_once_and_not_the_sum_of_both_peaks() {
    let vmem = Sides::new(at_once(2 * MIB), 64 * MIB);
    let a = vmem.try_alloc(2 * MIB).expect("the device's").1;
    vmem.vmem.free(a).expect("its block");
    // The device is full again while the host serves a little.
    let b = vmem.try_alloc(MIB).expect("the device's").1;
    let (placement, c) = vmem.try_alloc(2 * MIB).expect("the host's");
    assert_eq!(placement, Placement::Host);
    let stats = vmem.vmem.vmem_stats();
    assert_eq!(
        (stats.joint_live_bytes, stats.joint_peak_bytes),
        (3 * MIB, 3 * MIB)
    );
    assert_eq!(stats.antman().peak_live_bytes, 4 * MIB);
    for block in [b, c] {
        vmem.vmem.free(block).expect("its block");
    }
    let stats = vmem.vmem.vmem_stats();
    assert_eq!(
        (stats.joint_live_bytes, stats.joint_peak_bytes),
        (0, 3 * MIB)
    );
    vmem.vmem.clear_stats();
    assert_eq!(vmem.vmem.vmem_stats().joint_peak_bytes, 0);
}

#[test]
fn am_1_a_joint_peak_above_the_plan_refuses_the_host_and_one_at_the_plan_does_not() {
    let run = |planned: u64| {
        let Sides { vmem } = Sides::new(at_once(2 * MIB), 64 * MIB);
        let sides = Sides {
            vmem: vmem.planned(planned),
        };
        let _first = sides.try_alloc(2 * MIB).expect("the device's");
        let _second = sides.try_alloc(MIB).expect("2 MiB are not above the plan");
        let third = sides.try_alloc(256);
        // Whatever is planned, the form without the plan goes on.
        let beyond = sides.vmem.alloc_unplanned(&Request::new(256));
        assert_eq!(beyond.map(|placed| placed.placement), Ok(Placement::Host));
        third
    };
    assert_eq!(run(3 * MIB).expect("at the plan").0, Placement::Host);
    let refused = run(3 * MIB - 1).expect_err("above the plan");
    let VmemError::Planned {
        device,
        peak_bytes,
        planned_bytes,
    } = refused
    else {
        panic!("{refused}");
    };
    assert_eq!((peak_bytes, planned_bytes), (3 * MIB, 3 * MIB - 1));
    assert_eq!(out_of_memory(device).requested_bytes, 256);
    let words = refused.to_string();
    assert!(
        words.contains("3145728") && words.contains("3145727"),
        "{words}"
    );
}

#[test]
fn a_plan_that_was_passed_serves_again_when_the_counters_are_cleared() {
    let Sides { vmem } = Sides::new(at_once(2 * MIB), 64 * MIB);
    let vmem = vmem.planned(2 * MIB);
    let device = vmem.alloc_placed(&Request::new(2 * MIB)).expect("device");
    let host = vmem.alloc_placed(&Request::new(MIB)).expect("host");
    assert!(vmem.alloc_placed(&Request::new(256)).is_err());
    vmem.free(host.grant.block).expect("its block");
    assert!(
        vmem.alloc_placed(&Request::new(256)).is_err(),
        "the peak stays"
    );
    vmem.clear_stats();
    let host = vmem.alloc_placed(&Request::new(256)).expect("host");
    assert_eq!(host.placement, Placement::Host);
    assert_eq!(device.placement, Placement::Device);
}

#[test]
fn a_block_of_neither_side_is_given_back_and_counts_nowhere() {
    let vmem = Sides::growing(GIB);
    let other = Sides::growing(GIB);
    let (_, block) = other.try_alloc(1000).expect("memory");
    assert!(!vmem.vmem.owns(&block));
    assert_eq!(vmem.vmem.requested_bytes(&block), None);
    let rejected = vmem.vmem.free(block).expect_err("another's");
    assert_eq!(rejected.error, FreeError::Unknown);
    assert_eq!(vmem.vmem.vmem_stats().joint_live_bytes, 0);
    other.vmem.free(rejected.value).expect("its block");
}

#[test]
fn a_refused_free_leaves_the_joint_count_as_it_was() {
    let vmem = Sides::growing(GIB);
    let (_, block) = vmem.try_alloc(1000).expect("memory");
    let far = point(1, u64::from(u32::MAX) * 4);
    let rejected = vmem.vmem.free_after(block, far).expect_err("too far");
    assert_eq!(rejected.error, FreeError::EventTooFar);
    let stats = vmem.vmem.vmem_stats();
    assert_eq!(
        (stats.joint_live_bytes, stats.joint_peak_bytes),
        (1024, 1024)
    );
    vmem.vmem.free(rejected.value).expect("its block");
    assert_eq!(vmem.vmem.vmem_stats().joint_live_bytes, 0);
}

#[test]
fn an_allocator_shared_by_reference_is_one_too() {
    let table = common::table(64);
    let bfc = RegionPool::new(common::ranged(MIB, MIB), table).expect("good");
    let device = Shared::new(bfc, apart());
    let vmem = Vmem::<&dyn BlockAllocator>::device_only(&device);
    let block = vmem.alloc(&Request::new(1000)).expect("memory").block;
    assert!(device.owns(&block) && vmem.owns(&block));
    assert_eq!(vmem.requested_bytes(&block), Some(1000));
    assert_eq!(vmem.allocation_id(&block), Some(1));
    vmem.free(block).expect("its block");
    vmem.clear_stats();
    assert_eq!(tuple_of(&device.stats()), (0, 0, 0, 0));
}

/// What a map of every block says against what the allocator does.
#[test]
fn f8_placement_and_sizes_are_as_in_a_map_of_every_block() {
    for seed in 0..40 {
        run_against_a_map(seed);
    }
}

fn run_against_a_map(seed: u64) {
    let mut random = Random::new(seed);
    let sides = Sides::new(at_once(4 * MIB), 8 * MIB);
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
            let fits = sides
                .vmem
                .device()
                .with(|bfc| bfc.report().largest_free_bytes >= bytes.next_multiple_of(256))
                || sides.vmem.device().stats().reserved_bytes == 0;
            match sides.try_alloc(bytes) {
                Ok((placement, block)) => {
                    assert_eq!(placement == Placement::Device, fits, "{at}");
                    let side = index(placement);
                    ids[side] += 1;
                    granted[side] += block.bytes();
                    peak = peak.max(granted[0] + granted[1]);
                    assert_eq!(sides.vmem.allocation_id(&block), Some(ids[side]), "{at}");
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
            sides.vmem.free(block).expect("its block");
            sides.check();
        }
        for (block, placement, bytes) in live.values() {
            assert_eq!(sides.vmem.placement(block), Some(*placement), "{at}");
            assert_eq!(sides.vmem.requested_bytes(block), Some(*bytes), "{at}");
        }
        let stats = sides.vmem.vmem_stats();
        assert_eq!(stats.device.live_bytes, granted[0], "{at}");
        assert_eq!(stats.host.live_bytes, granted[1], "{at}");
        assert_eq!(stats.joint_live_bytes, granted[0] + granted[1], "{at}");
        assert_eq!(stats.joint_peak_bytes, peak, "{at}");
    }
}
