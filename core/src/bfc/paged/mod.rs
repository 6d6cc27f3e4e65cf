//! One range of addresses, and physical pages that move inside it.
//!
//! Most device memory is lost to physical pages that lie idle in holes while the driver is asked
//! for more. Here a free chunk is *mapped* (memory stands behind it) or *unmapped* (addresses only).
//! Best fit looks at mapped chunks alone. When nothing fits, the memory of idle pages is mapped
//! where it is needed, and only what is still missing is created.
//!
//! **Moving costs one map.** CUDA and Vulkan let one piece of memory stand at several addresses.
//! So the old mapping of a moved piece is not undone: it stays *cached*, and when a later request
//! fits there and the piece is idle again, it is reused without any driver call. A program that swings
//! between two layouts pays once. It also keeps stream order: an unmap would have to wait for work
//! that is still queued, a second mapping does not. (The idea of moving idle pages under a best-fit
//! allocator is GMLake's and expandable segments'; cached mappings are ours.)
//!
//! It performs no I/O. A [`PagePlan`] is a sequence of driver calls ([`PageStep`]); whoever drives
//! the allocator makes them one by one and reports each. A refused call undoes the plan.
//!
//! # Files
//! `config` policies · `table` handles and mappings · `place` where a block that fits nowhere
//! goes · `policy` what to move and how much to create · `plan` when a plan is made and what its end
//! means · `target` the chunks it fills · `sources` where its memory comes from · `unmapped` their list ·
//! `steps` the calls of a plan in order · `release` giving idle memory back · `check` the
//! invariants · `drive` the loops over a driver.
//!
//! # Invariants ([`PagedBfc::check_invariants`] walks them, and those of [`bfc`](crate::bfc))
//! * P1 to P4: `table`.
//! * P5 a page of addresses has an active mapping exactly if a used, mapped or moving chunk has a
//!   granule in it; unmapped and filling chunks begin and end at pages.
//! * P6 unmapped chunks are linked in one list, and no two are neighbours.
//! * P7 the pages of all handles that exist, and were not created by a plan still under way, are
//!   what is reserved.
//! * P8 only plans under way have moving and filling chunks, and handles and mappings that are not
//!   live, active or cached (but lost ones).
//!
//! # Cost
//! While something fits, the cost of [`bfc`](crate::bfc): no page is looked at. Else O(free chunks of a page
//! or more + unmapped chunks + pages of the block), once for each plan. Records: 32 bytes a chunk, 40 a
//! handle, 32 a mapping, 4 a page of addresses.

mod check;
mod config;
mod drive;
mod place;
mod plan;
mod policy;
mod release;
mod sources;
mod steps;
mod table;
mod target;
mod unmapped;

pub use config::{Backing, PagedConfig};
pub use drive::{PageDriver, PagedAllocator};
pub use plan::{PagePlan, PagedAttempt, PagedStep};
pub use release::PageStats;
pub use steps::PageStep;
pub use table::{Handle, Mapping, PageTables, Place};

use super::chunk::{Chunk, Link, State};
use super::index::{AddressIndex, NoIndex};
use super::{Bfc, Report};
use crate::block::{AllocatorId, Block, ChunkHandle, Grant, RawBlock, Request, Resize};
use crate::error::{AllocError, ConfigError, FreeError, FreeRejected, ResizeRejected};
use crate::region::RegionId;
use crate::stats::Stats;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::{Addr, AddrRange, Granule};
use policy::Hysteresis;
use table::{HandleLink, Pages};

/// A best-fit allocator over one range of addresses whose physical pages can move; for one thread
/// at a time. [`PagedAllocator`] shares it and drives it over a [`PageDriver`].
///
/// ```
/// use larder_core::paged::{Backing, Handle, Mapping, PageTables, PagedBfc, PagedConfig, PagedStep};
/// use larder_core::paged::{PagedAttempt, Place};
/// use larder_core::{Addr, AddrRange, Chunk, Request};
/// let mut chunks = [Chunk::VACANT; 64];
/// let (mut places, mut handles) = ([Place::EMPTY; 64], [Handle::VACANT; 17]);
/// let mut mappings = [Mapping::VACANT; 64];
/// let tables = PageTables { places: &mut places, handles: &mut handles, mappings: &mut mappings };
/// let addresses = AddrRange::new(Addr::new(1 << 32), 128 << 20).unwrap();
/// let config = PagedConfig::new(addresses, Backing::Billed);
/// let mut paged = PagedBfc::new(config, &mut chunks, tables)?;
///
/// let mut attempt = PagedAttempt::new(Request::new(3 << 20));
/// let PagedStep::Plan(mut plan) = paged.step(&mut attempt) else { panic!() };
/// while let Some(call) = paged.next_step(&mut plan) {
///     println!("{call:?}"); // create, map, set access: here the driver would be called
///     paged.done(&mut plan);
/// }
/// let grant = paged.finish(plan).unwrap();
/// assert_eq!(paged.stats().reserved_bytes, 4 << 20);
/// # paged.free(grant.block)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct PagedBfc<'t, I: AddressIndex = NoIndex> {
    bfc: Bfc<'t, I>,
    pages: Pages<'t>,
    config: PagedConfig,
    /// Granules a page.
    page: u32,
    /// Pages of addresses.
    max_pages: u32,
    /// The region, once it has a chunk.
    region: Option<RegionId>,
    /// Head of the unmapped chunks.
    unmapped: Link,
    /// Bytes ever freed, as granted.
    freed_bytes: u64,
    /// Bytes the driver neither uses for us nor took back.
    lost: u64,
    /// Number of the present step of the program.
    step: u32,
    hysteresis: Hysteresis,
    /// Number of the newest search for idle handles.
    search: u32,
    /// Plans begun and not ended.
    plans: u32,
    /// Most bytes live in the present step, and in each of the last ones.
    window: release::Window,
}

