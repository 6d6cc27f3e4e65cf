//! [`BlockPool`]: blocks of one size at fixed addresses, by number, as the pages of a paged cache.

use core::fmt;
use core::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::AllocError;

use super::index_set::IndexSet;
use super::reserved::ReservedBuffer;
use crate::stream::pool::HostWait;
use crate::{BufferView, BufferViewMut, DeviceAllocError, DeviceAllocator, Loan};

/// Up to `max_blocks` blocks of `block_bytes` bytes each, side by side at addresses that never change.
///
/// A unit of the [`ReservedBuffer`] below has memory while any of its blocks is in use. The lowest free block that has
/// memory is allocated first, or else the lowest free one. So the end of the pool empties when fewer blocks are in use,
/// and its memory is idle memory of the allocator at once; [`compact`](Self::compact) says which blocks to move so that
/// as few units as possible stay. A kernel takes the first address and a table of block numbers.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// # let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// # let stream = context.cudarc().new_stream()?;
/// let mut cache = memory.block_pool(&stream, 256 << 10, 100_000)?;
/// let first = cache.alloc(&stream)?;
/// stream.memset_zeros(&mut cache.get_mut(first).unwrap())?;
/// cache.free(&stream, first)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlockPool {
    reserved: ReservedBuffer<u8>,
    block_bytes: usize,
    used: IndexSet,
    free: IndexSet,
    /// Free blocks that have memory, because blocks in use share their units.
    backed: IndexSet,
    len: usize,
    max_len: usize,
}

/// A block to be moved; see [`BlockPool::compact`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMove {
    /// The block in use.
    pub from: usize,
    /// The block that takes its place, allocated already.
    pub to: usize,
}

impl DeviceAllocator {
    /// Makes a pool of blocks without memory; see [`BlockPool`]. Makes no driver call.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve), and with [`AllocError::ZeroSize`] inside for blocks of no bytes.
    pub fn block_pool(
        &self,
        stream: &Arc<CudaStream>,
        block_bytes: usize,
        max_blocks: usize,
    ) -> Result<BlockPool, DeviceAllocError> {
        if block_bytes == 0 && max_blocks > 0 {
            return Err(DeviceAllocError::reason(AllocError::ZeroSize));
        }
        let reserved = self.reserve(stream, block_bytes.saturating_mul(max_blocks))?;
        let mut free = IndexSet::new(max_blocks);
        (0..max_blocks).for_each(|block| free.insert(block));
        Ok(BlockPool {
            reserved,
            block_bytes,
            used: IndexSet::new(max_blocks),
            free,
            backed: IndexSet::new(max_blocks),
            len: 0,
            max_len: max_blocks,
        })
    }
}

impl BlockPool {
    /// Returns the number of blocks in use.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no block is in use.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the largest number of blocks.
    pub const fn max_len(&self) -> usize {
        self.max_len
    }

    /// Returns the size of a block in bytes.
    pub const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the size of a unit in bytes: memory comes and goes in units.
    pub const fn unit_bytes(&self) -> u64 {
        self.reserved.unit_bytes()
    }

    /// Returns the bytes of memory behind the blocks.
    pub fn committed_bytes(&self) -> u64 {
        self.reserved.committed_bytes()
    }

    /// Returns the loan of what is committed beyond a guarantee; by default all of the pool is guaranteed. It counts
    /// whole units, so [`compact`](Self::compact) the pool to return as many bytes as are recalled.
    pub const fn loan(&self) -> &Loan {
        self.reserved.loan()
    }

