//! A pool's counters and contents, as values.

use super::buffer::OfState;
use super::{MissTicket, Pool, PoolConfig};
use crate::error::{Cause, OutOfMemory};
use crate::stats::Stats;
use crate::table::list::Linked;

/// TensorFlow's four counters, since the pool was created or [cleared](Pool::clear). None of them changes while the
/// limit is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolCounters {
    /// Number of hits: requests that a cached buffer served.
    pub from_pool: u64,
    /// Number of blocks freed.
    pub put: u64,
    /// Number of misses: requests that no cached buffer served, including those that the sub-allocator refused.
    pub allocated: u64,
    /// Number of buffers released because freed buffers exceeded a limit.
    pub evicted: u64,
}

/// The current contents of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolReport {
    /// The current limit of idle buffers, which may have risen.
    pub limit_buffers: u32,
    /// The limit of idle bytes.
    pub limit_bytes: u64,
    /// Number of buffers whose blocks are in use.
    pub out_buffers: u32,
    /// Number of idle buffers.
    pub idle_buffers: u32,
    /// Bytes of idle buffers.
    pub idle_bytes: u64,
    /// Number of buffers that the sub-allocator did not take back.
    pub stuck_buffers: u32,
    /// Number of buffers that are being released.
    pub leaving_buffers: u32,
}

impl Pool {
    /// Returns TensorFlow's counters.
    pub const fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// Returns the counters that all allocators have. The live bytes of a block extend to the end of its buffer's size.
    /// A pool limits idle bytes, not reserved bytes, so `limit_bytes` is `u64::MAX`.
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Resets the counters that all allocators have, as [`Stats::clear`] does. TensorFlow's counters and the numbers of
    /// allocations continue.
    pub fn clear_stats(&mut self) {
        self.stats.clear();
    }

    /// Returns the current contents.
    pub const fn report(&self) -> PoolReport {
        PoolReport {
            limit_buffers: self.limit_buffers,
            limit_bytes: self.config.limit_bytes,
            out_buffers: self.out,
            idle_buffers: self.idle.count,
            idle_bytes: self.idle_bytes,
            stuck_buffers: self.stuck.count,
            leaving_buffers: self.leaving.count + self.going,
        }
    }

    /// Returns the policies, with the limits as they were last set.
    pub const fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Returns the pool's name.
    pub const fn name(&self) -> &'static str {
        self.config.name
    }

    pub(super) fn out_of_memory(&self, ticket: &MissTicket, cause: Cause) -> OutOfMemory {
        let (mut free_bytes, mut largest_free_bytes) = (0, 0);
        for list in [self.idle, self.stuck] {
            let mut link = list.oldest;
            while link != 0 {
                let record = self.buffers.at(link);
                free_bytes += record.held_bytes;
                largest_free_bytes = record.held_bytes.max(largest_free_bytes);
                link = Linked::<OfState>::previous(record);
            }
        }
        let reserved_bytes = u128::from(self.stats.reserved_bytes) + self.growing_bytes;
        OutOfMemory {
            cause,
            requested_bytes: ticket.asked.bytes,
            rounded_bytes: ticket.bytes,
            limit_bytes: u64::MAX,
            reserved_bytes: u64::try_from(reserved_bytes).unwrap_or(u64::MAX),
            live_bytes: self.stats.live_bytes,
            free_bytes,
            largest_free_bytes,
            pending_bytes: 0,
        }
    }
}
