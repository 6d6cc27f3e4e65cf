//! The tables of pages: the physical memory that is, or once was, behind each page of addresses.
//!
//! A *handle* is one piece of physical memory: a number of pages that are created and released together. A *mapping* is
//! one place of a handle in the range of addresses. A handle may have several mappings. Exactly one of them is
//! *active*. The others are *cached*: the driver still has them, but the addresses count as having no memory. Reusing a
//! cached mapping costs no driver call.
//!
//! Handle h1 has moved from pages 0 and 1 to 6 and 7; h2 has not moved; pages 4 and 5 have no mapping:
//!
//! ```text
//! page         0     1     2     3     4     5     6     7
//! chunk     |  hollow   |   used    |  hollow   |   used    |
//! entry        m1    m1    m2    m2    0     0     m3    m3
//!               \___/       \___/                   \___/
//! mapping     m1 cached   m2 active               m3 active
//!                 |           |                       |
//! handle          |       h2, 2 pages                 |
//!                 +------- h1, 2 pages ---------------+
//!                          (active: m3; first: m3, whose sibling is m1)
//! ```
//!
//! Invariants:
//! * PAGE1 handles and mappings are in [slabs](crate::table::slab), whose vacant records use `chain`.
//! * PAGE2 a page's entry names the mapping that the driver has there or that a plan will put there. A mapping is only
//!   in the entries of its own pages. It is in all of them, unless it is being unmapped or belongs to a plan that
//!   failed.
//! * PAGE3 the mappings of a handle are linked by `sibling` from `first`, the newest first. There are at most
//!   [`MAPPINGS_A_HANDLE`]. `active` is one of them, or 0 while a plan creates the handle.
//!
//! An invalid number leads to an empty record, never to a panic. All operations are O(pages of the handle) or better.

use crate::error::ConfigError;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::table::slab::{Record, Sink, Slab};

/// Maximum number of mappings of one handle. So there are at most three times as many cached mappings as active ones.
pub(super) const MAPPINGS_A_HANDLE: usize = 4;

/// Number of a handle; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HandleLink(pub(crate) u32);

/// Number of a mapping; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MappingLink(pub(crate) u32);

impl HandleLink {
    pub(crate) const NIL: Self = Self(0);

    pub(crate) const fn is_some(self) -> bool {
        self.0 != 0
    }
}

impl MappingLink {
    pub(crate) const NIL: Self = Self(0);

    pub(crate) const fn is_some(self) -> bool {
        self.0 != 0
    }
}

impl From<u32> for HandleLink {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<HandleLink> for u32 {
    fn from(link: HandleLink) -> Self {
        link.0
    }
}

impl From<u32> for MappingLink {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<MappingLink> for u32 {
    fn from(link: MappingLink) -> Self {
        link.0
    }
}

/// The mapping of one page of addresses: 4 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageEntry(MappingLink);

impl PageEntry {
    /// A page without a mapping, for filling a table.
    pub const EMPTY: Self = Self(MappingLink::NIL);
}

/// The state of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum HandleState {
    #[default]
    Vacant,
    /// A plan will create the handle.
    Planned,
    /// The handle exists, and a plan may choose it.
    Live,
    /// A plan moves the handle, or reuses another of its mappings.
    Chosen,
    /// A plan releases the handle.
    Leaving,
    /// The driver refused to undo a plan, so the handle is held permanently and cannot be used.
    Lost,
}

/// One piece of physical memory; a record of a lent table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handle {
    pub(crate) pages: u32,
    /// The mapping through which the handle is used.
    pub(crate) active: MappingLink,
    /// First in the list of the handle's mappings.
    pub(crate) first: MappingLink,
    /// The chunk in which the handle was idle in the last search that found it.
    pub(crate) source: u32,
    /// Next in the list of idle handles, or of vacant records.
    pub(crate) chain: HandleLink,
    /// Number of pins.
    pub(crate) pins: u32,
    /// Number of the last search that found the handle idle.
    pub(crate) mark: u32,
    pub(crate) state: HandleState,
}

impl Handle {
    /// An empty record, for filling a table.
    pub const VACANT: Self = Self {
        pages: 0,
        active: MappingLink::NIL,
        first: MappingLink::NIL,
        source: 0,
        chain: HandleLink::NIL,
        pins: 0,
        mark: 0,
        state: HandleState::Vacant,
    };
}

static NO_HANDLE: Handle = Handle::VACANT;

impl Record for Handle {
    type Link = HandleLink;
    const VACANT: Self = Self::VACANT;

    fn next_vacant(&self) -> u32 {
        self.chain.0
    }

