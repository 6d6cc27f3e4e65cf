//! [`Yield`]: how threads wait for the core's locks.

use core::cell::Cell;

/// Waits for a lock that is held for a few instructions. The owner is usually about to release the lock, but may
/// have been preempted.
#[derive(Debug)]
pub(crate) struct Yield;

/// A thread yields the processor once in this many waits.
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
