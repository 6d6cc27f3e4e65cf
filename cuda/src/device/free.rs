//! Frees of blocks.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{
    BestFit, Block, FreeError, RawBlock, RegionPool, Rejected, StreamId, StreamPoint,
};

use super::routes::AllocRoute;
use super::{DeviceAllocError, DeviceAllocator, DeviceFreeError, DeviceInner};
use crate::stream::pool::WantedBy;

impl DeviceAllocator {
    /// Frees a block that several streams use; the first of them can reuse it soonest. The block is free once
    /// the work queued on the other streams so far is known to be done. Neither the host nor the device waits
    /// for that. Until then, the block counts as live. O(streams), no driver call.
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's, or if a wait was refused.
    pub fn free_used_on(
        &self,
        streams: &[Arc<CudaStream>],
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let inner = &*self.0;
        let Some((first, others)) = streams.split_first() else {
            return inner.free_unused(block);
        };
        let (mut block, mut stream_ids) = (block, Vec::new());
        for stream in others {
            match inner.pool.streams().id(stream) {
                Ok(stream_id) if stream_ids.contains(&stream_id) => {}
                Ok(stream_id) => stream_ids.push(stream_id),
                Err(_) => block = inner.pool.context().wait_before_free(stream, block)?,
            }
        }
        let freed_on = inner.pool.streams().id(first);
        if freed_on.is_err() && !others.is_empty() {
            let block = inner.pool.context().wait_before_free(first, block)?;
            return self.free_used_on(others, block);
        }
        stream_ids.retain(|stream_id| freed_on != Ok(*stream_id));
        let (Ok(freed_on), false) = (freed_on, stream_ids.is_empty()) else {
            return self.free(first, block);
        };
        let bytes = block.bytes();
        if inner.is_of_a_window(&block) {
            stream_ids.push(freed_on);
            let points = stream_ids
                .iter()
                .map(|stream_id| inner.pool.streams().point(*stream_id));
            inner.free_in_window(&points.collect::<Vec<_>>(), block)?;
            inner.came_back_on(freed_on, bytes);
            return Ok(());
        }
        if inner.requested_bytes(&block).is_none() {
            return Err(DeviceFreeError::unknown(block));
        }
        let others = stream_ids
            .iter()
            .map(|stream_id| inner.pool.streams().point(*stream_id));
        let point = inner.pool.streams().point(freed_on);
        inner.deferred.defer(block, point, others.collect());
        inner.came_back_on(freed_on, bytes);
        Ok(())
    }

    /// Restores a block that was taken apart by [`Block::into_raw`].
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if there is no such block. A freed block is detected as long as its place has
    /// not been reused.
    pub fn block_from_raw(&self, raw: RawBlock) -> Result<Block, FreeError> {
        self.restore(raw).map(|(block, _)| block)
    }

    /// Restores a block that was taken apart by [`Block::into_raw`]. Returns its requested bytes too.
    pub(crate) fn restore(&self, raw: RawBlock) -> Result<(Block, u64), FreeError> {
        let inner = &*self.0;
        // Arenas and windows are searched first, since a core block that one of them occupies is not
        // the program's.
        let mut arenas = inner.arenas.all();
        let found = arenas.find_map(|(_, arena)| arena.with(|pool| in_use(pool, raw)));
        let found = found.or_else(|| inner.windows.find(|pool| in_use(pool, raw)));
        if let Some(found) = found {
            return Ok(found);
        }
        inner.pool.restore(raw)
    }

    /// Makes work that is queued on `stream` from now on wait, on the device, for all work queued on `after`
    /// so far. Makes the driver calls of at most two events, and none if both are the same stream.
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`] if either stream is being captured, since the program must then fork
    /// and join with events of its own. [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`], and if
    /// the driver refuses.
    pub fn order_after(
        &self,
        stream: &Arc<CudaStream>,
        after: &Arc<CudaStream>,
    ) -> Result<(), DeviceAllocError> {
        let streams = self.0.pool.streams();
        let (stream_id, after) = (streams.id(stream)?, streams.id(after)?);
        let point = streams.point(after);
        if streams.order(stream, stream_id, point, WantedBy::Program)? {
            Ok(())
        } else {
            Err(DeviceAllocError::Capturing)
        }
    }
}

impl DeviceInner {
    /// Frees a block of the core, an arena or a window in the order of a stream.
    #[inline]
    pub(super) fn free_on(
        &self,
        stream_id: StreamId,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        if !block.is_of(self.id) {
            return match self.arenas.of(stream_id) {
                Some(arena) if arena.owns(&block) => {
                    arena.free(block, None).map_err(DeviceFreeError::from_core)
                }
                _ => self.free_of_others(stream_id, block),
            };
        }
        if self.routes.of(stream_id) != AllocRoute::Plain {
            return self
                .free_in_step(stream_id, block)
                .map_err(DeviceFreeError::from_core);
        }
        self.free_to_pool(stream_id, block)
            .map_err(DeviceFreeError::from_core)
    }

    /// Frees a block of the core, in the order of a stream.
    #[inline]
    pub(super) fn free_to_pool(
        &self,
        stream_id: StreamId,
        block: Block,
    ) -> Result<(), Rejected<FreeError>> {
        self.pool
            .free_at(block, self.pool.streams().point(stream_id))
    }

    /// Frees a block on a stream without a number, after waiting for its queued work.
    #[cold]
    pub(super) fn free_elsewhere(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        self.free_unused(self.pool.context().wait_before_free(stream, block)?)
    }

    /// Frees a block that nothing uses any more.
    fn free_unused(&self, block: Block) -> Result<(), Rejected<DeviceFreeError>> {
        let bytes = block.bytes();
        if block.is_of(self.id) {
            self.pool
                .blocks()
                .free(block)
                .map_err(DeviceFreeError::from_core)?;
        } else {
            match self.arenas.owner(&block) {
                Some((_, arena)) => arena
                    .free(block, None)
                    .map_err(DeviceFreeError::from_core)?,
                None => self.free_in_window(&[], block)?,
            }
        }
        self.came_back(bytes);
        Ok(())
    }

    /// Returns whether a block is neither the core's nor an arena's.
    pub(super) fn is_of_a_window(&self, block: &Block) -> bool {
        !block.is_of(self.id) && self.arenas.owner(block).is_none()
    }

    /// Frees a block that belongs to neither the core nor the stream's own arena.
    #[cold]
    fn free_of_others(
        &self,
        stream_id: StreamId,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        match self.arenas.owner(&block) {
            Some((_, arena)) => {
                let point = self.pool.streams().point(stream_id);
                arena
                    .free(block, Some(point))
                    .map_err(DeviceFreeError::from_core)
            }
            None => self.free_in_window(&[self.pool.streams().point(stream_id)], block),
        }
    }

    /// Frees a block of the core or of an arena, which queued work uses up to a point.
    pub(super) fn free_anywhere(
        &self,
        block: Block,
        point: StreamPoint,
    ) -> Result<(), Rejected<FreeError>> {
        match self.arenas.owner(&block) {
            Some((stream_id, arena)) => {
                arena.free(block, (stream_id != point.stream).then_some(point))
            }
            None => self.pool.free_at(block, point),
        }
    }
}

/// Restores a block that was taken apart, if it is in use here, with its requested bytes.
fn in_use(pool: &RegionPool<'_>, raw: RawBlock) -> Option<(Block, u64)> {
    let block = pool.block_from_raw(raw).ok()?;
    let bytes = pool.requested_bytes(&block)?;
    Some((block, bytes))
}
