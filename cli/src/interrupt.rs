//! Ctrl-C: the first one ends the measurement and keeps its results so far, and the second one ends
//! the program.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code that shells report for an interrupted program.
pub(crate) const EXIT_CODE: u8 = 130;

// The flag guards no other data, so no ordering is needed.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Starts to listen for Ctrl-C.
pub(crate) fn listen() {
    // Without a handler, Ctrl-C ends the program as usual.
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            process::exit(EXIT_CODE.into());
        }
    });
}

/// Returns whether the user asked the measurement to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
