//! One range of addresses, and physical pages that move inside it.
//!
//! Most of the device memory that is wasted is physical pages that lie idle in holes while more are requested from the
//! driver. Here addresses and memory are separate. With a single stream, *addresses* are laid out by best fit exactly
//! as over a plain growing range. *Memory* comes when a block is placed: those of its address pages that have no memory
//! get idle physical pages from elsewhere, or new ones. A free chunk with a page that may lack memory is *hollow*; a
//! block is cut out of it as out of any other chunk, through a [`PagePlan`].
//!
//! So, whenever moving starts or stops, it can only save memory compared with a range that grows. The pool holds more
//! only through growth ahead, and, with several streams, where queued work keeps a place busy or a search reaches its
//! bound. `policy` decides when moving pays.
//!
//! **Moving costs one map.** CUDA and Vulkan let one piece of memory be mapped at several addresses. So the old mapping
//! of a moved piece is not undone: it stays *cached*, and when a block is placed there and the piece is idle again, the
//! mapping is reused without any driver call. A program that alternates between two layouts pays once. A second mapping
//! also keeps stream order: an unmap would have to wait for queued work, and the mapping does not. (Moving idle pages
//! under a best-fit allocator is GMLake's idea and that of expandable segments; cached mappings are ours.)
//!
//! The pool performs no I/O. A plan is a sequence of driver calls ([`PageCall`]); the caller makes them one by one and
//! reports each outcome. A refused call undoes the plan.
//!
//! # Files
//! `config` policies · `table` handles and mappings, with a picture · `policy` what to move and how much to create ·
//! `hollow` addresses without memory · `idle` unused handles · `attempt` one allocation as a state machine · `plan`
//! when a plan is made and how it ends · `move_or_create` the source of its memory · `page_calls` the calls of a plan
//! in order · `release` releasing idle memory · `check` the invariants · `carry_out` the loops over a driver.
//!
//! # Invariants ([`PagePool::check_invariants`] walks them, and those of the engine)
//! * PAGE1 to PAGE3: `table`. (PAGE4 is retired.)
//! * PAGE5 all pages that a used chunk touches have an active mapping of a live handle.
//! * PAGE6 so do all pages that a free chunk touches, unless it is hollow.
//! * PAGE7 the reserved pages are those of all handles that exist, except handles created by a plan still under way.
//! * PAGE8 only plans under way have filling chunks, and, apart from lost ones, handles that are not live and mappings
//!   that are neither active nor cached.
//!
//! # Cost
//! While the best-fitting chunk has memory, the cost is that of [`BestFit`]: no page is examined. Otherwise it is that
//! of a plan: O(pages of the block), at most 1,024 fruitless looks for idle handles, and the work of a driver call for
//! each handle that moves or is created. If points keep free chunks apart, FIT3, FIT4 and the clearing of points
//! examine 2,048 chunks each before the range grows, and all chunks if memory is short. Records take 32 bytes a chunk,
//! 40 a handle, 32 a mapping, 4 a page of addresses.

mod attempt;
#[cfg(test)]
mod bound_tests;
mod carry_out;
mod check;
mod config;
mod hollow;
mod idle;
mod move_or_create;
mod page_calls;
mod plan;
mod policy;
mod release;
mod table;

pub use attempt::PageAttempt;
pub use carry_out::PageDriver;
pub use config::{Backing, PageConfig};
pub use page_calls::PageCall;
pub use plan::PagePlan;
pub use release::PageStats;
pub use table::{Handle, Mapping, PageEntry, PageTables};

use crate::best_fit::{BestFit, Progress};
use crate::block::{AllocatorId, Block, ChunkHandle, Grant, Request, Resize};
use crate::engine::{Candidate, Chunk, ChunkInfo, Chunks, Link, Need, State, Violation};
use crate::error::{AllocError, Cause, ConfigError, FreeError, Rejected, ResizeError};
use crate::stats::PoolStats;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::sync::number_given_once;
use crate::units::{AddrRange, Granule};
use table::PageMap;

