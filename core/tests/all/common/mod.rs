//! The parts shared by the conformance tests: a sub-allocator that logs its calls and refuses on demand ([`Source`]),
//! and two allocators over it whose invariants are checked after every call: ours ([`Pool`]) and TensorFlow's
//! ([`Upstream`]).
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses its part"
)]

mod pool;
mod source;
pub mod upstream;

use larder_core::{Addr, AddrRange, Block, EventNumber, StreamId, StreamPoint};

pub use larder_model::Random;
pub use pool::{
    LimitChange, Picture, Pool, Tuple, at_once, picture_of, ranged, regions_of, table, tuple_of,
};
pub use source::{Call, Source};
pub use upstream::{Alike, Upstream, both, both_at_once, both_with_regions};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Records of a pool's table unless a test says otherwise.
pub const RECORDS: usize = 1 << 13;

pub fn range(start: u64, bytes: u64) -> AddrRange {
    AddrRange::new(Addr::new(start), bytes).expect("a range")
}

pub fn point(stream: u8, event: u64) -> StreamPoint {
    StreamPoint {
        stream: StreamId::new(stream),
        event: EventNumber::new(event),
    }
}

/// Blocks are at different places and do not overlap.
#[track_caller]
pub fn assert_disjoint<'b>(blocks: impl IntoIterator<Item = &'b Block>) {
    let mut places: Vec<(u64, u64)> = blocks
        .into_iter()
        .map(|block| (block.addr().get(), block.addr().get() + block.bytes()))
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
}

/// Returns how many of `seeds` seeds a test runs: all with `LARDER_ROUNDS=all` (`./check.sh long`), otherwise an
/// eighth.
pub(crate) fn rounds(all: u64) -> u64 {
    let is_long = std::env::var_os("LARDER_ROUNDS").is_some_and(|word| word == "all");
    if is_long { all } else { all.div_ceil(8) }
}
