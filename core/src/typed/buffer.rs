//! [`HostBuffer`]: best fit over a buffer of the caller.

use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::num::NonZeroUsize;
use core::ptr::NonNull;

use super::HostMemory;
use crate::best_fit::BestFit;
use crate::block::{AllocatorId, Block, BlockAllocator, Grant, Request};
use crate::engine::Chunk;
use crate::error::{AllocError, ConfigError, FreeError, Rejected};
use crate::regions::{RegionConfig, RegionPool};
use crate::stats::Stats;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::sync::{Locked, Spin, Wait, number_given_once};
use crate::units::{Addr, AddrRange, Granule, round_down, round_up};

/// A [`RegionPool`] over one buffer, behind a lock; `W` is how threads wait for it.
///
/// It manages the granules that lie entirely inside the buffer. The pool itself is not accessible: it could free by
/// address, which TYPED5 of the [module](super) excludes. For the same reason the allocator's number is used only once
/// in the life of the process, so that a block left over from an earlier allocator over the same table or buffer is
/// foreign here.
pub struct HostBuffer<'t, 'm, W: Wait = Spin> {
    pool: Locked<RegionPool<'t>, W>,
    id: AllocatorId,
    /// Start of the buffer, with access to all of it.
    start: NonNull<u8>,
    buffer: PhantomData<&'m mut [MaybeUninit<u8>]>,
}

// SAFETY: the buffer is borrowed exclusively, so the borrower may move to another thread; the lock guards the rest.
unsafe impl<W: Wait> Send for HostBuffer<'_, '_, W> {}
// SAFETY: a shared reference gives access to blocks only, and each part of the buffer to one caller (BFC1).
unsafe impl<W: Wait> Sync for HostBuffer<'_, '_, W> {}

impl<'t, 'm, W: Wait> HostBuffer<'t, 'm, W> {
    /// Creates an allocator over all of `buffer`. The growth policy of `config` is ignored, because the buffer does not
    /// grow.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(
        buffer: &'m mut [MaybeUninit<u8>],
        config: RegionConfig,
        table: &'t mut [Chunk],
    ) -> Result<Self, ConfigError> {
        let mut pool = RegionPool::new(config, table)?;
        let number = number_given_once(AllocatorId::GIVEN_ONCE).ok_or(ConfigError::Numbers)?;
        pool.set_id(AllocatorId::once(number));
        let granule = pool.granule();
        let start = NonNull::from(&mut *buffer).cast::<u8>();
        let range = whole_granules(start, buffer.len(), granule);
        let range = range.ok_or(ConfigError::Buffer)?;
        let added = pool.add_region(range);
        added.map_err(|rejected| ConfigError::Region(rejected.error))?;
        Ok(Self {
            id: pool.id(),
            pool: Locked::new(pool),
            start,
            buffer: PhantomData,
        })
    }

    /// Reports that the events of `stream` up to `event` are completed; see [`RegionPool::complete`].
    pub fn complete(&self, stream: StreamId, event: EventNumber) {
        self.pool.with(|pool| pool.complete(stream, event));
    }
}

/// Returns the granules that lie wholly inside a buffer.
fn whole_granules(start: NonNull<u8>, bytes: usize, granule: Granule) -> Option<AddrRange> {
    let (start, bytes) = (start.addr().get() as u64, bytes as u64);
    let align = granule.align();
    let first = round_up(start, align)?;
    let end = round_down(start.checked_add(bytes)?, align);
    let bytes = end.checked_sub(first).filter(|bytes| *bytes > 0)?;
    AddrRange::new(Addr::new(first), bytes)
}

impl<W: Wait> BlockAllocator for HostBuffer<'_, '_, W> {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        self.pool.with(|pool| pool.alloc(request))
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        self.pool.with(|pool| match point {
            None => pool.free(block),
            Some(point) => pool.free_after(block, point),
        })
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.pool.with(|pool| pool.requested_bytes(block))
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.pool.with(|pool| pool.allocation_id(block))
    }

    fn owns(&self, block: &Block) -> bool {
        block.is_of(self.id)
    }

    fn stats(&self) -> Stats {
        self.pool.with(|pool| pool.stats())
    }

    fn clear_stats(&self) {
        self.pool.with(RegionPool::clear_stats);
    }
}

// SAFETY: TYPED4: the region is the buffer's, blocks lie inside it at the alignment of their requests, and `start` may
// access all of it. TYPED5: the buffer is borrowed exclusively. The pool allocates each address to one block at a time
// (BFC1), and memory in use by a stream only with a wait. The pool is not accessible from outside, and no other
// allocator has its number, so it accepts only its own blocks. TYPED6: the buffer outlives `self`.
unsafe impl<W: Wait> HostMemory for HostBuffer<'_, '_, W> {
    fn pointer(&self, block: &Block) -> NonNull<u8> {
        // Every address of the buffer fits a `usize` and is not 0.
        let address = usize::try_from(block.addr().get()).ok();
        match address.and_then(NonZeroUsize::new) {
            Some(address) => self.start.with_addr(address),
            None => self.start,
        }
    }
}

impl<W: Wait> fmt::Debug for HostBuffer<'_, '_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
