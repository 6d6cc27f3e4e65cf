//! The effects of sleeping and waking on blocks, steps, windows and graphs.

use cudarc::driver::sys;
use larder_core::{FreeError, Request};
use larder_cuda::driver::Rule;
use larder_cuda::driver::abi::Code;
use larder_cuda::{ArenaPolicy, DeviceAllocError, DeviceConfig, SleepError, StreamAllocator};

use crate::common::{MIB, alone_and_clean, assert_filled, fill};
use crate::sleep::{Rig, arenas, under_all_schedules};

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

#[test]
fn what_is_live_comes_back_at_its_addresses() {
    under_all_schedules(|control| {
        let mut rig = Rig::new(control, arenas());
        rig.fill();
        // Longer than a piece of the copy.
        rig.alloc(70 * MIB);
        for _ in 0..3 {
            let live = rig.memory.stats().live_bytes;
            let slept = rig.memory.sleep().unwrap();
            assert!(slept.copied_bytes >= live, "{slept:?}");
            assert_eq!(slept.dropped_bytes, 0);
            assert!(slept.released_bytes >= slept.copied_bytes, "{slept:?}");
            rig.assert_asleep();
            assert_eq!(rig.memory.stats().live_bytes, live);
            // A second time there is nothing to do.
            assert_eq!(rig.memory.sleep().unwrap().copied_bytes, 0);
            assert_eq!(rig.memory.wake(), Ok(slept.copied_bytes));
            assert_eq!(rig.memory.wake(), Ok(0));
            assert!(!rig.memory.is_asleep());
            rig.check();
            rig.alloc(4 * MIB);
            rig.alloc(100);
        }
        rig.check();
        rig.free_all();
    });
}

#[test]
fn asleep_nothing_is_given_and_all_is_taken() {
    under_all_schedules(|control| {
        let mut rig = Rig::new(control, arenas());
        rig.fill();
        let step = rig.memory.step(&rig.streams[0]).unwrap();
        let window = rig.memory.prime(&rig.streams[1], MIB).unwrap();
        window.close();
        rig.memory.sleep().unwrap();
        let later = rig.context.cudarc().new_stream().unwrap();
        for stream in [&rig.streams[0], &rig.streams[1], &later] {
            for bytes in [100, MIB, 9 * MIB] {
                let given = rig.memory.alloc(stream, bytes);
                assert_eq!(given.unwrap_err(), DeviceAllocError::Asleep);
                let given = rig.memory.alloc_as(stream, &Request::new(bytes));
                assert_eq!(given.unwrap_err(), DeviceAllocError::Asleep);
            }
            let primed = rig.memory.prime(stream, MIB);
            assert_eq!(primed.unwrap_err(), DeviceAllocError::Asleep);
        }
        drop((step, window));
        let second = rig.memory.step(&rig.streams[1]).unwrap();
        drop(second);
        let rest = rig.live.split_off(4);
        rig.free_all();
        rig.live = rest;
        rig.memory.release(u64::MAX);
        rig.assert_asleep();
        rig.memory.wake().unwrap();
        rig.check();
        rig.memory.sleep().unwrap();
        rig.free_all();
        rig.memory.wake().unwrap();
        // Pieces of arenas are taken apart when they are wanted.
        rig.memory.release(u64::MAX);
        assert_eq!(rig.memory.stats().live_bytes, 0);
        assert!(control.used(0) <= 4 * MIB, "only what is not seen passed");
    });
}

#[test]
fn graphs_captured_before_replay_right_after() {
    under_all_schedules(|control| {
        let mut rig = Rig::new(control, DeviceConfig::new());
        rig.alloc(3 * MIB);
        let stream = rig.streams[0].clone();
        let out = rig.memory.alloc(&stream, MIB).unwrap();
        let window = rig.memory.prime(&stream, 4 * MIB).unwrap();
        stream.begin_capture(RELAXED).unwrap();
        assert_eq!(rig.memory.sleep(), Err(SleepError::Capturing));
        let scratch = rig.memory.alloc(&stream, MIB).unwrap();
        let at = scratch.addr().get();
        fill(&stream, at, MIB, 7);
        // SAFETY: the test holds both blocks.
        unsafe {
            cudarc::driver::result::memcpy_dtod_async(
                out.addr().get(),
                at,
                MIB as usize,
                stream.cu_stream(),
            )
        }
        .unwrap();
        rig.memory.free(&stream, scratch).unwrap();
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        let graph = graph.unwrap().expect("work was captured");
        window.close();
        for _ in 0..3 {
            rig.memory.sleep().unwrap();
            rig.assert_asleep();
            rig.memory.wake().unwrap();
            fill(&stream, out.addr().get(), MIB, 0);
            graph.launch().unwrap();
            assert_filled(&stream, out.addr().get(), MIB, 7);
            rig.check();
        }
        stream.synchronize().unwrap();
        drop(graph);
        rig.memory.free(&stream, out).unwrap();
        rig.free_all();
    });
}

