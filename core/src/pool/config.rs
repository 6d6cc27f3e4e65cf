//! Policies of a pool, as data. Read and checked at construction; only the limits change later.

use core::num::NonZeroU32;

use super::rounder::Rounder;
use crate::error::ConfigError;
use crate::units::{Addr, Align, Granule, round_down, round_up};

/// When the limit of idle buffers rises by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitGrowth {
    /// Never.
    Never,
    /// When a buffer was evicted for the limit and later its size is missed: by one for each such
    /// miss, since one idle buffer more would have served it (the ghost lists of ARC, Megiddo and
    /// Modha 2003). The last 32 evicted sizes are remembered, each with how many buffers went.
    Returning {
        /// The limit rises no further than this.
        max_buffers: u32,
    },
    /// TensorFlow's test: after every 1000 evictions, if more than 0.002 of what was put was evicted
    /// **and** more than 0.002 of what was asked was missed, the limit becomes 100, from there on 1.1
    /// of itself, and the counters begin anew.
    BothRates,
}

/// Which of several idle buffers of one size serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// The one that was freed last: its memory is warm, and the others can age.
    Newest,
    /// The one that was freed first; TensorFlow.
    Oldest,
}

/// What a buffer holds besides the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Nothing. An alignment above the buffers' own costs the difference.
    Plain,
    /// A prefix of [`PoolConfig::align`] bytes before the block, as TensorFlow has it; nothing is written
    /// there. An alignment A above that costs A more, and the block starts at the first multiple of A
    /// strictly above the prefix.
    Prefixed,
}

/// All policies of one pool. `default()` is ours, [`tensorflow`](Self::tensorflow) is TensorFlow
/// 1.15's `PoolAllocator`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// What the pool is called in messages.
    pub name: &'static str,
    /// Most idle buffers to begin with. 0 passes everything through: nothing is kept or counted.
    pub limit_buffers: u32,
    /// Most bytes of idle buffers.
    pub limit_bytes: u64,
    /// When the limit of buffers rises by itself.
    pub growth: LimitGrowth,
    /// If set, what has been idle for so many calls of
    /// [`Pool::end_step`](super::Pool::end_step) goes back, and a limit that rose comes down by as
    /// much.
    pub age_steps: Option<NonZeroU32>,
    /// Which of several idle buffers of one size serves.
    pub reuse: Reuse,
    /// What a buffer holds besides the block.
    pub layout: Layout,
    /// Each buffer starts at a multiple of this; a request aligned up to it costs nothing.
    pub align: Align,
    /// Which sizes are told apart.
    pub rounder: Rounder,
    /// Whether idle buffers go back and the sub-allocator is asked again before an allocation fails.
    pub give_back: bool,
}

/// TensorFlow's prefix, and its buffers' alignment.
const TENSORFLOW_ALIGN: Align = match Align::new(16) {
    Some(align) => align,
    None => Align::ONE,
};

impl PoolConfig {
    /// TensorFlow 1.15's pool with its growing limit (`auto_resize`), which needs a limit above 0.
    /// Without that, set [`growth`](Self::growth) to [`LimitGrowth::Never`].
    ///
    /// Behaves as the original, its defects excepted: a size that overflows and a refused
    /// sub-allocator are errors, and nothing is given back under the lock.
    pub const fn tensorflow(limit_buffers: u32) -> Self {
        Self {
            name: "pool",
            limit_buffers,
            limit_bytes: u64::MAX,
            growth: LimitGrowth::BothRates,
            age_steps: None,
            reuse: Reuse::Oldest,
            layout: Layout::Prefixed,
            align: TENSORFLOW_ALIGN,
            rounder: Rounder::Exact,
            give_back: false,
        }
    }

    /// The default with limits: of the buffers to begin with, and of the bytes.
    pub const fn new(limit_buffers: u32, limit_bytes: u64) -> Self {
        Self {
            name: "pool",
            limit_buffers,
            limit_bytes,
            growth: LimitGrowth::Returning {
                max_buffers: u32::MAX,
            },
            age_steps: NonZeroU32::new(Self::DEFAULT_AGE_STEPS),
            reuse: Reuse::Newest,
            layout: Layout::Plain,
            align: Granule::DEFAULT.align(),
            rounder: Rounder::Classes { steps_log2: 3 },
            give_back: true,
        }
    }

    /// How many steps a buffer may be idle by default.
    pub const DEFAULT_AGE_STEPS: u32 = 16;

    /// Passes everything through to the sub-allocator: nothing is kept.
    pub const fn pass_through() -> Self {
        Self {
            growth: LimitGrowth::Never,
            ..Self::new(0, u64::MAX)
        }
    }

    /// A limit that should grow must be above 0.
    pub(super) const fn validate(&self, limit_buffers: u32) -> Result<(), ConfigError> {
        match self.growth {
            LimitGrowth::Never => Ok(()),
            _ if limit_buffers == 0 => Err(ConfigError::PoolLimit),
            _ => Ok(()),
        }
    }

    /// Bytes of the buffer that serves a block of `bytes` at a multiple of `align`; `None` if 64 bits
    /// do not count them. O(1).
    pub const fn buffer_bytes(&self, bytes: u64, align: Align) -> Option<u64> {
        let own = self.align.bytes();
        let more = align.bytes() > own;
        let extra = match (self.layout, more) {
            (Layout::Plain, false) => 0,
            (Layout::Plain, true) => align.bytes() - own,
            (Layout::Prefixed, false) => own,
            (Layout::Prefixed, true) => match own.checked_add(align.bytes()) {
                Some(extra) => extra,
                None => return None,
            },
        };
        let Some(total) = bytes.checked_add(extra) else {
            return None;
        };
        match (self.layout, self.rounder.round(total)) {
            (Layout::Plain, Some(rounded)) => round_up(rounded, self.align),
            (_, rounded) => rounded,
        }
    }

    /// Where the block starts in a buffer that starts at `start`, a multiple of the buffers' alignment.
    /// `None` past the end of the 64-bit space, which no buffer of
    /// [`buffer_bytes`](Self::buffer_bytes) reaches.
    pub(super) const fn block_start(&self, start: u64, align: Align) -> Option<Addr> {
        let more = align.bytes() > self.align.bytes();
        let place = match (self.layout, more) {
            (Layout::Plain, false) => Some(start),
            (Layout::Plain, true) => round_up(start, align),
            (Layout::Prefixed, false) => start.checked_add(self.align.bytes()),
            (Layout::Prefixed, true) => match start.checked_add(self.align.bytes()) {
                Some(behind) => round_down(behind, align).checked_add(align.bytes()),
                None => None,
            },
        };
        match place {
            Some(place) => Some(Addr::new(place)),
            None => None,
        }
    }
}

impl Default for PoolConfig {
    /// Ours: 64 idle buffers to begin with, of 1 GiB at most.
    fn default() -> Self {
        Self::new(64, 1 << 30)
    }
}
