//! [`CaptureWindow`]: memory for work that becomes part of a graph.
//!
//! A graph runs repeatedly after its capture, with the addresses of the capture. So memory allocated inside a
//! capture must not be given to any other user as long as the graph may run. A *window* is one block, set
//! aside before the capture begins, with a best fit of its own over it. While it is open, all allocations of
//! its stream come from it, without any driver call; freed blocks return to it, and are reused in the same
//! graph. Once closed, it keeps its memory until it is dropped and its last block is freed. It is carved from
//! the core, never from an arena or a plan: an address is inside one block only.
//!
//! WINDOW1 A window's blocks carry the number of its best fit, by which a free finds the window.
//! WINDOW2 A closed window allocates no more blocks.
//! WINDOW3 A window's memory is freed once, when the window is closed, dropped and empty: in the order of its
//! stream, and after the work that other streams had queued when they freed blocks of it.
//! WINDOW4 A block freed by another stream is not reused in the window: only the program knows whether the
//! window's own stream has joined that stream, and a graph has no events to query.
//!
//! The lock of the list of windows is taken before that of a window, and the core's lock after both.

use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, BestFit, Block, FreeError, RegionConfig, RegionPool, Rejected, Request, StreamId,
    StreamPoint,
};

use super::{AllocRoute, DeviceAllocError, DeviceAllocator, DeviceFreeError, DeviceInner};
use crate::DriverError;
use crate::driver::locked;
use crate::stream::pool::HostWait;
use crate::with_tables::WithTables;

/// Maximum number of blocks and gaps between them in a window.
const CHUNKS: usize = 1 << 12;

/// State of a window.
struct Room {
    pool: WithTables<RegionPool<'static>>,
    /// The memory; `None` once it is freed.
    block: Option<Block>,
    stream_id: StreamId,
    open: bool,
    /// Whether the [`CaptureWindow`] still exists.
    held: bool,
    live: usize,
    /// Points of the work that other streams had queued when they freed blocks, one for each stream
    /// (WINDOW3).
    others: Vec<StreamPoint>,
}

impl Room {
    /// Frees a block that work up to these points uses.
    fn free(&mut self, block: Block, points: &[StreamPoint]) -> Result<(), Rejected<FreeError>> {
        let stream_id = self.stream_id;
        let others = points.iter().filter(|point| point.stream != stream_id);
        match others.clone().next() {
            Some(point) => self.pool.free_after(block, *point)?,
            None => self.pool.free(block)?,
        }
        self.live = self.live.saturating_sub(1);
        others.for_each(|point| {
            self.others.retain(|older| older.stream != point.stream);
            self.others.push(*point);
        });
        Ok(())
    }
}

/// All windows of an allocator.
#[derive(Default)]
pub(super) struct Windows(Mutex<Vec<Arc<Mutex<Room>>>>);

impl Windows {
    /// Returns the first value that `look` finds.
    pub(super) fn find<R>(&self, look: impl Fn(&RegionPool<'static>) -> Option<R>) -> Option<R> {
        let rooms = locked(&self.0);
        rooms.iter().find_map(|room| look(&locked(room).pool))
    }

    fn open_on(&self, stream_id: StreamId) -> Option<Arc<Mutex<Room>>> {
        open_among(&locked(&self.0), stream_id)
    }
}

fn open_among(rooms: &[Arc<Mutex<Room>>], stream_id: StreamId) -> Option<Arc<Mutex<Room>>> {
    let open = |room: &&Arc<Mutex<Room>>| {
        let room = locked(room);
        room.open && room.stream_id == stream_id
    };
    rooms.iter().find(open).cloned()
}

/// Memory for work that becomes part of a graph, from [`DeviceAllocator::prime`]. Keep it as long as the
/// graph.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// # let stream = context.cudarc().new_stream()?;
/// let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// let window = memory.prime(&stream, 64 << 20)?;
/// // begin the capture of `stream`
/// let scratch = memory.alloc(&stream, 1 << 20)?; // from the window
/// memory.free(&stream, scratch)?;
/// // end the capture
/// window.close();
/// // launch the graph, as often as wanted; then
/// drop(window);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the memory is freed as soon as this is dropped"]
pub struct CaptureWindow {
    memory: DeviceAllocator,
    room: Arc<Mutex<Room>>,
    stream_id: StreamId,
    /// Keeps the stream's number in use.
    _stream: Arc<CudaStream>,
    bytes: u64,
}

impl core::fmt::Debug for CaptureWindow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CaptureWindow")
            .field("bytes", &self.bytes)
            .field("peak_bytes", &self.peak_bytes())
            .finish_non_exhaustive()
    }
}

impl CaptureWindow {
    /// Returns the bytes set aside.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the peak of its live bytes: the minimum size of a window for another capture of the same work.
    pub fn peak_bytes(&self) -> u64 {
        locked(&self.room).pool.stats().peak_live_bytes
    }

    /// Closes the window: allocations of the stream are served as usual again. Live blocks of the window stay
    /// valid, and return to it when freed. Dropping the window closes it, too.
    pub fn close(&self) {
        let inner = &*self.memory.0;
        // The list is locked so that no other window of the stream opens before the route of this window is
        // reset.
        let _rooms = locked(&inner.windows.0);
        let was_open = core::mem::replace(&mut locked(&self.room).open, false);
        if was_open {
            inner.pool.streams().set_may_capture(self.stream_id, false);
            inner.routes.set_window(self.stream_id, false);
        }
    }
}

