//! [`Poisoned`]: fills blocks with a conspicuous pattern when they are allocated and when they are freed.

use super::give_back;
use crate::access::{MemoryAccess, Pattern};
use crate::block::{Block, BlockAllocator, Grant, Request};
use crate::error::{AccessError, AllocError, ConfigError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::{StreamId, StreamPoint};
use crate::sync::{AtomicU64, Ordering};
use crate::units::AddrRange;

/// Resets the requested bytes of every block to a pattern when the block is allocated and when it is freed. A read of
/// bytes that were never written, or are already freed, then stands out. This is TensorFlow's `gpu_nan_reset` for
/// elements of any type. Sizes and allocation numbers are those of the allocator below.
///
/// This has to be the outermost decorator. An allocation or a free costs O(bytes).
///
/// ```
/// use larder_core::decorate::Poisoned;
/// use larder_core::{
///     Addr, AddrRange, RegionPool, Shared, RegionConfig, BlockAllocator, Chunk, FixedRange, Growth, StreamId,
///     MemoryAccess, Pattern, Request, SliceAccess,
/// };
/// let (mut memory, mut table) = ([0u8; 4096], [Chunk::VACANT; 8]);
/// let range = AddrRange::new(Addr::new(0), 4096).unwrap();
/// let growth = Growth::Range { unit_bytes: 4096, ahead_divisor: None };
/// let pool = RegionPool::new(RegionConfig { growth, ..RegionConfig::default() }, &mut table)?;
/// let access = SliceAccess::new(range.start(), &mut memory);
/// let allocator = Shared::new(pool, FixedRange::new(range));
/// let allocator = Poisoned::new(allocator, &access, Pattern::F32_NAN)?;
/// let block = allocator.alloc(&Request::new(12))?.block;
/// let mut float = [0; 4];
/// access.read(StreamId::MAIN, block.addr(), &mut float)?;
/// assert!(f32::from_le_bytes(float).is_nan());
/// allocator.free(block)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Poisoned<A, M> {
    inner: A,
    access: M,
    pattern: Pattern,
    /// Number of frees whose block could not be reset. The counter orders no other memory access.
    failures: AtomicU64,
}

impl<A: BlockAllocator, M: MemoryAccess> Poisoned<A, M> {
    /// Creates a decorator that resets the blocks of `inner` to `pattern`.
    ///
    /// # Errors
    /// [`ConfigError::NoSizes`] if `inner` does not track sizes.
    pub fn new(inner: A, access: M, pattern: Pattern) -> Result<Self, ConfigError> {
        if !inner.tracks_sizes() {
            return Err(ConfigError::NoSizes);
        }
        Ok(Self {
            inner,
            access,
            pattern,
            failures: AtomicU64::new(0),
        })
    }

    /// Returns the allocator below.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Removes the decorator. From then on, blocks are freed to the allocator below.
    pub fn into_inner(self) -> A {
        self.inner
    }

    /// Returns the number of blocks that could not be reset and were freed nevertheless.
    pub fn failures(&self) -> u64 {
        // Relaxed: the counter is independent of other memory.
        self.failures.load(Ordering::Relaxed)
    }

    /// Fills the requested bytes of a block.
    fn reset(&self, stream: StreamId, block: &Block, requested: u64) -> Result<(), AccessError> {
        match AddrRange::new(block.addr(), requested) {
            Some(range) => self.access.fill(stream, range, self.pattern),
            None => Ok(()),
        }
    }
}

impl<A: BlockAllocator, M: MemoryAccess> BlockAllocator for Poisoned<A, M> {
    /// Allocates a block from the allocator below and resets it, after a wait for the grant's point if it has one.
    ///
    /// Fails with [`AllocError::Access`] if the block could not be reset; the block is then freed.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let grant = self.inner.alloc(request)?;
        let ordered = match grant.wait {
            Some(point) => self.access.wait(request.stream, point),
            None => Ok(()),
        };
        let done = ordered.and_then(|()| self.reset(request.stream, &grant.block, request.bytes));
        match done {
            Ok(()) => Ok(grant),
            Err(error) => {
                give_back(&self.inner, grant);
                Err(AllocError::Access(error))
            }
        }
    }

    /// Resets the block, then frees it in the allocator below. With a point, the reset comes after the work queued on
    /// the point's stream. If the free is refused, the block is returned with its contents already reset.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        let Some(requested) = self.inner.requested_bytes(&block) else {
            return Err(Rejected::new(block, FreeError::Unknown));
        };
        let stream = point.map_or(StreamId::MAIN, |point| point.stream);
        if self.reset(stream, &block, requested).is_err() {
            // Relaxed: the counter is independent of other memory.
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.free_at(block, point)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.inner.requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.inner.allocation_id(block)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn clear_stats(&self) {
        self.inner.clear_stats();
    }

    fn owns(&self, block: &Block) -> bool {
        self.inner.owns(block)
    }

    fn tracks_sizes(&self) -> bool {
        self.inner.tracks_sizes()
    }
}
