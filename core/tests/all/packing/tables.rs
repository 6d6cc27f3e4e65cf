//! Tables for a packer, from the heap.

use larder_core::pack::Lifetime;
use larder_core::pack::{
    Bucket, Item, PackError, PackSizes, PackTables, Packer, Part, Section, UndoRecord,
};

pub(crate) struct Tables {
    pub(crate) numbers: [Vec<u64>; 3],
    indices: [Vec<u32>; 3],
    keys: Vec<f64>,
    parts: Vec<Part>,
    pub(crate) buckets: Vec<Bucket>,
    items: Vec<Item>,
    sections: Vec<Section>,
    pub(crate) neighbours: Vec<u32>,
    pub(crate) undo_log: Vec<UndoRecord>,
    choices: Vec<(u32, u32)>,
}

impl Tables {
    pub(crate) fn new(count: usize) -> Self {
        let sizes = PackSizes::new(count);
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

    pub(crate) fn packer<'t>(
        &'t mut self,
        lifetimes: &'t [Lifetime],
    ) -> Result<Packer<'t>, PackError> {
        let [offsets, trial, live] = &mut self.numbers;
        let [order, by_key, unplaced] = &mut self.indices;
        let tables = PackTables {
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
        };
        Packer::new(lifetimes, tables)
    }
}
