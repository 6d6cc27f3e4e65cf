//! [`DeviceAllocator::sleep`] gives a device's memory up for a while, and [`DeviceAllocator::wake`] brings it
//! back at the same addresses, so that another job can use the device meanwhile. Captured graphs, arenas,
//! plans and windows know addresses only, so they stay valid.
//!
//! * Asleep, an allocation is refused (`DeviceAllocError::Asleep`) and does not wake: waking copies all that
//!   is live, may be refused, and takes memory that somebody was promised; that is to be said, not to happen.
//!   Frees, windows that close and steps that end are bookkeeping, and are taken at once.
//! * What is waited for: all work of the context, since streams that the allocator does not know may use its
//!   blocks. One that captures refuses the sleep; if it is not known, its capture is spoilt, as by any wait
//!   for a context.
//! * What is copied: all that is in use to the core, which is live blocks, whole pieces of arenas, whole
//!   windows, and what several streams used and have not passed. What is idle is released before, and not
//!   brought back. Blocks marked as remakable are left out; their addresses stay too.
//! * The host's memory is pinned, in pieces, and as long as what is copied. What the host does not pin is the
//!   process heap's, if the system has so much memory available.
//!
//! SLEEP1 Before any memory is given up all is copied and all copies have been waited for. The copy is
//! dropped only when all of it is back on the device.
//! SLEEP2 The allocator is awake, or asleep with a copy. Whatever the driver refuses leaves one of the two: a
//! sleep that is refused undoes what it did, and is asleep where that is refused as well; a wake that is
//! refused gives up again what it had brought back. Either can be called again.
//! SLEEP3 Asleep, every route refuses. Threads that had looked before it may still be given what is held and
//! free; nobody may use it before it wakes. Their calls for pages are waited for, or refused.
//! SLEEP4 Asleep, nothing is charged, but for what the driver did not take back. Waking charges again, under
//! the limits of then.
//!
//! The lock of the copy comes before all others of the allocator, and is held by whoever sleeps or wakes.
//! Behind those of steps and streams, and before the core's, comes the turn of the calls for pages (`stop`).
//! Watchers of mapped memory are called under the first, no callback under the second.

use std::collections::BTreeMap;
use std::sync::Mutex;

use larder_core::{AddrRange, Block, ByteCount, ChunkState, FreeError, StreamId};
use larder_cuda_abi::Code;
use thiserror::Error;

use super::device_pool::Pages;
use super::host_copy::HostCopy;
use super::routes::AllocRoute;
use super::{DeviceAllocator, DeviceInner};
use crate::DriverError;
use crate::driver::locked;
use crate::limits::OverBudget;
use crate::source::virtual_memory::Stopped;
use crate::stream::pool::{HostWait, PoolSource};

/// What [`DeviceAllocator::sleep`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Slept {
    /// Bytes that were copied to the host: what is pinned there now, but for the next.
    pub copied_bytes: u64,
    /// Bytes of them in memory of the process heap, since the host did not pin so much. Their copies are slower.
    pub pageable_bytes: u64,
    /// Bytes of remakable blocks, which were not.
    pub dropped_bytes: u64,
    /// Bytes that the driver has again, beside idle ones.
    pub released_bytes: u64,
}

/// Why an allocator did not fall asleep, or did not wake. Nothing is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SleepError {
    /// A stream captures, which nothing can wait for.
    #[error("a stream captures: end the capture first")]
    Capturing,
    /// The host has no memory for the copy, pinned or not: on Linux, by what `/proc/meminfo` and the limits of control
    /// groups (version 2) say before anything is copied.
    #[error(
        "the host has no {:#} for what is live, and pins no more ({driver}): free memory of the host's, or blocks, or \
         mark blocks as remakable",
        ByteCount(*bytes)
    )]
    Host {
        /// Bytes that were to be copied.
        bytes: u64,
        /// What the driver said.
        driver: DriverError,
    },
    /// The device has not enough memory now.
    #[error(
        "the device has no memory for what sleeps ({0}): wake it when others have given theirs back"
    )]
    Device(DriverError),
    /// A budget, or the allocator's own limit, has no room for what sleeps.
    #[error("{0}")]
    Budget(OverBudget),
    /// Memory in regions cannot keep its addresses without memory behind them.
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

/// What an allocator knows of its sleep.
#[derive(Default)]
pub(super) struct SleepState {
    /// Some while it sleeps (SLEEP2).
    copy: Mutex<Option<HostCopy>>,
    remakable: Mutex<Marks>,
}

/// Blocks that need not be copied: the numbers of their allocations by address. Those of freed blocks go when
/// there are more than twice as many as were right.
#[derive(Default)]
struct Marks {
    ids: BTreeMap<u64, u64>,
    most: usize,
}

/// A block of the core, or what stands for several.
struct UsedBlock {
    range: AddrRange,
    id: u64,
}

