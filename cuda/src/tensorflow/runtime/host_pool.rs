//! [`HostPool`]: the core's pool of buffers over host memory, with tables of its own.

use core::mem::ManuallyDrop;

use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
use larder_core::{BlockAllocator, ConfigError};

use super::cpu_memory::{Binding, CpuMemory};
use super::host::HostBlocks;
use super::watch::{RegionReporter, WatchedSource};
use crate::lock_wait::Yield;

/// Initial maximum number of idle buffers, which rises by itself; both are as upstream.
const IDLE: u32 = 100;

/// Maximum number of idle bytes. Memory beyond it is freed immediately.
const IDLE_BYTES: u64 = 1 << 30;

/// Maximum number of buffers in use or idle.
const BUFFERS: usize = 1 << 16;

/// A pool. If it is dropped with blocks in use, it leaks their memory and its records.
pub(super) struct HostPool {
    /// Dropped in `drop`.
    pool: ManuallyDrop<PoolAllocator<WatchedSource<CpuMemory>, Yield>>,
}

impl HostPool {
    /// Makes a pool that holds nothing yet.
    pub(super) fn new(source: CpuMemory, watch: RegionReporter) -> Result<Self, ConfigError> {
        let config = PoolConfig {
            name: "cpu_pool",
            ..PoolConfig::new(IDLE, IDLE_BYTES)
        };
        let pool = Pool::new(config, BUFFERS)?;
        let pool = PoolAllocator::with_wait(pool, WatchedSource::new(source, watch));
        Ok(Self {
            pool: ManuallyDrop::new(pool),
        })
    }
}

impl Drop for HostPool {
    fn drop(&mut self) {
        self.pool.trim();
        if self.live_blocks() > 0 {
            return;
        }
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.pool) };
    }
}

impl HostBlocks for HostPool {
    fn blocks(&self) -> &dyn BlockAllocator {
        &*self.pool
    }

    fn live_blocks(&self) -> u64 {
        u64::from(self.pool.report().out_buffers)
    }

    fn trim(&self) -> u64 {
        self.pool.trim()
    }

    fn binding(&self) -> Binding {
        self.pool.source().source().binding()
    }
}
