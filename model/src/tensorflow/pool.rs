//! TensorFlow 1.15's `PoolAllocator`, in one vector.
//!
//! It behaves as the original, its defects excepted: a size that overflows and a sub-allocator that
//! refuses give no block, and nothing is written into the memory. What keeps the buffer of a block is
//! the block's value, where upstream writes a prefix in front of it.

use larder_core::pool::PoolCounters;
use larder_core::{Addr, AddrRange, Align, GrowRequest, SubAllocator, round_down};

/// How sizes are rounded before buffers are compared; `None` for what 64 bits do not count.
pub type Rounder = fn(u64) -> Option<u64>;

/// Upstream's rounder that does nothing.
pub const NO_ROUNDING: Rounder = Some;

/// Upstream's rounder to powers of two. 0 stays 0.
pub const POWER_OF_TWO: Rounder = |bytes| match bytes {
    0 => Some(0),
    _ => bytes.checked_next_power_of_two(),
};

/// The prefix before a block, and the alignment of buffers.
const PREFIX: Align = Align::new(16).unwrap();

/// Bytes of the buffer that serves a block: the prefix, and the alignment on top if it is larger.
pub fn buffer_bytes(bytes: u64, align: Align, rounder: Rounder) -> Option<u64> {
    let extra = if align > PREFIX { align.bytes() } else { 0 };
    let prefixed = bytes.checked_add(PREFIX.bytes())?;
    rounder(prefixed.checked_add(extra)?)
}

/// The first address of a block in its buffer: strictly above the prefix if it is aligned further.
fn block_start(buffer: AddrRange, align: Align) -> Addr {
    let behind = buffer.start().get() + PREFIX.bytes();
    Addr::new(if align > PREFIX {
        round_down(behind, align) + align.bytes()
    } else {
        behind
    })
}

/// A buffer that a caller has, or that is kept.
#[derive(PartialEq, Eq, Debug)]
struct Buffer {
    /// The size by which it is found again.
    bytes: u64,
    range: AddrRange,
}

/// A block of a pool. Goes back with [`PoolAllocator::free`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block's buffer is lost"]
pub struct PoolBlock {
    /// Its first address.
    pub addr: Addr,
    buffer: Buffer,
}

impl PoolBlock {
    /// Bytes from its start to the end of what was asked for its buffer.
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes - (self.addr.get() - self.buffer.range.start().get())
    }
}

/// The pool over a sub-allocator, for one thread.
pub struct PoolAllocator<S> {
    name: &'static str,
    limit_buffers: u32,
    auto_resize: bool,
    rounder: Rounder,
    source: S,
    /// Oldest first.
    kept: Vec<Buffer>,
    counters: PoolCounters,
}

impl<S: SubAllocator> PoolAllocator<S> {
    /// A pool that keeps so many idle buffers; 0 passes everything through. With `auto_resize` the
    /// limit grows. `None` for a limit of 0 that should, where upstream ends the process.
    pub fn new(
        name: &'static str,
        limit_buffers: u32,
        auto_resize: bool,
        rounder: Rounder,
        source: S,
    ) -> Option<Self> {
        (limit_buffers > 0 || !auto_resize).then_some(Self {
            name,
            limit_buffers,
            auto_resize,
            rounder,
            source,
            kept: Vec::new(),
            counters: PoolCounters::default(),
        })
    }

    /// A block of the oldest kept buffer of exactly its size, else of a new one. `None` for zero bytes,
    /// and where upstream's sub-allocator gives null.
    pub fn alloc(&mut self, bytes: u64, align: Align) -> Option<PoolBlock> {
        if bytes == 0 {
            return None;
        }
        let bytes = buffer_bytes(bytes, align, self.rounder)?;
        let counts = u64::from(self.limit_buffers > 0);
        let kept = self.kept.iter().position(|buffer| buffer.bytes == bytes);
        let buffer = if let Some(place) = kept {
            self.counters.from_pool += counts;
            self.kept.remove(place)
        } else {
            self.counters.allocated += counts;
            let request = GrowRequest {
                bytes,
                align: PREFIX,
                at: None,
            };
            let range = self.source.grow(request).ok()?;
            Buffer { bytes, range }
        };
        Some(PoolBlock {
            addr: block_start(buffer.range, align),
            buffer,
        })
    }

    /// Takes a block back and keeps its buffer. The oldest buffer goes if there are too many.
    pub fn free(&mut self, block: PoolBlock) {
        if self.limit_buffers == 0 {
            return self.release(&block.buffer);
        }
        self.counters.put += 1;
        self.kept.push(block.buffer);
        while self.kept.len() > self.limit_buffers as usize {
            let oldest = self.kept.remove(0);
            self.release(&oldest);
            self.counters.evicted += 1;
            self.resize();
        }
    }

    /// After each 1000 evictions the limit grows if more than 0.002 of what was put was evicted **and**
    /// more than 0.002 of what was asked was missed. The counters begin anew then.
    fn resize(&mut self) {
        let counters = self.counters;
        if !self.auto_resize || !counters.evicted.is_multiple_of(1000) {
            return;
        }
        let rate = |part: u64, whole: u64| match whole {
            0 => 0.0,
            _ => part as f64 / whole as f64,
        };
        let asked = counters.allocated + counters.from_pool;
        if rate(counters.evicted, counters.put) > 0.002 && rate(counters.allocated, asked) > 0.002 {
            self.limit_buffers = match self.limit_buffers {
                ..100 => 100,
                limit => (1.1 * f64::from(limit)) as u32,
            };
            self.counters = PoolCounters::default();
        }
    }

    /// Gives back what is kept, and begins the counters anew. The limit stays.
    pub fn clear(&mut self) {
        for buffer in core::mem::take(&mut self.kept) {
            self.release(&buffer);
        }
        self.counters = PoolCounters::default();
    }

    fn release(&self, buffer: &Buffer) {
        // Upstream's sub-allocators cannot refuse; what one of ours does not take is its own.
        self.source.release(buffer.range).ok();
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The four counters.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// The limit of idle buffers, as far as it grew.
    pub fn limit_buffers(&self) -> u32 {
        self.limit_buffers
    }

    /// Idle buffers.
    pub fn idle_buffers(&self) -> usize {
        self.kept.len()
    }

    /// The sub-allocator.
    pub fn source(&self) -> &S {
        &self.source
    }
}
