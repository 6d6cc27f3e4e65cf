//! [`SyncedMemory`]: values that the host and a device use in turn, copied when the other side wants them.
//!
//! The idea is Caffe's `SyncedMemory`. The states and what each access does stand in [`SyncedPair`]. What
//! differs, since it went wrong there:
//!
//! | there | here |
//! |---|---|
//! | a pointer outlives the state it was given in, and writes through it are lost | what is returned borrows the memory |
//! | reads of a shared object race with each other | every access is `&mut` |
//! | an asynchronous copy counts as done at once | its guard borrows until it is done; a forgotten one is waited for by the next access |
//! | a mutable access copies what will be overwritten | `cpu_overwrite`, `gpu_overwrite` |
//! | no bytes: allocated again at each access, or the end | no allocator is asked |
//! | adopting discards newer values without a word | the answer says where the newest were |
//! | errors end the program | errors are values, and all is as before |
//! | memory is of whatever device is current | of the allocator's device, whatever is current |
//! | the process's mode says whether the host's memory is pinned | [`HostMemory`] says it for each object |

mod adopt;
mod guards;
mod pair;
mod pools;
mod sides;

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr, ValidAsZeroBits};

pub use guards::{CpuOverwrite, GpuOverwrite, InFlight};
pub use pair::{Backend, CopyError, Head, SyncedPair};
pub use pools::HostMemory;
use pools::Pools;
use sides::{DeviceValues, HostValues};

use crate::{BufferView, BufferViewMut, Context, DeviceAllocError, DeviceAllocator, DeviceBuffer};

/// `len` values of type `T` on the host, on a device, or on both. Memory is allocated when a side is first
/// wanted; values that nobody wrote are zeros.
///
/// Accesses are named as Caffe names them; what each does stands in [`SyncedPair`].
///
/// ```no_run
/// use larder_cuda::synced::HostMemory;
/// use larder_cuda::{Context, DeviceAllocator, PinnedAllocator, SyncedMemory};
///
/// let context = Context::new(0)?;
/// let device = DeviceAllocator::new(&context)?;
/// let host = HostMemory::Pinned(PinnedAllocator::new(&context)?);
/// let stream = context.cudarc().new_stream()?;
/// let mut values = SyncedMemory::<f32>::new(&device, &stream, host, 1000)?;
/// values.cpu_mut()?.fill(1.0);
/// let view = values.gpu()?;           // copied to the device
/// let two = stream.clone_dtoh(&view.slice(..2))?;
/// assert_eq!(two, values.cpu()?[..2]); // not copied: both have it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What was lent cannot be written behind the object's back:
/// ```compile_fail
/// # use larder_cuda::SyncedMemory;
/// fn lost(values: &mut SyncedMemory<'_, f32>) {
///     let host = values.cpu_mut().unwrap();
///     values.gpu().unwrap();
///     host.fill(1.0); // the device would never see it
/// }
/// ```
///
/// A view of the device is for work that is queued while the borrow lasts; other streams than the object's
/// are put in order as for [`DeviceBuffer`].
pub struct SyncedMemory<'a, T: DeviceRepr + ValidAsZeroBits + Copy> {
    pair: SyncedPair<Pools<'a, T>>,
    /// The view of no bytes.
    nothing: DeviceBuffer<T>,
}

impl<'a, T: DeviceRepr + ValidAsZeroBits + Copy> SyncedMemory<'a, T> {
    /// Nothing is allocated yet. Copies are made on `stream`.
    ///
    /// # Errors
    /// If the size does not fit a number.
    pub fn new(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        host: HostMemory,
        len: usize,
    ) -> Result<Self, DeviceAllocError> {
        let bytes = crate::typed::buffer::bytes_of::<T>(len)?;
        let of_nothing = if bytes == 0 { len } else { 0 };
        // SAFETY: there is nothing to be written.
        let nothing = unsafe { memory.buffer(stream, of_nothing) }?;
        let pools = Pools {
            memory: memory.clone(),
            stream: stream.clone(),
            host,
            len,
            values: PhantomData,
        };
        Ok(Self {
            pair: SyncedPair::new(pools, bytes == 0),
            nothing,
        })
    }

