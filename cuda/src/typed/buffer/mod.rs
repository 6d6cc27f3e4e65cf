//! [`DeviceBuffer`]: typed device memory for programs that use cudarc.
//!
//! A buffer is a block of a [`DeviceAllocator`], and dropping the buffer frees the block. Buffers and their
//! parts ([`BufferView`], [`BufferViewMut`]) implement cudarc's traits, so that functions that take a
//! `DevicePtr` or a `DevicePtrMut` accept them. A [`Launch`] passes them to kernels.

pub mod dlpack;
mod launch;
mod make;
mod parts;
mod raw;
mod slice;
mod stream_set;
mod traits;
mod uses;
mod values;
mod view;

use core::fmt;
use core::marker::PhantomData;
use std::sync::{Arc, Mutex};

use cudarc::driver::{self as cuda, CudaStream, DeviceRepr, SyncOnDrop, sys};
use larder_core::{Block, StreamId};

pub use launch::Launch;
pub(crate) use make::{bytes_of, in_our_words};
pub use raw::{AdoptError, RawDeviceBuffer};
pub use slice::BufferSlice;
use uses::{Use, Uses};
pub use view::{BufferView, BufferViewMut};

use crate::driver::locked;
use crate::{DeviceAllocError, DeviceAllocator};

/// `len` values of type `T` in device memory. Dropping the buffer frees the memory in the order of the
/// streams that used it; the host does not wait.
///
/// ```no_run
/// use larder_cuda::{Context, DeviceAllocator};
///
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::new(&context)?;
/// let stream = context.cudarc().new_stream()?;
/// let numbers = memory.upload(&stream, &[1.0f32, 2.0, 3.0])?;
/// let mut copy = memory.zeros::<f32>(&stream, 3)?;
/// stream.memcpy_dtod(&numbers, &mut copy)?;
/// stream.memset_zeros(&mut copy.slice_mut(1..2))?;
/// assert_eq!(stream.clone_dtoh(&copy)?, [1.0, 0.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Streams
/// Uses on several streams are ordered, like those of cudarc's own slices: a read comes after the last write,
/// a write comes after all earlier uses, and freed memory is reused after all uses. For a buffer that stays
/// on one stream, none of this needs a driver call.
///
/// | the stream | what orders its work |
/// |---|---|
/// | has allocated from the allocator, or was [added](DeviceAllocator::add_stream) | the device: an event and a wait, once for each stream and write |
/// | is unknown, or of another context | the host waits before and after each use |
/// | is being captured; a stream outside the capture used the buffer | the host waits when the use is captured |
/// | is being captured; a stream in the capture used the buffer | the program's own forks and joins |
///
/// Launches of a graph are not tracked, so the program must order them and keep the buffers. If a use cannot
/// be ordered at all, because a stream that is being captured cannot be waited for, cudarc's next call
/// returns the error (`CudaContext::check_err`), as for cudarc's own slices.
///
/// cudarc's copies between contexts report a read on the source's own stream, although the destination's
/// stream reads the source: wait for the latter before the source is written or dropped.
///
/// # Asleep
/// While the allocator [sleeps](DeviceAllocator::sleep), a [`Launch`] with a buffer is refused
/// ([`DeviceAllocError::Asleep`]), and so are copies by functions of this crate. cudarc's functions get the
/// address 0, so the driver refuses their copies and nothing is queued. Code that passes addresses to kernels
/// itself must check first ([`DeviceAllocator::is_asleep`]).
///
/// # No bytes
/// A buffer of no bytes (no values, or values of size zero) has no memory, and its address is 0.
pub struct DeviceBuffer<T> {
    /// Address that kernels receive.
    address: sys::CUdeviceptr,
    len: usize,
    /// Taken out when the buffer is dropped or taken apart; `None` for zero bytes.
    block: Option<Block>,
    shared: BufferShared,
    values: PhantomData<T>,
}

/// State that a buffer shares with its views.
struct BufferShared {
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    origin: StreamId,
    uses: Mutex<Uses>,
}

