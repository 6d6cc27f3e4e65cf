//! [`HostPool`]: the core's pool of buffers over the host's memory, with tables of its own.

use core::mem::ManuallyDrop;

use larder_core::pool::{Buffer, Pool, PoolAllocator, PoolConfig};
use larder_core::{BlockAllocator, ConfigError};

use super::cpu_memory::{Binding, CpuMemory};
use super::host::HostBlocks;
use super::watch::{Watch, Watched};
use crate::lock_wait::Yield;
use crate::with_tables::WithTables;

/// Idle buffers to begin with; upstream's, which grows by itself as ours does.
const IDLE: u32 = 100;

/// Most idle bytes: beyond that memory goes back rather than wait.
const IDLE_BYTES: u64 = 1 << 30;

/// Buffers, out or idle, at most.
const BUFFERS: usize = 1 << 16;

/// A pool that owns its tables. Dropped with blocks in use it leaves their memory and its tables alone for as long
/// as the process lives.
pub(super) struct HostPool {
    /// Dropped in `drop`.
    pool: ManuallyDrop<WithTables<PoolAllocator<'static, Watched<CpuMemory>, Yield>>>,
}

impl HostPool {
    /// Holds nothing yet.
    pub(super) fn new(source: CpuMemory, watch: Watch) -> Result<Self, ConfigError> {
        let config = PoolConfig {
            name: "cpu_pool",
            ..PoolConfig::new(IDLE, IDLE_BYTES)
        };
        // SAFETY: the tables go into the pool, which nobody takes apart.
        let pool = unsafe {
            WithTables::try_new(|tables| {
                let buffers = tables.lend(vec![Buffer::VACANT; BUFFERS]);
                let slots = tables.lend(vec![0; 2 * BUFFERS + 1]);
                // Only a configuration or tables that cannot be, and all are fixed.
                let pool = Pool::new(config, buffers, slots)?;
                let source = Watched::new(source, watch);
                Ok::<_, ConfigError>(PoolAllocator::with_wait(pool, source))
            })?
        };
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
        &**self.pool
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
