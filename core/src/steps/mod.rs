//! Steps: recognises the allocations of a step, and serves them from the plan of its shape.
//!
//! A training step, or a request to a server, allocates nearly the same blocks again and again. Once the beginning and
//! end of each block are known, the blocks can be laid out ([`pack`](crate::pack)), so that blocks that never live
//! together share a place.
//!
//! One [`Steps`] belongs to one ordered sequence of allocations: that of a GPU stream, or of a thread. It has no memory
//! of its own: blocks come from an allocator [below](PlaceAllocator), at the plan's places if these are free, and
//! otherwise anywhere.
//!
//! # A step
//! * The first allocation of a step chooses a shape that begins with this allocation. If possible it is an *expected*
//!   shape, one that followed the last step's shape before; otherwise it is a *guess*, the shape seen last. If the step
//!   has a key, every shape with this key counts as expected. A guess is only watched until guesses have proved right:
//!   in programs whose steps differ, nearly every guess is wrong, and serving from it would cost memory.
//! * As long as the step's allocations are those of the shape, each is served at its place. If the place is taken (a
//!   block of the plan lives longer than known, or a block from elsewhere is there), that is a *miss*: the block is
//!   placed anywhere.
//! * An allocation that differs from the shape is a *deviation*. Another shape that begins with all of this step's
//!   allocations is then followed, and laid out around the live blocks. If there is none, the step continues without a
//!   plan until it meets a nearby allocation of the old shape again.
//! * At its end the step is learned: as a new shape, or as lives in a known one. A step that ended early, after the
//!   first allocations of the shape that it followed, teaches nothing.
//! * After a number of steps of which plans served few blocks ([`StepConfig::patience`]), steps are *skipped*: they are
//!   not observed and cost nothing. Then steps are observed again. If they gain nothing again, twice as many are skipped.
//!
//! # Cost
//! An allocation is O(1), plus the walk of [`PlaceAllocator::alloc_at`]. Choosing a shape, at the first allocation of a
//! step and at each deviation, is O(shapes + allocations compared). Ending a step is O(allocations of all shapes). The
//! cost of laying a shape out is given in `layout`. All layouts together examine at most
//! [`StepConfig::packing_work`] buckets, and one for each allocation.

mod follow;
mod layout;
mod learn;
mod place_allocator;
mod save;
mod shape;
mod stats;

pub use layout::{Obstacle, Places};
pub use place_allocator::{InRange, PlaceAllocator};
pub use save::SavedPlansError;
pub use shape::{Entry, Shape};
pub use stats::{StepConfig, StepStats};

use follow::{Guesses, StepState, Trust};
use shape::{Inherited, LAYOUTS, Layout, ShapeId, Shapes};

use crate::block::{Block, ChunkHandle, Grant, Request};
use crate::error::{FreeError, Rejected};
use crate::units::{AddrRange, Granule};

/// The step and allocation of a live block. There is one tag for each chunk record of the allocator below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Number of the step; 0 for a block outside of steps.
    step: u32,
    position: u32,
}

impl Tag {
    /// The tag of a block that belongs to no step, for filling a table.
    pub const NONE: Self = Self {
        step: 0,
        position: 0,
    };
}

/// Tables lent to [`Steps`]. If a table is too short, fewer steps are planned, but no memory is lost.
#[derive(Debug)]
pub struct StepTables<'t> {
    /// One tag for each chunk record of the allocator below, all [`Tag::NONE`] (zero bytes); blocks beyond them have no
    /// tag and are not planned.
    pub tags: &'t mut [Tag],
    /// One record for each allocation that a step may have.
    pub asked: &'t mut [Entry],
    /// One record for each block of the previous step that a step may free.
    pub inherited: &'t mut [Entry],
    /// One record for each shape to remember.
    pub shapes: &'t mut [Shape],
    /// The allocations of all shapes.
    pub entries: &'t mut [Entry],
    /// Tables for layouts, long enough for twice the allocations of a step plus the other live blocks.
    pub places: Places<'t>,
}

/// A block of a step, or the request for one that the caller serves.
#[derive(PartialEq, Eq, Debug)]
pub enum Served {
    /// The block.
    Here(Grant),
    /// The caller serves the request, and reports the free of the block with this tag to
    /// [`free_elsewhere`](Steps::free_elsewhere) if it can. Only if [`StepConfig::within_plans`] is set.
    Elsewhere(Tag),
}

