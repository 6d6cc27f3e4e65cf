//! The pool: serves from the plan, and from the backend what the plan has no block for.
//!
//! Works on numbers. Before the first plan, and after one that could not be installed, everything
//! goes to the backend: the pool is in pass-through. Blocks may be freed in any state whatever the
//! state was when they were allocated; their address tells where they belong.
//!
//! Two plans can be in use at a time: one serves, the older one drains. Its slabs go back when its
//! last block comes back.
//!
//! Locks: a bin's, then that of a larger bin; the map of the backend's blocks, alone; the planner's,
//! alone. None is held while the backend is asked.

use super::config::PlannedPoolConfig;
use super::error::PlanError;
use super::live::{Live, LiveMap};
use super::planner::Planner;
use super::pool_stats::{AtomicCounts, PoolCounts, Watch};
use super::pool_tables::{PoolTables, SlotTables};
use super::slot::{Miss, PlanSlot};
use super::{AllocStat, SMALL_MAX_BYTES};
use crate::error::{AllocError, Cause, FreeError, OutOfMemory};
use crate::sub_allocator::{GrowRequest, SubAllocator};
use crate::sync::{AtomicU32, AtomicU64, Locked, Ordering, Spin, Wait};
use crate::units::{Addr, Align, round_up};

/// A pool of tensors' memory over a backend.
///
/// ```
/// use larder_core::lifetime::prmalloc::*;
/// use larder_core::{Addr, AddrRange, Align, FixedRange};
///
/// let mut pending = [AllocStat::VACANT; 8];
/// let (mut stats, mut order) = ([AllocStat::VACANT; 8], [0; 8]);
/// let mut bins = [[BinRecord::VACANT; 4]; 3];
/// let mut blocks = [[BlockRecord::VACANT; 4]; 3];
/// let mut virtuals = [[VirtualRecord::VACANT; 4]; 3];
/// let mut members = [[0; 8]; 3];
/// let mut of = bins.iter_mut().zip(&mut blocks).zip(&mut virtuals).zip(&mut members);
/// let policies = [(); 3].map(|()| {
///     let (((bins, blocks), virtuals), members) = of.next().unwrap();
///     PolicyTables { bins, blocks, virtuals, members }
/// });
/// let slots: [_; 2] = core::array::from_fn(|_| {
///     ([(); 4].map(|()| PoolBin::vacant()), [(); 4].map(|()| PoolBlock::vacant()))
/// });
/// let mut live = [LiveRecord::VACANT; 8];
/// let tables = PoolTables {
///     pending: &mut pending,
///     plans: PlanTables { stats: &mut stats, order: &mut order, policies, small: None },
///     bins: [&slots[0].0, &slots[1].0],
///     blocks: [&slots[0].1, &slots[1].1],
///     virtuals: [&[], &[]],
///     live: &mut live,
/// };
/// let mut config = PlannedPoolConfig::new();
/// config.planner.window = Window { start: 0, stable: 1, max: 9 };
/// let range = AddrRange::new(Addr::new(0x1000), 1 << 20).unwrap();
/// let pool: TensorPool<'_, _> = TensorPool::new(config, tables, FixedRange::new(range));
/// for _ in 0..4 {
///     let step = pool.start();
///     let block = pool.alloc(100_000, Align::ONE)?;
///     pool.free(block)?;
///     pool.end_step(step)?;
/// }
/// // The fourth step was served by the plan of the first three.
/// assert_eq!(pool.counts().hits, 1);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct TensorPool<'t, S, W: Wait = Spin> {
    pub(super) config: PlannedPoolConfig,
    pub(super) planner: Planner<'t, W>,
    pub(super) backend: S,
    pub(super) slots: [PlanSlot<'t, W>; 2],
    /// Which slot serves, counted from 1; 0 is none.
    pub(super) current: AtomicU32,
    /// 1 while a plan is being installed.
    pub(super) installing: AtomicU32,
    /// 1 while slabs wait that the backend refused to take.
    pub(super) refused: AtomicU32,
    ticks: AtomicU64,
    live: Locked<LiveMap<'t>, W>,
    pools_small: bool,
    pub(super) counters: AtomicCounts,
    pub(super) watch: Locked<Watch, W>,
}

impl<'t, S: SubAllocator, W: Wait> TensorPool<'t, S, W> {
    /// A pool in pass-through. Sizes up to 32 KiB are planned if the planner has tables for them.
    pub fn new(config: PlannedPoolConfig, tables: PoolTables<'t, W>, backend: S) -> Self {
        Self {
            config,
            pools_small: tables.plans.small.is_some(),
            planner: Planner::new(config.planner, tables.pending, tables.plans),
            backend,
            slots: [0, 1].map(|index| {
                PlanSlot::new(SlotTables {
                    bins: tables.bins[index],
                    blocks: tables.blocks[index],
                    virtuals: tables.virtuals[index],
                })
            }),
            current: AtomicU32::new(0),
            installing: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            ticks: AtomicU64::new(1),
            live: Locked::new(LiveMap::new(tables.live)),
            counters: AtomicCounts::new(),
            watch: Locked::new(Watch::default()),
        }
    }

