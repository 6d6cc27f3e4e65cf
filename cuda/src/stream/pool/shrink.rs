//! The limit of a [`BudgetedPool`] while the program runs, and of a [`StreamPool`], which contains one.
//!
//! While a pool is over its limit, it refreshes its live limit and releases as much as possible: at a free,
//! at an allocation that needs the driver and at the end of a step.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{BestFit, PoolStats, Stats};

use super::{BudgetedPool, HostWait, PoolSource, StreamPool, UpperTiers};
use crate::limits::{LimitedPool, TreeNode};

impl<S: PoolSource<P>, P: BestFit> BudgetedPool<S, P> {
    /// Rereads the live limit. Returns the bytes held above it.
    pub(crate) fn refresh_limit(&self) -> u64 {
        let left_out = || self.shared().source().left_out_bytes();
        apply_newest(left_out, |left_out| {
            self.shared().with(|locked| {
                // Read under the core's lock, so that the later of two threads has the newer bound.
                let bound = self.node.live_limit();
                let limit = match bound {
                    u64::MAX => bound,
                    bound => bound.saturating_sub(left_out),
                };
                let excess = locked.set_limit(limit);
                let usage = self.node.usage();
                let lowered = bound < usage.config.hard_bytes || usage.excess_bytes > 0;
                self.over_limit.set(excess > 0 || lowered);
                excess
            })
        })
    }

    /// Returns the bytes held, and the part of them that would stay if the limit were 0.
    pub(crate) fn pool_stats(&self) -> PoolStats {
        let pool_bytes = self.node.usage().used_bytes;
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(S::idle_bytes(self.shared())),
        }
    }

    /// Refreshes the live limit, above which nothing is granted from then on. Then releases idle memory above
    /// that limit, after `collect` has freed all memory that no work uses any more. Does not wait.
    pub(crate) fn shrink(&self, collect: impl FnOnce()) {
        let is_above = self.refresh_limit() > 0;
        if is_above {
            collect();
            self.shared().release_excess();
        }
        // Memory whose free the driver refused is still charged, though the core no longer holds it.
        let is_owed = self.context().refused_frees() > 0 && self.node.is_in_excess();
        if is_owed {
            self.context().settle_at_once();
        }
        if is_above || is_owed {
            // Released memory raises the live limit.
            self.refresh_limit();
        }
    }

    /// Called after a free while the pool is over its limit. Calls `shrink` if it is time to scan for idle
    /// memory. `none_live` returns whether the program has freed all blocks.
    #[cold]
    pub(crate) fn freed_over_limit(
        &self,
        bytes: u64,
        none_live: impl Fn() -> bool,
        shrink: impl Fn(),
    ) {
        if self.shrink_if_due(bytes, none_live, shrink) {
            self.node.shared().notify();
        }
    }

    /// Prepares an allocation that needs the driver while the pool is over its limit. Calls `shrink` if it is
    /// time to scan, otherwise refreshes the limit, since memory that was released in the meantime, here or
    /// in other pools, raises the limit.
    #[cold]
    pub(crate) fn allocates_over_limit(&self, none_live: impl Fn() -> bool, shrink: impl Fn()) {
        if !self.shrink_if_due(0, none_live, shrink) {
            self.refresh_limit();
        }
    }

    /// Calls `shrink` if it is time to scan. Returns whether `shrink` was called.
    fn shrink_if_due(&self, bytes: u64, none_live: impl Fn() -> bool, shrink: impl Fn()) -> bool {
        self.over_limit.freed(bytes, none_live, || {
            let before = self.node.usage().used_bytes;
            shrink();
            self.node.usage().used_bytes < before
        })
    }
}

impl<S: PoolSource<P>, P: BestFit> StreamPool<S, P> {
    /// Releases idle memory after a free while the pool is over its limit. Does not wait.
    #[cold]
    pub(crate) fn freed_over_limit(&self, stream: Option<&CudaStream>, bytes: u64) {
        // Events must not be queried during a capture.
        let captures = || stream.is_some_and(|stream| self.streams.captures(stream) != Ok(false));
        let shrink = || {
            if !captures() {
                self.shrink();
            }
        };
        self.memory
            .freed_over_limit(bytes, || self.none_live(), shrink);
    }

    /// Returns whether the program has freed all blocks, even if the tiers above still hold some of them.
    pub(super) fn none_live(&self) -> bool {
        let live_bytes = self.memory.stats().live_bytes;
        let upper = self.upper();
        let held = |upper: Arc<dyn UpperTiers>| {
            upper
                .idle_bytes()
                .saturating_add(upper.multi_stream_bytes())
        };
        live_bytes <= upper.map_or(0, held)
    }

    /// See [`BudgetedPool::shrink`].
    pub(crate) fn shrink(&self) {
        self.memory.shrink(|| self.poll_events(HostWait::MayBlock));
    }
}

impl<S: PoolSource<P>, P: BestFit + Send> LimitedPool for StreamPool<S, P> {
    fn node(&self) -> &Arc<TreeNode> {
        &self.memory.node
    }

    fn refresh_limit(&self) {
        self.memory.over_limit.begin();
        self.memory.refresh_limit();
    }

    fn pool_stats(&self) -> PoolStats {
        self.poll_events(HostWait::MayBlock);
        self.memory.pool_stats()
    }

    fn shrink(&self) {
        self.memory.over_limit.begin();
        Self::shrink(self);
    }

    fn stats(&self) -> Stats {
        self.memory.stats()
    }

    fn take_peak(&self) -> u64 {
        self.memory.take_peak()
    }
}

/// Applies a number that other threads change and then apply, too. The number is read before the lock is
/// taken under which it is applied. If it has changed since, it is applied again, so that no older number
/// stays.
fn apply_newest<R>(read: impl Fn() -> u64, mut apply: impl FnMut(u64) -> R) -> R {
    let mut number = read();
    loop {
        let answer = apply(number);
        let now = read();
        if now == number {
            return answer;
        }
        number = now;
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::apply_newest;

    #[test]
    fn a_number_that_another_thread_changes_and_applies_in_between_is_what_stays() {
        let (number, applied, others) = (Cell::new(0), Cell::new(None), Cell::new(0));
        let answer = apply_newest(
            || number.get(),
            |read| {
                // The other thread applies its number first, twice.
                if others.get() < 2 {
                    others.set(others.get() + 1);
                    number.set(number.get() + 6);
                    applied.set(Some(number.get()));
                }
                applied.set(Some(read));
                read
            },
        );
        assert_eq!((answer, applied.get()), (12, Some(12)));
    }
}