impl<T> DeviceBuffer<T> {
    /// Makes a buffer over memory of `len` values at an address, for work queued on `stream`, whose number is
    /// `origin`.
    fn of_block(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        origin: StreamId,
        address: sys::CUdeviceptr,
        len: usize,
        block: Option<Block>,
    ) -> Self {
        Self {
            address,
            len,
            block,
            shared: BufferShared {
                memory: memory.clone(),
                stream: stream.clone(),
                origin,
                uses: Mutex::new(Uses::new(origin)),
            },
            values: PhantomData,
        }
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the size of all values in bytes.
    pub const fn num_bytes(&self) -> usize {
        // Cannot wrap, since the size was checked when the buffer was made.
        self.len.wrapping_mul(size_of::<T>())
    }

    /// Returns the stream on which the buffer was allocated and its memory is freed.
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.shared.stream
    }

    /// Returns the allocator of the buffer's memory.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.shared.memory
    }

    /// Returns a view of all values, for reading.
    pub fn as_view(&self) -> BufferView<'_, T> {
        BufferView::of(self)
    }

    /// Returns a view of all values, for writing.
    pub fn as_view_mut(&mut self) -> BufferViewMut<'_, T> {
        BufferViewMut::of(self)
    }
}

impl BufferShared {
    /// Orders the work that is queued on the stream next and reads the buffer. cudarc holds the returned
    /// value until the work is queued.
    fn read<'a>(&self, stream: &'a CudaStream, beside: bool) -> SyncOnDrop<'a> {
        self.note(stream, beside, Uses::read)
    }

    /// Orders the work that is queued on the stream next and writes the buffer. cudarc holds the returned
    /// value until the work is queued.
    fn write<'a>(&self, stream: &'a CudaStream, beside: bool) -> SyncOnDrop<'a> {
        self.note(stream, beside, Uses::write)
    }

    /// Orders work of a stream that is passed as an `Arc`, so that the stream can be added.
    fn order(
        &self,
        stream: &Arc<CudaStream>,
        beside: bool,
        note: impl FnOnce(&mut Uses, Use<'_>) -> Result<(), cuda::DriverError>,
    ) -> Result<(), DeviceAllocError> {
        self.refuse_asleep()?;
        let stream_id = Some(self.memory.known_streams().id(stream)?);
        let by = Use {
            memory: &self.memory,
            stream,
            stream_id,
            beside,
        };
        let noted = note(&mut locked(&self.uses), by);
        noted.map_err(|error| in_our_words("cuStreamSynchronize", error).into())
    }

    /// Refuses uses while the memory sleeps. One load.
    fn refuse_asleep(&self) -> Result<(), DeviceAllocError> {
        match self.is_asleep() {
            true => Err(DeviceAllocError::Asleep),
            false => Ok(()),
        }
    }

    /// Returns whether the memory sleeps. One load.
    #[inline]
    fn is_asleep(&self) -> bool {
        self.memory.refuses(self.origin)
    }

    fn note<'a>(
        &self,
        stream: &'a CudaStream,
        beside: bool,
        note: impl FnOnce(&mut Uses, Use<'_>) -> Result<(), cuda::DriverError>,
    ) -> SyncOnDrop<'a> {
        let memory = &self.memory;
        let stream_id = memory.known_streams().known(stream).ok().flatten();
        let by = Use {
            memory,
            stream,
            stream_id,
            beside,
        };
        let noted = note(&mut locked(&self.uses), by);
        stream.context().record_err(noted);
        // A stream without a number cannot be waited for later, so the host waits for its work immediately.
        // Captured work does not count as a use.
        if stream_id.is_some() || memory.captures(stream) {
            SyncOnDrop::Record(None)
        } else {
            SyncOnDrop::Sync(Some(stream))
        }
    }

    fn free(&self, block: Block) {
        let others = locked(&self.uses).others(self.origin);
        self.memory
            .free_on_stream_ids(self.origin, others.iter(), block);
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.shared.free(block);
        }
    }
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Alignment of blocks.
const ALIGN: usize = 256;

/// Fails to compile for values whose alignment is larger than that of blocks.
pub(crate) const fn check_align<T: DeviceRepr>() {
    const {
        assert!(align_of::<T>() <= ALIGN, "aligned to more than 256 bytes");
    }
}
