//! TensorFlow 1.15's `PoolAllocator`, in one vector.
//!
//! It behaves like the original, without two of its defects: if a size overflows or the sub-allocator refuses, there is
//! no block, and no memory is written. The block's value contains its buffer; upstream writes a prefix in front of the
//! block instead.

use larder_core::pool::PoolCounters;
use larder_core::{Addr, AddrRange, Align, GrowRequest, SubAllocator, round_down};

/// A function that rounds sizes before buffers are compared. It returns `None` if the result exceeds 64 bits.
pub type Rounder = fn(u64) -> Option<u64>;

/// Upstream's rounder that changes nothing.
pub const NO_ROUNDING: Rounder = Some;

/// Upstream's rounder to powers of two. 0 stays 0.
pub const POWER_OF_TWO: Rounder = |bytes| match bytes {
    0 => Some(0),
    _ => bytes.checked_next_power_of_two(),
};

/// The prefix before a block, and the alignment of buffers.
const PREFIX: Align = Align::new(16).unwrap();

/// Returns the rounded size of a block's buffer, which includes the prefix, and also the alignment if it is larger than
/// the prefix.
pub fn buffer_bytes(bytes: u64, align: Align, rounder: Rounder) -> Option<u64> {
    let extra = if align > PREFIX { align.bytes() } else { 0 };
    let prefixed = bytes.checked_add(PREFIX.bytes())?;
    rounder(prefixed.checked_add(extra)?)
}

/// Returns the first address of a block in its buffer: strictly above the prefix's end if the alignment is larger than
/// the prefix.
fn block_start(buffer: AddrRange, align: Align) -> Addr {
    let behind = buffer.start().get() + PREFIX.bytes();
    Addr::new(if align > PREFIX {
        round_down(behind, align) + align.bytes()
    } else {
        behind
    })
}

/// A buffer, in use or idle.
#[derive(PartialEq, Eq, Debug)]
struct Buffer {
    /// The size for which the buffer is reused.
    bytes: u64,
    range: AddrRange,
}

/// A block of a pool. Freed with [`PoolAllocator::free`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block's buffer is lost"]
pub struct PoolBlock {
    /// Its first address.
    pub addr: Addr,
    buffer: Buffer,
}

impl PoolBlock {
    /// Returns the bytes from the block's start to the end of the buffer's requested size.
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes - (self.addr.get() - self.buffer.range.start().get())
    }
}

/// A pool over a sub-allocator, for one thread.
pub struct PoolAllocator<S> {
    name: &'static str,
    limit_buffers: u32,
    auto_resize: bool,
    rounder: Rounder,
    source: S,
    /// The idle buffers, oldest first.
    kept: Vec<Buffer>,
    counters: PoolCounters,
}

impl<S: SubAllocator> PoolAllocator<S> {
    /// Creates a pool that keeps up to `limit_buffers` idle buffers; with 0, it passes everything through. With
    /// `auto_resize`, the limit grows. Returns `None` for a limit of 0 with `auto_resize`, where upstream ends the
    /// process.
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

    /// Allocates a block in the oldest idle buffer of exactly its size, or in a new buffer if there is none. Returns
    /// `None` for zero bytes, and where upstream's sub-allocator returns null.
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

    /// Frees a block and keeps its buffer. Evicts the oldest buffers above the limit.
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

    /// Raises the limit and restarts the counters after every 1000 evictions, if more than 0.002 of the buffers kept
    /// were evicted **and** more than 0.002 of the requests missed.
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

    /// Releases the idle buffers and restarts the counters. The limit stays.
    pub fn clear(&mut self) {
        for buffer in core::mem::take(&mut self.kept) {
            self.release(&buffer);
        }
        self.counters = PoolCounters::default();
    }

    fn release(&self, buffer: &Buffer) {
        // Upstream's sub-allocators cannot refuse. If one of ours does, the range is lost.
        self.source.release(buffer.range).ok();
    }

    /// Returns the pool's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the four counters.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// Returns the limit of idle buffers, including its growth.
    pub fn limit_buffers(&self) -> u32 {
        self.limit_buffers
    }

    /// Returns the number of idle buffers.
    pub fn idle_buffers(&self) -> usize {
        self.kept.len()
    }

    /// Returns the sub-allocator.
    pub fn source(&self) -> &S {
        &self.source
    }
}
