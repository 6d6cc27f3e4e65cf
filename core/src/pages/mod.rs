//! One range of addresses, and physical pages that move inside it.
//!
//! Most wasted device memory is physical pages that lie idle in holes while new pages are requested from the driver.
//! Here addresses and memory are separate. With a single stream, *addresses* are laid out by best fit, exactly as in a
//! plain growing range. *Memory* is found when a block is placed: the pages of the block that have no memory get idle
//! physical pages from elsewhere, or new ones. A free chunk is *hollow* if one of its pages may have no memory. A block
//! is cut out of a hollow chunk as out of any other, but through a [`PagePlan`].
//!
//! Moving can therefore start and stop at any time, and never uses more memory than a growing range. The pool can hold
//! more for other reasons: when growth creates pages ahead, and, with several streams, when queued work keeps a place
//! busy or a search reaches its bound. `policy` decides when moving is worth its calls.
//!
//! **A move costs one map.** CUDA and Vulkan can map one piece of memory at several addresses, so the old mapping of a
//! moved piece is not undone: it stays *cached*. If a block is later placed there while the piece is idle, the mapping
//! is reused without any driver call, so a program that alternates between two layouts pays only once. The second
//! mapping also keeps the order of the stream: it need not wait for queued work, as an unmap would. (Moving idle pages
//! under a best-fit allocator is an idea of GMLake and of expandable segments; cached mappings are ours.)
//!
//! The pool performs no I/O. A plan is a sequence of driver calls ([`PageCall`]), which the caller makes one by one;
//! the caller reports each outcome to the pool. If a call is refused, the plan is undone.
//!
//! # Files
//! `config` policies · `table` handles and mappings, with a picture · `policy` what to move and how much to create ·
//! `hollow` addresses without memory · `idle` unused handles · `attempt` one allocation as a state machine · `plan`
//! when a plan is made and how it ends · `move_or_create` the source of a plan's memory · `page_calls` the calls of a
//! plan in order · `reserve` addresses of one owner · `release` releasing idle memory · `check` the invariants ·
//! `carry_out` calls to a driver.
//!
//! # Invariants ([`PagePool::check_invariants`] checks them, and those of the engine)
//! * PAGE1 to PAGE3: `table`. (PAGE4 is retired.)
//! * PAGE5 all pages that a used chunk touches have an active mapping of a live handle.
//! * PAGE6 all pages that a free or reserved chunk touches have one too, unless the chunk is hollow.
//! * PAGE7 the reserved pages are those of all handles that exist, except handles created by a plan still under way.
//! * PAGE8 if no plan is under way, no chunk is filling, every handle is live or lost, and every mapping is active,
//!   cached or lost.
//!
//! # Cost
//! If the best-fitting chunk has memory, the cost is that of [`BestFit`], and no page is examined. Otherwise the cost
//! is that of a plan: O(pages of the block), at most 1,024 fruitless looks for idle handles, and driver calls for each
//! handle that moves or is created. If points keep free chunks apart, FIT3, FIT4 and the clearing of points examine
//! 2,048 chunks each before the range grows, and all chunks if memory is short. The tables take 32 bytes per chunk, 40
//! per handle, 32 per mapping and 4 per page of addresses.

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
mod reserve;
#[cfg(test)]
mod reserve_tests;
mod table;

pub use attempt::PageAttempt;
pub use carry_out::PageDriver;
pub use config::{Backing, PageConfig};
pub use page_calls::PageCall;
pub use plan::PagePlan;
pub use release::PageStats;
pub use reserve::AddressReservation;
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

/// A best-fit allocator over one range of addresses whose physical pages can move, for one thread at a time.
/// [`Shared`](crate::Shared) shares it among threads and makes its calls on a [`PageDriver`].
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
    /// Number of granules in a page.
    page: u32,
    /// Number of pages of addresses.
    max_pages: u32,
    /// Granted bytes of all blocks freed since the pool last held no memory.
    freed_bytes: u64,
    /// Bytes that the pool cannot use and the driver has not taken back, the number of their handles, and the number of
    /// mappings that the driver did not undo.
    lost: u64,
    lost_handles: u32,
    lost_mappings: u32,
    /// Number of driver calls made.
    calls: u64,
    /// Bytes held when the driver refused memory.
    refused_bytes: u64,
    /// Number of looks made by all searches so far.
    looks: u64,
    /// The last mapping record examined by [`plan_forgetting`](Self::plan_forgetting).
    forgotten: u32,
    /// Number of the newest search for idle handles.
    search: u32,
    /// Number of plans begun and not finished.
    plans: u32,
}

impl<'t> PagePool<'t> {
    /// Creates an allocator without memory, over lent tables. Never panics.
    ///
    /// # Errors
    /// If the configuration contradicts itself, if a table is too small to be of use, or if there are fewer page
    /// entries than pages of addresses.
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
        // A plan may outlive its allocator, and the allocator keeps no list of its plans to compare it with. So a plan
        // of an earlier allocator over the same tables must have another number.
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
    /// Returns the lent tables. Blocks that were not freed and memory that was not released are forgotten.
    pub fn into_tables(self) -> (&'t mut [Chunk], PageTables<'t>) {
        (self.chunks.into_table(), self.pages.into_tables())
    }

    /// Returns the policies.
    pub const fn config(&self) -> &PageConfig {
        &self.config
    }

    /// Keeps the memory at a block's addresses in place until [`unpin`](Self::unpin), even after the block is freed.
    /// This is for addresses registered elsewhere, with a communication library or in another process. All handles
    /// under the block stay, so a small block may pin a lot of memory. O(pages of the block).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if the block does not belong to this pool.
    pub fn pin(&mut self, block: &Block) -> Result<(), FreeError> {
        self.chunks.link_of(block).ok_or(FreeError::Unknown)?;
        self.pin_range(block.range());
        Ok(())
    }

    /// Keeps the memory at a range of addresses in place, as [`pin`](Self::pin) does for a block. The range may be a
    /// part of a block in use, or a piece that another allocator has cut from a block. O(pages).
    pub fn pin_range(&mut self, range: AddrRange) {
        self.change_pins(range, |pins| pins.saturating_add(1));
    }

    /// Undoes one [`pin`](Self::pin) of the block that has or had these addresses, or one
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
        // The number of pages of addresses fits 32 bits.
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

    // Inlined: otherwise the block would be returned through memory, and its load would stall on that store.
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
    /// Searches by FIT1 and FIT2, without joining chunks. Returns `None` if the chunk found may lack memory.
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

    /// Returns whether a page of the chunk may have no memory.
    #[inline]
    fn is_hollow(&self, found: &Candidate) -> bool {
        self.chunks.chunk(found.link).is_hollow()
    }

    fn out_of_memory(&self, need: Need, request: &Request, growth: Cause) -> AllocError {
        self.chunks
            .out_of_memory(need, request, growth, &self.report())
    }

    /// Makes a last attempt before an error: joins free chunks that streams keep apart, and examines all chunks.
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
