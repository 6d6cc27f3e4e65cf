//! [`HostPool`]: the core's pool of buffers over the host's memory, with tables of its own.

use core::mem::ManuallyDrop;

use larder_core::pool::{Buffer, Pool, PoolAllocator, PoolConfig};
use larder_core::{BlockAllocator, ConfigError};

use super::cpu_memory::{Binding, CpuMemory};
use super::host::HostMemory;
use super::watch::{Watch, Watched};
use crate::waiting::Yield;

/// Idle buffers to begin with; upstream's, which grows by itself as ours does.
const IDLE: u32 = 100;

/// Most idle bytes: beyond that memory goes back rather than wait.
const IDLE_BYTES: u64 = 1 << 30;

/// Buffers, out or idle, at most.
const BUFFERS: usize = 1 << 16;

/// A pool that owns its tables. Dropped with blocks in use it leaves their memory and its tables alone for as long
/// as the process lives.
///
/// K1 the tables are boxes given up to the pool, which alone reaches them until it is dropped.
pub(super) struct HostPool {
    /// Dropped in `drop`.
    pool: ManuallyDrop<PoolAllocator<'static, Watched<CpuMemory>, Yield>>,
    buffers: *mut [Buffer],
    slots: *mut [u32],
}

// SAFETY: the pool is one that threads share, and the pointers are used in `drop` only (K1).
unsafe impl Send for HostPool {}
// SAFETY: K1: only the pool reaches the tables until it is dropped.
unsafe impl Sync for HostPool {}

impl HostPool {
    /// Holds nothing yet.
    pub(super) fn new(source: CpuMemory, watch: Watch) -> Result<Self, ConfigError> {
        let config = PoolConfig {
            name: "cpu_pool",
            ..PoolConfig::new(IDLE, IDLE_BYTES)
        };
        let buffers = Box::into_raw(vec![Buffer::VACANT; BUFFERS].into_boxed_slice());
        let slots = Box::into_raw(vec![0; 2 * BUFFERS + 1].into_boxed_slice());
        // SAFETY: K1: it was a box a moment ago, and nobody else has it.
        let lent_buffers = unsafe { &mut *buffers };
        // SAFETY: K1: only the pool reaches the tables until it is dropped.
        let lent_slots = unsafe { &mut *slots };
        // Only a configuration or tables that cannot be, and all are fixed.
        let pool = Pool::new(config, lent_buffers, lent_slots)?;
        let pool = PoolAllocator::with_wait(pool, Watched::new(source, watch));
        Ok(Self {
            pool: ManuallyDrop::new(pool),
            buffers,
            slots,
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
        // SAFETY: K1: the pool is gone, so this is a box again.
        drop(unsafe { Box::from_raw(self.buffers) });
        // SAFETY: K1: only the pool reaches the tables until it is dropped.
        drop(unsafe { Box::from_raw(self.slots) });
    }
}

impl HostMemory for HostPool {
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
