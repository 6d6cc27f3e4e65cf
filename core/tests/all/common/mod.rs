//! The parts that the core's tests share: two allocators over a [`Source`], ours ([`Pool`]) and TensorFlow's
//! ([`Upstream`]), whose invariants are checked after every call.

mod pool;
mod upstream;

use larder_core::{Addr, AddrRange, Block, EventNumber, StreamId, StreamPoint};
use larder_model::Source;

pub(crate) use pool::{Pool, at_once, ranged, table};
pub(crate) use upstream::{Upstream, UpstreamSide};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) const GRANULE: u64 = 256;
/// The default unit of growth.
pub(crate) const UNIT: u64 = 64 * KIB;
/// The first address of an allocator that does not grow.
pub(crate) const BASE: u64 = 0x10_0000;
/// The first address that a sub-allocator gives.
pub(crate) const GIVEN_BASE: u64 = 0x7000_0000_0000;

/// The default number of records in a pool's table.
pub(crate) const RECORDS: usize = 1 << 13;

/// Creates a sub-allocator whose ranges are adjacent.
pub(crate) fn contiguous() -> Source {
    Source::new(GIVEN_BASE, 1 << 46)
}

/// Creates a sub-allocator that leaves a gap before each range.
pub(crate) fn apart() -> Source {
    let source = contiguous();
    source.leave_gaps(UNIT);
    source
}

pub(crate) fn range(start: u64, bytes: u64) -> AddrRange {
    AddrRange::new(Addr::new(start), bytes).expect("a range")
}

pub(crate) fn point(stream: u8, event: u64) -> StreamPoint {
    StreamPoint {
        stream: StreamId::new(stream),
        event: EventNumber::new(event),
    }
}

#[track_caller]
pub(crate) fn assert_disjoint<'b>(blocks: impl IntoIterator<Item = &'b Block>) {
    let mut places: Vec<(u64, u64)> = blocks
        .into_iter()
        .map(|block| (block.addr().get(), block.addr().get() + block.bytes()))
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
}

/// Returns how many of `all` seeds a test runs: an eighth, or all with `LARDER_ROUNDS=all` (`./check.sh long`).
pub(crate) fn rounds(all: u64) -> u64 {
    let is_long = std::env::var_os("LARDER_ROUNDS").is_some_and(|word| word == "all");
    if is_long { all } else { all.div_ceil(8) }
}
