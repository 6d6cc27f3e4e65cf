//! Capture of streams, and graphs.

use cudarc::driver::sys;
use larder_cuda_abi::{GraphExecHandle, GraphHandle, StreamHandle};

use super::{Answer, done, done_raw, out, stream_of, symbol};

/// cuStreamBeginCapture_v2.
pub(crate) fn begin(stream: StreamHandle, mode: u32) -> Answer {
    type Begin = unsafe extern "C" fn(StreamHandle, u32) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Begin>("cuStreamBeginCapture_v2") };
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done_raw(unsafe { call(stream, mode) })
}

/// cuStreamEndCapture: its answer, and what it wrote over a word that was not null.
pub(crate) fn end_raw(stream: StreamHandle) -> (Answer, GraphHandle) {
    let mut graph = usize::MAX;
    let at = (&raw mut graph).cast();
    // SAFETY: C2; the out argument is a local's.
    let answer = done(unsafe { sys::cuStreamEndCapture(stream_of(stream), at) });
    (answer, GraphHandle(graph))
}

/// cuStreamEndCapture.
pub(crate) fn end(stream: StreamHandle) -> Answer<GraphHandle> {
    let (answer, graph) = end_raw(stream);
    answer.map(|()| graph)
}

/// cuStreamIsCapturing: one of the `CAPTURE_STATUS_…` constants.
pub(crate) fn status(stream: StreamHandle) -> Answer<u32> {
    // SAFETY: C2; the enumeration is a number in C.
    out(|at: *mut u32| unsafe { sys::cuStreamIsCapturing(stream_of(stream), at.cast()) })
}

/// cuThreadExchangeStreamCaptureMode: the thread's mode before.
pub(crate) fn exchange_mode(mut mode: u32) -> Answer<u32> {
    type Exchange = unsafe extern "C" fn(*mut u32) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Exchange>("cuThreadExchangeStreamCaptureMode") };
    // SAFETY: the argument is a local's.
    done_raw(unsafe { call(&raw mut mode) })?;
    Ok(mode)
}

/// cuGraphInstantiateWithFlags.
pub(crate) fn instantiate(graph: GraphHandle) -> Answer<GraphExecHandle> {
    let graph = graph.0 as sys::CUgraph;
    // SAFETY: C2; the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuGraphInstantiateWithFlags(at.cast(), graph, 0) })
        .map(GraphExecHandle)
}

/// cuGraphLaunch.
pub(crate) fn launch(exec: GraphExecHandle, stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuGraphLaunch(exec.0 as sys::CUgraphExec, stream_of(stream)) })
}

/// cuGraphDestroy.
pub(crate) fn destroy(graph: GraphHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuGraphDestroy(graph.0 as sys::CUgraph) })
}

/// cuGraphExecDestroy.
pub(crate) fn destroy_exec(exec: GraphExecHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuGraphExecDestroy(exec.0 as sys::CUgraphExec) })
}

/// cuGraphGetNodes: how many nodes.
pub(crate) fn node_count(graph: GraphHandle) -> Answer<usize> {
    let graph = graph.0 as sys::CUgraph;
    // SAFETY: C2; with null for the nodes only their number is written.
    out(|at| unsafe { sys::cuGraphGetNodes(graph, core::ptr::null_mut(), at) })
}
