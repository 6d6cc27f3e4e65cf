//! Where regions come from: the trait at the lower end of the core.
//!
//! Calls are rare and give whole ranges: the operating system, a driver, a caller's buffer. They
//! are made with no lock of ours held, so several may run at once; an implementation that cannot
//! bear that locks inside.

use core::fmt;

use crate::units::{Addr, AddrRange, Align};

/// A wish for more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrowRequest {
    /// Bytes wanted, a multiple of `align`. An answer of another length is held if it serves the
    /// request and the limit allows it, and otherwise goes back.
    pub bytes: u64,
    /// The granule: start of the answer is a multiple of it.
    pub align: Align,
    /// Where the range would best start, right behind what is held already. Only a wish.
    pub at: Option<Addr>,
}

/// A sub-allocator has no more to give, or does not take a range back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubAllocError;

impl fmt::Display for SubAllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sub-allocator refused")
    }
}

impl core::error::Error for SubAllocError {}

/// Gives and takes back whole regions.
///
/// The allocator above trusts two promises with its own correctness, not with memory safety: the
/// ranges given out and not released never overlap, and each starts at a multiple of the granule.
/// Both are checked when a range is committed. A range counts as released from the moment the
/// sub-allocator takes it: it may be given again at once, whoever asks.
pub trait SubAllocator {
    /// Gives a range of `request.bytes` bytes.
    ///
    /// # Errors
    /// If there is no such range. The caller may try again with less.
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError>;

    /// Takes a range back: one that was given, several that were given side by side, or the end of
    /// such.
    ///
    /// # Errors
    /// If it cannot; the range then stays with the caller and is used on.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError>;

    /// Whether it takes back the end of a range that was given; if not, only whole ranges.
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
