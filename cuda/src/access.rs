//! [`DeviceAccess`]: memory of a device for the core's decorators, through one stream.
//!
//! A read is a copy and a wait of the host for the stream. A fill is a few calls whatever its length, and
//! no memory of the host: a memset where the pattern is one that the driver knows, else its first bytes,
//! copied within the device to twice as many until all is written.
//!
//! # Invariants
//! * DEVACC1 the bytes that a call names are memory that its caller holds, as the constructors demand.
//! * DEVACC2 memory of the host that the device may still read or write is not freed: a buffer whose copy was
//!   queued and could not be waited for is lost.
//!
//! # Order
//! The core's promise is that what a call did is there for everybody when it returns. In
//! [`DeviceAccess::new`] each call waits for its stream, and keeps it. That of a [`StreamMemory`] leaves
//! fills in the queue, which is as good there: its memory is given, used and taken back in the order of
//! the same stream, and another stream that gets it waits for what was queued at the free, fills
//! included. Decision 59.

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{AccessError, Addr, AddrRange, MemoryAccess, Pattern, StreamId, StreamPoint};
use larder_cuda_abi::{Code, StreamHandle};

use crate::driver::{Driver, locked};
use crate::{CaptureStatus, Context, DriverError};

/// Most bytes that are copied before the host waits: what a copy needs of the host's memory.
const PIECE_BYTES: usize = 64 << 10;

/// When what a fill wrote is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fills {
    /// When the call returns.
    AreDone,
    /// For what comes later on the stream.
    AreQueued,
}

/// Reads, writes and fills memory of a device on one stream. A clone is the same access.
///
/// Stream 0 is the stream; another one is refused ([`AccessError::OtherStream`]). While the stream
/// captures everything is refused, with the driver's code 900: a graph would repeat a fill, and a read
/// would have nothing to wait for. Each call asks for that: two driver calls beside its own.
#[derive(Clone)]
pub struct DeviceAccess(Arc<AccessInner>);

struct AccessInner {
    context: Context,
    stream: Arc<CudaStream>,
    /// What may be touched; anything if there is none.
    reach: Option<AddrRange>,
    fills: Fills,
    error: Mutex<Option<DriverError>>,
}

impl DeviceAccess {
    /// Access to all memory that the driver knows, pinned memory of the host too. Every call waits for the
    /// stream.
    ///
    /// # Safety
    /// While the value or a clone of it is used, from any thread:
    /// * the bytes that a call names are memory that the driver knows, mapped for the stream's device;
    /// * nothing but work of the stream reads what a call writes, or writes what it names, at the same time,
    ///   and no reference to them is alive.
    ///
    /// Decorators name bytes of blocks they hold only: new ones, freed ones, guards.
    pub unsafe fn new(context: &Context, stream: &Arc<CudaStream>) -> Self {
        Self::over(context, stream, None, Fills::AreDone)
    }

    /// Access to a range, or to anything, whose memory is given and taken back in the order of the stream. Its
    /// user keeps the promise of [`new`](Self::new).
    pub(crate) fn in_order(
        context: &Context,
        stream: &Arc<CudaStream>,
        reach: Option<AddrRange>,
    ) -> Self {
        Self::over(context, stream, reach, Fills::AreQueued)
    }

    fn over(
        context: &Context,
        stream: &Arc<CudaStream>,
        reach: Option<AddrRange>,
        fills: Fills,
    ) -> Self {
        Self(Arc::new(AccessInner {
            context: context.clone(),
            stream: stream.clone(),
            reach,
            fills,
            error: Mutex::default(),
        }))
    }

    /// The newest refusal of the driver, of which an [`AccessError`] has only the code.
    pub fn last_error(&self) -> Option<DriverError> {
        *locked(&self.0.error)
    }