    /// Gives a block of at least `bytes` bytes at a multiple of `align`. From the plan it costs
    /// O(log bins), and O(virtual blocks of the bin) once its own blocks are in use; otherwise a call of
    /// the backend.
    ///
    /// # Errors
    /// The plan has no block, and the backend or the table of its blocks no room.
    pub fn alloc(&self, bytes: u64, align: Align) -> Result<Addr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let tick = self.tick();
        let stat = AllocStat::new(tick, tick, bytes).aligned(align);
        match self.alloc_planned(stat) {
            Some(addr) => Ok(addr),
            None => self.alloc_direct(stat),
        }
    }

    fn alloc_planned(&self, stat: AllocStat) -> Option<Addr> {
        if stat.bytes <= SMALL_MAX_BYTES && !self.pools_small {
            return None;
        }
        loop {
            // Whoever is refused at a gate finds the next plan: it was named before that one was
            // closed.
            let current = self.current.load(Ordering::Acquire).checked_sub(1)?;
            let slot = &self.slots[current as usize];
            if !slot.gate.enter() {
                continue;
            }
            return match slot.take(stat, self.planner.steps()) {
                Ok(addr) => {
                    self.counters.hits.fetch_add(1, Ordering::Relaxed);
                    Some(addr)
                }
                Err(miss) => {
                    self.leave(slot, 1);
                    let counter = match miss {
                        Miss::Missed => &self.counters.missed,
                        Miss::NoBin => &self.counters.no_bin,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                    None
                }
            };
        }
    }

    fn alloc_direct(&self, stat: AllocStat) -> Result<Addr, AllocError> {
        let requested_bytes = stat.bytes;
        let align = stat.align.max(self.config.unit);
        let bytes = round_up(stat.bytes, align);
        let request = GrowRequest {
            bytes: bytes.ok_or(AllocError::TooLarge { requested_bytes })?,
            align,
            at: None,
        };
        let out = OutOfMemory::of(Cause::SubAllocator, requested_bytes);
        let out = AllocError::OutOfMemory(out);
        let range = self.backend.grow(request).map_err(|_| out)?;
        let live = Live {
            range,
            stat,
            born_step: self.planner.steps(),
        };
        let serves = range.bytes() >= stat.bytes && range.start().is_aligned(stat.align);
        if serves && self.live.with(|map| map.insert(live)) {
            self.counters.took(range.bytes());
            return Ok(range.start());
        }
        // What the backend does not take back it must account for itself: we have no record.
        let _ = self.backend.release(range);
        if serves {
            let records = self.live.with(|map| map.capacity());
            let records = u32::try_from(records).unwrap_or(u32::MAX);
            return Err(AllocError::TableFull { records });
        }
        Err(out)
    }

    /// Takes a block back, wherever it came from. O(slabs + log bins), or a call of the backend.
    ///
    /// # Errors
    /// No block in use begins there, or the backend refuses it. Nothing has changed then.
    pub fn free(&self, addr: Addr) -> Result<(), FreeError> {
        for slot in &self.slots {
            if !slot.may_hold(addr) || !slot.gate.visit() {
                continue;
            }
            if let Some((place, stat, born_step)) = slot.end_use(addr) {
                self.record(stat, born_step);
                slot.put_back(place);
                self.leave(slot, 2);
                return Ok(());
            }
            self.leave(slot, 1);
        }
        self.free_direct(addr)
    }

    fn free_direct(&self, addr: Addr) -> Result<(), FreeError> {
        let Some(live) = self.live.with(|map| map.remove(addr)) else {
            return Err(FreeError::Unknown);
        };
        if self.backend.release(live.range).is_err() {
            // Its place was free a moment ago; if others took the last one, it is the backend's.
            self.live.with(|map| map.insert(live));
            return Err(FreeError::SubAllocator);
        }
        self.record(live.stat, live.born_step);
        self.counters.gave(live.range.bytes());
        Ok(())
    }

    fn record(&self, stat: AllocStat, born_step: u64) {
        let large = stat.bytes > SMALL_MAX_BYTES;
        if large || self.pools_small {
            let stat = AllocStat {
                end: self.tick(),
                ..stat
            };
            self.planner.record(stat, born_step);
        }
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    /// Which of the two rooms for plans serves; `None` in pass-through.
    pub fn serving(&self) -> Option<u32> {
        self.current.load(Ordering::Acquire).checked_sub(1)
    }

    /// What it served and holds. O(1).
    pub fn counts(&self) -> PoolCounts {
        self.counters.read()
    }

    /// Its planner.
    pub fn planner(&self) -> &Planner<'t, W> {
        &self.planner
    }

    /// What is below.
    pub fn backend(&self) -> &S {
        &self.backend
    }

    /// The tables and the backend. What is held from the backend stays held.
    pub fn into_parts(self) -> (PoolTables<'t, W>, S) {
        let (pending, plans) = self.planner.into_tables();
        let slots = self.slots.map(|slot| slot.tables);
        let tables = PoolTables {
            pending,
            plans,
            bins: slots.each_ref().map(|slot| slot.bins),
            blocks: slots.each_ref().map(|slot| slot.blocks),
            virtuals: slots.each_ref().map(|slot| slot.virtuals),
            live: self.live.into_inner().into_records(),
        };
        (tables, self.backend)
    }

    /// Why there is no plan, if a round failed.
    pub fn failed(&self) -> Option<PlanError> {
        self.planner.progress().failed
    }
}
