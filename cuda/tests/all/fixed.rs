//! Blocks in one handle that stay in place, for memory that is registered by its addresses.

use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
use larder_cuda::driver::abi::Code;
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{DeviceAllocError, DeviceConfig, DriverError, SleepError};

use crate::common::graph::Graph;
use crate::common::setup::Setup;
use crate::common::{CODES, MIB, alone_and_clean, assert_filled, fill, under_all_schedules};

/// How many of a kind there are, and their bytes.
fn alive(control: &StandIn, kind: &str) -> (u64, u64) {
    let alive = control.alive();
    let found = alive.iter().find(|alive| alive.kind == kind);
    found.map_or((0, 0), |alive| (alive.count, alive.bytes))
}

#[test]
fn a_fixed_block_is_one_handle_that_neither_moves_nor_goes() {
    alone_and_clean(|control| {
        under_all_schedules(control, 8, || {
            let setup = Setup::new(2, DeviceConfig::new());
            let memory = &setup.memory;
            // Idle handles of which other blocks would be made.
            for bytes in [2 * MIB, 2 * MIB, 3 * MIB] {
                let block = setup.alloc(0, bytes, 1);
                setup.free(0, block);
            }
            let (handles, _) = alive(control, "handle");
            let fixed = memory.alloc_fixed(5 * MIB).unwrap();
            assert_eq!(fixed.range().bytes(), 6 * MIB);
            assert_eq!(alive(control, "handle").0, handles + 1);
            let at = fixed.range().start().get();
            fill(&setup.streams[1], at, 6 * MIB, 9);
            for round in 1..20 {
                let block = setup.alloc(0, round * MIB, 2);
                setup.free_pending(0, block);
                memory.release(u64::MAX);
            }
            assert_filled(&setup.streams[1], at, 6 * MIB, 9);
            setup.context.synchronize().unwrap();
            memory.release(u64::MAX);
            assert_eq!(alive(control, "handle"), (1, 6 * MIB));
            assert_eq!(alive(control, "mapping"), (1, 6 * MIB));
            fill(&setup.streams[1], at, 6 * MIB, 8);
            // It waits for that.
            fixed.free().unwrap();
            assert_eq!(alive(control, "handle"), (0, 0));
        });
    });
}

#[test]
fn memory_with_a_fixed_block_does_not_sleep() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let memory = &setup.memory;
        let fixed = memory.alloc_fixed(MIB).unwrap();
        let refused = memory.sleep().unwrap_err();
        let address = fixed.range().start().get();
        assert_eq!(
            refused,
            SleepError::Driver(DriverError::Exported { address })
        );
        assert!(!memory.is_asleep());
        drop(fixed);
        memory.sleep().unwrap();
        let refused = memory.alloc_fixed(MIB).map(drop);
        assert_eq!(refused, Err(DeviceAllocError::Asleep));
        memory.wake().unwrap();
    });
}

#[test]
fn fixed_blocks_count_against_the_limit_and_idle_memory_makes_room() {
    alone_and_clean(|control| {
        let setup = Setup::new(1, DeviceConfig::with_budget(8 * MIB));
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let idle = setup.alloc(0, 8 * MIB, 1);
        setup.free(0, idle);
        setup.context.synchronize().unwrap();
        let fixed = memory.alloc_fixed(6 * MIB).unwrap();
        assert_eq!(memory.pool_stats().pool_bytes, 6 * MIB);
        let refused = memory.alloc(stream, 4 * MIB).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        let refused = memory.alloc_fixed(4 * MIB).unwrap_err();
        assert!(matches!(refused, DeviceAllocError::Budget(_)), "{refused}");
        let block = setup.alloc(0, 2 * MIB, 1);
        assert_eq!(control.used(0), 8 * MIB);
        drop(fixed);
        let other = setup.alloc(0, 6 * MIB, 2);
        setup.free(0, block);
        setup.free(0, other);
        // More than the device has.
        let _ = memory.set_limit(u64::MAX);
        let refused = memory.alloc_fixed(2 << 30).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
    });
}

#[test]
fn a_refused_call_leaves_nothing_of_a_fixed_block() {
    alone_and_clean(|control| {
        let setup = Setup::new(1, DeviceConfig::new());
        for code in CODES {
            let mut refused = 0;
            for skip in 0.. {
                control.fail(Rule::any().after(skip).with(code)).unwrap();
                let before = control.calls(None);
                let fixed = setup.memory.alloc_fixed(3 * MIB);
                let calls = control.calls(None) - before;
                control.clear_failures();
                refused += u64::from(fixed.is_err());
                drop(fixed);
                setup.context.settle();
                assert_eq!(control.used(0), 0, "{code:?} after {skip}");
                assert_eq!(setup.memory.pool_stats().pool_bytes, 0);
                if calls <= skip {
                    break;
                }
            }
            // Want of memory is tried again.
            assert!(
                code == Code::OUT_OF_MEMORY || refused > 3,
                "{code:?}: {refused}"
            );
        }
    });
}

#[test]
fn a_fixed_block_that_goes_spoils_no_capture_of_a_stream_that_is_known() {
    alone_and_clean(|control| {
        under_all_schedules(control, 4, || {
            let setup = Setup::new(2, DeviceConfig::new());
            let (memory, stream) = (&setup.memory, &setup.streams[0]);
            let block = setup.alloc(0, MIB, 1);
            let fixed = memory.alloc_fixed(MIB).unwrap();
            fill(&setup.streams[1], fixed.range().start().get(), MIB, 2);
            stream.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            let (fixed, refused) = std::thread::scope(|scope| {
                let refused = scope.spawn(|| fixed.free().unwrap_err()).join().unwrap();
                (refused.value, refused.error)
            });
            assert_eq!(refused.code(), Some(Code::STREAM_CAPTURE_UNSUPPORTED));
            std::thread::scope(|scope| scope.spawn(|| drop(fixed)).join().unwrap());
            fill(stream, block.addr().get(), MIB, 3);
            let graph = Graph::end_capture(stream).expect("a whole capture");
            graph.launch(stream).unwrap();
            // It is kept until somebody waits for the work of before.
            assert!(alive(control, "mapping").0 > 1);
            assert_eq!(setup.context.settle(), 0);
            setup.free(0, block);
            memory.release(u64::MAX);
            assert_eq!(alive(control, "mapping"), (0, 0));
        });
    });
}

#[test]
fn a_fixed_block_takes_six_calls_and_the_current_context() {
    alone_and_clean(|control| {
        let setup = Setup::new(1, DeviceConfig::new());
        setup.context.cudarc().bind_to_thread().unwrap();
        control.reset_calls();
        let fixed = setup.memory.alloc_fixed(3 * MIB).unwrap();
        let calls = control.calls(None) - control.calls(Some("cuCtxGetCurrent"));
        // Four make it; the thread's capture mode changes and comes back.
        assert_eq!(calls, 6, "{:?}", control.call_table());
        assert_eq!(control.calls(Some("cuThreadExchangeStreamCaptureMode")), 2);
        drop(fixed);
    });
}
