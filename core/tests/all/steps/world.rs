//! A program with steps, over one range of addresses or over pages, with every block checked.

use std::collections::BTreeMap;

use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use larder_core::steps::{InRange, Served, StepConfig, StepStats, Steps, Tag};
use larder_core::{
    Addr, AddrRange, Align, BestFit, Block, Chunk, Granule, RegionConfig, RegionPool, Request,
    Shared, StreamId,
};
use larder_model::{PageDevice, StepSizes};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GRANULE: u64 = Granule::DEFAULT.bytes();
const BASE: u64 = 1 << 32;
const RANGE_BYTES: u64 = 1 << 32;
const CHUNKS: usize = 4096;

/// Searches are short, because the problems are small.
pub(crate) const CONFIG: StepConfig = StepConfig {
    search_work: 10_000,
    patience: 32,
    ..StepConfig::new()
};

pub(crate) const PLENTY: StepSizes = StepSizes {
    tags: CHUNKS,
    asked: 128,
    inherited: 128,
    shapes: 16,
    entries: 4096,
    obstacles: 64,
};

fn filled<T: Clone>(value: T, len: usize) -> &'static mut [T] {
    vec![value; len].leak()
}

#[allow(clippy::large_enum_variant, reason = "one a test")]
enum Kind {
    Range { bfc: RegionPool<'static>, held: u64 },
    Pages(Shared<PagePool<'static>, PageDevice>),
}

pub(crate) struct World {
    kind: Kind,
    pub(crate) steps: Steps<'static>,
    live: BTreeMap<u64, u64>,
    blocks: Vec<Option<WorldBlock>>,
}

enum WorldBlock {
    Here(Block),
    Elsewhere(Tag),
}

/// The index of a block in `blocks`. The entry is `None` once the block is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Id(usize);

impl World {
    pub(crate) fn new() -> Self {
        Self::with(CONFIG, PLENTY)
    }

    pub(crate) fn with(config: StepConfig, lent: StepSizes) -> Self {
        let mut bfc =
            RegionPool::new(RegionConfig::fixed(), filled(Chunk::VACANT, CHUNKS)).unwrap();
        bfc.add_region(addresses()).unwrap();
        Self::over(Kind::Range { bfc, held: 0 }, config, lent)
    }

    /// Creates a world over pages of 2 MiB.
    pub(crate) fn paged() -> Self {
        let tables = PageTables {
            entries: filled(PageEntry::EMPTY, (RANGE_BYTES / (2 * MIB)) as usize),
            handles: filled(Handle::VACANT, 1024),
            mappings: filled(Mapping::VACANT, 4096),
        };
        let config = PageConfig::new(addresses(), Backing::Billed);
        let pool = PagePool::new(config, filled(Chunk::VACANT, CHUNKS), tables).unwrap();
        let shared = Shared::new(pool, PageDevice::new(2 * MIB, u64::MAX));
        Self::over(Kind::Pages(shared), CONFIG, PLENTY)
    }

    fn over(kind: Kind, config: StepConfig, lent: StepSizes) -> Self {
        Self {
            kind,
            steps: Steps::new(config, lent.leak()),
            live: BTreeMap::new(),
            blocks: Vec::new(),
        }
    }

    pub(crate) fn begin(&mut self) {
        self.begin_keyed(1);
    }

    pub(crate) fn begin_keyed(&mut self, key: u64) {
        self.steps.begin(key);
    }

    pub(crate) fn end(&mut self) {
        self.steps.end();
    }

    pub(crate) fn alloc(&mut self, bytes: u64) -> Id {
        self.try_alloc(&Request::new(bytes)).expect("there is room")
    }

    pub(crate) fn alloc_aligned(&mut self, bytes: u64, align: u64) -> Id {
        let request = Request::new(bytes).aligned(Align::new(align).unwrap());
        self.try_alloc(&request).expect("there is room")
    }

    pub(crate) fn try_alloc(&mut self, request: &Request) -> Option<Id> {
        let grant = match &mut self.kind {
            Kind::Range { bfc, held } => {
                let mut below = InRange {
                    pool: bfc,
                    addresses: addresses(),
                    held_bytes: *held,
                };
                self.steps.alloc(&mut below, request)
            }
            Kind::Pages(shared) => self.steps.alloc(&mut &*shared, request),
        };
        let id = Id(self.blocks.len());
        let block = match grant.ok()? {
            Served::Elsewhere(tag) => WorldBlock::Elsewhere(tag),
            Served::Here(grant) => {
                self.watch(&grant.block, request);
                WorldBlock::Here(grant.block)
            }
        };
        self.blocks.push(Some(block));
        Some(id)
    }

    fn watch(&mut self, block: &Block, request: &Request) {
        let range = block.range();
        assert!(range.bytes() >= request.bytes && range.start().is_aligned(request.align));
        let (start, end) = (range.start().get(), range.end().get());
        let below = self.live.range(..end).next_back();
        assert!(
            below.is_none_or(|(_, other)| *other <= start),
            "overlap at {start:#x}"
        );
        self.live.insert(start, end);
        match &mut self.kind {
            Kind::Range { held, .. } => *held = (*held).max(end - BASE),
            Kind::Pages(shared) => shared.source().begin_use(range, StreamId::MAIN),
        }
        self.check();
    }

    pub(crate) fn free(&mut self, id: Id) {
        let block = match self.blocks[id.0].take() {
            None => return,
            Some(WorldBlock::Elsewhere(tag)) => return self.steps.free_elsewhere(tag),
            Some(WorldBlock::Here(block)) => block,
        };
        self.live.remove(&block.addr().get());
        match &mut self.kind {
            Kind::Range { bfc, held } => {
                let mut below = InRange {
                    pool: bfc,
                    addresses: addresses(),
                    held_bytes: *held,
                };
                self.steps.free(&mut below, block).unwrap();
            }
            Kind::Pages(shared) => {
                shared.source().end_use(block.range(), None);
                self.steps.free(&mut &*shared, block).unwrap();
            }
        }
        self.check();
    }

    /// Returns the offset of a block from the first address; `None` if it was left to the program.
    pub(crate) fn offset(&self, id: Id) -> Option<u64> {
        match self.blocks[id.0].as_ref()? {
            WorldBlock::Here(block) => Some(block.addr().get() - BASE),
            WorldBlock::Elsewhere(_) => None,
        }
    }

    fn check(&self) {
        if let Kind::Pages(shared) = &self.kind {
            assert_eq!(shared.source().violation(), None);
            let checked = shared.with(|pool| pool.check_invariants());
            assert_eq!(checked, Ok(()));
        }
    }

    pub(crate) fn stats(&self) -> StepStats {
        self.steps.stats()
    }

    /// Returns the bytes held; over one range, the highest end so far.
    pub(crate) fn held(&self) -> u64 {
        match &self.kind {
            Kind::Range { held, .. } => *held,
            Kind::Pages(shared) => shared.source().held_bytes(),
        }
    }

    /// Sets the limit of the bytes held in pages.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        if let Kind::Pages(shared) = &mut self.kind {
            shared.get_mut().set_limit(bytes);
        }
    }

