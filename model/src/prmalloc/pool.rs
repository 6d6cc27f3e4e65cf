//! The pool, which serves from the plan and otherwise from the backend.

use std::collections::{BTreeMap, VecDeque};

use larder_core::prmalloc::{AllocStat, PlanError, PoolCounts, SMALL_MAX_BYTES};
use larder_core::{
    Addr, AddrRange, Align, AllocError, Cause, FreeError, GrowRequest, OutOfMemory, SubAllocator,
    round_up,
};

use super::served::Served;
use super::{Fit, Planner, Window};

/// The behaviour of one of upstream's forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// The steps in which lifetimes are recorded.
    pub window: Window,
    /// The way in which lifetimes are fitted.
    pub fit: Fit,
    /// Whether all bins above 32 KiB share one slab, and all bins below share another. If not, each bin has its own.
    pub one_slab: bool,
    /// Whether virtual blocks take turns, beginning with the oldest in each step, and stay in their list. If not, only
    /// the newest one that is not lent is tried.
    pub turns: bool,
    /// The unit of the backend's ranges.
    pub unit: Align,
    /// Whether a block of the backend is released only when the next step begins: the GPU form's asynchronous free,
    /// which upstream has as a second call in addition to the immediate free.
    pub late_frees: bool,
}

impl Form {
    /// The CPU form. With [`Window::ONCE`], it is the older CPU form.
    pub const CPU: Self = Self {
        window: Window::STABLE,
        fit: Fit::CPU,
        one_slab: false,
        turns: false,
        unit: Align::new(64).unwrap(),
        late_frees: false,
    };

    /// The GPU form without asynchronous frees.
    pub const GPU: Self = Self {
        window: Window::EACH_START,
        fit: Fit::GPU,
        one_slab: true,
        turns: true,
        unit: Align::new(256).unwrap(),
        late_frees: false,
    };
}

/// A block of the backend.
#[derive(Clone, Copy)]
struct Direct {
    range: AddrRange,
    stat: AllocStat,
}

/// A memory pool for tensors over a backend. It is planned once.
pub struct TensorPool<S> {
    form: Form,
    with_small: bool,
    planner: Planner,
    backend: S,
    tick: u64,
    serving: Option<Served>,
    /// Former plans whose blocks are still in use.
    draining: Vec<Served>,
    direct: BTreeMap<u64, Direct>,
    /// Ranges that are freed but not yet released.
    late: VecDeque<AddrRange>,
    counts: PoolCounts,
}

impl<S: SubAllocator> TensorPool<S> {
    /// Creates a pool without a plan; `with_small` includes sizes up to 32 KiB in plans, as in the GPU form.
    pub fn new(form: Form, with_small: bool, backend: S) -> Self {
        Self {
            form,
            with_small,
            planner: Planner::new(form.window, form.fit, with_small),
            backend,
            tick: 0,
            serving: None,
            draining: Vec::new(),
            direct: BTreeMap::new(),
            late: VecDeque::new(),
            counts: PoolCounts::default(),
        }
    }

    /// Begins a step, after a round if one is due.
    ///
    /// # Errors
    /// If there is no memory for the plan. The pool continues as before.
    pub fn start(&mut self) -> Result<(), PlanError> {
        for _ in 0..self.late.len() {
            let Some(range) = self.late.pop_front() else {
                break;
            };
            if self.backend.release(range).is_ok() {
                self.counts.direct_bytes -= range.bytes();
            } else {
                self.late.push_back(range);
            }
        }
        let is_due = self.planner.start();
        self.run(is_due)
    }

    /// Ends a step, with a round if one is due.
    ///
    /// # Errors
    /// If there is no memory for the plan. The pool continues as before.
    pub fn stop(&mut self) -> Result<(), PlanError> {
        let is_due = self.planner.stop();
        self.run(is_due)
    }

    fn run(&mut self, is_due: bool) -> Result<(), PlanError> {
        if is_due && self.planner.run() {
            return self.install();
        }
        Ok(())
    }

