//! [`Tracked`]: counts of allocated and live bytes, and a record of every call.

use core::fmt;

use super::track_state::{TrackRecord, TrackState, TrackStats, TrackedBlock, Tracking};
use crate::block::{Block, BlockAllocator, Grant, Request};
use crate::error::{AllocError, ConfigError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::StreamPoint;
use crate::sync::{Locked, Spin, Wait};

/// A clock for records. It is called while no lock is held.
pub trait Ticks {
    /// Returns a number that never decreases, in any unit.
    fn now(&self) -> u64;
}

/// No clock: every record has tick 0, and only the sequence number orders records.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTicks;

impl Ticks for NoTicks {
    fn now(&self) -> u64 {
        0
    }
}

impl<F: Fn() -> u64> Ticks for F {
    fn now(&self) -> u64 {
        self()
    }
}

/// The error when the records are taken a second time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordsTaken;

impl fmt::Display for RecordsTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the records were taken before: use those")
    }
}

impl core::error::Error for RecordsTaken {}

/// Counts allocations and frees and keeps a record of each, like TensorFlow's `TrackingAllocator`.
///
/// The ring of records keeps the newest. [`take_records`](Self::take_records) ends the recording, like TensorFlow's
/// `GetRecordsAndUnRef`: afterwards blocks can be freed but not allocated. TensorFlow's object deletes itself once the
/// last block is freed; here [`is_done`](Self::is_done) then returns `true`.
///
/// Each call costs O(1) in addition to the call of the allocator below.
///
/// ```
/// use larder_core::decorate::Tracked;
/// use larder_core::{
///     Addr, AddrRange, RegionPool, Shared, RegionConfig, BlockAllocator, Chunk, FixedRange, Growth, Request,
/// };
/// let mut table = [Chunk::VACANT; 8];
/// let growth = Growth::Range { unit_bytes: 4096, ahead_divisor: None };
/// let pool = RegionPool::new(RegionConfig { growth, ..RegionConfig::default() }, &mut table)?;
/// let range = AddrRange::new(Addr::new(0), 4096).unwrap();
/// let allocator = Tracked::new(Shared::new(pool, FixedRange::new(range)), 16)?;
/// let block = allocator.alloc(&Request::new(1000))?.block;
/// allocator.free(block)?;
/// allocator.take_records(|record| println!("{:+} bytes", record.bytes))?;
/// assert!(allocator.is_done());
/// assert_eq!(allocator.track_stats().high_water_bytes, 1024);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Tracked<A, T = NoTicks, W: Wait = Spin> {
    inner: A,
    ticks: T,
    tracking: Tracking,
    state: Locked<TrackState, W>,
}

impl<A: BlockAllocator> Tracked<A> {
    /// Counts the blocks of `inner` and keeps the newest `records` records. Sizes are those of `inner`, if it tracks
    /// them. There is no clock, and threads spin for the lock.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for the records.
    pub fn new(inner: A, records: usize) -> Result<Self, ConfigError> {
        Self::with_ticks(inner, NoTicks, records, None)
    }

    /// Counts the blocks of `inner`. If `inner` does not track sizes, they are tracked here, and at most `blocks`
    /// blocks can be live. There is no clock, and threads spin for the lock.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn local(inner: A, records: usize, blocks: usize) -> Result<Self, ConfigError> {
        Self::with_ticks(inner, NoTicks, records, Some(blocks))
    }
}

impl<A: BlockAllocator, T: Ticks, W: Wait> Tracked<A, T, W> {
    /// Counts the blocks of `inner`, with the clock `ticks`. If `inner` does not track sizes and a number of blocks is
    /// given, sizes are tracked here. `W` is how threads wait for the lock.
    ///
    /// # Errors
    /// The errors of [`new`](Tracked::new).
    pub fn with_ticks(
        inner: A,
        ticks: T,
        records: usize,
        blocks: Option<usize>,
    ) -> Result<Self, ConfigError> {
        let tracking = match blocks {
            _ if inner.tracks_sizes() => Tracking::Below,
            Some(_) => Tracking::Local,
            None => Tracking::Nobody,
        };
        let state = TrackState::new(records, blocks.unwrap_or_default())?;
        Ok(Self {
            inner,
            ticks,
            tracking,
            state: Locked::new(state),
        })
    }

    /// Returns the allocator below.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Returns the source of sizes.
    pub const fn tracking(&self) -> Tracking {
        self.tracking
    }

    /// Returns the counters so far.
    pub fn track_stats(&self) -> TrackStats {
        self.state.with(|state| state.stats)
    }

    /// Copies records into `into`, the oldest first, and returns their number. The records stay in the ring.
    pub fn copy_records(&self, into: &mut [TrackRecord]) -> usize {
        self.state.with(|state| {
            let mut count = 0;
            for place in into {
                let Some(record) = state.ring.get(count) else {
                    break;
                };
                *place = *record;
                count += 1;
            }
            count
        })
    }

    /// Removes the current records, the oldest first, and calls `f` with each while no lock is held. Records of
    /// concurrent calls may be left for the next drain. No record is lost if this is called often enough.
    pub fn drain_records(&self, mut f: impl FnMut(TrackRecord)) {
        let count = self.state.with(|state| state.ring.len());
        for _ in 0..count {
            match self.state.with(|state| state.ring.pop()) {
                Some(record) => f(record),
                None => return,
            }
        }
    }

