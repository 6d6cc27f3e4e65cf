//! Arenas serve the small blocks of streams whose threads contend for the core with other threads.
//!
//! Threads that take turns at the core pay for its lock, and even more for cache misses on each other's data.
//! A stream that often contends gets its own best fit for blocks of up to 64 KiB, behind its own lock, over
//! pieces of 2 MiB that it allocates from the core like any block. A block that is freed on the arena's own
//! stream is free immediately, without a point. Programs without such contention have no arena, and one best
//! fit serves everything.
//!
//! ARENAS1 To the core a piece is in use; free memory in it is available only to its arena, and is not live.
//! ARENAS2 An arena allocates only for its own stream. A block freed on another stream carries that stream's
//! point inside the arena, and is reused once that stream has reached the point: an arena never waits.
//! ARENAS3 Before memory is created, moved, waited for or released to serve a block, wholly free pieces are
//! released to the core and the search is repeated. If the block is a piece for an arena, only arenas that
//! hold far more than they use release pieces. Gaps keep adjacent pieces separate regions, so that each is
//! released by itself.
//! ARENAS4 Before an arena takes another piece, the streams that freed its blocks are polled. The host never
//! waits for a piece.
//! ARENAS5 Once a stream has steps, every other stream has an arena. A plan avoids the blocks that are live
//! when the step begins, so a small block that another stream allocates in each step would change every plan;
//! a piece that contains a block stays in place.
//! An arena's lock is held only for bookkeeping, and no other lock of this crate is taken under it.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, Weak};

use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use larder_core::{
    AddrRange, AllocatorId, BestFit, Block, BlockAllocator, EventNumber, FreeError, Granule,
    GrowRequest, Growth, RegionConfig, RegionPool, Rejected, Request, Shared, StreamId,
    StreamPoint, SubAllocError, SubAllocator,
};

use super::{ArenaPolicy, DeviceInner};
use crate::driver::locked;
use crate::lock_wait::Yield;
use crate::stream::pool::{ByStream, HostWait, StreamCounts};
use crate::with_tables::WithTables;

/// Maximum bytes of a block in an arena.
pub(super) const MAX_BYTES: u64 = 64 << 10;

/// Bytes by which an arena grows.
const PIECE_BYTES: u64 = 2 << 20;

/// Unused end of a piece, so that adjacent pieces are separate regions and are released separately.
const GAP_BYTES: u64 = Granule::DEFAULT.bytes();

/// Maximum number of blocks and gaps between them in an arena.
const CHUNKS: usize = 1 << 15;

/// Added to a stream's score by a sampled allocation if the previous sample was another thread's on another
/// stream; any other sample subtracts 1. At `ENOUGH` the stream gets an arena.
const MET: u32 = 32;
const ENOUGH: u32 = 256;

/// One in this many small blocks is sampled for contention. A power of two.
const LOOK_EVERY: u32 = 8;

/// A thread and a stream, packed into a number.
#[derive(Clone, Copy)]
struct CallerId(usize);

impl CallerId {
    /// Identifies the calling thread by the address of one of its thread-local variables.
    #[inline]
    fn now(stream_id: StreamId) -> Self {
        thread_local! {
            static HERE: u128 = const { 0 };
        }
        let thread = HERE.try_with(|here| (&raw const *here).addr());
        Self(thread.unwrap_or(0) << 8 | usize::from(stream_id.number()))
    }

    /// Returns whether both thread and stream differ.
    #[inline]
    const fn meets(self, other: Self) -> bool {
        self.0 >> 8 != other.0 >> 8 && self.0 & 0xff != other.0 & 0xff
    }
}

/// Returns the part of a piece that an arena uses, which is all but the last granule.
fn apart(piece: &Block) -> Option<AddrRange> {
    let bytes = piece.bytes().checked_sub(GAP_BYTES)?;
    AddrRange::new(piece.addr(), bytes)
}

/// Pieces of the core's memory, as a sub-allocator of regions.
struct Pieces {
    inner: Weak<DeviceInner>,
    stream_id: StreamId,
    /// Pieces by their first address.
    blocks: Mutex<BTreeMap<u64, Block>>,
    /// Bytes of all pieces, changed under their mutex.
    bytes: AtomicU64,
}

