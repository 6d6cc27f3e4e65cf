//! Blocks that come back.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Bfc, Block, BlockAllocator, FreeError, FreeRejected, Lane, RawBlock, Stamp};

use super::routes::Route;
use super::{DeviceAllocError, DeviceAllocator, DeviceFreeError, DeviceFreeRejected, Inner};

impl DeviceAllocator {
    /// Takes a block back. Work that uses it is queued on `stream` already, or is ordered before what
    /// is queued there now. O(1), no driver call.
    ///
    /// A stream of another context, or one more than can be told apart, is waited for.
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours, or waiting was refused.
    #[inline]
    pub fn free(&self, stream: &Arc<CudaStream>, block: Block) -> Result<(), DeviceFreeRejected> {
        let inner = &*self.0;
        let Ok(lane) = inner.streams.lane(stream) else {
            return inner.free_elsewhere(stream, block);
        };
        let bytes = block.bytes();
        inner.free_on(lane, block)?;
        if inner.motion.is_on() {
            self.freed_in_motion(stream, bytes);
        }
        Ok(())
    }

    /// Takes a block back that several streams use; the first one gets it again soonest. It is given
    /// again when the others were seen to have passed: nothing waits for that, on the host or on the
    /// device. Until then it counts as live. O(streams), no driver call.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn free_used_on(
        &self,
        streams: &[Arc<CudaStream>],
        block: Block,
    ) -> Result<(), DeviceFreeRejected> {
        let inner = &*self.0;
        let Some((first, others)) = streams.split_first() else {
            return inner.free_unused(block);
        };
        let mut lanes = Vec::new();
        for stream in others {
            match inner.streams.lane(stream) {
                Ok(lane) if lanes.contains(&lane) => {}
                Ok(lane) => lanes.push(lane),
                Err(_) => {
                    if let Err(error) = inner.context().wait_for(stream) {
                        let error = DeviceFreeError::Driver(error);
                        return Err(DeviceFreeRejected { block, error });
                    }
                }
            }
        }
        let home = inner.streams.lane(first);
        if home.is_err() && !others.is_empty() {
            if let Err(error) = inner.context().wait_for(first) {
                let error = DeviceFreeError::Driver(error);
                return Err(DeviceFreeRejected { block, error });
            }
            return self.free_used_on(others, block);
        }
        lanes.retain(|lane| home != Ok(*lane));
        let (Ok(home), false) = (home, lanes.is_empty()) else {
            return self.free(first, block);
        };
        if inner.is_of_a_window(&block) {
            lanes.push(home);
            let stamps = lanes.iter().map(|lane| inner.streams.stamp(*lane));
            return inner.free_in_window(&stamps.collect::<Vec<_>>(), block);
        }
        if inner.requested_bytes(&block).is_none() {
            let error = DeviceFreeError::Block(FreeError::Unknown);
            return Err(DeviceFreeRejected { block, error });
        }
        let others = lanes.iter().map(|lane| inner.streams.stamp(*lane));
        let home = inner.streams.stamp(home);
        let bytes = block.bytes();
        inner.parked.park(block, home, others.collect());
        if inner.motion.is_on() {
            self.freed_in_motion(first, bytes);
        }
        Ok(())
    }

    /// Restores a block that was taken apart by [`Block::into_raw`].
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if there is no such block. One that was freed is found out as long as its
    /// place was not given again.
    pub fn block_from_raw(&self, raw: RawBlock) -> Result<Block, FreeError> {
        self.restore(raw).map(|(block, _)| block)
    }

    /// The same, with the bytes that were requested for it.
    pub(crate) fn restore(&self, raw: RawBlock) -> Result<(Block, u64), FreeError> {
        let inner = &*self.0;
        // What lies inside a block of the core's first: such a block is nobody's to take apart.
        let mut arenas = inner.arenas.all();
        let found = arenas.find_map(|(_, arena)| arena.with(|bfc| in_use(bfc, raw)));
        let found = found.or_else(|| inner.windows.find(|bfc| in_use(bfc, raw)));
        if let Some(found) = found {
            return Ok(found);
        }
        inner.pool.with(|paged| {
            let block = paged.block_from_raw(raw)?;
            let bytes = paged.requested_bytes(&block).ok_or(FreeError::Unknown)?;
            Ok((block, bytes))
        })
    }

    /// Makes work that is queued on `stream` from now on wait, on the device, for all that is queued on
    /// `after` now. At most two events' calls, and none for one stream.
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`] if one of them captures: then the program forks and joins by
    /// events of its own. [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`], and if the driver
    /// refuses.
    pub fn order_after(
        &self,
        stream: &Arc<CudaStream>,
        after: &Arc<CudaStream>,
    ) -> Result<(), DeviceAllocError> {
        let streams = &self.0.streams;
        let (lane, after) = (streams.lane(stream)?, streams.lane(after)?);
        if streams.order(stream, lane, streams.stamp(after))? {
            Ok(())
        } else {
            Err(DeviceAllocError::Capturing)
        }
    }
}

