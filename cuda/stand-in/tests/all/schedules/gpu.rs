//! The stand-in's functions, linked in, and a few words to write programs with.

use std::ffi::c_void;
use std::sync::MutexGuard;

use crate::common::{alone, findings, made, ok, read};
use crate::driver::{
    cuCtxSetCurrent, cuCtxSynchronize, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRetain,
    cuEventCreate, cuEventRecord, cuEventSynchronize, cuInit, cuLaunchHostFunc, cuMemAlloc_v2,
    cuMemcpyDtoDAsync_v2, cuMemsetD8Async, cuStreamCreate, cuStreamSynchronize, cuStreamWaitEvent,
    larder_stand_in_clear_findings, larder_stand_in_reset, larder_stand_in_schedule,
};

/// Length of each buffer.
pub(crate) const BYTES: usize = 64;

const NON_BLOCKING: u32 = 1;

/// The device with a program's streams, buffers and events.
pub(crate) struct Gpu {
    pub(crate) streams: Vec<usize>,
    buffers: Vec<u64>,
    events: Vec<usize>,
    _one: MutexGuard<'static, ()>,
}

impl Gpu {
    /// A fresh device; the buffers are zero. The streams do not wait for the default stream, which
    /// is number `streams`.
    pub(crate) fn new(streams: usize, buffers: usize, events: usize) -> Self {
        let one = alone();
        larder_stand_in_reset(1, 1 << 30);
        ok(cuInit(0));
        let context = made(|context| cuDevicePrimaryCtxRetain(context, 0));
        ok(cuCtxSetCurrent(context));
        let mut all: Vec<usize> = (0..streams)
            .map(|_| made(|stream| cuStreamCreate(stream, NON_BLOCKING)))
            .collect();
        all.push(0);
        let buffers = (0..buffers)
            .map(|_| made(|at| cuMemAlloc_v2(at, BYTES)))
            .collect();
        Self {
            streams: all,
            buffers,
            events: (0..events)
                .map(|_| made(|event| cuEventCreate(event, 2)))
                .collect(),
            _one: one,
        }
    }

    /// Starts a run in a deferred order: all buffers are zero, nothing is queued.
    pub(crate) fn start(&self, seed: u64) {
        larder_stand_in_schedule(0, 0);
        ok(cuCtxSynchronize());
        for buffer in &self.buffers {
            ok(cuMemsetD8Async(*buffer, 0, BYTES, 0));
        }
        ok(cuCtxSynchronize());
        larder_stand_in_clear_findings();
        larder_stand_in_schedule(1, seed);
    }

    /// Fills part of a buffer.
    pub(crate) fn fill(&self, buffer: usize, from: usize, bytes: usize, value: u8, stream: usize) {
        let at = self.buffers[buffer] + from as u64;
        ok(cuMemsetD8Async(at, value, bytes, self.streams[stream]));
    }

    /// Copies part of a buffer to the same place of another.
    pub(crate) fn copy(&self, to: usize, from: usize, at: usize, bytes: usize, stream: usize) {
        let (to, from) = (self.buffers[to] + at as u64, self.buffers[from] + at as u64);
        ok(cuMemcpyDtoDAsync_v2(to, from, bytes, self.streams[stream]));
    }

    pub(crate) fn record(&self, event: usize, stream: usize) {
        ok(cuEventRecord(self.events[event], self.streams[stream]));
    }

    pub(crate) fn wait(&self, stream: usize, event: usize) {
        ok(cuStreamWaitEvent(
            self.streams[stream],
            self.events[event],
            0,
        ));
    }

    pub(crate) fn sync(&self, stream: usize) {
        ok(cuStreamSynchronize(self.streams[stream]));
    }

    pub(crate) fn sync_event(&self, event: usize) {
        ok(cuEventSynchronize(self.events[event]));
    }

    pub(crate) fn host(&self, stream: usize, function: extern "C" fn(*mut c_void)) {
        ok(cuLaunchHostFunc(self.streams[stream], Some(function), 0));
    }

    /// A buffer as the host reads it by a copy on the default stream, which waits for nothing but
    /// what is queued there.
    pub(crate) fn read(&self, buffer: usize) -> Vec<u8> {
        read(self.buffers[buffer], BYTES)
    }

    /// All buffers at the end.
    pub(crate) fn finish(&self) -> Vec<Vec<u8>> {
        ok(cuCtxSynchronize());
        (0..self.buffers.len())
            .map(|index| self.read(index))
            .collect()
    }

    /// What the driver found to be wrong.
    pub(crate) fn findings(&self) -> String {
        findings()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        larder_stand_in_schedule(0, 0);
        cuDevicePrimaryCtxRelease_v2(0);
    }
}
