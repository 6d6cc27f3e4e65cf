//! Systems without a purge thread: the program's slow paths purge, according to this
//! clock.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The function of a purge thread.
pub(crate) type Run = extern "C" fn(*mut c_void) -> *mut c_void;

/// Returns `false`, because there are no background threads.
pub(crate) fn start_thread(_: Run) -> bool {
    false
}

/// Does nothing: there is no such thread.
pub(crate) fn be_ordinary() {}

/// Does nothing: there is no such thread.
pub(crate) fn name_thread() {}

/// Sleeps for `ns` nanoseconds.
pub(crate) fn sleep_ns(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns));
}

/// Returns the milliseconds since the first call.
pub(crate) fn coarse_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
}
