//! The shape that a step follows, and the place of its layout.

use super::Steps;
use super::layout::{LayoutEffort, Unplaced};
use super::place_allocator::PlaceAllocator;
use super::shape::{Entry, LAYOUTS, Layout, ShapeId, Successors};
use crate::units::AddrRange;

/// The state of the current step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StepState {
    /// No step is under way.
    Outside,
    /// The step has begun, but has no allocation yet.
    Begun,
    /// A shape is followed.
    Follows(FollowMode),
    /// No known shape matches.
    Lost,
}

/// The progress along a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FollowMode {
    pub(super) shape: ShapeId,
    /// The allocation that should come next.
    pub(super) cursor: u32,
    /// Whether the shape is a guess, because it was not expected at this point.
    pub(super) guessed: bool,
    /// The layout from which the step is served, if there is one.
    pub(super) layout: Option<usize>,
    /// Number of the shape's allocations whose places have memory.
    pub(super) backed: u32,
    /// Number of consecutive allocations that are not those of the shape.
    pub(super) strayed: u32,
}

/// Counts of recent right and wrong guesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guesses {
    right: u32,
    wrong: u32,
}

impl Guesses {
    /// Number of guesses at which the counts are halved, so that old guesses lose weight.
    const MOST: u32 = 64;

    pub(super) const fn new() -> Self {
        Self { right: 0, wrong: 0 }
    }

    /// Returns whether guesses may be trusted. A wrong guess costs more than a right one gains.
    const fn are_good(&self) -> bool {
        self.right > 1 + 4 * self.wrong
    }

    pub(super) const fn note(&mut self, right: bool) {
        if right {
            self.right += 1;
        } else {
            self.wrong += 1;
        }
        if self.right + self.wrong > Self::MOST {
            self.right /= 2;
            self.wrong /= 2;
        }
    }
}

/// Whether blocks are expected to be freed in their step, as far as the shape knows. A block that outlives a step in
/// which it had a place keeps memory from the next steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust {
    /// Number of successive known steps in which they were.
    kept: u32,
    /// Number of such steps after which they are expected to be.
    needed: u32,
    /// Number of successive steps that were known, and in which they were.
    pub(super) steady: u32,
}

impl Trust {
    const FIRST_NEEDED: u32 = 4;
    const MAX_NEEDED: u32 = 256;

    pub(super) const fn new() -> Self {
        Self {
            kept: 0,
            needed: Self::FIRST_NEEDED,
            steady: 0,
        }
    }

    pub(super) const fn is_earned(&self) -> bool {
        self.kept >= self.needed
    }

    /// Notes whether the blocks of one more known step were freed in it.
    pub(super) fn note(&mut self, kept: bool) {
        let successive = |count: u32| if kept { count.saturating_add(1) } else { 0 };
        (self.kept, self.steady) = (successive(self.kept), successive(self.steady));
    }

    /// Notes that a block outlived a step in which it had a place.
    pub(super) fn lose(&mut self) {
        (self.kept, self.steady) = (0, 0);
        self.needed = (self.needed * 4).min(Self::MAX_NEEDED);
    }
}

/// Maximum number of consecutive allocations that may differ before a shape is abandoned. It is also the maximum number
/// of the shape's allocations that may be skipped to meet the shape again.
const STRAY: u32 = 16;

/// Number of allocations for which an unverified shape gets memory initially.
const MET_AT_FIRST: u32 = 16;
/// Number of allocations that must match before all of an unverified shape gets memory.
const MET_ENOUGH: u32 = 32;

