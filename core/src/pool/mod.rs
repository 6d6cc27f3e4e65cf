//! An LRU pool: freed buffers are cached, and serve requests of exactly their size.
//!
//! The pool does not split or join buffers. It suits memory that is expensive to allocate and is requested in few sizes
//! (pinned memory, registered or shared buffers); for other memory use [`RegionPool`](crate::RegionPool). It only
//! calculates with addresses and writes nothing into the memory, which may be on a device. The idea and the counters
//! are those of TensorFlow 1.15's `PoolAllocator`. The records are on the heap, and are allocated when a pool is
//! created.
//!
//! [`Pool`] is the algorithm for one thread. It never calls the sub-allocator: for a miss it returns a [`MissTicket`],
//! and for a buffer to release a [`LeavingTicket`]. [`PoolAllocator`] shares a pool behind a lock, and carries out the
//! tickets without the lock.
//!
//! # States of a buffer
//! ```text
//! miss ─ growing ─► out ──free──► idle ──hit──► out
//!                    │              │ evicted, aged, trimmed
//!                    └─ too large ─►┴─► leaving ─ going ─► gone
//!                                                  └ refused ─► stuck ──hit──► out
//! ```
//! A *stuck* buffer still serves requests, and counts against no limit. Its release is tried again at the next trim,
//! clear or end of a step, and when the table of a [`PoolAllocator`] is full.
//!
//! # Invariants
//! * POOL1 each record ever used is either vacant or one buffer in one state. Each list (idle, stuck, leaving) holds
//!   exactly the records of its state. The buffers in the other states are counted.
//! * POOL2 the idle list is in the order in which its buffers were freed.
//! * POOL3 exactly the cached buffers (idle or stuck) are in the list of their size, and the newest of each list is in
//!   the hash slot of its size.
//! * POOL4 whenever no call is under way, the idle buffers and their bytes are within both limits.
//! * POOL5 the held bytes are those of all buffers except growing ones. The counters of growing, live, requested and
//!   idle bytes match the records.
//! * POOL6 a block lies inside its buffer, and the buffer's size is at most the bytes held for it.

mod allocator;
mod buffer;
mod check;
mod config;
mod ghosts;
mod limits;
mod report;
mod sizes;
mod ticket;

pub use allocator::PoolAllocator;
pub use config::PoolConfig;
pub use report::{PoolCounters, PoolReport};
pub use ticket::{LeavingTicket, MissTicket, PoolStep};

use crate::block::{AllocatorId, Block, ChunkHandle, Grant, RawBlock, Request};
use crate::error::{AllocError, Cause, ConfigError, FreeError, RegionError, Rejected};
use crate::stats::Stats;
use crate::stream::StreamPoint;
use crate::sub_allocator::GrowRequest;
use crate::table::list::Queue;
use crate::units::{Addr, AddrRange, round_up};
use buffer::{Buffer, BufferState, Buffers, OfState};
use ghosts::Ghosts;
use sizes::Sizes;

/// An LRU pool for one thread. See the [module](self).
///
/// ```
/// use larder_core::pool::{Pool, PoolConfig, PoolStep};
/// use larder_core::{Addr, AddrRange, Request};
/// let mut pool = Pool::new(PoolConfig::default(), 8)?;
/// let PoolStep::Grow(ticket) = pool.alloc(&Request::new(1000))? else { panic!() };
/// // No buffer is cached yet. Get the memory from wherever it comes.
/// let memory = AddrRange::new(Addr::new(0x1_0000), ticket.request().bytes).unwrap();
/// let block = pool.commit(ticket, memory).unwrap().block;
/// pool.free(block)?;
/// // Now the buffer is cached.
/// assert!(matches!(pool.alloc(&Request::new(999))?, PoolStep::Ready(_)));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Pool {
    config: PoolConfig,
    buffers: Buffers,
    sizes: Sizes,
    idle: Queue<u32>,
    stuck: Queue<u32>,
    leaving: Queue<u32>,
    /// Number of buffers in the states that have no list.
    growing: u32,
    out: u32,
    going: u32,
    idle_bytes: u64,
    /// Sum of the sizes of growing buffers. It may exceed 64 bits before the sub-allocator refuses them.
    growing_bytes: u128,
    limit_buffers: u32,
    counters: PoolCounters,
    stats: Stats,
    ghosts: Ghosts,
    step: u32,
    last_id: u64,
}