#[test]
fn remakable_blocks_are_not_copied() {
    under_all_schedules(|control| {
        let config = DeviceConfig {
            arenas: ArenaPolicy::Never,
            ..DeviceConfig::new()
        };
        let mut rig = Rig::new(control, config);
        rig.alloc(3 * MIB);
        let stream = rig.streams[0].clone();
        let made = rig.memory.alloc(&stream, 40 * MIB).unwrap();
        rig.memory.set_remakable(&made, true).unwrap();
        let slept = rig.memory.sleep().unwrap();
        assert_eq!(slept.dropped_bytes, 40 * MIB);
        assert_eq!(slept.copied_bytes, 3 * MIB);
        let pinned = control.alive();
        let pinned = pinned.iter().find(|alive| alive.kind == "pinned");
        assert!(
            pinned.is_none_or(|pinned| pinned.bytes <= 3 * MIB),
            "{pinned:?}"
        );
        assert_eq!(rig.memory.wake(), Ok(3 * MIB));
        rig.check();
        // It can be made again at its address.
        fill(&stream, made.addr().get(), 40 * MIB, 9);
        rig.memory.set_remakable(&made, false).unwrap();
        rig.memory.sleep().unwrap();
        rig.memory.wake().unwrap();
        assert_filled(&stream, made.addr().get(), 40 * MIB, 9);
        // The mark is the block's, not its place's.
        rig.memory.set_remakable(&made, true).unwrap();
        let place = made.addr();
        rig.memory.free(&stream, made).unwrap();
        let again = rig.memory.alloc(&stream, 40 * MIB).unwrap();
        assert_eq!(again.addr(), place);
        fill(&stream, place.get(), 40 * MIB, 11);
        assert_eq!(rig.memory.sleep().unwrap().dropped_bytes, 0);
        rig.memory.wake().unwrap();
        assert_filled(&stream, place.get(), 40 * MIB, 11);
        rig.memory.free(&stream, again).unwrap();
        // Marks of what is gone do not pile up.
        for _ in 0..500 {
            let block = rig.memory.alloc(&stream, MIB).unwrap();
            rig.memory.set_remakable(&block, true).unwrap();
            rig.memory.free(&stream, block).unwrap();
        }
        let other = larder_cuda::DeviceAllocator::new(&rig.context).unwrap();
        let foreign = other.alloc(&stream, MIB).unwrap();
        assert_eq!(
            rig.memory.set_remakable(&foreign, true),
            Err(FreeError::Unknown)
        );
        other.free(&stream, foreign).unwrap();
        rig.free_all();
    });
}

#[test]
fn an_allocator_that_sleeps_goes_without_a_trace() {
    under_all_schedules(|control| {
        let mut rig = Rig::new(control, arenas());
        rig.fill();
        rig.memory.sleep().unwrap();
        rig.assert_asleep();
    });
}

/// As in confidential computing, or under `ulimit -l`: the copy is slower, and the job sleeps all the same.
#[test]
fn what_the_host_does_not_pin_is_copied_to_pageable_memory() {
    under_all_schedules(|control| {
        for (pinned_bytes, is_part) in [(0, false), (64 * MIB, true), (1 << 40, false)] {
            let mut rig = Rig::new(control, arenas());
            rig.fill();
            // Longer than a piece of the copy.
            rig.alloc(70 * MIB);
            control.set_pinned(pinned_bytes);
            for _ in 0..2 {
                let slept = rig.memory.sleep().unwrap();
                let expected = match (pinned_bytes, is_part) {
                    (0, _) => slept.copied_bytes,
                    (bytes, true) => slept.copied_bytes - bytes,
                    _ => 0,
                };
                assert_eq!(slept.pageable_bytes, expected, "{slept:?}");
                rig.assert_asleep();
                assert_eq!(rig.memory.wake(), Ok(slept.copied_bytes));
                rig.check();
            }
            rig.free_all();
        }
        control.set_pinned(1 << 40);
    });
}

/// Another refusal to pin says nothing of the host's memory.
#[test]
fn a_refusal_to_pin_that_is_no_want_of_memory_refuses_the_sleep() {
    alone_and_clean(|control| {
        for (code, falls_back) in [
            (Code::OUT_OF_MEMORY, true),
            (Code::NOT_SUPPORTED, true),
            (Code::NOT_PERMITTED, true),
            (Code::UNKNOWN, false),
            (Code::INVALID_VALUE, false),
        ] {
            let mut rig = Rig::new(control, arenas());
            rig.fill();
            let rule = Rule::of("cuMemHostAlloc").times(u64::MAX).with(code);
            control.fail(rule).unwrap();
            let slept = rig.memory.sleep();
            control.clear_failures();
            assert_eq!(slept.is_ok(), falls_back, "{code:?}: {slept:?}");
            if let Err(error) = slept {
                assert!(matches!(error, SleepError::Driver(_)), "{error}");
                assert!(!rig.memory.is_asleep());
            }
            rig.memory.wake().unwrap();
            rig.check();
            rig.free_all();
        }
    });
}

/// The system promises more memory than there is, and ends the process that takes it at its word.
#[cfg(target_os = "linux")]
#[test]
fn what_the_host_has_no_memory_for_is_refused_before_it_is_copied() {
    alone_and_clean(|control| {
        let said = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = said.split_whitespace().nth(1).unwrap();
        let bytes = total.parse::<u64>().unwrap() * 1024;
        control.reset(2, 2 * bytes);
        let rig = Rig::new(control, arenas());
        let block = rig.memory.alloc(&rig.streams[0], bytes).unwrap();
        let pins = Rule::of("cuMemHostAlloc").times(u64::MAX);
        control.fail(pins.with(Code::OUT_OF_MEMORY)).unwrap();
        // In case it is copied.
        let copies = Rule::of("cuMemcpyDtoHAsync_v2").times(u64::MAX);
        control.fail(copies.with(Code::UNKNOWN)).unwrap();
        let slept = rig.memory.sleep().unwrap_err();
        control.clear_failures();
        assert!(matches!(slept, SleepError::Host { .. }), "{slept}");
        assert!(!rig.memory.is_asleep());
        rig.memory.free(&rig.streams[0], block).unwrap();
    });
}
