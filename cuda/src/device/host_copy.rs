//! [`HostCopy`]: the contents of a device's live memory, in host memory, while the device's memory sleeps.
//!
//! Ranges lie one after the other in pieces of pinned memory, which together are as long as the ranges. If
//! the host can pin no more (confidential computing, `ulimit -l`), the remaining pieces come from the process
//! heap, provided that the system has that much memory available. The driver copies to them more slowly.
//!
//! HOSTCOPY1 the pieces stay as long as a copy from or to them may be under way: each transfer waits for its
//! copies, even after a refusal; if the driver refuses the waits too, the pieces are leaked.
//! HOSTCOPY2 copies run on the calling thread's own default stream, which always exists. They are refused
//! while that stream is being captured.

use core::ptr::with_exposed_provenance_mut;
use std::alloc::{Layout, alloc, dealloc};

use larder_core::AddrRange;
use larder_cuda_abi::constants::HOST_ALLOC_PORTABLE;
use larder_cuda_abi::{Code, StreamHandle};

use super::SleepError;
use super::host_memory::available_bytes;
use crate::driver::Driver;
use crate::driver::refused_free::RefusedFree;
use crate::{CaptureStatus, Context, DriverError};

/// Bytes of each piece except the last.
const PIECE_BYTES: u64 = 64 << 20;

/// Number of retries of a refused wait, since memory that is still being written cannot be freed.
const WAITS: usize = 4;

const STREAM: StreamHandle = StreamHandle::PER_THREAD;

/// A piece of host memory.
struct Piece {
    address: u64,
    bytes: u64,
    memory: PieceMemory,
}

/// Source of a piece's memory.
enum PieceMemory {
    Pinned(Context),
    Pageable(Layout),
}

impl Piece {
    fn pinned(context: &Context, bytes: u64) -> Result<Self, DriverError> {
        let address =
            context.try_current(|driver| driver.alloc_host(bytes, HOST_ALLOC_PORTABLE))?;
        Ok(Self {
            address: address.expose_provenance() as u64,
            bytes,
            memory: PieceMemory::Pinned(context.clone()),
        })
    }

    /// Allocates from the process heap. Returns `None` if the heap has not enough memory.
    fn pageable(bytes: u64) -> Option<Self> {
        let layout = Layout::array::<u64>(usize::try_from(bytes).ok()?.div_ceil(8)).ok()?;
        // SAFETY: a piece has at least one byte, so the layout's size is not 0.
        let first = unsafe { alloc(layout) };
        (!first.is_null()).then(|| Self {
            address: first.expose_provenance() as u64,
            bytes,
            memory: PieceMemory::Pageable(layout),
        })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        match &self.memory {
            PieceMemory::Pinned(context) => context.give_back(RefusedFree::Host(self.address)),
            PieceMemory::Pageable(layout) => {
                let first = with_exposed_provenance_mut(self.address as usize);
                // SAFETY: `first` was allocated with this layout, and no copy is under way (HOSTCOPY1).
                unsafe { dealloc(first, *layout) };
            }
        }
    }
}

/// A range of device memory, and the offset of its bytes in the pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KeptRange {
    range: AddrRange,
    offset: u64,
}

/// One copy, within one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CopyPart {
    at: u64,
    offset: u64,
    bytes: u64,
}

/// Direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CopyDirection {
    ToHost,
    ToDevice,
}

/// The contents of ranges of device memory.
pub(super) struct HostCopy {
    context: Context,
    pieces: Vec<Piece>,
    kept: Vec<KeptRange>,
}

