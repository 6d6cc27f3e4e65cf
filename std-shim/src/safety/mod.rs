//! Finding misuse of the heap: double frees, foreign addresses, writes outside a block or after its
//! free.
//!
//! # Files
//! * `hardened` the verbs of a heap that checks every block, for
//!   [`Larder::hardened`](crate::Larder::hardened) and
//!   [`Larder::checking`](crate::Larder::checking)
//! * `blocks` its table of blocks and their quarantine · `fill` the fill of memory outside of
//!   blocks · `history` the stacks that allocated and freed each block
//! * `guard_pages` single blocks between guard pages, in a heap that is not hardened
//! * `check` the checks of every heap · `report` the text of a report · `frames` its stacks

mod blocks;
pub(crate) mod check;
mod fill;
mod frames;
pub(crate) mod guard_pages;
pub(crate) mod hardened;
mod history;
pub(crate) mod report;
#[cfg(test)]
mod tests;

pub(crate) use blocks::Blocks;

/// Minimum alignment of all blocks, as C requires.
const LEAST_ALIGN: usize = 16;
/// Maximum bytes of slack that a block keeps when it shrinks in place.
const MAX_KEPT_SLACK: usize = 64 << 10;

/// A misuse of the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Misuse {
    NoBlock,
    FreedTwice,
    OtherLayout,
    WrittenPastEnd,
    WrittenBeforeStart,
    WrittenAfterFree,
    ResizedNoBlock,
    ResizedAfterFree,
    /// The plain heap returned a block that is not free.
    BentList,
    TouchedAfterFree,
    TouchedPastEnd,
    TouchedBeforeStart,
}

impl Misuse {
    const fn words(self) -> &'static str {
        match self {
            Self::NoBlock => "larder: freed an address where no block of this heap starts",
            Self::FreedTwice => "larder: freed a block twice",
            Self::OtherLayout => {
                "larder: freed a block with another layout than it was allocated with"
            }
            Self::WrittenPastEnd => "larder: wrote past the end of a block",
            Self::WrittenBeforeStart => "larder: wrote before the start of a block",
            Self::WrittenAfterFree => "larder: wrote to a block that was freed",
            Self::ResizedNoBlock => "larder: resized an address where no block of this heap starts",
            Self::ResizedAfterFree => "larder: resized a block that was freed",
            Self::BentList => "larder: wrote to free memory, which would be allocated twice",
            Self::TouchedAfterFree => "larder: read or wrote a block that was freed",
            Self::TouchedPastEnd => "larder: read or wrote past the end of a block",
            Self::TouchedBeforeStart => "larder: read or wrote before the start of a block",
        }
    }
}
