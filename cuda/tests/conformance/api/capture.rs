//! Capture of streams, and graphs.

use larder_cuda_abi::{GraphExecHandle, GraphHandle, StreamHandle};

use super::{Answer, out};

/// cuStreamBeginCapture_v2.
pub(crate) fn begin(stream: StreamHandle, mode: u32) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuStreamBeginCapture_v2)(stream, mode) }.check()
}

/// cuStreamEndCapture: its answer, and what it wrote over a word that was not null.
pub(crate) fn end_raw(stream: StreamHandle) -> (Answer, GraphHandle) {
    let mut graph = GraphHandle(usize::MAX);
    // SAFETY: C2; the out argument is a local's.
    let answer = unsafe { function!(cuStreamEndCapture)(stream, &raw mut graph) }.check();
    (answer, graph)
}

/// cuStreamEndCapture.
pub(crate) fn end(stream: StreamHandle) -> Answer<GraphHandle> {
    let (answer, graph) = end_raw(stream);
    answer.map(|()| graph)
}

/// cuStreamIsCapturing: one of the `CAPTURE_STATUS_…` constants.
pub(crate) fn status(stream: StreamHandle) -> Answer<u32> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { function!(cuStreamIsCapturing)(stream, at) })
}

/// cuThreadExchangeStreamCaptureMode: the thread's mode before.
pub(crate) fn exchange_mode(mut mode: u32) -> Answer<u32> {
    // SAFETY: the argument is a local's.
    unsafe { function!(cuThreadExchangeStreamCaptureMode)(&raw mut mode) }.check()?;
    Ok(mode)
}

/// cuGraphInstantiateWithFlags.
pub(crate) fn instantiate(graph: GraphHandle) -> Answer<GraphExecHandle> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { function!(cuGraphInstantiateWithFlags)(at, graph, 0) })
}

/// cuGraphLaunch.
pub(crate) fn launch(exec: GraphExecHandle, stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuGraphLaunch)(exec, stream) }.check()
}

/// cuGraphDestroy.
pub(crate) fn destroy(graph: GraphHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuGraphDestroy)(graph) }.check()
}

/// cuGraphExecDestroy.
pub(crate) fn destroy_exec(exec: GraphExecHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuGraphExecDestroy)(exec) }.check()
}

/// cuGraphGetNodes: how many nodes.
pub(crate) fn node_count(graph: GraphHandle) -> Answer<usize> {
    // SAFETY: C2; with null for the nodes only their number is written.
    out(|at| unsafe { function!(cuGraphGetNodes)(graph, core::ptr::null_mut(), at) })
}
