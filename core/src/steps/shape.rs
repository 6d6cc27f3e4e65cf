//! Shapes: the allocations of the steps seen so far, in order, with the tick of each free.
//!
//! A shape is a sequence of [`Entry`]s in one lent table, one for each allocation. The frees of blocks from the
//! previous step follow, also as [`Entry`]s (see [`Inherited`]). Time inside a step is counted in allocations. The
//! block at position `i` begins at tick `i`, and ends at the number of allocations made before its free. So the order
//! of frees between two allocations does not matter.
//!
//! Invariants:
//! * SHAPE1 shapes are adjacent in the table in the order of their slots' `first`, without gaps.
//! * SHAPE2 no two shapes with the same key have the same allocations.
//!
//! Adding a shape is O(shapes + entries moved) for each shape that is removed to make room. Finding a shape is O(shapes
//! + lengths compared).

use core::num::NonZeroU16;

/// Number of layouts kept for a shape: two, for programs that alternate between two inputs.
pub(super) const LAYOUTS: usize = 2;

/// One allocation of a step. 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Size in granules.
    pub(super) granules: u32,
    /// Tick of the free that the layouts assume; [`Entry::OUTLIVES`] if the step ended before the free.
    pub(super) end: u32,
    /// Tick of the latest free in this window, and of the second latest.
    pub(super) latest: u32,
    pub(super) second: u32,
    /// The block's place in each layout, in granules from the start of the addresses.
    pub(super) offsets: [u32; LAYOUTS],
    /// Binary logarithm of the alignment in granules; 0 for alignments up to a granule.
    pub(super) align_log2: u8,
}

impl Entry {
    /// An empty record, for filling a table.
    pub const EMPTY: Self = Self {
        granules: 0,
        end: 0,
        latest: 0,
        second: 0,
        offsets: [0; LAYOUTS],
        align_log2: 0,
    };

    /// The end of a block that outlives its step.
    pub(super) const OUTLIVES: u32 = u32::MAX;

    /// Returns whether the block outlives its step.
    pub(super) const fn outlives(&self) -> bool {
        self.end == Self::OUTLIVES
    }

    /// Returns the alignment of the block's offset, in granules.
    pub(super) const fn align_granules(&self) -> u32 {
        // No allocator serves a larger alignment.
        1 << if self.align_log2 < 31 {
            self.align_log2
        } else {
            31
        }
    }

    /// Returns the position of an [`Inherited`] block.
    pub(super) const fn position(&self) -> u32 {
        self.offsets[0]
    }

    /// Learns the tick of one more free. Returns whether the layouts must assume a longer life: that of this free, or
    /// if the shape is `settled`, that of the second latest free in this window.
    fn learn(&mut self, tick: u32, settled: bool) -> bool {
        self.second = self.second.max(tick.min(self.latest));
        self.latest = self.latest.max(tick);
        let end = if settled { self.second } else { self.latest };
        let longer = end > self.end;
        self.end = self.end.max(end);
        longer
    }

    /// Begins a new window. Returns whether the layouts may assume a shorter life, that of the second latest free.
    fn forget(&mut self) -> bool {
        let shorter = self.second < self.end;
        self.end = self.end.min(self.second);
        (self.latest, self.second) = (0, 0);
        shorter
    }

    /// Returns whether the two entries are the same request.
    pub(super) const fn asks_as(&self, other: &Self) -> bool {
        self.granules == other.granules && self.align_log2 == other.align_log2
    }
}

/// A free in this step of a block that the previous step allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Inherited {
    /// The block's position in the previous step.
    pub(super) position: u32,
    pub(super) granules: u32,
    /// Tick of the free.
    pub(super) end: u32,
}

impl From<Inherited> for Entry {
    fn from(inherited: Inherited) -> Self {
        Self {
            granules: inherited.granules,
            end: inherited.end,
            offsets: [inherited.position; LAYOUTS],
            ..Self::EMPTY
        }
    }
}

