//! Errors as small values: one enum per verb.
//!
//! On every error all blocks are as before the call, and nothing the caller owned is lost: a refused block or range
//! comes back inside the error. A refused allocation may have joined free chunks, and may have obtained memory from the
//! sub-allocator or released some to it.

use core::fmt;

use crate::block::Block;
use crate::byte_count::ByteCount;
use crate::units::AddrRange;

/// The text of `OtherStream` in all three errors.
const OTHER_STREAM: &str = "there is only the main stream here, for one queue: use stream 0, or an allocator or access for \
                          several queues";

/// Why an allocation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// Zero bytes were requested. Interfaces that must return an address return a dangling one.
    ZeroSize,
    /// The size, rounded and with its alignment, is more than one region can ever hold.
    TooLarge {
        /// Bytes requested.
        requested_bytes: u64,
    },
    /// The values together have more bytes than an address space.
    TooMany {
        /// Number of values.
        len: usize,
        /// Bytes of one value.
        each_bytes: usize,
    },
    /// The chunk table, or a decorator's, has no free record. Lend a larger table, or free blocks.
    TableFull {
        /// Records in the table.
        records: u32,
    },
    /// The memory could not be accessed, so a decorator could not prepare the block.
    Access(AccessError),
    /// A [`Tracked`](crate::decorate::Tracked) allocates no more blocks after its records have been taken. Allocate
    /// elsewhere.
    Closed,
    /// The request is for a stream that this allocator does not have.
    OtherStream,
    /// The handles or the mappings of a paged allocator are all in use. Lend larger tables.
    PagesFull {
        /// Handles in the table.
        handles: u32,
        /// Mappings in the table.
        mappings: u32,
    },
    /// The requested place is not wholly inside one free chunk, or not on a granule.
    PlaceTaken,
    /// There is no memory; the numbers show why.
    OutOfMemory(OutOfMemory),
}

/// Why there was no memory, with the numbers to judge it by. All sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The reason for the refusal.
    pub cause: Cause,
    /// Bytes requested.
    pub requested_bytes: u64,
    /// Bytes requested, rounded up to granules.
    pub rounded_bytes: u64,
    /// The limit in force.
    pub limit_bytes: u64,
    /// Bytes held from the sub-allocator, growth under way included.
    pub reserved_bytes: u64,
    /// Bytes in use.
    pub live_bytes: u64,
    /// Bytes free in held regions, on any stream.
    pub free_bytes: u64,
    /// Bytes of the largest free chunk.
    pub largest_free_bytes: u64,
    /// Bytes that are free, but still used by work queued on other streams.
    pub pending_bytes: u64,
}

impl OutOfMemory {
    /// Creates the error of an allocator outside this crate from the cause and the size. The other numbers are 0
    /// until they are set.
    pub const fn of(cause: Cause, requested_bytes: u64) -> Self {
        Self {
            cause,
            requested_bytes,
            rounded_bytes: requested_bytes,
            limit_bytes: 0,
            reserved_bytes: 0,
            live_bytes: 0,
            free_bytes: 0,
            largest_free_bytes: 0,
            pending_bytes: 0,
        }
    }
}

