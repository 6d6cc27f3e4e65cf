//! [`DeviceAllocator::sleep`] releases a device's memory for a while, and [`DeviceAllocator::wake`] brings it
//! back at the same addresses, so that another job can use the device in between. Captured graphs, arenas,
//! plans and windows know only addresses, so they stay valid.
//!
//! * While the allocator sleeps, allocations are refused (`DeviceAllocError::Asleep`) and do not wake it:
//!   waking copies all live memory, may be refused, and takes memory that was promised to another user, so it
//!   must be explicit. Frees, and the ends of windows and steps, are bookkeeping and take effect immediately.
//! * Sleep waits for all work of the context, since streams that the allocator does not know may use its
//!   blocks. Sleep is refused while a known stream is being captured. The capture of an unknown stream is
//!   invalidated, as by any wait for a context.
//! * Sleep copies all memory that the core counts as in use: live blocks, whole pieces of arenas, whole
//!   windows, and blocks whose multi-stream frees are still waiting. Idle memory is released first and not
//!   brought back. Blocks marked as remakable are not copied, but they keep their addresses too.
//! * The copy lies in pieces of pinned host memory, as long as the copied memory. If the host can pin no more,
//!   the rest comes from the process heap, provided that the system has that much memory available.
//!
//! SLEEP1 Before any memory is released, everything is copied and all copies have been waited for. The copy is
//! dropped only when all of it is back on the device.
//! SLEEP2 The allocator is awake, or asleep with a copy. A refusal by the driver leaves it in one of these two
//! states: a refused sleep is undone, or leaves the allocator asleep if undoing is refused as well; a refused
//! wake releases the memory that it had brought back. Either can be called again.
//! SLEEP3 While the allocator sleeps, every route refuses. Threads that read their route earlier may still be
//! given held free memory, which must not be used before the allocator wakes. Their calls for pages are waited
//! for, or refused.
//! SLEEP4 While the allocator sleeps, nothing is charged except memory whose release the driver refused. Waking
//! charges the memory again, under the limits in force at that time.
//!
//! The lock of the copy comes before all others of the allocator, and is held by the thread that puts the
//! allocator to sleep or wakes it. The lock of the calls for pages (`stop`) comes after the locks of steps and
//! streams, and before the core's. Watchers of mapped memory are called under the lock of the copy; no callback
//! is called under that of the calls for pages.

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
    /// The part of `copied_bytes` in the process heap, because the host pinned no more. Copying it is slower.
    pub pageable_bytes: u64,
    /// Bytes of remakable blocks, which were not copied.
    pub dropped_bytes: u64,
    /// Bytes released to the driver, not counting idle memory.
    pub released_bytes: u64,
}

/// An error of [`sleep`](DeviceAllocator::sleep) or [`wake`](DeviceAllocator::wake). No contents are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SleepError {
    /// A stream is being captured, so it cannot be waited for.
    #[error("a stream is being captured: end the capture first")]
    Capturing,
    /// The host has no memory for the copy, pinned or not. On Linux, `/proc/meminfo` and the limits of cgroup
    /// v2 are read for this before anything is copied.
    #[error(
        "the host has no room for {:#} of live memory, and pins no more ({driver}): free host memory or blocks, or \
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
        "the device has no memory for what sleeps ({0}): wake it when others have released theirs"
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

/// Blocks that need not be copied: the numbers of their allocations, by address. Marks of freed blocks are
/// dropped once the number of marks has more than doubled since the last time.
#[derive(Default)]
struct UncopiedBlocks {
    ids: BTreeMap<u64, u64>,
    most: usize,
}

/// A block that the core counts as in use. It may be a piece of an arena, or a window.
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
    /// pinned host memory, which no budget counts. If the host can pin no more, the rest is copied to the
    /// process heap ([`Slept::pageable_bytes`]), provided that the system has enough memory available. Until
    /// [`wake`](Self::wake), allocations are refused
    /// ([`DeviceAllocError::Asleep`](crate::DeviceAllocError::Asleep)), frees are accepted, and nothing is
    /// charged to budgets. Counters go on as if the memory were there. If the allocator sleeps already, this
    /// only retries the releases that the driver had refused.
    ///
    /// Waits for all work of the context. From the call until `wake` has returned, no work that uses the memory
    /// may be queued on any stream, since it would fail on the device. Uses of
    /// [buffers](crate::DeviceBuffer#asleep) are refused. Graphs captured earlier stay valid, but must not be
    /// launched. No stream may be in a capture: the call is refused while a known stream is being captured, and
    /// the capture of an unknown stream is invalidated. Any thread may call this, except from a callback of
    /// this crate.
    ///
    /// O(live bytes), and two driver calls for each piece of memory and each mapping. The device keeps 2 MiB
    /// for each GiB that the host pins (for its page tables; seen on an H200).
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
    /// // `weights` has its old address and contents; `scratch` has undefined contents
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SleepError`]. The allocator is then awake and unchanged, unless the driver refused both to remove a
    /// mapping and to restore another. Then it [is asleep](Self::is_asleep); call this or `wake` to continue.
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

    /// Brings the memory back at its addresses, with the contents of live blocks; remakable blocks have
    /// undefined contents. When this returns, all of the memory is ready for work of any stream. Returns the
    /// number of bytes copied: 0 if the allocator was awake. O(live bytes), and at least two driver calls for
    /// each piece of memory.
    ///
    /// The current limits apply: waking under a limit below the live bytes is refused until blocks are freed or
    /// the limit is raised.
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

    /// Returns whether allocations for the stream are refused because the memory is asleep, falling
    /// asleep or waking. One load.
    #[inline]
    pub(crate) fn refuses(&self, stream_id: StreamId) -> bool {
        self.0.routes.of(stream_id) == AllocRoute::Asleep
    }

    /// Sets whether a block's contents can be made again. If so, they are not copied when the allocator
    /// [sleeps](Self::sleep), and are undefined afterwards. The mark ends with the block. Blocks in a
    /// capture's window or in a stream's arena (up to 64 KiB) are still copied. O(log marks).
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
    /// Copies live memory and releases all memory; `copy` is set if the allocator is asleep afterwards.
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
                // No memory was released, so all of it has its contents once it is mapped again.
                match stopped.bring_back() {
                    Ok(()) => stopped.wake(),
                    Err(_) => *copy = Some(saved),
                }
                Err(error.into())
            }
        }
    }

    /// Brings all memory back, or none (SLEEP2). Returns the number of bytes copied.
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

    /// Releases free memory that no work uses any more.
    fn release_idle(&self) {
        self.pool.poll_events(HostWait::MayBlock);
        self.pool.release(u64::MAX);
    }

    /// Returns the blocks that the core counts as in use, sorted by address. O(chunks).
    fn used(&self) -> Vec<UsedBlock> {
        // Reserved before the lock is taken, with space for chunks that are added in between.
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

    /// Recomputes the limit: charges have changed, and limits may have changed while the allocator slept.
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
