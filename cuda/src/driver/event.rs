//! [`Event`]: a point in a stream's order that the host and other streams can wait for.

use core::fmt;

use cudarc::driver::CudaStream;
use larder_cuda_abi::{Code, EventHandle, StreamHandle, constants};

use super::context::Context;
use super::refused_free::RefusedFree;
use super::{Driver, DriverError};

/// Configuration of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventConfig {
    /// Whether the event records the time, which makes it slower.
    pub timing: bool,
    /// Whether threads sleep while they wait for the event.
    pub blocking: bool,
}

impl EventConfig {
    const fn flags(self) -> u32 {
        let timing = if self.timing {
            0
        } else {
            constants::EVENT_DISABLE_TIMING
        };
        let blocking = if self.blocking {
            constants::EVENT_BLOCKING_SYNC
        } else {
            0
        };
        timing | blocking
    }
}

/// An event of the driver. It may be dropped while work waits for it. If the driver refuses the free, it is
/// retried later ([`Context::refused_frees`]).
pub struct Event {
    context: Context,
    handle: EventHandle,
}

impl Event {
    /// Makes an event that has recorded nothing and counts as done. One driver call.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn new(context: &Context, config: EventConfig) -> Result<Self, DriverError> {
        let handle = context.try_current(|driver| driver.create_event(config.flags()))?;
        Ok(Self {
            context: context.clone(),
            handle,
        })
    }

    /// Returns the driver's handle, which the event still owns.
    pub const fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Records the work queued on the stream so far.
    ///
    /// # Errors
    /// If the driver refuses, as it does for a stream of another context.
    pub fn record(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.context.try_on(stream, |driver, stream| {
            // SAFETY: `self` keeps the event alive, and the reference keeps the stream alive.
            unsafe { driver.record_event(self.handle, stream) }
        })
    }

    /// Returns whether the recorded work is done.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub fn query(&self) -> Result<bool, DriverError> {
        self.context.try_current(|driver| {
            // SAFETY: the event exists as long as `self`.
            unsafe { driver.query_event(self.handle) }
        })
    }

    /// Waits for the recorded work.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.context.try_current(|driver| {
            // SAFETY: the event exists as long as `self`.
            unsafe { driver.synchronize_event(self.handle) }
        })
    }

    /// Makes work queued on the stream from now on wait for the recorded work. The stream may belong to
    /// another context.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn wait_on(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.context.try_on(stream, |driver, stream| {
            // SAFETY: `self` keeps the event alive, and the reference keeps the stream alive.
            unsafe { driver.wait_event(stream, self.handle) }
        })
    }

    /// Returns the milliseconds from this event to a later one. Both must record the time and be done.
    ///
    /// # Errors
    /// If the driver refuses, as it does for an event that records no time or is not done.
    pub fn elapsed_ms(&self, later: &Self) -> Result<f32, DriverError> {
        self.context.try_current(|driver| {
            // SAFETY: both events exist as long as they are borrowed.
            unsafe { driver.elapsed_ms(self.handle, later.handle) }
        })
    }
}

impl Event {
    /// Returns the driver's handle, which the caller must free.
    pub(crate) fn into_handle(self) -> EventHandle {
        let this = core::mem::ManuallyDrop::new(self);
        // Drops the context.
        // SAFETY: `this` is not used again, so the context is dropped once.
        drop(unsafe { core::ptr::read(&raw const this.context) });
        this.handle
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.give_back(RefusedFree::Event(self.handle));
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.handle).finish()
    }
}

impl Driver {
    /// Makes an event of the current context; `flags` are bits of `EVENT_…`.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn create_event(&self, flags: u32) -> Result<EventHandle, DriverError> {
        let entry = self.api.cuEventCreate;
        let mut event = EventHandle::NULL;
        // SAFETY: DRIVER1; the handle outlives the call.
        let code = unsafe { (entry.call)(&raw mut event, flags) };
        entry.check(code)?;
        Ok(event)
    }

    /// Frees an event; waits that are already queued still work.
    ///
    /// # Safety
    /// The event came from [`create_event`](Self::create_event) and has not been freed.
    ///
    /// # Errors
    /// If the driver refuses, in which case the event still exists.
    pub unsafe fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        let entry = self.api.cuEventDestroy_v2;
        // SAFETY: DRIVER1; the event came from the driver, and is destroyed once.
        let code = unsafe { (entry.call)(event) };
        entry.check(code)
    }

    /// Records the work queued on the stream so far.
    ///
    /// # Safety
    /// The event and the stream exist.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn record_event(
        &self,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let entry = self.api.cuEventRecord;
        // SAFETY: DRIVER1; the event and the stream exist.
        let code = unsafe { (entry.call)(event, stream) };
        entry.check(code)
    }

    /// Returns whether the recorded work is done.
    ///
    /// # Safety
    /// The event exists.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub unsafe fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        let entry = self.api.cuEventQuery;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the event exists.
            Ok(unsafe { (entry.call)(event) })
        })?;
        match code {
            Code::NOT_READY => Ok(false),
            other => entry.check(other).map(|()| true),
        }
    }

    /// Waits for the recorded work.
    ///
    /// # Safety
    /// The event exists.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub unsafe fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        let entry = self.api.cuEventSynchronize;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the event exists.
            Ok(unsafe { (entry.call)(event) })
        })?;
        entry.check(code)
    }

    /// Returns the milliseconds between two events.
    ///
    /// # Safety
    /// Both events exist.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn elapsed_ms(
        &self,
        start: EventHandle,
        end: EventHandle,
    ) -> Result<f32, DriverError> {
        let entry = self.api.cuEventElapsedTime;
        let mut ms = 0.0;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; both events exist; the number outlives the call.
            Ok(unsafe { (entry.call)(&raw mut ms, start, end) })
        })?;
        entry.check(code)?;
        Ok(ms)
    }
}
