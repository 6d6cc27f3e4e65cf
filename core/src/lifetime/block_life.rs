//! What everything here is about: one block, from when to when, and how large.
//!
//! Ticks are logical: a count of events, so that two events never share one and no clock can step
//! back. A lifetime includes its first tick and not its last; two that touch share no tick and may
//! share memory.

use crate::units::Align;

/// When one block lives, and what it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// First tick.
    pub begin: u32,
    /// First tick after it; a lifetime with `end <= begin` is empty and no plan takes it.
    pub end: u32,
    /// Size in bytes; 0 is not planned.
    pub bytes: u64,
    /// What the offset must be a multiple of.
    pub align: Align,
    /// The offset it must have, if something outside decided it already.
    pub pinned: Option<u64>,
}

impl Lifetime {
    /// A block of `bytes` bytes that may lie anywhere.
    pub const fn new(begin: u32, end: u32, bytes: u64) -> Self {
        Self {
            begin,
            end,
            bytes,
            align: Align::ONE,
            pinned: None,
        }
    }

    /// Whether some tick belongs to both.
    pub const fn meets(&self, other: &Self) -> bool {
        let begin = if self.begin > other.begin {
            self.begin
        } else {
            other.begin
        };
        begin < self.end && begin < other.end
    }
}
