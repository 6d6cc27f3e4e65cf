//! Capture of streams.

use larder_cuda_abi::constants::{
    CAPTURE_MODE_GLOBAL, CAPTURE_MODE_RELAXED, CAPTURE_STATUS_ACTIVE,
};
use larder_cuda_abi::{Code, GraphHandle, GraphNodeHandle, StreamHandle};

use crate::driver::Driver;
use crate::entry::call;
use crate::ffi::Out;
use crate::thread;

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: StreamHandle, mode: u32) -> Code {
    call("cuStreamBeginCapture_v2", |driver| {
        let stream = driver.stream(stream)?;
        driver.begin_capture(stream, mode)
    })
}

/// The begin of a capture as CUDA 10.0 has it, without a mode.
#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture(stream: StreamHandle) -> Code {
    call("cuStreamBeginCapture", |driver| {
        let stream = driver.stream(stream)?;
        driver.begin_capture(stream, CAPTURE_MODE_GLOBAL)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: StreamHandle, graph: Out<GraphHandle>) -> Code {
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
extern "C" fn cuStreamIsCapturing(stream: StreamHandle, status: Out<u32>) -> Code {
    call("cuStreamIsCapturing", |driver| {
        status.check()?;
        let stream = driver.stream(stream)?;
        status.give(driver.capture_status(stream)?)
    })
}

/// The places for the parts of a capture's description.
struct Info {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<GraphHandle>,
    nodes: Out<*const GraphNodeHandle>,
    count: Out<usize>,
}

impl Info {
    fn give(&self, driver: &mut Driver, stream: StreamHandle) -> Result<(), Code> {
        self.status.check()?;
        let stream = driver.stream(stream)?;
        let status = driver.capture_status(stream)?;
        self.status.give(status)?;
        if status != CAPTURE_STATUS_ACTIVE {
            return Ok(());
        }
        driver.report_dependencies(stream)?;
        let (id, capture) = driver.capture(stream).ok_or(Code::UNKNOWN)?;
        self.id.give_if_asked(id);
        self.graph.give_if_asked(GraphHandle(capture.graph));
        // A node's handle is laid out as its number.
        self.nodes.give_if_asked(capture.reported.as_ptr().cast());
        self.count.give_if_asked(capture.reported.len());
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: StreamHandle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<GraphHandle>,
    nodes: Out<*const GraphNodeHandle>,
    count: Out<usize>,
) -> Code {
    call("cuStreamGetCaptureInfo_v2", |driver| {
        let info = Info {
            status,
            id,
            graph,
            nodes,
            count,
        };
        info.give(driver, stream)
    })
}

/// All edges are plain ones, without data.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: StreamHandle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<GraphHandle>,
    nodes: Out<*const GraphNodeHandle>,
    edges: Out<usize>,
    count: Out<usize>,
) -> Code {
    call("cuStreamGetCaptureInfo_v3", |driver| {
        edges.give_if_asked(0);
        let info = Info {
            status,
            id,
            graph,
            nodes,
            count,
        };
        info.give(driver, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) -> Code {
    call("cuThreadExchangeStreamCaptureMode", |_| {
        let wanted = mode.value()?;
        if wanted > CAPTURE_MODE_RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        mode.give(thread::exchange_capture_mode(wanted))
    })
}
