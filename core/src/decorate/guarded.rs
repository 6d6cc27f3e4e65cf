//! [`Guarded`]: known bytes before and after every block, which are compared when the block is freed.
//!
//! ```text
//! below     |<------------------- granted -------------------->|
//!           | front guard 0xAB.. | requested | tail guard 0xCD.. |
//! caller                         ^ block
//! ```
//! The front guard is a multiple of the requested alignment, so the block keeps that alignment. The tail guard begins
//! directly after the requested bytes and fills the rest of the granted bytes, so writes into the slack are found too.
//!
//! # Invariants
//! * GUARD1 the guards of a used row were written completely before its block was returned, and are not written again.
//! * GUARD2 a row's entry is taken only by the free of its block, and not while the row is pinned. So a thread that
//!   holds the block or a pin may read the guards: their memory is not free in the allocator below.

use super::bands::{BandShape, GuardConfig};
use super::damage::DamageList;
use super::rows::{RowEntry, Rows};
use super::{CheckError, FindingCounts, OnDamage, give_back};
use crate::access::MemoryAccess;
use crate::block::{Block, BlockAllocator, ChunkHandle, Grant, Request};
use crate::error::{AllocError, ConfigError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::StreamPoint;
use crate::sync::{Locked, Spin, Wait};
use crate::units::Addr;

/// A guarded block.
#[derive(Debug)]
struct Guard {
    inner: Block,
    shape: BandShape,
    /// Number of checks that are reading the guards.
    pins: u32,
}

impl RowEntry for Guard {
    fn addr(&self) -> Addr {
        self.shape.addr
    }
}

struct GuardState {
    rows: Rows<Guard>,
    findings: DamageList,
}

/// Puts guards around every block and compares them when the block is freed, or on request.
///
/// Every live block takes a row of the table. An allocation writes both guards, and a free or a check reads them, which
/// costs O(guards + slack). If the memory is a device's, the host waits for the stream. Free every block before this is
/// dropped: a block that is not freed stays live in the allocator below.
///
/// ```
/// use larder_core::decorate::{CheckError, GuardConfig, Guarded, Which};
/// use larder_core::{
///     Addr, AddrRange, BlockAllocator, Chunk, FixedRange, Growth, MemoryAccess, RegionConfig,
///     RegionPool, Request, Shared, SliceAccess, StreamId,
/// };
/// let (mut memory, mut table) = ([0u8; 4096], [Chunk::VACANT; 8]);
/// let range = AddrRange::new(Addr::new(0), 4096).unwrap();
/// let growth = Growth::Range { unit_bytes: 4096, ahead_divisor: None };
/// let pool = RegionPool::new(RegionConfig { growth, ..RegionConfig::default() }, &mut table)?;
/// let access = SliceAccess::new(range.start(), &mut memory);
/// let allocator = Shared::new(pool, FixedRange::new(range));
/// let allocator = Guarded::new(allocator, &access, GuardConfig::new(), 8)?;
/// let block = allocator.alloc(&Request::new(100))?.block;
/// // One byte too many.
/// access.write(StreamId::MAIN, block.addr(), &[1; 101])?;
/// let Err(CheckError::Damaged(damage)) = allocator.check(&block) else { panic!() };
/// assert_eq!((damage.which, damage.offset, damage.found), (Which::Tail, 100, 1));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Guarded<A, M, W: Wait = Spin> {
    inner: A,
    access: M,
    config: GuardConfig,
    state: Locked<GuardState, W>,
}

impl<A: BlockAllocator, M: MemoryAccess> Guarded<A, M> {
    /// Guards the blocks of `inner`, at most `blocks` at a time; threads spin for the lock.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for the table.
    pub fn new(
        inner: A,
        access: M,
        config: GuardConfig,
        blocks: usize,
    ) -> Result<Self, ConfigError> {
        Self::with_wait(inner, access, config, blocks)
    }
}

