//! Calls that spoil captures, made so that they spoil none.
//!
//! While a stream captures in the global mode, a query of an event spoils the capture, whichever thread
//! asks, and the owner learns of it at the end of the capture (pytorch#104487, pytorch#148594). So do waits
//! and plain allocations. A thread in the relaxed mode may make these calls. So it is in that mode for the
//! length of such a call, or of many.

use core::cell::Cell;

use larder_cuda_abi::constants::CAPTURE_MODE_RELAXED;

use super::{Driver, DriverError};

thread_local! {
    /// Whether the thread is in the relaxed mode by a call of [`Driver::relaxed`] that has not returned.
    static IS_RELAXED: Cell<bool> = const { Cell::new(false) };
}

/// The thread's mode of before comes back when this is dropped.
struct PreviousMode<'a> {
    driver: &'a Driver,
    before: u32,
}

impl Drop for PreviousMode<'_> {
    fn drop(&mut self) {
        IS_RELAXED.set(false);
        // A driver that refuses twice leaves the thread relaxed, which spoils nothing of anybody.
        let put_back = || self.driver.exchange_capture_mode(self.before);
        let _ = put_back().or_else(|_| put_back());
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
        if IS_RELAXED.get() {
            return act();
        }
        let before = self.exchange_capture_mode(CAPTURE_MODE_RELAXED)?;
        IS_RELAXED.set(true);
        let _put_back = PreviousMode {
            driver: self,
            before,
        };
        act()
    }

    /// Changes the thread's mode of captures; the mode before.
    fn exchange_capture_mode(&self, mode: u32) -> Result<u32, DriverError> {
        let entry = self.api.exchange_capture_mode;
        let mut mode = mode;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut mode) };
        entry.check(code)?;
        Ok(mode)
    }
}
