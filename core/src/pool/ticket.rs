//! What a pool asks of whoever calls the sub-allocator, and its answers.

use crate::block::{Grant, Request};
use crate::sub_allocator::GrowRequest;
use crate::units::AddrRange;

/// Leave to get one buffer. Goes back with [`Pool::commit`](super::Pool::commit) or [`Pool::abort`](super::Pool::abort); a dropped one keeps
/// its record from use.
#[derive(Debug)]
#[must_use = "a dropped ticket loses a record"]
pub struct MissTicket {
    pub(super) link: u32,
    pub(super) owner: u32,
    pub(super) bytes: u64,
    pub(super) request: GrowRequest,
    pub(super) asked: Request,
}

impl MissTicket {
    /// The buffer's size in bytes, as the pool will find it again.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What to ask the sub-allocator for: the size in whole multiples of the buffers' alignment.
    pub const fn request(&self) -> GrowRequest {
        self.request
    }
}

/// Leave to give one buffer back. Goes back with [`Pool::released`](super::Pool::released) or [`Pool::release_refused`](super::Pool::release_refused).
#[derive(Debug)]
#[must_use = "a dropped ticket loses its buffer"]
pub struct LeavingTicket {
    pub(super) link: u32,
    pub(super) owner: u32,
    pub(super) bytes: u64,
    pub(super) range: AddrRange,
}

impl LeavingTicket {
    /// The buffer's size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What to give to the sub-allocator.
    pub const fn range(&self) -> AddrRange {
        self.range
    }
}

/// The answer to a request.
#[derive(Debug)]
#[must_use = "holds a block or a ticket"]
pub enum PoolStep {
    /// A block of a buffer that was kept.
    Ready(Grant),
    /// None was kept: get memory, then [`Pool::commit`](super::Pool::commit).
    Grow(MissTicket),
}
