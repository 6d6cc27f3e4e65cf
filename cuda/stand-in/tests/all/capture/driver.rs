//! The driver's functions, and shorter ones over them.

use std::ptr::null_mut;
use std::sync::MutexGuard;

use larder_cuda_abi::{Code, constants as c};

use crate::common::{self, alone};
pub(crate) use crate::common::{alive, findings, ok};
pub(crate) use crate::driver::*;

/// A fresh driver with one context of device 0.
pub(crate) fn begin(seed: Option<u64>) -> (MutexGuard<'static, ()>, usize) {
    let guard = alone();
    let mut context = 0;
    larder_stand_in_reset(1, 64 << 20);
    ok(cuInit(0));
    ok(cuCtxSetCurrent(0));
    ok(cuCtxCreate_v2(&mut context, 0, 0));
    if let Some(seed) = seed {
        larder_stand_in_schedule(1, seed);
    }
    (guard, context)
}

pub(crate) fn stream() -> usize {
    let mut stream = 0;
    ok(cuStreamCreate(&mut stream, c::STREAM_NON_BLOCKING));
    stream
}

pub(crate) fn event() -> usize {
    let mut event = 0;
    ok(cuEventCreate(&mut event, 0));
    event
}

pub(crate) fn alloc() -> u64 {
    let mut at = 0;
    ok(cuMemAlloc_v2(&mut at, 16));
    at
}

pub(crate) fn fill(at: u64, value: u8, stream: usize) -> Code {
    cuMemsetD8Async(at, value, 16, stream)
}

pub(crate) fn copy(to: u64, from: u64, stream: usize) -> Code {
    cuMemcpyDtoDAsync_v2(to, from, 16, stream)
}

pub(crate) fn read(at: u64) -> u8 {
    let bytes = common::read(at, 16);
    assert_eq!(bytes, [bytes[0]; 16]);
    bytes[0]
}

pub(crate) fn record(event: usize, stream: usize) -> Code {
    cuEventRecord(event, stream)
}

pub(crate) fn wait(stream: usize, event: usize) -> Code {
    cuStreamWaitEvent(stream, event, 0)
}

pub(crate) fn sync(stream: usize) -> Code {
    cuStreamSynchronize(stream)
}

pub(crate) fn capture(stream: usize, mode: u32) {
    ok(cuStreamBeginCapture_v2(stream, mode));
}

pub(crate) fn end(stream: usize) -> Result<usize, Code> {
    let mut graph = 1;
    let code = cuStreamEndCapture(stream, &mut graph);
    assert_eq!(code == Code::SUCCESS, graph != 0);
    code.check()?;
    Ok(graph)
}

pub(crate) fn status(stream: usize) -> Result<u32, Code> {
    let mut status = 9;
    cuStreamIsCapturing(stream, &mut status).check()?;
    Ok(status)
}

pub(crate) fn ready(graph: usize) -> usize {
    let mut exec = 0;
    ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

pub(crate) fn nodes(graph: usize) -> usize {
    let mut count = 0;
    ok(cuGraphGetNodes(graph, null_mut(), &mut count));
    count
}

pub(crate) const GLOBAL: u32 = c::CAPTURE_MODE_GLOBAL;
pub(crate) const LOCAL: u32 = c::CAPTURE_MODE_THREAD_LOCAL;
pub(crate) const RELAXED: u32 = c::CAPTURE_MODE_RELAXED;