impl HostCopy {
    /// Copies the ranges, which are sorted by address. O(bytes), one driver call for each 64 MiB of memory,
    /// and one for each run of adjacent ranges.
    ///
    /// # Errors
    /// [`SleepError::Host`], [`SleepError::Capturing`], [`SleepError::Driver`]. There is then no copy.
    pub(super) fn of(context: &Context, ranges: &[AddrRange]) -> Result<Self, SleepError> {
        let mut copy = Self {
            context: context.clone(),
            pieces: Vec::new(),
            kept: Vec::with_capacity(ranges.len()),
        };
        let mut all_bytes = 0;
        for range in ranges {
            copy.kept.push(KeptRange {
                range: *range,
                offset: all_bytes,
            });
            all_bytes += range.bytes();
        }
        copy.pieces = pieces(context, all_bytes)?;
        match copy.transfer(&parts(&copy.kept), CopyDirection::ToHost) {
            Ok(()) => Ok(copy),
            Err(refused) => {
                if !refused.is_over {
                    // HOSTCOPY1: a copy may still write to the pieces, so they are leaked.
                    core::mem::take(&mut copy.pieces)
                        .into_iter()
                        .for_each(core::mem::forget);
                }
                Err(refused.error.into())
            }
        }
    }

    /// Returns the bytes of the copy that are not pinned.
    pub(super) fn pageable_bytes(&self) -> u64 {
        let pageable = |piece: &&Piece| matches!(piece.memory, PieceMemory::Pageable(_));
        let pieces = self.pieces.iter().filter(pageable);
        pieces.map(|piece| piece.bytes).sum()
    }

    /// Copies back the ranges that are in `live`, which is sorted by address, and returns the number of bytes.
    /// O(bytes), one driver call for each run of adjacent ranges.
    ///
    /// # Errors
    /// If the driver refuses; the copy is still complete.
    pub(super) fn restore(&self, live: &[AddrRange]) -> Result<u64, DriverError> {
        // A live range with another length is a new block that a concurrent request has allocated there.
        let is_live = |kept: &&KeptRange| {
            let found = live.binary_search_by_key(&kept.range.start(), |range| range.start());
            found.is_ok_and(|place| live[place] == kept.range)
        };
        let kept: Vec<_> = self.kept.iter().filter(is_live).copied().collect();
        self.transfer(&parts(&kept), CopyDirection::ToDevice)
            .map_err(|refused| refused.error)?;
        Ok(kept.iter().map(|kept| kept.range.bytes()).sum())
    }

    /// Makes the copies and waits for them.
    fn transfer(&self, parts: &[CopyPart], way: CopyDirection) -> Result<(), FailedCopy> {
        let outcome = self.context.with_current(|driver| {
            let queued = self.queue(driver, parts, way);
            let waited = wait(driver);
            let is_over = waited.is_ok() || (0..WAITS).any(|_| wait(driver).is_ok());
            queued
                .and(waited)
                .map_err(|error| FailedCopy { error, is_over })
        });
        let nothing_ran = |error| FailedCopy {
            error,
            is_over: true,
        };
        outcome.map_err(nothing_ran)?
    }

    fn queue(
        &self,
        driver: &Driver,
        parts: &[CopyPart],
        way: CopyDirection,
    ) -> Result<(), DriverError> {
        // SAFETY: HOSTCOPY2: the per-thread default stream always exists.
        if unsafe { driver.capture_status(STREAM) }? != CaptureStatus::None {
            return Err(DriverError::Call {
                function: "cuStreamIsCapturing",
                code: Code::STREAM_CAPTURE_UNSUPPORTED,
            });
        }
        for part in parts {
            // In bounds: `pieces` covers all offsets.
            let piece = &self.pieces[(part.offset / PIECE_BYTES) as usize];
            let host = (piece.address + part.offset % PIECE_BYTES) as usize;
            let host = with_exposed_provenance_mut::<u8>(host);
            match way {
                CopyDirection::ToHost => {
                    // SAFETY: HOSTCOPY2: the stream exists; the part lies in one piece, which stays
                    // (HOSTCOPY1), and in memory that the allocator has mapped.
                    unsafe { driver.copy_to_host(host, part.at, part.bytes, STREAM) }?;
                }
                CopyDirection::ToDevice => {
                    // SAFETY: HOSTCOPY2: the stream exists; the part lies in one piece, which stays
                    // (HOSTCOPY1), and in memory that the allocator has mapped.
                    unsafe { driver.copy_to_device(part.at, host, part.bytes, STREAM) }?;
                }
            }
        }
        Ok(())
    }
}