    /// Releases the idle memory of pages.
    pub(crate) fn trim(&mut self) {
        if let Kind::Pages(shared) = &mut self.kind {
            shared.release(u64::MAX);
        }
    }

    pub(crate) fn calls(&self) -> u64 {
        match &self.kind {
            Kind::Range { .. } => 0,
            Kind::Pages(shared) => {
                let calls = shared.source().calls();
                calls.create + calls.map + calls.unmap + calls.release + calls.set_access
            }
        }
    }

    /// Plays a step with a key. A positive number allocates that many KiB, and a negative one frees the block of that
    /// number, counted from 1. Returns the blocks that are left and the offsets of all blocks.
    pub(crate) fn step(&mut self, script: &[i64]) -> (Vec<Id>, Vec<Option<u64>>) {
        self.begin_keyed(1);
        self.play(script)
    }

    pub(crate) fn unnamed(&mut self, script: &[i64]) -> (Vec<Id>, Vec<Option<u64>>) {
        self.begin_keyed(0);
        self.play(script)
    }

    fn play(&mut self, script: &[i64]) -> (Vec<Id>, Vec<Option<u64>>) {
        let mut ids: Vec<Id> = Vec::new();
        let mut left = Vec::new();
        let mut offsets = Vec::new();
        for &act in script {
            if act > 0 {
                let id = self.alloc(act.unsigned_abs() * KIB);
                offsets.push(self.offset(id));
                ids.push(id);
                left.push(id);
            } else {
                let id = ids[act.unsigned_abs() as usize - 1];
                self.free(id);
                left.retain(|other| *other != id);
            }
        }
        self.end();
        (left, offsets)
    }
}

pub(crate) fn addresses() -> AddrRange {
    AddrRange::new(Addr::new(BASE), RANGE_BYTES).unwrap()
}