    /// Runs calls on the stream, if the bytes may be touched and nothing is captured.
    fn run(
        &self,
        stream_id: StreamId,
        addr: Addr,
        bytes: u64,
        act: impl FnOnce(&'static Driver, StreamHandle) -> Result<(), DriverError>,
    ) -> Result<(), AccessError> {
        let inner = &*self.0;
        if stream_id != StreamId::MAIN {
            return Err(AccessError::OtherStream);
        }
        let Some(range) = AddrRange::new(addr, bytes) else {
            // Nothing, anywhere; or more than there are addresses.
            let is_nothing = bytes == 0;
            return is_nothing.then_some(()).ok_or(AccessError::OutOfRange);
        };
        let is_outside =
            |reach: AddrRange| range.start() < reach.start() || range.end() > reach.end();
        if inner.reach.is_some_and(is_outside) {
            return Err(AccessError::OutOfRange);
        }
        let outcome = inner.context.try_on(&inner.stream, |driver, stream| {
            // SAFETY: the stream is held by `self` during the call.
            if unsafe { driver.capture_status(stream) }? != CaptureStatus::None {
                return Err(captures());
            }
            act(driver, stream)
        });
        outcome.map_err(|error| {
            *locked(&inner.error) = Some(error);
            let code = error.code().map_or(Code::UNKNOWN, |code| code);
            AccessError::Refused { code: code.0 }
        })
    }
}

const fn captures() -> DriverError {
    DriverError::Call {
        function: "cuStreamIsCapturing",
        code: Code::STREAM_CAPTURE_UNSUPPORTED,
    }
}

impl MemoryAccess for DeviceAccess {
    /// O(bytes), a copy and a wait of the host for the stream each 64 KiB.
    fn read(&self, stream_id: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        self.run(stream_id, addr, into.len() as u64, |driver, stream| {
            let mut from = addr.get();
            for piece in into.chunks_mut(PIECE_BYTES) {
                read_piece(driver, stream, from, piece)?;
                // Inside the range, as `run` saw.
                from += piece.len() as u64;
            }
            Ok(())
        })
    }

