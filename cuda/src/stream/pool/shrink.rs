//! A [`StreamPool`] over its limit, or under a budget that is: a free, an allocation that needs the
//! driver and the end of a step refresh the live limit, and give back what they can.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{BestFit, PoolStats};

use super::{HostWait, PoolSource, StreamPool, UpperTiers};

impl<S: PoolSource<P>, P: BestFit> StreamPool<S, P> {
    /// Called when a block was freed while the pool is over its limit: what is idle now goes back.
    /// Nothing is waited for.
    #[cold]
    pub(crate) fn freed_over_limit(&self, stream: Option<&CudaStream>, bytes: u64) {
        // In a capture no event may be asked.
        let captures = || stream.is_some_and(|stream| self.streams.captures(stream) != Ok(false));
        let none_live = || self.none_live();
        let looked = self.memory.look(bytes, none_live, || {
            if !captures() {
                self.shrink();
            }
        });
        if looked {
            self.memory.node.shared().notify();
        }
    }

    /// Called when an allocation needs the driver while the pool is over its limit: what is idle
    /// goes back first, if it is time to look; and what has gone back since, here or in other
    /// pools, lifts the bound.
    pub(super) fn allocates_over_limit(&self) {
        let none_live = || self.none_live();
        if !self.memory.look(0, none_live, || self.shrink()) {
            self.memory.refresh_limit();
        }
    }

    fn none_live(&self) -> bool {
        let live_bytes = self.memory.stats().live_bytes;
        let upper = self.upper();
        let held =
            |upper: Arc<dyn UpperTiers>| upper.idle_bytes().saturating_add(upper.deferred_bytes());
        live_bytes <= upper.map_or(0, held)
    }

    /// Refreshes the live limit, and gives back what is idle above it. Nothing is waited for.
    pub(crate) fn shrink(&self) {
        self.memory.shrink(|| self.collect(HostWait::MayBlock));
    }

    /// What is held, and what of it would stay if the limit were 0. Memory that events say is out of use is
    /// noticed on the way.
    pub(crate) fn pool_stats(&self) -> PoolStats {
        self.collect(HostWait::MayBlock);
        self.memory.pool_stats()
    }
}
