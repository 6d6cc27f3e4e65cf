//! Capture of streams, and graphs.

use core::ptr::null_mut;

use larder_cuda_abi::{GraphExecHandle, GraphHandle, StreamHandle};

use super::Answer;

bindings! {
    fn begin(stream: StreamHandle, mode: u32) { cuStreamBeginCapture_v2(stream, mode) }
    /// Returns one of the `CAPTURE_STATUS_…` constants.
    fn status(stream: StreamHandle) -> u32 { |at| cuStreamIsCapturing(stream, at) }
    fn instantiate(graph: GraphHandle) -> GraphExecHandle {
        |at| cuGraphInstantiateWithFlags(at, graph, 0)
    }
    fn launch(exec: GraphExecHandle, stream: StreamHandle) { cuGraphLaunch(exec, stream) }
    fn destroy(graph: GraphHandle) { cuGraphDestroy(graph) }
    fn destroy_exec(exec: GraphExecHandle) { cuGraphExecDestroy(exec) }
    fn node_count(graph: GraphHandle) -> usize { |at| cuGraphGetNodes(graph, null_mut(), at) }
}

/// Returns the answer of cuStreamEndCapture, and the value that it wrote over a handle that was not null.
pub(crate) fn end_raw(stream: StreamHandle) -> (Answer, GraphHandle) {
    let mut graph = GraphHandle(usize::MAX);
    // SAFETY: C2; the out argument is a local variable.
    let answer = unsafe { function!(cuStreamEndCapture)(stream, &raw mut graph) }.check();
    (answer, graph)
}

pub(crate) fn end(stream: StreamHandle) -> Answer<GraphHandle> {
    let (answer, graph) = end_raw(stream);
    answer.map(|()| graph)
}

/// Returns the thread's previous mode.
pub(crate) fn exchange_mode(mut mode: u32) -> Answer<u32> {
    // SAFETY: the argument is a local variable.
    unsafe { function!(cuThreadExchangeStreamCaptureMode)(&raw mut mode) }.check()?;
    Ok(mode)
}
