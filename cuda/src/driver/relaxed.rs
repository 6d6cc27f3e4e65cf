//! Calls that spoil captures, made so that they spoil none.
//!
//! While a stream captures in the global mode, a query of an event spoils the capture, whichever thread
//! asks, and the owner learns of it at the end of the capture (pytorch#104487, pytorch#148594). So do waits
//! and plain allocations. A thread in the relaxed mode may make these calls. So it is in that mode for the
//! length of such a call, or of many.

use core::cell::Cell;

use larder_cuda_abi::constants::CAPTURE_MODE_RELAXED;

use super::{Driver, DriverError};

/// What this thread does about its mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nothing: it has whatever mode it has.
    Own,
    /// The first call that needs the relaxed mode changes it.
    Pending,
    /// It is relaxed, and was in this mode before.
    Relaxed { before: u32 },
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Own) };
}

/// The thread's mode of before comes back when this is dropped.
struct PreviousMode<'a>(&'a Driver);

impl Drop for PreviousMode<'_> {
    fn drop(&mut self) {
        if let Mode::Relaxed { before } = MODE.replace(Mode::Own) {
            // A driver that refuses twice leaves the thread relaxed, which spoils nothing of anybody.
            let put_back = || self.0.exchange_capture_mode(before);
            let _ = put_back().or_else(|_| put_back());
        }
    }
}

impl Driver {
    /// Runs calls that are not allowed during a capture so that they spoil none, neither of this thread nor
    /// of another. Two driver calls; none inside of another such call.
    ///
    /// # Errors
    /// If the thread's mode cannot be changed; `act` did not run then. The errors of `act`.
    pub(crate) fn relaxed<R>(
        &self,
        act: impl FnOnce() -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        self.relaxed_once(|| {
            if MODE.get() == Mode::Pending {
                let before = self.exchange_capture_mode(CAPTURE_MODE_RELAXED)?;
                MODE.set(Mode::Relaxed { before });
            }
            act()
        })
    }

    /// Runs what may make several [such calls](Self::relaxed): the thread's mode changes at the first of them, and
    /// back at the end. Two driver calls, and none where there are no such calls.
    pub(crate) fn relaxed_once<R>(&self, act: impl FnOnce() -> R) -> R {
        if MODE.get() != Mode::Own {
            return act();
        }
        MODE.set(Mode::Pending);
        let _put_back = PreviousMode(self);
        act()
    }

    /// Changes the thread's mode of captures; the mode before.
    fn exchange_capture_mode(&self, mode: u32) -> Result<u32, DriverError> {
        let entry = self.api.cuThreadExchangeStreamCaptureMode;
        let mut mode = mode;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut mode) };
        entry.check(code)?;
        Ok(mode)
    }
}
