//! [`StepHeap`]: the plans of one thread's steps, and the blocks that lie at their places.
//!
//! ```text
//!   an arena   ... │ other blocks │ reserve: the places of the plan │ other blocks │ ...
//! ```
//! Once there are plans, the blocks of a step lie in a *reserve*: one block of an arena, as long as
//! the longest plan. It is allocated with the first block of the step and freed when the step ends,
//! so between steps its memory is free memory like any other. Blocks of the reserve that outlive
//! the step become blocks of the arena. Blocks for which the reserve has no room, blocks known to
//! outlive their step, and all blocks of steps that are only observed are allocated as if there were
//! no step.
//!
//! The planner is called through pointers in the heap ([`Verbs`]), and only `step` creates such
//! heaps: a program without steps is linked without the planner's code.
//!
//! # Invariants
//! * STEP1 a block of the reserve is a block of `pool`, at the same distance from the first address
//!   of `pool` as from the start of the reserve.
//! * STEP2 a thread that holds a block of the reserve finds the reserve, or the block is one of the
//!   arena: `start` and `bytes` are written before the first block is returned, and cleared after
//!   the blocks that are left have become blocks of the arena. A thread that reads them late finds
//!   no block in `pool`, and looks in the arena.

use core::ptr::{self, NonNull};

use larder_core::steps::{PlaceAllocator, Served, StepConfig, StepStats, Steps, Tag};
use larder_core::sync::{AtomicPtr, AtomicU8, AtomicUsize, LockWord, Ordering};
use larder_core::{
    Addr, AddrRange, Align, AllocError, BestFit, Block, ChunkHandle, ChunkState, FreeError, Grant,
    Granule, Locked, PageIndex, RegionConfig, RegionPool, Rejected, Request,
};

use super::elsewhere::Elsewhere;
use super::tables::{Carve, Left};
use crate::arena::Arena;
use crate::os::Os;
use crate::process::Process;
use crate::thread::wait::Sleep;

/// Granule of plans in bytes, that of the arenas, unless a page is longer. Blocks with a larger
/// alignment are not part of a step.
const STEP_ALIGN: usize = 16 << 10;
/// Maximum length of a plan in bytes.
const MAX_PLAN_BYTES: usize = if usize::BITS >= 64 {
    64 << 30
} else {
    256 << 20
};

/// The place of a block of a step.
pub(crate) enum Place {
    At(NonNull<u8>),
    /// A place in a reserve of this length, which the caller allocates, and passes to
    /// [`StepHeap::begin_reserve`]. If `grows` is set, the process heap may grow for it.
    Needs {
        bytes: usize,
        grows: bool,
    },
    /// None: the block must come from elsewhere; [`StepHeap::enter`] follows.
    None,
}

/// Number of successive steady steps after which the process heap first grows for a reserve, the
/// factor by which each growth raises it, and its maximum. A reserve that the heap had to grow for
/// takes memory beside that of steps without a reserve.
const FIRST_GROWTH_STEPS: u32 = 32;
const GROWTH_FACTOR: u32 = 4;
const MAX_GROWTH_STEPS: u32 = 1 << 16;