    /// Begins to serve from the new plan. The previous plan is released first if none of its blocks is in use.
    fn install(&mut self) -> Result<(), PlanError> {
        let mut former = self.serving.take();
        if let Some(unused) = former.take_if(|former| former.is_unused()) {
            self.retire(&unused);
        }
        match Served::new(self.planner.plans(), self.form, &self.backend) {
            Ok(served) => {
                self.counts.slab_bytes += served.slab_bytes();
                self.draining.extend(former);
                self.serving = Some(served);
                Ok(())
            }
            Err(bytes) => {
                self.serving = former;
                Err(PlanError::OutOfMemory { bytes })
            }
        }
    }

    fn retire(&mut self, plan: &Served) {
        plan.give_back(&self.backend);
        self.counts.slab_bytes -= plan.slab_bytes();
    }

    /// Allocates a block of at least `bytes` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// If neither the plan nor the backend has memory, or if the size is zero or too large.
    pub fn alloc(&mut self, bytes: u64, align: Align) -> Result<Addr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let tick = self.next_tick();
        let stat = AllocStat::new(tick, tick, bytes).aligned(align);
        if let Some(served) = self
            .serving
            .as_mut()
            .filter(|_| is_planned(self.with_small, bytes))
        {
            match served.take(stat, self.planner.steps(), self.form.turns) {
                Ok(addr) => {
                    self.counts.hits += 1;
                    return Ok(addr);
                }
                Err(has_bin) if has_bin => self.counts.missed += 1,
                Err(_) => self.counts.no_bin += 1,
            }
        }
        let requested_bytes = bytes;
        let align = align.max(self.form.unit);
        let request = GrowRequest {
            bytes: round_up(bytes, align).ok_or(AllocError::TooLarge { requested_bytes })?,
            align,
            at: None,
        };
        let range = self.backend.grow(request);
        let range = range.map_err(|_| {
            AllocError::OutOfMemory(OutOfMemory::of(Cause::SubAllocator, requested_bytes))
        })?;
        self.counts.direct_bytes += range.bytes();
        self.direct
            .insert(range.start().get(), Direct { range, stat });
        Ok(range.start())
    }

    /// Frees a block of the plan or of the backend.
    ///
    /// # Errors
    /// If no block in use begins there, or the backend refuses to release it. Nothing has changed then.
    pub fn free(&mut self, addr: Addr) -> Result<(), FreeError> {
        if let Some(stat) = self.serving.as_mut().and_then(|plan| plan.free(addr)) {
            self.record(stat);
            return Ok(());
        }
        for place in 0..self.draining.len() {
            if let Some(stat) = self.draining[place].free(addr) {
                self.record(stat);
                if self.draining[place].is_unused() {
                    let plan = self.draining.remove(place);
                    self.retire(&plan);
                }
                return Ok(());
            }
        }
        let Some(direct) = self.direct.get(&addr.get()).copied() else {
            return Err(FreeError::Unknown);
        };
        if self.form.late_frees {
            self.late.push_back(direct.range);
        } else if self.backend.release(direct.range).is_err() {
            return Err(FreeError::SubAllocator);
        } else {
            self.counts.direct_bytes -= direct.range.bytes();
        }
        self.direct.remove(&addr.get());
        self.record(direct.stat);
        Ok(())
    }

    fn record(&mut self, stat: AllocStat) {
        if is_planned(self.with_small, stat.bytes) {
            let end = self.next_tick();
            self.planner.record(AllocStat { end, ..stat });
        }
    }

    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Returns whether the pool serves from a plan.
    pub fn is_planned(&self) -> bool {
        self.serving.is_some()
    }

    /// Returns the counts of served requests and held memory.
    pub fn counts(&self) -> PoolCounts {
        self.counts
    }

    /// Returns the pool's planner.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Resets the planner. The plan in use continues to serve.
    pub fn reset(&mut self) {
        self.planner.reset();
    }

    /// Returns the backend.
    pub fn backend(&self) -> &S {
        &self.backend
    }
}

fn is_planned(with_small: bool, bytes: u64) -> bool {
    with_small || bytes > SMALL_MAX_BYTES
}
