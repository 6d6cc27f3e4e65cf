//! The guards around a block: their sizes, and how they are written and compared.

use super::damage::{ChangedByte, find_change};
use super::{CheckError, Damage, OnDamage, Which};
use crate::access::{MemoryAccess, Pattern};
use crate::block::Request;
use crate::error::{AccessError, AllocError};
use crate::stream::{StreamId, StreamPoint};
use crate::units::{Addr, AddrRange, round_up};

/// The pattern before a block.
const FRONT: Pattern = Pattern::of_u8(0xab);
/// The pattern after a block.
const TAIL: Pattern = Pattern::of_u8(0xcd);

/// The configuration of the guards. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuardConfig {
    /// Minimum size of the guard before a block. The guard's actual size is this, rounded up to the requested
    /// alignment. If this is a power of two and at most the granule of the allocator below, each block starts at a
    /// multiple of it.
    pub front_bytes: u64,
    /// Minimum size of the guard after a block.
    pub tail_bytes: u64,
    /// Whether the front guard is rounded up to the requested alignment. If not, blocks are only as aligned as
    /// `front_bytes` is.
    pub keeps_alignment: bool,
    /// Whether the tail guard extends to the end of the granted bytes.
    pub fills_slack: bool,
    /// Whether a request for 0 bytes yields a block with an empty range. If not, such a request is an error.
    pub zero_size: bool,
    /// Treatment of damaged blocks.
    pub on_damage: OnDamage,
}

impl GuardConfig {
    /// Creates the default: at least 16 bytes on each side.
    pub const fn new() -> Self {
        Self {
            front_bytes: 16,
            tail_bytes: 16,
            keeps_alignment: true,
            fills_slack: true,
            zero_size: false,
            on_damage: OnDamage::Free,
        }
    }

    /// Creates the configuration of TensorFlow's `GPUDebugAllocator`: 16 bytes before the block and 16 directly after
    /// it, whatever the alignment. Requests for 0 bytes yield blocks.
    pub const fn tensorflow() -> Self {
        Self {
            keeps_alignment: false,
            fills_slack: false,
            zero_size: true,
            ..Self::new()
        }
    }

    /// Returns the size of the front guard for a request, and the total size of both guards and the block.
    pub(super) fn layout(&self, request: &Request) -> Result<(u64, u64), AllocError> {
        if request.bytes == 0 && !self.zero_size {
            return Err(AllocError::ZeroSize);
        }
        let front = if self.keeps_alignment {
            round_up(self.front_bytes, request.align).map(|front| front.max(request.align.bytes()))
        } else {
            Some(self.front_bytes)
        };
        let layout = front.and_then(|front| {
            let guards = front.checked_add(self.tail_bytes)?;
            Some((front, guards.checked_add(request.bytes)?))
        });
        layout.ok_or(AllocError::TooLarge {
            requested_bytes: request.bytes,
        })
    }
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The shape of a block and its guards, as kept in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct BandShape {
    /// First address of the front guard.
    pub(super) base: Addr,
    pub(super) front_bytes: u64,
    /// First address of the caller's block.
    pub(super) addr: Addr,
    /// Requested bytes.
    pub(super) bytes: u64,
    pub(super) tail_bytes: u64,
    pub(super) id: u64,
    /// The stream for which the block was requested. The guards are read on it unless the free names another stream.
    pub(super) stream: StreamId,
}

impl BandShape {
    fn front(&self) -> Option<AddrRange> {
        AddrRange::new(self.base, self.front_bytes)
    }

    fn tail(&self) -> Option<AddrRange> {
        AddrRange::new(self.addr.checked_add(self.bytes)?, self.tail_bytes)
    }

    fn error(&self, which: Which, start: i64, change: &ChangedByte) -> CheckError {
        CheckError::Damaged(Damage {
            which,
            // A range of memory is shorter than 2^62 bytes: it has at most 2^32 granules of at most 2^30 bytes.
            offset: start + change.offset as i64,
            expected: change.expected,
            found: change.found,
            addr: self.addr,
            bytes: self.bytes,
            id: self.id,
        })
    }

    /// Writes both guards, after a wait of the block's stream for `wait`.
    pub(super) fn write<M: MemoryAccess>(
        &self,
        access: &M,
        wait: Option<StreamPoint>,
    ) -> Result<(), AccessError> {
        if let Some(point) = wait {
            access.wait(self.stream, point)?;
        }
        if let Some(front) = self.front() {
            access.fill(self.stream, front, FRONT)?;
        }
        if let Some(tail) = self.tail() {
            access.fill(self.stream, tail, TAIL)?;
        }
        Ok(())
    }

    /// Compares both guards, the front one first, and returns the first change as an error.
    pub(super) fn compare<M: MemoryAccess>(
        &self,
        access: &M,
        stream: StreamId,
    ) -> Result<(), CheckError> {
        let front = (
            self.front(),
            FRONT,
            Which::Front,
            -(self.front_bytes as i64),
        );
        let tail = (self.tail(), TAIL, Which::Tail, self.bytes as i64);
        for (range, pattern, which, start) in [front, tail] {
            let Some(range) = range else { continue };
            match find_change(access, stream, range, pattern) {
                Ok(None) => {}
                Ok(Some(change)) => return Err(self.error(which, start, &change)),
                Err(error) => {
                    let addr = self.addr;
                    return Err(CheckError::Access { addr, error });
                }
            }
        }
        Ok(())
    }
}
