//! [`FixedRange`]: a sub-allocator that hands out one given range from its start.
//!
//! It serves a static buffer, a device region that is allocated once, a reserved run of addresses, and tests. It hands
//! out addresses only; the caller provides the memory.
//!
//! Invariant RANGE1: `[start, start + used)` is handed out, the rest is not. Only `used` changes. One compare-and-swap
//! grants `[old, new)` to exactly one caller. A release is the reverse swap, so only the end of the granted part can be
//! released. The orderings are relaxed because no memory is published through `used`: the owner of a range relies only
//! on the numbers that its own swap returned.

use crate::sub_allocator::{GrowRequest, SubAllocError, SubAllocator};
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Addr, AddrRange, round_up};

/// One range, granted in consecutive pieces of the requested length.
///
/// ```
/// use larder_core::{Addr, AddrRange, Align, FixedRange, GrowRequest, SubAllocator};
/// let range = AddrRange::new(Addr::new(0x1000), 0x1000).unwrap();
/// let source = FixedRange::new(range);
/// let request = GrowRequest { bytes: 0x800, align: Align::new(256).unwrap(), at: None };
/// assert_eq!(source.grow(request).unwrap().start(), Addr::new(0x1000));
/// assert_eq!(source.grow(request).unwrap().start(), Addr::new(0x1800));
/// assert!(source.grow(request).is_err());
/// ```
#[derive(Debug)]
pub struct FixedRange {
    range: AddrRange,
    used: AtomicU64,
}

impl FixedRange {
    /// Creates a sub-allocator over `range`, of which nothing is granted yet.
    #[cfg(not(larder_loom))]
    pub const fn new(range: AddrRange) -> Self {
        Self {
            range,
            used: AtomicU64::new(0),
        }
    }

    /// Creates a sub-allocator over `range`, of which nothing is granted yet.
    #[cfg(larder_loom)]
    pub fn new(range: AddrRange) -> Self {
        Self {
            range,
            used: AtomicU64::new(0),
        }
    }

    /// Returns the bytes that are granted and not released.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the next piece when `used` bytes are granted: its range and the new value of `used`.
    fn piece(&self, used: u64, request: GrowRequest) -> Option<(AddrRange, u64)> {
        let at = self.range.start().get().checked_add(used)?;
        let start = round_up(at, request.align)?;
        let piece = AddrRange::new(Addr::new(start), request.bytes)?;
        let used = piece.end().get() - self.range.start().get();
        self.range.contains(piece).then_some((piece, used))
    }
}

impl SubAllocator for FixedRange {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let (piece, new) = self.piece(used, request).ok_or(SubAllocError)?;
            match self
                .used
                .compare_exchange_weak(used, new, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(piece),
                Err(now) => used = now,
            }
        }
    }

    /// Takes back the end of the granted part; anything else is refused.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let base = self.range.start().get();
        if !self.range.contains(range) {
            return Err(SubAllocError);
        }
        let (start, end) = (range.start().get() - base, range.end().get() - base);
        self.used
            .compare_exchange(end, start, Ordering::Relaxed, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| SubAllocError)
    }
}

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;
    use crate::units::Align;

    const RANGE: AddrRange = AddrRange::new(Addr::new(0x1080), 0x1000).unwrap();
    const ALIGN: Align = Align::new(0x100).unwrap();

    fn source() -> FixedRange {
        FixedRange::new(RANGE)
    }

    fn ask(bytes: u64) -> GrowRequest {
        GrowRequest {
            bytes,
            align: ALIGN,
            at: None,
        }
    }

    #[test]
    fn pieces_are_aligned_consecutive_and_never_past_the_end() {
        let source = source();
        assert_eq!(source.grow(ask(0x100)).unwrap().start(), Addr::new(0x1100));
        assert_eq!(source.grow(ask(0x200)).unwrap().start(), Addr::new(0x1200));
        assert_eq!(source.grow(ask(0xd00)), Err(SubAllocError));
        assert_eq!(source.grow(ask(0xc00)).unwrap().start(), Addr::new(0x1400));
        assert_eq!(source.grow(ask(0x100)), Err(SubAllocError));
    }

    #[test]
    fn only_the_end_of_what_is_out_comes_back() {
        let source = source();
        let first = source.grow(ask(0x100)).unwrap();
        let second = source.grow(ask(0x100)).unwrap();
        assert_eq!(source.release(first), Err(SubAllocError));
        assert_eq!(source.release(second), Ok(()));
        assert_eq!(source.release(second), Err(SubAllocError));
        assert_eq!(source.grow(ask(0x100)), Ok(second));
    }

    #[test]
    fn a_huge_request_is_an_error_not_a_wrap() {
        let source = source();
        assert_eq!(source.grow(ask(u64::MAX)), Err(SubAllocError));
        assert_eq!(source.grow(ask(0)), Err(SubAllocError));
    }
}
