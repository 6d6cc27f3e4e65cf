//! The times of single calls of the allocator, from a wrapper that times each call. It needs Linux.
//!
//! The wrapper is used only in builds with the feature `tail`, since the readings take longer than most calls. Every
//! call counts in a histogram of its kind. The longest calls are kept with their causes: the processor time, page
//! faults and context switches of the thread in the call.
//!
//! The causes are exact, since the thread is read before every call (two system calls, together about 0.4 µs), and
//! after each call that is long enough to be kept. What happens between a reading and the clock also counts. The
//! readings are not part of the call's time, and the time to read a clock is subtracted from it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::histogram::{Histogram, Merged};

/// An allocator whose calls are timed.
pub struct Timed<A>(pub A);

/// Calls of `alloc` and `alloc_zeroed`.
static MALLOC: Calls = Calls::new();
static REALLOC: Calls = Calls::new();
static FREE: Calls = Calls::new();

/// Time to read the clock of [`Calls::time`], and processor time of its readings, in nanoseconds.
static CLOCK_COST: AtomicU64 = AtomicU64::new(0);
static PROCESSOR_COST: AtomicU64 = AtomicU64::new(0);

/// The processor time of a call is exact within about this time.
const EXACT_NANOS: u64 = 1_000;

/// Number of histograms of a kind. Threads that share one wait for each other's cache lines.
const SHARDS: usize = 32;
/// Number of longest calls that are kept of each kind.
const KEPT: usize = 16;
/// The time of a place in the list of longest calls that a thread is writing to.
const BUSY: u64 = u64::MAX;

/// The calls of one kind so far. Times are in nanoseconds.
///
/// All accesses are relaxed, since the numbers guard no other data, except those that publish a [`LongCall`].
struct Calls {
    histograms: [Histogram; SHARDS],
    /// The times of the longest calls, and the calls at the same places. A place is written by the thread that has
    /// replaced its time by [`BUSY`]. Nothing waits for it, so a fork may stop that thread at any time. Two threads that
    /// keep calls at the same time may drop a call that is shorter than all others in the list.
    times: [AtomicU64; KEPT],
    longest: [[AtomicU64; 5]; KEPT],
    /// Maximum processor time of a call.
    processor: AtomicU64,
    /// Maximum time of a call that [is clean](LongCall::is_clean).
    clean: AtomicU64,
}

/// A call, and the readings of its thread in it. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LongCall {
    pub wall: u64,
    pub processor: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Number of times that the thread slept.
    pub voluntary_switches: u64,
    /// Number of times that the thread lost its processor to another.
    pub involuntary_switches: u64,
}

/// The figures of one kind of calls. Times are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct CallTail {
    pub count: u64,
    pub p999: u64,
    pub p9999: u64,
    /// Maximum processor time of a call.
    pub processor: u64,
    /// Maximum time of a call that [is clean](LongCall::is_clean).
    pub clean: u64,
    /// The longest calls, longest first; unused places have the time 0.
    pub longest: [LongCall; KEPT],
}

