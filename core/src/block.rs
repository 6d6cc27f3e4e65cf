//! The values of an allocation: [`Request`], [`Block`] and [`Grant`], and the trait that every allocator of blocks
//! implements.

use core::fmt;
use core::num::NonZeroU32;

use crate::error::{AllocError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::{Addr, AddrRange, Align};

/// The number of a chunk in its table. Meaningless outside the allocator that returned it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ChunkHandle(NonZeroU32);

impl ChunkHandle {
    /// Returns the handle with this number, or `None` for 0, which names no chunk.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Returns the handle of an existing chunk, whose number is not 0.
    #[inline]
    pub(crate) const fn from_link(number: u32) -> Self {
        match NonZeroU32::new(number) {
            Some(number) => Self(number),
            None => Self(NonZeroU32::MIN),
        }
    }

    /// Returns the handle's number, never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// A range of addresses that belongs to the caller until it is freed.
///
/// A block is a value: it cannot be copied, and freeing moves it, so freeing it twice does not compile:
///
/// ```compile_fail
/// # use larder_core::{Block, BlockAllocator};
/// fn twice(allocator: &impl BlockAllocator, block: Block) {
///     allocator.free(block).unwrap();
///     allocator.free(block).unwrap();
/// }
/// ```
///
/// Dropping a block leaks its memory until the allocator is dropped. A block carries its chunk's handle, so a free
/// needs no look-up. It takes 24 bytes.
#[derive(PartialEq, Eq)]
#[must_use = "a dropped block stays allocated"]
pub struct Block {
    addr: Addr,
    bytes: u64,
    handle: ChunkHandle,
    /// The allocator that the block is from.
    owner: u32,
}

static_assertions::const_assert_eq!(size_of::<Block>(), 24);

impl Block {
    pub(crate) const fn new(addr: Addr, bytes: u64, handle: ChunkHandle, owner: u32) -> Self {
        Self {
            addr,
            bytes,
            handle,
            owner,
        }
    }

    #[inline]
    pub(crate) const fn owner(&self) -> u32 {
        self.owner
    }

    /// Creates the block of an allocator outside this crate, which keeps a table of its blocks and checks every block
    /// it receives: a block made here proves nothing. Such a block is [of](Self::is_of) [`AllocatorId::OUTSIDE`], and
    /// the core's allocators refuse it.
    pub const fn outside(range: AddrRange, handle: ChunkHandle) -> Self {
        Self::new(range.start(), range.bytes(), handle, AllocatorId::OUTSIDE.0)
    }

    /// Returns the first address.
    pub const fn addr(&self) -> Addr {
        self.addr
    }

    /// Returns the granted size in bytes: at least the requested one.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns all addresses of the block.
    pub const fn range(&self) -> AddrRange {
        AddrRange::of_chunk(self.addr, self.bytes)
    }

    /// Returns the chunk behind the block.
    pub const fn handle(&self) -> ChunkHandle {
        self.handle
    }

    /// Returns whether the block is from this allocator, by a number that no two allocators in use at the same time
    /// share. A free makes the allocator's own, stricter check.
    #[inline]
    pub const fn is_of(&self, allocator: AllocatorId) -> bool {
        self.owner == allocator.0
    }

    /// Converts the block to parts, to keep it where a value cannot be kept (a C interface, a header).
    /// [`BestFit::block_from_raw`](crate::BestFit::block_from_raw) checks and restores it.
    pub const fn into_raw(self) -> RawBlock {
        RawBlock {
            addr: self.addr,
            handle: self.handle,
        }
    }
}

/// The allocator of a block; see [`Block::is_of`].
///
/// The id is either the place of the table that the allocator borrows, which the next allocator over the same table has
/// too, or a number that is used once in the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorId(pub(crate) u32);

impl AllocatorId {
    /// All allocators outside this crate: their blocks belong to no table.
    pub const OUTSIDE: Self = Self(0);
    /// Number of ids that are used only once.
    pub(crate) const GIVEN_ONCE: u32 = 1 << 31;

    /// Unit in bytes in which places of tables are counted, since no record is shorter.
    pub(crate) const TABLE_UNIT_BYTES: usize = 32;

    /// Returns the id of an allocator over the table at this address.
    pub(crate) const fn of_table(address: usize) -> Self {
        Self((address / Self::TABLE_UNIT_BYTES) as u32 % Self::GIVEN_ONCE)
    }

    /// Returns the id with this number among those used once.
    pub(crate) const fn once(number: u32) -> Self {
        Self(Self::GIVEN_ONCE | number)
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Block({} +{} #{})",
            self.addr,
            self.bytes,
            self.handle.get()
        )
    }
}

/// The parts of a block; see [`Block::into_raw`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RawBlock {
    /// First address.
    pub addr: Addr,
    /// The chunk behind it.
    pub handle: ChunkHandle,
}

/// A request for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Size in bytes, more than 0.
    pub bytes: u64,
    /// Alignment of the address. Costs nothing up to the granule.
    pub align: Align,
    /// The stream on which the block will be used. Memory whose last use is on the same stream may be granted at
    /// once, because the stream runs in order.
    pub stream: StreamId,
    /// Whether memory that another stream still uses may be granted, with a wait.
    pub may_wait: bool,
    /// If set, only memory freed on this stream at or before this event is granted (TensorFlow's `freed_by`).
    pub freed_by: Option<EventNumber>,
}

