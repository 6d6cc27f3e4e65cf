//! [`Quarantined`]: freed blocks wait, filled with a pattern, before the memory is allocated again.
//!
//! # Invariants
//! * QUAR1 a waiting block's memory is live below, all of it was filled, and no caller holds the block: a byte that
//!   differs from the pattern was written after the free.
//! * QUAR2 `bytes` is the total size of the waiting blocks. It exceeds the limit only by blocks whose free the
//!   allocator below refused.
//! * QUAR3 the fill of a waiting block came after the work queued on the stream of its free (ACCESS1), so that work is
//!   over. The point of the free is passed on to an allocator below that has streams; one without streams needs no
//!   point.

use super::damage::{DamageList, find_change};
use super::{CheckError, Damage, FindingCounts, OnDamage, Which};
use crate::access::{MemoryAccess, Pattern};
use crate::block::{Block, BlockAllocator, Grant, Request};
use crate::error::{AllocError, ConfigError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::{StreamId, StreamPoint};
use crate::sync::{Locked, Spin, Wait};
use crate::table::ring::Ring;

/// The policy of a quarantine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuarantineConfig {
    /// Maximum bytes that wait. A larger block does not wait at all.
    pub limit_bytes: u64,
    /// The pattern that fills freed blocks.
    pub pattern: Pattern,
    /// Treatment of the memory of a block that was written to.
    pub on_damage: OnDamage,
}

impl QuarantineConfig {
    /// Creates the default: at most `limit_bytes` wait, filled with 0xDD.
    pub const fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            pattern: Pattern::of_u8(0xdd),
            on_damage: OnDamage::Free,
        }
    }
}

/// A freed block that waits.
#[derive(Debug)]
struct Waiting {
    block: Block,
    point: Option<StreamPoint>,
    id: u64,
}

impl Waiting {
    /// Returns the stream of the free. Accesses come after the work queued there.
    fn stream(&self) -> StreamId {
        self.point.map_or(StreamId::MAIN, |point| point.stream)
    }
}

/// The current contents of a quarantine, and its counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QuarantineStats {
    /// Number of waiting blocks.
    pub waiting_blocks: u64,
    /// Bytes of the waiting blocks, as granted.
    pub waiting_bytes: u64,
    /// Freed blocks that never waited: they were too large, could not be filled, or there was no place for them.
    pub passed_blocks: u64,
    /// Number of times that all blocks left because memory was short.
    pub drains: u64,
}

struct QuarantineState {
    ring: Ring<Waiting>,
    bytes: u64,
    passed: u64,
    drains: u64,
    findings: DamageList,
}

impl QuarantineState {
    /// Appends a block if the limit and the table allow it.
    fn push(&mut self, waiting: Waiting, limit_bytes: u64) -> Result<(), Waiting> {
        let bytes = self.bytes.saturating_add(waiting.block.bytes());
        if bytes > limit_bytes {
            return Err(waiting);
        }
        self.ring.push(waiting)?;
        self.bytes = bytes;
        Ok(())
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.ring.pop()?;
        self.bytes -= waiting.block.bytes();
        Some(waiting)
    }
}

/// Delays the reuse of freed blocks. A freed block is filled with a pattern and compared with it when the block leaves
/// the quarantine. So a write after the free is found, and does no harm until then.
///
/// The oldest blocks leave when a newer one needs their place, and all leave when memory is short. A free fills the
/// block, and the block is read when it leaves: each costs O(bytes). Waiting blocks are live in the allocator below,
/// even after the quarantine is dropped. If the allocator below is to be used further, call [`drain`](Self::drain)
/// first.
pub struct Quarantined<A, M, W: Wait = Spin> {
    inner: A,
    access: M,
    config: QuarantineConfig,
    state: Locked<QuarantineState, W>,
}

impl<A: BlockAllocator, M: MemoryAccess> Quarantined<A, M> {
    /// Quarantines freed blocks of `inner`, at most `blocks` of them; threads spin for the lock.
    ///
    /// # Errors
    /// [`ConfigError::NoSizes`] if `inner` does not track sizes: the quarantine could then not tell a foreign block
    /// from one of `inner`. [`ConfigError::Heap`] if the heap has no memory for the table.
    pub fn new(
        inner: A,
        access: M,
        config: QuarantineConfig,
        blocks: usize,
    ) -> Result<Self, ConfigError> {
        Self::with_wait(inner, access, config, blocks)
    }
}

