//! Larder's contenders that plan: `larder-core`'s steps over its paged best fit, or over one plain
//! range.
//!
//! Each step mark of a trace begins a step. When the last live block is freed, as between two
//! passes over the whole trace, the program starts over: what is held goes back to the device, so
//! that the next pass shows what a program needs that knows its steps from the start.

use std::sync::Mutex;

use larder_core::lifetime::{InRange, OverPages, StepConfig, StepTables, Steps, Tag};
use larder_core::{Addr, AddrRange, Bfc, BfcConfig, ChunkHandle, Granule, RawBlock, Request};

use larder_model::StepSizes;

use crate::ours::{give_table, take_table};
use crate::paged::Paged;
use crate::replay::{Contender, DriverCalls, Slot, StepFigures};

/// Name of [`planned`].
pub const PLANNED: &str = "planned";
/// Name of [`planned_plain`].
pub const PLANNED_PLAIN: &str = "planned-plain";

/// More than any trace needs.
const SIZES: StepSizes = StepSizes {
    tags: 1 << 17,
    asked: 1 << 14,
    inherited: 1 << 12,
    shapes: 256,
    entries: 1 << 20,
    obstacles: 1 << 13,
};

/// Steps are planned; pages move as in `larder-billed`.
#[must_use]
pub fn planned(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Planned {
        steps: Some(Steps::new(StepConfig::new(), take_tables())),
        paged: Paged::billed(PLANNED, device_bytes),
        live: 0,
    })
}

struct Planned {
    /// Always there, except while it is dropped.
    steps: Option<Steps<'static>>,
    paged: Paged,
    live: u64,
}

impl Drop for Planned {
    fn drop(&mut self) {
        self.steps
            .take()
            .into_iter()
            .for_each(|steps| give_tables(steps.into_tables()));
    }
}

/// Both allocators count in these.
const GRANULE_BYTES: u64 = Granule::DEFAULT.bytes();

fn load(steps: &mut Steps<'_>, program: u64, plans: &[u8]) -> Result<(), String> {
    let loaded = steps.load(GRANULE_BYTES, program, plans);
    loaded.map_err(|error| error.to_string())
}

fn save(steps: &Steps<'_>, program: u64) -> Vec<u8> {
    let mut plans = Vec::new();
    steps.save(GRANULE_BYTES, program, |bytes| {
        plans.extend_from_slice(bytes);
    });
    plans
}

/// Tables that no allocator uses at the moment.
static TABLES: Mutex<Vec<StepTables<'static>>> = Mutex::new(Vec::new());

/// Tables that no allocator uses, or new ones, which are leaked and reused; see [`ours`](crate::ours).
fn take_tables() -> StepTables<'static> {
    let spare = TABLES.lock().unwrap_or_else(|lock| lock.into_inner()).pop();
    if let Some(tables) = spare {
        tables.tags.fill(Tag::NONE);
        return tables;
    }
    SIZES.leak()
}

fn give_tables(tables: StepTables<'static>) {
    let mut spare = TABLES.lock().unwrap_or_else(|lock| lock.into_inner());
    spare.push(tables);
}

impl Contender for Planned {
    fn name(&self) -> &'static str {
        self.paged.name()
    }

    fn alloc(&mut self, bytes: u64) -> Option<Slot> {
        let (paged, device) = self.paged.parts()?;
        let mut below = OverPages {
            paged,
            driver: device,
        };
        let grant = self
            .steps
            .as_mut()?
            .alloc(&mut below, &Request::new(bytes))
            .ok()??;
        self.live += 1;
        Some(self.paged.hand_out(grant.block))
    }

    fn free(&mut self, slot: Slot) {
        let Some(block) = self.paged.take_back(slot) else {
            return;
        };
        let Some((paged, driver)) = self.paged.parts() else {
            return;
        };
        let mut below = OverPages { paged, driver };
        let steps = self.steps.as_mut();
        let freed = steps.is_some_and(|steps| steps.free(&mut below, block).is_ok());
        assert!(freed, "the replay frees only live blocks");
        self.live -= 1;
        if self.live == 0 {
            below.paged.release_over(driver, u64::MAX);
            self.steps.iter_mut().for_each(Steps::start_over);
        }
    }

    fn reserved_bytes(&self) -> u64 {
        self.paged.reserved_bytes()
    }

    fn max_reserved_bytes(&self) -> Option<u64> {
        self.paged.max_reserved_bytes()
    }

    fn driver_allocations(&self) -> u64 {
        self.paged.driver_allocations()
    }

    fn driver_frees(&self) -> u64 {
        self.paged.driver_frees()
    }

    fn driver_calls(&self) -> Option<DriverCalls> {
        self.paged.driver_calls()
    }

    fn end_step(&mut self) {
        self.paged.end_step();
        self.steps
            .as_mut()
            .into_iter()
            .for_each(|steps| steps.begin(0));
    }

    fn judge(&mut self) {
        self.paged.judge();
    }

    fn broken_rule(&self) -> Option<String> {
        self.paged.broken_rule()
    }

    fn steps(&self) -> Option<StepFigures> {
        Some(self.steps.as_ref()?.stats().into())
    }

    fn load_plans(&mut self, program: u64, plans: &[u8]) -> Result<(), String> {
        self.steps
            .as_mut()
            .map_or(Ok(()), |steps| load(steps, program, plans))
    }

    fn save_plans(&self, program: u64) -> Option<Vec<u8>> {
        self.steps.as_ref().map(|steps| save(steps, program))
    }
}

