//! Every error value of the core: when it is returned, its numbers, the advice in its text, and that the failed call
//! has changed nothing. Also look-ups by address, requested places, alignments, and sub-allocators that break their
//! promises.

mod config;
mod free;
mod index;
mod places;
mod region;
mod sub_allocator;
mod words;

use crate::common::Pool;
use crate::script::script;
use larder_core::{AllocError, OutOfMemory, Request};

script!(
    "../scripts/errors.txt",
    a_refusal_has_its_cause_and_changes_nothing,
    s8_6_under_a_limit_below_what_is_held_no_region_is_collected_that_makes_no_room
);

/// Expects a request to fail for lack of memory and to change nothing.
#[track_caller]
fn out_of_memory(pool: &mut Pool, request: &Request) -> OutOfMemory {
    match pool.unchanged(|pool| pool.try_grant(request)) {
        Err(AllocError::OutOfMemory(out)) => out,
        other => panic!("{other:?}"),
    }
}

fn numbers(out: &OutOfMemory) -> [u64; 6] {
    [
        out.limit_bytes,
        out.reserved_bytes,
        out.live_bytes,
        out.free_bytes,
        out.largest_free_bytes,
        out.pending_bytes,
    ]
}
