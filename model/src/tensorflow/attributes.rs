//! The attributes of an allocation. In Larder they are fields of the request.

use larder_core::{EventNumber, Request};

/// Upstream's `AllocationAttributes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct AllocAttributes {
    /// Whether to fail at once, without a wait of any kind.
    pub no_retry: bool,
    /// Whether the caller records the allocation itself, so that other records leave it out.
    pub logged: bool,
    /// If set, only memory freed on the request's stream at or before that event may be used.
    pub freed_by: Option<EventNumber>,
}

impl AllocAttributes {
    /// Returns the request with these attributes; its other fields stay. `logged` has no effect on an allocator.
    pub const fn apply(self, mut request: Request) -> Request {
        if self.no_retry {
            request.may_wait = false;
        }
        if self.freed_by.is_some() {
            request.freed_by = self.freed_by;
        }
        request
    }
}