impl<A: BlockAllocator, M: MemoryAccess, W: Wait> Guarded<A, M, W> {
    /// Guards the blocks of `inner`, at most `blocks` at a time; `W` is how threads wait for the lock, and how a free
    /// waits for a check that is reading the same block.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for the table.
    pub fn with_wait(
        inner: A,
        access: M,
        config: GuardConfig,
        blocks: usize,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            inner,
            access,
            config,
            state: Locked::new(GuardState {
                rows: Rows::new(blocks)?,
                findings: DamageList::new(),
            }),
        })
    }

    /// Returns the allocator below.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Returns the bytes that the allocator below granted for the block: the requested bytes, both guards and the
    /// slack. Returns `None` if the block is not from this allocator.
    pub fn granted_bytes(&self, block: &Block) -> Option<u64> {
        self.state
            .with(|state| Some(state.rows.find(block)?.inner.bytes()))
    }

    /// Compares the guards of a block, after the work queued on the stream for which the block was requested.
    ///
    /// # Errors
    /// [`CheckError`]; the block is not changed.
    pub fn check(&self, block: &Block) -> Result<(), CheckError> {
        let shape = self.state.with(|state| Some(state.rows.find(block)?.shape));
        // The block is borrowed, so it cannot be freed meanwhile (GUARD2).
        let shape = shape.ok_or(CheckError::Unknown)?;
        shape.compare(&self.access, shape.stream)
    }

    /// Compares the guards of all blocks and calls `found` for each finding. Returns the number of findings. Blocks
    /// that are allocated meanwhile may be left out. Damage is found once more when the block is freed.
    pub fn check_all(&self, mut found: impl FnMut(CheckError)) -> u64 {
        let mut finds = 0;
        let last = self.state.with(|state| state.rows.used());
        for number in 1..=last {
            let shape = self.state.with(|state| {
                let guard = state.rows.at_mut(number)?;
                guard.pins += 1;
                Some(guard.shape)
            });
            let Some(shape) = shape else { continue };
            let outcome = shape.compare(&self.access, shape.stream);
            self.state.with(|state| {
                // The row has the same block as before (GUARD2).
                if let Some(guard) = state.rows.at_mut(number) {
                    guard.pins -= 1;
                }
            });
            if let Err(find) = outcome {
                finds += 1;
                found(find);
            }
        }
        finds
    }

    /// Removes and returns the oldest finding of a free.
    pub fn take_finding(&self) -> Option<CheckError> {
        self.state.with(|state| state.findings.take())
    }

    /// Returns the counts of the findings of frees so far.
    pub fn finding_counts(&self) -> FindingCounts {
        self.state.with(|state| state.findings.counts)
    }

    /// Allocates memory and writes its guards.
    fn prepare(&self, request: &Request) -> Result<(Grant, BandShape), AllocError> {
        let (front_bytes, total) = self.config.layout(request)?;
        let grant = self.inner.alloc(&Request {
            bytes: total,
            ..*request
        })?;
        let base = grant.block.addr();
        let spare = if self.config.fills_slack {
            grant.block.bytes().saturating_sub(total)
        } else {
            0
        };
        let shape = BandShape {
            base,
            front_bytes,
            // The sum lies inside the granted range.
            addr: base.checked_add(front_bytes).unwrap_or(base),
            bytes: request.bytes,
            tail_bytes: self.config.tail_bytes.saturating_add(spare),
            id: self.inner.allocation_id(&grant.block).unwrap_or(0),
            stream: request.stream,
        };
        match shape.write(&self.access, grant.wait) {
            Ok(()) => Ok((grant, shape)),
            Err(error) => {
                give_back(&self.inner, grant);
                Err(AllocError::Access(error))
            }
        }
    }

    /// Takes the entry of a block, once no check is reading its guards.
    fn take(&self, block: &Block) -> Option<Guard> {
        loop {
            let taken = self.state.with(|state| match state.rows.find(block) {
                None => Some(None),
                Some(guard) if guard.pins > 0 => None,
                Some(_) => Some(state.rows.take(block)),
            });
            match taken {
                Some(guard) => return guard,
                None => W::wait(),
            }
        }
    }

    /// Frees a block, after the point if there is one. Returns the finding, or `None` if the guards were intact. The
    /// block is consumed in either case. A finding is also kept for [`take_finding`](Self::take_finding).
    ///
    /// # Errors
    /// The block is returned if it is not from this allocator or the allocator below refuses the free.
    pub fn free_checked(
        &self,
        block: Block,
        point: Option<StreamPoint>,
    ) -> Result<Option<CheckError>, Rejected<FreeError>> {
        let Some(Guard { inner, shape, pins }) = self.take(&block) else {
            return Err(Rejected::new(block, FreeError::Unknown));
        };
        let handle = block.handle();
        let stream = point.map_or(shape.stream, |point| point.stream);
        let find = shape.compare(&self.access, stream).err();
        if matches!(find, Some(CheckError::Damaged(_))) && self.config.on_damage == OnDamage::Keep {
            // The block is dropped, not freed, so it stays live in the allocator below.
            let kept = inner.bytes();
            self.gone(handle, find, Some(kept));
            return Ok(find);
        }
        match self.inner.free_at(inner, point) {
            Ok(()) => {
                self.gone(handle, find, None);
                Ok(find)
            }
            Err(Rejected {
                value: inner,
                error,
            }) => {
                self.state
                    .with(|state| state.rows.put(handle, Guard { inner, shape, pins }));
                Err(Rejected::new(block, error))
            }
        }
    }

    /// Vacates the row of a freed block and notes its finding.
    fn gone(&self, handle: ChunkHandle, find: Option<CheckError>, kept_bytes: Option<u64>) {
        self.state.with(|state| {
            state.rows.vacate(handle);
            if let Some(find) = find {
                state.findings.note(find);
            }
            if let Some(bytes) = kept_bytes {
                state.findings.keep(bytes);
            }
        });
    }
}

