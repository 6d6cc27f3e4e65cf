//! Access to the bytes behind addresses, in device or host memory. Decorators read and write through it.
//!
//! The core calculates with addresses and touches no memory. A guard or a fill must touch memory, so it takes a
//! [`MemoryAccess`], which reads and writes the bytes behind an address in the order of a stream. [`SliceAccess`]
//! serves a caller's buffer, and [`HostAccess`](crate::HostAccess) serves the memory of this process; access to a
//! device comes from its front end.
//!
//! # The promise of every implementation
//! * ACCESS1 a call runs after all work queued on its stream before it, and its effect is visible to every stream and
//!   to the host when it returns. Decision 59 says why nothing weaker serves, and where access to the memory of one
//!   queue may leave its writes in that queue.
//! * ACCESS2 an error may leave the named bytes partly written, and no others.

use crate::error::AccessError;
use crate::stream::{StreamId, StreamPoint};
use crate::sync::{Locked, Spin, Wait};
use crate::units::{Addr, AddrRange};

/// Reads, writes and fills memory by address, in the order of streams (ACCESS1, ACCESS2).
pub trait MemoryAccess {
    /// Reads `into.len()` bytes from `addr`.
    ///
    /// # Errors
    /// [`AccessError`]; `into` may be partly overwritten.
    fn read(&self, stream: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError>;

    /// Writes the bytes of `from` at `addr`.
    ///
    /// # Errors
    /// [`AccessError`]; some of the bytes may have been written.
    fn write(&self, stream: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError>;

    /// Repeats `pattern` over `range`, from its start; the last repetition is cut where the range ends.
    ///
    /// # Errors
    /// [`AccessError`]; some of the bytes may have been written.
    fn fill(&self, stream: StreamId, range: AddrRange, pattern: Pattern)
    -> Result<(), AccessError>;

    /// Makes later work on `stream` wait for `point`. A decorator needs this for a grant with a wait: it writes into
    /// the new block before the caller can have waited.
    ///
    /// # Errors
    /// [`AccessError`]; nothing is ordered then.
    fn wait(&self, stream: StreamId, point: StreamPoint) -> Result<(), AccessError>;
}

/// A shared reference to an access is an access.
impl<M: MemoryAccess + ?Sized> MemoryAccess for &M {
    fn read(&self, stream: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        (**self).read(stream, addr, into)
    }

    fn write(&self, stream: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError> {
        (**self).write(stream, addr, from)
    }

    fn fill(
        &self,
        stream: StreamId,
        range: AddrRange,
        pattern: Pattern,
    ) -> Result<(), AccessError> {
        (**self).fill(stream, range, pattern)
    }

    fn wait(&self, stream: StreamId, point: StreamPoint) -> Result<(), AccessError> {
        (**self).wait(stream, point)
    }
}

/// A value of 1, 2, 4 or 8 bytes to fill memory with, least significant byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// The value, repeated until it fills the word.
    word: u64,
    /// Bytes of the value.
    width: u8,
}

impl Pattern {
    /// The quiet NaN of `f32`, 0x7FC00000: every result computed from it is NaN, too.
    pub const F32_NAN: Self = Self::of_u32(0x7fc0_0000);

    /// The quiet NaN of `f64`, 0x7FF8000000000000.
    pub const F64_NAN: Self = Self::of_u64(0x7ff8_0000_0000_0000);

    /// The smallest `i32`, which no program uses on purpose and which stands out in a sum.
    pub const I32_MIN: Self = Self::of_u32(0x8000_0000);

    /// Creates a pattern of this byte.
    pub const fn of_u8(value: u8) -> Self {
        Self::new(value as u64 * 0x0101_0101_0101_0101, 1)
    }

    /// Creates a pattern of these two bytes.
    pub const fn of_u16(value: u16) -> Self {
        Self::new(value as u64 * 0x0001_0001_0001_0001, 2)
    }

    /// Creates a pattern of these four bytes.
    pub const fn of_u32(value: u32) -> Self {
        Self::new(value as u64 * 0x0000_0001_0000_0001, 4)
    }

    /// Creates a pattern of these eight bytes.
    pub const fn of_u64(value: u64) -> Self {
        Self::new(value, 8)
    }

    const fn new(word: u64, width: u8) -> Self {
        Self { word, width }
    }

    /// Returns the length of the value in bytes: 1, 2, 4 or 8.
    pub const fn width(self) -> u8 {
        self.width
    }

    /// Returns the value, in the lowest [`width`](Self::width) bytes; above them it repeats.
    pub const fn word(self) -> u64 {
        self.word
    }

    /// Returns the byte at `offset` from the start of the filled memory.
    #[inline]
    pub const fn at(self, offset: u64) -> u8 {
        // Eight bytes hold a whole number of values of any width.
        (self.word >> (8 * (offset & 7))) as u8
    }
}

/// Access to a caller's buffer, whose first byte has a given address. One thread at a time uses it.
///
/// ```
/// use larder_core::{Addr, StreamId, MemoryAccess, SliceAccess};
/// let mut buffer = [0u8; 64];
/// let access = SliceAccess::new(Addr::new(0x1000), &mut buffer);
/// access.write(StreamId::MAIN, Addr::new(0x1002), &[7, 8])?;
/// let mut read = [0; 4];
/// access.read(StreamId::MAIN, Addr::new(0x1001), &mut read)?;
/// assert_eq!(read, [0, 7, 8, 0]);
/// # Ok::<(), larder_core::AccessError>(())
/// ```
pub struct SliceAccess<'m, W: Wait = Spin> {
    start: Addr,
    memory: Locked<&'m mut [u8], W>,
}

impl<'m> SliceAccess<'m> {
    /// Creates access to `memory`, whose first byte is at `start`; waiting threads spin.
    pub fn new(start: Addr, memory: &'m mut [u8]) -> Self {
        Self::with_wait(start, memory)
    }
}

impl<'m, W: Wait> SliceAccess<'m, W> {
    /// Creates access to `memory`, whose first byte is at `start`; `W` is how threads wait for each other.
    pub fn with_wait(start: Addr, memory: &'m mut [u8]) -> Self {
        Self {
            start,
            memory: Locked::new(memory),
        }
    }

    /// Runs `f` on the `bytes` bytes from `addr`.
    fn with<R>(
        &self,
        addr: Addr,
        bytes: u64,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, AccessError> {
        let offset = addr.get().checked_sub(self.start.get());
        let range = offset.and_then(|offset| {
            let end = offset.checked_add(bytes)?;
            Some(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
        });
        let range = range.ok_or(AccessError::OutOfRange)?;
        self.memory.with(|memory| {
            let part = memory.get_mut(range).ok_or(AccessError::OutOfRange)?;
            Ok(f(part))
        })
    }
}

impl<W: Wait> MemoryAccess for SliceAccess<'_, W> {
    fn read(&self, _: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        self.with(addr, into.len() as u64, |part| into.copy_from_slice(part))
    }

    fn write(&self, _: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError> {
        self.with(addr, from.len() as u64, |part| part.copy_from_slice(from))
    }

    fn fill(&self, _: StreamId, range: AddrRange, pattern: Pattern) -> Result<(), AccessError> {
        self.with(range.start(), range.bytes(), |part| {
            for (byte, offset) in part.iter_mut().zip(0..) {
                *byte = pattern.at(offset);
            }
        })
    }

    /// Does nothing: no work is queued on a buffer.
    fn wait(&self, _: StreamId, _: StreamPoint) -> Result<(), AccessError> {
        Ok(())
    }
}