/// The cause of an [`OutOfMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Growing would exceed the limit. Raise it, or free blocks.
    Limit,
    /// The sub-allocator refused to grow: the memory behind it is exhausted.
    SubAllocator,
    /// The sub-allocator returned a range that could not be accepted.
    Rejected(RegionError),
    /// Held memory cannot serve the request, and the call asked for no more
    /// ([`BestFit::alloc`](crate::BestFit::alloc)).
    Held,
    /// Enough bytes are free, beyond those that a lowered limit claims, but in chunks that are too small.
    Fragmentation,
    /// Enough bytes are free, but queued work still uses them: wait for the streams and try again.
    Pending,
    /// The allocator was created without growth.
    Fixed,
    /// The region table is full: growing in fewer, larger steps would avoid it.
    Regions,
    /// The addresses reserved for the memory are used up, though the memory is not.
    Addresses,
    /// The request is larger than the whole device.
    Device {
        /// The device's memory, in whole MiB.
        mib: u32,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => f.write_str("zero bytes were requested: ask for one at least"),
            Self::TooLarge { requested_bytes } => write!(
                f,
                "{:#} were requested: with rounding and alignment more than one region can hold",
                ByteCount(*requested_bytes)
            ),
            Self::TooMany { len, each_bytes } => write!(
                f,
                "{len} values of {each_bytes} bytes have more bytes than an address space: ask for fewer"
            ),
            Self::TableFull { records } => write!(
                f,
                "all {records} records of the table are in use: lend a larger table, or free blocks"
            ),
            Self::Access(error) => error.fmt(f),
            Self::Closed => f.write_str(
                "the records of this allocator have been taken, so it only frees: allocate elsewhere",
            ),
            Self::OtherStream => f.write_str(OTHER_STREAM),
            Self::PagesFull { handles, mappings } => write!(
                f,
                "the tables of pages are full, {handles} handles and {mappings} mappings: lend larger ones"
            ),
            Self::PlaceTaken => f.write_str(
                "the requested place is not wholly inside one free chunk, or not on a granule",
            ),
            Self::OutOfMemory(out) => out.fmt(f),
        }
    }
}

/// A limit in words.
pub(crate) struct Limit(pub(crate) u64);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("no limit"),
            bytes => write!(f, "limit {:#}", ByteCount(bytes)),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory for {:#}", ByteCount(self.requested_bytes))?;
        if self.rounded_bytes != self.requested_bytes {
            write!(f, ", rounded {:#}", ByteCount(self.rounded_bytes))?;
        }
        f.write_str(": ")?;
        match self.cause {
            Cause::Rejected(error) => write!(
                f,
                "the sub-allocator returned a range that could not be accepted: {error}"
            )?,
            Cause::Device { mib } => write!(
                f,
                "the whole device has {:#}; ask for less",
                ByteCount(u64::from(mib) << 20)
            )?,
            _ => {}
        }
        let why = match self.cause {
            Cause::Rejected(_) | Cause::Device { .. } => "",
            Cause::Held => "held memory does not suffice; free blocks, or allocate over a source",
            Cause::Limit => "growing would pass the limit; raise it or free blocks",
            Cause::SubAllocator => "the device, or other source of the memory, has no more to give",
            Cause::Fragmentation => {
                "enough memory is free, but in chunks that are too small; free neighbouring blocks, or plan the step"
            }
            Cause::Pending => "queued work still uses the free memory; wait for it and try again",
            Cause::Fixed => "the allocator does not grow; give it another region or free blocks",
            Cause::Regions => "the region table is full; grow in larger steps",
            Cause::Addresses => "the reserved addresses are used up; reserve more of them",
        };
        write!(
            f,
            "{why} [{}, reserved {:#}, live {:#}, free {:#}, largest free {:#}, pending {:#}]",
            Limit(self.limit_bytes),
            ByteCount(self.reserved_bytes),
            ByteCount(self.live_bytes),
            ByteCount(self.free_bytes),
            ByteCount(self.largest_free_bytes),
            ByteCount(self.pending_bytes)
        )
    }
}

impl core::error::Error for AllocError {}

/// Why memory could not be read or written through a [`MemoryAccess`](crate::MemoryAccess).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AccessError {
    /// Some of the bytes lie outside the accessible memory.
    OutOfRange,
    /// The access is for a stream that it cannot serve.
    OtherStream,
    /// The device or system that carries out the access refused.
    Refused {
        /// The code that it returned.
        code: u32,
    },
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => f.write_str(
                "some of the bytes lie outside the accessible memory: create the access over all \
                 regions of the allocator",
            ),
            Self::OtherStream => f.write_str(OTHER_STREAM),
            Self::Refused { code } => write!(
                f,
                "the memory could not be read or written, code {code}: see the documentation of its source"
            ),
        }
    }
}