impl Pool {
    /// Creates a pool with records for `buffers` buffers, in use or idle.
    ///
    /// # Errors
    /// [`ConfigError::PoolLimit`] if a limit of 0 is configured to rise, `Table` if there are no records, `Heap` if the
    /// heap has no memory for the records.
    pub fn new(config: PoolConfig, buffers: usize) -> Result<Self, ConfigError> {
        config.validate(config.limit_buffers)?;
        let buffers = Buffers::with_records(buffers.saturating_add(1))?;
        if buffers.capacity() == 0 {
            return Err(ConfigError::Table);
        }
        Ok(Self {
            config,
            sizes: Sizes::new(buffers.capacity())?,
            buffers,
            idle: Queue::default(),
            stuck: Queue::default(),
            leaving: Queue::default(),
            growing: 0,
            out: 0,
            going: 0,
            idle_bytes: 0,
            growing_bytes: 0,
            limit_buffers: config.limit_buffers,
            counters: PoolCounters::default(),
            stats: Stats {
                limit_bytes: u64::MAX,
                ..Stats::default()
            },
            ghosts: Ghosts::default(),
            step: 0,
            last_id: 0,
        })
    }

    /// Allocates a cached buffer of the request's size, or returns a ticket to allocate a new one. Expected O(1). The
    /// request's stream is ignored, because no stream uses cached buffers.
    ///
    /// # Errors
    /// [`AllocError::ZeroSize`], `TooLarge`, and `TableFull` if the table has no record for another buffer; nothing has
    /// changed then. If there are idle buffers, [`make_room`](Self::make_room) makes room in the table.
    pub fn alloc(&mut self, request: &Request) -> Result<PoolStep, AllocError> {
        if request.bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let too_large = AllocError::TooLarge {
            requested_bytes: request.bytes,
        };
        let bytes = self.config.buffer_bytes(request.bytes, request.align);
        let bytes = bytes.ok_or(too_large)?;
        let counts = u64::from(self.keeps());
        if let Some(link) = self.sizes.newest(&self.buffers, bytes) {
            self.counters.from_pool += counts;
            self.take_out(link);
            return Ok(PoolStep::Ready(self.give(link, request)));
        }
        let wish = round_up(bytes, self.config.align).ok_or(too_large)?;
        let growing = Buffer {
            bytes,
            state: BufferState::Growing,
            ..Buffer::VACANT
        };
        let Some(link) = self.buffers.insert(growing) else {
            return Err(AllocError::TableFull {
                records: self.buffers.capacity(),
            });
        };
        self.counters.allocated += counts;
        self.missed(bytes);
        self.growing += 1;
        self.growing_bytes += u128::from(bytes);
        Ok(PoolStep::Grow(MissTicket {
            link,
            owner: self.buffers.owner(),
            bytes,
            request: GrowRequest {
                bytes: wish,
                align: self.config.align,
                at: None,
            },
            asked: *request,
        }))
    }

