//! The longest single call of the allocator, from a wrapper that times each call.
//!
//! The wrapper is used only in builds with the feature `calls`, since reading the clocks takes longer than most calls.
//! A call is timed in wall time and in its thread's processor time, because an allocator is to blame for a thread that
//! waits for a lock, but not for a thread that loses its processor inside a call.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};

/// An allocator whose calls are timed.
pub struct Timed<A>(pub A);

/// The longest calls of one kind so far, by wall time and by processor time, in nanoseconds. They may be different
/// calls.
pub struct Longest {
    wall: AtomicU64,
    processor: AtomicU64,
}

/// Times of `alloc` and `alloc_zeroed`.
pub static ALLOC: Longest = Longest::new();
pub static REALLOC: Longest = Longest::new();
pub static FREE: Longest = Longest::new();

impl Longest {
    const fn new() -> Self {
        Self {
            wall: AtomicU64::new(0),
            processor: AtomicU64::new(0),
        }
    }

    /// Returns the longest wall time and the longest processor time, in microseconds.
    pub fn micros(&self) -> [f64; 2] {
        // Relaxed: the number guards no other data.
        [&self.wall, &self.processor].map(|nanos| nanos.load(Ordering::Relaxed) as f64 / 1e3)
    }

    /// Makes the call and times it.
    fn time<R>(&self, call: impl FnOnce() -> R) -> R {
        let processor = now(libc::CLOCK_THREAD_CPUTIME_ID);
        let wall = now(libc::CLOCK_MONOTONIC);
        let result = call();
        let spent = now(libc::CLOCK_MONOTONIC).saturating_sub(wall);
        self.wall.fetch_max(spent, Ordering::Relaxed);
        // A call takes no more processor time than wall time, and reading the processor time is a system call.
        if spent > self.processor.load(Ordering::Relaxed) {
            let spent = now(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(processor);
            self.processor.fetch_max(spent, Ordering::Relaxed);
        }
        result
    }
}

/// Returns the nanoseconds of a clock. Does not allocate.
fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to `time`, a local value.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

// SAFETY: every call is forwarded to the inner allocator.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Timed<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is valid for this allocator, and so for the inner one.
        ALLOC.time(|| unsafe { self.0.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        ALLOC.time(|| unsafe { self.0.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the block came from the inner allocator, as the caller promises.
        REALLOC.time(|| unsafe { self.0.realloc(block, layout, bytes) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from the inner allocator, as the caller promises.
        FREE.time(|| unsafe { self.0.dealloc(block, layout) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_call_that_sleeps_is_long_on_the_wall_and_takes_no_processor() {
        let longest = Longest::new();
        longest.time(|| std::thread::sleep(Duration::from_millis(20)));
        longest.time(|| ());
        let [wall, processor] = longest.micros();
        assert!(wall >= 20e3, "{wall}");
        assert!(processor < wall, "{processor} of {wall}");
    }

    #[test]
    fn a_program_that_allocates_has_a_longest_call() {
        drop(std::hint::black_box(vec![1_u8; 4 << 20]));
        let [wall, processor] = ALLOC.micros();
        assert!(wall > 0.0 && processor > 0.0);
        assert!(FREE.micros()[0] > 0.0);
    }
}
