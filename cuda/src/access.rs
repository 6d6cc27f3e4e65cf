//! [`DeviceAccess`]: access to device memory through one stream, for the core's decorators.
//!
//! A read is a copy for which the host waits. A fill needs no host memory. If the pattern repeats after 1, 2 or 4
//! bytes, and the range starts at a multiple of that, a fill is a memset and a few calls for the last bytes.
//! Otherwise the first bytes are written, then copied within the device, doubling the length each time: at most 61
//! copies.
//!
//! # Invariants
//! * DEVACC1 the bytes named by a call are memory that its caller holds, as the constructors demand.
//! * DEVACC2 host memory that the device may still read or write is not freed: a buffer whose copy was queued
//!   and could not be waited for is leaked.
//!
//! # Order
//! The core promises that the effect of a call is visible everywhere when it returns. An access from
//! [`DeviceAccess::new`] keeps this promise by waiting for its stream in each call. The access of a
//! [`StreamMemory`](crate::StreamMemory) leaves fills queued, which suffices there: its memory is allocated, used
//! and freed in the order of one stream, and another stream that gets it later waits for the work queued at the
//! free, including fills. Decision 59.

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{AccessError, Addr, AddrRange, MemoryAccess, Pattern, StreamId, StreamPoint};
use larder_cuda_abi::{Code, StreamHandle};

use crate::driver::{Driver, locked};
use crate::{CaptureStatus, Context, DriverError};

/// Maximum bytes copied before the host waits; also the size of its copy buffer.
const PIECE_BYTES: usize = 64 << 10;

/// When a fill's writes are visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fills {
    /// When the call returns.
    AreDone,
    /// To later work of the stream.
    AreQueued,
}

/// Reads, writes and fills device memory on one stream. Clones share the access.
///
/// The stream has the number 0; any other number is refused ([`AccessError::OtherStream`]). While the stream is
/// being captured, every call is refused with the driver's code 900, since a graph would repeat a fill, and a read
/// would have nothing to wait for. The check costs each call two more driver calls.
#[derive(Clone)]
pub struct DeviceAccess(Arc<AccessInner>);

struct AccessInner {
    context: Context,
    stream: Arc<CudaStream>,
    /// Range that may be accessed; all memory if `None`.
    reach: Option<AddrRange>,
    fills: Fills,
    error: Mutex<Option<DriverError>>,
}

impl DeviceAccess {
    /// Creates access to all memory that the driver knows, including pinned host memory. Every call waits for the
    /// stream.
    ///
    /// # Safety
    /// While the value or a clone of it is used, from any thread:
    /// * the bytes named by a call are memory that the driver knows, mapped for the stream's device;
    /// * at the same time, only work of the stream reads bytes that a call writes, or writes bytes that a call
    ///   names, and no reference to them is alive.
    ///
    /// Decorators name only bytes of blocks they hold: new blocks, freed blocks, guards.
    pub unsafe fn new(context: &Context, stream: &Arc<CudaStream>) -> Self {
        Self::over(context, stream, None, Fills::AreDone)
    }

    /// Creates access to `reach`, or to all memory if it is `None`. The memory is allocated and freed in the order
    /// of the stream. The caller upholds the safety conditions of [`new`](Self::new).
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

    /// Returns the driver's newest refusal; an [`AccessError`] has only its code.
    pub fn last_error(&self) -> Option<DriverError> {
        *locked(&self.0.error)
    }