impl<'t> PagedBfc<'t> {
    /// An allocator without memory, over lent tables. Never panics.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a table is too small to hold anything or has
    /// fewer places than there are pages of addresses.
    pub fn new(
        config: PagedConfig,
        chunks: &'t mut [Chunk],
        tables: PageTables<'t>,
    ) -> Result<Self, ConfigError> {
        PagedBfc::with_index(config, chunks, tables, NoIndex)
    }
}

impl<'t, I: AddressIndex> PagedBfc<'t, I> {
    /// An allocator with an index that finds blocks by address.
    ///
    /// # Errors
    /// The errors of [`PagedBfc::new`], and one if the index cannot hold as many blocks as there are chunks.
    pub fn with_index(
        config: PagedConfig,
        chunks: &'t mut [Chunk],
        tables: PageTables<'t>,
        index: I,
    ) -> Result<Self, ConfigError> {
        let bfc = Bfc::with_index(config.bfc, chunks, index)?;
        let (page, max_pages) = config.validate(bfc.granule)?;
        let pages = Pages::new(tables)?;
        if pages.places() < max_pages {
            return Err(ConfigError::PageTables);
        }
        Ok(Self {
            bfc,
            pages,
            config,
            page,
            max_pages,
            region: None,
            unmapped: Link::NIL,
            freed_bytes: 0,
            lost: 0,
            step: 0,
            hysteresis: Hysteresis::new(),
            search: 0,
            plans: 0,
            window: release::Window::new(),
        })
    }

    /// Gives the lent tables back; blocks not freed and memory not released are forgotten.
    pub fn into_tables(self) -> (&'t mut [Chunk], PageTables<'t>) {
        (self.bfc.into_table(), self.pages.into_tables())
    }

    /// The policies.
    pub const fn config(&self) -> &PagedConfig {
        &self.config
    }

    /// Gives memory from what is mapped, or `None`; never plans. Cost as [`Bfc::alloc`] while
    /// something fits.
    ///
    /// # Errors
    /// [`AllocError`] for requests that no memory would help.
    #[inline]
    pub fn alloc_now(&mut self, request: &Request) -> Result<Option<Grant>, AllocError> {
        self.bfc.alloc_now(request)
    }

    /// Gives memory from what is mapped and needs no wait, or `None` without a reason; see
    /// [`Bfc::alloc_at_once`].
    // Inlined for the reason given at `Bfc::alloc_at_near`.
    #[inline(always)]
    pub fn alloc_at_once(&mut self, request: &Request) -> Option<Block> {
        self.bfc.alloc_at_once(request)
    }