impl SubAllocator for Pieces {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let inner = self.inner.upgrade().ok_or(SubAllocError)?;
        let bytes = request.bytes.checked_add(GAP_BYTES).ok_or(SubAllocError)?;
        let wanted = Request::new(bytes).on(self.stream_id);
        let block = match inner.pool.find_at_once(&wanted) {
            Some(block) => block,
            None => inner
                .pool
                .alloc_more(
                    &inner
                        .pool
                        .streams()
                        .stream(self.stream_id)
                        .ok_or(SubAllocError)?,
                    self.stream_id,
                    &wanted,
                    HostWait::MustNotBlock,
                )
                .map_err(|_| SubAllocError)?,
        };
        // The program's blocks are counted when they are carved from the piece.
        let account = inner.pool.streams().account(self.stream_id);
        inner.pool.count(|| account.withdrawn(block.bytes()));
        let range = apart(&block).ok_or(SubAllocError)?;
        let mut blocks = locked(&self.blocks);
        self.bytes.fetch_add(block.bytes(), Ordering::Relaxed);
        blocks.insert(range.start().get(), block);
        Ok(range)
    }

    /// Frees one whole piece.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let inner = self.inner.upgrade().ok_or(SubAllocError)?;
        let mut blocks = locked(&self.blocks);
        let start = range.start().get();
        if blocks.get(&start).and_then(apart) != Some(range) {
            return Err(SubAllocError);
        }
        let block = blocks.remove(&start).ok_or(SubAllocError)?;
        self.bytes.fetch_sub(block.bytes(), Ordering::Relaxed);
        drop(blocks);
        let point = inner.pool.streams().point(self.stream_id);
        let freed = inner.pool.blocks().free_at(block, Some(point));
        debug_assert!(freed.is_ok(), "a piece of ours");
        Ok(())
    }
}

/// The arena of one stream.
pub(super) struct StreamArena {
    best_fit: WithTables<Shared<RegionPool<'static>, Pieces, Yield>>,
    id: AllocatorId,
    account: StreamCounts,
    /// Set once another stream has freed a block here. From then on, free memory may be pending.
    met_others: AtomicU8,
}

impl StreamArena {
    /// Allocates from free memory that no stream, except perhaps the arena's own, still uses.
    #[inline]
    fn find(&self, stream_id: StreamId, bytes: u64) -> Option<Block> {
        self.best_fit.with(|pool| {
            let request = Request::new(bytes).on(stream_id).without_wait();
            let block = pool.try_alloc_now(&request)?.block;
            self.account.allocated(block.bytes());
            Some(block)
        })
    }

    /// Takes another piece and allocates as [`find`](Self::find) does. Returns `None` if no piece is
    /// available.
    #[cold]
    fn grow(&self, stream_id: StreamId, bytes: u64) -> Option<Block> {
        let request = Request::new(bytes).on(stream_id).without_wait();
        let block = self.best_fit.alloc(&request).ok()?.block;
        let bytes = block.bytes();
        self.best_fit.with(|_| self.account.allocated(bytes));
        Some(block)
    }

    /// Returns whether the block is one of the arena's.
    #[inline]
    pub(super) fn owns(&self, block: &Block) -> bool {
        block.is_of(self.id)
    }

    /// Frees a block with the point of another stream, or without a point for the arena's own stream.
    #[inline]
    pub(super) fn free(
        &self,
        block: Block,
        point: Option<StreamPoint>,
    ) -> Result<(), Rejected<FreeError>> {
        self.best_fit.with(|pool| {
            let bytes = block.bytes();
            match point {
                Some(point) => {
                    pool.free_after(block, point)?;
                    self.met_others.store(1, Ordering::Relaxed);
                }
                None => pool.free(block)?,
            }
            self.account.freed(bytes);
            Ok(())
        })
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut RegionPool<'static>) -> R) -> R {
        self.best_fit.with(f)
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.best_fit.source().bytes.load(Ordering::Relaxed)
    }

    pub(super) const fn account(&self) -> &StreamCounts {
        &self.account
    }
}

