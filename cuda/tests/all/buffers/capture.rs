//! Buffers and stream capture.

use cudarc::driver::{LaunchConfig, PushKernelArg, sys};
use larder_cuda::{CaptureStatus, Event, EventConfig, Launch};

use super::Setup;
use crate::common::alone_and_clean;
use crate::common::graph::Graph;
use crate::common::kernels::add_kernel;

const LEN: usize = 400;

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

#[test]
fn captured_work_comes_after_what_was_queued_elsewhere() {
    alone_and_clean(|control| {
        let setup = Setup::new(3);
        let [a, b, c] = [0, 1, 2].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        let ones = memory.upload(a, &[1u8; LEN]).unwrap();
        for seed in 0..50 {
            control.schedule_deferred(seed);
            let mut buffer = memory.zeros::<u8>(a, LEN).unwrap();
            let mut copy = memory.zeros::<u8>(b, LEN).unwrap();
            let mut late = memory.zeros::<u8>(b, LEN).unwrap();
            a.memcpy_dtod(&ones, &mut buffer).unwrap();
            b.begin_capture(RELAXED).unwrap();
            b.memcpy_dtod(&buffer, &mut copy).unwrap();
            // Work that stays on one stream needs no wait, even in a capture.
            b.memcpy_dtod(&copy, &mut late).unwrap();
            assert_eq!(
                setup.context.capture_status(b),
                Ok(CaptureStatus::Active),
                "the capture goes on"
            );
            let graph = Graph::end_capture(b).unwrap();
            graph.launch(b).unwrap();
            assert_eq!(c.clone_dtoh(&late).unwrap(), [1; LEN], "seed {seed}");
            drop(graph);
            drop((buffer, copy, late));
            assert_eq!(setup.context.cudarc().check_err(), Ok(()));
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        control.schedule_eagerly();
    });
}

/// Two streams take part in one capture. The program's own events order them, and the buffers record none of the
/// captured uses.
#[test]
fn streams_of_one_capture_are_the_programs() {
    alone_and_clean(|control| {
        let setup = Setup::new(2);
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        for seed in 0..50 {
            control.schedule_deferred(seed);
            let ones = memory.upload(a, &[1u8; LEN]).unwrap();
            let mut buffer = memory.zeros::<u8>(a, LEN).unwrap();
            let mut copy = memory.zeros::<u8>(b, LEN).unwrap();
            let mut eager = memory.zeros::<u8>(b, LEN).unwrap();
            setup.context.synchronize().unwrap();
            a.memcpy_dtod(&ones, &mut buffer).unwrap();
            let (fork, join) = [EventConfig::default(); 2]
                .map(|config| Event::new(&setup.context, config).unwrap())
                .into();
            a.begin_capture(RELAXED).unwrap();
            a.memset_zeros(&mut buffer).unwrap();
            fork.record(a).unwrap();
            fork.wait_on(b).unwrap();
            b.memcpy_dtod(&buffer, &mut copy).unwrap();
            join.record(b).unwrap();
            join.wait_on(a).unwrap();
            assert_eq!(setup.context.cudarc().check_err(), Ok(()));
            let graph = Graph::end_capture(a).unwrap();
            // The copy must still wait for the write that `a` queued before the capture.
            b.memcpy_dtod(&buffer, &mut eager).unwrap();
            assert_eq!(b.clone_dtoh(&eager).unwrap(), [1; LEN], "seed {seed}");
            // Ordering the graph's launch is up to the program.
            setup.context.synchronize().unwrap();
            graph.launch(a).unwrap();
            setup.context.synchronize().unwrap();
            assert_eq!(a.clone_dtoh(&copy).unwrap(), [0; LEN]);
            drop((graph, fork, join));
            assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        }
        control.schedule_eagerly();
    });
}

/// The host waits for an unknown stream after each use, but not while that stream is being captured.
#[test]
fn a_capture_of_an_unknown_stream_is_not_spoilt() {
    alone_and_clean(|control| {
        let setup = Setup::new(1);
        let a = &setup.streams[0];
        let unknown = setup.context.cudarc().new_stream().unwrap();
        for seed in 0..50 {
            let mut copy = setup.memory.zeros::<u8>(a, LEN).unwrap();
            control.schedule_deferred(seed);
            let ones = setup.memory.upload(a, &[1u8; LEN]).unwrap();
            unknown.begin_capture(RELAXED).unwrap();
            unknown.memcpy_dtod(&ones, &mut copy).unwrap();
            let status = setup.context.capture_status(&unknown);
            assert_eq!(status, Ok(CaptureStatus::Active));
            let graph = Graph::end_capture(&unknown).unwrap();
            graph.launch(&unknown).unwrap();
            setup.context.synchronize().unwrap();
            assert_eq!(a.clone_dtoh(&copy).unwrap(), [1; LEN], "seed {seed}");
            drop(graph);
            assert_eq!(setup.context.cudarc().check_err(), Ok(()));
            control.schedule_eagerly();
        }
        assert_eq!(control.findings(), Vec::<String>::new());
    });
}

/// A stream cannot wait for work that was captured on another stream: cudarc reports an error, and the capture
/// continues.
#[test]
fn work_after_a_capture_of_another_stream_is_an_error() {
    alone_and_clean(|control| {
        // In the eager schedule the finding below is reported at once, so that it can be cleared.
        control.schedule_eagerly();
        let setup = Setup::new(2);
        let add = add_kernel(control, &setup.context);
        control.reset_calls();
        let [a, b] = [0, 1].map(|index| &setup.streams[index]);
        let memory = &setup.memory;
        let mut buffer = memory.zeros::<u8>(a, LEN).unwrap();
        let mut copy = memory.zeros::<u8>(b, LEN).unwrap();
        a.begin_capture(RELAXED).unwrap();
        a.memset_zeros(&mut buffer).unwrap();
        let _ = b.memcpy_dtod(&buffer, &mut copy);
        // Expected: as the error below says, nothing orders the copy after the work that `a` queued before its capture.
        control.clear_findings();
        let error = setup.context.cudarc().check_err().unwrap_err();
        let unsupported = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        assert_eq!(error.0, unsupported);
        let mut launch = Launch::on(b, &add);
        launch.arg(&mut copy).arg(&buffer).arg(&1_u32);
        // SAFETY: the kernel takes two pointers and a length, which fit.
        let refused = unsafe { launch.launch(LaunchConfig::for_num_elems(1)) };
        assert!(refused.is_err());
        assert_eq!(control.calls(Some("cuLaunchKernel")), 0);
        assert_eq!(setup.context.capture_status(a), Ok(CaptureStatus::Active));
        // A buffer that is freed during the capture is kept until the capture ends.
        let at = buffer.leak().unwrap();
        // SAFETY: the parts came from the leaked buffer.
        let buffer = unsafe { larder_cuda::DeviceBuffer::<u8>::from_raw(memory, a, at) }.unwrap();
        drop(buffer);
        let graph = Graph::end_capture(a).unwrap();
        let next = memory.zeros::<u8>(a, LEN).unwrap();
        let again = next.leak().unwrap();
        assert_eq!(again, at, "it is there again on its own stream");
        // SAFETY: the parts came from the buffer `next`.
        drop(unsafe { larder_cuda::DeviceBuffer::<u8>::from_raw(memory, a, again) }.unwrap());
        drop(graph);
        assert_eq!(setup.context.cudarc().check_err(), Ok(()));
    });
}
