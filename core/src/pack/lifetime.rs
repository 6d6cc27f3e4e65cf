//! The lifetime of one block: its first tick, its end and its size.
//!
//! Ticks are logical: they count events, so two events never share a tick, and ticks never go back. A lifetime includes
//! its first tick and not its end. If one lifetime ends at the tick at which another begins, they share no tick and may
//! share memory.

use crate::units::Align;

/// The lifetime of one block, with its size and alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// First tick.
    pub begin: u32,
    /// First tick after the lifetime; a lifetime with `end <= begin` is empty and is not planned.
    pub end: u32,
    /// Size in bytes; a size of 0 is not planned.
    pub bytes: u64,
    /// The offset must be a multiple of this.
    pub align: Align,
    /// The offset that the block must have, if it is already decided.
    pub pinned: Option<u64>,
}

impl Lifetime {
    /// Creates the lifetime of a block of `bytes` bytes at any offset.
    pub const fn new(begin: u32, end: u32, bytes: u64) -> Self {
        Self {
            begin,
            end,
            bytes,
            align: Align::ONE,
            pinned: None,
        }
    }

    /// Returns whether the two lifetimes share a tick.
    pub const fn meets(&self, other: &Self) -> bool {
        let begin = if self.begin > other.begin {
            self.begin
        } else {
            other.begin
        };
        begin < self.end && begin < other.end
    }
}