impl Inner {
    /// Takes a block back in the order of a lane, wherever it is from.
    #[inline]
    pub(super) fn free_on(&self, lane: Lane, block: Block) -> Result<(), DeviceFreeRejected> {
        if !block.is_of(self.id) {
            return match self.arenas.of(lane) {
                Some(arena) if arena.owns(&block) => arena.free(block, None).map_err(rejected),
                _ => self.free_of_others(lane, block),
            };
        }
        if self.routes.of(lane) != Route::Plain {
            return self.free_in_step(lane, block).map_err(rejected);
        }
        self.free_to_pool(lane, block).map_err(rejected)
    }

    /// Gives a block to the core, in the order of a lane.
    #[inline]
    pub(super) fn free_to_pool(&self, lane: Lane, block: Block) -> Result<(), FreeRejected> {
        self.free_stamped(block, self.streams.stamp(lane))
    }

    /// Gives memory to the core that was no block of the program.
    pub(super) fn free_uncounted(&self, block: Block, stamp: Stamp) -> Result<(), FreeRejected> {
        self.pool.with(|paged| paged.free_after(block, stamp))
    }

    #[inline]
    pub(super) fn free_stamped(&self, block: Block, stamp: Stamp) -> Result<(), FreeRejected> {
        self.pool.with(|paged| {
            let bytes = block.bytes();
            paged.free_after(block, stamp)?;
            self.accounts.freed(stamp.lane, bytes);
            Ok(())
        })
    }

    /// On a stream without a lane: what it has queued is waited for.
    #[cold]
    fn free_elsewhere(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), DeviceFreeRejected> {
        if let Err(error) = self.context().wait_for(stream) {
            let error = DeviceFreeError::Driver(error);
            return Err(DeviceFreeRejected { block, error });
        }
        self.free_unused(block)
    }

    /// Takes a block back that nothing uses any more.
    fn free_unused(&self, block: Block) -> Result<(), DeviceFreeRejected> {
        if block.is_of(self.id) {
            return self.pool.free(block).map_err(rejected);
        }
        match self.arenas.owner(&block) {
            Some((_, arena)) => arena.free(block, None).map_err(rejected),
            None => self.free_in_window(&[], block),
        }
    }

    /// Whether a block is neither the core's nor an arena's.
    pub(super) fn is_of_a_window(&self, block: &Block) -> bool {
        !block.is_of(self.id) && self.arenas.owner(block).is_none()
    }

    /// Takes a block back that is neither the core's nor of the lane's own arena.
    #[cold]
    fn free_of_others(&self, lane: Lane, block: Block) -> Result<(), DeviceFreeRejected> {
        match self.arenas.owner(&block) {
            Some((_, arena)) => {
                let stamp = self.streams.stamp(lane);
                arena.free(block, Some(stamp)).map_err(rejected)
            }
            None => self.free_in_window(&[self.streams.stamp(lane)], block),
        }
    }

    /// Takes a block of the core's or an arena's back, in the order of a stamp.
    pub(super) fn free_anywhere(&self, block: Block, stamp: Stamp) -> Result<(), FreeRejected> {
        match self.arenas.owner(&block) {
            Some((lane, arena)) => arena.free(block, (lane != stamp.lane).then_some(stamp)),
            None => self.free_stamped(block, stamp),
        }
    }
}

/// The block that was taken apart, if it is one of these and in use.
fn in_use(bfc: &Bfc<'_>, raw: RawBlock) -> Option<(Block, u64)> {
    let block = bfc.block_from_raw(raw).ok()?;
    let bytes = bfc.requested_bytes(&block)?;
    Some((block, bytes))
}

pub(crate) fn rejected(rejected: FreeRejected) -> DeviceFreeRejected {
    DeviceFreeRejected {
        block: rejected.block,
        error: DeviceFreeError::Block(rejected.error),
    }
}
