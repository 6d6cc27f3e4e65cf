//! [`ExportedBlock`]: a block that another process may use.
//!
//! EXPORT1 From before its descriptors exist until it is dropped, the memory of an exported block is pinned
//! in the core and counted in the table of mappings (VIRT4): none of its pages moves or is released to the
//! driver.

use std::os::fd::OwnedFd;

use larder_core::{Addr, AddrRange, Block};
use thiserror::Error;

use super::{DeviceAllocator, DeviceInner};
use crate::DriverError;
use crate::source::imported::SharedLayout;

/// An error of an export. The block is unchanged, and nothing is exported or pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The allocator's memory is not shareable.
    #[error("the allocator keeps its memory to this process: set DeviceConfig::shareable")]
    NotShareable,
    /// The block is not one of the allocator's.
    #[error("the block is not one of this allocator's: export it from the one that allocated it")]
    Unknown,
    /// The part is empty, or not within the block.
    #[error("{bytes} bytes at offset {offset} are not a part of a block of {block_bytes} bytes")]
    Part {
        /// Offset of the part.
        offset: u64,
        /// Bytes of the part.
        bytes: u64,
        /// Bytes of the block.
        block_bytes: u64,
    },
    /// The driver refused, as it does when the process has too many open files.
    #[error("{0}")]
    Driver(#[from] DriverError),
}

/// Memory of a block that another process may import through file descriptors, as an
/// [`ImportedBlock`](crate::ImportedBlock).
///
/// While it exists, its memory is neither moved nor released to the driver, even if the block is freed. Keep
/// both the export and the block until every importer has dropped its `ImportedBlock`: the descriptors of a
/// freed block reach the next block at its place, and those of a dropped export reach whatever its pages are
/// used for next. The driver keeps the memory as long as any process holds it.
///
/// The driver exports memory as it was created, in pieces of one page or more. So a small block shares a
/// piece with other blocks, which every process with the descriptor can read and write as well. Blocks of 64
/// KiB and less may lie in an arena with other blocks of their stream.
///
/// # Requirements of libraries
/// Export has not been tested on hardware. On the stand-in, two processes share a block; access by network
/// cards is only requested.
///
/// * **CUDA IPC** (`cuIpcGetMemHandle`) accepts only memory from `cuMemAlloc`, never mapped memory like this.
///   Its users can use [`DeviceMemory`](crate::DeviceMemory), whose regions are one allocation each, or
///   import these descriptors.
/// * **NCCL** accepts any device memory in its calls. To register a buffer (`ncclCommRegister`), it requires
///   memory like that of `ncclMemAlloc`: whole pages, with a handle type for sharing, usable by network
///   cards, and accessible to the participating devices. [`shareable`](crate::DeviceConfig::shareable) and
///   [`peers`](crate::DeviceConfig::peers) request that. NCCL exports by itself, and takes the first piece
///   for the whole buffer, so register a [`FixedBlock`](crate::FixedBlock), which is one piece. Registration
///   is untested. Handles for several machines (fabric) and multicast (NVLS) are not supported.
/// * **UCX** moves such memory between processes of one machine with `cuda_ipc`, from version 1.22 on,
///   through descriptors like these. According to its source (untested), it exports only the first piece of a
///   buffer that has several, so register parts that are one piece each (`layout().pieces`). Over a network
///   it requires GPUDirect RDMA; it requests `SYNC_MEMOPS`, which drivers refuse for mapped memory, and
///   warns.
/// * **Network cards** (GPUDirect RDMA with `nvidia-peermem` or dma-buf) reach memory that was created for
///   that: all memory of a shareable allocator, if the device supports it. A card stores addresses: register
///   a `FixedBlock`, or keep an `ExportedBlock` as long as the registration.
///
/// ```no_run
/// use larder_cuda::{Context, DeviceAllocator, DeviceConfig};
///
/// let context = Context::new(0)?;
/// let config = DeviceConfig { shareable: true, ..DeviceConfig::new() };
/// let memory = DeviceAllocator::with_config(&context, config)?;
/// let stream = context.cudarc().new_stream()?;
/// let block = memory.alloc(&stream, 64 << 20)?;
/// let exported = memory.export(&block)?;
/// let _ = (exported.layout().to_bytes(), exported.descriptors()); // over a Unix socket (SCM_RIGHTS)
/// // when the other process is done
/// drop(exported);
/// memory.free(&stream, block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the memory may move as soon as this is dropped"]
pub struct ExportedBlock {
    memory: DeviceAllocator,
    range: AddrRange,
    layout: SharedLayout,
    descriptors: Vec<OwnedFd>,
}

impl ExportedBlock {
    /// Returns the addresses in this process.
    pub const fn range(&self) -> AddrRange {
        self.range
    }

    /// Returns where the block lies in the memory of the descriptors; the importer needs it.
    pub const fn layout(&self) -> &SharedLayout {
        &self.layout
    }

    /// Returns the descriptors to send, in this order; a socket message can carry at most 253.
    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.descriptors
    }
}

impl Drop for ExportedBlock {
    fn drop(&mut self) {
        let inner = &*self.memory.0;
        inner.end_export(self.range);
        inner.came_back(self.range.bytes());
    }
}

impl DeviceAllocator {
    /// Exports a block: other processes may import its memory, which stays where it is until the returned
    /// value is dropped. A block may be exported several times. O(pages), with a driver call and a descriptor
    /// for each piece of memory under the block; pages that were created together are one piece.
    ///
    /// # Errors
    /// [`ExportError`]; the block is unchanged.
    pub fn export(&self, block: &Block) -> Result<ExportedBlock, ExportError> {
        self.export_part(block, 0, block.bytes())
    }

    /// Exports `bytes` bytes of a block from `offset` on, with no more memory than the pieces that contain
    /// them.
    ///
    /// # Errors
    /// [`ExportError`]; the block is unchanged.
    pub fn export_part(
        &self,
        block: &Block,
        offset: u64,
        bytes: u64,
    ) -> Result<ExportedBlock, ExportError> {
        let inner = &*self.0;
        let shareable = inner.pool.pages();
        let shareable = shareable.filter(|pages| pages.shared().source().is_shareable());
        let pages = shareable.ok_or(ExportError::NotShareable)?;
        if inner.requested_bytes(block).is_none() {
            return Err(ExportError::Unknown);
        }
        let outside = ExportError::Part {
            offset,
            bytes,
            block_bytes: block.bytes(),
        };
        let start = block.addr().get().checked_add(offset).ok_or(outside)?;
        let range = AddrRange::new(Addr::new(start), bytes).ok_or(outside)?;
        if bytes == 0 || !block.range().contains(range) {
            return Err(outside);
        }
        // Pinned first, so that the mappings under the block stay until they are counted (EXPORT1).
        pages.shared().with(|paged| paged.pin_range(range));
        match pages.shared().source().export(range) {
            Ok(exported) => Ok(ExportedBlock {
                memory: self.clone(),
                range,
                layout: SharedLayout {
                    pieces: exported.pieces,
                    offset: start - exported.start,
                    bytes,
                },
                descriptors: exported.descriptors,
            }),
            Err(error) => {
                pages.shared().with(|paged| paged.unpin(range));
                Err(error.into())
            }
        }
    }
}

impl DeviceInner {
    /// Lets the memory of an export move again.
    fn end_export(&self, range: AddrRange) {
        if let Some(pages) = self.pool.pages() {
            pages.shared().source().end_export(range);
            pages.shared().with(|paged| paged.unpin(range));
        }
    }
}
