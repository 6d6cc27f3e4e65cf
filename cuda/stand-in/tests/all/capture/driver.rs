//! The driver's functions, and shorter ones over them.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::MutexGuard;

use larder_cuda_abi::{Code, constants as c};

use crate::common::alone;
pub(crate) use crate::common::{alive, findings, ok};

unsafe extern "C" {
    pub(crate) fn cuInit(flags: u32) -> Code;
    pub(crate) fn cuCtxCreate_v2(context: *mut usize, flags: u32, device: i32) -> Code;
    pub(crate) fn cuCtxSetCurrent(context: usize) -> Code;
    pub(crate) fn cuCtxSynchronize() -> Code;
    pub(crate) fn cuStreamCreate(stream: *mut usize, flags: u32) -> Code;
    pub(crate) fn cuStreamDestroy_v2(stream: usize) -> Code;
    pub(crate) fn cuStreamSynchronize(stream: usize) -> Code;
    pub(crate) fn cuStreamQuery(stream: usize) -> Code;
    pub(crate) fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> Code;
    pub(crate) fn cuEventCreate(event: *mut usize, flags: u32) -> Code;
    pub(crate) fn cuEventRecord(event: usize, stream: usize) -> Code;
    pub(crate) fn cuEventQuery(event: usize) -> Code;
    pub(crate) fn cuMemAlloc_v2(at: *mut u64, bytes: usize) -> Code;
    pub(crate) fn cuMemAddressReserve(
        at: *mut u64,
        bytes: usize,
        align: usize,
        wish: u64,
        flags: u64,
    ) -> Code;
    pub(crate) fn cuMemAddressFree(at: u64, bytes: usize) -> Code;
    pub(crate) fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: usize) -> Code;
    pub(crate) fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Code;
    pub(crate) fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code;
    pub(crate) fn cuMemcpyHtoDAsync_v2(
        to: u64,
        from: *const c_void,
        bytes: usize,
        stream: usize,
    ) -> Code;
    pub(crate) fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: usize) -> Code;
    pub(crate) fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> Code;
    pub(crate) fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> Code;
    pub(crate) fn cuStreamIsCapturing(stream: usize, status: *mut u32) -> Code;
    pub(crate) fn cuStreamGetCaptureInfo_v2(
        stream: usize,
        status: *mut u32,
        id: *mut u64,
        graph: *mut usize,
        nodes: *mut *const usize,
        count: *mut usize,
    ) -> Code;
    pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> Code;
    pub(crate) fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) -> Code;
    pub(crate) fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: u64) -> Code;
    pub(crate) fn cuGraphLaunch(exec: usize, stream: usize) -> Code;
    pub(crate) fn cuGraphExecDestroy(exec: usize) -> Code;
    pub(crate) fn cuGraphDestroy(graph: usize) -> Code;
    pub(crate) fn larder_stand_in_reset(devices: u32, bytes: u64);
    pub(crate) fn larder_stand_in_mapping_spoils(on: u32);
    pub(crate) fn larder_stand_in_schedule(deferred: u32, seed: u64);
}

/// A fresh driver with one context of device 0.
pub(crate) fn begin(seed: Option<u64>) -> (MutexGuard<'static, ()>, usize) {
    let guard = alone();
    let mut context = 0;
    unsafe {
        larder_stand_in_reset(1, 64 << 20);
        ok(cuInit(0));
        ok(cuCtxSetCurrent(0));
        ok(cuCtxCreate_v2(&mut context, 0, 0));
        if let Some(seed) = seed {
            larder_stand_in_schedule(1, seed);
        }
    }
    (guard, context)
}

pub(crate) fn stream() -> usize {
    let mut stream = 0;
    ok(unsafe { cuStreamCreate(&mut stream, c::STREAM_NON_BLOCKING) });
    stream
}

pub(crate) fn event() -> usize {
    let mut event = 0;
    ok(unsafe { cuEventCreate(&mut event, 0) });
    event
}

pub(crate) fn alloc() -> u64 {
    let mut at = 0;
    ok(unsafe { cuMemAlloc_v2(&mut at, 16) });
    at
}

pub(crate) fn fill(at: u64, value: u8, stream: usize) -> Code {
    unsafe { cuMemsetD8Async(at, value, 16, stream) }
}

pub(crate) fn copy(to: u64, from: u64, stream: usize) -> Code {
    unsafe { cuMemcpyDtoDAsync_v2(to, from, 16, stream) }
}

pub(crate) fn read(at: u64) -> u8 {
    let mut bytes = [0_u8; 16];
    ok(unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, 16) });
    assert_eq!(bytes, [bytes[0]; 16]);
    bytes[0]
}

pub(crate) fn record(event: usize, stream: usize) -> Code {
    unsafe { cuEventRecord(event, stream) }
}

pub(crate) fn wait(stream: usize, event: usize) -> Code {
    unsafe { cuStreamWaitEvent(stream, event, 0) }
}

pub(crate) fn sync(stream: usize) -> Code {
    unsafe { cuStreamSynchronize(stream) }
}

pub(crate) fn capture(stream: usize, mode: u32) {
    ok(unsafe { cuStreamBeginCapture_v2(stream, mode) });
}

pub(crate) fn end(stream: usize) -> Result<usize, Code> {
    let mut graph = 1;
    let code = unsafe { cuStreamEndCapture(stream, &mut graph) };
    assert_eq!(code == Code::SUCCESS, graph != 0);
    code.check()?;
    Ok(graph)
}

pub(crate) fn status(stream: usize) -> Result<u32, Code> {
    let mut status = 9;
    unsafe { cuStreamIsCapturing(stream, &mut status) }.check()?;
    Ok(status)
}

pub(crate) fn ready(graph: usize) -> usize {
    let mut exec = 0;
    ok(unsafe { cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
    exec
}

pub(crate) fn nodes(graph: usize) -> usize {
    let mut count = 0;
    ok(unsafe { cuGraphGetNodes(graph, null_mut(), &mut count) });
    count
}

pub(crate) const GLOBAL: u32 = c::CAPTURE_MODE_GLOBAL;
pub(crate) const LOCAL: u32 = c::CAPTURE_MODE_THREAD_LOCAL;
pub(crate) const RELAXED: u32 = c::CAPTURE_MODE_RELAXED;
