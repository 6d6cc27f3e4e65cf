//! Exported functions of graphs.

use larder_cuda_abi::{Code, GraphExecHandle, GraphHandle, GraphNodeHandle, StreamHandle};

use crate::entry::{answer, call};
use crate::ffi::Out;

/// Flags of an instantiation: all valid flags, and the flag for launches from a device.
const INSTANTIATE_FLAGS: u64 = 15;
const INSTANTIATE_FOR_DEVICE: u64 = 4;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphDestroy(graph: GraphHandle) -> Code {
    call("cuGraphDestroy", |driver| {
        if driver.graphs.get(graph.0)?.capturing {
            return Err(Code::INVALID_VALUE);
        }
        driver.graphs.remove(graph.0).map(drop)
    })
}

/// Fills places beyond the last node with null.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphGetNodes(
    graph: GraphHandle,
    nodes: Out<GraphNodeHandle>,
    count: Out<usize>,
) -> Code {
    call("cuGraphGetNodes", |driver| {
        let room = count.value()?;
        let graph = driver.graphs.get(graph.0)?;
        if nodes.is_null() {
            return count.give(graph.nodes.len());
        }
        for index in 0..room {
            let node = graph.nodes.get(index);
            let handle = node.map_or(GraphNodeHandle::NULL, |node| GraphNodeHandle(node.handle));
            nodes.at(index).give(handle)?;
        }
        count.give(room.min(graph.nodes.len()))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphInstantiateWithFlags(
    exec: Out<GraphExecHandle>,
    graph: GraphHandle,
    flags: u64,
) -> Code {
    answer("cuGraphInstantiateWithFlags", exec, |driver| {
        if flags & !INSTANTIATE_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if flags & INSTANTIATE_FOR_DEVICE != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        driver.instantiate(graph.0).map(GraphExecHandle)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphLaunch(exec: GraphExecHandle, stream: StreamHandle) -> Code {
    call("cuGraphLaunch", |driver| {
        let stream = driver.stream(stream)?;
        driver.launch_exec(exec.0, stream)
    })
}

/// Only checks its arguments, since nothing needs an upload.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphUpload(exec: GraphExecHandle, stream: StreamHandle) -> Code {
    call("cuGraphUpload", |driver| {
        let stream = driver.stream(stream)?;
        driver.execs.get(exec.0)?;
        if driver.is_capturing(stream) {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecDestroy(exec: GraphExecHandle) -> Code {
    call("cuGraphExecDestroy", |driver| driver.destroy_exec(exec.0))
}