impl Steps<'_> {
    /// Returns the shape's entry for the current allocation, if the allocation follows a shape.
    pub(super) fn follow(
        &mut self,
        below: &mut impl PlaceAllocator,
        entry: Entry,
    ) -> Option<Entry> {
        match self.state {
            StepState::Outside | StepState::Lost => None,
            StepState::Begun => {
                let expected = self.expected();
                let Some(shape) = self.find(expected) else {
                    self.state = StepState::Lost;
                    return None;
                };
                self.take_up(below, shape, expected)
            }
            StepState::Follows(mut way) => {
                let known = self.shapes.entries(way.shape).get(way.cursor as usize);
                let Some(known) = known.copied().filter(|known| known.asks_as(&entry)) else {
                    self.stats.deviations += u64::from(way.strayed == 0);
                    if core::mem::take(&mut way.guessed) {
                        self.guesses.note(false);
                    }
                    return self.deviate(below, entry, way);
                };
                if let Some(layout) = way.layout.filter(|_| way.cursor >= way.backed) {
                    let backed = self.back(below, way.shape, layout, way.cursor);
                    (way.layout, way.backed) =
                        backed.map_or((None, 0), |backed| (Some(layout), backed));
                }
                way.cursor += 1;
                way.strayed = 0;
                self.state = StepState::Follows(way);
                Some(known)
            }
        }
    }

    /// Returns the shapes that are expected now: those that followed the last step's shape before, or the shape of the
    /// first step of all.
    fn expected(&self) -> Successors {
        match self.last {
            Some(last) => self.shapes.get(last).next,
            None => core::array::from_fn(|place| self.first.filter(|_| place == 0)),
        }
    }

    /// Returns a shape that begins with all allocations of the step, including the current one: an expected shape, or a
    /// guess.
    fn find(&self, expected: Successors) -> Option<ShapeId> {
        let asked = &self.asked[..=self.count as usize];
        self.shapes.beginning_with(asked, self.key, expected)
    }

    /// Follows the shape from this allocation on. A guess is served from a layout only once guesses have proved right.
    fn take_up(
        &mut self,
        below: &mut impl PlaceAllocator,
        shape: ShapeId,
        expected: Successors,
    ) -> Option<Entry> {
        let guessed = !expected.contains(&Some(shape)) && self.key == 0;
        let likely = !guessed || self.guesses.are_good();
        let frees = !self.config.within_plans || self.trust.is_earned();
        let trusted = likely && frees;
        let layout = trusted.then(|| self.lay_out(below, shape)).flatten();
        let backed = layout.and_then(|layout| self.back(below, shape, layout, self.count));
        self.state = StepState::Follows(FollowMode {
            shape,
            cursor: self.count + 1,
            guessed,
            layout: layout.filter(|_| backed.is_some()),
            backed: backed.unwrap_or(0),
            strayed: 0,
        });
        self.shapes.entries(shape).get(self.count as usize).copied()
    }

    /// Continues after an allocation that the followed shape does not have.
    fn deviate(
        &mut self,
        below: &mut impl PlaceAllocator,
        entry: Entry,
        mut way: FollowMode,
    ) -> Option<Entry> {
        // A key may be refined in the middle of a step.
        if self.count == way.cursor && way.strayed == 0 {
            let expected = self.expected();
            if let Some(other) = self.find(expected) {
                return self.take_up(below, other, expected);
            }
        }
        let entries = self.shapes.entries(way.shape);
        let near = entries.iter().enumerate().skip(way.cursor as usize);
        let mut near = near.take(STRAY as usize);
        let ahead = near.find(|(_, known)| known.asks_as(&entry));
        let ahead = ahead.map(|(index, known)| (index as u32, *known));
        match ahead {
            Some((index, _)) => {
                way.cursor = index + 1;
                way.strayed = 0;
            }
            None => way.strayed += 1,
        }
        self.state = if way.strayed > STRAY {
            StepState::Lost
        } else {
            StepState::Follows(way)
        };
        ahead.map(|(_, known)| known)
    }

    /// Backs a layout with memory: all of it if the shape is verified or enough of its allocations have matched.
    /// Otherwise it backs the places of twice as many allocations as have matched, so that a plan that only looks right
    /// costs little. Returns the number of allocations for which the layout may be used.
    fn back(
        &mut self,
        below: &mut impl PlaceAllocator,
        shape: ShapeId,
        layout: usize,
        met: u32,
    ) -> Option<u32> {
        let known = *self.shapes.get(shape);
        let height = known.layouts[layout].height;
        let back = Back {
            layout: height,
            max_bytes: below.granule().bytes_of(self.allowed(below)),
        };
        if known.confirmed || met >= MET_ENOUGH {
            return back.range(below, 0, height).then_some(known.len);
        }
        let until = met.saturating_mul(2).max(MET_AT_FIRST).min(known.len);
        let entries = &self.shapes.entries(shape)[met as usize..until as usize];
        let (mut top, mut sum) = (0, 0_u32);
        for entry in entries {
            let end = entry.offsets[layout].saturating_add(entry.granules);
            top = end.max(top);
            sum = sum.saturating_add(entry.granules);
        }
        // One call backs all places, unless they are scattered in a range much larger than their sum.
        let backed = if top <= sum.saturating_mul(2) {
            back.range(below, 0, top)
        } else {
            let mut places = entries.iter();
            places.all(|entry| back.range(below, entry.offsets[layout], entry.granules))
        };
        backed.then_some(until)
    }

    /// Returns the number of granules that may be held once a layout is backed with memory. This is the number held
    /// now, or the maximum that was live in any step, in whole pages, if that is larger.
    fn allowed(&self, below: &impl PlaceAllocator) -> u32 {
        let granule = below.granule();
        let held = granule.count_up(below.held_bytes()).unwrap_or(u32::MAX);
        let page = granule.count_up(below.page_bytes()).unwrap_or(1);
        let max = self.max_height();
        held.max(max.checked_next_multiple_of(page).unwrap_or(max))
    }

    /// Returns the maximum height of a layout that takes further memory: the maximum that was live in any step, and a
    /// little more.
    pub(super) fn max_height(&self) -> u32 {
        let max = self.shapes.max_live();
        max.saturating_add(max / self.config.spare_divisor.max(1))
    }

    /// Returns the shape's layout for the blocks that are live now, and makes one if there is none. Returns `None` if
    /// the layout may not be used, or if its work is not paid for yet.
    fn lay_out(&mut self, below: &mut impl PlaceAllocator, shape: ShapeId) -> Option<usize> {
        let granule = below.granule();
        let cap = granule.count_up(self.config.cap_bytes).unwrap_or(u32::MAX);
        // The largest height means that there is no layout.
        let cap = cap.min(u32::MAX - 1);
        let obstacles = self.places.collect(
            below,
            self.tags,
            self.step,
            (self.count, self.shapes.entries(shape)),
            self.shapes.inherited(shape),
        );
        let known = self.shapes.get(shape);
        let fingerprint = obstacles.fingerprint;
        let mut layouts = known.layouts.iter();
        let made = layouts.position(|layout| layout.fingerprint == fingerprint);
        let layout = made.unwrap_or((known.recent() + 1) % LAYOUTS);
        if made.is_none() {
            // A layout ends above all obstacles: if that alone takes too much, no layout is made.
            if !self.fits(below, obstacles.height.max(1), cap) {
                return None;
            }
            let from = self.count;
            let unplaced = self.shapes.get(shape).len.saturating_sub(from);
            if obstacles.fair_work(unplaced).min(self.config.packing_work) > self.credit {
                return None;
            }
            let mut effort = LayoutEffort {
                buckets: self.credit,
                work: self.config.search_work,
                enough: self.max_height(),
                spent: 0,
            };
            let unplaced = Unplaced {
                entries: self.shapes.entries_mut(shape),
                from,
                layout,
                within_plans: self.config.within_plans,
            };
            let height = self.places.place(obstacles, unplaced, &mut effort);
            self.credit = self.credit.saturating_sub(effort.spent);
            self.stats.layout_work += effort.spent;
            let height = height.filter(|height| self.pays(shape, *height));
            self.shapes.get_mut(shape).layouts[layout] = Layout {
                fingerprint,
                from,
                height: height.unwrap_or(u32::MAX),
            };
            self.stats.layouts += 1;
        }
        let known = self.shapes.get_mut(shape);
        // The number of a layout is less than `LAYOUTS`.
        known.recent = layout as u8;
        let height = known.layouts[layout].height;
        self.fits(below, height, cap).then_some(layout)
    }

    /// Returns whether a layout of this height and the blocks that get no place take together little more than was live
    /// at most, or all blocks get a place.
    fn pays(&self, shape: ShapeId, height: u32) -> bool {
        if !self.config.within_plans {
            return true;
        }
        let beside = self.shapes.entries(shape).iter();
        let beside = beside.filter(|entry| entry.outlives());
        let total = beside.fold(height, |sum, entry| sum.saturating_add(entry.granules));
        total <= self.max_height()
    }

    /// Returns whether a layout of this height may be used, and counts it as rejected otherwise.
    fn fits(&mut self, below: &mut impl PlaceAllocator, height: u32, cap: u32) -> bool {
        let granule = below.granule();
        let range = AddrRange::new(below.addresses().start(), granule.bytes_of(height));
        let range = range.filter(|_| height <= cap);
        let fits = range.is_some_and(|range| {
            let held = granule.count_up(below.held_bytes()).unwrap_or(u32::MAX);
            let missing = granule.count_up(below.missing_bytes(range));
            let after = held.saturating_add(missing.unwrap_or(u32::MAX));
            after <= self.allowed(below)
        });
        self.stats.rejected += u64::from(!fits);
        fits
    }
}

/// The parameters for backing a layout with memory.
struct Back {
    /// Height of the layout in granules.
    layout: u32,
    /// Maximum bytes held once the layout is backed.
    max_bytes: u64,
}

impl Back {
    /// Backs `granules` granules from `start` with memory. Returns whether that succeeded.
    fn range(&self, below: &mut impl PlaceAllocator, start: u32, granules: u32) -> bool {
        let granule = below.granule();
        let base = below.addresses().start();
        let part = |start: u32, granules: u32| {
            let first = base.checked_add(granule.bytes_of(start))?;
            AddrRange::new(first, granule.bytes_of(granules))
        };
        match (part(start, granules), part(0, self.layout)) {
            (Some(range), Some(layout)) => below.prepare(range, layout, self.max_bytes),
            _ => false,
        }
    }
}