    /// Returns a view of a block in use; `None` if it is free.
    pub fn get(&self, block: usize) -> Option<BufferView<'_, u8>> {
        let range = self.range_of(block)?;
        self.reserved.get(range)
    }

    /// Returns a view of a block in use, for writing; `None` if it is free.
    pub fn get_mut(&mut self, block: usize) -> Option<BufferViewMut<'_, u8>> {
        let range = self.range_of(block)?;
        self.reserved.get_mut(range)
    }

    /// Returns a view of all blocks, in use or not, for kernels that take the first address.
    ///
    /// # Safety
    /// Work to which the view is passed accesses blocks in use only.
    pub unsafe fn whole_mut(&mut self) -> BufferViewMut<'_, u8> {
        // SAFETY: as promised: blocks in use are committed.
        unsafe { self.reserved.whole_mut() }
    }

    /// Sets whether the contents can be made again; see [`ReservedBuffer::set_remakable`].
    pub fn set_remakable(&mut self, remakable: bool) {
        self.reserved.set_remakable(remakable);
    }

    /// Allocates the lowest free block that has memory, or else the lowest free one, for work that is queued on `stream`
    /// from now on; its contents are undefined. O(1), and O(blocks of a unit) with the driver calls of a
    /// [commit](ReservedBuffer::commit) if it is the first block of its unit; `stream` waits, on the device, for the
    /// other streams that have used the pool.
    ///
    /// # Errors
    /// [`DeviceAllocError::Full`] if all blocks are in use; otherwise those of [`commit`](ReservedBuffer::commit).
    /// Nothing has changed then.
    pub fn alloc(&mut self, stream: &Arc<CudaStream>) -> Result<usize, DeviceAllocError> {
        let full = DeviceAllocError::Full { max: self.max_len };
        let backed = self.backed.first();
        let block = backed.or_else(|| self.free.first()).ok_or(full)?;
        let units = self.units_of(block);
        self.reserved
            .commit_units(stream, units.clone(), HostWait::MayBlock)?;
        if let Err(error) = self.reserved.order(stream) {
            // No work uses the block yet.
            self.reserved.release_units(stream, units);
            return Err(error);
        }
        self.free.remove(block);
        self.backed.remove(block);
        self.used.insert(block);
        self.len += 1;
        if backed.is_none() {
            self.note_backed(units);
        }
        Ok(block)
    }

    /// Frees a block in the order of `stream`, after all uses of the pool so far. O(1), and O(blocks of a unit) if it is
    /// the last one of its unit; no driver call unless other streams have used the pool.
    ///
    /// # Errors
    /// [`DeviceAllocError::NotCommitted`] if the block is not in use; otherwise those of
    /// [`decommit`](ReservedBuffer::decommit). Nothing has changed then.
    pub fn free(&mut self, stream: &Arc<CudaStream>, block: usize) -> Result<(), DeviceAllocError> {
        if !self.used.contains(block) {
            return Err(DeviceAllocError::NotCommitted);
        }
        let units = self.units_of(block);
        self.reserved.decommit_units(stream, units.clone())?;
        self.used.remove(block);
        self.free.insert(block);
        self.len -= 1;
        match self.reserved.is_committed(self.bytes_of(block)) {
            true => self.backed.insert(block),
            false => self.note_backed(units),
        }
        self.loan().end_claim();
        Ok(())
    }

    /// Frees all blocks in the order of `stream`, as [`free`](Self::free) does. O(blocks). Also while the allocator
    /// sleeps: then [`wake`](DeviceAllocator::wake) brings no memory back for the pool.
    ///
    /// # Errors
    /// The errors of [`free`](Self::free). The blocks that were not freed are still in use.
    pub fn clear(&mut self, stream: &Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        while let Some(block) = self.used.last() {
            self.free(stream, block)?;
        }
        Ok(())
    }

    /// Returns which blocks to move so that units at the end of the pool become empty, and allocates the places, which
    /// have memory already. The caller [copies](Self::copy) each block, then frees `from`. There are no moves if none
    /// of these units would become empty, or if the driver refuses to order `stream`. O(moves and blocks of a unit).
    #[must_use = "the places are allocated, and free only when the moves are made or undone"]
    pub fn compact(&mut self, stream: &Arc<CudaStream>) -> Vec<BlockMove> {
        let mut moves: Vec<BlockMove> = Vec::new();
        while let (Some(lowest), Some(from)) = (self.backed.first(), self.used.last())
            && lowest < from
            && let Ok(to) = self.alloc(stream)
        {
            // Out of the search, until all moves are known.
            self.used.remove(from);
            moves.push(BlockMove { from, to });
        }
        let kept_end = self.used.last().map_or(0, |block| self.units_of(block).end);
        // Moves out of a unit that stays in use would free nothing.
        while let Some(BlockMove { from, to }) =
            moves.pop_if(|it| self.units_of(it.from).end <= kept_end)
        {
            self.used.insert(from);
            let freed = self.free(stream, to);
            debug_assert!(freed.is_ok(), "ordered above, and not used since");
        }
        for BlockMove { from, .. } in &moves {
            self.used.insert(*from);
        }
        moves
    }

    /// Copies a block in use to another one, in the order of `stream`.
    ///
    /// # Errors
    /// [`DeviceAllocError::NotCommitted`] if one of them is free; [`DeviceAllocError::Asleep`], and if the driver
    /// refuses.
    pub fn copy(
        &mut self,
        stream: &Arc<CudaStream>,
        from: usize,
        to: usize,
    ) -> Result<(), DeviceAllocError> {
        let (Some(from), Some(to)) = (self.range_of(from), self.range_of(to)) else {
            return Err(DeviceAllocError::NotCommitted);
        };
        if from == to {
            return Ok(());
        }
        self.reserved.order(stream)?;
        let memory = self.reserved.allocator().clone();
        // SAFETY: cut to the two blocks, which are in use and so committed.
        let whole = unsafe { self.reserved.whole_mut() };
        let (mut below, mut above) = whole.split_at_mut(from.start.max(to.start));
        let bytes = self.block_bytes;
        let copied = memory.call("cuMemcpyDtoDAsync_v2", || match from.start < to.start {
            true => stream.memcpy_dtod(&below.as_view().slice(from), &mut above.slice_mut(..bytes)),
            false => stream.memcpy_dtod(&above.as_view().slice(..bytes), &mut below.slice_mut(to)),
        });
        Ok(copied?)
    }

    /// Notes which free blocks near these units have memory.
    fn note_backed(&mut self, units: Range<usize>) {
        let unit_bytes = self.reserved.unit_bytes();
        let block_bytes = self.block_bytes.max(1) as u64;
        let first = units.start as u64 * unit_bytes / block_bytes;
        let end = (units.end as u64 * unit_bytes).div_ceil(block_bytes);
        for block in first as usize..(end as usize).min(self.max_len) {
            let is_backed =
                self.free.contains(block) && self.reserved.is_committed(self.bytes_of(block));
            match is_backed {
                true => self.backed.insert(block),
                false => self.backed.remove(block),
            }
        }
    }

    fn units_of(&self, block: usize) -> Range<usize> {
        let units = self.reserved.units_of(&self.bytes_of(block));
        units.unwrap_or_default()
    }

    /// Returns the bytes of a block.
    fn bytes_of(&self, block: usize) -> Range<usize> {
        // Cannot overflow: the pool's size was checked when it was made.
        block * self.block_bytes..(block + 1) * self.block_bytes
    }

    fn range_of(&self, block: usize) -> Option<Range<usize>> {
        self.used.contains(block).then(|| self.bytes_of(block))
    }
}

impl fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockPool")
            .field("len", &self.len)
            .field("reserved", &self.reserved)
            .finish_non_exhaustive()
    }
}