    /// Turns the range into a buffer for the ticket, and returns a block of it. O(1). The sub-allocator promises that
    /// the range overlaps no other buffer; this is not checked.
    ///
    /// # Errors
    /// Returns the range if it is too small, if it does not start at a multiple of the buffers' alignment, or if the
    /// ticket belongs to another pool.
    pub fn commit(
        &mut self,
        ticket: MissTicket,
        range: AddrRange,
    ) -> Result<Grant, Rejected<AllocError, AddrRange>> {
        let unfit = if !self.awaits(&ticket) {
            Some(RegionError::ForeignTicket)
        } else if range.bytes() < ticket.bytes {
            Some(RegionError::TooSmall)
        } else if !range.start().is_aligned(self.config.align) {
            Some(RegionError::Misaligned)
        } else if self
            .stats
            .reserved_bytes
            .checked_add(range.bytes())
            .is_none()
        {
            Some(RegionError::TooLarge)
        } else {
            None
        };
        if let Some(unfit) = unfit {
            let error = self.give_up(ticket, Cause::Rejected(unfit));
            return Err(Rejected::new(range, error));
        }
        let MissTicket { link, asked, .. } = ticket;
        self.growing -= 1;
        self.growing_bytes -= u128::from(ticket.bytes);
        let stats = &mut self.stats;
        stats.reserved_bytes += range.bytes();
        stats.peak_reserved_bytes = stats.peak_reserved_bytes.max(stats.reserved_bytes);
        let record = self.buffers.at_mut(link);
        record.start = range.start().get();
        record.held_bytes = range.bytes();
        Ok(self.give(link, &asked))
    }

    /// Ends a ticket for which there is no memory. Returns the error of the allocation. O(idle buffers).
    pub fn abort(&mut self, ticket: MissTicket) -> AllocError {
        self.give_up(ticket, Cause::SubAllocator)
    }

