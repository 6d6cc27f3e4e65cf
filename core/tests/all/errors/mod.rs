//! Every error value of the core: when it is returned, its numbers, that nothing has changed then, and the advice in
//! its text. Also look-ups by address, requested places, alignments, and sub-allocators that break their promises.

use crate::common;

mod alloc;
mod config;
mod free;
mod index;
mod places;
mod region;
mod shared;
mod sub_allocator;
mod words;

use common::{KIB, Pool};
use larder_core::{AllocError, Growth, OutOfMemory, RegionConfig, Request};

const BASE: u64 = 0x10_0000;
const GRANULE: u64 = 256;

/// No growth, and no region is given away to make room for one.
const FIXED: RegionConfig = RegionConfig {
    collect_regions: false,
    ..RegionConfig::fixed()
};

fn fixed(granules: u64) -> Pool {
    Pool::with_regions(FIXED, &[(BASE, granules * GRANULE)])
}

fn ranged(limit: u64) -> RegionConfig {
    RegionConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..RegionConfig::new(limit)
    }
}

/// The refusal of a request, after which nothing has changed.
#[track_caller]
fn refused(pool: &mut Pool, request: &Request) -> AllocError {
    pool.unchanged(|pool| pool.try_grant(request))
        .expect_err("no memory")
}

#[track_caller]
fn out_of_memory(pool: &mut Pool, request: &Request) -> OutOfMemory {
    match refused(pool, request) {
        AllocError::OutOfMemory(out) => out,
        other => panic!("{other}"),
    }
}

/// Limit, reserved, live, free, largest free, pending.
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
