//! Exported functions of stream capture.

use larder_cuda_abi::constants::{CAPTURE_MODE_RELAXED, CAPTURE_STATUS_ACTIVE};
use larder_cuda_abi::{Code, GraphHandle, GraphNodeHandle, StreamHandle};

use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::thread;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginCapture_v2(stream: StreamHandle, mode: u32) -> Code {
    call("cuStreamBeginCapture_v2", |driver| {
        let stream = driver.stream(stream)?;
        driver.begin_capture(stream, mode)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamEndCapture(stream: StreamHandle, graph: Out<GraphHandle>) -> Code {
    call("cuStreamEndCapture", |driver| {
        graph.check()?;
        let ended = driver
            .stream(stream)
            .and_then(|stream| driver.end_capture(stream));
        graph.give(GraphHandle(ended.unwrap_or(0)))?;
        ended.map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamIsCapturing(stream: StreamHandle, status: Out<u32>) -> Code {
    answer("cuStreamIsCapturing", status, |driver| {
        let stream = driver.stream(stream)?;
        driver.capture_status(stream)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: StreamHandle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<GraphHandle>,
    nodes: Out<*const GraphNodeHandle>,
    count: Out<usize>,
) -> Code {
    call("cuStreamGetCaptureInfo_v2", |driver| {
        status.check()?;
        let stream = driver.stream(stream)?;
        let known = driver.capture_status(stream)?;
        status.give(known)?;
        if known != CAPTURE_STATUS_ACTIVE {
            return Ok(());
        }
        let (number, capture) = driver.report_capture(stream)?;
        id.give_if_asked(number);
        graph.give_if_asked(GraphHandle(capture.graph));
        // A node's handle has the layout of its number.
        nodes.give_if_asked(capture.reported.as_ptr().cast());
        count.give_if_asked(capture.reported.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) -> Code {
    answer("cuThreadExchangeStreamCaptureMode", mode, |_| {
        let wanted = mode.value()?;
        if wanted > CAPTURE_MODE_RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        Ok(thread::exchange_capture_mode(wanted))
    })
}
