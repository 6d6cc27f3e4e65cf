//! Decorators on a stream that is being captured: operations are refused with a typed error, and the capture continues.

use cudarc::driver::sys;
use larder_core::decorate::CheckError;
use larder_core::{
    AccessError, AddrRange, AllocError, BlockAllocator, MemoryAccess, Pattern, Request, StreamId,
};
use larder_cuda::{CaptureStatus, CheckedConfig};
use larder_cuda_abi::Code;

use super::{Setup, alloc};
use crate::common::alone_and_clean;

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

#[test]
fn what_touches_memory_is_refused_in_a_capture_and_the_capture_goes_on() {
    alone_and_clean(|_| {
        let setup = Setup::new();
        let (memory, access) = setup.on_stream();
        let checked = setup.checked(CheckedConfig::new());
        let block = alloc(&memory, 100);
        let (one, two) = (alloc(&checked, 100), alloc(&checked, 200));
        let refused = AccessError::Refused {
            code: Code::STREAM_CAPTURE_UNSUPPORTED.0,
        };
        setup.stream.begin_capture(RELAXED).unwrap();
        let range = AddrRange::new(block.addr(), 100).unwrap();
        let outcome = access.fill(StreamId::MAIN, range, Pattern::F32_NAN);
        assert_eq!(outcome, Err(refused));
        let mut byte = [0];
        assert_eq!(
            access.read(StreamId::MAIN, block.addr(), &mut byte),
            Err(refused)
        );
        assert_eq!(
            access.write(StreamId::MAIN, block.addr(), &byte),
            Err(refused)
        );
        let code = access.last_error().and_then(|error| error.code());
        assert_eq!(code, Some(Code::STREAM_CAPTURE_UNSUPPORTED));
        let outcome = checked.alloc(&Request::new(100));
        assert_eq!(outcome, Err(AllocError::Access(refused)));
        let find = CheckError::Access {
            addr: one.addr(),
            error: refused,
        };
        assert_eq!(checked.check(&one), Err(find));
        // A free cannot be refused: it is carried out, and the skipped work is reported.
        checked.free(one).unwrap();
        assert_eq!(checked.reset_failures(), 1);
        assert!(matches!(
            checked.take_finding(),
            Some(CheckError::Access { .. })
        ));
        let status = setup.context.capture_status(&setup.stream);
        assert_eq!(status, Ok(CaptureStatus::Active));
        let graph = setup.stream.end_capture(
            sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
        );
        drop(graph);
        // After the capture, checks work again.
        assert_eq!(checked.check(&two), Ok(()));
        checked.free(two).unwrap();
        memory.free(block).unwrap();
        drop(checked);
        assert_eq!(memory.stats().live_bytes, 0);
    });
}