/// A best-fit allocator over one range of addresses whose physical pages can move; for one thread at a time.
/// [`Shared`](crate::Shared) shares it and drives it over a [`PageDriver`].
///
/// It has the methods of [`BestFit`], and others for plans, pins and counters of pages.
///
/// ```
/// use larder_core::pages::{Backing, Handle, Mapping, PageAttempt, PageConfig, PagePool};
/// use larder_core::pages::{PageEntry, PageTables};
/// use larder_core::{Addr, AddrRange, BestFit, Chunk, Progress, Request};
/// let mut chunks = [Chunk::VACANT; 64];
/// let (mut entries, mut handles) = ([PageEntry::EMPTY; 64], [Handle::VACANT; 17]);
/// let mut mappings = [Mapping::VACANT; 64];
/// let tables = PageTables { entries: &mut entries, handles: &mut handles, mappings: &mut mappings };
/// let addresses = AddrRange::new(Addr::new(1 << 32), 128 << 20).unwrap();
/// let config = PageConfig::new(addresses, Backing::Billed);
/// let mut pool = PagePool::new(config, &mut chunks, tables)?;
///
/// let mut attempt = PageAttempt::new(Request::new(3 << 20));
/// let Progress::Plan(mut plan) = pool.advance(&mut attempt) else { panic!() };
/// while let Some(call) = pool.next_call(&mut plan) {
///     println!("{call:?}"); // create, map, set access: here the driver would be called
///     pool.done(&mut plan);
/// }
/// let grant = pool.finish(plan).unwrap();
/// assert_eq!(pool.stats().reserved_bytes, 4 << 20);
/// # pool.free(grant.block)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct PagePool<'t> {
    chunks: Chunks<'t>,
    pages: PageMap<'t>,
    config: PageConfig,
    /// Granules in a page.
    page: u32,
    /// Pages of addresses.
    max_pages: u32,
    /// Bytes ever freed, as granted.
    freed_bytes: u64,
    /// Bytes that the pool cannot use and the driver has not taken back, with their handles, and mappings that it did
    /// not undo.
    lost: u64,
    lost_handles: u32,
    lost_mappings: u32,
    /// Number of driver calls made.
    calls: u64,
    /// Bytes held when the driver refused memory.
    refused_bytes: u64,
    /// Number of looks of all searches so far.
    looks: u64,
    /// The record up to which cached mappings were unmapped to make room.
    forgotten: u32,
    /// Number of the newest search for idle handles.
    search: u32,
    /// Plans begun and not finished.
    plans: u32,
}

impl<'t> PagePool<'t> {
    /// Creates an allocator without memory, over lent tables. Never panics.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a table is too small to be of use or has fewer entries than there
    /// are pages of addresses.
    pub fn new(
        config: PageConfig,
        chunks: &'t mut [Chunk],
        tables: PageTables<'t>,
    ) -> Result<Self, ConfigError> {
        let granule = Granule::new(config.granule_bytes).ok_or(ConfigError::Granule)?;
        let (page, max_pages) = config.validate(granule)?;
        let pages = PageMap::new(tables)?;
        if pages.entries() < max_pages {
            return Err(ConfigError::PageTables);
        }
        let mut chunks = Chunks::new(granule, config.limit_bytes, chunks)?;
        // Plans may outlive their allocator, and are not compared with the plans under way: plans of a former allocator
        // over the same tables must have another number.
        let number = number_given_once(AllocatorId::GIVEN_ONCE).ok_or(ConfigError::Numbers)?;
        chunks.set_id(AllocatorId::once(number));
        Ok(Self {
            chunks,
            pages,
            config,
            page,
            max_pages,
            freed_bytes: 0,
            lost: 0,
            lost_handles: 0,
            lost_mappings: 0,
            calls: 0,
            refused_bytes: u64::MAX,
            looks: 0,
            forgotten: 0,
            search: 0,
            plans: 0,
        })
    }
    /// Returns the lent tables; blocks not freed and memory not released are forgotten.
    pub fn into_tables(self) -> (&'t mut [Chunk], PageTables<'t>) {
        (self.chunks.into_table(), self.pages.into_tables())
    }

    /// Returns the policies.
    pub const fn config(&self) -> &PageConfig {
        &self.config
    }

    /// Keeps the memory at a block's addresses in place until [`unpin`](Self::unpin), even after the block is freed:
    /// for addresses registered elsewhere (a communication library, another process). All handles under the block stay,
    /// so a small block may pin a lot of memory. O(pages of the block).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if the block is not one of this pool's.
    pub fn pin(&mut self, block: &Block) -> Result<(), FreeError> {
        self.chunks.link_of(block).ok_or(FreeError::Unknown)?;
        self.pin_range(block.range());
        Ok(())
    }

    /// Keeps the memory at a range of addresses in place, as [`pin`](Self::pin) does for a block: for a part of a block
    /// in use, or for pieces into which an allocator has cut a block. O(pages).
    pub fn pin_range(&mut self, range: AddrRange) {
        self.change_pins(range, |pins| pins.saturating_add(1));
    }

    /// Undoes one [`pin`](Self::pin) of a block that has, or had, these addresses, or one
    /// [`pin_range`](Self::pin_range). O(pages).
    pub fn unpin(&mut self, range: AddrRange) {
        self.change_pins(range, |pins| pins.saturating_sub(1));
    }

    fn change_pins(&mut self, range: AddrRange, change: impl Fn(u32) -> u32) {
        if !self.config.addresses.contains(range) {
            return;
        }
        let base = self.config.addresses.start().get();
        let page_bytes = self.config.page_bytes;
        // Pages of addresses are counted in 32 bits.
        let mut page = ((range.start().get() - base) / page_bytes) as u32;
        let end = (range.end().get() - base).div_ceil(page_bytes) as u32;
        while page < end {
            let mapping = self.pages.at(page);
            if mapping.is_some() {
                let handle = self.pages.mapping(mapping).handle;
                let handle = self.pages.handle_mut(handle);
                handle.pins = change(handle.pins);
            }
            page = self.pages.end(mapping).max(page + 1);
        }
    }

