//! [`ImportedBlock`]: memory of another process.
//!
//! Two processes share memory in three steps: the exporter exports it
//! ([`DeviceAllocator::export`](crate::DeviceAllocator::export)), sends the descriptors and the
//! [`SharedLayout`] to the other process over a Unix socket, and that process imports them here. The
//! descriptors carry the memory, and the layout has the block's place in it.
//!
//! * IMPORT1 the addresses are reserved for this import alone, each mapping in `pieces` exists, and nothing
//!   else is mapped there.
//! * IMPORT2 no mapping is undone before all work of the context has been seen to be done, except in a failed
//!   import, whose addresses were given to no caller.

use std::os::fd::AsFd;

use larder_core::{Addr, AddrRange};
use thiserror::Error;

use crate::driver::owed::Unwaited;
use crate::driver::refused_free::RefusedFree;
use crate::{Context, DriverError, Returned};

/// The place of an exported block in the memory that the descriptors carry: the pieces of memory, one after
/// the other, and the block inside them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedLayout {
    /// The bytes of each piece of memory, in the order of the descriptors.
    pub pieces: Vec<u64>,
    /// Offset of the block in the first piece.
    pub offset: u64,
    /// Bytes of the block.
    pub bytes: u64,
}

/// Bytes of one number in an encoded layout.
const WORD: usize = 8;

impl SharedLayout {
    /// Encodes the layout, to be sent with the descriptors: 16 bytes, and 8 for each piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = [self.offset, self.bytes]
            .into_iter()
            .chain(self.pieces.iter().copied());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes a layout that [`to_bytes`](Self::to_bytes) encoded.
    ///
    /// # Errors
    /// [`ImportError::Layout`] if the bytes are not a valid layout.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ImportError> {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [offset, bytes, pieces @ ..] = words.as_slice() else {
            return Err(ImportError::Layout);
        };
        let layout = Self {
            pieces: pieces.to_vec(),
            offset: *offset,
            bytes: *bytes,
        };
        layout
            .total_bytes()
            .filter(|_| rest.is_empty())
            .map(|_| layout.clone())
            .ok_or(ImportError::Layout)
    }

    /// Returns the bytes of all pieces, if the block begins in the first and ends in the last and no size is
    /// zero.
    fn total_bytes(&self) -> Option<u64> {
        let total = self
            .pieces
            .iter()
            .try_fold(0_u64, |sum, piece| sum.checked_add(*piece))?;
        let end = self.offset.checked_add(self.bytes)?;
        let first = *self.pieces.first()?;
        let last = *self.pieces.last()?;
        let inside = self.bytes > 0 && self.offset < first && end <= total && end > total - last;
        (inside && !self.pieces.contains(&0)).then_some(total)
    }
}

/// An error of an import. Nothing is mapped, and the descriptors are unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The layout is invalid: the block is not inside the memory, or a size is zero or too large.
    #[error("the layout contradicts itself: send it whole, as SharedLayout::to_bytes has it")]
    Layout,
    /// The number of descriptors is not the number of pieces.
    #[error("{given} descriptors where the layout has {needed}: send all, in their order")]
    Descriptors {
        /// Number of descriptors given.
        given: usize,
        /// Number of descriptors needed.
        needed: usize,
    },
    /// The driver refused.
    #[error("{0}")]
    Driver(#[from] DriverError),
}

/// A block of another process, mapped in this process: the same memory, at addresses of its own.
///
/// Work of the importer's device reads and writes the block. Work of either process sees the other's writes
/// if it begins after they have ended. The two processes have to tell each other, over the socket or
/// otherwise, since streams and events of one process order nothing in the other. The block takes no memory
/// here and is charged to no budget: the exporter's budget counts it.
///
/// Importing maps the whole pieces that the block lies in. They also hold other blocks of the exporter, which
/// this process must not touch; processes that do not trust each other should not share memory.
///
/// Dropping the block waits for all work of the context, then undoes the mappings; [`free`](Self::free)
/// reports a refusal. If the wait is refused, for example while a stream of the context is being captured, a
/// drop leaves everything mapped until [`Context::settle`], or the end of the context, waits.
///
/// ```no_run
/// use std::os::fd::OwnedFd;
/// use larder_cuda::{Context, ImportedBlock, SharedLayout};
///
/// # fn import(received: fn() -> (Vec<u8>, Vec<OwnedFd>)) -> Result<(), Box<dyn std::error::Error>> {
/// let (layout, descriptors) = received(); // over a Unix socket
/// let context = Context::new(0)?;
/// let layout = SharedLayout::from_bytes(&layout)?;
/// let block = ImportedBlock::new(&context, &layout, &descriptors)?;
/// let header = block.part(0, 4096).ok_or("too short")?;
/// // kernels use header.start(), copies too
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ImportedBlock {
    mapped: ImportMapping,
    range: AddrRange,
}

/// The addresses and mappings of an import.
#[derive(Debug)]
struct ImportMapping {
    context: Context,
    addresses: AddrRange,
    /// Start and bytes of each mapping.
    pieces: Vec<(u64, u64)>,
    /// Whether work may use the memory, so that a drop has to wait first.
    used: bool,
}