impl Marks {
    fn has(&self, used: &UsedBlock) -> bool {
        self.ids.get(&used.range.start().get()) == Some(&used.id)
    }

    /// Forgets freed blocks.
    fn keep(&mut self, used: &[UsedBlock]) {
        let kept = used.iter().filter(|used| self.has(used));
        self.ids = kept
            .map(|used| (used.range.start().get(), used.id))
            .collect();
        self.most = 2 * self.ids.len() + 64;
    }
}

impl DeviceAllocator {
    /// Gives all of the device's memory back to the driver, and keeps every address: what is live is copied
    /// to pinned memory of the host, which no budget counts, or to the process heap's where the host pins no more
    /// ([`Slept::pageable_bytes`]) and the system says that so much memory is available. Until [`wake`](Self::wake), allocations are
    /// refused ([`DeviceAllocError::Asleep`](crate::DeviceAllocError::Asleep)), frees are taken, and nothing
    /// is charged to budgets. Counters go on as if the memory were there. Once asleep: nothing to do, but for
    /// what the driver had refused to take back.
    ///
    /// Waits for all work of the context. From the call until `wake` has come back, no work that uses the
    /// memory is queued, on no stream: it would fail on the device. Uses of
    /// [buffers](crate::DeviceBuffer#asleep) are refused. Graphs that were captured before stay
    /// valid, and are not launched meanwhile. No stream captures: one that the allocator knows refuses this,
    /// another one's capture is spoilt. Any thread may call this, but no callback of ours.
    ///
    /// O(live bytes), and two driver calls for each piece of memory and each mapping. The device keeps 2 MiB for each GiB
    /// that the host pins (its page tables, seen on an H200).
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
    /// [`SleepError`]. The allocator is awake then and nothing has changed, unless the driver refused to take
    /// a mapping back and to restore another one: then it [is asleep](Self::is_asleep), and this or `wake`
    /// goes on.
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

    /// Brings the memory back at its addresses, with what live blocks held; remakable ones hold whatever. All
    /// of it is there when this comes back, for work of any stream. Gives the bytes that were copied: 0 if
    /// the allocator was awake. O(live bytes), and two driver calls and more for each piece of memory.
    ///
    /// Limits hold as they are now: a limit that is lower than what is live refuses, until blocks were freed
    /// or it is raised.
    ///
    /// # Errors
    /// [`SleepError`]. The allocator is asleep still, and nothing is lost: call again later.
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

    /// Whether the memory sleeps. Waits for a thread that falls asleep or wakes just now.
    pub fn is_asleep(&self) -> bool {
        locked(&self.0.sleep.copy).is_some()
    }

    /// Whether allocations for the stream are refused because the memory sleeps, falls asleep or wakes. One
    /// load.
    #[inline]
    pub(crate) fn refuses(&self, stream_id: StreamId) -> bool {
        self.0.routes.of(stream_id) == AllocRoute::Asleep
    }

    /// Says that what a block holds can be made again, or no more: while the allocator [sleeps](Self::sleep)
    /// it is not copied, and holds whatever afterwards. The mark goes with the block. What stands in a
    /// capture's window or in a stream's arena (blocks of up to 64 KiB) is copied all the same. O(log marks).
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
    /// Copies what is live and gives the memory up; `copy` is set if the allocator is asleep then.
    fn fall_asleep(&self, pages: &Pages, copy: &mut Option<HostCopy>) -> Result<Slept, SleepError> {
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
                // No memory was released: with its mappings it holds what it held.
                match stopped.bring_back() {
                    Ok(()) => stopped.wake(),
                    Err(_) => *copy = Some(saved),
                }
                Err(error.into())
            }
        }
    }

    /// Brings everything back, or nothing (SLEEP2). Gives the bytes that were copied.
    fn wake_up(&self, pages: &Pages, saved: &HostCopy) -> Result<u64, SleepError> {
        // What was freed meanwhile needs no memory.
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
                // What the driver does not take is held still, and charged; the next call goes on.
                let _ = stopped.give_up();
                Err(error)
            }
        }
    }

    /// Gives back what no work uses any more.
    fn release_idle(&self) {
        self.pool.collect(HostWait::MayBlock);
        self.pool.release(u64::MAX);
    }

    /// What is in use to the core, in the order of addresses. O(chunks).
    fn used(&self) -> Vec<UsedBlock> {
        // Room for it before the lock, and for what comes in between.
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

    /// What is charged has changed, or limits while it slept.
    fn limits_may_have_changed(&self) {
        self.pool.refresh_limit();
        self.pool.node().shared().notify();
    }
}

/// Asleep: gives up what the driver had refused to take.
fn give_up_the_rest(pages: &Pages) -> Result<Slept, SleepError> {
    let bytes = pages.shared().source().stop().give_up()?;
    Ok(Slept {
        released_bytes: bytes,
        ..Slept::default()
    })
}