    /// Frees a block that is no longer in use, and caches its buffer for the next request of its size. If the buffers
    /// then exceed the limits, the oldest ones [leave](Self::take_leaving). Expected O(1), plus O(1) for each eviction.
    ///
    /// # Errors
    /// Returns the block if it does not belong to this pool or is already freed.
    pub fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        let Some(link) = self.known(&block) else {
            return Err(Rejected::new(block, FreeError::Unknown));
        };
        let record = *self.buffers.at(link);
        self.stats.live_bytes -= record.granted_bytes();
        self.stats.requested_bytes -= record.requested_bytes;
        self.out -= 1;
        self.kept_or_evicted(link);
        Ok(())
    }

    /// Always refuses, and returns the block, because a pool has no streams. Wait for the work that uses the block and
    /// then [`free`](Self::free) it, or use an allocator with streams.
    ///
    /// # Errors
    /// [`FreeError::NoStreams`], or `Unknown` as [`free`](Self::free).
    pub fn free_after(&mut self, block: Block, _: StreamPoint) -> Result<(), Rejected<FreeError>> {
        let error = match self.known(&block) {
            Some(_) => FreeError::NoStreams,
            None => FreeError::Unknown,
        };
        Err(Rejected::new(block, error))
    }

    /// Returns the next leaving buffer, if any. O(1).
    pub fn take_leaving(&mut self) -> Option<LeavingTicket> {
        let link = self.leaving.oldest;
        if link == 0 {
            return None;
        }
        self.leaving.unlink::<OfState, _>(&mut self.buffers, link);
        self.going += 1;
        let record = self.buffers.at_mut(link);
        record.state = BufferState::Going;
        Some(LeavingTicket {
            bytes: record.bytes,
            range: AddrRange::of_chunk(Addr::new(record.start), record.held_bytes),
            link,
            owner: self.buffers.owner(),
        })
    }

    /// Ends the release of a buffer that the sub-allocator has taken. O(1). Returns the bytes released.
    pub fn released(&mut self, ticket: LeavingTicket) -> u64 {
        if !self.lets_go(&ticket) {
            return 0;
        }
        self.going -= 1;
        self.stats.reserved_bytes -= ticket.range.bytes();
        self.buffers.remove(ticket.link);
        ticket.range.bytes()
    }

    /// Ends the release of a buffer that the sub-allocator did not take back. The buffer continues to serve requests.
    /// Expected O(1).
    pub fn release_refused(&mut self, ticket: LeavingTicket) {
        if !self.lets_go(&ticket) {
            return;
        }
        self.going -= 1;
        self.keep(ticket.link, BufferState::Stuck);
    }

    /// Returns the bytes requested for the block, or `None` if the block does not belong to this pool.
    pub fn requested_bytes(&self, block: &Block) -> Option<u64> {
        let link = self.known(block)?;
        Some(self.buffers.at(link).requested_bytes)
    }

    /// Returns the block's number among all allocations, from 1 up.
    pub fn allocation_id(&self, block: &Block) -> Option<u64> {
        let link = self.known(block)?;
        Some(self.buffers.at(link).id)
    }

    /// Restores a block from its parts. Returns `None` if no such block is in use. O(1).
    pub fn block_from_raw(&self, raw: RawBlock) -> Option<Block> {
        let record = self.buffers.at(raw.handle.get());
        let block = Block::new(
            raw.addr,
            record
                .bytes
                .checked_sub(record.block.checked_sub(record.start)?)?,
            raw.handle,
            self.buffers.owner(),
        );
        self.known(&block).map(|_| block)
    }

    /// Returns the ID that the pool's blocks carry; see [`Block::is_of`].
    pub fn id(&self) -> AllocatorId {
        AllocatorId(self.buffers.owner())
    }

    /// Returns the link of the record of a block that is in use.
    fn known(&self, block: &Block) -> Option<u32> {
        let link = block.handle().get();
        let record = self.buffers.at(link);
        let ours = block.owner() == self.buffers.owner()
            && self.buffers.knows(link)
            && record.state == BufferState::Out
            && record.block == block.addr().get();
        ours.then_some(link)
    }

    /// Returns a block of a buffer that is in no list.
    fn give(&mut self, link: u32, request: &Request) -> Grant {
        self.last_id += 1;
        let record = self.buffers.at_mut(link);
        // The block does not reach past the end of the address space, because the buffer does not.
        let place = round_up(record.start, request.align);
        let addr = Addr::new(place.unwrap_or(record.start));
        record.state = BufferState::Out;
        record.block = addr.get();
        record.requested_bytes = request.bytes;
        record.id = self.last_id;
        let granted = record.granted_bytes();
        self.out += 1;
        let stats = &mut self.stats;
        stats.allocations += 1;
        stats.requested_bytes += request.bytes;
        stats.live_bytes += granted;
        stats.peak_live_bytes = stats.peak_live_bytes.max(stats.live_bytes);
        stats.largest_bytes = stats.largest_bytes.max(granted);
        let handle = ChunkHandle::from_link(link);
        Grant {
            block: Block::new(addr, granted, handle, self.buffers.owner()),
            wait: None,
        }
    }

    /// Returns whether a growing buffer matches the ticket. Comparing owners is not enough, because an earlier pool
    /// over the same table had the same number.
    fn awaits(&self, ticket: &MissTicket) -> bool {
        let record = self.buffers.at(ticket.link);
        ticket.owner == self.buffers.owner()
            && self.buffers.knows(ticket.link)
            && record.state == BufferState::Growing
            && record.bytes == ticket.bytes
    }

    /// Returns whether a leaving buffer matches the ticket.
    fn lets_go(&self, ticket: &LeavingTicket) -> bool {
        let record = self.buffers.at(ticket.link);
        ticket.owner == self.buffers.owner()
            && self.buffers.knows(ticket.link)
            && record.state == BufferState::Going
            && (record.start, record.held_bytes)
                == (ticket.range.start().get(), ticket.range.bytes())
    }

    fn give_up(&mut self, ticket: MissTicket, cause: Cause) -> AllocError {
        if self.awaits(&ticket) {
            self.growing -= 1;
            self.growing_bytes -= u128::from(ticket.bytes);
            self.buffers.remove(ticket.link);
        }
        AllocError::OutOfMemory(self.out_of_memory(&ticket, cause))
    }
}