/// Measures the time to read the clocks, which is subtracted from each call after that.
pub fn calibrate() {
    const READINGS: usize = 1001;
    let mut walls = [0; READINGS];
    let mut processors = [0; READINGS];
    for (wall, processor) in walls.iter_mut().zip(&mut processors) {
        let before = Reading::take();
        let start = now(libc::CLOCK_MONOTONIC);
        *wall = now(libc::CLOCK_MONOTONIC).saturating_sub(start);
        *processor = now(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(before.processor);
    }
    walls.sort_unstable();
    processors.sort_unstable();
    CLOCK_COST.store(walls[READINGS / 2], Ordering::Relaxed);
    PROCESSOR_COST.store(processors[READINGS / 2], Ordering::Relaxed);
}

/// Returns the figures of malloc, realloc and free. Does not allocate.
pub fn tails() -> [CallTail; 3] {
    [&MALLOC, &REALLOC, &FREE].map(Calls::tail)
}

impl Calls {
    const fn new() -> Self {
        Self {
            histograms: [const { Histogram::new() }; SHARDS],
            times: [const { AtomicU64::new(0) }; KEPT],
            longest: [const { [const { AtomicU64::new(0) }; 5] }; KEPT],
            processor: AtomicU64::new(0),
            clean: AtomicU64::new(0),
        }
    }

    /// Makes the call and times it.
    fn time<R>(&self, call: impl FnOnce() -> R) -> R {
        let before = Reading::take();
        let start = now(libc::CLOCK_MONOTONIC);
        let result = call();
        let wall = now(libc::CLOCK_MONOTONIC)
            .saturating_sub(start)
            .saturating_sub(CLOCK_COST.load(Ordering::Relaxed));
        if self.may_keep(wall) {
            self.keep(before.call_until_now(wall));
        }
        // The histogram comes last, since the first access to its page is a page fault.
        self.histograms[shard()].add(wall);
        result
    }

    /// Returns whether a call of this time may change anything but the histogram. A call takes no more processor time
    /// than wall time.
    fn may_keep(&self, wall: u64) -> bool {
        let mut others = self.times.iter().chain([&self.processor, &self.clean]);
        others.any(|other| wall > other.load(Ordering::Relaxed))
    }

    fn keep(&self, call: LongCall) {
        self.processor.fetch_max(call.processor, Ordering::Relaxed);
        if call.is_clean() {
            self.clean.fetch_max(call.wall, Ordering::Relaxed);
        }
        loop {
            let times = self.times.iter().map(|time| time.load(Ordering::Relaxed));
            let Some((place, least)) = times.enumerate().min_by_key(|(_, time)| *time) else {
                return;
            };
            if call.wall <= least {
                return;
            }
            let time = &self.times[place];
            // Acquire: the numbers below are written after those of the last call at this place.
            let taken = time.compare_exchange(least, BUSY, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                for (place, number) in self.longest[place].iter().zip(call.numbers()) {
                    place.store(number, Ordering::Relaxed);
                }
                // Release: a thread that reads this time also reads the numbers above.
                time.store(call.wall, Ordering::Release);
                return;
            }
        }
    }

    fn tail(&self) -> CallTail {
        let merged = Merged::of(&self.histograms);
        let mut longest = [LongCall::default(); KEPT];
        for (call, (time, numbers)) in longest.iter_mut().zip(self.times.iter().zip(&self.longest))
        {
            let wall = time.load(Ordering::Acquire);
            if wall != BUSY {
                let numbers = numbers
                    .each_ref()
                    .map(|number| number.load(Ordering::Relaxed));
                *call = LongCall::of(wall, numbers);
            }
        }
        longest.sort_unstable_by_key(|call| Reverse(call.wall));
        CallTail {
            count: merged.count(),
            // The middle of a bucket may be above its longest call.
            p999: merged.percentile(9_990).min(longest[0].wall),
            p9999: merged.percentile(9_999).min(longest[0].wall),
            processor: self.processor.load(Ordering::Relaxed),
            clean: self.clean.load(Ordering::Relaxed),
            longest,
        }
    }
}

impl LongCall {
    /// Returns whether the call had no page fault, and kept its processor unless it slept. A hypervisor takes the
    /// processor without a switch.
    fn is_clean(&self) -> bool {
        let lost = self.wall.saturating_sub(self.processor);
        let taken = self.voluntary_switches == 0 && lost > (self.wall / 2).max(EXACT_NANOS);
        self.minor_faults + self.major_faults + self.involuntary_switches == 0 && !taken
    }

    fn numbers(&self) -> [u64; 5] {
        [
            self.processor,
            self.minor_faults,
            self.major_faults,
            self.voluntary_switches,
            self.involuntary_switches,
        ]
    }

    fn of(wall: u64, numbers: [u64; 5]) -> Self {
        let [
            processor,
            minor_faults,
            major_faults,
            voluntary_switches,
            involuntary_switches,
        ] = numbers;
        Self {
            wall,
            processor,
            minor_faults,
            major_faults,
            voluntary_switches,
            involuntary_switches,
        }
    }
}

/// A reading of this thread.
struct Reading {
    usage: libc::rusage,
    processor: u64,
}

impl Reading {
    fn take() -> Self {
        let usage = usage();
        Self {
            usage,
            processor: now(libc::CLOCK_THREAD_CPUTIME_ID),
        }
    }

    /// Returns the call that began after this reading and has just ended.
    fn call_until_now(&self, wall: u64) -> LongCall {
        let processor = now(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(self.processor);
        let usage = usage();
        let more = |number: fn(&libc::rusage) -> i64| {
            u64::try_from(number(&usage) - number(&self.usage)).unwrap_or(0)
        };
        LongCall {
            wall,
            processor: processor.saturating_sub(PROCESSOR_COST.load(Ordering::Relaxed)),
            minor_faults: more(|usage| usage.ru_minflt),
            major_faults: more(|usage| usage.ru_majflt),
            voluntary_switches: more(|usage| usage.ru_nvcsw),
            involuntary_switches: more(|usage| usage.ru_nivcsw),
        }
    }
}

fn usage() -> libc::rusage {
    // SAFETY: all bits zero is a valid value of these numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to `usage`, a local value.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage
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

/// Returns the index of this thread's histograms.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    // The value is constant and has no destructor, so the access does not allocate.
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(SHARDS) };
    }
    SHARD.with(|shard| {
        if shard.get() == SHARDS {
            shard.set(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}

// SAFETY: every call is forwarded to the inner allocator.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Timed<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is valid for this allocator, and so for the inner one.
        MALLOC.time(|| unsafe { self.0.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        MALLOC.time(|| unsafe { self.0.alloc_zeroed(layout) })
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
    use crate::random::Random;
    use std::sync::Barrier;
    use std::time::Duration;

    fn call(wall: u64, minor_faults: u64, involuntary_switches: u64) -> LongCall {
        LongCall {
            wall,
            processor: wall / 2,
            minor_faults,
            involuntary_switches,
            ..LongCall::default()
        }
    }

    #[test]
    fn the_longest_calls_are_kept_with_their_readings() {
        let calls = Calls::new();
        let mut random = Random::new(3);
        let mut all: Vec<u64> = (1..=1000).collect();
        for last in (1..all.len()).rev() {
            all.swap(last, random.below(last + 1));
        }
        for wall in all {
            assert!(wall < 985 || calls.may_keep(wall), "{wall}");
            calls.keep(call(wall, wall * 3, wall * 5));
        }
        assert!(!calls.tail().longest.contains(&call(984, 2952, 4920)));
        let expected: Vec<_> = (985..=1000)
            .rev()
            .map(|wall| call(wall, wall * 3, wall * 5))
            .collect();
        assert_eq!(calls.tail().longest.as_slice(), expected);
        assert_eq!((calls.tail().processor, calls.tail().clean), (500, 0));
    }

    #[test]
    fn a_call_with_a_fault_or_without_its_processor_is_not_clean() {
        let calls = Calls::new();
        for (wall, faults, lost) in [(90, 1, 0), (50, 0, 0), (80, 0, 1), (40, 0, 0)] {
            calls.keep(call(wall, faults, lost));
        }
        assert_eq!(calls.tail().clean, 50);
        let mut taken = call(90_000, 0, 0);
        taken.processor = 10_000;
        calls.keep(taken);
        assert_eq!(calls.tail().clean, 50);
        let slept = LongCall {
            voluntary_switches: 1,
            wall: 80_000,
            ..taken
        };
        calls.keep(slept);
        assert_eq!(calls.tail().clean, 80_000);
        // A call shorter than all kept calls may still be the longest clean one.
        let faulty = LongCall {
            processor: 100_000,
            ..call(100_000, 1, 0)
        };
        (0..KEPT).for_each(|_| calls.keep(faulty));
        assert!(calls.may_keep(85_000));
        calls.keep(call(85_000, 0, 0));
        assert_eq!(calls.tail().clean, 85_000);
        assert_eq!(calls.tail().longest[KEPT - 1].wall, 100_000);
    }

    #[test]
    fn the_longest_call_is_kept_when_threads_keep_calls_at_once() {
        const THREADS: u64 = 4;
        const EACH: u64 = 4;
        const ROUNDS: u64 = 20_000;
        let calls = Calls::new();
        let wrong = AtomicU64::new(0);
        let barrier = Barrier::new(THREADS as usize);
        let keep = &|thread: u64| {
            for round in 1..=ROUNDS {
                barrier.wait();
                for step in 0..EACH {
                    let wall = (round * EACH + step) * THREADS + thread;
                    calls.keep(call(wall, wall * 3, wall * 5));
                }
                if barrier.wait().is_leader() {
                    let longest = calls.tail().longest;
                    let whole =
                        |kept: &LongCall| *kept == call(kept.wall, kept.wall * 3, kept.wall * 5);
                    let right = longest[0].wall == (round + 1) * EACH * THREADS - 1
                        && longest.iter().all(whole);
                    // A panic here would leave the other threads waiting.
                    wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || keep(thread));
            }
        });
        assert_eq!(wrong.into_inner(), 0);
    }

    #[test]
    fn a_call_that_sleeps_is_long_and_takes_no_processor() {
        let calls = Calls::new();
        calls.time(|| std::thread::sleep(Duration::from_millis(20)));
        calls.time(|| ());
        let tail = calls.tail();
        let [longest, ..] = tail.longest;
        assert!(longest.wall >= 20_000_000, "{longest:?}");
        assert!(longest.voluntary_switches >= 1, "{longest:?}");
        assert!(tail.processor < longest.wall, "{tail:?}");
        assert_eq!(tail.count, 2);
        assert!(tail.p9999 > tail.longest[1].wall && tail.p9999 <= longest.wall);
    }

    #[test]
    fn a_call_has_its_own_page_faults_and_no_others() {
        const PAGES: usize = 1024;
        let touch = || {
            let (protection, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            // SAFETY: this is a new mapping, at an address that the system chooses.
            let start =
                unsafe { libc::mmap(std::ptr::null_mut(), PAGES * 4096, protection, flags, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            // SAFETY: the mapping is ours.
            unsafe { libc::madvise(start, PAGES * 4096, libc::MADV_NOHUGEPAGE) };
            for page in 0..PAGES {
                // SAFETY: the byte is inside the mapping, which is never unmapped.
                unsafe { start.cast::<u8>().add(page * 4096).write_volatile(1) };
            }
        };
        let [with, without] = [Calls::new(), Calls::new()];
        without.time(|| ());
        with.time(touch);
        without.time(|| ());
        let [with, without] = [with, without].map(|calls| calls.tail().longest);
        assert!(with[0].minor_faults >= PAGES as u64 / 16, "{:?}", with[0]);
        for call in without {
            assert!(call.minor_faults < PAGES as u64 / 16, "{call:?}");
        }
    }

    #[test]
    fn a_program_that_allocates_has_a_longest_call() {
        drop(std::hint::black_box(vec![1_u8; 4 << 20]));
        let [malloc, _, free] = tails();
        assert!(malloc.longest[0].wall > 0 && malloc.processor > 0);
        assert!(malloc.count > 0 && free.count > 0);
    }
}
