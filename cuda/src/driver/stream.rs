//! The stream calls that memory needs: queries, waits and capture status.
//!
//! The streams are cudarc's. In a call, a default stream is the default stream of the current context.

use core::ptr::null_mut;

use cudarc::driver::CudaStream;
use larder_cuda_abi::{Code, ContextHandle, EventHandle, StreamHandle, constants};

use super::context::Context;
use super::{Driver, DriverError};

/// Whether work queued on a stream runs or becomes part of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CaptureStatus {
    /// Work runs.
    None,
    /// Work becomes part of a graph.
    Active,
    /// An error invalidated the capture.
    Invalidated,
    /// A state unknown to this crate, as the driver's number.
    Other(u32),
}

impl CaptureStatus {
    const fn of(number: u32) -> Self {
        match number {
            constants::CAPTURE_STATUS_NONE => Self::None,
            constants::CAPTURE_STATUS_ACTIVE => Self::Active,
            constants::CAPTURE_STATUS_INVALIDATED => Self::Invalidated,
            other => Self::Other(other),
        }
    }
}

impl Context {
    /// Returns whether the work queued on a stream is done.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub fn is_done(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        self.try_on(stream, |driver, stream| {
            // SAFETY: the reference keeps the stream alive.
            unsafe { driver.query_stream(stream) }
        })
    }

    /// Waits for the work queued on a stream.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub fn wait_for(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.try_on(stream, |driver, stream| {
            // SAFETY: the reference keeps the stream alive.
            unsafe { driver.synchronize_stream(stream) }
        })
    }

    /// Returns the driver's own number for a stream, which is unique in the process. A stream's handle, in
    /// contrast, may be reused for another stream.
    ///
    /// # Errors
    /// If the driver refuses or is older than 12.0.
    pub fn stream_number(&self, stream: &CudaStream) -> Result<u64, DriverError> {
        self.try_on(stream, |driver, stream| {
            // SAFETY: the reference keeps the stream alive.
            unsafe { driver.stream_number(stream) }
        })
    }

    /// Returns whether work queued on a stream becomes part of a graph.
    ///
    /// # Errors
    /// If the driver refuses, as it does for the legacy stream while another stream is being captured.
    pub fn capture_status(&self, stream: &CudaStream) -> Result<CaptureStatus, DriverError> {
        self.try_on(stream, |driver, stream| {
            // SAFETY: the reference keeps the stream alive.
            unsafe { driver.capture_status(stream) }
        })
    }

    /// Returns whether work queued on a stream becomes part of a graph. The stream is no default stream, so
    /// its handle implies its context, and this takes one driver call.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn status_of_own(&self, stream: &CudaStream) -> Result<CaptureStatus, DriverError> {
        let handle = StreamHandle(stream.cu_stream().addr());
        // SAFETY: the reference keeps the stream alive.
        match unsafe { self.driver().capture_status(handle) } {
            // CUDA does not document this error. After it, query the stream like a default stream.
            Err(error) if error.code() == Some(Code::INVALID_CONTEXT) => {
                self.capture_status(stream)
            }
            status => status,
        }
    }

    /// Returns whether work queued on a stream becomes part of a graph, and the number of the capture, which
    /// is unique in the process.
    ///
    /// # Errors
    /// If the driver refuses, as it does for the legacy stream while another stream is being captured, or is
    /// older than 11.3.
    pub fn capture_id(&self, stream: &CudaStream) -> Result<(CaptureStatus, u64), DriverError> {
        self.try_on(stream, |driver, stream| {
            // SAFETY: the reference keeps the stream alive.
            unsafe { driver.capture_id(stream) }
        })
    }
}

impl Driver {
    /// Returns the driver's own number for a stream.
    ///
    /// # Safety
    /// The stream exists.
    ///
    /// # Errors
    /// If the driver refuses or is older than 12.0.
    pub unsafe fn stream_number(&self, stream: StreamHandle) -> Result<u64, DriverError> {
        let entry = self.optional(&self.api.cuStreamGetId)?;
        let mut number = 0;
        // SAFETY: DRIVER1; the stream exists; the number outlives the call.
        let code = unsafe { (entry.call)(stream, &raw mut number) };
        entry.check(code)?;
        Ok(number)
    }

    /// Returns the context of a stream: the one that was current when the stream was created, or for a
    /// default stream the calling thread's current context.
    ///
    /// # Safety
    /// The stream exists.
    ///
    /// # Errors
    /// If the driver refuses, as it does for a default stream without a current context.
    pub unsafe fn stream_context(
        &self,
        stream: StreamHandle,
    ) -> Result<ContextHandle, DriverError> {
        let entry = self.api.cuStreamGetCtx;
        let mut context = ContextHandle::NULL;
        // SAFETY: DRIVER1; the stream exists; the handle outlives the call.
        let code = unsafe { (entry.call)(stream, &raw mut context) };
        entry.check(code)?;
        Ok(context)
    }

    /// Waits for the work queued on a stream.
    ///
    /// # Safety
    /// The stream exists.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let entry = self.api.cuStreamSynchronize;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the stream exists.
            Ok(unsafe { (entry.call)(stream) })
        })?;
        entry.check(code)
    }

    /// Returns whether the work queued on a stream is done.
    ///
    /// # Safety
    /// The stream exists.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub unsafe fn query_stream(&self, stream: StreamHandle) -> Result<bool, DriverError> {
        let entry = self.api.cuStreamQuery;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the stream exists.
            Ok(unsafe { (entry.call)(stream) })
        })?;
        match code {
            Code::NOT_READY => Ok(false),
            other => entry.check(other).map(|()| true),
        }
    }

    /// Makes work queued on the stream from now on wait for the event's most recent recording.
    ///
    /// # Safety
    /// The stream and the event exist.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn wait_event(
        &self,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Result<(), DriverError> {
        let entry = self.api.cuStreamWaitEvent;
        // SAFETY: DRIVER1; the stream and the event exist.
        let code = unsafe { (entry.call)(stream, event, 0) };
        entry.check(code)
    }

    /// Returns whether work queued on a stream becomes part of a graph.
    ///
    /// # Safety
    /// The stream exists.
    ///
    /// # Errors
    /// If the driver refuses, as it does for the legacy stream while another stream is being captured.
    pub unsafe fn capture_status(
        &self,
        stream: StreamHandle,
    ) -> Result<CaptureStatus, DriverError> {
        let entry = self.api.cuStreamIsCapturing;
        let mut status = 0;
        // SAFETY: DRIVER1; the stream exists; the number outlives the call.
        let code = unsafe { (entry.call)(stream, &raw mut status) };
        entry.check(code)?;
        Ok(CaptureStatus::of(status))
    }

    /// Returns whether work queued on a stream becomes part of a graph, and the number of the capture, which
    /// is unique in the process.
    ///
    /// # Safety
    /// The stream exists.
    ///
    /// # Errors
    /// If the driver refuses, as it does for the legacy stream while another stream is being captured, or is
    /// older than 11.3.
    pub unsafe fn capture_id(
        &self,
        stream: StreamHandle,
    ) -> Result<(CaptureStatus, u64), DriverError> {
        let entry = self.optional(&self.api.cuStreamGetCaptureInfo_v2)?;
        let (mut status, mut id) = (0, 0);
        let none = (null_mut(), null_mut(), null_mut());
        // SAFETY: DRIVER1; the stream exists; both numbers outlive the call, and the rest may be null.
        let code =
            unsafe { (entry.call)(stream, &raw mut status, &raw mut id, none.0, none.1, none.2) };
        entry.check(code)?;
        Ok((CaptureStatus::of(status), id))
    }
}
