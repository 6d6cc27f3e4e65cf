//! The tables of one stream's steps, owned.

use core::ptr;
use std::alloc::{Layout, alloc_zeroed};

use larder_core::lifetime::pack::{Bucket, Item, PackSizes, PackTables, Part, Section, UndoRecord};
use larder_core::lifetime::{Entry, Lifetime, Obstacle, Places, Shape, StepTables, Tag};

use super::tables::{CHUNKS, free};

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
unsafe trait Zeroed: 'static {}

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

/// A table of values that are zero, as a leaked box: memory that is not touched until it is used.
/// Empty if the host has none.
fn zeroed<T: Zeroed>(count: usize) -> &'static mut [T] {
    let Ok(layout) = Layout::array::<T>(count) else {
        return &mut [];
    };
    if layout.size() == 0 {
        return &mut [];
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        return &mut [];
    }
    // SAFETY: new memory for so many values, of which zero is one.
    unsafe { &mut *ptr::slice_from_raw_parts_mut(start, count) }
}

/// Lends new tables until [`take_back`]. Tables that the host has no memory for are empty, which costs
/// plans.
pub(super) fn lend() -> StepTables<'static> {
    let sizes = PackSizes::new(LIFETIMES);
    StepTables {
        tags: zeroed(CHUNKS),
        asked: zeroed(ALLOCATIONS),
        inherited: zeroed(INHERITED),
        shapes: zeroed(SHAPES),
        entries: zeroed(ENTRIES),
        places: Places {
            obstacles: zeroed(OBSTACLES),
            lifetimes: zeroed(LIFETIMES),
            order: zeroed(ALLOCATIONS),
            pack: PackTables {
                offsets: zeroed(LIFETIMES),
                trial: zeroed(LIFETIMES),
                live: zeroed(LIFETIMES),
                order: zeroed(LIFETIMES),
                by_key: zeroed(LIFETIMES),
                keys: zeroed(LIFETIMES),
                parts: zeroed(LIFETIMES),
                buckets: zeroed(sizes.buckets),
                items: zeroed(LIFETIMES),
                sections: zeroed(LIFETIMES),
                neighbours: zeroed(sizes.neighbours),
                undo_log: zeroed(sizes.undo_log),
                choices: zeroed(LIFETIMES),
                unplaced: zeroed(LIFETIMES),
            },
        },
    }
}

/// Frees lent tables.
pub(super) fn take_back(tables: StepTables<'static>) {
    free(tables.tags);
    free(tables.asked);
    free(tables.inherited);
    free(tables.shapes);
    free(tables.entries);
    let Places {
        obstacles,
        lifetimes,
        order,
        pack,
    } = tables.places;
    free(obstacles);
    free(lifetimes);
    free(order);
    free(pack.offsets);
    free(pack.trial);
    free(pack.live);
    free(pack.order);
    free(pack.by_key);
    free(pack.keys);
    free(pack.parts);
    free(pack.buckets);
    free(pack.items);
    free(pack.sections);
    free(pack.neighbours);
    free(pack.undo_log);
    free(pack.choices);
    free(pack.unplaced);
}
