//! The policies of a pool, as data. They are checked when a pool is created; only the limits can change later.

use core::num::NonZeroU32;

use crate::error::ConfigError;
use crate::units::{Align, Granule, round_up};

/// All policies of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// The pool's name in messages.
    pub name: &'static str,
    /// Initial maximum number of idle buffers. If this is 0, no buffer is cached or counted.
    pub limit_buffers: u32,
    /// Maximum bytes of idle buffers.
    pub limit_bytes: u64,
    /// The highest value to which the limit of idle buffers rises by itself. The limit does not rise if this value is
    /// at most [`limit_buffers`](Self::limit_buffers). If this value is not 0, `limit_buffers` must not be 0.
    ///
    /// The limit rises by one when a request misses a size of which a buffer was evicted because of the limit: with one
    /// more idle buffer, the request would have been served (the ghost lists of ARC, Megiddo and Modha 2003). The last
    /// 32 evicted sizes are remembered, each with the number of evicted buffers.
    pub max_buffers: u32,
    /// If set, buffers that were idle for this many calls of [`Pool::end_step`](super::Pool::end_step) are released,
    /// and a limit that has risen falls by their number.
    pub age_steps: Option<NonZeroU32>,
    /// Alignment of each buffer. A request with at most this alignment needs no extra bytes; a larger alignment adds
    /// the difference to the buffer.
    pub align: Align,
    /// Number of sizes between two powers of two, as a logarithm; at most 31. A buffer serves only requests of its
    /// size, so sizes are rounded up to one of `1 << steps_log2` sizes per doubling. This adds less than `1 / (1 <<
    /// steps_log2)` of the size. Small sizes, for which the steps would be below one byte, are not rounded. With
    /// coarser sizes, requests hit more often and waste more of each buffer.
    pub steps_log2: u8,
}

impl PoolConfig {
    /// Creates a default configuration with an initial limit of buffers and a limit of bytes.
    pub const fn new(limit_buffers: u32, limit_bytes: u64) -> Self {
        Self {
            name: "pool",
            limit_buffers,
            limit_bytes,
            max_buffers: u32::MAX,
            age_steps: NonZeroU32::new(Self::DEFAULT_AGE_STEPS),
            align: Granule::DEFAULT.align(),
            steps_log2: 3,
        }
    }

    /// Default number of steps that a buffer may be idle.
    pub const DEFAULT_AGE_STEPS: u32 = 16;

    /// Checks that a limit that is configured to rise is above 0.
    pub(super) const fn validate(&self, limit_buffers: u32) -> Result<(), ConfigError> {
        if limit_buffers == 0 && self.max_buffers > 0 {
            return Err(ConfigError::PoolLimit);
        }
        Ok(())
    }

    /// Returns the size of the buffer that serves a block of `bytes` bytes at a multiple of `align`, or `None` if it
    /// exceeds 64 bits. O(1).
    ///
    /// ```
    /// use larder_core::{Align, pool::PoolConfig};
    /// let config = PoolConfig::default();
    /// assert_eq!(config.buffer_bytes(41_234, Align::ONE), Some(45_056));
    /// assert_eq!(config.buffer_bytes(u64::MAX, Align::ONE), None);
    /// ```
    pub const fn buffer_bytes(&self, bytes: u64, align: Align) -> Option<u64> {
        let extra = align.bytes().saturating_sub(self.align.bytes());
        let Some(total) = bytes.checked_add(extra) else {
            return None;
        };
        match self.size_class(total) {
            Some(rounded) => round_up(rounded, self.align),
            None => None,
        }
    }

    /// Returns the smallest size class that holds `bytes`, or 0 for 0.
    const fn size_class(&self, bytes: u64) -> Option<u64> {
        // A power of two is its own class, so the doubling is that of the number below it.
        let doubling = match bytes.saturating_sub(1).checked_ilog2() {
            Some(doubling) => doubling,
            None => 0,
        };
        let steps_log2 = if self.steps_log2 > 31 {
            31
        } else {
            self.steps_log2 as u32
        };
        match Align::new(1 << doubling.saturating_sub(steps_log2)) {
            Some(step) => round_up(bytes, step),
            None => None,
        }
    }
}

impl Default for PoolConfig {
    /// Creates the default configuration: initially 64 idle buffers, of at most 1 GiB in total.
    fn default() -> Self {
        Self::new(64, 1 << 30)
    }
}
