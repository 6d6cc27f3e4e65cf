//! What buffers need of an allocator: lanes of streams, one stream after another, and the host after
//! a stream.

use std::sync::Arc;

use cudarc::driver::{self as cuda, CudaStream, sys};
use larder_core::{Block, Lane, Stamp};

use super::{DeviceAllocError, DeviceAllocator};

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
        self.lane_of(stream).map(drop)
    }

    /// The stream's lane; it gets one if it has none.
    pub(crate) fn lane_of(&self, stream: &Arc<CudaStream>) -> Result<Lane, DeviceAllocError> {
        self.0.streams.lane(stream)
    }

    /// The stream's lane, if it has one.
    pub(crate) fn known_lane(&self, stream: &CudaStream) -> Option<Lane> {
        self.0.streams.known(stream).ok().flatten()
    }

    /// Stands for all that is queued on the lane now.
    pub(crate) fn stamp_now(&self, lane: Lane) -> Stamp {
        self.0.streams.stamp(lane)
    }

    /// Makes later work of the stream, whose lane is given, wait for a stamp: on the device, or on the
    /// host where a capture or the driver forbids that.
    ///
    /// # Errors
    /// If that is refused too.
    pub(crate) fn order_lane(
        &self,
        stream: &CudaStream,
        lane: Lane,
        after: Stamp,
    ) -> Result<Ordered, cuda::DriverError> {
        if self.0.streams.order(stream, lane, after) == Ok(true) {
            return Ok(Ordered::Yes);
        }
        let Some(before) = self.0.streams.stream(after.lane) else {
            return Ok(Ordered::Yes);
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

    /// Waits on the host for all that is queued on the lane now.
    ///
    /// # Errors
    /// If the driver refuses, as it does while the stream captures.
    pub(crate) fn wait_for_lane(&self, lane: Lane) -> Result<(), cuda::DriverError> {
        let stream = self.0.streams.stream(lane);
        stream.map_or(Ok(()), |stream| self.wait_for(&stream))
    }

    /// Whether work queued on the stream becomes part of a graph.
    pub(crate) fn captures(&self, stream: &CudaStream) -> bool {
        self.0.streams.captures(stream) == Ok(true)
    }

    /// Takes a block back that these lanes used; it goes to `home`. Never refused for a block of ours.
    /// O(lanes), no driver call.
    pub(crate) fn free_on_lanes(
        &self,
        home: Lane,
        others: impl Iterator<Item = Lane>,
        block: Block,
    ) {
        let inner = &*self.0;
        let bytes = block.bytes();
        let mut others: Vec<_> = others.map(|lane| inner.streams.stamp(lane)).collect();
        let of_a_window = inner.is_of_a_window(&block);
        if others.is_empty() || of_a_window {
            let freed = if of_a_window {
                others.push(inner.streams.stamp(home));
                inner.free_in_window(&others, block)
            } else {
                inner.free_on(home, block)
            };
            debug_assert!(freed.is_ok(), "a block of this allocator");
        } else {
            inner.parked.park(block, inner.streams.stamp(home), others);
        }
        if inner.motion.is_on() {
            self.freed_in_motion_on(home, bytes);
        }
    }

    fn wait_for(&self, stream: &CudaStream) -> Result<(), cuda::DriverError> {
        if self.context().wait_for(stream).is_ok() {
            return Ok(());
        }
        // Once more through cudarc, for its words.
        stream.synchronize()
    }
}
