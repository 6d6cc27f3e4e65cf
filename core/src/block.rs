//! What a caller holds and asks for: [`Request`], [`Block`], [`Grant`], and the trait every
//! allocator of blocks implements.

use core::fmt;
use core::num::NonZeroU32;

use crate::error::{AllocError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::{Addr, AddrRange, Align};

/// The number of a chunk in its table. Names nothing outside the allocator that gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ChunkHandle(NonZeroU32);

impl ChunkHandle {
    /// The handle with this number; `None` for 0, which names no chunk.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The handle of a chunk that exists, so that its number is not 0.
    #[inline]
    pub(crate) const fn from_link(number: u32) -> Self {
        match NonZeroU32::new(number) {
            Some(number) => Self(number),
            None => Self(NonZeroU32::MIN),
        }
    }

    /// The handle's number, never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// A range of addresses that belongs to the caller until it is freed.
///
/// A block is a value: it cannot be copied, and freeing takes it by move, so freeing twice does
/// not compile:
///
/// ```compile_fail
/// # use larder_core::{Block, BlockAllocator};
/// fn twice(allocator: &impl BlockAllocator, block: Block) {
///     allocator.free(block).unwrap();
///     allocator.free(block).unwrap();
/// }
/// ```
///
/// Dropping one leaks its memory until the allocator goes. It carries its chunk's handle, so a
/// free looks nothing up. 24 bytes.
#[derive(PartialEq, Eq)]
#[must_use = "a dropped block stays allocated"]
pub struct Block {
    addr: Addr,
    bytes: u64,
    handle: ChunkHandle,
    /// Which allocator gave it.
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

    /// The block of an allocator outside this crate, which knows its blocks by a table of its own and checks
    /// every one that it is given: a block made here proves nothing. It is [of](Self::is_of)
    /// [`AllocatorId::OUTSIDE`], and the core's allocators refuse it.
    pub const fn outside(range: AddrRange, handle: ChunkHandle) -> Self {
        Self::new(range.start(), range.bytes(), handle, AllocatorId::OUTSIDE.0)
    }

    /// Its first address.
    pub const fn addr(&self) -> Addr {
        self.addr
    }

    /// Granted size in bytes: at least what was requested.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All addresses of the block.
    pub const fn range(&self) -> AddrRange {
        AddrRange::of_chunk(self.addr, self.bytes)
    }

    /// The chunk behind the block.
    pub const fn handle(&self) -> ChunkHandle {
        self.handle
    }

    /// Whether an allocator over this table gave it, as far as the block itself tells: by a number that
    /// allocators of one time do not share. The allocator's own check is a free's.
    #[inline]
    pub const fn is_of(&self, allocator: AllocatorId) -> bool {
        self.owner == allocator.0
    }

    /// Takes the block apart, for keeping it where a value cannot be kept (a C interface, a
    /// header). [`BestFit::block_from_raw`](crate::BestFit::block_from_raw) checks and restores it.
    pub const fn into_raw(self) -> RawBlock {
        RawBlock {
            addr: self.addr,
            handle: self.handle,
        }
    }
}

/// Which allocator gave a block; see [`Block::is_of`].
///
/// Either the place of the table that it is lent, which the next allocator over the same table has as
/// well, or a number that is given once in the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorId(pub(crate) u32);

impl AllocatorId {
    /// All allocators outside this crate: their blocks are of no table.
    pub const OUTSIDE: Self = Self(0);
    /// How many numbers are given once.
    pub(crate) const GIVEN_ONCE: u32 = 1 << 31;

    /// Places are counted in units of so many bytes: no record is shorter.
    pub(crate) const TABLE_UNIT_BYTES: usize = 32;

    /// The id of an allocator over the table at this address.
    pub(crate) const fn of_table(address: usize) -> Self {
        Self((address / Self::TABLE_UNIT_BYTES) as u32 % Self::GIVEN_ONCE)
    }

    /// The id with this number of those that are given once.
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

/// A block taken apart; see [`Block::into_raw`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RawBlock {
    /// First address.
    pub addr: Addr,
    /// The chunk behind it.
    pub handle: ChunkHandle,
}

/// What is asked of an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Size in bytes, more than 0.
    pub bytes: u64,
    /// Alignment of the address. Up to the granule it costs nothing.
    pub align: Align,
    /// The stream the block will be used on. Memory whose last use is on the same stream may be
    /// given at once, because the stream runs in order.
    pub stream: StreamId,
    /// Whether memory that another stream still uses may be given, with a wait.
    pub may_wait: bool,
    /// If set, only memory freed on this stream at or before that event (TensorFlow's `freed_by`).
    pub freed_by: Option<EventNumber>,
}

impl Request {
    /// `bytes` bytes, any address, on the main stream, waits allowed.
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            align: Align::ONE,
            stream: StreamId::MAIN,
            may_wait: true,
            freed_by: None,
        }
    }

    /// This request, at a multiple of `align`.
    pub const fn aligned(mut self, align: Align) -> Self {
        self.align = align;
        self
    }

    /// This request for use on `stream`.
    pub const fn on(mut self, stream: StreamId) -> Self {
        self.stream = stream;
        self
    }

    /// This request, but never given memory that another stream still uses.
    pub const fn without_wait(mut self) -> Self {
        self.may_wait = false;
        self
    }

    /// This request, but only from memory that was freed at or before `event`, if it carries a point at all.
    pub const fn freed_by(mut self, event: EventNumber) -> Self {
        self.freed_by = Some(event);
        self
    }
}

