//! [`Profiled`]: a decorator that samples allocations and calls a hook, for heap profiles.
//!
//! # Files
//! * `countdown` the countdown to a thread's next sample, and sections without samples
//! * `marks` the marks of sampled live blocks
//! * `live` [`LiveSamples`], with the stacks that allocated them
//! * `symbols` the functions and lines of these stacks
//! * `pprof` profiles in pprof's format
//!
//! # Why the estimates are unbiased
//! Points lie on the stream of a thread's allocated bytes, with exponential gaps between them, and
//! a block is sampled if a point lies in its bytes. Such gaps are memoryless, so the next gap may
//! begin behind the block, and a block of `b` bytes is sampled with probability `1 - exp(-b /
//! mean)`, whatever came before it. A sampled block stands for as many blocks of its size as the
//! inverse of that probability.

mod countdown;
#[cfg(feature = "heap-profile")]
mod live;
mod marks;
#[cfg(feature = "pprof")]
mod pprof;
#[cfg(feature = "heap-profile")]
mod symbols;
#[cfg(test)]
mod tests;

use std::alloc::{GlobalAlloc, Layout};

use larder_core::sync::{AtomicU64, Ordering};

pub use countdown::unsampled;
#[cfg(feature = "heap-profile")]
pub use live::{LiveSamples, SampleTotals};
#[cfg(feature = "heap-profile")]
pub(crate) use symbols::{NamedCall, calls_at};

/// An event of a sampled block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SampleEvent {
    /// The block was allocated.
    Allocated,
    /// The block is about to be freed, or was resized.
    Freed,
}

/// A sampled block, as passed to the hook of a [`Profiled`].
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// The event.
    pub event: SampleEvent,
    /// The block's number: the same when the block is allocated and when it is freed, and never
    /// used again.
    pub id: u64,
    /// The block's address.
    pub address: usize,
    /// The bytes requested.
    pub bytes: u64,
    /// Number of blocks of this size that the sample stands for, at least 1. The sum of the weights
    /// of all samples is an unbiased estimate of the blocks, and the sum of `bytes` times the
    /// weight is an unbiased estimate of the bytes.
    pub weight: f64,
}

/// A function that receives samples. It may allocate, free and lock, but must not panic: a panic
/// ends the process.
pub type SampleHook = fn(&Sample);

/// An allocator that samples the blocks requested from `A`, by bytes, and reports the samples to a
/// hook.
///
/// ```
/// use std::sync::Mutex;
///
/// use larder::{Larder, Profiled, Sample, SampleEvent};
///
/// static SAMPLES: Mutex<u64> = Mutex::new(0);
///
/// fn hook(sample: &Sample) {
///     if sample.event == SampleEvent::Allocated {
///         *SAMPLES.lock().unwrap_or_else(|error| error.into_inner()) += 1;
///     }
/// }
///
/// #[global_allocator]
/// static HEAP: Profiled<Larder> = Profiled::new(Larder::new(), 512 << 10, hook);
///
/// for _ in 0..1000 {
///     drop(vec![0_u8; 100_000]);
/// }
/// let samples = larder::unsampled(|| SAMPLES.lock().map(|samples| *samples));
/// assert!(samples.is_ok_and(|samples| samples > 100));
/// ```
///
/// A realloc, in place or not, counts as the free of the old block and the allocation of a new one.
/// While the hook runs, sampling is off on its thread. The hook's own allocations are never
/// sampled; a sampled block that the hook frees is reported after the hook returns. A forked child
/// is not sampled.
///
/// All decorators of a program should use the same mean, because they share their threads'
/// countdowns.
///
/// # Cost
/// An allocation costs a subtraction in a thread-local and a branch. A free, while any sampled
/// block lives, reads one cache line of a table of 256 KiB, without a lock. The table has 32768
/// places. A sample without a place is counted ([`dropped`](Self::dropped)), and neither its
/// allocation nor its free is reported. The mean decides how much is sampled: at 512 KiB a program
/// that allocates 1 GiB a second calls its hook 4000 times in that second.
#[derive(Clone, Copy, Debug)]
pub struct Profiled<A> {
    inner: A,
    mean_bytes: u64,
    hook: SampleHook,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

impl<A> Profiled<A> {
    /// Wraps `inner`, with one sample in `mean_bytes` bytes on average (0 and 1 sample every
    /// block).
    pub const fn new(inner: A, mean_bytes: u64, hook: SampleHook) -> Self {
        Self {
            inner,
            mean_bytes,
            hook,
        }
    }

    /// Returns the wrapped allocator.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Returns the number of samples, or frees of sampled blocks, that were not reported to the
    /// hook because a table had no place for them.
    pub fn dropped(&self) -> u64 {
        DROPPED.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn allocated(&self, block: *mut u8, bytes: usize) {
        if !countdown::passes(bytes) {
            self.maybe_sample(block, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn maybe_sample(&self, block: *mut u8, bytes: usize) {
        if block.is_null() || !countdown::is_due(bytes, self.mean_bytes) {
            return;
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        if marks::set(block.addr(), id) {
            self.tell(SampleEvent::Allocated, block, bytes, id);
        } else {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell(&self, event: SampleEvent, block: *mut u8, bytes: usize, id: u64) {
        let sample = Sample {
            event,
            id,
            address: block.addr(),
            bytes: bytes as u64,
            weight: countdown::weight(bytes as u64, self.mean_bytes),
        };
        if !countdown::tell(self.hook, sample) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Restores the mark of a block whose realloc failed.
    #[cold]
    fn stays(&self, block: *mut u8, bytes: usize, id: u64) {
        if !marks::set(block.addr(), id) {
            self.tell(SampleEvent::Freed, block, bytes, id);
        }
    }
}

// SAFETY: every block is `A`'s own, requested and freed with the caller's own layouts, and only its
// address is recorded, as a number. Nothing unwinds: a hook that unwinds ends the process.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Profiled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and not empty.
        let block = unsafe { self.inner.alloc(layout) };
        self.allocated(block, layout.size());
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's, and not empty.
        let block = unsafe { self.inner.alloc_zeroed(layout) };
        self.allocated(block, layout.size());
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(id) = marks::take(block.addr()) {
            self.tell(SampleEvent::Freed, block, layout.size(), id);
        }
        // SAFETY: the block is `A`'s, has this layout, and the caller gives it up.
        unsafe { self.inner.dealloc(block, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // Before the realloc: afterwards its address may be another thread's new block.
        let mark = marks::take(block.addr());
        // SAFETY: the block is `A`'s and has this layout; the new size is valid for it.
        let moved = unsafe { self.inner.realloc(block, layout, new_bytes) };
        match mark {
            Some(id) if moved.is_null() => self.stays(block, layout.size(), id),
            Some(id) => self.tell(SampleEvent::Freed, block, layout.size(), id),
            None => {}
        }
        self.allocated(moved, new_bytes);
        moved
    }
}
