//! The countdown to a thread's next sample, and sections without samples.
//!
//! The thread-local is a constant without a destructor. In a section without samples the
//! countdown is set to the largest number, so the fast path needs no other test.

use std::cell::Cell;
use std::ptr;
use std::sync::Once;

use larder_core::sync::{AtomicU32, AtomicU64, Ordering};

use super::{Sample, SampleHook};
use crate::safety::check;

struct Countdown {
    /// Bytes up to the next point, inclusive; 0 before the first point is drawn.
    left: Cell<usize>,
    /// The samples to report at the end of a section without samples; null outside such a
    /// section.
    pending: Cell<*const Pending>,
    random: Cell<u64>,
}

thread_local! {
    static LOCAL: Countdown = const {
        Countdown { left: Cell::new(0), pending: Cell::new(ptr::null()), random: Cell::new(0) }
    };
}

/// Samples to report at the end of a section without samples.
struct Pending {
    entries: [Cell<Option<(SampleHook, Sample)>>; 16],
}

/// Set in a forked child, where a hook could wait for a lock held by a thread that does not exist
/// there.
static FORKED: AtomicU32 = AtomicU32::new(0);

/// Counts an allocation. Returns `false` if a point may lie in that allocation.
#[inline(always)]
pub(super) fn passes(bytes: usize) -> bool {
    LOCAL.with(|local| {
        let left = local.left.get();
        let passes = bytes < left;
        if passes {
            local.left.set(left - bytes);
        }
        passes
    })
}

/// Returns whether a point lies in an allocation that did not pass. Draws the next point.
pub(super) fn is_due(bytes: usize, mean_bytes: u64) -> bool {
    LOCAL.with(|local| {
        let first = local.left.get() == 0;
        local.left.set(draw(local, mean_bytes));
        // The first point of a thread is drawn late.
        !(first && passes(bytes)) && FORKED.load(Ordering::Relaxed) == 0
    })
}

/// Draws the bytes up to the next point, inclusive.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates as meant"
)]
fn draw(local: &Countdown, mean_bytes: u64) -> usize {
    let mut random = local.random.get();
    if random == 0 {
        random = seed();
    }
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    local.random.set(random);
    // In (0, 1].
    let unit = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let gap = -unit.ln() * mean_bytes as f64;
    (gap.ceil() as usize).max(1)
}

/// Returns a number for each thread, never 0. Registers the fork handler at the first call.
#[cold]
fn seed() -> u64 {
    static WATCHED: Once = Once::new();
    static THREADS: AtomicU64 = AtomicU64::new(1);
    WATCHED.call_once(|| {
        // SAFETY: a function of this library, which only stores an atomic.
        #[cfg(unix)]
        unsafe {
            libc::pthread_atfork(None, None, Some(forked))
        };
    });
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    let mut mixed = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (&raw const WATCHED).addr() as u64;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed | 1
}

#[cfg(unix)]
extern "C" fn forked() {
    FORKED.store(1, Ordering::Relaxed);
}

/// Returns the number of blocks of this size that a sampled one stands for.
pub(super) fn weight(bytes: u64, mean_bytes: u64) -> f64 {
    if mean_bytes == 0 {
        return 1.0;
    }
    let sampled = -(-(bytes as f64) / mean_bytes as f64).exp_m1();
    1.0 / sampled
}

/// Calls a hook, now or at the end of the section without samples. Returns `false` if there is no
/// room to defer it.
pub(super) fn tell(hook: SampleHook, sample: Sample) -> bool {
    if FORKED.load(Ordering::Relaxed) != 0 {
        return true;
    }
    LOCAL.with(|local| {
        // SAFETY: null, or a pointer to the samples of a section that this thread is in.
        if let Some(pending) = unsafe { local.pending.get().as_ref() } {
            let vacant = pending.entries.iter().find(|entry| entry.get().is_none());
            vacant
                .map(|entry| entry.set(Some((hook, sample))))
                .is_some()
        } else {
            unsampled(|| call(hook, &sample));
            true
        }
    })
}

/// Calls a hook, which must not unwind into an allocator.
fn call(hook: SampleHook, sample: &Sample) {
    struct Unwinds;
    impl Drop for Unwinds {
        fn drop(&mut self) {
            check::fail(b"larder: the hook of a heap profile panicked\n");
        }
    }
    let unwinds = Unwinds;
    hook(sample);
    std::mem::forget(unwinds);
}

/// Ends a section without samples, even if the section unwinds.
struct UnsampledSection<'a> {
    local: &'a Countdown,
    pending: &'a Pending,
    left: usize,
}

impl Drop for UnsampledSection<'_> {
    fn drop(&mut self) {
        // Hooks may free more sampled blocks, but their own allocations are not sampled, so the
        // loop ends.
        while let Some((hook, sample)) = self.pending.entries.iter().find_map(Cell::take) {
            call(hook, &sample);
        }
        self.local.pending.set(ptr::null());
        self.local.left.set(self.left);
    }
}

/// Runs `f` without sampling the allocations of this thread. Up to 16 frees of sampled blocks are
/// reported to their hooks at the end; more are dropped and counted.
///
/// This is for code that holds a lock which a hook takes as well.
pub fn unsampled<R>(f: impl FnOnce() -> R) -> R {
    LOCAL.with(|local| {
        if !local.pending.get().is_null() {
            return f();
        }
        let pending = Pending {
            entries: [const { Cell::new(None) }; 16],
        };
        local.pending.set(&raw const pending);
        let _section = UnsampledSection {
            local,
            pending: &pending,
            left: local.left.replace(usize::MAX),
        };
        f()
    })
}