/// A new size for a block that stays where it is. Bytes alone are one too:
/// `bfc.resize(block, 1000)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resize {
    /// The new size in bytes, more than 0.
    pub bytes: u64,
    /// The stream the block is used on. A block grows into memory that no stream uses any more or
    /// whose last use is on this one.
    pub stream: StreamId,
    /// If set, work queued on the stream may use the end that is cut off up to this event; otherwise
    /// the end is out of use at once.
    pub used_until: Option<EventNumber>,
}

impl Resize {
    /// To `bytes` bytes, used on the main stream, an end that is cut off out of use at once.
    pub const fn to(bytes: u64) -> Self {
        Self {
            bytes,
            stream: StreamId::MAIN,
            used_until: None,
        }
    }

    /// This resize for a block used on `stream`.
    pub const fn on(mut self, stream: StreamId) -> Self {
        self.stream = stream;
        self
    }

    /// This resize where the stream's work up to `event` may use an end that is cut off.
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

/// A block, and what must be waited for before it is used.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block stays allocated"]
pub struct Grant {
    /// The block.
    pub block: Block,
    /// If set, the stream of the request must wait for this point before its first use.
    pub wait: Option<StreamPoint>,
}

/// What hands out blocks: the trait at the upper end of the core, which decorators wrap.
///
/// Implementations are shared by reference and lock inside.
pub trait BlockAllocator {
    /// Gives memory.
    ///
    /// # Errors
    /// See [`AllocError`]. No block has been given then and every block is as before; on the way
    /// memory may have been got from or given back to the sub-allocator, and free chunks joined.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError>;

    /// Takes memory back that is out of use once `point.stream` has passed `point.event`; without a point, at
    /// once.
    ///
    /// # Errors
    /// Gives the block back if it is not one of this allocator's, or if the event lies too far ahead.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>>;

    /// Takes memory back, out of use at once; see [`free_at`](Self::free_at).
    ///
    /// # Errors
    /// Gives the block back if it is not one of this allocator's.
    fn free(&self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.free_at(block, None)
    }

    /// Takes memory back that is out of use once `point.stream` has passed `point.event`; see
    /// [`free_at`](Self::free_at).
    ///
    /// # Errors
    /// Gives the block back if it is not one of this allocator's, or if the event lies too far ahead.
    fn free_after(&self, block: Block, point: StreamPoint) -> Result<(), Rejected<FreeError>> {
        self.free_at(block, Some(point))
    }

    /// Bytes that were requested for the block; `None` if it is not one of this allocator's.
    fn requested_bytes(&self, block: &Block) -> Option<u64>;

    /// The block's number among all allocations made, from 1 up, never reused.
    fn allocation_id(&self, block: &Block) -> Option<u64>;

    /// Whether a block is one of this allocator's. Where the block itself tells by its number
    /// ([`Block::is_of`]) this takes no lock, and a free's own check is the stricter one. An allocator
    /// that does not [track sizes](Self::tracks_sizes) must answer by itself: by default it owns nothing.
    fn owns(&self, block: &Block) -> bool {
        self.requested_bytes(block).is_some()
    }

    /// Counters now.
    fn stats(&self) -> Stats;

    /// Starts the counters anew; see [`Stats::clear`]. Nothing where an allocator cannot.
    fn clear_stats(&self) {}

    /// Whether [`requested_bytes`](Self::requested_bytes) and
    /// [`allocation_id`](Self::allocation_id) answer for the blocks of this allocator. All of
    /// Larder's own do; one around another's memory may not.
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