impl core::error::Error for AccessError {}

/// An error, with the value that was refused: a block that still belongs to the caller, or a range that is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the value inside is the caller's again: a block to free, a range to give back"]
pub struct Rejected<E, T = Block> {
    /// The value, unchanged.
    pub value: T,
    /// Why it was refused.
    pub error: E,
}

impl<E, T> Rejected<E, T> {
    /// Creates an error that returns `value`.
    pub const fn new(value: T, error: E) -> Self {
        Self { value, error }
    }
}

impl<E: fmt::Display> fmt::Display for Rejected<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block at {}: {}", self.value.addr(), self.error)
    }
}

impl<E: fmt::Display> fmt::Display for Rejected<E, AddrRange> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, start) = (ByteCount(self.value.bytes()), self.value.start());
        write!(f, "region of {bytes:#} at {start}: {}", self.error)
    }
}

impl<E: core::error::Error> core::error::Error for Rejected<E> {}

impl<E: core::error::Error> core::error::Error for Rejected<E, AddrRange> {}

/// Why a free was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FreeError {
    /// No used chunk starts there: the block was never allocated here, or is freed already.
    Unknown,
    /// The point's event lies more than [`EventNumber::WINDOW`](crate::EventNumber::WINDOW) ahead of its
    /// stream's last completed event. Report completed events more often.
    EventTooFar,
    /// The allocator has no streams. Wait for the work that uses the block, then free it.
    NoStreams,
    /// The point is on a stream that this allocator does not have.
    OtherStream,
    /// The sub-allocator does not take the block's memory back. Try again later.
    SubAllocator,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => {
                "no block in use starts there: it was never allocated here or is freed already; free each \
                 block once, at the allocator that gave it"
            }
            Self::EventTooFar => {
                "the event lies too far ahead of what its stream has completed: report completed events"
            }
            Self::NoStreams => {
                "the allocator has no streams: wait for the work that uses the block, then free it"
            }
            Self::OtherStream => OTHER_STREAM,
            Self::SubAllocator => "the sub-allocator did not take the block's memory back: try again later",
        })
    }
}

impl core::error::Error for FreeError {}

/// Why a resize was refused. The block is as it was; a caller that only needs the bytes allocates a new block and
/// copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResizeError {
    /// The block is not one of this allocator's.
    Unknown,
    /// Zero bytes were requested. Free the block instead.
    ZeroSize,
    /// The size is more than one region can ever hold.
    TooLarge,
    /// The event lies more than [`EventNumber::WINDOW`](crate::EventNumber::WINDOW) ahead of the stream's last
    /// completed event. Report completed events more often.
    EventTooFar,
    /// The chunk table has no free record: cutting an end off takes one, and so does growing the region. Lend a
    /// larger table, or free blocks.
    TableFull,
    /// The memory right behind the block is in use or too small, and no more can be obtained there.
    NoRoom,
    /// The limit leaves no room. Raise it, or free blocks.
    Limit,
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => {
                "the block is not one of this allocator's: resize it at the allocator that gave it"
            }
            Self::ZeroSize => "zero bytes were requested: free the block instead",
            Self::TooLarge => "the new size is more than one region can hold",
            Self::EventTooFar => {
                "the event lies too far ahead of what its stream has completed: report completed events"
            }
            Self::TableFull => "all records of the chunk table are in use: lend a larger table",
            Self::NoRoom => {
                "there is too little free memory right behind the block: allocate anew and copy"
            }
            Self::Limit => "the limit leaves no room for the new size; raise it or free blocks",
        })
    }
}

impl core::error::Error for ResizeError {}