impl<A: BlockAllocator, M: MemoryAccess, W: Wait> BlockAllocator for Guarded<A, M, W> {
    /// Allocates a block from the allocator below and writes its guards, after a wait for the grant's point if it has
    /// one.
    ///
    /// Fails with [`AllocError::TableFull`] if no row is vacant, and with [`AllocError::Access`] if the guards could
    /// not be written. The sizes in an error of the allocator below include the guards' bytes.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let reserved = self.state.with(|state| state.rows.reserve());
        let handle = reserved.ok_or_else(|| AllocError::TableFull {
            records: self.state.with(|state| state.rows.capacity()),
        })?;
        let prepared = self.prepare(request);
        self.state.with(|state| match prepared {
            Ok((grant, shape)) => {
                let inner = grant.block;
                state.rows.put(
                    handle,
                    Guard {
                        inner,
                        shape,
                        pins: 0,
                    },
                );
                Ok(Grant {
                    block: state.rows.block(handle, shape.addr, shape.bytes),
                    wait: grant.wait,
                })
            }
            Err(error) => {
                state.rows.vacate(handle);
                Err(error)
            }
        })
    }

    /// Frees the block whatever the state of its guards. They are read on the point's stream, after the work queued
    /// there. A finding is kept for [`take_finding`](Guarded::take_finding); [`free_checked`](Guarded::free_checked)
    /// also returns it.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        self.free_checked(block, point).map(drop)
    }

    /// Returns the requested bytes, without the guards.
    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.state
            .with(|state| Some(state.rows.find(block)?.shape.bytes))
    }

    /// Returns the allocation number from the allocator below, or `None` if that allocator has no numbers.
    fn allocation_id(&self, block: &Block) -> Option<u64> {
        let id = self
            .state
            .with(|state| Some(state.rows.find(block)?.shape.id));
        id.filter(|id| *id > 0)
    }

    /// Returns the counters of the allocator below, whose bytes include the guards.
    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn clear_stats(&self) {
        self.inner.clear_stats();
    }

    /// Returns `true`: sizes are in the rows.
    fn tracks_sizes(&self) -> bool {
        true
    }
}
