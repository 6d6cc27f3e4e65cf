//! Larder's contenders that plan: `larder-core`'s planned steps over its paged best fit, or over
//! one plain range.
//!
//! Each step mark of a trace begins a step.

use larder_core::steps::{InRange, Served, StepConfig, StepTables, Steps, Tag};
use larder_core::{Addr, AddrRange, BestFit, Grant, Granule, RegionConfig, RegionPool, Request};
use larder_model::StepSizes;

use crate::ours;
use crate::replay::{Contender, ContenderBlock, Spare, StepFigures};
use crate::snapshot::Span;

/// Sizes of the tables, larger than any trace needs.
const SIZES: StepSizes = StepSizes {
    tags: 1 << 17,
    asked: 1 << 14,
    inherited: 1 << 12,
    shapes: 256,
    entries: 1 << 20,
    obstacles: 1 << 13,
};

static TABLES: Spare<StepTables<'static>> = Spare::new();

/// Creates steps that know no shape yet.
pub(crate) fn steps() -> Steps<'static> {
    let tables = TABLES.take(|| SIZES.leak());
    tables.tags.fill(Tag::NONE);
    Steps::new(StepConfig::new(), tables)
}

/// Keeps the tables of `steps` for the next contender.
pub(crate) fn give(steps: Option<Steps<'static>>) {
    if let Some(steps) = steps {
        TABLES.give(steps.into_tables());
    }
}

/// Granule of all planning contenders, in bytes.
const GRANULE_BYTES: u64 = Granule::DEFAULT.bytes();

/// Loads the plans that another run saved.
pub(crate) fn load(steps: &mut Steps<'_>, program: u64, plans: &[u8]) -> Result<(), String> {
    let loaded = steps.load(GRANULE_BYTES, program, plans);
    loaded.map_err(|error| error.to_string())
}

/// Saves the learned plans, for another run.
pub(crate) fn save(steps: &Steps<'_>, program: u64) -> Vec<u8> {
    let mut plans = Vec::new();
    steps.save(GRANULE_BYTES, program, |bytes| {
        plans.extend_from_slice(bytes);
    });
    plans
}

/// First address of the plain range. It is not 0, so that a forgotten base shows.
const BASE: u64 = 1 << 32;
/// Length of the plain range in bytes: less than 2^32 granules of 256 bytes.
const RANGE_BYTES: u64 = 768 << 30;
/// Growth unit of the plain range, as in `larder-no-moves`.
const GROWTH_BYTES: u64 = 2 << 20;

/// Builds planned steps over one range that grows, as in `larder-no-moves`.
#[expect(clippy::expect_used, reason = "policies are constants of this program")]
pub(crate) fn no_moves(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let given = device_bytes.unwrap_or(RANGE_BYTES).min(RANGE_BYTES) / GROWTH_BYTES * GROWTH_BYTES;
    let addresses = AddrRange::new(Addr::new(BASE), given.max(GROWTH_BYTES));
    let addresses = addresses.expect("ends below 2^64");
    let table = ours::TABLES.take(ours::table);
    let mut pool = RegionPool::new(RegionConfig::fixed(), table).expect("the policies agree");
    if given > 0 {
        pool.add_region(addresses).expect("it is the first region");
    }
    Box::new(PlannedPlain {
        parts: Some((steps(), pool)),
        addresses,
        held_bytes: 0,
        growths: 0,
    })
}

/// Planned steps over a plain range. The memory held is the range up to the highest address that
/// this pass over the trace has used.
struct PlannedPlain {
    /// `None` only while the value is dropped.
    parts: Option<(Steps<'static>, RegionPool<'static>)>,
    addresses: AddrRange,
    held_bytes: u64,
    growths: u64,
}

impl PlannedPlain {
    /// Returns the steps, and the range below them.
    fn parts(&mut self) -> Option<(&mut Steps<'static>, InRange<'_, 'static>)> {
        let (steps, pool) = self.parts.as_mut()?;
        let below = InRange {
            pool,
            addresses: self.addresses,
            held_bytes: self.held_bytes,
        };
        Some((steps, below))
    }

    /// Frees a block. Returns `None` if it is not live.
    fn try_free(&mut self, slot: ContenderBlock) -> Option<()> {
        let (steps, mut below) = self.parts()?;
        let block = below.pool.block_from_raw(slot.raw()?).ok()?;
        steps.free(&mut below, block).ok()
    }
}

impl Drop for PlannedPlain {
    fn drop(&mut self) {
        if let Some((steps, pool)) = self.parts.take() {
            give(Some(steps));
            ours::TABLES.give(pool.into_table());
        }
    }
}

impl Contender for PlannedPlain {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        let (steps, mut below) = self.parts()?;
        let Served::Here(Grant { block, .. }) =
            steps.alloc(&mut below, &Request::new(bytes)).ok()?
        else {
            return None;
        };
        let used = block.range().end().get() - BASE;
        if used > self.held_bytes {
            self.held_bytes = used.next_multiple_of(GROWTH_BYTES);
            self.growths += 1;
        }
        Some(ContenderBlock::of(block))
    }

    fn free(&mut self, slot: ContenderBlock) {
        let freed = self.try_free(slot);
        assert!(freed.is_some(), "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        self.held_bytes
    }

    fn driver_allocations(&self) -> u64 {
        self.growths
    }

    fn end_step(&mut self) {
        if let Some((steps, _)) = &mut self.parts {
            steps.begin(0);
        }
    }

    fn start_over(&mut self) {
        self.held_bytes = 0;
        if let Some((steps, _)) = &mut self.parts {
            steps.start_over();
        }
    }

    fn steps(&self) -> Option<StepFigures> {
        Some(self.parts.as_ref()?.0.stats().into())
    }

    fn held(&self) -> Option<Vec<Span>> {
        let (_, pool) = self.parts.as_ref()?;
        let end = BASE + self.held_bytes;
        let mut held = Vec::new();
        pool.for_each_chunk(|chunk| {
            let span = chunk.range.start().get()..chunk.range.end().get().min(end);
            held.extend((!span.is_empty()).then_some(span));
        });
        Some(held)
    }

    fn planned_bytes(&self) -> Option<u64> {
        self.parts.as_ref()?.0.planned_bytes(Granule::DEFAULT)
    }

    fn planner(&mut self) -> Option<&mut Steps<'static>> {
        Some(&mut self.parts.as_mut()?.0)
    }
}