/// The state behind the lock.
struct Inner<O: Os> {
    /// The blocks of the reserve, in addresses from 0.
    pool: RegionPool<'static>,
    /// Every block, by its address.
    index: PageIndex<'static>,
    steps: Steps<'static>,
    /// The reserve, and its length, which is set before it is allocated; 0 if the step needs none.
    reserve: Option<(NonNull<u8>, &'static Arena<O>)>,
    reserve_bytes: usize,
    /// Number of successive steady steps after which the process heap may grow for a reserve.
    growth_steps: u32,
    /// The block that waits for the reserve.
    waiting: Option<Block>,
    elsewhere: Elsewhere,
    /// The tag of the block that the thread allocates elsewhere next.
    next: Option<Tag>,
    /// The blocks that outlive a step, while it ends.
    left: &'static mut [Left],
}

impl<O: Os> Inner<O> {
    /// Returns the block of the reserve that starts there.
    fn block_at(&self, block: *mut u8) -> Option<Block> {
        let (start, _) = self.reserve?;
        let offset = block.addr().wrapping_sub(start.addr().get());
        let found = self.index.find(Addr::new(offset as u64))?;
        self.pool.block_from_raw(found).ok()
    }
}

/// The calls into the planner, for code outside `step`.
struct Verbs<O: Os> {
    alloc: fn(&StepHeap<O>, usize, usize) -> Place,
    free: fn(&StepHeap<O>, *mut u8) -> bool,
    end: fn(&StepHeap<O>) -> usize,
}

/// The plans of a thread's steps, and their tables. Never freed; lies in front of its tables.
pub(crate) struct StepHeap<O: Os> {
    process: &'static Process<O>,
    /// The reserve, for threads without the lock; null if there is none.
    start: AtomicPtr<u8>,
    bytes: AtomicUsize,
    /// The addresses of all places.
    addresses: AddrRange,
    granule: Granule,
    /// Minimum size in bytes of a step's blocks; smaller blocks are allocated elsewhere.
    least_bytes: u64,
    inner: Locked<Inner<O>, Sleep>,
    verbs: &'static Verbs<O>,
    /// 1 while a thread's steps use the heap, otherwise 0.
    taken: AtomicU8,
}

// SAFETY: the blocks of the reserve are divided by the pool behind the lock.
unsafe impl<O: Os> Sync for StepHeap<O> {}

/// The reserve as the planner sees it.
struct Places<'a> {
    pool: &'a mut RegionPool<'static>,
    addresses: AddrRange,
    reserve_bytes: &'a mut usize,
    is_allocated: bool,
}

impl PlaceAllocator for Places<'_> {
    type Error = AllocError;

    /// Allocates a block in the rest of the reserve.
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        if request.bytes > self.held_bytes() {
            return Err(AllocError::PlaceTaken);
        }
        let grant = self.pool.alloc(request)?;
        if grant.block.range().end().get() <= self.held_bytes() {
            return Ok(grant);
        }
        // The block is the pool's.
        self.pool.free(grant.block).ok();
        Err(AllocError::PlaceTaken)
    }

    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError> {
        match range.end().get() <= self.held_bytes() {
            true => self.pool.alloc_at(range, near, None),
            false => Err(AllocError::PlaceTaken),
        }
    }

    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.pool.free(block)
    }

    fn missing_bytes(&mut self, range: AddrRange) -> u64 {
        range.end().get().saturating_sub(self.held_bytes())
    }

    /// Lengthens the reserve if it is not allocated yet.
    fn prepare(&mut self, _: AddrRange, layout: AddrRange, _: u64) -> bool {
        if !self.is_allocated {
            *self.reserve_bytes = (*self.reserve_bytes).max(layout.bytes() as usize);
        }
        layout.bytes() <= self.held_bytes()
    }

    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange)) {
        self.pool.for_each_chunk(|chunk| {
            if matches!(chunk.state, ChunkState::Used { .. }) {
                f(chunk.handle, chunk.range);
            }
        });
    }

    fn addresses(&self) -> AddrRange {
        self.addresses
    }

    fn granule(&self) -> Granule {
        self.pool.granule()
    }

    fn page_bytes(&self) -> u64 {
        self.granule().bytes()
    }

    fn live_bytes(&self) -> u64 {
        self.pool.stats().live_bytes
    }

    fn held_bytes(&self) -> u64 {
        *self.reserve_bytes as u64
    }
}