impl From<Entry> for Inherited {
    fn from(entry: Entry) -> Self {
        Self {
            position: entry.position(),
            granules: entry.granules,
            end: entry.end,
        }
    }
}

/// Number of a shape. Numbers start at 1, so that `None` in place of a number is all zero bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub(super) struct ShapeId(NonZeroU16);

impl ShapeId {
    /// Returns the id of the shape in this slot.
    pub(super) const fn at(slot: u16) -> Self {
        Self(NonZeroU16::MIN.saturating_add(slot))
    }

    pub(super) fn slot(self) -> usize {
        usize::from(self.0.get() - 1)
    }
}

/// Maximum number of shapes remembered as successors of one shape.
pub(super) const SUCCESSORS: usize = 4;

/// Shapes that followed another shape, the most recent first.
pub(super) type Successors = [Option<ShapeId>; SUCCESSORS];

/// The condition under which offsets are valid: see `layout`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Hash of the obstacles; 0 if there is no layout or it must be remade.
    pub(super) fingerprint: u64,
    /// First allocation with an offset.
    pub(super) from: u32,
    /// Highest end in granules; `u32::MAX` if no layout could be made, or if it would not pay.
    pub(super) height: u32,
}

impl Layout {
    pub(super) const NONE: Self = Self {
        fingerprint: 0,
        from: 0,
        height: 0,
    };
}

/// The record of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Index of the first entry. The entries are `len` allocations and then `inherited` frees.
    pub(super) first: u32,
    pub(super) len: u32,
    pub(super) inherited: u32,
    /// The caller's key; 0 for none.
    pub(super) key: u64,
    /// Number of the last step that had the shape; 0 for an empty slot.
    pub(super) seen: u32,
    /// Whether a step of this process had the shape. If not, the shape comes from a file and is unverified.
    pub(super) confirmed: bool,
    /// The shapes that followed this one, the most recent first.
    pub(super) next: Successors,
    pub(super) layouts: [Layout; LAYOUTS],
    /// The layout that was followed last.
    pub(super) recent: u8,
    /// Maximum number of live granules in the step, including blocks from before it.
    pub(super) peak: u32,
    /// Steps of the present window, and binary logarithm of the window's length in units of [`WINDOW`].
    pub(super) met: u16,
    pub(super) window_log2: u8,
    /// Whether a window has passed.
    pub(super) settled: bool,
    /// Whether the last window shortened a life, and no life became longer since.
    pub(super) shortened: bool,
}

/// Number of steps in the first windows of a shape.
const WINDOW: u16 = 8;
/// Maximum of [`Shape::window_log2`]: windows of 1024 steps.
const MAX_WINDOW_LOG2: u8 = 7;

impl Shape {
    /// An empty record, for filling a table.
    pub const EMPTY: Self = Self {
        first: 0,
        len: 0,
        inherited: 0,
        key: 0,
        seen: 0,
        confirmed: false,
        next: [None; SUCCESSORS],
        layouts: [Layout::NONE; LAYOUTS],
        recent: 0,
        peak: 0,
        met: 0,
        window_log2: 0,
        settled: false,
        shortened: false,
    };

    const fn entries(&self) -> u32 {
        self.len + self.inherited
    }

    /// Returns the number of the layout that was followed last.
    pub(super) const fn recent(&self) -> usize {
        self.recent as usize % LAYOUTS
    }

    /// Returns the layout that was followed last.
    pub(super) const fn layout(&self) -> &Layout {
        &self.layouts[self.recent()]
    }
}

/// All shapes.
#[derive(Debug)]
pub(super) struct Shapes<'t> {
    shapes: &'t mut [Shape],
    entries: &'t mut [Entry],
    used: u32,
}

impl<'t> Shapes<'t> {
    pub(super) fn new(shapes: &'t mut [Shape], entries: &'t mut [Entry]) -> Self {
        let max = shapes.len().min(usize::from(u16::MAX) - 1);
        let shapes = &mut shapes[..max];
        shapes.fill(Shape::EMPTY);
        let max = entries.len().min(u32::MAX as usize);
        Self {
            shapes,
            entries: &mut entries[..max],
            used: 0,
        }
    }

