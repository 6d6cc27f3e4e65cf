//! Tables for steps, owned by the caller or leaked.

use larder_core::pack::Lifetime;
use larder_core::pack::{Bucket, Item, PackSizes, PackTables, Part, Section, UndoRecord};
use larder_core::steps::{Entry, Obstacle, Places, Shape, StepTables, Tag};

/// Lengths of the tables for steps.
#[derive(Clone, Copy, Debug)]
pub struct StepSizes {
    /// Number of chunk records of the allocator below.
    pub tags: usize,
    /// Number of allocations of a step.
    pub asked: usize,
    /// Number of blocks left by the previous step.
    pub inherited: usize,
    /// Number of shapes of steps.
    pub shapes: usize,
    /// Number of allocations of all shapes.
    pub entries: usize,
    /// Number of obstacles of a layout.
    pub obstacles: usize,
}

/// Tables for a packer.
#[derive(Debug)]
pub struct OwnedPackTables {
    numbers: [Vec<u64>; 3],
    indices: [Vec<u32>; 3],
    keys: Vec<f64>,
    parts: Vec<Part>,
    buckets: Vec<Bucket>,
    items: Vec<Item>,
    sections: Vec<Section>,
    neighbours: Vec<u32>,
    undo_log: Vec<UndoRecord>,
    choices: Vec<(u32, u32)>,
}

impl OwnedPackTables {
    /// Creates tables for `lifetimes` lifetimes.
    #[must_use]
    pub fn new(lifetimes: usize) -> Self {
        Self::of(PackSizes::new(lifetimes))
    }

    /// Creates tables of these lengths. Their numbers are not 0, because a packer must set every number that it reads.
    #[must_use]
    pub fn of(sizes: PackSizes) -> Self {
        let count = sizes.lifetimes;
        Self {
            numbers: std::array::from_fn(|_| vec![7; count]),
            indices: std::array::from_fn(|_| vec![7; count]),
            keys: vec![7.0; count],
            parts: vec![Part::VACANT; count],
            buckets: vec![Bucket::VACANT; sizes.buckets],
            items: vec![Item::VACANT; count],
            sections: vec![Section::VACANT; count],
            neighbours: vec![7; sizes.neighbours],
            undo_log: vec![UndoRecord::VACANT; sizes.undo_log],
            choices: vec![(7, 7); count],
        }
    }

    /// Lends the tables.
    pub fn lend(&mut self) -> PackTables<'_> {
        let [offsets, trial, live] = &mut self.numbers;
        let [order, by_key, unplaced] = &mut self.indices;
        PackTables {
            offsets,
            trial,
            live,
            order,
            by_key,
            keys: &mut self.keys,
            parts: &mut self.parts,
            buckets: &mut self.buckets,
            items: &mut self.items,
            sections: &mut self.sections,
            neighbours: &mut self.neighbours,
            undo_log: &mut self.undo_log,
            choices: &mut self.choices,
            unplaced,
        }
    }
}

/// Tables for steps.
#[derive(Debug)]
pub struct OwnedTables {
    tags: Vec<Tag>,
    asked: Vec<Entry>,
    inherited: Vec<Entry>,
    shapes: Vec<Shape>,
    entries: Vec<Entry>,
    obstacles: Vec<Obstacle>,
    lifetimes: Vec<Lifetime>,
    order: Vec<u32>,
    pack: OwnedPackTables,
}

impl OwnedTables {
    /// Creates tables of these lengths.
    #[must_use]
    pub fn new(sizes: StepSizes) -> Self {
        let lifetimes = sizes.asked + sizes.obstacles;
        Self {
            tags: vec![Tag::NONE; sizes.tags],
            asked: vec![Entry::EMPTY; sizes.asked],
            inherited: vec![Entry::EMPTY; sizes.inherited],
            shapes: vec![Shape::EMPTY; sizes.shapes],
            entries: vec![Entry::EMPTY; sizes.entries],
            obstacles: vec![Obstacle::EMPTY; sizes.obstacles],
            lifetimes: vec![Lifetime::new(0, 0, 0); lifetimes],
            order: vec![0; sizes.asked],
            pack: OwnedPackTables::new(lifetimes),
        }
    }

    /// Lends the tables.
    pub fn lend(&mut self) -> StepTables<'_> {
        StepTables {
            tags: &mut self.tags,
            asked: &mut self.asked,
            inherited: &mut self.inherited,
            shapes: &mut self.shapes,
            entries: &mut self.entries,
            places: Places {
                obstacles: &mut self.obstacles,
                lifetimes: &mut self.lifetimes,
                order: &mut self.order,
                pack: self.pack.lend(),
            },
        }
    }
}

impl StepSizes {
    /// Leaks tables of these lengths.
    #[must_use]
    pub fn leak(self) -> StepTables<'static> {
        Box::leak(Box::new(OwnedTables::new(self))).lend()
    }
}