impl<O: Os> StepHeap<O> {
    const VERBS: &'static Verbs<O> = &Verbs {
        alloc: Self::alloc_by_plan,
        free: Self::free_by_plan,
        end: Self::end_by_plan,
    };

    /// Creates a heap without plans. Returns `None` if the system refuses memory for the tables.
    pub(crate) fn create(
        process: &'static Process<O>,
        config: StepConfig,
    ) -> Option<&'static Self> {
        let os = &process.os;
        let granule = Granule::new(STEP_ALIGN.max(os.page_bytes()) as u64)?;
        let addresses = AddrRange::new(Addr::new(0), MAX_PLAN_BYTES as u64)?;
        let granules = MAX_PLAN_BYTES / granule.bytes() as usize;
        let mut measure = Carve::measure(size_of::<Self>());
        measure.pool(granules);
        measure.steps();
        measure.blocks();
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
        let (elsewhere, left) = carve.blocks();
        let config_of_pool = RegionConfig {
            granule_bytes: granule.bytes(),
            ..RegionConfig::fixed()
        };
        let mut pool = RegionPool::new(config_of_pool, chunks).ok()?;
        pool.add_region(addresses).ok()?;
        let least_bytes = config.threshold_bytes;
        let heap = tables.cast::<Self>();
        let value = Self {
            process,
            start: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
            addresses,
            granule,
            least_bytes,
            inner: Locked::new(Inner {
                pool,
                index: PageIndex::new(addresses.start(), granule, index),
                steps: Steps::new(config, step_tables),
                reserve: None,
                reserve_bytes: 0,
                growth_steps: FIRST_GROWTH_STEPS,
                waiting: None,
                elsewhere: Elsewhere::new(elsewhere, granule.align().log2()),
                next: None,
                left,
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

    /// Returns whether the address may lie in the reserve. If the thread holds a block of the reserve
    /// there, it does (STEP2); otherwise the reserve may be changing.
    #[inline]
    pub(crate) fn may_contain(&self, block: *mut u8) -> bool {
        // Acquire: a thread that no longer finds the reserve finds its blocks in the arena.
        let start = self.start.load(Ordering::Acquire);
        block.addr().wrapping_sub(start.addr()) < self.bytes.load(Ordering::Acquire)
    }

    /// Begins a step. Returns `false` if it is skipped.
    pub(crate) fn begin(&self, key: u64) -> bool {
        // A thread that was lost in a fork may have left a step.
        self.end();
        self.inner.with(|inner| {
            inner.elsewhere.clear();
            inner.steps.begin(key);
            inner.reserve_bytes = inner.steps.expected_bytes(self.granule) as usize;
            inner.steps.is_inside()
        })
    }

    /// Ends the step, if one is under way. Returns the bytes of the reserve, which are now free or in
    /// blocks of the arena.
    pub(crate) fn end(&self) -> usize {
        (self.verbs.end)(self)
    }

    fn end_by_plan(&self) -> usize {
        self.inner.with(|inner| {
            if let Some(block) = inner.waiting.take() {
                // The child of a fork has lost the thread that allocated the reserve. The block is
                // the pool's.
                self.over(inner, |steps, places| steps.take_back(places, block))
                    .ok();
            }
            inner.steps.end();
            let reserve_bytes = core::mem::take(&mut inner.reserve_bytes);
            let Some((start, arena)) = inner.reserve.take() else {
                return 0;
            };
            let mut count = 0;
            inner.pool.for_each_chunk(|chunk| {
                if matches!(chunk.state, ChunkState::Used { .. })
                    && let Some(left) = inner.left.get_mut(count)
                {
                    *left = Left::of(chunk.handle, chunk.range);
                    count += 1;
                }
            });
            let left = &inner.left[..count];
            for block in left {
                if let Some(block) = block.raw() {
                    let block = inner.pool.block_from_raw(block);
                    block.into_iter().for_each(|block| {
                        inner.pool.free(block).ok();
                    });
                }
            }
            let blocks = left.iter().map(|left| (left.start, left.bytes));
            arena.end_reserve(start.as_ptr(), reserve_bytes, blocks);
            self.bytes.store(0, Ordering::Release);
            self.start.store(ptr::null_mut(), Ordering::Release);
            reserve_bytes
        })
    }

    /// Begins a reserve, for which the process heap grew or tried to if `grew` is set, and makes it
    /// known to threads that free its blocks. Returns the block that waited for it. Without a reserve the
    /// step continues without a plan.
    pub(crate) fn begin_reserve(
        &self,
        start: Option<NonNull<u8>>,
        grew: bool,
    ) -> Option<NonNull<u8>> {
        self.inner.with(|inner| {
            let block = inner.waiting.take()?;
            if grew {
                let steps = inner.growth_steps.saturating_mul(GROWTH_FACTOR);
                inner.growth_steps = steps.min(MAX_GROWTH_STEPS);
            }
            let arena = |start: NonNull<u8>| self.process.arena_of(start.as_ptr());
            let Some((start, arena)) = start.and_then(|start| Some((start, arena(start)?))) else {
                // The block is the pool's.
                let tag = self.over(inner, |steps, places| steps.take_back(places, block));
                inner.next = tag.ok();
                inner.reserve_bytes = 0;
                return None;
            };
            inner.reserve = Some((start, arena));
            self.start.store(start.as_ptr(), Ordering::Release);
            self.bytes.store(inner.reserve_bytes, Ordering::Release);
            let offset = block.into_raw().addr.get() as usize;
            NonNull::new(start.as_ptr().wrapping_add(offset))
        })
    }

    /// Runs `f` with the steps and the places below them.
    fn over<R>(
        &self,
        inner: &mut Inner<O>,
        f: impl FnOnce(&mut Steps<'static>, &mut Places<'_>) -> R,
    ) -> R {
        let mut places = Places {
            pool: &mut inner.pool,
            addresses: self.addresses,
            reserve_bytes: &mut inner.reserve_bytes,
            is_allocated: inner.reserve.is_some(),
        };
        f(&mut inner.steps, &mut places)
    }

    /// Allocates a block of a step at its place.
    pub(crate) fn alloc(&self, bytes: usize, align: usize) -> Place {
        if (bytes as u64) < self.least_bytes || align as u64 > self.granule.bytes() {
            return Place::None;
        }
        (self.verbs.alloc)(self, bytes, align)
    }

    fn alloc_by_plan(&self, bytes: usize, align: usize) -> Place {
        let Some(align) = Align::new(align as u64) else {
            return Place::None;
        };
        let request = Request::new(bytes as u64).aligned(align);
        self.inner.with(|inner| {
            let served = self.over(inner, |steps, places| steps.alloc(places, &request));
            let block = match served {
                Ok(Served::Here(grant)) => grant.block,
                Ok(Served::Elsewhere(tag)) => {
                    inner.next = Some(tag);
                    return Place::None;
                }
                Err(_) => return Place::None,
            };
            inner.index.enter(&block);
            let Some((start, _)) = inner.reserve else {
                inner.waiting = Some(block);
                return Place::Needs {
                    bytes: inner.reserve_bytes,
                    grows: inner.steps.steady_steps() >= inner.growth_steps,
                };
            };
            let offset = block.into_raw().addr.get() as usize;
            NonNull::new(start.as_ptr().wrapping_add(offset)).map_or(Place::None, Place::At)
        })
    }

    /// Records the block that was allocated elsewhere.
    pub(crate) fn enter(&self, block: NonNull<u8>) {
        self.inner.with(|inner| {
            if let Some(tag) = inner.next.take() {
                inner.elsewhere.enter(block.addr().get(), tag);
            }
        });
    }

    /// Records that a block which may lie elsewhere is freed. Called by the thread of the step; frees
    /// by other threads are not observed.
    pub(crate) fn free_elsewhere(&self, block: *mut u8) {
        self.inner.with(|inner| {
            if let Some(tag) = inner.elsewhere.remove(block.addr()) {
                inner.steps.free_elsewhere(tag);
            }
        });
    }

    /// Records that a block which may lie elsewhere is resized. The step then counts it as one that
    /// outlives it, since a block that is resized gains nothing from a place.
    pub(crate) fn resize_elsewhere(&self, block: *mut u8) {
        self.inner
            .with(|inner| inner.elsewhere.remove(block.addr()));
    }

    /// Frees a block of the reserve. Returns `false` if none starts there.
    pub(crate) fn free(&self, block: *mut u8) -> bool {
        (self.verbs.free)(self, block)
    }

    fn free_by_plan(&self, block: *mut u8) -> bool {
        self.inner.with(|inner| {
            let Some(held) = inner.block_at(block) else {
                return false;
            };
            self.over(inner, |steps, places| steps.free(places, held))
                .is_ok()
        })
    }

    /// Returns the granted length of the block of the reserve that starts there.
    pub(crate) fn bytes_at(&self, block: *mut u8) -> Option<u64> {
        self.inner
            .with(|inner| Some(inner.block_at(block)?.bytes()))
    }

    /// Returns the counters, and the bytes of the reserve without a block.
    pub(crate) fn numbers(&self) -> (StepStats, u64) {
        self.inner.with(|inner| {
            let live = inner.pool.stats().live_bytes;
            let unused = (inner.reserve_bytes as u64).saturating_sub(live);
            (
                inner.steps.stats(),
                unused * u64::from(inner.reserve.is_some()),
            )
        })
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
