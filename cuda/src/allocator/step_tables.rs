//! The tables of one stream's steps.

use core::ptr;
use std::alloc::{Layout, alloc_zeroed};

use larder_core::lifetime::pack::{Bucket, Item, PackSizes, PackTables, Part, Section, UndoRecord};
use larder_core::lifetime::{Entry, Lifetime, Obstacle, Places, Shape, StepTables, Tag};

use super::tables::CHUNKS;
use crate::owning::Tables;

/// Allocations of one step at most.
const ALLOCATIONS: usize = 1 << 14;
/// Blocks of the step before that are freed in one step, at most.
const INHERITED: usize = 1 << 12;
/// Allocations remembered of all shapes.
const ENTRIES: usize = 1 << 19;
const SHAPES: usize = 256;
/// What a layout goes around.
const OBSTACLES: usize = 1 << 13;
const LIFETIMES: usize = ALLOCATIONS + OBSTACLES;

/// Types of which all zero bytes are a value.
///
/// # Safety
/// They are, padding included.
unsafe trait Zeroed: Send + Sync + 'static {}

// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for u32 {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for u64 {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for f64 {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for (u32, u32) {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for Tag {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for Entry {}
// SAFETY: numbers, a bool, and options of numbers that are never 0.
unsafe impl Zeroed for Shape {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for Obstacle {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for Section {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for Bucket {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for UndoRecord {}
// SAFETY: it holds numbers and a bool, of which zero is one.
unsafe impl Zeroed for Part {}
// SAFETY: numbers, and an option of one: whichever of its two cases zero names is a value.
unsafe impl Zeroed for Lifetime {}
// SAFETY: it holds numbers only, of which zero is one.
unsafe impl Zeroed for Item {}

/// A table of values that are zero: memory that is not touched until it is used. Empty if the host has
/// none.
fn zeroed<T: Zeroed>(count: usize) -> Box<[T]> {
    let Ok(layout) = Layout::array::<T>(count) else {
        return Box::default();
    };
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        return Box::default();
    }
    // SAFETY: new memory of a box's layout for so many values, of which zero is one.
    unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(start, count)) }
}

/// The tables of steps. Those that the host has no memory for are empty, which costs plans.
pub(super) fn lend(tables: &mut Tables) -> StepTables<'static> {
    let sizes = PackSizes::new(LIFETIMES);
    StepTables {
        tags: tables.lend(zeroed(CHUNKS)),
        asked: tables.lend(zeroed(ALLOCATIONS)),
        inherited: tables.lend(zeroed(INHERITED)),
        shapes: tables.lend(zeroed(SHAPES)),
        entries: tables.lend(zeroed(ENTRIES)),
        places: Places {
            obstacles: tables.lend(zeroed(OBSTACLES)),
            lifetimes: tables.lend(zeroed(LIFETIMES)),
            order: tables.lend(zeroed(ALLOCATIONS)),
            pack: PackTables {
                offsets: tables.lend(zeroed(LIFETIMES)),
                trial: tables.lend(zeroed(LIFETIMES)),
                live: tables.lend(zeroed(LIFETIMES)),
                order: tables.lend(zeroed(LIFETIMES)),
                by_key: tables.lend(zeroed(LIFETIMES)),
                keys: tables.lend(zeroed(LIFETIMES)),
                parts: tables.lend(zeroed(LIFETIMES)),
                buckets: tables.lend(zeroed(sizes.buckets)),
                items: tables.lend(zeroed(LIFETIMES)),
                sections: tables.lend(zeroed(LIFETIMES)),
                neighbours: tables.lend(zeroed(sizes.neighbours)),
                undo_log: tables.lend(zeroed(sizes.undo_log)),
                choices: tables.lend(zeroed(LIFETIMES)),
                unplaced: tables.lend(zeroed(LIFETIMES)),
            },
        },
    }
}
