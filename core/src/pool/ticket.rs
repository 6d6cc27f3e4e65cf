//! The calls that a pool requests, and its answers to requests.

use crate::block::{Grant, Request};
use crate::sub_allocator::GrowRequest;
use crate::units::AddrRange;

/// Permission to allocate one buffer. It ends with [`Pool::commit`](super::Pool::commit) or
/// [`Pool::abort`](super::Pool::abort). A dropped ticket loses its record.
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
    /// Returns the buffer's size in bytes, by which the pool will find the buffer.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the request to the sub-allocator. Its size is a multiple of the buffers' alignment.
    pub const fn request(&self) -> GrowRequest {
        self.request
    }
}

/// Permission to release one buffer. It ends with [`Pool::released`](super::Pool::released) or
/// [`Pool::release_refused`](super::Pool::release_refused). A dropped ticket loses its buffer.
#[derive(Debug)]
#[must_use = "a dropped ticket loses its buffer"]
pub struct LeavingTicket {
    pub(super) link: u32,
    pub(super) owner: u32,
    pub(super) bytes: u64,
    pub(super) range: AddrRange,
}

impl LeavingTicket {
    /// Returns the buffer's size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the range to pass to the sub-allocator.
    pub const fn range(&self) -> AddrRange {
        self.range
    }
}

/// The answer to a request.
#[derive(Debug)]
#[must_use = "holds a block or a ticket"]
pub enum PoolStep {
    /// A block of a cached buffer.
    Ready(Grant),
    /// No buffer was cached. Allocate memory, and then call [`Pool::commit`](super::Pool::commit).
    Grow(MissTicket),
}
