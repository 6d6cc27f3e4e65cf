//! One range of addresses, and physical pages that move inside it.
//!
//! Most device memory is lost to physical pages that lie idle in holes while the driver is asked
//! for more. Here addresses and memory are two things. *Addresses* are laid out by best fit, as
//! over a plain range that grows, word by word while there is one stream. *Memory* comes to a block's
//! pages when the block is placed there: pages that have none get that of idle ones elsewhere, or new
//! one. A free chunk of which some page may have no memory is *hollow*; a block is cut out of it as out
//! of any other, by a [`PagePlan`].
//!
//! So what moves is won on top of what the range that grows would hold, whenever moving is begun and whenever it
//! ends. More is held only by growth ahead, and with several streams where queued work keeps a place busy or a search
//! comes to its bound. When moving pays is `policy`'s affair.
//!
//! **Moving costs one map.** CUDA and Vulkan let one piece of memory stand at several addresses.
//! So the old mapping of a moved piece is not undone: it stays *cached*, and when a block comes
//! there and the piece is idle again, it is reused without any driver call. A program that swings
//! between two layouts pays once. It also keeps stream order: an unmap would have to wait for work
//! that is still queued, a second mapping does not. (The idea of moving idle pages under a best-fit
//! allocator is GMLake's and expandable segments'; cached mappings are ours.)
//!
//! It performs no I/O. A plan is a sequence of driver calls ([`PageCall`]); whoever drives
//! the allocator makes them one by one and reports each. A refused call undoes the plan.
//!
//! # Files
//! `config` policies · `table` handles and mappings · `policy` what to move and how much to create ·
//! `hollow` addresses without memory · `idle` handles that nothing uses · `plan` when a plan is made and what
//! its end means · `move_or_create` where its memory comes from · `page_calls` the calls of a plan in order ·
//! `release` giving idle memory back · `check` the invariants · `drive` the loops over a driver.
//!
//! # Invariants ([`PagedBfc::check_invariants`] walks them, and those of [`bfc`](crate::bfc))
//! * PAGE1 to PAGE3: `table`.
//! * PAGE5 all pages that a used chunk touches have an active mapping of a live handle.
//! * PAGE6 so have those of a free chunk that is not hollow.
//! * PAGE7 the pages of all handles that exist, and were not created by a plan still under way, are
//!   what is reserved.
//! * PAGE8 only plans under way have filling chunks, and handles and mappings that are not
//!   live, active or cached (but lost ones).
//!
//! # Cost
//! While what fits best has memory, the cost of [`bfc`](crate::bfc): no page is looked at. Else a plan: O(pages of the
//! block), at most 1,024 looks in vain for idle handles, and the work of a driver call for each handle that moves or
//! is created. Where points keep free chunks apart, before the range grows FIT3, FIT4 and the clearing of points look
//! at 2,048 chunks each; where memory is short, at all. Records: 32 bytes a chunk, 40 a handle, 32 a mapping, 4 a
//! page of addresses.

#[cfg(test)]
mod bound_tests;
mod check;
mod config;
mod drive;
mod hollow;
mod idle;
mod move_or_create;
mod page_calls;
mod plan;
mod policy;
mod release;
mod table;

pub use config::{Backing, PagedConfig};
pub use drive::{PageDriver, PagedAllocator};
pub use page_calls::PageCall;
pub use plan::{PagePlan, PagedAttempt};
pub use release::PageStats;
pub use table::{Handle, Mapping, PageTables, Place};

use super::chunk::{Chunk, Link, State};
use super::{Bfc, ChunkInfo, Memory, Progress, Violation};
use crate::block::{AllocatorId, Block};
use crate::error::{ConfigError, FreeError};
use crate::region::RegionId;
use crate::stats::PoolStats;
use crate::sync::number_given_once;
use crate::units::AddrRange;
use table::Pages;

/// A best-fit allocator over one range of addresses whose physical pages can move; for one thread
/// at a time. [`PagedAllocator`] shares it and drives it over a [`PageDriver`].
///
/// ```
/// use larder_core::paged::{Backing, Handle, Mapping, PageTables, PagedAttempt, PagedBfc};
/// use larder_core::paged::{PagedConfig, Place};
/// use larder_core::{Addr, AddrRange, Chunk, Request, Progress};
/// let mut chunks = [Chunk::VACANT; 64];
/// let (mut places, mut handles) = ([Place::EMPTY; 64], [Handle::VACANT; 17]);
/// let mut mappings = [Mapping::VACANT; 64];
/// let tables = PageTables { places: &mut places, handles: &mut handles, mappings: &mut mappings };
/// let addresses = AddrRange::new(Addr::new(1 << 32), 128 << 20).unwrap();
/// let config = PagedConfig::new(addresses, Backing::Billed);
/// let mut paged = PagedBfc::with_tables(config, &mut chunks, tables)?;
///
/// let mut attempt = PagedAttempt::new(Request::new(3 << 20));
/// let Progress::Plan(mut plan) = paged.advance(&mut attempt) else { panic!() };
/// while let Some(call) = paged.next_call(&mut plan) {
///     println!("{call:?}"); // create, map, set access: here the driver would be called
///     paged.done(&mut plan);
/// }
/// let grant = paged.finish(plan).unwrap();
/// assert_eq!(paged.stats().reserved_bytes, 4 << 20);
/// # paged.free(grant.block)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub type PagedBfc<'t> = Bfc<'t, Paged<'t>>;

