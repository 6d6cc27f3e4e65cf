//! [`Yield`]: how threads wait for the core's locks.

use core::cell::Cell;

/// How threads wait for a lock of a few instructions: most often its owner is about to leave, but it
/// may be off the processor.
#[derive(Debug)]
pub(crate) struct Yield;

/// Waits of a thread between two at which it gives the processor away.
const WAITS_A_YIELD: u32 = 32;

impl larder_core::Wait for Yield {
    fn wait() {
        thread_local! {
            static WAITS: Cell<u32> = const { Cell::new(0) };
        }
        let waits = WAITS.try_with(|waits| {
            waits.set(waits.get().wrapping_add(1));
            waits.get()
        });
        if waits.unwrap_or(0).is_multiple_of(WAITS_A_YIELD) {
            std::thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }
}
