//! The findings of a check, and the list in which they are kept.

use core::fmt;

use heapless::Deque;

use crate::access::{MemoryAccess, Pattern};
use crate::error::AccessError;
use crate::stream::StreamId;
use crate::units::{Addr, AddrRange};

/// The bytes that were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Which {
    /// Bytes before the block, changed by a write at a negative index.
    Front,
    /// Bytes after the block, changed by a write past the end.
    Tail,
    /// Bytes of the block itself, changed after it was freed.
    Freed,
}

/// The first byte that differs from the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Damage {
    /// The part in which the byte lies.
    pub which: Which,
    /// The byte's distance from the block's first byte; negative before the block.
    pub offset: i64,
    /// The byte's value in the pattern.
    pub expected: u8,
    /// The value that was found.
    pub found: u8,
    /// First address of the block.
    pub addr: Addr,
    /// Bytes of the block: the requested ones if a guard was damaged, the granted ones if the block was freed.
    pub bytes: u64,
    /// The block's allocation number; 0 if allocations are not numbered.
    pub id: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, hint) = match self.which {
            Which::Front => (
                "the guard in front of",
                "look for a write at a negative index",
            ),
            Which::Tail => ("the guard behind", "look for a write past the end"),
            Which::Freed => ("freed", "look for a use after the free"),
        };
        write!(
            f,
            "{what} block {} of {} bytes at {} was overwritten: offset {} has {:#04x} instead of {:#04x}; {hint}",
            self.id, self.bytes, self.addr, self.offset, self.found, self.expected
        )
    }
}

/// Why a check failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CheckError {
    /// Bytes that must not be written were written.
    Damaged(Damage),
    /// The bytes could not be read or prepared, so their state is unknown.
    Access {
        /// First address of the block.
        addr: Addr,
        /// The reason.
        error: AccessError,
    },
    /// The block does not belong to this allocator.
    Unknown,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(damage) => damage.fmt(f),
            Self::Access { addr, error } => write!(f, "block at {addr} is not checked: {error}"),
            Self::Unknown => f.write_str(
                "the block is not one of this allocator's: check it at the one that gave it",
            ),
        }
    }
}

impl core::error::Error for CheckError {}

/// Treatment of the memory of a block found damaged when it is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnDamage {
    /// The block is freed like any other.
    #[default]
    Free,
    /// The block is never allocated again, so that its contents can be examined and further writes there do no harm. It
    /// stays live in the allocator below.
    Keep,
}

/// Counts of the findings of checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FindingCounts {
    /// Damaged blocks, each counted once for every time it was found.
    pub damaged: u64,
    /// Blocks that could not be read or filled.
    pub unreachable: u64,
    /// Findings for which the list had no place. The list keeps the oldest findings, which are nearest to the cause.
    pub unlisted: u64,
    /// Blocks kept out of use, through [`OnDamage::Keep`].
    pub kept_blocks: u64,
    /// Bytes of `kept_blocks`, as granted below.
    pub kept_bytes: u64,
}

/// Maximum number of findings kept until they are taken. A single cause usually shows in the first few.
const FINDINGS: usize = 16;

/// Findings in the order in which they were made.
pub(super) struct DamageList {
    list: Deque<CheckError, FINDINGS>,
    pub(super) counts: FindingCounts,
}

impl DamageList {
    pub(super) const fn new() -> Self {
        Self {
            list: Deque::new(),
            counts: FindingCounts {
                damaged: 0,
                unreachable: 0,
                unlisted: 0,
                kept_blocks: 0,
                kept_bytes: 0,
            },
        }
    }

    /// Counts a finding and keeps it if there is a place.
    pub(super) fn note(&mut self, find: CheckError) {
        match find {
            CheckError::Damaged(_) => self.counts.damaged += 1,
            CheckError::Access { .. } | CheckError::Unknown => self.counts.unreachable += 1,
        }
        if self.list.push_back(find).is_err() {
            self.counts.unlisted += 1;
        }
    }

    /// Counts a block that stays out of use.
    pub(super) const fn keep(&mut self, bytes: u64) {
        self.counts.kept_blocks += 1;
        self.counts.kept_bytes = self.counts.kept_bytes.saturating_add(bytes);
    }

    pub(super) fn take(&mut self) -> Option<CheckError> {
        self.list.pop_front()
    }
}

/// Number of bytes read in one call, into a buffer on the stack; a multiple of every pattern's length.
const WINDOW: usize = 1024;

/// A byte that differs from the pattern.
pub(super) struct ChangedByte {
    /// Distance from the start of the range.
    pub(super) offset: u64,
    pub(super) expected: u8,
    pub(super) found: u8,
}

/// Returns the first byte of the range that differs from the pattern. O(bytes), with one read for each [`WINDOW`].
pub(super) fn find_change<M: MemoryAccess>(
    access: &M,
    stream: StreamId,
    range: AddrRange,
    pattern: Pattern,
) -> Result<Option<ChangedByte>, AccessError> {
    let mut buffer = [0; WINDOW];
    let mut done = 0;
    while done < range.bytes() {
        let take = (range.bytes() - done).min(WINDOW as u64);
        // `take` is at most a window, so it fits the buffer.
        let window = buffer.get_mut(..take as usize).unwrap_or_default();
        // The address lies inside the range, so the sum does not overflow.
        access.read(stream, Addr::new(range.start().get() + done), window)?;
        for (found, offset) in window.iter().zip(done..) {
            let expected = pattern.at(offset);
            if *found != expected {
                return Ok(Some(ChangedByte {
                    offset,
                    expected,
                    found: *found,
                }));
            }
        }
        done += take;
    }
    Ok(None)
}