/// State of one stream.
#[derive(Default)]
#[repr(align(128))]
struct ArenaSlot {
    /// Approximate number of small blocks allocated without an arena.
    sampled_blocks: AtomicU32,
    /// Score of recent contention with other threads.
    score: AtomicU32,
    /// Boxed because its list heads take kilobytes and few streams have an arena.
    arena: OnceLock<Box<StreamArena>>,
}

/// The arenas of all streams.
pub(super) struct Arenas {
    inner: Weak<DeviceInner>,
    policy: ArenaPolicy,
    /// Mask of the bits of `sampled_blocks` that are 0 for a sample; 0 once every stream gets an arena.
    passed_over: AtomicU32,
    /// Caller of the newest sample.
    last: AtomicUsize,
    /// Caller whose allocation made the newest arena; 0 if there is none.
    maker: AtomicUsize,
    slots: ByStream<ArenaSlot>,
    /// Number of arenas.
    count: AtomicUsize,
}

impl Arenas {
    pub(super) fn new(inner: &Weak<DeviceInner>, policy: ArenaPolicy) -> Self {
        Self {
            inner: inner.clone(),
            policy,
            passed_over: AtomicU32::new(match policy {
                ArenaPolicy::Always => 0,
                _ => LOOK_EVERY - 1,
            }),
            last: AtomicUsize::new(0),
            maker: AtomicUsize::new(0),
            slots: ByStream::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// Makes each stream without steps get an arena with its next small block (ARENAS5).
    pub(super) fn keep_apart_from_steps(&self) {
        if self.policy != ArenaPolicy::Never {
            self.passed_over.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the arena of a stream, if it has one.
    #[inline]
    pub(super) fn of(&self, stream_id: StreamId) -> Option<&StreamArena> {
        self.slots[stream_id].arena.get().map(Box::as_ref)
    }

    /// Returns all arenas, with their streams.
    pub(super) fn all(&self) -> impl Iterator<Item = (StreamId, &StreamArena)> {
        let none = self.count.load(Ordering::Acquire) == 0;
        let slots = self
            .slots
            .iter()
            .take(if none { 0 } else { StreamId::COUNT });
        slots.filter_map(|(stream_id, slot)| Some((stream_id, slot.arena.get()?.as_ref())))
    }

    /// Returns the arena that a block belongs to.
    pub(super) fn owner(&self, block: &Block) -> Option<(StreamId, &StreamArena)> {
        self.all().find(|(_, arena)| arena.owns(block))
    }

    /// Returns the arena for a small block of a stream. If the stream has none, samples one block in
    /// [`LOOK_EVERY`] for contention, and makes and returns the arena once there has been enough contention.
    #[inline]
    pub(super) fn of_small(&self, stream_id: StreamId) -> Option<&StreamArena> {
        let place = &self.slots[stream_id];
        if let Some(arena) = place.arena.get() {
            return Some(arena);
        }
        // Threads of one stream may lose a count, which does no harm.
        let sampled_blocks = place.sampled_blocks.load(Ordering::Relaxed).wrapping_add(1);
        place
            .sampled_blocks
            .store(sampled_blocks, Ordering::Relaxed);
        if sampled_blocks & self.passed_over.load(Ordering::Relaxed) == 0 {
            self.arena_in(place, stream_id)
        } else {
            None
        }
    }

    #[inline(never)]
    fn arena_in<'a>(
        &'a self,
        place: &'a ArenaSlot,
        stream_id: StreamId,
    ) -> Option<&'a StreamArena> {
        if self.policy == ArenaPolicy::Never {
            return None;
        }
        let now = CallerId::now(stream_id);
        let before = CallerId(self.last.swap(now.0, Ordering::Relaxed));
        let score = place.score.load(Ordering::Relaxed);
        let score = if now.meets(before) {
            score.saturating_add(MET)
        } else {
            score.saturating_sub(1)
        };
        place.score.store(score, Ordering::Relaxed);
        // A stream no longer contends with a stream that already has an arena, but the core has been slower
        // for both since there are two streams.
        let maker = CallerId(self.maker.load(Ordering::Relaxed));
        let met = maker.0 != 0 && now.meets(maker);
        if score >= ENOUGH || met || self.passed_over.load(Ordering::Relaxed) == 0 {
            self.maker.store(now.0, Ordering::Relaxed);
            self.make(place, stream_id);
        }
        place.arena.get().map(Box::as_ref)
    }

    #[cold]
    fn make(&self, place: &ArenaSlot, stream_id: StreamId) {
        place.score.store(0, Ordering::Relaxed);
        let pieces = Pieces {
            inner: self.inner.clone(),
            stream_id,
            blocks: Mutex::default(),
            bytes: AtomicU64::new(0),
        };
        // Never fails, since the table is not empty and the configuration is fixed.
        let config = RegionConfig {
            growth: Growth::Range {
                unit_bytes: PIECE_BYTES - GAP_BYTES,
                ahead_divisor: None,
            },
            ..RegionConfig::new(u64::MAX)
        };
        if let Ok(best_fit) = WithTables::regions(config, CHUNKS, pieces) {
            let arena = Box::new(StreamArena {
                id: best_fit.with(|pool| pool.id()),
                best_fit,
                account: StreamCounts::default(),
                met_others: AtomicU8::new(0),
            });
            if place.arena.set(arena).is_ok() {
                self.count.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Marks a stream's work up to an event as done.
    pub(super) fn complete(&self, stream_id: StreamId, number: EventNumber) {
        self.all()
            .for_each(|(_, arena)| arena.best_fit.complete(stream_id, number));
    }

    /// Releases wholly free pieces to the core. Returns whether there were any.
    pub(super) fn trim(&self) -> bool {
        self.all()
            .fold(false, |any, (_, arena)| arena.best_fit.trim() > 0 || any)
    }

    /// Returns whether any arena has memory that work of other streams may still use. O(chunks).
    pub(super) fn holds_pending(&self) -> bool {
        self.all().any(|(_, arena)| {
            let met = arena.met_others.load(Ordering::Relaxed) != 0;
            met && arena.with(|pool| pool.report().pending_bytes > 0)
        })
    }

    /// Releases wholly free pieces to the core, from arenas that hold far more than they use: growing arenas
    /// must not take pieces from each other that are needed again immediately. Returns whether there were
    /// any.
    pub(super) fn trim_excess(&self) -> bool {
        self.all().fold(false, |any, (_, arena)| {
            let live_bytes = arena.best_fit.stats().live_bytes;
            let idle = arena.held_bytes().saturating_sub(live_bytes);
            let excess = idle > live_bytes / 4 + 2 * PIECE_BYTES;
            excess && arena.best_fit.trim() > 0 || any
        })
    }

    /// Returns the bytes of pieces that no block occupies.
    pub(super) fn free_bytes(&self) -> u64 {
        let free = |arena: &StreamArena| {
            let live_bytes = arena.best_fit.stats().live_bytes;
            arena.held_bytes().saturating_sub(live_bytes)
        };
        self.all().map(|(_, arena)| free(arena)).sum()
    }
}

impl DeviceInner {
    /// Allocates from a stream's arena. Returns `None` if no memory is available without a wait.
    #[inline]
    pub(super) fn alloc_in_arena(
        &self,
        arena: &StreamArena,
        stream_id: StreamId,
        bytes: u64,
    ) -> Option<Block> {
        match arena.find(stream_id, bytes) {
            Some(block) => Some(block),
            None => self.alloc_in_larger_arena(arena, stream_id, bytes),
        }
    }

    #[cold]
    fn alloc_in_larger_arena(
        &self,
        arena: &StreamArena,
        stream_id: StreamId,
        bytes: u64,
    ) -> Option<Block> {
        if arena.met_others.load(Ordering::Relaxed) != 0 {
            // No event may be queried during a capture.
            let stream = self.pool.streams().stream(stream_id)?;
            if self.pool.streams().captures(&stream) != Ok(false) {
                return None;
            }
            // Without this poll, the arena would take all other free memory before it reused its own.
            self.pool.streams().close_all();
            self.pool.poll();
            if let Some(block) = arena.find(stream_id, bytes) {
                return Some(block);
            }
        }
        let grown = arena.grow(stream_id, bytes);
        // No lock is held here.
        self.pool.node().shared().notify();
        grown
    }
}
