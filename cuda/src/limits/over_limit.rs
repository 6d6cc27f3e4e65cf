//! [`OverLimit`]: the state of a pool that holds more than its limit or a budget above allows.

use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Maximum number of frees between two scans for memory that can be released.
const MAX_FREES: u32 = 64;

/// Number of freed bytes that always causes a scan: the page size of most devices.
const MAX_BYTES: u64 = 2 << 20;

/// Maximum number of scans in one call while blocks are live, since later frees scan too.
const MAX_LOOKS: u32 = 4;

/// No thread scans.
const IDLE: u8 = 0;
/// A thread scans.
const LOOKING: u8 = 1;
/// A thread scans, and will scan once more, since this scan may have missed the memory of a later free.
const AGAIN: u8 = 2;

/// Whether a pool is over its limit: it holds more than its own limit, or than one of its budgets allows. This also
/// decides when a free scans for memory that can be released. After fruitless scans fewer frees scan: every
/// 2nd, every 4th, up to every 64th, but always after 2 MiB of frees and at the last live block. One thread
/// scans at a time, and repeats the scan for frees that came in between, so that the last live block is always
/// covered, whichever thread frees it.
#[derive(Default)]
pub(crate) struct OverLimit {
    /// Changed only under the lock of the pool's core.
    on: AtomicU8,
    frees: AtomicU32,
    bytes: AtomicU64,
    /// Scans since the last successful one.
    misses: AtomicU32,
    /// [`IDLE`], [`LOOKING`] or [`AGAIN`].
    state: AtomicU8,
}

impl OverLimit {
    /// Returns whether the pool is over its limit. One load, made by every free.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the pool is over its limit; the caller holds the lock of the pool's core.
    pub(crate) fn set(&self, on: bool) {
        self.on.store(u8::from(on), Ordering::Relaxed);
    }

    /// Notes a new limit, so that the next free scans.
    pub(crate) fn begin(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }

    /// Counts a free of `bytes`. If a scan is due and no other thread scans, calls `look` to scan for memory
    /// that can be released. `look` returns whether it found any, and `none_live` whether the last block is
    /// free. Returns whether `look` was called.
    pub(crate) fn freed(
        &self,
        bytes: u64,
        none_live: impl Fn() -> bool,
        mut look: impl FnMut() -> bool,
    ) -> bool {
        if !self.is_due(bytes, none_live()) {
            return false;
        }
        let Some(mut looking) = self.start() else {
            return false;
        };
        for round in 1.. {
            self.frees.store(0, Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
            let misses = if look() {
                0
            } else {
                self.misses.load(Ordering::Relaxed).saturating_add(1)
            };
            self.misses.store(misses, Ordering::Relaxed);
            if !looking.again() || (round >= MAX_LOOKS && !none_live()) {
                break;
            }
        }
        true
    }

    fn is_due(&self, bytes: u64, none_live: bool) -> bool {
        let frees = self.frees.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let freed = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let freed = freed.saturating_add(bytes);
        let misses = self.misses.load(Ordering::Relaxed);
        let due = 1_u32.checked_shl(misses).unwrap_or(MAX_FREES);
        none_live || frees >= due.min(MAX_FREES) || freed >= MAX_BYTES
    }

    /// Begins a scan; `None` if another thread scans, which will then scan once more.
    fn start(&self) -> Option<Looking<'_>> {
        let next = |state: u8| Some(if state == IDLE { LOOKING } else { AGAIN });
        // AcqRel: the scan made for this free, here or in the other thread, sees the memory that it freed.
        let before = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        (before == Ok(IDLE)).then(|| Looking {
            over_limit: self,
            looks: true,
        })
    }
}

/// The right to scan, held by one thread at a time.
struct Looking<'m> {
    over_limit: &'m OverLimit,
    /// Whether the scan is still under way.
    looks: bool,
}

impl Looking<'_> {
    /// Returns whether a free has made another scan due since this scan began. If not, the scan is over.
    fn again(&mut self) -> bool {
        let next = |state: u8| Some(if state == AGAIN { LOOKING } else { IDLE });
        let state = &self.over_limit.state;
        let before = state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        self.looks = before == Ok(AGAIN);
        self.looks
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        if self.looks {
            self.over_limit.state.store(IDLE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_free_during_anothers_look_is_looked_at_before_that_ends() {
        let over_limit = OverLimit::default();
        let looks = Cell::new(0);
        let looked = over_limit.freed(
            0,
            || true,
            || {
                looks.set(looks.get() + 1);
                // Another thread frees the last block, which this scan has passed.
                if looks.get() == 1 {
                    assert!(!over_limit.freed(0, || true, || unreachable!("somebody looks")));
                }
                false
            },
        );
        assert!(looked);
        assert_eq!(looks.get(), 2);
        assert!(
            over_limit.freed(0, || true, || true),
            "nobody looks any more"
        );
    }

    #[test]
    fn one_call_does_not_look_for_ever_while_others_free() {
        let over_limit = OverLimit::default();
        for none_live in [false, true] {
            let looks = Cell::new(0);
            let look = || {
                looks.set(looks.get() + 1);
                if looks.get() < 2 * MAX_LOOKS {
                    over_limit.freed(MAX_BYTES, || false, || false);
                }
                false
            };
            assert!(over_limit.freed(MAX_BYTES, || none_live, look));
            // The last block always causes a scan.
            let max = if none_live { 2 * MAX_LOOKS } else { MAX_LOOKS };
            assert_eq!(looks.get(), max);
        }
    }

    #[test]
    fn looks_in_vain_become_rarer_and_large_or_last_blocks_are_looked_at() {
        let over_limit = OverLimit::default();
        let frees = |bytes, last| (1..).find(|_| over_limit.freed(bytes, || last, || false));
        for due in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(frees(1, false), Some(due));
        }
        assert_eq!(frees(MAX_BYTES, false), Some(1));
        assert_eq!(frees(MAX_BYTES - 1, false), Some(2));
        assert_eq!(frees(1, true), Some(1));
        over_limit.begin();
        assert_eq!(frees(1, false), Some(1), "a new limit");
    }
}
