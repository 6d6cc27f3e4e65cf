//! The parts of an allocator that buffers need: numbers of streams, and waits of a stream or the host for a
//! stream.

use std::sync::Arc;

use cudarc::driver::{self as cuda, CudaStream, sys};
use larder_core::{Block, StreamId, StreamPoint};

use super::{DeviceAllocError, DeviceAllocator};
use crate::DriverError;
use crate::stream::pool::{StreamTable, WantedBy};

/// Whether later work of a stream comes after the work of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ordered {
    /// The later work comes after the other stream's.
    Yes,
    /// Both streams capture, and the program orders them by events of its own.
    ByProgram,
}

impl DeviceAllocator {
    /// Adds a stream, as its first allocation would: from then on, its work is ordered after the writes of
    /// other streams to a buffer on the device, and not by waits of the host.
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`].
    pub fn add_stream(&self, stream: &Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.known_streams().id(stream).map(drop)
    }

    /// Removes a stream that its owner is about to destroy: one that cudarc wraps and does not own
    /// (`wrap_borrowed_stream`). Streams of cudarc's own need no call, since they are removed when only
    /// allocators hold them. The work queued on the stream now still counts.
    ///
    /// # Errors
    /// [`DeviceAllocError::StreamHeld`] if a buffer, a step, a window or another clone holds the stream;
    /// [`DeviceAllocError::Capturing`]; if the driver refuses. The stream is still known then.
    pub fn forget_stream(&self, stream: Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.0.pool.streams().forget(stream)
    }

    /// Blocks the host until all work of the context is done, also work of streams that the allocator does
    /// not know. One driver call for each known stream, and the wait.
    ///
    /// # Errors
    /// If a stream that the allocator knows captures, since the wait would invalidate the capture and is not
    /// made. If the driver refuses, or work failed. The capture of an unknown stream is invalidated.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.known_streams().wait_for_context()
    }

    /// Returns the known streams: their numbers, and points of their work.
    pub(crate) fn known_streams(&self) -> &StreamTable {
        self.0.pool.streams()
    }

    /// Makes later work of the stream, whose number is `stream_id`, wait for a point: on the device, or on
    /// the host if a capture or the driver forbids that.
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
        // A wait for a capturing stream would only invalidate the capture.
        if self.captures(stream) {
            return Ok(Ordered::ByProgram);
        }
        let code = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        Err(cuda::DriverError(code))
    }

    /// Waits on the host for all work queued on the stream now.
    ///
    /// # Errors
    /// If the driver refuses, as it does while the stream captures.
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

    /// Refuses memory for a stream that captures, if captures are checked.
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`], and if the driver refuses the query.
    pub(crate) fn refuse_capture(&self, stream: &CudaStream) -> Result<(), DeviceAllocError> {
        self.0.refuse_capture(stream)
    }

    /// Frees a block that these streams used; `freed_on` can reuse it first. Never refused for a block of
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
