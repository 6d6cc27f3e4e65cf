//! The bench of the page tests: an allocator over a device that checks every call. The invariants of both are checked
//! after each operation.

use larder_core::pages::{
    Backing, Handle, Mapping, PageAttempt, PageCall, PageConfig, PageDriver, PageEntry, PagePlan,
    PagePool, PageTables,
};
use larder_core::{
    Addr, AddrRange, AllocError, BestFit, Block, BlockAllocator, Chunk, ChunkInfo, ChunkState,
    Progress, Request, Shared, StreamPoint,
};
use larder_model::PageDevice;

pub(crate) const PAGE: u64 = 4096;
const GRANULE: u64 = 256;
/// The first address of the range.
pub(crate) const BASE: u64 = 1000 * PAGE;
/// More pages than any test holds.
pub(crate) const PLENTY: u64 = 1 << 20;

/// Returns a configuration with pages of 4 KiB over `pages` pages of addresses.
pub(crate) fn config(pages: u64, backing: Backing) -> PageConfig {
    let addresses = AddrRange::new(Addr::new(BASE), pages * PAGE).unwrap();
    PageConfig {
        page_bytes: PAGE,
        unit_bytes: PAGE / 64,
        ..PageConfig::new(addresses, backing)
    }
}

/// Returns a request for whole pages on the main stream, without waits.
pub(crate) fn pages(count: u64) -> Request {
    Request::new(count * PAGE).without_wait()
}

pub(crate) fn tables(
    chunks: usize,
    places: usize,
    handles: usize,
    mappings: usize,
) -> (&'static mut [Chunk], PageTables<'static>) {
    let tables = PageTables {
        entries: vec![PageEntry::EMPTY; places].leak(),
        handles: vec![Handle::VACANT; handles].leak(),
        mappings: vec![Mapping::VACANT; mappings].leak(),
    };
    (vec![Chunk::VACANT; chunks].leak(), tables)
}

pub(crate) struct Bench {
    pub(crate) paged: Shared<PagePool<'static>, PageDevice>,
}

impl Bench {
    pub(crate) fn new(config: PageConfig) -> Self {
        Self::with_tables(config, 256, 256, 1024)
    }

    pub(crate) fn with_tables(
        config: PageConfig,
        chunks: usize,
        handles: usize,
        mappings: usize,
    ) -> Self {
        let device = PageDevice::new(config.page_bytes, PLENTY * PAGE);
        Self::on(device, config, chunks, handles, mappings)
    }

    pub(crate) fn on(
        device: PageDevice,
        config: PageConfig,
        chunks: usize,
        handles: usize,
        mappings: usize,
    ) -> Self {
        let places = (config.addresses.bytes() / config.page_bytes) as usize;
        let (chunks, tables) = tables(chunks, places, handles, mappings);
        Self {
            paged: Shared::new(PagePool::new(config, chunks, tables).unwrap(), device),
        }
    }

    pub(crate) fn device(&self) -> &PageDevice {
        self.paged.source()
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        self.paged.with(|pool| pool.check_invariants()).unwrap();
        assert_eq!(self.device().violation(), None);
    }

    /// Allocates a block and tells the device of its use.
    #[track_caller]
    pub(crate) fn try_alloc(&mut self, request: &Request) -> Result<Block, AllocError> {
        let grant = self.paged.alloc(request);
        self.check();
        let block = grant?.block;
        self.begin(&block, request);
        Ok(block)
    }

    #[track_caller]
    pub(crate) fn begin(&self, block: &Block, request: &Request) {
        self.device().begin_use(block.range(), request.stream);
        self.check();
    }

    #[track_caller]
    pub(crate) fn blocks<const N: usize>(&mut self, sizes: [u64; N]) -> [Block; N] {
        sizes.map(|size| self.try_alloc(&pages(size)).unwrap())
    }

    #[track_caller]
    pub(crate) fn free(&mut self, block: Block, after: Option<StreamPoint>) {
        self.device().end_use(block.range(), after);
        self.paged.free_at(block, after).unwrap();
        self.check();
    }

    pub(crate) fn complete(&mut self, point: StreamPoint) {
        self.device().complete(point);
        self.paged.get_mut().complete(point.stream, point.event);
    }

    #[track_caller]
    pub(crate) fn plan(&mut self, request: &Request) -> PagePlan {
        match self
            .paged
            .get_mut()
            .advance(&mut PageAttempt::new(*request))
        {
            Progress::Plan(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    /// Makes the next call of a plan, if there is one, and reports its outcome.
    #[track_caller]
    pub(crate) fn call(&mut self, plan: &mut PagePlan) -> Option<PageCall> {
        let step = self.paged.get_mut().next_call(plan)?;
        match self.device().call(step) {
            Ok(()) => self.paged.get_mut().done(plan),
            Err(_) => self.paged.get_mut().refused(plan),
        }
        self.check();
        Some(step)
    }

    #[track_caller]
    pub(crate) fn finish(&mut self, mut plan: PagePlan) -> Option<Block> {
        while self.call(&mut plan).is_some() {}
        let grant = self.paged.get_mut().finish(plan);
        self.check();
        grant.map(|grant| grant.block)
    }

    /// Returns the pages that the allocator holds, after a comparison with the device.
    #[track_caller]
    pub(crate) fn held(&self) -> u64 {
        let held = self.paged.stats().reserved_bytes;
        let lost = self.paged.with(|pool| pool.lost_bytes());
        assert_eq!(held + lost, self.device().held_bytes());
        held / PAGE
    }

    /// Returns every chunk as its kind, first granule and size. The kinds are `U`sed, `F`ree, `P`ending, `V`oid and `+`
    /// (planned). Neighbours of the same kind are combined unless they are used.
    pub(crate) fn picture(&self) -> Vec<(char, u64, u64)> {
        let mut picture: Vec<(char, u64, u64)> = Vec::new();
        let mut see = |chunk: ChunkInfo| {
            let kind = match chunk.state {
                ChunkState::Used { .. } => 'U',
                ChunkState::Free { pending: false } => 'F',
                ChunkState::Free { pending: true } => 'P',
                ChunkState::Unmapped => 'V',
                _ => '+',
            };
            let start = (chunk.range.start().get() - BASE) / GRANULE;
            let size = chunk.range.bytes() / GRANULE;
            match picture.last_mut() {
                Some((last, _, before)) if *last == kind && kind != 'U' => *before += size,
                _ => picture.push((kind, start, size)),
            }
        };
        self.paged.with(|pool| pool.for_each_chunk(&mut see));
        picture
    }

    /// Returns the picture without the unmapped end, which an undone plan may leave behind.
    pub(crate) fn without_unmapped_end(&self) -> Vec<(char, u64, u64)> {
        let mut picture = self.picture();
        picture.pop_if(|last| last.0 == 'V');
        picture
    }
}