    /// Runs `act` on the stream if the bytes may be accessed and the stream is not being captured.
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
            // Reached for zero bytes at any address, and for more bytes than the address space has.
            let is_nothing = bytes == 0;
            return is_nothing.then_some(()).ok_or(AccessError::OutOfRange);
        };
        let is_outside =
            |reach: AddrRange| range.start() < reach.start() || range.end() > reach.end();
        if inner.reach.is_some_and(is_outside) {
            return Err(AccessError::OutOfRange);
        }
        let outcome = inner.context.try_on(&inner.stream, |driver, stream| {
            // SAFETY: `self` holds the stream during the call.
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
    /// O(bytes): one copy and one wait for the stream per 64 KiB.
    fn read(&self, stream_id: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        self.run(stream_id, addr, into.len() as u64, |driver, stream| {
            let mut from = addr.get();
            for piece in into.chunks_mut(PIECE_BYTES) {
                read_piece(driver, stream, from, piece)?;
                // Within the range, as `run` checked.
                from += piece.len() as u64;
            }
            Ok(())
        })
    }

    /// Writes device memory. O(bytes): one copy and one wait for the stream per 64 KiB.
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

    /// Takes at most four memsets if the pattern repeats after 1, 2 or 4 bytes and the start is a multiple of
    /// that. Otherwise takes at most eight, and a copy for each doubling of the length.
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
            // SAFETY: `run` holds the stream that it passes.
            unsafe { driver.synchronize_stream(stream) }
        })
    }

    /// Does nothing, since the stream's own order already covers its points.
    fn wait(&self, stream_id: StreamId, point: StreamPoint) -> Result<(), AccessError> {
        if stream_id == StreamId::MAIN && point.stream == StreamId::MAIN {
            Ok(())
        } else {
            Err(AccessError::OtherStream)
        }
    }
}

/// Reads at most `PIECE_BYTES`, through a buffer (DEVACC2).
fn read_piece(
    driver: &Driver,
    stream: StreamHandle,
    from: u64,
    into: &mut [u8],
) -> Result<(), DriverError> {
    let mut buffer = vec![0; into.len()];
    let to: *mut u8 = buffer.as_mut_ptr();
    // SAFETY: DEVACC1: the caller holds the bytes at `from`; the buffer is as long, and is freed only after
    // the wait below, or never.
    unsafe { driver.copy_to_host(to, from, into.len() as u64, stream) }?;
    let buffer = ManuallyDrop::new(buffer);
    // SAFETY: the caller holds the stream.
    unsafe { driver.synchronize_stream(stream) }?;
    let buffer = ManuallyDrop::into_inner(buffer);
    into.copy_from_slice(&buffer);
    Ok(())
}

/// Writes at most `PIECE_BYTES`, through a buffer (DEVACC2).
fn write_piece(
    driver: &Driver,
    stream: StreamHandle,
    to: u64,
    from: &[u8],
) -> Result<(), DriverError> {
    let buffer = from.to_vec();
    // SAFETY: DEVACC1: the caller holds the bytes at `to`; the buffer is as long, and is freed only after the
    // wait below, or never.
    unsafe { driver.copy_to_device(to, buffer.as_ptr(), from.len() as u64, stream) }?;
    let buffer = ManuallyDrop::new(buffer);
    // SAFETY: the caller holds the stream.
    unsafe { driver.synchronize_stream(stream) }?;
    drop(ManuallyDrop::into_inner(buffer));
    Ok(())
}

/// Returns the number of bytes after which a pattern repeats: 1, 2, 4 or 8.
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

/// Queues the calls that write a pattern over a non-empty range.
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
        // The value is the low bytes of the word.
        // SAFETY: DEVACC1: the caller holds the range.
        1 => unsafe { driver.fill_bytes(to, word as u8, times, stream) },
        // SAFETY: DEVACC1: the caller holds the range; the start is a multiple of 2.
        2 => unsafe { driver.fill_pairs(to, word as u16, times, stream) },
        // SAFETY: DEVACC1: the caller holds the range; the start is a multiple of 4.
        _ => unsafe { driver.fill_words(to, word as u32, times, stream) },
    };
    whole?;
    fill_singly(driver, stream, range, times * period, bytes, pattern)
}

/// Writes the bytes between two offsets, with a call for each run of equal bytes.
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
        // SAFETY: DEVACC1: the caller holds the range, and the run lies within it.
        unsafe { driver.fill_bytes(start, value, run, stream) }?;
        from += run;
    }
    Ok(())
}

/// Writes the first eight bytes, then repeatedly appends a copy of the written bytes, in the order of the
/// stream.
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
        // The written length is a multiple of 8, so the pattern continues.
        let more = done.min(bytes - done);
        // SAFETY: DEVACC1: the caller holds the range; the copy lies within it, and is not longer than the
        // bytes before it.
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