impl Request {
    /// Requests `bytes` bytes at any address, on the main stream, waits allowed.
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            align: Align::ONE,
            stream: StreamId::MAIN,
            may_wait: true,
            freed_by: None,
        }
    }

    /// Sets the alignment.
    pub const fn aligned(mut self, align: Align) -> Self {
        self.align = align;
        self
    }

    /// Sets the stream.
    pub const fn on(mut self, stream: StreamId) -> Self {
        self.stream = stream;
        self
    }

    /// Excludes memory that another stream still uses.
    pub const fn without_wait(mut self) -> Self {
        self.may_wait = false;
        self
    }

    /// Excludes memory that carries a point unless it was freed at or before `event`.
    pub const fn freed_by(mut self, event: EventNumber) -> Self {
        self.freed_by = Some(event);
        self
    }
}

/// A new size for a block that stays where it is. A number of bytes converts to it: `pool.resize(block, 1000)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resize {
    /// The new size in bytes, more than 0.
    pub bytes: u64,
    /// The stream on which the block is used. A block grows into memory that no stream uses any more or whose last use
    /// is on this stream.
    pub stream: StreamId,
    /// If set, work queued on the stream may use a cut-off end up to this event; otherwise the end is free immediately.
    pub used_until: Option<EventNumber>,
}

impl Resize {
    /// Resizes to `bytes` bytes, used on the main stream; a cut-off end is free immediately.
    pub const fn to(bytes: u64) -> Self {
        Self {
            bytes,
            stream: StreamId::MAIN,
            used_until: None,
        }
    }

    /// Sets the stream.
    pub const fn on(mut self, stream: StreamId) -> Self {
        self.stream = stream;
        self
    }

    /// Lets the stream's work up to `event` use a cut-off end.
    pub const fn used_until(mut self, event: EventNumber) -> Self {
        self.used_until = Some(event);
        self
    }
}

impl From<u64> for Resize {
    fn from(bytes: u64) -> Self {
        Self::to(bytes)
    }
}

/// A block, and the point to wait for before its first use.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block stays allocated"]
pub struct Grant {
    /// The block.
    pub block: Block,
    /// If set, the stream of the request must wait for this point before the first use of the block.
    pub wait: Option<StreamPoint>,
}

/// An allocator of blocks: the trait at the upper end of the core, which decorators wrap.
///
/// Implementations are shared by reference and do their own locking.
pub trait BlockAllocator {
    /// Allocates a block.
    ///
    /// # Errors
    /// See [`AllocError`]. No block is allocated then and every block is as before; memory may have been obtained from
    /// the sub-allocator or released to it, and free chunks may have been joined.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError>;

    /// Frees a block that is out of use once `point.stream` has passed `point.event`, or immediately if there is no
    /// point.
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's, or if the event lies too far ahead.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>>;

    /// Frees a block that is out of use now; see [`free_at`](Self::free_at).
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's.
    fn free(&self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.free_at(block, None)
    }

    /// Frees a block that is out of use once `point.stream` has passed `point.event`; see [`free_at`](Self::free_at).
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's, or if the event lies too far ahead.
    fn free_after(&self, block: Block, point: StreamPoint) -> Result<(), Rejected<FreeError>> {
        self.free_at(block, Some(point))
    }

    /// Returns the bytes requested for the block, or `None` if it is not one of this allocator's.
    fn requested_bytes(&self, block: &Block) -> Option<u64>;

    /// Returns the block's number among all allocations, from 1 up, never reused.
    fn allocation_id(&self, block: &Block) -> Option<u64>;

    /// Returns whether the block is one of this allocator's. Takes no lock if the block's own number decides
    /// ([`Block::is_of`]); a free's own check is stricter. An allocator that does not [track sizes](Self::tracks_sizes)
    /// must implement this: the default returns `false` for it.
    fn owns(&self, block: &Block) -> bool {
        self.requested_bytes(block).is_some()
    }

    /// Returns the counters.
    fn stats(&self) -> Stats;

    /// Resets the counters; see [`Stats::clear`]. Does nothing by default.
    fn clear_stats(&self) {}

    /// Returns whether [`requested_bytes`](Self::requested_bytes) and [`allocation_id`](Self::allocation_id) know the
    /// blocks of this allocator. All of Larder's own allocators do; a wrapper of another allocator may not.
    fn tracks_sizes(&self) -> bool {
        true
    }
}

/// A shared reference to an allocator is that allocator.
impl<A: BlockAllocator + ?Sized> BlockAllocator for &A {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        (**self).alloc(request)
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        (**self).free_at(block, point)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        (**self).requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        (**self).allocation_id(block)
    }

    fn owns(&self, block: &Block) -> bool {
        (**self).owns(block)
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn clear_stats(&self) {
        (**self).clear_stats();
    }

    fn tracks_sizes(&self) -> bool {
        (**self).tracks_sizes()
    }
}

static_assertions::assert_obj_safe!(BlockAllocator);