/// Why a region could not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RegionError {
    /// The region's start or length is not a multiple of the granule.
    Misaligned,
    /// The region overlaps one that is held already.
    Overlap,
    /// The region has more granules than 32 bits can count.
    TooLarge,
    /// The region is smaller than the growth ticket requires.
    TooSmall,
    /// Holding the region would exceed the limit, which may have been lowered since the growth began.
    Limit,
    /// The chunk table has no record left.
    TableFull,
    /// The region table is full.
    RegionsFull,
    /// The ticket is another allocator's.
    ForeignTicket,
    /// The region has no room for the tables of a [`Heap`](crate::Heap) and memory: give at least 32 KiB.
    NoRoom,
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Misaligned => "the region's start or length is not a multiple of the granule",
            Self::Overlap => "the region overlaps one that is held already",
            Self::TooLarge => {
                "the region has more granules than 32 bits count: use a larger granule"
            }
            Self::TooSmall => "the region is smaller than requested",
            Self::Limit => "holding the region would pass the limit",
            Self::TableFull => "the chunk table has no record left: lend a larger table",
            Self::RegionsFull => "the region table is full: grow in larger steps",
            Self::ForeignTicket => "the ticket is another allocator's: return it to that one",
            Self::NoRoom => "the region is too small for tables and memory; give at least 32 KiB",
        })
    }
}

impl core::error::Error for RegionError {}

/// Why an allocator could not be created or configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The granule is not a power of two up to [`Granule::MAX_BYTES`](crate::Granule::MAX_BYTES).
    Granule,
    /// The growth unit is not a multiple of the granule, or zero.
    GrowthUnit,
    /// The chunk table is empty, or has more records than 32 bits count.
    Table,
    /// The hash index of a pool has fewer than two slots for each record.
    Index,
    /// A paged allocator has a growth policy of its own.
    PagedGrowth,
    /// The page is not a multiple of the granule.
    Page,
    /// The range of addresses is not whole pages, or longer than a region can be.
    Addresses,
    /// The tables of pages are too small.
    PageTables,
    /// The limit of a pool is 0 but is configured to grow.
    PoolLimit,
    /// The allocator below does not track sizes, which the decorator needs.
    NoSizes,
    /// No whole granule lies inside the buffer.
    Buffer,
    /// The buffer cannot be one region.
    Region(RegionError),
    /// The process has made 2^31 allocators over buffers and pages, and there is no number for another.
    Numbers,
    /// The heap has no memory for the records.
    Heap,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Buffer => {
                "no whole granule lies inside the buffer: give a longer buffer, or a smaller granule"
            }
            Self::Region(error) => return error.fmt(f),
            Self::Numbers => {
                "this process has made 2^31 allocators over buffers and pages and has no number for another: \
                 reuse existing ones"
            }
            Self::Heap => {
                "the heap has no memory for the records: free memory, or make room for fewer records"
            }
            Self::Granule => "the granule must be a power of two of at most 1 GiB",
            Self::GrowthUnit => "the growth unit must be a multiple of the granule and not zero",
            Self::Table => "the chunk table must have from 2 to 2^32 - 1 records",
            Self::Index => "the index of a pool needs two slots for each record of its table",
            Self::PagedGrowth => {
                "a paged allocator takes `Growth::Fixed`: its memory comes through plans"
            }
            Self::Page => {
                "the page must be a multiple of the granule, and of fewer than 2^32 granules"
            }
            Self::Addresses => {
                "the addresses must be whole pages, of fewer granules than 2^32: a larger granule allows more"
            }
            Self::PageTables => {
                "a paged allocator needs a place for each page of addresses, and two records at least for \
                 handles and for mappings"
            }
            Self::PoolLimit => {
                "a pool whose limit rises must keep one idle buffer at least: set a limit above 0, or \
                 `max_buffers` to 0"
            }
            Self::NoSizes => {
                "the allocator below does not track sizes: put `Tracked::local` between"
            }
        };
        f.write_str(words)
    }
}

impl core::error::Error for ConfigError {}
