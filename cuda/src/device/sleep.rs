//! [`DeviceAllocator::sleep`] releases a device's memory for a while, and [`DeviceAllocator::wake`] brings it
//! back at the same addresses, so that another job can use the device in between. Captured graphs, arenas,
//! plans and windows know only addresses, so they stay valid.
//!
//! * While it sleeps, an allocation is refused (`DeviceAllocError::Asleep`) and does not wake the allocator:
//!   waking copies all live memory, may be refused, and takes memory that was promised to another user, so it
//!   must be explicit. Frees, windows that close and steps that end are bookkeeping, and take effect
//!   immediately.
//! * Sleep waits for all work of the context, since streams that the allocator does not know may use its
//!   blocks. A known stream that captures refuses the sleep; the capture of an unknown one is invalidated, as
//!   by any wait for a context.
//! * Sleep copies all memory in use to the core: live blocks, whole pieces of arenas, whole windows, and
//!   blocks that several streams used and have not passed. Idle memory is released before, and not brought
//!   back. Blocks marked as remakable are left out; their addresses stay too.
//! * The host memory is pinned, in pieces, and as long as the copied memory. If the host pins less, the rest
//!   comes from the process heap, if the system has that much memory available.
//!
//! SLEEP1 Before any memory is released all is copied and all copies have been waited for. The copy is
//! dropped only when all of it is back on the device.
//! SLEEP2 The allocator is awake, or asleep with a copy. Any refusal by the driver leaves one of the two: a
//! refused sleep undoes its work, and is asleep if that is refused as well; a refused wake releases again the
//! memory it had brought back. Either can be called again.
//! SLEEP3 While it sleeps, every route refuses. Threads that had read their route before may still be given
//! held free memory; it must not be used before the allocator wakes. Their calls for pages are waited for, or
//! refused.
//! SLEEP4 While it sleeps, nothing is charged except memory that the driver did not take back. Waking charges
//! again, under the limits of that time.
//!
//! The lock of the copy comes before all others of the allocator, and is held by the thread that sleeps or
//! wakes. After the locks of steps and streams, and before the core's, comes the turn of the calls for pages
//! (`stop`). Watchers of mapped memory are called under the first, no callback under the second.

use std::collections::BTreeMap;
use std::sync::Mutex;

use larder_core::{AddrRange, Block, ByteCount, ChunkState, FreeError, StreamId};
use larder_cuda_abi::Code;
use thiserror::Error;

use super::device_pool::PagedStreamPool;
use super::host_copy::HostCopy;
use super::routes::AllocRoute;
use super::{DeviceAllocator, DeviceInner};
use crate::DriverError;
use crate::driver::locked;
use crate::limits::OverBudget;
use crate::source::virtual_memory::Stopped;
use crate::stream::pool::{HostWait, PoolSource};

/// Outcome of [`DeviceAllocator::sleep`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Slept {
    /// Bytes copied to the host: pinned there now, except for `pageable_bytes`.
    pub copied_bytes: u64,
    /// The part of them in memory of the process heap, since the host pinned no more. Its copies are slower.
    pub pageable_bytes: u64,
    /// Bytes of remakable blocks, which were not copied.
    pub dropped_bytes: u64,
    /// Bytes released to the driver, besides idle ones.
    pub released_bytes: u64,
}