    fn set_next_vacant(&mut self, link: u32) {
        self.chain = HandleLink(link);
    }
}

impl Sink for Handle {
    fn nil() -> &'static Self {
        &NO_HANDLE
    }
}

/// The state of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum MappingState {
    #[default]
    Vacant,
    /// A plan will make the mapping.
    Planned,
    /// A plan has made the mapping.
    Mapped,
    /// The handle is used through this mapping.
    Active,
    /// The driver has the mapping, while the handle is used elsewhere.
    Cached,
    /// A plan reuses the mapping.
    Reused,
    /// A plan unmaps the range.
    Leaving,
    /// The driver refused to unmap the range, so the addresses are unusable.
    Lost,
}

impl MappingState {
    /// Returns whether the driver has the mapping, and no plan unmaps it.
    pub(super) const fn stands(self) -> bool {
        !matches!(self, Self::Vacant | Self::Planned | Self::Leaving)
    }
}

/// One place of a handle; a record of a lent table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapping {
    /// First page.
    pub(crate) page: u32,
    pub(crate) handle: HandleLink,
    /// Next mapping of the same handle.
    pub(crate) sibling: MappingLink,
    /// Next in the list of a plan, or of vacant records.
    pub(crate) chain: MappingLink,
    /// The last work that uses the memory through this mapping, as event and stream; event 0 if there is none. Set when
    /// a plan takes the handle away.
    event: u64,
    stream: StreamId,
    pub(crate) state: MappingState,
}

impl Mapping {
    /// An empty record, for filling a table.
    pub const VACANT: Self = Self {
        page: 0,
        handle: HandleLink::NIL,
        sibling: MappingLink::NIL,
        chain: MappingLink::NIL,
        event: 0,
        stream: StreamId::MAIN,
        state: MappingState::Vacant,
    };

    /// Returns the point after which no queued work uses the mapping. Event 0 is always reached.
    pub(crate) const fn point(&self) -> StreamPoint {
        StreamPoint {
            stream: self.stream,
            event: EventNumber::new(self.event),
        }
    }

    pub(crate) fn set_point(&mut self, point: Option<StreamPoint>) {
        self.stream = point.map_or(StreamId::MAIN, |point| point.stream);
        self.event = point.map_or(0, |point| point.event.number());
    }
}

static NO_MAPPING: Mapping = Mapping::VACANT;

impl Record for Mapping {
    type Link = MappingLink;
    const VACANT: Self = Self::VACANT;

    fn next_vacant(&self) -> u32 {
        self.chain.0
    }

    fn set_next_vacant(&mut self, link: u32) {
        self.chain = MappingLink(link);
    }
}

impl Sink for Mapping {
    fn nil() -> &'static Self {
        &NO_MAPPING
    }
}

const _: () = assert!(size_of::<Mapping>() <= 32 && size_of::<Handle>() <= 40);
const _: () = assert!(size_of::<PageEntry>() == 4);

/// The tables lent to a paged allocator. They need one entry for each page of addresses that it may use, and one handle
/// for each page of memory that it may hold (fewer if the pieces are known to be larger). The mappings are for active
/// and cached places of handles, usually four times as many as the handles. One record of handles and one of mappings
/// is reserved.
#[derive(Debug)]
pub struct PageTables<'t> {
    /// One entry for each page of addresses.
    pub entries: &'t mut [PageEntry],
    /// Records of pieces of physical memory.
    pub handles: &'t mut [Handle],
    /// Records of the places of these pieces.
    pub mappings: &'t mut [Mapping],
}

/// The tables in use.
pub(crate) struct PageMap<'t> {
    entries: &'t mut [PageEntry],
    pub(super) handles: Slab<'t, Handle>,
    pub(super) mappings: Slab<'t, Mapping>,
}

impl<'t> PageMap<'t> {
    pub(crate) fn new(tables: PageTables<'t>) -> Result<Self, ConfigError> {
        u32::try_from(tables.entries.len()).map_err(|_| ConfigError::PageTables)?;
        let pages = Self {
            entries: tables.entries,
            handles: Slab::new(tables.handles),
            mappings: Slab::new(tables.mappings),
        };
        if pages.handles.capacity() == 0 || pages.mappings.capacity() == 0 {
            return Err(ConfigError::PageTables);
        }
        pages.entries.fill(PageEntry::EMPTY);
        Ok(pages)
    }

