//! The tables of one stream's steps.

use larder_core::pack::{PackSizes, PackTables};
use larder_core::steps::{Places, StepTables};

use super::tables::CHUNKS;
use crate::with_tables::LentTables;

/// Maximum number of allocations in one step.
const ALLOCATIONS: usize = 1 << 14;
/// Maximum number of blocks of the previous step that one step frees.
const INHERITED: usize = 1 << 12;
/// Maximum number of recorded allocations, for all shapes together.
const ENTRIES: usize = 1 << 19;
const SHAPES: usize = 256;
/// Maximum number of blocks that a layout avoids.
const OBSTACLES: usize = 1 << 13;
const LIFETIMES: usize = ALLOCATIONS + OBSTACLES;

/// Lends the tables of steps. A table for which the host has no memory is empty; fewer steps are then planned.
pub(super) fn lend(tables: &mut LentTables) -> StepTables<'static> {
    let sizes = PackSizes::new(LIFETIMES);
    StepTables {
        tags: tables.lend_zeroed(CHUNKS),
        asked: tables.lend_zeroed(ALLOCATIONS),
        inherited: tables.lend_zeroed(INHERITED),
        shapes: tables.lend_zeroed(SHAPES),
        entries: tables.lend_zeroed(ENTRIES),
        places: Places {
            obstacles: tables.lend_zeroed(OBSTACLES),
            lifetimes: tables.lend_zeroed(LIFETIMES),
            order: tables.lend_zeroed(ALLOCATIONS),
            pack: PackTables {
                offsets: tables.lend_zeroed(LIFETIMES),
                trial: tables.lend_zeroed(LIFETIMES),
                live: tables.lend_zeroed(LIFETIMES),
                order: tables.lend_zeroed(LIFETIMES),
                by_key: tables.lend_zeroed(LIFETIMES),
                keys: tables.lend_zeroed(LIFETIMES),
                parts: tables.lend_zeroed(LIFETIMES),
                buckets: tables.lend_zeroed(sizes.buckets),
                items: tables.lend_zeroed(LIFETIMES),
                sections: tables.lend_zeroed(LIFETIMES),
                neighbours: tables.lend_zeroed(sizes.neighbours),
                undo_log: tables.lend_zeroed(sizes.undo_log),
                choices: tables.lend_zeroed(LIFETIMES),
                unplaced: tables.lend_zeroed(LIFETIMES),
            },
        },
    }
}