/// An error of falling asleep or waking. No contents are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SleepError {
    /// A stream captures, and cannot be waited for.
    #[error("a stream captures: end the capture first")]
    Capturing,
    /// The host has no memory for the copy, pinned or not: on Linux, by `/proc/meminfo` and the limits of
    /// control groups (version 2), read before anything is copied.
    #[error(
        "the host has no {:#} for what is live, and pins no more ({driver}): free memory of the host's, or blocks, or \
         mark blocks as remakable",
        ByteCount(*bytes)
    )]
    Host {
        /// Bytes to be copied.
        bytes: u64,
        /// The driver's refusal.
        driver: DriverError,
    },
    /// The device has too little memory now.
    #[error(
        "the device has no memory for what sleeps ({0}): wake it when others have given theirs back"
    )]
    Device(DriverError),
    /// A budget, or the allocator's own limit, has no room for the sleeping memory.
    #[error("{0}")]
    Budget(OverBudget),
    /// Memory in regions cannot be released while its addresses are kept.
    #[error(
        "the device or the system has no virtual memory, so the memory cannot sleep: free it instead"
    )]
    Regions,
    /// The driver refused a call.
    #[error("{0}; call again, nothing is lost")]
    Driver(DriverError),
}

impl From<DriverError> for SleepError {
    fn from(error: DriverError) -> Self {
        let captures = Code::STREAM_CAPTURE_UNSUPPORTED.0..=Code::STREAM_CAPTURE_WRONG_THREAD.0;
        match error.code() {
            Some(code) if captures.contains(&code.0) => Self::Capturing,
            _ => Self::Driver(error),
        }
    }
}

/// Sleep state of an allocator.
#[derive(Default)]
pub(super) struct AllocatorSleep {
    /// The copy, while the allocator sleeps (SLEEP2).
    copy: Mutex<Option<HostCopy>>,
    remakable: Mutex<UncopiedBlocks>,
}

/// Blocks that need not be copied, as the numbers of their allocations by address. Marks of freed blocks are
/// dropped once there are more than twice as many marks as valid ones.
#[derive(Default)]
struct UncopiedBlocks {
    ids: BTreeMap<u64, u64>,
    most: usize,
}

/// A block in use to the core, which may contain an arena or a window.
struct UsedBlock {
    range: AddrRange,
    id: u64,
}

impl UncopiedBlocks {
    fn has(&self, used: &UsedBlock) -> bool {
        self.ids.get(&used.range.start().get()) == Some(&used.id)
    }

    /// Drops the marks of freed blocks.
    fn keep(&mut self, used: &[UsedBlock]) {
        let kept = used.iter().filter(|used| self.has(used));
        self.ids = kept
            .map(|used| (used.range.start().get(), used.id))
            .collect();
        self.most = 2 * self.ids.len() + 64;
    }
}