    pub(crate) fn into_tables(self) -> PageTables<'t> {
        PageTables {
            entries: self.entries,
            handles: self.handles.into_records(),
            mappings: self.mappings.into_records(),
        }
    }

    /// Returns the number of pages of addresses.
    pub(crate) fn entries(&self) -> u32 {
        // The constructor checked that the length fits.
        self.entries.len() as u32
    }

    pub(crate) fn handle(&self, link: HandleLink) -> &Handle {
        self.handles.at(link)
    }

    pub(crate) fn handle_mut(&mut self, link: HandleLink) -> &mut Handle {
        self.handles.at_mut(link)
    }

    pub(crate) fn mapping(&self, link: MappingLink) -> &Mapping {
        self.mappings.at(link)
    }

    pub(crate) fn mapping_mut(&mut self, link: MappingLink) -> &mut Mapping {
        self.mappings.at_mut(link)
    }

    /// Returns the mapping that the driver has at a page.
    pub(crate) fn at(&self, page: u32) -> MappingLink {
        let entry = self.entries.get(page as usize);
        entry.map_or(MappingLink::NIL, |entry| entry.0)
    }

    /// Returns the first page after a mapping.
    pub(crate) fn end(&self, link: MappingLink) -> u32 {
        let mapping = self.mapping(link);
        mapping.page + self.handle(mapping.handle).pages
    }

    /// Adds a record for a handle that a plan will create.
    pub(crate) fn add_handle(&mut self, pages: u32) -> Option<HandleLink> {
        self.handles.insert(Handle {
            pages,
            state: HandleState::Planned,
            ..Handle::VACANT
        })
    }

    /// Adds a record for a place that a plan will map, and enters the mapping at its pages.
    pub(crate) fn add_mapping(&mut self, handle: HandleLink, page: u32) -> Option<MappingLink> {
        let link = self.mappings.insert(Mapping {
            page,
            handle,
            sibling: self.handle(handle).first,
            state: MappingState::Planned,
            ..Mapping::VACANT
        })?;
        self.handle_mut(handle).first = link;
        self.show(link);
        Some(link)
    }

    /// Enters a mapping at its pages.
    pub(crate) fn show(&mut self, link: MappingLink) {
        self.pages_of(link).fill(PageEntry(link));
    }

    fn pages_of(&mut self, link: MappingLink) -> &mut [PageEntry] {
        let range = self.mapping(link).page as usize..self.end(link) as usize;
        self.entries.get_mut(range).unwrap_or_default()
    }

    /// Returns the first page with a mapping, starting at `page`, or `behind` if there is none before `behind`.
    pub(crate) fn next_mapped(&self, page: u32, behind: u32) -> u32 {
        let entries = self.entries.get(page as usize..behind as usize);
        let found = entries.and_then(|entries| entries.iter().position(|entry| entry.0.is_some()));
        found.map_or(behind, |found| page + found as u32)
    }

    /// Returns whether there is memory behind a page, and no plan takes it away.
    pub(crate) fn is_backed(&self, page: u32) -> bool {
        let link = self.at(page);
        let mapping = self.mapping(link);
        link.is_some()
            && mapping.state == MappingState::Active
            && self.handle(mapping.handle).state == HandleState::Live
    }

    /// Returns the first page without memory, starting at `from`, or `behind` if there is none before `behind`.
    pub(crate) fn next_gap_from(&self, from: u32, behind: u32) -> u32 {
        let mut page = from;
        while page < behind && self.is_backed(page) {
            page = self.end(self.at(page));
        }
        page.min(behind)
    }

    /// Returns whether all pages touched by the granules from `start` to `end` have memory. A page has `page` granules.
    pub(crate) fn is_backed_between(&self, start: u32, end: u32, page: u32) -> bool {
        let behind = end.div_ceil(page);
        self.next_gap_from(start / page, behind) == behind
    }

    /// Removes a mapping and the entries of its pages.
    pub(crate) fn remove_mapping(&mut self, link: MappingLink) {
        let Mapping {
            handle, sibling, ..
        } = *self.mapping(link);
        for entry in self.pages_of(link) {
            if entry.0 == link {
                *entry = PageEntry::EMPTY;
            }
        }
        if self.handle(handle).first == link {
            self.handle_mut(handle).first = sibling;
        } else {
            let mut other = self.handle(handle).first;
            while other.is_some() && self.mapping(other).sibling != link {
                other = self.mapping(other).sibling;
            }
            self.mapping_mut(other).sibling = sibling;
        }
        if self.handle(handle).active == link {
            self.handle_mut(handle).active = MappingLink::NIL;
        }
        self.mappings.remove(link);
    }

    /// Removes a handle that no longer has a mapping.
    pub(crate) fn remove_handle(&mut self, link: HandleLink) {
        self.handles.remove(link);
    }
}
