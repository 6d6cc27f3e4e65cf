//! What buffers need of an allocator: numbers of streams, one stream after another, and the host after
//! a stream.

use std::sync::Arc;

use cudarc::driver::{self as cuda, CudaStream, sys};
use larder_core::{Block, StreamId, StreamPoint};

use super::{DeviceAllocError, DeviceAllocator};
use crate::DriverError;
use crate::stream::pool::{Streams, WantedBy};

/// Whether later work of a stream comes after that of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ordered {
    /// It does.
    Yes,
    /// Both streams capture: the program forks and joins by events of its own.
    ByProgram,
}

impl DeviceAllocator {
    /// Makes the stream known, as its first allocation would: from then on, buffers that other streams
    /// wrote are ordered before its work on the device, and not by waits of the host.
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`].
    pub fn add_stream(&self, stream: &Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.known_streams().id(stream).map(drop)
    }

    /// Lets go a stream that its owner is about to destroy: one that cudarc wraps, and does not own
    /// (`wrap_borrowed_stream`). Streams of cudarc's own need no such word: they are let go when only
    /// allocators hold them. The work that is queued on the stream now still counts.
    ///
    /// # Errors
    /// [`DeviceAllocError::StreamHeld`] if a buffer, a step, a window or another clone holds the stream;
    /// [`DeviceAllocError::Capturing`]; if the driver refuses. The stream is still known then.
    pub fn forget_stream(&self, stream: Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.0.pool.streams().forget(stream)
    }

    /// Blocks the host until all work of the context is done, also work of streams that the allocator does not know.
    /// One driver call for each known stream, and the wait.
    ///
    /// # Errors
    /// If a stream that the allocator knows captures: the wait would spoil the capture, and is not made. If the
    /// driver refuses, or work failed. The capture of a stream that it does not know is spoilt.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.known_streams().wait_for_context()
    }

    /// The streams that it knows: their numbers, and points of their work.
    pub(crate) fn known_streams(&self) -> &Streams {
        self.0.pool.streams()
    }

    /// Makes later work of the stream, whose number is given, wait for a point: on the device, or on the
    /// host where a capture or the driver forbids that.
    ///
    /// # Errors
    /// If that is refused too.
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
        // To wait for a stream that captures would only spoil the capture.
        if self.captures(stream) {
            return Ok(Ordered::ByProgram);
        }
        let code = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        Err(cuda::DriverError(code))
    }

    /// Waits on the host for all that is queued on the stream now.
    ///
    /// # Errors
    /// If the driver refuses, as it does while the stream captures.
    pub(crate) fn wait_for_stream(&self, stream_id: StreamId) -> Result<(), cuda::DriverError> {
        let streams = self.0.pool.streams();
        match streams.stream(stream_id) {
            Some(stream) => self.wait_for(&stream),
            // It was let go: its last event stands for all of it.
            None => streams.wait_for(stream_id).map(drop).or_else(|_| {
                // Once more through cudarc, for its words.
                self.context().cudarc().synchronize()
            }),
        }
    }

    /// Whether work queued on the stream becomes part of a graph.
    pub(crate) fn captures(&self, stream: &CudaStream) -> bool {
        self.0.pool.streams().captures(stream) == Ok(true)
    }

    /// Refuses memory for a stream that captures, where captures are checked.
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`], and if the driver refuses to say.
    pub(crate) fn refuse_capture(&self, stream: &CudaStream) -> Result<(), DeviceAllocError> {
        self.0.refuse_capture(stream)
    }

    /// Takes a block back that these streams used; the stream `freed_on` gets it again soonest. Never
    /// refused for a block of ours. O(streams), no driver call.
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
        // Once more through cudarc, for its words.
        stream.synchronize()
    }
}