impl DeviceAllocator {
    /// Releases all of the device's memory to the driver, and keeps every address. Live memory is copied to
    /// pinned host memory, which no budget counts, or to the process heap's if the host pins no more
    /// ([`Slept::pageable_bytes`]) and the system reports that much memory as available. Until
    /// [`wake`](Self::wake), allocations are refused
    /// ([`DeviceAllocError::Asleep`](crate::DeviceAllocError::Asleep)), frees are accepted, and nothing is
    /// charged to budgets. Counters go on as if the memory were there. If it sleeps already, this only
    /// retries releases that the driver had refused.
    ///
    /// Waits for all work of the context. From the call until `wake` has returned, no work that uses the
    /// memory may be queued on any stream, since it would fail on the device. Uses of
    /// [buffers](crate::DeviceBuffer#asleep) are refused. Graphs captured before stay valid, and must not be
    /// launched. No stream may capture: a known one refuses the sleep, the capture of an unknown one is
    /// invalidated. Any thread may call this, except from a callback of this crate.
    ///
    /// O(live bytes), and two driver calls for each piece of memory and each mapping. The device keeps 2 MiB
    /// for each GiB that the host pins (its page tables, seen on an H200).
    ///
    /// ```no_run
    /// # let context = larder_cuda::Context::new(0)?;
    /// # let stream = context.cudarc().new_stream()?;
    /// let memory = larder_cuda::DeviceAllocator::new(&context)?;
    /// let weights = memory.alloc(&stream, 1 << 30)?;
    /// let scratch = memory.alloc(&stream, 1 << 30)?;
    /// memory.set_remakable(&scratch, true)?;
    /// memory.sleep()?;
    /// // another job has the device
    /// memory.wake()?;
    /// // `weights` holds what it held, at its address; `scratch` whatever
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SleepError`]. The allocator is then awake and unchanged, unless the driver refused both to remove a
    /// mapping and to restore another: then it [is asleep](Self::is_asleep), and this or `wake` continues.
    pub fn sleep(&self) -> Result<Slept, SleepError> {
        let inner = &*self.0;
        let pages = inner.pool.pages().ok_or(SleepError::Regions)?;
        let mut copy = locked(&inner.sleep.copy);
        let slept = match &*copy {
            Some(_) => give_up_the_rest(pages),
            None => {
                inner.routes.set_asleep(true);
                let slept = inner.fall_asleep(pages, &mut copy);
                inner.routes.set_asleep(copy.is_some());
                slept
            }
        };
        drop(copy);
        inner.limits_may_have_changed();
        slept
    }

    /// Brings the memory back at its addresses, with the contents of live blocks; remakable ones have
    /// undefined contents. All of it is ready when this returns, for work of any stream. Returns the bytes
    /// that were copied: 0 if the allocator was awake. O(live bytes), and two driver calls and more for each
    /// piece of memory.
    ///
    /// Present limits apply: a limit below the live bytes refuses, until blocks are freed or it is raised.
    ///
    /// # Errors
    /// [`SleepError`]. The allocator is still asleep, and no contents are lost. Call again later.
    pub fn wake(&self) -> Result<u64, SleepError> {
        let inner = &*self.0;
        let mut copy = locked(&inner.sleep.copy);
        let (Some(saved), Some(pages)) = (&*copy, inner.pool.pages()) else {
            return Ok(0);
        };
        let woken = inner.wake_up(pages, saved);
        if woken.is_ok() {
            inner.routes.set_asleep(false);
            *copy = None;
        }
        drop(copy);
        inner.limits_may_have_changed();
        woken
    }

    /// Returns whether the memory sleeps. Waits for a thread that is falling asleep or waking.
    pub fn is_asleep(&self) -> bool {
        locked(&self.0.sleep.copy).is_some()
    }

    /// Returns whether allocations for the stream are refused because the memory sleeps, falls asleep or
    /// wakes. One load.
    #[inline]
    pub(crate) fn refuses(&self, stream_id: StreamId) -> bool {
        self.0.routes.of(stream_id) == AllocRoute::Asleep
    }

    /// Sets whether a block's contents can be made again: if so, they are not copied while the allocator
    /// [sleeps](Self::sleep), and are undefined afterwards. The mark ends with the block. Blocks in a
    /// capture's window or in a stream's arena (up to 64 KiB) are copied all the same. O(log marks).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if the block is not one of this allocator's.
    pub fn set_remakable(&self, block: &Block, remakable: bool) -> Result<(), FreeError> {
        let inner = &*self.0;
        if inner.requested_bytes(block).is_none() {
            return Err(FreeError::Unknown);
        }
        if !block.is_of(inner.id) {
            return Ok(());
        }
        let id = inner.pool.blocks().allocation_id(block);
        let id = id.ok_or(FreeError::Unknown)?;
        let mut marks = locked(&inner.sleep.remakable);
        if !remakable {
            marks.ids.remove(&block.addr().get());
            return Ok(());
        }
        marks.ids.insert(block.addr().get(), id);
        if marks.ids.len() > marks.most {
            marks.keep(&inner.used());
        }
        Ok(())
    }
}

impl DeviceInner {
    /// Copies live memory and releases it all; `copy` is set if the allocator is asleep afterwards.
    fn fall_asleep(
        &self,
        pages: &PagedStreamPool,
        copy: &mut Option<HostCopy>,
    ) -> Result<Slept, SleepError> {
        self.pool.streams().close_all();
        self.pool.streams().wait_for_context()?;
        self.release_idle();
        let source = pages.shared().source();
        let slept = self.give_up(source.stop_and_tell(), copy);
        if copy.is_none() {
            source.tell_of_return();
        }
        slept
    }

    fn give_up(
        &self,
        mut stopped: Stopped<'_>,
        copy: &mut Option<HostCopy>,
    ) -> Result<Slept, SleepError> {
        stopped.refuse_exported()?;
        let used = self.used();
        let mut marks = locked(&self.sleep.remakable);
        marks.keep(&used);
        let (dropped, kept): (Vec<_>, Vec<_>) = used.iter().partition(|used| marks.has(used));
        drop(marks);
        let bytes_of = |blocks: &[&UsedBlock]| blocks.iter().map(|used| used.range.bytes()).sum();
        let ranges: Vec<AddrRange> = kept.iter().map(|used| used.range).collect();
        let saved = HostCopy::of(self.pool.context(), &ranges)?;
        match stopped.give_up() {
            Ok(released_bytes) => {
                let pageable_bytes = saved.pageable_bytes();
                *copy = Some(saved);
                Ok(Slept {
                    copied_bytes: bytes_of(&kept),
                    pageable_bytes,
                    dropped_bytes: bytes_of(&dropped),
                    released_bytes,
                })
            }
            Err(error) => {
                // No memory was released, so it has its contents once it is mapped again.
                match stopped.bring_back() {
                    Ok(()) => stopped.wake(),
                    Err(_) => *copy = Some(saved),
                }
                Err(error.into())
            }
        }
    }

    /// Brings everything back, or nothing (SLEEP2). Returns the bytes that were copied.
    fn wake_up(&self, pages: &PagedStreamPool, saved: &HostCopy) -> Result<u64, SleepError> {
        // Memory freed during the sleep need not come back.
        self.release_idle();
        let source = pages.shared().source();
        source.forget_over_budget();
        let mut stopped = source.stop();
        let live: Vec<AddrRange> = self.used().iter().map(|used| used.range).collect();
        let back = stopped
            .bring_back()
            .map_err(|error| match source.over_budget() {
                Some(over) => SleepError::Budget(over),
                None if error.is_out_of_memory() => SleepError::Device(error),
                None => error.into(),
            });
        match back.and_then(|()| Ok(saved.restore(&live)?)) {
            Ok(bytes) => {
                stopped.wake();
                source.tell_of_return();
                Ok(bytes)
            }
            Err(error) => {
                // Memory whose release the driver refuses is still held and charged. The next call retries.
                let _ = stopped.give_up();
                Err(error)
            }
        }
    }

    /// Releases memory that no work uses any more.
    fn release_idle(&self) {
        self.pool.poll_events(HostWait::MayBlock);
        self.pool.release(u64::MAX);
    }

    /// Returns the blocks that the core counts as in use, sorted by address. O(chunks).
    fn used(&self) -> Vec<UsedBlock> {
        // Reserved before the lock, with space for chunks that come in between.
        let report = self.pool.report();
        let count = report.used_chunks as usize + report.free_chunks as usize;
        let mut chunks = Vec::with_capacity(2 * count + 16);
        let _ = self.pool.list(&mut chunks);
        let used = chunks.into_iter().filter_map(|chunk| match chunk.state {
            ChunkState::Used { id, .. } => Some(UsedBlock {
                range: chunk.range,
                id,
            }),
            _ => None,
        });
        let mut used: Vec<_> = used.collect();
        used.sort_unstable_by_key(|used| used.range.start());
        used
    }

    /// Recomputes the limit, since charges have changed, or limits while the allocator slept.
    fn limits_may_have_changed(&self) {
        self.pool.refresh_limit();
        self.pool.node().shared().notify();
    }
}

/// Retries, while asleep, the releases that the driver had refused.
fn give_up_the_rest(pages: &PagedStreamPool) -> Result<Slept, SleepError> {
    let bytes = pages.shared().source().stop().give_up()?;
    Ok(Slept {
        released_bytes: bytes,
        ..Slept::default()
    })
}