    /// Writes memory of the device. O(bytes), a copy and a wait of the host for the stream each 64 KiB.
    fn write(&self, stream_id: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError> {
        self.run(stream_id, addr, from.len() as u64, |driver, stream| {
            let mut to = addr.get();
            for piece in from.chunks(PIECE_BYTES) {
                write_piece(driver, stream, to, piece)?;
                to += piece.len() as u64;
            }
            Ok(())
        })
    }

    /// At most four memsets where the start is a multiple of what the pattern repeats after, and that is
    /// 1, 2 or 4 bytes; else at most eight, and a copy each time that the length doubles.
    fn fill(
        &self,
        stream_id: StreamId,
        range: AddrRange,
        pattern: Pattern,
    ) -> Result<(), AccessError> {
        let wait = self.0.fills == Fills::AreDone;
        self.run(stream_id, range.start(), range.bytes(), |driver, stream| {
            fill(driver, stream, range, pattern)?;
            if !wait {
                return Ok(());
            }
            // SAFETY: `run` passes a stream that is held.
            unsafe { driver.synchronize_stream(stream) }
        })
    }

    /// Nothing to wait for: a point of the stream lies in its order.
    fn wait(&self, stream_id: StreamId, point: StreamPoint) -> Result<(), AccessError> {
        if stream_id == StreamId::MAIN && point.stream == StreamId::MAIN {
            Ok(())
        } else {
            Err(AccessError::OtherStream)
        }
    }
}

/// Reads so much that a buffer beside it is cheap (DEVACC2).
fn read_piece(
    driver: &Driver,
    stream: StreamHandle,
    from: u64,
    into: &mut [u8],
) -> Result<(), DriverError> {
    let mut buffer = vec![0; into.len()];
    let to: *mut u8 = buffer.as_mut_ptr();
    // SAFETY: DEVACC1; the buffer is as long, and is freed only below, or not at all.
    unsafe { driver.copy_to_host(to, from, into.len() as u64, stream) }?;
    let buffer = ManuallyDrop::new(buffer);
    // SAFETY: the caller holds the stream.
    unsafe { driver.synchronize_stream(stream) }?;
    let buffer = ManuallyDrop::into_inner(buffer);
    into.copy_from_slice(&buffer);
    Ok(())
}

/// Writes so much that a buffer beside it is cheap (DEVACC2).
fn write_piece(
    driver: &Driver,
    stream: StreamHandle,
    to: u64,
    from: &[u8],
) -> Result<(), DriverError> {
    let buffer = from.to_vec();
    // SAFETY: DEVACC1; the buffer is as long, and is freed only below, or not at all.
    unsafe { driver.copy_to_device(to, buffer.as_ptr(), from.len() as u64, stream) }?;
    let buffer = ManuallyDrop::new(buffer);
    // SAFETY: the caller holds the stream.
    unsafe { driver.synchronize_stream(stream) }?;
    drop(ManuallyDrop::into_inner(buffer));
    Ok(())
}

/// After how many bytes a pattern repeats: 1, 2, 4 or 8.
const fn period(pattern: Pattern) -> u64 {
    let word = pattern.word();
    if word.rotate_left(8) == word {
        1
    } else if word.rotate_left(16) == word {
        2
    } else if word.rotate_left(32) == word {
        4
    } else {
        8
    }
}

/// Queues the calls that write a pattern over a range. Not for a range of no bytes.
fn fill(
    driver: &Driver,
    stream: StreamHandle,
    range: AddrRange,
    pattern: Pattern,
) -> Result<(), DriverError> {
    let (to, bytes, period) = (range.start().get(), range.bytes(), period(pattern));
    let times = bytes / period;
    let word = pattern.word();
    if !to.is_multiple_of(period) || period == 8 || times == 0 {
        return fill_by_doubling(driver, stream, range, pattern);
    }
    let whole = match period {
        // The lowest bytes of the word are the value.
        // SAFETY: DEVACC1: the caller holds the range.
        1 => unsafe { driver.fill_bytes(to, word as u8, times, stream) },
        // SAFETY: DEVACC1; the start is a multiple of 2.
        2 => unsafe { driver.fill_pairs(to, word as u16, times, stream) },
        // SAFETY: DEVACC1; the start is a multiple of 4.
        _ => unsafe { driver.fill_words(to, word as u32, times, stream) },
    };
    whole?;
    fill_singly(driver, stream, range, times * period, bytes, pattern)
}

/// Writes the bytes from one offset to another with a call for each run of equal ones.
fn fill_singly(
    driver: &Driver,
    stream: StreamHandle,
    range: AddrRange,
    mut from: u64,
    to: u64,
    pattern: Pattern,
) -> Result<(), DriverError> {
    while from < to {
        let value = pattern.at(from);
        let run = (from..to).take_while(|offset| pattern.at(*offset) == value);
        let run = run.count() as u64;
        let start = range.start().get() + from;
        // SAFETY: DEVACC1; the run lies inside the range.
        unsafe { driver.fill_bytes(start, value, run, stream) }?;
        from += run;
    }
    Ok(())
}

/// Writes the first eight bytes, then copies what is written behind itself, in the order of the stream.
fn fill_by_doubling(
    driver: &Driver,
    stream: StreamHandle,
    range: AddrRange,
    pattern: Pattern,
) -> Result<(), DriverError> {
    let (start, bytes) = (range.start().get(), range.bytes());
    let mut done = bytes.min(8);
    fill_singly(driver, stream, range, 0, done, pattern)?;
    while done < bytes {
        // A multiple of 8 is written, so the pattern goes on.
        let more = done.min(bytes - done);
        // SAFETY: DEVACC1; inside the range, and not longer than what lies before.
        unsafe { driver.copy_within(start + done, start, more, stream) }?;
        done += more;
    }
    Ok(())
}

impl fmt::Debug for DeviceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.debug_struct("DeviceAccess")
            .field("context", &inner.context)
            .field("stream", &inner.stream.cu_stream())
            .field("reach", &inner.reach)
            .field("fills", &inner.fills)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_repeats_after_as_few_bytes_as_it_can() {
        for (pattern, expected) in [
            (Pattern::of_u8(7), 1),
            (Pattern::of_u16(0x0707), 1),
            (Pattern::of_u16(0x0708), 2),
            (Pattern::of_u32(0x0708_0708), 2),
            (Pattern::F32_NAN, 4),
            (Pattern::of_u64(0x0102_0304_0102_0304), 4),
            (Pattern::F64_NAN, 8),
        ] {
            assert_eq!(period(pattern), expected, "{pattern:?}");
        }
    }
}
