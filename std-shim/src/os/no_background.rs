//! Where the heap has no thread of its own: the program's slow paths purge, by this clock.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What such a thread would run.
pub(crate) type Run = extern "C" fn(*mut c_void) -> *mut c_void;

/// Cannot.
pub(crate) fn start_thread(_: Run) -> bool {
    false
}

/// There is no thread.
pub(crate) fn be_ordinary() {}

/// There is no thread.
pub(crate) fn name_thread() {}

/// Waits.
pub(crate) fn sleep_ns(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns));
}

/// Milliseconds since it was first asked.
pub(crate) fn coarse_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
}
