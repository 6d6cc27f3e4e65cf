//! The thread's capture mode, which is relaxed for calls that would invalidate captures otherwise.
//!
//! While a stream is being captured in the global mode, any thread that queries an event invalidates the
//! capture, and the capture's owner learns of it only at the end (pytorch#104487, pytorch#148594). Waits and
//! plain allocations do the same. A thread in the relaxed mode may make these calls, so the thread enters that
//! mode for one such call, or for several.

use core::cell::Cell;

use larder_cuda_abi::constants::CAPTURE_MODE_RELAXED;

use super::{Driver, DriverError};

/// State of this thread's mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CaptureMode {
    /// The mode is the thread's own.
    Own,
    /// The first call that needs the relaxed mode will enter it.
    Pending,
    /// The mode is relaxed; `before` is the one to restore.
    Relaxed { before: u32 },
}

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Own) };
}

/// Restores the thread's previous mode when dropped.
struct PreviousMode<'a>(&'a Driver);

impl Drop for PreviousMode<'_> {
    fn drop(&mut self) {
        if let CaptureMode::Relaxed { before } = MODE.replace(CaptureMode::Own) {
            // If the driver refuses twice, the thread stays in the relaxed mode, which invalidates no capture.
            let put_back = || self.0.exchange_capture_mode(before);
            let _ = put_back().or_else(|_| put_back());
        }
    }
}

impl Driver {
    /// Runs calls that are prohibited during a capture, without invalidating any thread's captures. Costs two
    /// driver calls, or none inside another such call.
    ///
    /// # Errors
    /// If the thread's mode cannot be changed, in which case `act` does not run; the errors of `act`.
    pub(crate) fn relaxed<R>(
        &self,
        act: impl FnOnce() -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        self.relaxed_once(|| {
            if MODE.get() == CaptureMode::Pending {
                let before = self.exchange_capture_mode(CAPTURE_MODE_RELAXED)?;
                MODE.set(CaptureMode::Relaxed { before });
            }
            act()
        })
    }

    /// Runs `act`, which may make several [such calls](Self::relaxed). The first of them changes the thread's
    /// mode, which is restored when `act` ends. Costs two driver calls, or none if there are no such calls.
    pub(crate) fn relaxed_once<R>(&self, act: impl FnOnce() -> R) -> R {
        if MODE.get() != CaptureMode::Own {
            return act();
        }
        MODE.set(CaptureMode::Pending);
        let _put_back = PreviousMode(self);
        act()
    }

    /// Sets the thread's capture mode and returns the previous one.
    fn exchange_capture_mode(&self, mode: u32) -> Result<u32, DriverError> {
        let entry = self.api.cuThreadExchangeStreamCaptureMode;
        let mut mode = mode;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut mode) };
        entry.check(code)?;
        Ok(mode)
    }
}
