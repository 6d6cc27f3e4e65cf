//! Fixed blocks: refusals and captures, which scripts do not cover.

use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
use larder_cuda::DeviceConfig;
use larder_cuda::driver::abi::Code;
use larder_cuda::driver::{Rule, StandIn};

use crate::common::graph::Graph;
use crate::common::setup::Setup;
use crate::common::{CODES, MIB, alone_and_clean, fill, under_all_schedules};

fn alive(control: &StandIn, kind: &str) -> (u64, u64) {
    let alive = control.alive();
    let found = alive.iter().find(|alive| alive.kind == kind);
    found.map_or((0, 0), |alive| (alive.count, alive.bytes))
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
            // The allocator retries after an out-of-memory error, so that code may never reach the caller.
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
            // The block stays mapped until something waits for its work.
            assert!(alive(control, "mapping").0 > 1);
            assert_eq!(setup.context.settle(), 0);
            setup.free(0, block);
            memory.release(u64::MAX);
            assert_eq!(alive(control, "mapping"), (0, 0));
        });
    });
}
