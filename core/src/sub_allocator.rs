//! The source of regions: the trait at the lower end of the core.
//!
//! Calls are rare and concern whole ranges of the operating system, a driver or a caller's buffer. They are made
//! without a lock of this crate, so several may run at once; an implementation that needs exclusion locks inside.

use core::fmt;

use crate::units::{Addr, AddrRange, Align};

/// A request for more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrowRequest {
    /// Bytes requested, a multiple of `align`. A range of another length is accepted if it serves the request and the
    /// limit allows it; otherwise it is released.
    pub bytes: u64,
    /// The granule: the start of the range must be a multiple of it.
    pub align: Align,
    /// The preferred start of the range, right behind held memory. A hint.
    pub at: Option<Addr>,
}

/// The error of a sub-allocator that has no more memory, or does not take a range back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubAllocError;

impl fmt::Display for SubAllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sub-allocator refused")
    }
}

impl core::error::Error for SubAllocError {}

/// A source of whole regions.
///
/// The correctness of the allocator above, not its memory safety, rests on two promises: ranges that are held never
/// overlap, and each starts at a multiple of the granule. Both are checked when a range is committed. A range counts
/// as released from the moment the sub-allocator takes it: it may be granted again at once, to any caller.
pub trait SubAllocator {
    /// Returns a range of `request.bytes` bytes.
    ///
    /// # Errors
    /// If there is no such range. The caller may try again with less.
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError>;

    /// Takes a range back: one that was granted, several granted side by side, or the end of such a range.
    ///
    /// # Errors
    /// If the range cannot be taken back; the caller then keeps it and continues to use it.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError>;

    /// Returns whether the sub-allocator takes back the end of a granted range; if not, it takes back whole ranges
    /// only.
    fn takes_ends(&self) -> bool {
        true
    }
}

impl<S: SubAllocator + ?Sized> SubAllocator for &S {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        (**self).grow(request)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        (**self).release(range)
    }

    fn takes_ends(&self) -> bool {
        (**self).takes_ends()
    }
}

static_assertions::assert_obj_safe!(SubAllocator);