impl<A: BlockAllocator, M: MemoryAccess, W: Wait> Quarantined<A, M, W> {
    /// Quarantines freed blocks of `inner`, at most `blocks` of them; `W` is how threads wait for the lock.
    ///
    /// # Errors
    /// [`ConfigError::NoSizes`] if `inner` does not track sizes, [`ConfigError::Heap`] if the heap
    /// has no memory for the table.
    pub fn with_wait(
        inner: A,
        access: M,
        config: QuarantineConfig,
        blocks: usize,
    ) -> Result<Self, ConfigError> {
        if !inner.tracks_sizes() {
            return Err(ConfigError::NoSizes);
        }
        Ok(Self {
            inner,
            access,
            config,
            state: Locked::new(QuarantineState {
                ring: Ring::new(blocks)?,
                bytes: 0,
                passed: 0,
                drains: 0,
                findings: DamageList::new(),
            }),
        })
    }

    /// Returns the allocator below.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Compares all waiting blocks and lets them leave, the oldest first.
    pub fn drain(&self) {
        let count = self.state.with(|state| state.ring.len());
        for _ in 0..count {
            let Some(waiting) = self.state.with(QuarantineState::pop) else {
                return;
            };
            if let Err(refused) = self.leave(waiting) {
                self.hold(refused);
            }
        }
    }

    /// Compares all waiting blocks and calls `found` for each finding. Returns the number of findings. A block that was
    /// written to is filled again, so each damage is found only once. The findings are also in the list. Blocks that
    /// are freed meanwhile may be left out.
    pub fn check_all(&self, mut found: impl FnMut(CheckError)) -> u64 {
        let mut finds = 0;
        // While a block is read it is not in the ring, so that no other thread lets it leave. Then it is appended to
        // the ring.
        let count = self.state.with(|state| state.ring.len());
        for _ in 0..count {
            let Some(waiting) = self.state.with(QuarantineState::pop) else {
                break;
            };
            let find = self.compare(&waiting);
            if let Some(find) = find {
                finds += 1;
                found(find);
                if self.note(find, &waiting) {
                    continue;
                }
            }
            let stays = find.is_none() || self.fill(&waiting).is_ok();
            let done = if stays {
                self.admit(waiting)
            } else {
                self.release_filled(waiting)
            };
            if let Err(refused) = done {
                self.hold(refused);
            }
        }
        finds
    }

    /// Removes and returns the oldest finding.
    pub fn take_finding(&self) -> Option<CheckError> {
        self.state.with(|state| state.findings.take())
    }

    /// Returns the counts of the findings so far.
    pub fn finding_counts(&self) -> FindingCounts {
        self.state.with(|state| state.findings.counts)
    }

    /// Returns the current contents and counters.
    pub fn quarantine_stats(&self) -> QuarantineStats {
        self.state.with(|state| QuarantineStats {
            waiting_blocks: state.ring.len() as u64,
            waiting_bytes: state.bytes,
            passed_blocks: state.passed,
            drains: state.drains,
        })
    }
}

/// A block whose free the allocator below refused.
struct RefusedBlock {
    waiting: Waiting,
    error: FreeError,
}

impl<A: BlockAllocator, M: MemoryAccess, W: Wait> Quarantined<A, M, W> {
    fn fill(&self, waiting: &Waiting) -> Result<(), CheckError> {
        let range = waiting.block.range();
        let filled = self
            .access
            .fill(waiting.stream(), range, self.config.pattern);
        filled.map_err(|error| CheckError::Access {
            addr: waiting.block.addr(),
            error,
        })
    }

    fn compare(&self, waiting: &Waiting) -> Option<CheckError> {
        let block = &waiting.block;
        let pattern = self.config.pattern;
        match find_change(&self.access, waiting.stream(), block.range(), pattern) {
            Ok(None) => None,
            Ok(Some(change)) => Some(CheckError::Damaged(Damage {
                which: Which::Freed,
                // A range of memory is shorter than 2^62 bytes.
                offset: change.offset as i64,
                expected: change.expected,
                found: change.found,
                addr: block.addr(),
                bytes: block.bytes(),
                id: waiting.id,
            })),
            Err(error) => Some(CheckError::Access {
                addr: block.addr(),
                error,
            }),
        }
    }

    /// Notes a finding. Returns whether the block's memory is kept; the caller then drops the block instead of freeing
    /// it.
    fn note(&self, find: CheckError, waiting: &Waiting) -> bool {
        let kept =
            matches!(find, CheckError::Damaged(_)) && self.config.on_damage == OnDamage::Keep;
        self.state.with(|state| {
            state.findings.note(find);
            if kept {
                state.findings.keep(waiting.block.bytes());
            }
        });
        kept
    }

