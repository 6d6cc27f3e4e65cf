//! Memory as bytes behind addresses: what decorators read and write, be it a device's or the host's.
//!
//! The core calculates with addresses and touches nothing. A guard or a fill must touch, so it is
//! handed a [`MemoryAccess`], which knows what lies behind an address and how to get at it in the
//! order of a stream. [`SliceAccess`] is one over a caller's buffer;
//! [`HostAccess`](crate::HostAccess) one over memory of this process; a device's is its front end's.
//!
//! # The promise of every implementation
//! * ACCESS1 a call comes behind all work queued on its stream before it, and what it did is there for any
//!   stream and for the host when it returns. Decision 59 says why nothing weaker serves, and where an
//!   access to memory of one queue may leave what it writes in that queue.
//! * ACCESS2 an error may leave the bytes named partly written, and no others.

use crate::error::AccessError;
use crate::stream::{StreamId, StreamPoint};
use crate::sync::{Locked, Spin, Wait};
use crate::units::{Addr, AddrRange};

/// Reads, writes and fills memory by address, in the order of streams (ACCESS1, ACCESS2).
pub trait MemoryAccess {
    /// Copies the bytes from `addr` on, as many as `into` has.
    ///
    /// # Errors
    /// [`AccessError`]; `into` may be partly overwritten.
    fn read(&self, stream: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError>;

    /// Writes these bytes from `addr` on.
    ///
    /// # Errors
    /// [`AccessError`]; some of the bytes may have been written.
    fn write(&self, stream: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError>;

    /// Writes the pattern again and again over the range, beginning anew at its start; the last one
    /// is cut where the range ends.
    ///
    /// # Errors
    /// [`AccessError`]; some of the bytes may have been written.
    fn fill(&self, stream: StreamId, range: AddrRange, pattern: Pattern)
    -> Result<(), AccessError>;

    /// What is done on `stream` from now on comes behind `point`. The wait of a grant: a decorator
    /// writes into a new block before its caller can have waited.
    ///
    /// # Errors
    /// [`AccessError`]; then nothing is ordered.
    fn wait(&self, stream: StreamId, point: StreamPoint) -> Result<(), AccessError>;
}

/// A shared access is one too.
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

/// A value of 1, 2, 4 or 8 bytes that memory is filled with, least significant byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// The value, repeated until it fills the word.
    word: u64,
    /// Bytes of the value.
    width: u8,
}

impl Pattern {
    /// The quiet not-a-number of `f32`, 0x7FC00000: what is computed from it is not a number either.
    pub const F32_NAN: Self = Self::of_u32(0x7fc0_0000);

    /// The quiet not-a-number of `f64`, 0x7FF8000000000000.
    pub const F64_NAN: Self = Self::of_u64(0x7ff8_0000_0000_0000);

    /// The smallest `i32`, which no program means and which stands out in a sum.
    pub const I32_MIN: Self = Self::of_u32(0x8000_0000);

    /// This byte throughout.
    pub const fn of_u8(value: u8) -> Self {
        Self::new(value as u64 * 0x0101_0101_0101_0101, 1)
    }

    /// These two bytes in turn.
    pub const fn of_u16(value: u16) -> Self {
        Self::new(value as u64 * 0x0001_0001_0001_0001, 2)
    }

    /// These four bytes in turn.
    pub const fn of_u32(value: u32) -> Self {
        Self::new(value as u64 * 0x0000_0001_0000_0001, 4)
    }

    /// These eight bytes in turn.
    pub const fn of_u64(value: u64) -> Self {
        Self::new(value, 8)
    }

    const fn new(word: u64, width: u8) -> Self {
        Self { word, width }
    }

    /// Bytes of the value: 1, 2, 4 or 8.
    pub const fn width(self) -> u8 {
        self.width
    }

    /// The value, in the lowest [`width`](Self::width) bytes; above them it repeats.
    pub const fn word(self) -> u64 {
        self.word
    }

    /// The byte that stands so many bytes behind the start of what is filled.
    #[inline]
    pub const fn at(self, offset: u64) -> u8 {
        // Eight bytes are whole values of any width.
        (self.word >> (8 * (offset & 7))) as u8
    }
}

/// Access to a caller's buffer, whose first byte stands for an address. One thread at a time gets in.
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
    /// Access to `memory`, whose first byte is at `start`; threads spin for each other.
    pub fn new(start: Addr, memory: &'m mut [u8]) -> Self {
        Self::with_wait(start, memory)
    }
}

impl<'m, W: Wait> SliceAccess<'m, W> {
    /// Access to `memory`, whose first byte is at `start`; threads wait for each other as `W` says.
    pub fn with_wait(start: Addr, memory: &'m mut [u8]) -> Self {
        Self {
            start,
            memory: Locked::new(memory),
        }
    }

    /// Runs `f` with these bytes.
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

    /// Nothing to wait for: no work is queued on a buffer.
    fn wait(&self, _: StreamId, _: StreamPoint) -> Result<(), AccessError> {
        Ok(())
    }
}