    /// How many values.
    pub const fn len(&self) -> usize {
        self.pair.backend().len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all values.
    pub const fn num_bytes(&self) -> usize {
        // It was checked when it was made.
        self.len().wrapping_mul(size_of::<T>())
    }

    /// Which side is newest.
    pub const fn head(&self) -> Head {
        self.pair.head()
    }

    /// Whether dropping it frees memory of the host.
    pub fn owns_host(&self) -> bool {
        self.pair.host_buffer().is_some_and(HostValues::is_owned)
    }

    /// Whether dropping it frees memory of the device.
    pub fn owns_device(&self) -> bool {
        self.pair
            .device_buffer()
            .is_some_and(DeviceValues::is_owned)
    }

    /// The device's context, which is made current where it must be, and put back.
    pub fn context(&self) -> &Context {
        self.pair.backend().memory.context()
    }

    /// The values, to be read by the host.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; everything is as before.
    pub fn cpu(&mut self) -> Result<&[T], DeviceAllocError> {
        let len = self.len();
        match self.pair.host()? {
            Some(host) => Ok(host.values()?),
            None => Ok(nothing(len)),
        }
    }

    /// The values, to be changed by the host.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; everything is as before.
    pub fn cpu_mut(&mut self) -> Result<&mut [T], DeviceAllocError> {
        let len = self.len();
        // Waits for readers before the head moves, so that an error leaves it.
        if let Some(host) = self.pair.host()? {
            host.values_mut()?;
        }
        match self.pair.host_mut()? {
            Some(host) => Ok(host.values_mut()?),
            None => Ok(nothing(len)),
        }
    }

    /// The values, to be read by the device.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; everything is as before.
    pub fn gpu(&mut self) -> Result<BufferView<'_, T>, DeviceAllocError> {
        Ok(match self.pair.device()? {
            Some(device) => device.view(),
            None => self.nothing.as_view(),
        })
    }

    /// The values, to be changed by the device.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; everything is as before.
    pub fn gpu_mut(&mut self) -> Result<BufferViewMut<'_, T>, DeviceAllocError> {
        Ok(match self.pair.device_mut()? {
            Some(device) => device.view_mut(),
            None => self.nothing.as_view_mut(),
        })
    }

    /// Copies to the device in the order of `stream` while the host does other things, if its memory is
    /// pinned; from other memory the copy is done on return. The guard waits when it is dropped.
    ///
    /// # Errors
    /// [`CopyError::Head`] unless the host alone is newest, and a [`DeviceAllocError`] inside.
    pub fn push_async(
        &mut self,
        stream: &Arc<CudaStream>,
    ) -> Result<InFlight<'_, 'a, T>, CopyError<DeviceAllocError>> {
        self.pair.push(stream)?;
        Ok(InFlight::new(&mut self.pair))
    }

    /// Copies to the host in the order of `stream` while the host does other things, if its memory is pinned; to other
    /// memory the copy is done on return. The guard waits when it is dropped.
    ///
    /// # Errors
    /// [`CopyError::Head`] unless the device alone is newest, and a [`DeviceAllocError`] inside.
    pub fn pull_async(
        &mut self,
        stream: &Arc<CudaStream>,
    ) -> Result<InFlight<'_, 'a, T>, CopyError<DeviceAllocError>> {
        self.pair.pull(stream)?;
        Ok(InFlight::new(&mut self.pair))
    }

    /// The host's memory, to be written whole: nothing is copied or zeroed.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; everything is as before.
    pub fn cpu_overwrite(&mut self) -> Result<CpuOverwrite<'_, 'a, T>, DeviceAllocError> {
        let len = self.len();
        // First, so that an error leaves the head.
        if let Some(HostValues::Pinned(buffer)) = self.pair.host_buffer() {
            buffer.synchronize()?;
        }
        let place = match self.pair.host_overwrite()? {
            Some(host) => host.place()?,
            None => NonNull::from(nothing(len)),
        };
        Ok(CpuOverwrite::new(&mut self.pair, place))
    }

    /// The device's memory, to be written whole: nothing is copied or zeroed.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; everything is as before.
    pub fn gpu_overwrite(&mut self) -> Result<GpuOverwrite<'_, 'a, T>, DeviceAllocError> {
        self.pair.device_overwrite()?;
        Ok(GpuOverwrite::new(&mut self.pair, &mut self.nothing))
    }
}

/// So many values of no bytes.
fn nothing<'a, T>(len: usize) -> &'a mut [T] {
    let len = if size_of::<T>() == 0 { len } else { 0 };
    // SAFETY: values without bytes are at any aligned address, and none are everywhere.
    unsafe { core::slice::from_raw_parts_mut(NonNull::dangling().as_ptr(), len) }
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> fmt::Debug for SyncedMemory<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncedMemory")
            .field("len", &self.len())
            .field("head", &self.head())
            .field("owns_host", &self.owns_host())
            .field("owns_device", &self.owns_device())
            .finish_non_exhaustive()
    }
}
