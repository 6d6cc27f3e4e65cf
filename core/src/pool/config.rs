//! Policies of a pool, as data. Read and checked at construction; only the limits change later.

use core::num::NonZeroU32;

use crate::error::ConfigError;
use crate::units::{Align, Granule, round_up};

/// All policies of one pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// What the pool is called in messages.
    pub name: &'static str,
    /// Most idle buffers to begin with. 0 passes everything through: nothing is kept or counted.
    pub limit_buffers: u32,
    /// Most bytes of idle buffers.
    pub limit_bytes: u64,
    /// The limit of idle buffers rises by itself, to this at most; not at all if it is no more than
    /// [`limit_buffers`](Self::limit_buffers), which must be above 0 unless this is 0.
    ///
    /// When a buffer was evicted for the limit and later its size is missed, the limit rises by one:
    /// one idle buffer more would have served it (the ghost lists of ARC, Megiddo and Modha 2003).
    /// The last 32 evicted sizes are remembered, each with how many buffers went.
    pub max_buffers: u32,
    /// If set, what has been idle for so many calls of
    /// [`Pool::end_step`](super::Pool::end_step) goes back, and a limit that rose comes down by as
    /// much.
    pub age_steps: Option<NonZeroU32>,
    /// Each buffer starts at a multiple of this; a request aligned up to it costs nothing, one above it
    /// the difference.
    pub align: Align,
    /// A pool gives a buffer again to a request of its size only, so sizes are rounded up to
    /// `1 << steps_log2` sizes a doubling, which adds less than `1 / (1 << steps_log2)` of the size.
    /// Sizes that have no finer steps stay. Coarser sizes hit more often and waste more of each
    /// buffer. 31 at most.
    pub steps_log2: u8,
}

impl PoolConfig {
    /// The default with limits: of the buffers to begin with, and of the bytes.
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

    /// How many steps a buffer may be idle by default.
    pub const DEFAULT_AGE_STEPS: u32 = 16;

    /// A limit that should rise must be above 0.
    pub(super) const fn validate(&self, limit_buffers: u32) -> Result<(), ConfigError> {
        if limit_buffers == 0 && self.max_buffers > 0 {
            return Err(ConfigError::PoolLimit);
        }
        Ok(())
    }

    /// Bytes of the buffer that serves a block of `bytes` at a multiple of `align`; `None` if 64 bits
    /// do not count them. O(1).
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

    /// The smallest of the sizes told apart that holds `bytes`. 0 stays 0.
    const fn size_class(&self, bytes: u64) -> Option<u64> {
        // A power of two is its own class, so the doubling is that of the byte before.
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
    /// 64 idle buffers to begin with, of 1 GiB at most.
    fn default() -> Self {
        Self::new(64, 1 << 30)
    }
}