impl Drop for CaptureWindow {
    fn drop(&mut self) {
        self.close();
        locked(&self.room).held = false;
        let inner = &*self.memory.0;
        inner.end_window(&self.room);
        inner.came_back_on(self.stream_id, self.bytes);
    }
}

impl DeviceAllocator {
    /// Sets memory aside for work of a stream that a graph captures, as an open window: until it is
    /// [closed](CaptureWindow::close), the stream's allocations come only from the window. Its blocks are
    /// reused in the order of the stream, without driver calls; a block that another stream freed or used is
    /// not reused in the window.
    ///
    /// Until the window is closed, allocations for other streams do not wait for this stream, since that
    /// could invalidate its capture. So memory that the stream freed before is not reused by other streams.
    /// Close the window only after the capture has ended.
    ///
    /// When the window is dropped, the last run of the graph must have ended, be queued on `stream`, or be
    /// ordered before work queued there.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc); [`DeviceAllocError::Capturing`] if the stream is already being
    /// captured or has an open window.
    pub fn prime(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<CaptureWindow, DeviceAllocError> {
        let inner = &*self.0;
        let stream_id = inner.pool.streams().id(stream)?;
        if inner.pool.streams().captures(stream)? || inner.windows.open_on(stream_id).is_some() {
            return Err(DeviceAllocError::Capturing);
        }
        if inner.routes.of(stream_id) == AllocRoute::Asleep {
            return Err(DeviceAllocError::Asleep);
        }
        let request = Request::new(bytes).on(stream_id);
        let host = HostWait::MayBlock;
        let given = inner.alloc_block(host, || inner.alloc(stream, stream_id, &request, host));
        inner.pool.node().shared().notify();
        let block = given?;
        let (range, bytes) = (block.range(), block.bytes());
        let made = WithTables::region_pool(RegionConfig::fixed(), CHUNKS);
        let made = made.ok().and_then(|mut pool| {
            pool.add_region(range).ok()?;
            Some(pool)
        });
        let Some(pool) = made else {
            // The configuration is valid and the region is the first, so only its size can be wrong.
            let _ = inner.free_to_pool(stream_id, block);
            return Err(DriverError::Size { bytes }.into());
        };
        let room = Arc::new(Mutex::new(Room {
            pool,
            block: Some(block),
            stream_id,
            open: true,
            held: true,
            live: 0,
            others: Vec::new(),
        }));
        let mut rooms = locked(&inner.windows.0);
        if open_among(&rooms, stream_id).is_some() {
            drop(rooms);
            // Another thread opened a window first.
            if let Some(block) = locked(&room).block.take() {
                let _ = inner.free_to_pool(stream_id, block);
            }
            return Err(DeviceAllocError::Capturing);
        }
        rooms.push(room.clone());
        inner.pool.streams().set_may_capture(stream_id, true);
        inner.routes.set_window(stream_id, true);
        drop(rooms);
        Ok(CaptureWindow {
            memory: self.clone(),
            room,
            stream_id,
            _stream: stream.clone(),
            bytes,
        })
    }
}

impl DeviceInner {
    /// Allocates from the open window of a stream. Returns `None` if it has been closed.
    #[cold]
    pub(super) fn alloc_in_window(
        &self,
        stream_id: StreamId,
        request: &Request,
    ) -> Option<Result<Block, DeviceAllocError>> {
        let room = self.windows.open_on(stream_id)?;
        let mut room = locked(&room);
        if !room.open {
            return None;
        }
        let given = room.pool.alloc(&request.without_wait());
        Some(match given {
            Ok(grant) => {
                room.live += 1;
                Ok(grant.block)
            }
            Err(reason @ AllocError::OutOfMemory(_)) => Err(DeviceAllocError::Window { reason }),
            Err(reason) => Err(self.pool.refusal(reason)),
        })
    }

    /// Frees a block that is neither the core's nor an arena's: it is a window's, or unknown. `points` has a
    /// point of each stream that uses the block.
    #[cold]
    pub(super) fn free_in_window(
        &self,
        points: &[StreamPoint],
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let rooms = locked(&self.windows.0);
        let is_its = |room: &&Arc<Mutex<Room>>| block.is_of(locked(room).pool.id());
        let found = rooms.iter().find(is_its).cloned();
        drop(rooms);
        let Some(found) = found else {
            // The core returns the error for an unknown block.
            return self
                .pool
                .blocks()
                .free(block)
                .map_err(DeviceFreeError::from_core);
        };
        locked(&found)
            .free(block, points)
            .map_err(DeviceFreeError::from_core)?;
        self.end_window(&found);
        Ok(())
    }

    /// Frees a window's memory if it is no longer needed (WINDOW3).
    fn end_window(&self, ended: &Arc<Mutex<Room>>) {
        let mut room = locked(ended);
        if room.held || room.open || room.live > 0 {
            return;
        }
        let (block, stream_id) = (room.block.take(), room.stream_id);
        let others = core::mem::take(&mut room.others);
        drop(room);
        if let Some(block) = block {
            locked(&self.windows.0).retain(|room| !Arc::ptr_eq(room, ended));
            if others.is_empty() {
                let freed = self.free_to_pool(stream_id, block);
                debug_assert!(freed.is_ok(), "the window's own block");
            } else {
                self.deferred
                    .defer(block, self.pool.streams().point(stream_id), others);
            }
        }
    }
}