/// Number of chunks remembered as starts of searches for other chunks.
const LANDMARKS: usize = 256;

/// Recognises steps and serves them from plans.
///
/// ```
/// use larder_core::steps::{InRange, Served, StepConfig, Steps};
/// use larder_core::{Addr, AddrRange, BestFit, Chunk, RegionConfig, RegionPool, Request};
/// # let mut lent = larder_model::OwnedTables::new(larder_model::StepSizes {
/// #     tags: 64, asked: 64, inherited: 8, shapes: 4, entries: 256, obstacles: 16,
/// # });
/// # let tables = lent.lend();
/// let mut chunks = [Chunk::VACANT; 64];
/// let mut pool = RegionPool::new(RegionConfig::fixed(), &mut chunks)?;
/// let addresses = AddrRange::new(Addr::new(0), 1 << 20).unwrap();
/// pool.add_region(addresses)?;
/// let mut steps = Steps::new(StepConfig::new(), tables); // a `StepTables`
/// let mut below = InRange { pool: &mut pool, addresses, held_bytes: 1 << 20 };
/// for _ in 0..4 {
///     steps.begin(7); // steps of one kind
///     let Served::Here(first) = steps.alloc(&mut below, &Request::new(30_000))? else { unreachable!() };
///     steps.free(&mut below, first.block)?;
///     let Served::Here(second) = steps.alloc(&mut below, &Request::new(40_000))? else { unreachable!() };
///     let second = second.block;
///     assert_eq!(second.addr().get(), 0, "in the place of the first");
///     steps.free(&mut below, second)?;
///     steps.end();
/// }
/// assert_eq!(steps.stats().known_steps, 3);
/// assert_eq!((steps.stats().hits, steps.stats().misses), (6, 0));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Steps<'t> {
    config: StepConfig,
    tags: &'t mut [Tag],
    asked: &'t mut [Entry],
    inherited: &'t mut [Entry],
    shapes: Shapes<'t>,
    places: Places<'t>,
    state: StepState,
    key: u64,
    /// Number of the current step.
    step: u32,
    /// Number of recorded allocations of the current step, and of inherited frees.
    count: u32,
    inherited_count: u32,
    /// Whether the step had more allocations than can be recorded.
    overrun: bool,
    last: Option<ShapeId>,
    /// The shape of the first step of all.
    first: Option<ShapeId>,
    /// Number of this step's blocks that are live and not elsewhere.
    here: u32,
    /// Granules of this step's blocks that are live and elsewhere.
    elsewhere: u32,
    /// Maximum granules live in the step.
    peak: u32,
    /// Whether the next step is expected to be like the first one.
    starts_over: bool,
    guesses: Guesses,
    trust: Trust,
    /// Whether the last step was a known one, served from its layout.
    served: bool,
    /// Buckets that layouts may still examine.
    credit: u64,
    /// Number of hits and of rejected layouts before the current step.
    hits_before: u64,
    rejected_before: u64,
    /// Steps without gain, less the steps with gain, counted double. A step of a known shape without gain counts as half
    /// a step, because its plan may serve the next one.
    gainless: u32,
    /// Number of next steps that are skipped, and binary logarithm of the next such number.
    skips: u32,
    skip_log2: u32,
    landmarks: [u32; LANDMARKS],
    stats: StepStats,
}

impl<'t> Steps<'t> {
    /// Creates a value that has learned nothing yet.
    pub fn new(config: StepConfig, tables: StepTables<'t>) -> Self {
        Self {
            config,
            tags: tables.tags,
            asked: tables.asked,
            inherited: tables.inherited,
            shapes: Shapes::new(tables.shapes, tables.entries),
            places: tables.places,
            state: StepState::Outside,
            key: 0,
            step: 0,
            count: 0,
            inherited_count: 0,
            overrun: false,
            here: 0,
            elsewhere: 0,
            last: None,
            first: None,
            peak: 0,
            starts_over: false,
            guesses: Guesses::new(),
            trust: Trust::new(),
            served: false,
            credit: config.packing_work,
            hits_before: 0,
            rejected_before: 0,
            gainless: 0,
            skips: 0,
            skip_log2: 0,
            landmarks: [0; LANDMARKS],
            stats: StepStats::default(),
        }
    }

