//! Numbers that are used only once in the life of a process.
//!
//! This is a plain counter without a protocol, so it is the same under the model checker.

use core::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a number below `end` that was never returned before, or `None` once all are used. The counter never
/// restarts.
pub(crate) fn number_given_once(end: u32) -> Option<u32> {
    next(&NEXT, end)
}

fn next(count: &AtomicU32, end: u32) -> Option<u32> {
    // Relaxed: each value of the counter goes to one caller, and orders no other memory.
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |given| {
            (given < end).then(|| given + 1)
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_given_once_and_then_none() {
        let count = AtomicU32::new(0);
        let given: [Option<u32>; 5] = core::array::from_fn(|_| next(&count, 3));
        assert_eq!(given, [Some(0), Some(1), Some(2), None, None]);
    }

    #[test]
    fn the_last_number_of_all_does_not_wrap() {
        let count = AtomicU32::new(u32::MAX - 1);
        let given: [Option<u32>; 2] = core::array::from_fn(|_| next(&count, u32::MAX));
        assert_eq!(given, [Some(u32::MAX - 1), None]);
    }
}