    pub(super) fn into_tables(self) -> (&'t mut [Shape], &'t mut [Entry]) {
        (self.shapes, self.entries)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ShapeId> + use<> {
        // `new` keeps no more than a u16 can count.
        (0..self.shapes.len() as u16).map(ShapeId::at)
    }

    pub(super) fn get(&self, id: ShapeId) -> &Shape {
        &self.shapes[id.slot()]
    }

    pub(super) fn get_mut(&mut self, id: ShapeId) -> &mut Shape {
        &mut self.shapes[id.slot()]
    }

    /// Returns the existing shapes: that of the first step, then the others in the order in which they were seen last.
    pub(super) fn in_order(&self, first: Option<ShapeId>) -> impl Iterator<Item = ShapeId> {
        let rank = move |id: ShapeId| {
            let seen = self.get(id).seen;
            (seen > 0).then_some((first != Some(id), seen, id))
        };
        let least = move |above: Option<(bool, u32, ShapeId)>| {
            let ranks = self.ids().filter_map(rank);
            let ranks = ranks.filter(|rank| above.is_none_or(|above| *rank > above));
            ranks.min()
        };
        core::iter::successors(least(None), move |last| least(Some(*last))).map(|(_, _, id)| id)
    }

    /// Returns the number of entries in use.
    pub(super) const fn used(&self) -> u32 {
        self.used
    }

    /// Returns whether this many shapes and entries fit into empty tables.
    pub(super) fn hold(&self, shapes: u32, entries: u32) -> bool {
        shapes as usize <= self.shapes.len() && entries as usize <= self.entries.len()
    }

    /// Puts a loaded shape into the slot with this number, and its entries after those of the other shapes. Returns the
    /// entries for the caller to fill. The caller has checked that the shape and its entries fit.
    pub(super) fn append(&mut self, number: u32, shape: Shape) -> &mut [Entry] {
        let first = self.used;
        self.used += shape.entries();
        if let Some(slot) = self.shapes.get_mut(number as usize) {
            // Slot numbers have 16 bits.
            *slot = Shape {
                first,
                seen: number + 1,
                ..shape
            };
        }
        let entries = self.entries.get_mut(first as usize..self.used as usize);
        entries.unwrap_or_default()
    }

    /// Returns the shape's allocations.
    pub(super) fn entries(&self, id: ShapeId) -> &[Entry] {
        let shape = self.get(id);
        &self.entries[shape.first as usize..][..shape.len as usize]
    }

    pub(super) fn entries_mut(&mut self, id: ShapeId) -> &mut [Entry] {
        let shape = *self.get(id);
        &mut self.entries[shape.first as usize..][..shape.len as usize]
    }

    /// Returns the frees of blocks from the previous step, as [`Inherited`], in the order of their positions.
    pub(super) fn inherited(&self, id: ShapeId) -> &[Entry] {
        let shape = self.get(id);
        let first = (shape.first + shape.len) as usize;
        &self.entries[first..][..shape.inherited as usize]
    }

    fn inherited_mut(&mut self, id: ShapeId) -> &mut [Entry] {
        let shape = *self.get(id);
        let first = (shape.first + shape.len) as usize;
        &mut self.entries[first..][..shape.inherited as usize]
    }

    /// Returns the shape of this key that begins with these allocations: the first expected one that does, otherwise
    /// the one seen last.
    pub(super) fn beginning_with(
        &self,
        asked: &[Entry],
        key: u64,
        expected: Successors,
    ) -> Option<ShapeId> {
        let fits = |id: &ShapeId| {
            let shape = self.get(*id);
            shape.seen > 0
                && shape.key == key
                && shape.len as usize >= asked.len()
                && same(&self.entries(*id)[..asked.len()], asked)
        };
        let mut expected = expected.into_iter().flatten();
        expected
            .find(fits)
            .or_else(|| self.ids().filter(fits).max_by_key(|id| self.get(*id).seen))
    }

    /// Returns the shape of this key with exactly these allocations.
    pub(super) fn find(&self, asked: &[Entry], key: u64) -> Option<ShapeId> {
        self.ids().find(|id| {
            let shape = self.get(*id);
            shape.seen > 0
                && shape.key == key
                && shape.len as usize == asked.len()
                && same(self.entries(*id), asked)
        })
    }

    /// Returns whether the step freed all of these allocations that the shape frees.
    pub(super) fn keeps_lives(&self, id: ShapeId, asked: &[Entry]) -> bool {
        let mut both = self.entries(id).iter().zip(asked);
        both.all(|(known, asked)| known.outlives() || !asked.outlives())
    }

    /// Returns whether the shape begins with these allocations.
    pub(super) fn begins_with(&self, id: ShapeId, asked: &[Entry]) -> bool {
        let known = self.entries(id).get(..asked.len());
        known.is_some_and(|known| same(known, asked))
    }

    /// Records that shape `id` followed shape `of`.
    pub(super) fn note_successor(&mut self, of: ShapeId, id: ShapeId) {
        let next = &mut self.get_mut(of).next;
        let place = next.iter().position(|next| *next == Some(id));
        let place = place.unwrap_or(SUCCESSORS - 1);
        next[..=place].rotate_right(1);
        next[0] = Some(id);
    }

    /// Learns from one more step of a shape. Returns whether the layouts must be made again, because the known lives
    /// have changed. `inherited` is in the order of positions.
    ///
    /// A life is the longest one in the first window, and from then on the second longest of each window: one odd step
    /// changes no plan, and what is no longer seen is forgotten. Windows become longer if shorter lives prove wrong.
    pub(super) fn learn(&mut self, id: ShapeId, asked: &[Entry], inherited: &[Entry]) -> bool {
        let mut longer = self.lengthen(id, inherited);
        let settled = self.get(id).settled;
        for (known, seen) in self.entries_mut(id).iter_mut().zip(asked) {
            longer |= known.learn(seen.end, settled);
        }
        for known in self.inherited_mut(id) {
            let seen = inherited.binary_search_by_key(&known.position(), Entry::position);
            let seen = seen.ok().map(|index| inherited[index]);
            let seen = seen.filter(|seen| seen.granules == known.granules);
            longer |= known.learn(seen.map_or(Entry::OUTLIVES, |seen| seen.end), settled);
        }
        let shape = self.get_mut(id);
        if longer && core::mem::take(&mut shape.shortened) {
            shape.window_log2 = (shape.window_log2 + 1).min(MAX_WINDOW_LOG2);
        }
        shape.met += 1;
        if shape.met < WINDOW << shape.window_log2 {
            return longer;
        }
        (shape.met, shape.settled) = (0, true);
        let mut shorter = false;
        for known in self.entries_mut(id) {
            shorter |= known.forget();
        }
        for known in self.inherited_mut(id) {
            shorter |= known.forget();
        }
        self.get_mut(id).shortened |= shorter;
        longer || shorter
    }

    /// Takes over the inherited frees of a step that has more of them than the shape. A shape learned from the very
    /// first step, for example, has none. Returns whether the frees were taken over, for which the table needs room.
    fn lengthen(&mut self, id: ShapeId, inherited: &[Entry]) -> bool {
        let shape = *self.get(id);
        let more = inherited.len().saturating_sub(shape.inherited as usize);
        if more == 0 || self.used as usize + more > self.entries.len() {
            return false;
        }
        let behind = (shape.first + shape.entries()) as usize;
        let end = self.used as usize;
        self.entries.copy_within(behind..end, behind + more);
        // Both numbers fit the table, as checked above.
        self.used += more as u32;
        for other in self.shapes.iter_mut() {
            if other.seen > 0 && other.first > shape.first {
                other.first += more as u32;
            }
        }
        self.get_mut(id).inherited += more as u32;
        self.inherited_mut(id).copy_from_slice(inherited);
        true
    }

    /// Adds a shape. If there is no room, it replaces the shapes that have not been seen for the longest time, and adds
    /// their number to `removed`. Returns `None` if the shape does not fit even alone.
    pub(super) fn add(
        &mut self,
        shape: Shape,
        asked: &[Entry],
        inherited: &[Entry],
        removed: &mut u64,
    ) -> Option<ShapeId> {
        let need = asked.len() + inherited.len();
        if need > self.entries.len() {
            return None;
        }
        let vacant = |this: &Self| this.ids().find(|id| this.get(*id).seen == 0);
        while self.used as usize + need > self.entries.len() || vacant(self).is_none() {
            let oldest = self.ids().filter(|id| self.get(*id).seen > 0);
            let oldest = oldest.min_by_key(|id| self.get(*id).seen)?;
            self.remove(oldest);
            *removed += 1;
        }
        let id = vacant(self)?;
        let first = self.used;
        // Both lengths fit the table, as checked above.
        self.used += need as u32;
        *self.get_mut(id) = Shape {
            first,
            len: asked.len() as u32,
            inherited: inherited.len() as u32,
            ..shape
        };
        self.entries_mut(id).copy_from_slice(asked);
        self.inherited_mut(id).copy_from_slice(inherited);
        for entry in &mut self.entries[first as usize..self.used as usize] {
            entry.latest = entry.end;
        }
        self.get_mut(id).met = 1;
        Some(id)
    }

    /// Removes a shape in whose place another one is expected from now on.
    pub(super) fn replace(&mut self, id: ShapeId, by: ShapeId) {
        let mut next = self.get(id).next;
        next.reverse();
        for next in next.into_iter().flatten().filter(|next| *next != id) {
            self.note_successor(by, next);
        }
        for shape in self.shapes.iter_mut() {
            let has = shape.next.contains(&Some(by));
            for next in &mut shape.next {
                if *next == Some(id) {
                    *next = Some(by).filter(|_| !has);
                }
            }
        }
        self.remove(id);
    }

    fn remove(&mut self, id: ShapeId) {
        let gone = *self.get(id);
        let (first, count) = (gone.first, gone.entries());
        let behind = (first + count) as usize..self.used as usize;
        self.entries.copy_within(behind, first as usize);
        self.used -= count;
        *self.get_mut(id) = Shape::EMPTY;
        for shape in self.shapes.iter_mut() {
            if shape.seen > 0 && shape.first > first {
                shape.first -= count;
            }
            for next in &mut shape.next {
                next.take_if(|next| *next == id);
            }
        }
    }

    /// Returns the end of the highest layout.
    pub(super) fn max_height(&self) -> u32 {
        let layouts = self.shapes.iter().flat_map(|shape| shape.layouts);
        let valid = layouts.filter(|layout| layout.fingerprint != 0 && layout.height < u32::MAX);
        valid.map(|layout| layout.height).max().unwrap_or(0)
    }

    /// Returns the end of the highest layout followed last that is not higher than `max`, even if it must be remade.
    pub(super) fn max_recent_height(&self, max: u32) -> u32 {
        let heights = self.shapes.iter().map(|shape| shape.layout().height);
        heights.filter(|height| *height <= max).max().unwrap_or(0)
    }

    /// Returns the maximum number of live granules of any shape.
    pub(super) fn max_live(&self) -> u32 {
        self.shapes
            .iter()
            .map(|shape| shape.peak)
            .max()
            .unwrap_or(0)
    }
}

fn same(known: &[Entry], asked: &[Entry]) -> bool {
    // Entries are compared from the end, because shapes that begin alike differ late.
    known
        .iter()
        .rev()
        .zip(asked.iter().rev())
        .all(|(a, b)| a.asks_as(b))
}
