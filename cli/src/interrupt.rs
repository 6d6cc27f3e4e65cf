//! Ctrl-C: the first one ends the measurement and leaves what was measured, the second ends the program.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a shell says that a program was interrupted.
pub(crate) const EXIT_CODE: u8 = 130;

// Nothing but the flag is passed on, so that no order is needed.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Listens from now on.
pub(crate) fn listen() {
    // Where nobody can listen Ctrl-C ends the program, as ever.
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            process::exit(EXIT_CODE.into());
        }
    });
}

/// Whether somebody wants the measurement to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
