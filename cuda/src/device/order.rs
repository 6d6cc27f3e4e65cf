//! The methods of an allocator that buffers need: stream numbers, and waits of a stream or of the host for
//! another stream.

use std::sync::Arc;

use cudarc::driver::{self as cuda, CudaStream, sys};
use larder_core::{Block, StreamId, StreamPoint};

use super::{DeviceAllocError, DeviceAllocator};
use crate::DriverError;
use crate::stream::pool::{StreamTable, WantedBy};

/// Whether later work of a stream comes after the work of another stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ordered {
    /// The later work comes after the other stream's.
    Yes,
    /// Both streams are being captured, and the program orders them with its own events.
    ByProgram,
}

impl DeviceAllocator {
    /// Adds a stream, as its first allocation would. From then on, the device itself orders the stream's work
    /// after the writes of other streams to a buffer, and the host need not wait.
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`].
    pub fn add_stream(&self, stream: &Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.known_streams().id(stream).map(drop)
    }

    /// Removes a stream that its owner is about to destroy: a stream that cudarc wraps but does not own
    /// (`wrap_borrowed_stream`). Streams that cudarc owns need no call, since they are removed once only
    /// allocators hold them. Work that is already queued on the stream is still taken into account.
    ///
    /// # Errors
    /// [`DeviceAllocError::StreamHeld`] if a buffer, a step, a window or another clone holds the stream;
    /// [`DeviceAllocError::Capturing`]; or the driver's refusal. The allocator then still knows the stream.
    pub fn forget_stream(&self, stream: Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.0.pool.streams().forget(stream)
    }

    /// Blocks the host until all work of the context is done, including work of streams that the allocator does
    /// not know. Makes one driver call for each known stream, then waits.
    ///
    /// # Errors
    /// If a known stream is being captured: there is no wait, since it would invalidate the capture. If the
    /// driver refuses, or work has failed. A wait invalidates the capture of an unknown stream.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.known_streams().wait_for_context()
    }

    /// Returns the known streams: their numbers, and points of their work.
    pub(crate) fn known_streams(&self) -> &StreamTable {
        self.0.pool.streams()
    }

    /// Makes later work of `stream`, whose number is `stream_id`, wait for a point: on the device, or on the
    /// host if a capture or the driver forbids that.
    ///
    /// # Errors
    /// If both are refused.
    pub(crate) fn order_stream_id(
        &self,
        stream: &CudaStream,
        stream_id: StreamId,
        after: StreamPoint,
    ) -> Result<Ordered, cuda::DriverError> {
        let streams = self.0.pool.streams();
        if streams.order(stream, stream_id, after, WantedBy::Program) == Ok(true) {
            return Ok(Ordered::Yes);
        }
        let Some(before) = streams.stream(after.stream) else {
            return self.wait_for_stream(after.stream).map(|()| Ordered::Yes);
        };
        if !self.captures(&before) {
            return self.wait_for(&before).map(|()| Ordered::Yes);
        }
        // Waiting for a stream that is being captured would only invalidate the capture.
        if self.captures(stream) {
            return Ok(Ordered::ByProgram);
        }
        let code = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        Err(cuda::DriverError(code))
    }

    /// Blocks the host until all work queued on the stream so far is done.
    ///
    /// # Errors
    /// If the driver refuses, as it does while the stream is being captured.
    pub(crate) fn wait_for_stream(&self, stream_id: StreamId) -> Result<(), cuda::DriverError> {
        let streams = self.0.pool.streams();
        match streams.stream(stream_id) {
            Some(stream) => self.wait_for(&stream),
            // The stream was removed, so its last event covers all of its work.
            None => streams.wait_for(stream_id).map(drop).or_else(|_| {
                // Repeats the wait through cudarc, for its error.
                self.context().cudarc().synchronize()
            }),
        }
    }

    /// Returns whether work queued on the stream becomes part of a graph.
    pub(crate) fn captures(&self, stream: &CudaStream) -> bool {
        self.0.pool.streams().captures(stream) == Ok(true)
    }

    /// Refuses memory for a stream that is being captured, if captures are checked.
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`], and if the driver refuses the query.
    pub(crate) fn refuse_capture(&self, stream: &CudaStream) -> Result<(), DeviceAllocError> {
        self.0.refuse_capture(stream)
    }

    /// Frees a block that these streams used. The stream `freed_on` can reuse it first. Never refused for a block of
    /// this allocator. O(streams), no driver call.
    pub(crate) fn free_on_stream_ids(
        &self,
        freed_on: StreamId,
        others: impl Iterator<Item = StreamId>,
        block: Block,
    ) {
        let inner = &*self.0;
        let bytes = block.bytes();
        let mut others: Vec<_> = others
            .map(|stream_id| inner.pool.streams().point(stream_id))
            .collect();
        let of_a_window = inner.is_of_a_window(&block);
        if others.is_empty() || of_a_window {
            let freed = if of_a_window {
                others.push(inner.pool.streams().point(freed_on));
                inner.free_in_window(&others, block)
            } else {
                inner.free_on(freed_on, block)
            };
            debug_assert!(freed.is_ok(), "a block of this allocator");
        } else {
            inner
                .deferred
                .defer(block, inner.pool.streams().point(freed_on), others);
        }
        inner.came_back_on(freed_on, bytes);
    }

    fn wait_for(&self, stream: &CudaStream) -> Result<(), cuda::DriverError> {
        if self.context().wait_for(stream).is_ok() {
            return Ok(());
        }
        // Repeats the wait through cudarc, for its error.
        stream.synchronize()
    }
}