/// Allocates pieces for `all_bytes`: pinned memory until the host refuses, then memory of the process heap.
fn pieces(context: &Context, all_bytes: u64) -> Result<Vec<Piece>, SleepError> {
    let mut pieces = Vec::new();
    let (mut held, mut unpinned) = (0, None);
    while held < all_bytes {
        let bytes = PIECE_BYTES.min(all_bytes - held);
        let none = |driver| SleepError::Host {
            bytes: all_bytes,
            driver,
        };
        // Pinning is not tried again after a refusal.
        let piece = match unpinned {
            Some(driver) => Piece::pageable(bytes).ok_or(none(driver))?,
            None => match Piece::pinned(context, bytes) {
                Ok(piece) => piece,
                Err(driver) if !pins_no_more(driver) => return Err(driver.into()),
                Err(driver) => {
                    if available_bytes().is_some_and(|available| available < all_bytes - held) {
                        return Err(none(driver));
                    }
                    unpinned = Some(driver);
                    continue;
                }
            },
        };
        pieces.push(piece);
        held += bytes;
    }
    Ok(pieces)
}

/// Returns whether a refusal means that the host can pin no more memory, or none at all.
fn pins_no_more(error: DriverError) -> bool {
    let never = [Code::NOT_SUPPORTED, Code::NOT_PERMITTED];
    error.is_out_of_memory() || error.code().is_some_and(|code| never.contains(&code))
}

/// A failed transfer, whose copies may still be under way.
struct FailedCopy {
    error: DriverError,
    is_over: bool,
}

fn wait(driver: &Driver) -> Result<(), DriverError> {
    // SAFETY: HOSTCOPY2: the per-thread default stream always exists.
    unsafe { driver.synchronize_stream(STREAM) }
}

/// Returns the copies for ranges: one for each run of adjacent ranges, split at the ends of pieces.
fn parts(kept: &[KeptRange]) -> Vec<CopyPart> {
    let mut runs: Vec<CopyPart> = Vec::new();
    for KeptRange { range, offset } in kept {
        let (at, bytes) = (range.start().get(), range.bytes());
        match runs.last_mut() {
            Some(run) if run.at + run.bytes == at && run.offset + run.bytes == *offset => {
                run.bytes += bytes;
            }
            _ => runs.push(CopyPart {
                at,
                offset: *offset,
                bytes,
            }),
        }
    }
    let mut parts = Vec::with_capacity(runs.len());
    for mut run in runs {
        while run.bytes > 0 {
            let bytes = run.bytes.min(PIECE_BYTES - run.offset % PIECE_BYTES);
            parts.push(CopyPart { bytes, ..run });
            run.at += bytes;
            run.offset += bytes;
            run.bytes -= bytes;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use larder_core::Addr;

    use super::*;

    fn kept(at: u64, bytes: u64, offset: u64) -> KeptRange {
        let range = AddrRange::new(Addr::new(at), bytes).expect("a range");
        KeptRange { range, offset }
    }

    fn part(at: u64, offset: u64, bytes: u64) -> CopyPart {
        CopyPart { at, offset, bytes }
    }

    #[test]
    fn neighbours_are_one_copy_which_ends_where_a_piece_does() {
        let ranges = [
            kept(1000, 500, 0),
            kept(1500, 500, 500),
            // A gap on the device, then one in the copy.
            kept(3000, 500, 1000),
            kept(3500, 500, 2000),
            kept(1 << 40, 2 * PIECE_BYTES, PIECE_BYTES - 100),
        ];
        let expected = [
            part(1000, 0, 1000),
            part(3000, 1000, 500),
            part(3500, 2000, 500),
            part(1 << 40, PIECE_BYTES - 100, 100),
            part((1 << 40) + 100, PIECE_BYTES, PIECE_BYTES),
            part(
                (1 << 40) + 100 + PIECE_BYTES,
                2 * PIECE_BYTES,
                PIECE_BYTES - 100,
            ),
        ];
        assert_eq!(parts(&ranges), expected);
    }
}