    /// Returns the bytes of `pages` pages.
    fn page_bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.config.page_bytes
    }
}

impl BestFit for PagePool<'_> {
    type Attempt = PageAttempt;
    type Plan = PagePlan;

    #[inline]
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        let need = self.chunks.need(request)?;
        match self.search_now(need, request) {
            Some(found) => self.chunks.take(found, need, request),
            None => self.alloc_slowly(need, request),
        }
    }

    // Inlined, because otherwise the block would be returned through memory and be read before it is written out.
    #[inline(always)]
    fn try_alloc_now(&mut self, request: &Request) -> Option<Grant> {
        let need = self.chunks.need(request).ok()?;
        let found = self.search_now(need, request)?;
        self.chunks.take(found, need, request).ok()
    }

    #[inline(always)]
    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
        stream: Option<StreamId>,
    ) -> Result<Block, AllocError> {
        let request = Request::new(range.bytes());
        let need = self.chunks.need_of_place(&request, stream)?;
        if self.chunks.exceeds_limit(need) {
            return Err(self.out_of_memory(need, &request, Cause::Limit));
        }
        let found = self.chunks.find_place(range, need.size, near, stream);
        let found = found.filter(|found| !self.is_hollow(found));
        self.chunks.take_place(found, need, &request)
    }

    fn advance(&mut self, attempt: &mut PageAttempt) -> Progress<PagePlan> {
        self.advance_attempt(attempt)
    }

    #[inline]
    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        let bytes = block.bytes();
        self.chunks.free(block)?;
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
        Ok(())
    }

    #[inline(always)]
    fn free_after(&mut self, block: Block, point: StreamPoint) -> Result<(), Rejected<FreeError>> {
        let bytes = block.bytes();
        self.chunks.free_after(block, point)?;
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
        Ok(())
    }

    fn complete(&mut self, stream: StreamId, event: EventNumber) {
        self.chunks.complete(stream, event);
    }

    fn resize(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        self.chunks.resize(block, &to.into())
    }

    fn set_limit(&mut self, limit_bytes: u64) -> u64 {
        self.chunks.set_limit(limit_bytes)
    }

    fn clear_stats(&mut self) {
        self.chunks.clear_stats();
    }

    fn pool_stats(&mut self) -> PoolStats {
        self.stats_of_pages()
    }

    fn for_each_chunk(&self, mut f: impl FnMut(ChunkInfo)) {
        self.chunks
            .for_each_chunk(|chunk| self.for_each_piece(chunk, &mut f));
    }

    fn check_invariants(&self) -> Result<(), Violation> {
        self.chunks.check_invariants()?;
        self.check_pages()
    }

    fn chunks(&self) -> &Chunks<'_> {
        &self.chunks
    }
}

impl PagePool<'_> {
    /// Searches by FIT1 and FIT2, among chunks as they are joined now. Returns `None` if memory may be missing behind
    /// the chunk.
    #[inline]
    fn search_now(&mut self, need: Need, request: &Request) -> Option<Candidate> {
        let found = self.chunks.search_now(need, request)?;
        (!self.is_hollow(&found)).then_some(found)
    }

    /// Searches by FIT1 to FIT4, examining at most `looks` chunks for each.
    fn search_fully(&mut self, need: Need, request: &Request, looks: u32) -> Option<Candidate> {
        self.chunks
            .search_fully(need, request, looks, |chunks| chunks.sweep_some(looks))
    }

    /// Returns whether some page of a chunk may have no memory.
    #[inline]
    fn is_hollow(&self, found: &Candidate) -> bool {
        self.chunks.chunk(found.link).is_hollow()
    }

    fn out_of_memory(&self, need: Need, request: &Request, growth: Cause) -> AllocError {
        self.chunks
            .out_of_memory(need, request, growth, &self.report())
    }

    /// Tries the last resorts before an error: joins free chunks that streams kept apart, and examines all chunks.
    #[cold]
    fn alloc_slowly(&mut self, need: Need, request: &Request) -> Result<Grant, AllocError> {
        let mut found = self.search_fully(need, request, u32::MAX);
        if found.is_some_and(|found| self.is_hollow(&found)) {
            found = self.search_backed(need, request);
        }
        match found {
            Some(found) => self.chunks.take(found, need, request),
            None => Err(self.out_of_memory(need, request, Cause::Fixed)),
        }
    }
}

impl core::fmt::Debug for PagePool<'_> {
    /// Formats the counters; [`dump`](BestFit::dump) shows the rest.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PagePool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
