//! Decompressed content, which is refused once it is much larger than what it was unpacked from.
//!
//! Some formats compress by a factor of 1000 and more, so a short file could fill the memory of the
//! program that reads it.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use thiserror::Error;

/// Maximum bytes of content for each byte of a compressed file. Traces and snapshots compress by a
/// factor of 30 at most.
pub(super) const MAX_RATIO: u64 = 64;

/// Number of bytes of content that are read from any file, however short.
const FREE_BYTES: u64 = 16 << 20;

/// The content of a compressed file. Refuses content of more than 16 MiB that is more than 64 times
/// as large as the part of the file from which it was unpacked.
pub struct Unpacked<D> {
    decoder: D,
    packed_bytes: Rc<Cell<u64>>,
    left_bytes: u64,
}

/// A compressed file, which counts the bytes read from it.
pub struct Packed<R> {
    file: R,
    bytes: Rc<Cell<u64>>,
}

/// The error of content that is too large.
#[derive(Debug, Error)]
#[error(
    "the content is more than {MAX_RATIO} times as large as the compressed file, which no recording is; check where the file is from, and decompress it first if it is to be read"
)]
pub(super) struct TooLarge;

impl<D: Read> Unpacked<D> {
    /// Opens a compressed file with a decoder.
    ///
    /// # Errors
    /// Returns the decoder's error.
    pub fn open<R: Read>(
        file: R,
        decoder: impl FnOnce(Packed<R>) -> io::Result<D>,
    ) -> io::Result<Self> {
        let packed_bytes = Rc::new(Cell::new(0));
        let bytes = Rc::clone(&packed_bytes);
        Ok(Self {
            decoder: decoder(Packed { file, bytes })?,
            packed_bytes,
            left_bytes: FREE_BYTES,
        })
    }
}

impl<D: Read> Read for Unpacked<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.decoder.read(buffer)?;
        let packed_bytes = self.packed_bytes.take();
        self.left_bytes = self
            .left_bytes
            .saturating_add(packed_bytes.saturating_mul(MAX_RATIO))
            .checked_sub(read as u64)
            .ok_or_else(|| io::Error::other(TooLarge))?;
        Ok(read)
    }
}

impl<R: Read> Read for Packed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}
