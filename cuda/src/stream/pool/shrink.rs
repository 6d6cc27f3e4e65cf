//! A [`StreamPool`] over its limit, or under a budget that is: a free, an allocation that needs the
//! driver and the end of a step refresh the live limit, and give back what they can.

use cudarc::driver::CudaStream;
use larder_core::{Memory, PoolStats};

use super::{Above, HostWait, PoolSource, StreamPool};

impl<S: PoolSource<M>, M: Memory> StreamPool<S, M> {
    /// Called when a block was freed while the pool is over its limit: what is idle now goes back.
    /// Nothing is waited for.
    #[cold]
    pub(crate) fn freed_over_limit(
        &self,
        stream: Option<&CudaStream>,
        bytes: u64,
        above: &impl Above,
    ) {
        // In a capture no event may be asked.
        let captures = || stream.is_some_and(|stream| self.streams.captures(stream) != Ok(false));
        let none_live = || self.none_live(above);
        let looked = self.core.look(bytes, none_live, || {
            if !captures() {
                self.shrink(above);
            }
        });
        if looked {
            self.core.node.shared().notify();
        }
    }

    /// Called when an allocation needs the driver while the pool is over its limit: what is idle
    /// goes back first, if it is time to look; and what has gone back since, here or in other
    /// pools, lifts the bound.
    pub(super) fn allocates_over_limit(&self, above: &impl Above) {
        let none_live = || self.none_live(above);
        if !self.core.look(0, none_live, || self.shrink(above)) {
            self.core.refresh_limit();
        }
    }

    fn none_live(&self, above: &impl Above) -> bool {
        let live_bytes = self.core.stats().live_bytes;
        live_bytes <= above.idle_bytes().saturating_add(above.deferred_bytes())
    }

    /// Refreshes the live limit, and gives back what is idle above it. Nothing is waited for.
    pub(crate) fn shrink(&self, above: &impl Above) {
        self.core.shrink(|| self.collect(HostWait::MayBlock, above));
        // What the driver did not take is charged still.
        if self.context().deferred_frees() > 0 && self.core.node.is_in_excess() {
            self.context().settle_at_once();
            self.core.refresh_limit();
        }
    }

    /// What is held, and what of it would stay if the limit were 0. Memory that events say is out of use is
    /// noticed on the way.
    pub(crate) fn pool_stats(&self, above: &impl Above) -> PoolStats {
        self.collect(HostWait::MayBlock, above);
        self.core.pool_stats()
    }
}
