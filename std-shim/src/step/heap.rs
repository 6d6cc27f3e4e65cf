//! [`StepHeap`]: the large blocks of one thread's steps, in a range of their own.
//!
//! ```text
//!   tables, touched where used        range, committed as far as it was ever used
//!   │ StepHeap │ chunks │ ... │       │ places of the plan ...         │ never touched │
//! ```
//! A separate range keeps the places of the plan for the plan: only the blocks of these steps lie
//! there, and memory that the plan leaves free serves those blocks that are not in the plan. The
//! heap takes its own lock and no other, so that steps of different threads do not contend.
//!
//! The planner is called through pointers in the heap ([`Verbs`]), and only `step` creates such
//! heaps: a program without steps is linked without the planner's code.
//!
//! # Invariants
//! * STEP1 the committed part of the range lies below `committed`; memory that has been touched
//!   since it was last discarded lies below `touched`; both are multiples of a page.
//! * STEP2 a block of the range is a block of the BFC, and was allocated by `alloc`.

use core::ptr::NonNull;

use larder_core::steps::{InRange, StepConfig, StepStats, Steps};
use larder_core::sync::{AtomicU8, LockWord, Ordering};
use larder_core::{
    Addr, AddrRange, Align, BestFit, Block, ChunkState, Granule, Locked, PageIndex, RegionConfig,
    RegionPool, Request,
};

use super::tables::Carve;
use crate::arena::{GROWTH_BYTES, PIECE_BYTES, SLICE_BYTES};
use crate::os::Os;
use crate::thread::wait::Sleep;

/// Granule of blocks of steps in bytes, unless a page is longer.
const GRANULE_BYTES: usize = 4 << 10;
/// Minimum length of a commit in bytes.
const COMMIT_BYTES: usize = 32 << 20;

/// The state behind the lock.
struct Inner {
    pool: RegionPool<'static>,
    /// Every block, by its address.
    index: PageIndex<'static>,
    steps: Steps<'static>,
    committed: usize,
    touched: usize,
}

impl Inner {
    /// Returns the block that starts there.
    fn block_at(&self, block: *mut u8) -> Option<Block> {
        let found = self.index.find(Addr::new(block.addr() as u64))?;
        self.pool.block_from_raw(found).ok()
    }
}

/// The calls into the planner, for code outside `step`.
struct Verbs<O: Os> {
    alloc: fn(&StepHeap<O>, usize, usize) -> Option<NonNull<u8>>,
    free: fn(&StepHeap<O>, *mut u8) -> bool,
    end: fn(&StepHeap<O>),
}

/// One range, its tables and the plans of its steps. Never freed; lies in front of its tables.
pub(crate) struct StepHeap<O: Os> {
    os: &'static O,
    start: *mut u8,
    bytes: usize,
    addresses: AddrRange,
    /// Maximum number of bytes of the range that are used.
    cap: usize,
    granule: Granule,
    /// Minimum size in bytes of a step's blocks; smaller blocks are allocated elsewhere.
    least_bytes: u64,
    inner: Locked<Inner, Sleep>,
    verbs: &'static Verbs<O>,
    /// 1 while a thread's steps use the heap, otherwise 0.
    taken: AtomicU8,
}

// SAFETY: the range is divided by the BFC behind the lock.
unsafe impl<O: Os> Sync for StepHeap<O> {}