    /// Compares every pair of allocations of each layout: those that live together must not overlap.
    /// O(allocations^2), for tests.
    ///
    /// # Errors
    /// A description of the first fault.
    pub fn check_layouts(&self) -> Result<(), &'static str> {
        for id in self.shapes.ids() {
            let shape = self.shapes.get(id);
            for (number, layout) in shape.layouts.iter().enumerate() {
                if layout.fingerprint != 0 && layout.height != u32::MAX {
                    check_layout(
                        layout,
                        number,
                        self.shapes.entries(id),
                        self.config.within_plans,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Returns the lent tables; learned plans are forgotten.
    pub fn into_tables(self) -> StepTables<'t> {
        let (shapes, entries) = self.shapes.into_tables();
        StepTables {
            tags: self.tags,
            asked: self.asked,
            inherited: self.inherited,
            shapes,
            entries,
            places: self.places,
        }
    }

    const fn shapes(&self) -> &Shapes<'t> {
        &self.shapes
    }

    const fn shapes_mut(&mut self) -> &mut Shapes<'t> {
        &mut self.shapes
    }

    /// Returns the shape of the first step of all.
    const fn first(&self) -> Option<ShapeId> {
        self.first
    }

    /// Returns whether nothing has been learned yet, and no step is under way.
    fn is_new(&self) -> bool {
        self.shapes.used() == 0 && !self.is_inside()
    }

    /// Continues after `shapes` shapes were loaded, the first of which is that of the first step. The count of steps
    /// continues after the loaded shapes, and after steps whose blocks may still live.
    fn loaded(&mut self, shapes: u32) {
        self.first = self.shapes.ids().next().filter(|_| shapes > 0);
        self.step = self.step.max(shapes);
    }

    /// Returns the counters since construction.
    pub const fn stats(&self) -> StepStats {
        self.stats
    }

    /// Begins a step, and ends the one under way. A step is compared only with steps of the same key; steps without a
    /// key have key 0.
    ///
    /// The step is skipped if plans served few blocks of the steps before it; [`is_inside`](Self::is_inside) is then
    /// false.
    pub fn begin(&mut self, key: u64) {
        self.end();
        if let Some(skips) = self.skips.checked_sub(1) {
            self.skips = skips;
            self.stats.steps += 1;
            self.stats.skipped_steps += 1;
            self.served = false;
            self.last = None;
            return;
        }
        (self.hits_before, self.rejected_before) = (self.stats.hits, self.stats.rejected);
        self.step = self.step.wrapping_add(1).max(1);
        self.key = key;
        self.count = 0;
        self.inherited_count = 0;
        self.overrun = false;
        (self.here, self.elsewhere) = (0, 0);
        self.peak = 0;
        self.state = StepState::Begun;
    }

    /// Returns the end of the layouts of all shapes, in bytes from the start of the addresses, if the last step was
    /// served from one of them. Memory above this end is then not needed.
    pub fn planned_bytes(&self, granule: Granule) -> Option<u64> {
        self.served
            .then(|| granule.bytes_of(self.shapes.max_height()))
    }

    /// Returns the length in bytes of the memory that the current step may need for its blocks, if only what lies
    /// [within plans](StepConfig::within_plans) is served: the end of all layouts, or 0 if blocks are not expected to be
    /// freed in their step.
    pub fn expected_bytes(&self, granule: Granule) -> u64 {
        match self.is_inside() && self.trust.is_earned() {
            true => granule.bytes_of(self.shapes.max_recent_height(self.max_height())),
            false => 0,
        }
    }

    /// Returns how many successive steps until now were of known shapes and freed their blocks as these do.
    pub const fn steady_steps(&self) -> u32 {
        self.trust.steady
    }

    /// Returns whether a step is under way.
    pub fn is_inside(&self) -> bool {
        self.state != StepState::Outside
    }

    /// Notes that the program starts over: the next step is expected to be like the first step of all.
    pub fn start_over(&mut self) {
        self.last = None;
        self.starts_over = self.is_inside();
    }

    /// Ends the step under way and learns it.
    pub fn end(&mut self) {
        if self.state == StepState::Outside {
            return;
        }
        let state = core::mem::replace(&mut self.state, StepState::Outside);
        self.stats.steps += 1;
        self.served = false;
        let (count, known_before) = (u64::from(self.count), self.stats.known_steps);
        self.credit = self
            .credit
            .saturating_add(count)
            .min(self.config.packing_work);
        if self.here > 0 {
            self.trust.lose();
        }
        let starts_over = core::mem::take(&mut self.starts_over);
        if self.count == 0 || self.overrun {
            self.last = self.last.filter(|_| !starts_over);
        } else {
            let id = self.learn(state);
            self.last = id.filter(|_| !starts_over);
        }
        self.weigh(self.stats.known_steps > known_before);
    }

    /// Allocates a block at the plan's place, or anywhere. With [`StepConfig::within_plans`], a block without a place is
    /// left to the caller, and counts as allocated.
    ///
    /// # Errors
    /// The errors of `below`; in that case no block is allocated.
    // Inlined, here and in `serve`: out of line, the block would be returned through memory.
    #[inline(always)]
    pub fn alloc<P: PlaceAllocator>(
        &mut self,
        below: &mut P,
        request: &Request,
    ) -> Result<Served, P::Error> {
        let granules = below.granule().count_up(request.bytes);
        let granules = granules.filter(|_| request.bytes >= self.config.threshold_bytes);
        let (Some(granules), true) = (granules, self.is_inside()) else {
            return self.unplanned(below, request, Tag::NONE);
        };
        let entry = Entry {
            granules,
            end: Entry::OUTLIVES,
            align_log2: request
                .align
                .log2()
                .saturating_sub(below.granule().align().log2()) as u8,
            ..Entry::EMPTY
        };
        let Some(slot) = self.asked.get_mut(self.count as usize) else {
            self.stats.overlong_steps += u64::from(!self.overrun);
            self.overrun = true;
            self.stats.unplanned += 1;
            return self.unplanned(below, request, Tag::NONE);
        };
        *slot = entry;
        let state = self.state;
        let known = self.follow(below, entry);
        let tag = Tag {
            step: self.step,
            position: self.count,
        };
        let served = if self.config.within_plans && known.is_some_and(|known| known.outlives()) {
            self.stats.kept_out += 1;
            Ok(Served::Elsewhere(tag))
        } else {
            self.serve(below, request, known, tag)
        };
        if served.is_err() {
            // No block was allocated, and the same request may come again.
            self.state = state;
        }
        let served = served?;
        match &served {
            Served::Here(grant) => {
                let slot = self.tags.get_mut(grant.block.handle().get() as usize);
                slot.into_iter().for_each(|slot| *slot = tag);
                self.here += 1;
            }
            Served::Elsewhere(_) => self.elsewhere = self.elsewhere.saturating_add(granules),
        }
        self.count += 1;
        let live = below.granule().count_up(below.live_bytes()).unwrap_or(0);
        self.peak = self.peak.max(live.saturating_add(self.elsewhere));
        Ok(served)
    }

    /// Allocates a block without a place.
    fn unplanned<P: PlaceAllocator>(
        &self,
        below: &mut P,
        request: &Request,
        tag: Tag,
    ) -> Result<Served, P::Error> {
        match below.alloc(request) {
            Err(_) if self.config.within_plans => Ok(Served::Elsewhere(tag)),
            served => served.map(Served::Here),
        }
    }

    #[inline(always)]
    fn serve<P: PlaceAllocator>(
        &mut self,
        below: &mut P,
        request: &Request,
        known: Option<Entry>,
        tag: Tag,
    ) -> Result<Served, P::Error> {
        let layout = match self.state {
            StepState::Follows(way) => way.layout,
            _ => None,
        };
        let Some((known, layout)) = known.zip(layout) else {
            self.stats.unplanned += 1;
            self.stats.unplanned_bytes += request.bytes;
            return self.unplanned(below, request, tag);
        };
        let start = below.addresses().start();
        let offset = known.offsets[layout % LAYOUTS];
        let start = start.checked_add(below.granule().bytes_of(offset));
        let range = start.and_then(|start| AddrRange::new(start, request.bytes));
        let range = range.filter(|range| range.start().is_aligned(request.align));
        let mark = self.landmark(below, offset);
        let near = ChunkHandle::new(self.landmarks[mark]);
        let placed = range.map(|range| below.alloc_at(range, near));
        if let Some(Ok(block)) = placed {
            self.landmarks[mark] = block.handle().get();
            self.stats.hits += 1;
            self.stats.hit_bytes += request.bytes;
            return Ok(Served::Here(Grant { block, wait: None }));
        }
        self.stats.misses += 1;
        self.stats.missed_bytes += request.bytes;
        self.unplanned(below, request, tag)
    }

    fn landmark(&self, below: &impl PlaceAllocator, offset: u32) -> usize {
        let height = below.granule().count_up(below.held_bytes());
        let height = u64::from(height.unwrap_or(u32::MAX).max(1));
        (u64::from(offset) * LANDMARKS as u64 / height).min(LANDMARKS as u64 - 1) as usize
    }

    /// Frees a block.
    ///
    /// # Errors
    /// Returns the block if it is not from the allocator below.
    pub fn free(
        &mut self,
        below: &mut impl PlaceAllocator,
        block: Block,
    ) -> Result<(), Rejected<FreeError>> {
        let handle = block.handle().get() as usize;
        let granules = below.granule().count_up(block.bytes());
        below.free(block)?;
        let Some(tag) = self.tags.get_mut(handle) else {
            return Ok(());
        };
        let tag = core::mem::replace(tag, Tag::NONE);
        if tag.step == 0 || !self.is_inside() {
            return Ok(());
        }
        if tag.step == self.step {
            self.note_free(tag);
            self.here = self.here.saturating_sub(1);
        } else if tag.step == self.step.wrapping_sub(1) {
            let slot = self.inherited.get_mut(self.inherited_count as usize);
            if let (Some(slot), Some(granules)) = (slot, granules) {
                *slot = Entry::from(Inherited {
                    position: tag.position,
                    granules,
                    end: self.count,
                });
                self.inherited_count += 1;
            }
        }
        Ok(())
    }

    /// Takes back the block allocated last, for whose place there is no memory. The caller serves the request, as with
    /// [`Served::Elsewhere`], and the step continues without a plan.
    ///
    /// # Errors
    /// Returns the block if it is not from the allocator below.
    pub fn take_back(
        &mut self,
        below: &mut impl PlaceAllocator,
        block: Block,
    ) -> Result<Tag, Rejected<FreeError>> {
        let handle = block.handle().get() as usize;
        let granules = below.granule().count_up(block.bytes()).unwrap_or(0);
        below.free(block)?;
        let tag = self.tags.get_mut(handle);
        let tag = tag.map_or(Tag::NONE, |tag| core::mem::replace(tag, Tag::NONE));
        if self.is_inside() {
            self.state = StepState::Lost;
            self.here = self.here.saturating_sub(1);
            self.elsewhere = self.elsewhere.saturating_add(granules);
        }
        Ok(tag)
    }

    /// Learns the free of a block that the caller [served](Served::Elsewhere).
    pub fn free_elsewhere(&mut self, tag: Tag) {
        if self.is_inside() && tag.step == self.step {
            let granules = self.note_free(tag);
            self.elsewhere = self.elsewhere.saturating_sub(granules);
        }
    }

    /// Records that a block of this step was freed. Returns its granules.
    fn note_free(&mut self, tag: Tag) -> u32 {
        let entry = self.asked.get_mut(tag.position as usize);
        entry.map_or(0, |entry| {
            entry.end = self.count;
            entry.granules
        })
    }
}

/// Compares every pair of allocations: those that live together must not overlap.
fn check_layout(
    layout: &Layout,
    number: usize,
    entries: &[Entry],
    within_plans: bool,
) -> Result<(), &'static str> {
    let placed = (layout.from as usize..).zip(&entries[layout.from as usize..]);
    let placed = placed.filter(|(_, entry)| !within_plans || !entry.outlives());
    for (begin, entry) in placed.clone() {
        let start = entry.offsets[number];
        let end = start.checked_add(entry.granules);
        let Some(end) = end.filter(|end| *end <= layout.height) else {
            return Err("a layout is higher than its height");
        };
        for (other, later) in placed.clone().filter(|(other, _)| *other > begin) {
            let other_start = later.offsets[number];
            let apart = end <= other_start || other_start + later.granules <= start;
            if entry.end as usize > other && !apart {
                return Err("two blocks of a layout live together in one place");
            }
        }
    }
    Ok(())
}
