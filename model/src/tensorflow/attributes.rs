//! The attributes of one call, which in ours are fields of its request.

use larder_core::{EventNumber, Request};

/// How one allocation is meant: upstream's `AllocationAttributes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct AllocAttributes {
    /// Fail at once: no wait of any kind.
    pub no_retry: bool,
    /// The caller writes the allocation down by itself; who records allocations leaves it out.
    pub logged: bool,
    /// If set, only memory freed on the request's stream at or before that event.
    pub freed_by: Option<EventNumber>,
}

impl AllocAttributes {
    /// The request with these attributes. What they do not say stays as it is. `logged` is none of an
    /// allocator's business.
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