    /// Gives the block at exactly this place for use on a stream, from what is mapped; never plans. See
    /// [`Bfc::alloc_at_on`].
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] also where addresses have no memory; and as [`Bfc::alloc_at`].
    #[inline]
    pub fn alloc_at_now(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
        stream: StreamId,
    ) -> Result<Block, AllocError> {
        self.bfc.alloc_at_on(range, near, stream)
    }

    /// Takes a block back that nothing uses any more; see [`Bfc::free`].
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours.
    #[inline]
    pub fn free(&mut self, block: Block) -> Result<(), FreeRejected> {
        // A block that is not ours counts too: that is a defect of the caller's, and the figure only
        // weighs how much is created at once.
        self.note_freed(block.bytes());
        self.bfc.free(block)
    }

    /// Takes a block back that queued work may still use; see [`Bfc::free_after`].
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours, or the event lies too far ahead.
    pub fn free_after(&mut self, block: Block, point: StreamPoint) -> Result<(), FreeRejected> {
        let bytes = block.bytes();
        self.bfc.free_after(block, point)?;
        self.note_freed(bytes);
        Ok(())
    }

    /// Frees the block that starts at an address; see [`Bfc::free_addr`].
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if no block starts there, or there is no index.
    pub fn free_addr(&mut self, addr: Addr) -> Result<u64, FreeError> {
        let bytes = self.bfc.free_addr(addr)?;
        self.note_freed(bytes);
        Ok(bytes)
    }

    #[inline]
    fn note_freed(&mut self, bytes: u64) {
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
    }

    /// Gives a block another size without moving it, within what is mapped; see [`Bfc::resize`].
    ///
    /// # Errors
    /// Gives the block back as it was.
    pub fn resize(&mut self, block: Block, to: impl Into<Resize>) -> Result<Block, ResizeRejected> {
        self.bfc.resize(block, to)
    }

    /// Tells that all work up to `event` on `stream` is done; see [`Bfc::complete`].
    pub fn complete(&mut self, stream: StreamId, event: EventNumber) {
        self.bfc.complete(stream, event);
    }

    /// Restores a block that was taken apart; see [`Bfc::block_from_raw`].
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if there is no such block.
    pub fn block_from_raw(&self, raw: RawBlock) -> Result<Block, FreeError> {
        self.bfc.block_from_raw(raw)
    }

    /// Bytes that were requested for the block; see [`Bfc::requested_bytes`].
    pub fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.bfc.requested_bytes(block)
    }

    /// The block's number among all allocations; see [`Bfc::allocation_id`].
    pub fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.bfc.allocation_id(block)
    }

    /// What its blocks carry.
    pub const fn id(&self) -> AllocatorId {
        self.bfc.id()
    }

    /// What sizes are multiples of.
    pub const fn granule(&self) -> Granule {
        self.bfc.granule()
    }

    /// Counters now; reserved are the physical bytes. O(1).
    pub fn stats(&self) -> Stats {
        self.bfc.stats()
    }

    /// Starts counting anew; see [`Bfc::clear_stats`]. What the steps needed is remembered.
    pub fn clear_stats(&mut self) {
        self.bfc.clear_stats();
    }

    /// Occupancy and fragmentation now. O(chunks).
    pub fn report(&self) -> Report {
        self.bfc.report()
    }

    /// Calls `f` with every chunk in address order.
    pub fn for_each_chunk(&self, f: impl FnMut(super::ChunkInfo)) {
        self.bfc.for_each_chunk(f);
    }

    /// Keeps the memory at a block's addresses there until [`unpin`](Self::unpin), also after the
    /// block is freed: for addresses that others have registered (a communication library, another
    /// process). All handles under the block stay, so a small block may pin much. O(pages of the
    /// block).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if the block is not one of ours.
    pub fn pin(&mut self, block: &Block) -> Result<(), FreeError> {
        self.bfc.link_of(block).ok_or(FreeError::Unknown)?;
        self.change_pins(block.range(), |pins| pins.saturating_add(1));
        Ok(())
    }

    /// Undoes one [`pin`](Self::pin) of a block that has, or had, these addresses. O(pages).
    pub fn unpin(&mut self, range: AddrRange) {
        self.change_pins(range, |pins| pins.saturating_sub(1));
    }

    fn change_pins(&mut self, range: AddrRange, change: impl Fn(u32) -> u32) {
        if !self.config.addresses.contains(range) {
            return;
        }
        let base = self.config.addresses.start().get();
        let page_bytes = self.config.page_bytes;
        // Pages of the range of addresses are counted by 32 bits.
        let mut page = ((range.start().get() - base) / page_bytes) as u32;
        let end = (range.end().get() - base).div_ceil(page_bytes) as u32;
        while page < end {
            let mapping = self.pages.at(page);
            if mapping.is_some() {
                let handle = self.pages.handle_mut(self.pages.mapping(mapping).handle);
                handle.pins = change(handle.pins);
            }
            page = self.pages.end(mapping).max(page + 1);
        }
    }

    /// A step of the program ends: what it repeats is counted by these. O(1).
    pub fn end_step(&mut self) {
        self.step = self.step.wrapping_add(1);
        let counters = &mut self.bfc.counters;
        self.window.end_step(counters.step_peak());
        counters.start_step();
    }

    /// Pages that a range of granules touches.
    fn touched(&self, chunk: &Chunk) -> (u32, u32) {
        (chunk.start / self.page, chunk.end().div_ceil(self.page))
    }

    fn state(&self, link: Link) -> State {
        self.bfc.table.at(link).state()
    }

    /// Bytes of so many pages.
    fn page_bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.config.page_bytes
    }
}

impl<I: AddressIndex> core::fmt::Debug for PagedBfc<'_, I> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PagedBfc")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