/// First address of the plain range; not 0, so that a forgotten base would show.
const BASE: u64 = 1 << 32;
/// Its length: what granules of 256 bytes counted in 32 bits allow, less a little.
const RANGE_BYTES: u64 = 768 << 30;
/// What the plain range grows by, as `larder`.
const GROWTH_BYTES: u64 = 2 << 20;

/// Steps are planned over one range that grows, as in `larder`.
#[must_use]
#[expect(clippy::expect_used, reason = "policies are constants of this program")]
pub fn planned_plain(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let given = device_bytes.unwrap_or(RANGE_BYTES).min(RANGE_BYTES) / GROWTH_BYTES * GROWTH_BYTES;
    let addresses = AddrRange::new(Addr::new(BASE), given.max(GROWTH_BYTES));
    let addresses = addresses.expect("ends below 2^64");
    let mut bfc = Bfc::new(BfcConfig::fixed(), take_table()).expect("the policies agree");
    if given > 0 {
        bfc.add_region(addresses).expect("it is the first region");
    }
    Box::new(PlannedPlain {
        parts: Some((Steps::new(StepConfig::new(), take_tables()), bfc)),
        addresses,
        held_bytes: 0,
        growths: 0,
        live: 0,
    })
}

/// What is held is the range up to the highest address used since nothing was live.
struct PlannedPlain {
    /// Always there, except while it is dropped.
    parts: Option<(Steps<'static>, Bfc<'static>)>,
    addresses: AddrRange,
    held_bytes: u64,
    growths: u64,
    live: u64,
}

impl Drop for PlannedPlain {
    fn drop(&mut self) {
        if let Some((steps, bfc)) = self.parts.take() {
            give_tables(steps.into_tables());
            give_table(bfc.into_table());
        }
    }
}

impl Contender for PlannedPlain {
    fn name(&self) -> &'static str {
        PLANNED_PLAIN
    }

    fn alloc(&mut self, bytes: u64) -> Option<Slot> {
        let (steps, bfc) = self.parts.as_mut()?;
        let mut below = InRange {
            bfc,
            addresses: self.addresses,
            held_bytes: self.held_bytes,
        };
        let block = steps.alloc(&mut below, &Request::new(bytes)).ok()??.block;
        let used = block.range().end().get() - BASE;
        if used > self.held_bytes {
            self.held_bytes = used.next_multiple_of(GROWTH_BYTES);
            self.growths += 1;
        }
        self.live += 1;
        let raw = block.into_raw();
        Some(Slot {
            address: raw.addr.get(),
            handle: raw.handle.get(),
        })
    }

    fn free(&mut self, slot: Slot) {
        let freed = self.parts.as_mut().is_some_and(|(steps, bfc)| {
            let Some(handle) = ChunkHandle::new(slot.handle) else {
                return false;
            };
            let addr = Addr::new(slot.address);
            let block = bfc.block_from_raw(RawBlock { addr, handle });
            let mut below = InRange {
                bfc,
                addresses: self.addresses,
                held_bytes: self.held_bytes,
            };
            block.is_ok_and(|block| steps.free(&mut below, block).is_ok())
        });
        assert!(freed, "the replay frees only live blocks");
        self.live -= 1;
        if self.live == 0 {
            self.held_bytes = 0;
            self.parts
                .iter_mut()
                .for_each(|(steps, _)| steps.start_over());
        }
    }

    fn reserved_bytes(&self) -> u64 {
        self.held_bytes
    }

    fn driver_allocations(&self) -> u64 {
        self.growths
    }

    fn driver_frees(&self) -> u64 {
        0
    }

    fn end_step(&mut self) {
        if let Some((steps, _)) = self.parts.as_mut() {
            steps.begin(0);
        }
    }

    fn steps(&self) -> Option<StepFigures> {
        Some(self.parts.as_ref()?.0.stats().into())
    }

    fn load_plans(&mut self, program: u64, plans: &[u8]) -> Result<(), String> {
        let steps = self.parts.as_mut().map(|(steps, _)| steps);
        steps.map_or(Ok(()), |steps| load(steps, program, plans))
    }

    fn save_plans(&self, program: u64) -> Option<Vec<u8>> {
        self.parts.as_ref().map(|(steps, _)| save(steps, program))
    }
}
