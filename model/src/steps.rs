//! Random programs of steps over a range whose pages move. The device checks them.

use std::collections::BTreeMap;

use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use larder_core::steps::{Served, StepConfig, Steps, Tag};
use larder_core::{
    Addr, AddrRange, Align, BestFit, Block, BlockAllocator, Chunk, Granule, Request, Shared,
    StreamId,
};

use crate::{OwnedTables, PageDevice, StepSizes};

/// Bytes from which the tables and policies are decoded.
pub type StepsHead = [u8; 4];
/// Bytes of one operation.
pub type StepsOp = [u8; 2];

const PAGE: u64 = 64 << 10;
const PAGES: u64 = 512;
const BASE: u64 = 1 << 32;

/// Runs a program of steps. An operation may repeat the script of an earlier step, so that shapes recur, exactly or
/// nearly.
///
/// # Errors
/// The first rule broken.
///
/// # Panics
/// If a decoded configuration is refused.
pub fn run_steps(head: StepsHead, ops: impl IntoIterator<Item = StepsOp>) -> Result<(), String> {
    let lent = |byte: u8, max: usize| {
        if byte < 200 {
            max
        } else {
            usize::from(byte) % 8
        }
    };
    let asked = lent(head[0], 64);
    let obstacles = lent(head[1], 64);
    let mut tables = OwnedTables::new(StepSizes {
        tags: lent(head[2], 256),
        asked,
        inherited: 8,
        shapes: usize::from(head[3] % 6),
        entries: 256,
        obstacles,
    });
    let config = StepConfig {
        within_plans: head[3] >= 128,
        threshold_bytes: u64::from(head[3] & 64) * 8,
        ..StepConfig::new()
    };
    let (mut chunks, mut entries) = (
        vec![Chunk::VACANT; 256],
        vec![PageEntry::EMPTY; PAGES as usize],
    );
    let (mut handles, mut mappings) = (vec![Handle::VACANT; 128], vec![Mapping::VACANT; 512]);
    let page_tables = PageTables {
        entries: &mut entries,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let addresses = AddrRange::new(Addr::new(BASE), PAGES * PAGE).expect("far from the end");
    let mut paged = PageConfig::new(addresses, Backing::Billed);
    paged.page_bytes = PAGE;
    let mut run = Run {
        steps: Steps::new(config, tables.lend()),
        paged: Shared::new(
            PagePool::new(paged, &mut chunks, page_tables).expect("a valid configuration"),
            PageDevice::new(PAGE, PAGES * PAGE / 4),
        ),
        live: BTreeMap::new(),
        elsewhere: Vec::new(),
        script: Vec::new(),
        old: Vec::new(),
    };
    for op in ops {
        run.act(op)?;
        run.check()?;
    }
    run.end()
}

struct Run<'t> {
    steps: Steps<'t>,
    paged: Shared<PagePool<'t>, PageDevice>,
    live: BTreeMap<u64, Block>,
    elsewhere: Vec<Tag>,
    /// The operations of this step, and those of each earlier step.
    script: Vec<StepsOp>,
    old: Vec<Vec<StepsOp>>,
}

impl Run<'_> {
    fn act(&mut self, op: StepsOp) -> Result<(), String> {
        let [kind, value] = op;
        match kind % 16 {
            0 => self.begin(u64::from(value % 2)),
            1 => self.steps.end(),
            2 => {
                let count = self.old.len().max(1);
                let script = self.old.get(usize::from(value) % count).cloned();
                self.begin(0);
                for op in script.unwrap_or_default() {
                    self.play(op)?;
                }
            }
            3 => self.save_and_load(value)?,
            _ => self.play(op)?,
        }
        Ok(())
    }

    fn begin(&mut self, key: u64) {
        let script = std::mem::take(&mut self.script);
        self.old.push(script);
        self.steps.begin(key);
    }

    /// Allocates or frees.
    fn play(&mut self, [kind, value]: StepsOp) -> Result<(), String> {
        self.script.push([kind, value]);
        let mut below = &self.paged;
        if kind % 16 < 10 {
            let mut request = Request::new((u64::from(value) + 1) * 1000);
            if kind >= 240 {
                request.align = Align::new(1 << (value % 17)).expect("a power of two");
            }
            let grant = match self.steps.alloc(&mut below, &request) {
                Err(_) => return Ok(()),
                Ok(Served::Elsewhere(tag)) => {
                    self.elsewhere.push(tag);
                    return Ok(());
                }
                Ok(Served::Here(grant)) => grant,
            };
            let range = grant.block.range();
            if range.bytes() < request.bytes || !range.start().is_aligned(request.align) {
                return Err(format!("{:?} for {request:?}", grant.block));
            }
            let under = self.live.range(..range.end().get()).next_back();
            if under.is_some_and(|(_, block)| block.range().end() > range.start()) {
                return Err(format!("{:?} overlaps", grant.block));
            }
            self.paged.source().begin_use(range, StreamId::MAIN);
            self.live.insert(range.start().get(), grant.block);
        } else if value % 4 == 3
            && let Some(tag) = self.elsewhere.pop()
        {
            self.steps.free_elsewhere(tag);
        } else if let Some((&start, _)) = self
            .live
            .iter()
            .nth(usize::from(value) % self.live.len().max(1))
        {
            let block = self.live.remove(&start).expect("seen just now");
            self.paged.source().end_use(block.range(), None);
            let freed = self.steps.free(&mut below, block);
            freed.map_err(|rejected| rejected.error.to_string())?;
        }
        Ok(())
    }

    /// Checks that saved plans in which one bit was changed are not loaded.
    fn save_and_load(&mut self, value: u8) -> Result<(), String> {
        let granule = Granule::DEFAULT.bytes();
        let mut plans = Vec::new();
        self.steps
            .save(granule, 7, |bytes| plans.extend_from_slice(bytes));
        let mut damaged = plans.clone();
        let at = usize::from(value) * 7 % damaged.len();
        damaged[at] ^= 1;
        match self.steps.load(granule, 7, &damaged) {
            Ok(()) => Err(format!("damaged at {at}, and loaded")),
            Err(_) => Ok(()),
        }
    }

    fn check(&self) -> Result<(), String> {
        if let Some(violation) = self.paged.source().violation() {
            return Err(violation);
        }
        self.paged
            .with(|pool| pool.check_invariants())
            .map_err(|broken| broken.to_string())?;
        self.steps.check_layouts().map_err(str::to_owned)
    }

    fn end(mut self) -> Result<(), String> {
        self.steps.end();
        for block in std::mem::take(&mut self.live).into_values() {
            self.paged.source().end_use(block.range(), None);
            let mut below = &self.paged;
            let freed = self.steps.free(&mut below, block);
            freed.map_err(|rejected| rejected.error.to_string())?;
        }
        self.check()?;
        match self.paged.stats().live_bytes {
            0 => Ok(()),
            live => Err(format!("{live} bytes are live at the end")),
        }
    }
}