    /// Compares a block that was taken out of the ring, and frees it below.
    fn leave(&self, waiting: Waiting) -> Result<(), RefusedBlock> {
        match self.compare(&waiting) {
            Some(find) if self.note(find, &waiting) => Ok(()),
            _ => self.release_filled(waiting),
        }
    }

    /// Frees a block in the allocator below.
    fn release(&self, waiting: Waiting) -> Result<(), RefusedBlock> {
        let Waiting { block, point, id } = waiting;
        let freed = self.inner.free_at(block, point);
        freed.map_err(
            |Rejected {
                 value: block,
                 error,
             }| RefusedBlock {
                waiting: Waiting { block, point, id },
                error,
            },
        )
    }

    /// Frees a filled block in the allocator below, without the point if that allocator has no streams (QUAR3).
    fn release_filled(&self, waiting: Waiting) -> Result<(), RefusedBlock> {
        match self.release(waiting) {
            Err(RefusedBlock {
                waiting:
                    Waiting {
                        block,
                        point: Some(_),
                        id,
                    },
                error: FreeError::NoStreams,
            }) => self.release(Waiting {
                block,
                point: None,
                id,
            }),
            done => done,
        }
    }

    /// Requeues a block whose free was refused, even beyond the limit. The free is retried when the block is the
    /// oldest. If no place is vacant, the block stays live, as a kept block does.
    fn hold(&self, refused: RefusedBlock) {
        self.state.with(|state| {
            if let Err(waiting) = state.push(refused.waiting, u64::MAX) {
                state.findings.keep(waiting.block.bytes());
            }
        });
    }

    /// Appends a filled block to the waiting ones, and lets the oldest leave to make room.
    fn admit(&self, mut waiting: Waiting) -> Result<(), RefusedBlock> {
        let limit = self.config.limit_bytes;
        loop {
            match self.state.with(|state| state.push(waiting, limit)) {
                Ok(()) => return Ok(()),
                Err(back) => waiting = back,
            }
            let Some(oldest) = self.state.with(QuarantineState::pop) else {
                self.count_passed();
                return self.release_filled(waiting);
            };
            if let Err(refused) = self.leave(oldest) {
                self.hold(refused);
                self.count_passed();
                return self.release_filled(waiting);
            }
        }
    }

    /// Counts a block that does not wait.
    fn count_passed(&self) {
        self.state.with(|state| state.passed += 1);
    }
}

impl<A: BlockAllocator, M: MemoryAccess, W: Wait> BlockAllocator for Quarantined<A, M, W> {
    /// Allocates a block from the allocator below. If that allocator has no memory or no record left, all waiting
    /// blocks leave the quarantine, and the allocation is tried once more.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let error = match self.inner.alloc(request) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
        let short = matches!(
            error,
            AllocError::OutOfMemory(_)
                | AllocError::TableFull { .. }
                | AllocError::PagesFull { .. }
        );
        if !short || self.state.with(|state| state.ring.len()) == 0 {
            return Err(error);
        }
        self.state.with(|state| state.drains += 1);
        self.drain();
        self.inner.alloc(request)
    }

    /// Fills the block and lets it wait. With a point, the fill comes after the work queued on the point's stream. A
    /// point too far ahead is not refused here: it waits with the block and is passed on when the block leaves. An
    /// allocator without streams gets the block without the point, since the stream's work was over once the block had
    /// been filled.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        if self.inner.requested_bytes(&block).is_none() {
            return Err(Rejected::new(block, FreeError::Unknown));
        }
        let id = self.inner.allocation_id(&block).unwrap_or(0);
        let waiting = Waiting { block, point, id };
        let max = self.state.with(|state| state.ring.capacity());
        let bytes = waiting.block.bytes();
        let done = if bytes == 0 || bytes > self.config.limit_bytes || max == 0 {
            self.count_passed();
            self.release(waiting)
        } else if let Err(find) = self.fill(&waiting) {
            self.state.with(|state| state.findings.note(find));
            self.count_passed();
            self.release(waiting)
        } else {
            self.admit(waiting)
        };
        done.map_err(|RefusedBlock { waiting, error }| Rejected::new(waiting.block, error))
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.inner.requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.inner.allocation_id(block)
    }

    /// Returns the counters of the allocator below, which count waiting blocks as live.
    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn clear_stats(&self) {
        self.inner.clear_stats();
    }

    fn owns(&self, block: &Block) -> bool {
        self.inner.owns(block)
    }

    fn tracks_sizes(&self) -> bool {
        self.inner.tracks_sizes()
    }
}