impl ImportedBlock {
    /// Imports a block on the context's device, which is the exporter's or can reach it. The descriptors are
    /// not needed afterwards. Costs three driver calls for each descriptor, and two more.
    ///
    /// # Errors
    /// [`ImportError`]; nothing is left except frees that the driver refused, which the context
    /// [retries](Context::refused_frees).
    pub fn new(
        context: &Context,
        layout: &SharedLayout,
        descriptors: &[impl AsFd],
    ) -> Result<Self, ImportError> {
        let total = layout.total_bytes().ok_or(ImportError::Layout)?;
        let (given, needed) = (descriptors.len(), layout.pieces.len());
        if given != needed {
            return Err(ImportError::Descriptors { given, needed });
        }
        let start = context.try_current(|driver| driver.reserve(total, 0))?;
        let Some(addresses) = AddrRange::new(Addr::new(start), total) else {
            context.give_back(RefusedFree::Reserved(start, total));
            return Err(ImportError::Layout);
        };
        let mut mapped = ImportMapping {
            context: context.clone(),
            addresses,
            pieces: Vec::with_capacity(needed),
            used: false,
        };
        for (bytes, descriptor) in layout.pieces.iter().zip(descriptors) {
            mapped.map(*bytes, descriptor)?;
        }
        let devices = [context.ordinal()];
        context.try_current(|driver| {
            // SAFETY: IMPORT1: the addresses are ours and mapped.
            unsafe { driver.set_access(start, total, &devices) }
        })?;
        let block = AddrRange::new(Addr::new(start + layout.offset), layout.bytes);
        let range = block.ok_or(ImportError::Layout)?;
        mapped.used = true;
        Ok(Self { mapped, range })
    }

    /// Returns the block's addresses in this process.
    pub const fn range(&self) -> AddrRange {
        self.range
    }

    /// Returns the size of the block in bytes.
    pub const fn bytes(&self) -> u64 {
        self.range.bytes()
    }

    /// Returns the context that the block is mapped for.
    pub const fn context(&self) -> &Context {
        &self.mapped.context
    }

    /// Returns the part of the block that begins at `offset` and has `bytes` bytes; `None` if the part is
    /// empty or not within the block.
    pub fn part(&self, offset: u64, bytes: u64) -> Option<AddrRange> {
        let start = self.range.start().get().checked_add(offset)?;
        let part = AddrRange::new(Addr::new(start), bytes)?;
        (bytes > 0 && self.range.contains(part)).then_some(part)
    }

    /// Waits for all work of the context, then undoes the mappings.
    ///
    /// # Errors
    /// Returns the block, unchanged, if the driver refuses to wait.
    pub fn free(mut self) -> Result<(), Returned<Self, DriverError>> {
        match self.mapped.context.synchronize() {
            Ok(()) => {
                self.mapped.used = false;
                Ok(())
            }
            Err(error) => Err(Returned { value: self, error }),
        }
    }
}

impl ImportMapping {
    /// Maps a descriptor's memory right after the last mapping.
    fn map(&mut self, bytes: u64, descriptor: &impl AsFd) -> Result<(), DriverError> {
        let at = match self.pieces.last() {
            Some((at, bytes)) => at + bytes,
            None => self.addresses.start().get(),
        };
        let import = |driver: &crate::driver::Driver| driver.import_memory(descriptor.as_fd());
        let memory = self.context.try_current(import)?;
        let outcome = self.context.try_current(|driver| {
            // SAFETY: IMPORT1: the addresses are ours and free; the memory exists, and the driver refuses to
            // map it if it has another size.
            unsafe { driver.map(at, bytes, memory) }
        });
        // The mapping keeps the memory alive.
        self.context.give_back(RefusedFree::Memory(memory));
        outcome?;
        self.pieces.push((at, bytes));
        Ok(())
    }
}

impl Drop for ImportMapping {
    fn drop(&mut self) {
        // Work that was not waited for may still use the memory (IMPORT2).
        let unwaited = match self.used && self.context.synchronize().is_err() {
            true => vec![Unwaited::Context],
            false => Vec::new(),
        };
        let (context, addresses) = (&self.context, self.addresses);
        let pieces = core::mem::take(&mut self.pieces);
        context.owe(unwaited, || {
            for (start, bytes) in pieces {
                context.give_back(RefusedFree::Mapping(start, bytes));
            }
            let (start, bytes) = (addresses.start().get(), addresses.bytes());
            context.give_back(RefusedFree::Reserved(start, bytes));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(pieces: &[u64], offset: u64, bytes: u64) -> SharedLayout {
        let pieces = pieces.to_vec();
        SharedLayout {
            pieces,
            offset,
            bytes,
        }
    }

    #[test]
    fn a_layout_comes_back_from_its_bytes() {
        for good in [
            layout(&[4], 0, 4),
            layout(&[4], 3, 1),
            layout(&[4, 8, 4], 1, 12),
        ] {
            assert_eq!(SharedLayout::from_bytes(&good.to_bytes()), Ok(good));
        }
    }

    #[test]
    fn a_layout_that_is_none_is_refused() {
        for bad in [
            layout(&[], 0, 1),
            layout(&[4], 0, 0),
            layout(&[4], 0, 5),
            layout(&[4], 4, 1),
            layout(&[4, 0, 4], 0, 8),
            layout(&[4, 4], 0, 4),
            layout(&[4, 4], 4, 4),
            layout(&[u64::MAX, 4], 0, 4),
            layout(&[u64::MAX], 1, u64::MAX),
        ] {
            let read = SharedLayout::from_bytes(&bad.to_bytes());
            assert_eq!(read, Err(ImportError::Layout), "{bad:?}");
        }
        let good = layout(&[4], 0, 4).to_bytes();
        for cut in 0..good.len() {
            let read = SharedLayout::from_bytes(&good[..cut]);
            assert_eq!(read, Err(ImportError::Layout), "{cut}");
        }
    }
}