/// Pages of memory behind one range of addresses.
pub struct Paged<'t> {
    pages: Pages<'t>,
    config: PagedConfig,
    /// Granules a page.
    page: u32,
    /// Pages of addresses.
    max_pages: u32,
    /// The region, once it has a chunk.
    region: Option<RegionId>,
    /// Bytes ever freed, as granted.
    freed_bytes: u64,
    /// Bytes the driver neither uses for us nor took back, their handles, and mappings it did not undo.
    lost: u64,
    lost_handles: u32,
    lost_mappings: u32,
    /// Driver calls made.
    calls: u64,
    /// What was held when the driver refused memory.
    refused_bytes: u64,
    /// Looks of searches so far.
    looks: u64,
    /// The record of a mapping up to which cached ones were unmapped to make room.
    forgotten: u32,
    /// Number of the newest search for idle handles.
    search: u32,
    /// Plans begun and not ended.
    plans: u32,
    /// Most bytes live in the present step, and in each of the last ones.
    window: release::LastSteps,
}

impl<'t> Memory for Paged<'t> {
    type Attempt = PagedAttempt;
    type Plan = PagePlan;

    const HOLLOW: bool = true;

    fn advance(bfc: &mut Bfc<'_, Self>, attempt: &mut PagedAttempt) -> Progress<PagePlan> {
        bfc.advance_pages(attempt)
    }

    #[inline(always)]
    fn note_freed(&mut self, bytes: u64) {
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
    }

    fn is_backed(bfc: &Bfc<'_, Self>, start: u32, end: u32) -> bool {
        bfc.is_backed_between(start, end)
    }

    fn for_each_piece(bfc: &Bfc<'_, Self>, chunk: ChunkInfo, f: &mut impl FnMut(ChunkInfo)) {
        bfc.for_each_piece_of_pages(chunk, f);
    }

    fn pool_stats(bfc: &mut Bfc<'_, Self>) -> PoolStats {
        bfc.pool_stats_of_pages()
    }

    fn check(bfc: &Bfc<'_, Self>) -> Result<(), Violation> {
        bfc.check_pages()
    }
}

impl<'t> PagedBfc<'t> {
    /// An allocator without memory, over lent tables. Never panics.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a table is too small to hold anything or has
    /// fewer places than there are pages of addresses.
    pub fn with_tables(
        config: PagedConfig,
        chunks: &'t mut [Chunk],
        tables: PageTables<'t>,
    ) -> Result<Self, ConfigError> {
        let (page, max_pages) = config.validate()?;
        let pages = Pages::new(tables)?;
        if pages.places() < max_pages {
            return Err(ConfigError::PageTables);
        }
        let memory = Paged {
            pages,
            config,
            page,
            max_pages,
            region: None,
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
            window: release::LastSteps::new(),
        };
        let mut bfc = Bfc::over(config.bfc, chunks, memory)?;
        // Plans outlive their allocator, and are not compared with what is under way: those of a former one over the
        // same tables must have another number.
        let number = number_given_once(AllocatorId::GIVEN_ONCE).ok_or(ConfigError::Numbers)?;
        bfc.set_id(AllocatorId::once(number));
        Ok(bfc)
    }
}

impl<'t> PagedBfc<'t> {
    /// Gives the lent tables back; blocks not freed and memory not released are forgotten.
    pub fn into_tables(self) -> (&'t mut [Chunk], PageTables<'t>) {
        (self.table.into_records(), self.memory.pages.into_tables())
    }

    /// The policies of the pages.
    pub const fn paged_config(&self) -> &PagedConfig {
        &self.memory.config
    }

    /// Keeps the memory at a block's addresses there until [`unpin`](Self::unpin), also after the
    /// block is freed: for addresses that others have registered (a communication library, another
    /// process). All handles under the block stay, so a small block may pin much. O(pages of the
    /// block).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if the block is not one of ours.
    pub fn pin(&mut self, block: &Block) -> Result<(), FreeError> {
        self.link_of(block).ok_or(FreeError::Unknown)?;
        self.pin_range(block.range());
        Ok(())
    }

    /// Keeps the memory at some addresses there, as [`pin`](Self::pin) does at a block's: a part of a block in
    /// use, or what an allocator over a block made of it. O(pages).
    pub fn pin_range(&mut self, range: AddrRange) {
        self.change_pins(range, |pins| pins.saturating_add(1));
    }

    /// Undoes one [`pin`](Self::pin) of a block that has, or had, these addresses, or of
    /// [these](Self::pin_range). O(pages).
    pub fn unpin(&mut self, range: AddrRange) {
        self.change_pins(range, |pins| pins.saturating_sub(1));
    }

    fn change_pins(&mut self, range: AddrRange, change: impl Fn(u32) -> u32) {
        if !self.memory.config.addresses.contains(range) {
            return;
        }
        let base = self.memory.config.addresses.start().get();
        let page_bytes = self.memory.config.page_bytes;
        // Pages of the range of addresses are counted by 32 bits.
        let mut page = ((range.start().get() - base) / page_bytes) as u32;
        let end = (range.end().get() - base).div_ceil(page_bytes) as u32;
        while page < end {
            let mapping = self.memory.pages.at(page);
            if mapping.is_some() {
                let handle = self
                    .memory
                    .pages
                    .handle_mut(self.memory.pages.mapping(mapping).handle);
                handle.pins = change(handle.pins);
            }
            page = self.memory.pages.end(mapping).max(page + 1);
        }
    }

    /// A step of the program ends: what it repeats is counted by these. O(1).
    pub fn end_step(&mut self) {
        let counters = &mut self.counters;
        self.memory.window.end_step(counters.step_peak());
        counters.start_step();
    }

    /// Bytes of so many pages.
    fn page_bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.memory.config.page_bytes
    }
}

impl core::fmt::Debug for Paged<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Paged")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
