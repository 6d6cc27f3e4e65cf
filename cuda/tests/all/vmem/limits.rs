//! The limit of the host's side while blocks are allocated and freed, alone and in a budget.

use std::sync::{Arc, Mutex};

use larder_core::Placement;
use larder_core::limits::{BudgetError, LimitAnswer, LimitEventKind};
use larder_cuda::driver::StandIn;
use larder_cuda::{DeviceAllocError, HostSide, Limits, StreamAllocator, VmemAllocator, VmemConfig};

use super::{DEVICE, Setup};
use crate::common::{DEVICE_BYTES, MIB, alone, alone_and_clean, assert_clean, assert_filled, fill};

/// Returns the bytes of the host's side that exist.
fn held(control: &StandIn, host: HostSide) -> u64 {
    let kind = match host {
        HostSide::Managed => "managed",
        _ => "pinned",
    };
    let alive = control.alive().into_iter();
    let of_kind = alive.filter(|alive| alive.kind == kind);
    of_kind.map(|alive| alive.bytes).sum()
}

#[test]
fn am_3_the_hosts_side_is_lowered_and_raised_while_blocks_come_and_go() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for host in [HostSide::Pinned(64 * MIB), HostSide::Managed] {
        let setup = Setup::new(host, 2);
        let (memory, streams) = (&setup.memory, &setup.streams);
        let done = Arc::new(Mutex::new(Vec::new()));
        let _watch = memory.watch_host_limit({
            let done = done.clone();
            move |event| done.lock().unwrap().push(event.kind)
        });
        let _device = memory.alloc(&streams[0], DEVICE).unwrap();
        let [a, b] = [6 * MIB, 6 * MIB].map(|bytes| memory.alloc(&streams[0], bytes).unwrap());
        assert_eq!(memory.placement(&a), Placement::Host);
        let before = held(control, host);
        assert_eq!(memory.host_pool_stats().pool_bytes, before, "{host:?}");
        assert_eq!(memory.set_host_limit(before), LimitAnswer::Applied);
        fill(&streams[0], b.addr().get(), b.bytes(), 3);
        memory.free(&streams[0], a).unwrap();
        let stable = memory.host_pool_stats().stable_bytes;
        assert_eq!(
            memory.set_host_limit(MIB),
            LimitAnswer::with_excess(stable - MIB)
        );
        assert_eq!(held(control, host), stable, "{host:?}");
        assert_eq!(memory.host_limit_bytes(), MIB);
        let refused = memory.alloc(&streams[1], MIB).expect_err("above the limit");
        assert!(
            matches!(refused, DeviceAllocError::Both { .. }),
            "{refused}"
        );
        assert_filled(&streams[0], b.addr().get(), b.bytes(), 3);
        assert!(done.lock().unwrap().is_empty());
        memory.free(&streams[1], b).unwrap();
        assert_eq!(held(control, host), 0, "{host:?}");
        assert_eq!(*done.lock().unwrap(), [LimitEventKind::ShrinkDone]);
        assert_eq!(memory.set_host_limit(0), LimitAnswer::Applied);
        assert!(memory.alloc(&streams[1], 1).is_err());
        assert_eq!(memory.set_host_limit(u64::MAX), LimitAnswer::Applied);
        let block = memory.alloc(&streams[1], 2 * MIB).unwrap();
        memory.free(&streams[0], block).unwrap();
        if host == HostSide::Managed {
            let more = memory.alloc(&streams[0], DEVICE_BYTES + MIB);
            assert!(more.is_err(), "a raised limit oversubscribes nothing");
        }
        drop(setup);
        assert_clean(control);
    }
}

#[test]
fn am_4_stable_is_what_a_limit_of_0_leaves_of_the_hosts_side() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in 0..60_u64 {
        println!("seed {seed}");
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let host = [HostSide::Pinned(64 * MIB), HostSide::Managed][(seed % 2) as usize];
        let setup = Setup::new(host, 3);
        let (memory, streams) = (&setup.memory, &setup.streams);
        let full = memory.alloc(&streams[0], DEVICE).unwrap();
        let mut live = Vec::new();
        control.schedule_deferred(seed);
        for _ in 0..60 {
            let stream = &streams[below(3) as usize];
            if below(2) == 0 {
                if let Ok(block) = memory.alloc(stream, 1 + below(3 * MIB)) {
                    fill(stream, block.addr().get(), 64, 1);
                    live.push((block, stream));
                }
            } else if !live.is_empty() {
                let (block, stream) = live.swap_remove(below(live.len() as u64) as usize);
                memory.free(stream, block).unwrap();
            }
            if below(10) == 0 {
                let limit = below(32) * MIB;
                let answer = memory.set_host_limit(limit);
                let above = held(control, host).saturating_sub(limit);
                assert_eq!(answer, LimitAnswer::with_excess(above));
                assert_eq!(memory.host_pool_stats().pool_bytes, held(control, host));
            }
        }
        control.schedule_eagerly();
        setup.context.synchronize().unwrap();
        let stable = memory.host_pool_stats().stable_bytes;
        assert_eq!(memory.set_host_limit(0), LimitAnswer::with_excess(stable));
        assert_eq!(held(control, host), stable);
        for (block, stream) in live {
            memory.free(stream, block).unwrap();
        }
        assert_eq!(held(control, host), 0, "everything was freed");
        memory.free(&streams[0], full).unwrap();
        drop(setup);
        assert_clean(control);
    }
}

#[test]
fn in_a_budget_both_sides_are_charged_and_either_makes_room_for_the_other() {
    alone_and_clean(|_| {
        let setup = Setup::new(HostSide::None, 1);
        let stream = &setup.streams[0];
        let limits = Limits::new(4 * MIB).unwrap();
        let config = VmemConfig::new(HostSide::Pinned(64 * MIB));
        let memory = VmemAllocator::in_budget(&setup.device, config, limits.process()).unwrap();
        let device = memory.alloc(stream, DEVICE).unwrap();
        assert_eq!(
            limits.process().usage().used_bytes,
            0,
            "the device's is its own"
        );
        let host = memory.alloc(stream, 4 * MIB).unwrap();
        assert_eq!(limits.process().usage().used_bytes, 4 * MIB);
        let DeviceAllocError::Both { host: refused, .. } =
            memory.alloc(stream, 2 * MIB).unwrap_err()
        else {
            panic!("both sides are full");
        };
        assert!(matches!(*refused, DeviceAllocError::Budget(_)), "{refused}");
        assert_eq!(
            limits.process().set(0),
            LimitAnswer::Deferred { bytes: 4 * MIB }
        );
        memory.free(stream, host).unwrap();
        assert_eq!(limits.process().usage().used_bytes, 0);
        memory.free(stream, device).unwrap();

        // Without a host side there is nothing to be limited.
        let none = LimitAnswer::Refused(BudgetError::Unknown);
        assert_eq!(setup.memory.set_host_limit(0), none);
        assert_eq!(setup.memory.host_limit_bytes(), 0);
        assert_eq!(setup.memory.host_pool_stats().pool_bytes, 0);
        assert!(setup.memory.watch_host_limit(|_| {}).is_none());
    });
}