impl<O: Os> StepHeap<O> {
    const VERBS: &'static Verbs<O> = &Verbs {
        alloc: Self::alloc_by_plan,
        free: Self::free_by_plan,
        end: Self::end_by_plan,
    };

    /// Reserves a range and tables for it. Returns `None` if the system refuses.
    pub(crate) fn reserve(
        os: &'static O,
        bytes: usize,
        config: StepConfig,
    ) -> Option<&'static Self> {
        let page = os.page_bytes();
        let granule = Granule::new(GRANULE_BYTES.max(page) as u64)?;
        // Checked before the tables are created, because a range is counted in granules.
        granule.count_up(bytes as u64)?;
        let start = os.reserve(bytes, SLICE_BYTES.max(page))?.as_ptr();
        let laid = Self::lay(os, start, bytes, granule, config);
        if laid.is_none() {
            // SAFETY: ours and not used.
            unsafe { os.release(start, bytes) };
        }
        laid
    }

    fn lay(
        os: &'static O,
        start: *mut u8,
        bytes: usize,
        granule: Granule,
        config: StepConfig,
    ) -> Option<&'static Self> {
        let granules = bytes / granule.bytes() as usize;
        let mut measure = Carve::measure(size_of::<Self>());
        measure.pool(granules);
        measure.steps();
        let table_bytes = measure.bytes().checked_next_multiple_of(os.page_bytes())?;
        let tables = os.reserve(table_bytes, os.page_bytes())?.as_ptr();
        // SAFETY: reserved just now.
        if !unsafe { os.commit(tables, table_bytes) } {
            // SAFETY: ours and not used.
            unsafe { os.release(tables, table_bytes) };
            return None;
        }
        // SAFETY: committed just now, for the cuts that were measured.
        let mut carve = unsafe { Carve::new(tables, size_of::<Self>()) };
        let (chunks, index) = carve.pool(granules);
        let step_tables = carve.steps();
        let first = Addr::new(start.addr() as u64);
        let config_of_bfc = RegionConfig {
            granule_bytes: granule.bytes(),
            ..RegionConfig::fixed()
        };
        let mut pool = RegionPool::new(config_of_bfc, chunks).ok()?;
        let addresses = AddrRange::new(first, bytes as u64)?;
        pool.add_region(addresses).ok()?;
        let least_bytes = config.threshold_bytes;
        let steps = Steps::new(config, step_tables);
        let heap = tables.cast::<Self>();
        let value = Self {
            os,
            start,
            bytes,
            addresses,
            cap: usize::try_from(config.cap_bytes).unwrap_or(usize::MAX),
            granule,
            least_bytes,
            inner: Locked::new(Inner {
                pool,
                index: PageIndex::new(first, granule, index),
                steps,
                committed: 0,
                touched: 0,
            }),
            verbs: Self::VERBS,
            taken: AtomicU8::new(0),
        };
        // SAFETY: the front of the tables is reserved for it.
        unsafe { heap.write(value) };
        // SAFETY: written just now, and never released.
        Some(unsafe { &*heap })
    }

    /// Takes the heap for a thread's steps. Returns whether no other thread had it.
    pub(crate) fn take(&self) -> bool {
        // Acquire: this thread sees the changes of the last one. The inner lock would suffice.
        let taken = self
            .taken
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Releases the heap for other threads.
    pub(crate) fn leave(&self) {
        self.taken.store(0, Ordering::Release);
    }

    /// Returns whether the address lies in the range.
    #[inline]
    pub(crate) fn contains(&self, block: *mut u8) -> bool {
        block.addr().wrapping_sub(self.start.addr()) < self.bytes
    }

    /// Begins a step.
    pub(crate) fn begin(&self, key: u64) {
        self.inner.with(|inner| inner.steps.begin(key));
    }

    /// Ends the step. Memory that no plan needs returns to the system, if the plans are complete.
    pub(crate) fn end(&self) {
        (self.verbs.end)(self);
    }

    fn end_by_plan(&self) {
        self.inner.with(|inner| {
            inner.steps.end();
            if let Some(planned) = inner.steps.planned_bytes(self.granule) {
                self.discard_from(inner, planned as usize);
            }
        });
    }

    /// Discards free memory above `keep` bytes, or above the last block if that is higher.
    fn discard_from(&self, inner: &mut Inner, keep: usize) {
        if inner.touched <= keep {
            return;
        }
        let mut used = 0;
        inner.pool.for_each_chunk(|chunk| {
            if matches!(chunk.state, ChunkState::Used { .. }) {
                used = chunk.range.end().get() as usize - self.start.addr();
            }
        });
        let keep = keep.max(used);
        if inner.touched > keep {
            let start = self.start.wrapping_add(keep);
            // SAFETY: committed (STEP1), and no block lies there.
            if unsafe { self.os.discard(start, inner.touched - keep) } {
                inner.touched = keep;
            }
        }
    }

    /// Discards all memory without a block. Returns the number of bytes.
    pub(crate) fn trim(&self) -> u64 {
        self.inner.with(|inner| {
            let touched = inner.touched;
            let mut given = 0;
            // End of the last touched memory that is kept.
            let mut kept = 0;
            inner.pool.for_each_chunk(|chunk| {
                let start = chunk.range.start().get() as usize - self.start.addr();
                let end = (chunk.range.end().get() as usize - self.start.addr()).min(touched);
                if matches!(chunk.state, ChunkState::Used { .. }) {
                    kept = end;
                } else if start < end {
                    let bytes = end - start;
                    // SAFETY: committed (STEP1), and free.
                    if unsafe { self.os.discard(self.start.wrapping_add(start), bytes) } {
                        given += bytes as u64;
                    } else {
                        kept = end;
                    }
                }
            });
            inner.touched = kept;
            given
        })
    }

    /// Runs `f` with the steps and the allocator below them.
    fn over<R>(
        &self,
        inner: &mut Inner,
        f: impl FnOnce(&mut Steps<'static>, &mut InRange<'_, 'static>) -> R,
    ) -> R {
        let mut below = InRange {
            pool: &mut inner.pool,
            addresses: self.addresses,
            held_bytes: inner.touched as u64,
        };
        f(&mut inner.steps, &mut below)
    }

    /// Allocates a block of a step. Returns `None` if it must come from elsewhere.
    pub(crate) fn alloc(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if (bytes as u64) < self.least_bytes {
            return None;
        }
        (self.verbs.alloc)(self, bytes, align)
    }

    fn alloc_by_plan(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let align = Align::new(align as u64).filter(|align| align.bytes() <= SLICE_BYTES as u64)?;
        let request = Request::new(bytes as u64).aligned(align);
        self.inner.with(|inner| {
            let grant = self.over(inner, |steps, below| steps.alloc(below, &request));
            let block = grant.ok()??.block;
            inner.index.enter(&block);
            let end = block.range().end().get() as usize - self.start.addr();
            if end > self.cap || !self.commit(inner, end) {
                // The block is ours, so it can be freed.
                self.over(inner, |steps, below| steps.free(below, block))
                    .ok();
                return None;
            }
            inner.touched = inner.touched.max(end);
            NonNull::new(self.start.with_addr(block.addr().get() as usize))
        })
    }

    /// Commits the range up to `end`. Returns whether that succeeded.
    fn commit(&self, inner: &mut Inner, end: usize) -> bool {
        if end <= inner.committed {
            return true;
        }
        let more = (end - inner.committed)
            .max(inner.committed / 4)
            .max(COMMIT_BYTES)
            .next_multiple_of(GROWTH_BYTES)
            .min(self.bytes - inner.committed);
        // SAFETY: a piece of the reserved range.
        let committed = unsafe {
            self.os
                .commit(self.start.wrapping_add(inner.committed), more)
        };
        if committed {
            inner.committed += more;
        }
        committed
    }

    /// Frees a block. Returns `false` if none starts there.
    pub(crate) fn free(&self, block: *mut u8) -> bool {
        (self.verbs.free)(self, block)
    }

    fn free_by_plan(&self, block: *mut u8) -> bool {
        self.inner.with(|inner| {
            let held = inner.block_at(block);
            let free = |held| {
                self.over(inner, |steps, below| steps.free(below, held))
                    .is_ok()
            };
            held.is_some_and(free)
        })
    }

    /// Returns the granted length of the block that starts there.
    pub(crate) fn bytes_at(&self, block: *mut u8) -> Option<u64> {
        self.inner
            .with(|inner| Some(inner.block_at(block)?.bytes()))
    }

    /// Returns the counters and the live, committed and reserved bytes.
    pub(crate) fn numbers(&self) -> (StepStats, u64, u64, u64) {
        self.inner.with(|inner| {
            let live = inner.pool.stats().live_bytes;
            (
                inner.steps.stats(),
                live,
                inner.committed as u64,
                self.bytes as u64,
            )
        })
    }

    /// Returns the resident bytes, if the system reports them.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let (mut at, mut resident) = (0, 0);
        loop {
            // A piece at a time, so that no thread waits long. Nothing is decommitted in between.
            let piece = self.inner.with(|inner| {
                let bytes = inner.committed.saturating_sub(at).min(PIECE_BYTES);
                let start = self.start.wrapping_add(at);
                // SAFETY: the range is committed so far.
                (bytes > 0).then(|| unsafe { self.os.resident_bytes(start, bytes) })
            });
            match piece {
                None => return Some(resident),
                Some(bytes) => resident += bytes? as u64,
            }
            at += PIECE_BYTES;
        }
    }

    /// Returns the lock, for a fork.
    ///
    /// # Safety
    /// The caller releases the lock only if it has taken it.
    pub(crate) const unsafe fn lock(&self) -> &LockWord {
        // SAFETY: as above.
        unsafe { self.inner.word() }
    }
}