    /// Removes the records and ends the recording: from then on blocks can be freed but not allocated
    /// ([`AllocError::Closed`]), and no call is recorded. An allocation under way in another thread may still return a
    /// block; its record is lost.
    ///
    /// # Errors
    /// [`RecordsTaken`] if the records were taken before.
    pub fn take_records(&self, f: impl FnMut(TrackRecord)) -> Result<(), RecordsTaken> {
        let before = self
            .state
            .with(|state| core::mem::replace(&mut state.taken, true));
        if before {
            return Err(RecordsTaken);
        }
        self.drain_records(f);
        Ok(())
    }

    /// Returns whether the records were taken, every block is freed and no allocation is under way: the allocator is
    /// no longer needed.
    pub fn is_done(&self) -> bool {
        self.state.with(|state| state.is_done())
    }

    /// Allocates from the allocator below. Under `Local` a row is reserved first, so that a full table is noticed
    /// before the allocation.
    fn alloc_below(&self, request: &Request) -> Result<Grant, AllocError> {
        if self.tracking != Tracking::Local {
            let grant = self.inner.alloc(request)?;
            let tick = self.ticks.now();
            let bytes = match self.tracking {
                Tracking::Nobody => request.bytes,
                _ => grant.block.bytes(),
            };
            self.state
                .with(|state| state.given(self.tracking, bytes, tick));
            return Ok(grant);
        }
        let reserved = self.state.with(|state| state.rows.reserve());
        let handle = reserved.ok_or_else(|| AllocError::TableFull {
            records: self.state.with(|state| state.rows.capacity()),
        })?;
        let outcome = self.inner.alloc(request);
        let tick = self.ticks.now();
        self.state.with(|state| match outcome {
            Ok(Grant { block: inner, wait }) => {
                let bytes = inner.bytes().max(request.bytes);
                state.given(self.tracking, bytes, tick);
                state.ids += 1;
                let block = state.rows.block(handle, inner.addr(), bytes);
                let entry = TrackedBlock {
                    inner,
                    requested: request.bytes,
                    id: state.ids,
                };
                state.rows.put(handle, entry);
                Ok(Grant { block, wait })
            }
            Err(error) => {
                state.rows.vacate(handle);
                Err(error)
            }
        })
    }
}

impl<A: BlockAllocator, T: Ticks, W: Wait> BlockAllocator for Tracked<A, T, W> {
    /// Allocates a block from the allocator below and counts it.
    ///
    /// Fails with [`AllocError::Closed`] once the records were taken, and with [`AllocError::TableFull`] if blocks are
    /// tracked here and no row is vacant.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        if !self.state.with(TrackState::begin) {
            return Err(AllocError::Closed);
        }
        let outcome = self.alloc_below(request);
        if outcome.is_err() {
            self.state.with(TrackState::failed);
        }
        outcome
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        let bytes = block.bytes();
        if self.tracking != Tracking::Local {
            // The allocator below refuses a foreign block, which was never counted.
            let counts = self.tracking == Tracking::Below && self.inner.owns(&block);
            let counted = self
                .state
                .with(|state| if counts { state.leaving(bytes) } else { 0 });
            let outcome = self.inner.free_at(block, point);
            let tick = self.ticks.now();
            self.state.with(|state| match outcome {
                Ok(()) => state.freed(self.tracking, bytes, tick),
                Err(_) => state.stays(counted),
            });
            return outcome;
        }
        let taken = self.state.with(|state| {
            let entry = state.rows.take(&block)?;
            Some((entry, state.leaving(bytes)))
        });
        let Some((entry, counted)) = taken else {
            return Err(Rejected::new(block, FreeError::Unknown));
        };
        let handle = block.handle();
        let TrackedBlock {
            inner,
            requested,
            id,
        } = entry;
        let outcome = self.inner.free_at(inner, point);
        let tick = self.ticks.now();
        self.state.with(|state| match outcome {
            Ok(()) => {
                state.rows.vacate(handle);
                state.freed(self.tracking, bytes, tick);
                Ok(())
            }
            Err(Rejected {
                value: inner,
                error,
            }) => {
                state.stays(counted);
                state.rows.put(
                    handle,
                    TrackedBlock {
                        inner,
                        requested,
                        id,
                    },
                );
                Err(Rejected::new(block, error))
            }
        })
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        if self.tracking != Tracking::Local {
            return self.inner.requested_bytes(block);
        }
        self.state
            .with(|state| Some(state.rows.find(block)?.requested))
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        if self.tracking != Tracking::Local {
            return self.inner.allocation_id(block);
        }
        self.state.with(|state| Some(state.rows.find(block)?.id))
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn clear_stats(&self) {
        self.inner.clear_stats();
    }

    /// Returns whether the block is in the table of sizes, if there is one. The callers' blocks then carry the table's
    /// number, which the allocator below does not know.
    fn owns(&self, block: &Block) -> bool {
        if self.tracking != Tracking::Local {
            return self.inner.owns(block);
        }
        self.state.with(|state| state.rows.find(block).is_some())
    }

    fn tracks_sizes(&self) -> bool {
        self.tracking != Tracking::Nobody
    }
}
