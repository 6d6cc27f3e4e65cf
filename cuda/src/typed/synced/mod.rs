//! [`SyncedMemory`]: values that the host and a device use in turn, and that are copied when the other side
//! needs them.
//!
//! The idea is Caffe's `SyncedMemory`. For the states and the effect of each access see [`SyncedPair`]. Each
//! difference removes a defect of Caffe's class:
//!
//! | Caffe | here |
//! |---|---|
//! | a pointer outlives the state it was returned in, and writes through it are lost | returned values borrow the memory |
//! | reads of a shared object race with each other | every access is `&mut` |
//! | an asynchronous copy counts as done immediately | a guard borrows the memory until the copy is done; if the guard is forgotten, the next access waits |
//! | a mutable access copies values that will be overwritten | `cpu_overwrite`, `gpu_overwrite` |
//! | memory of no bytes is allocated again at each access, or ends the program | no allocator is called for no bytes |
//! | adopting memory silently discards newer values | the return value is the side that had the newest values |
//! | errors end the program | errors are values, and nothing changes |
//! | memory is on the device that is current at the time | memory is on the allocator's device |
//! | a mode of the process decides whether host memory is pinned | [`HostMemory`] decides it for each object |

mod adopt;
mod guards;
mod pools;
mod sides;
mod state_machine;

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr, ValidAsZeroBits};

pub use guards::{CpuOverwrite, GpuOverwrite, InFlight};
pub use pools::HostMemory;
use pools::Pools;
use sides::{DeviceValues, HostValues};
pub use state_machine::{Backend, CopyError, Head, SyncedPair};

use crate::{BufferView, BufferViewMut, Context, DeviceAllocError, DeviceAllocator, DeviceBuffer};

/// `len` values of type `T` on the host, on a device, or on both. A side's memory is allocated on its first
/// use; values that were never written are zeros.
///
/// The accesses have Caffe's names; for their effects see [`SyncedPair`].
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
/// The borrow checker prevents writes through an outdated borrow:
/// ```compile_fail
/// # use larder_cuda::SyncedMemory;
/// fn lost(values: &mut SyncedMemory<'_, f32>) {
///     let host = values.cpu_mut().unwrap();
///     values.gpu().unwrap();
///     host.fill(1.0); // the device would never see it
/// }
/// ```
///
/// A view of the device's side is for work that is queued while the borrow lasts; streams other than the
/// object's are ordered as for a [`DeviceBuffer`]. While the stream of a copy is being captured, the access is
/// refused with [`DeviceAllocError::Capturing`]: the copy would be made when the graph is launched, if ever.
pub struct SyncedMemory<'a, T: DeviceRepr + ValidAsZeroBits + Copy> {
    pair: SyncedPair<Pools<'a, T>>,
    /// The source of views of zero bytes.
    nothing: DeviceBuffer<T>,
}

impl<'a, T: DeviceRepr + ValidAsZeroBits + Copy> SyncedMemory<'a, T> {
    /// Makes an object that has no memory yet. Copies are made on `stream`.
    ///
    /// # Errors
    /// If the size overflows.
    pub fn new(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        host: HostMemory,
        len: usize,
    ) -> Result<Self, DeviceAllocError> {
        let bytes = crate::typed::buffer::bytes_of::<T>(len)?;
        let of_nothing = if bytes == 0 { len } else { 0 };
        // SAFETY: there are no bytes to be written.
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

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.pair.backend().len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of all values in bytes.
    pub const fn num_bytes(&self) -> usize {
        // Cannot wrap, since `new` checked the size.
        self.len().wrapping_mul(size_of::<T>())
    }

    /// Returns the side that holds the newest values.
    pub const fn head(&self) -> Head {
        self.pair.head()
    }

    /// Returns whether dropping this frees host memory.
    pub fn owns_host(&self) -> bool {
        self.pair.host_buffer().is_some_and(HostValues::is_owned)
    }

    /// Returns whether dropping this frees device memory.
    pub fn owns_device(&self) -> bool {
        self.pair
            .device_buffer()
            .is_some_and(DeviceValues::is_owned)
    }

    /// Returns the device's context. Methods make it current where necessary, and restore the previous
    /// context.
    pub fn context(&self) -> &Context {
        self.pair.backend().memory.context()
    }

    /// Returns the values, for the host to read.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; nothing changes.
    pub fn cpu(&mut self) -> Result<&[T], DeviceAllocError> {
        let len = self.len();
        match self.pair.host()? {
            Some(host) => Ok(host.values()?),
            None => Ok(nothing(len)),
        }
    }

    /// Returns the values, for the host to change.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; nothing changes.
    pub fn cpu_mut(&mut self) -> Result<&mut [T], DeviceAllocError> {
        let len = self.len();
        // Waits for readers before the head changes, so that an error leaves it unchanged.
        if let Some(host) = self.pair.host()? {
            host.values_mut()?;
        }
        match self.pair.host_mut()? {
            Some(host) => Ok(host.values_mut()?),
            None => Ok(nothing(len)),
        }
    }

    /// Returns the values, for the device to read.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; nothing changes.
    pub fn gpu(&mut self) -> Result<BufferView<'_, T>, DeviceAllocError> {
        Ok(match self.pair.device()? {
            Some(device) => device.view(),
            None => self.nothing.as_view(),
        })
    }

    /// Returns the values, for the device to change.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; nothing changes.
    pub fn gpu_mut(&mut self) -> Result<BufferViewMut<'_, T>, DeviceAllocError> {
        Ok(match self.pair.device_mut()? {
            Some(device) => device.view_mut(),
            None => self.nothing.as_view_mut(),
        })
    }

    /// Copies to the device in the order of `stream`. The host does not wait if its memory is pinned;
    /// otherwise the copy is done on return. The guard waits when it is dropped.
    ///
    /// # Errors
    /// [`CopyError::Head`] unless only the host holds the newest values, or a [`DeviceAllocError`] inside
    /// [`CopyError::Backend`].
    pub fn push_async(
        &mut self,
        stream: &Arc<CudaStream>,
    ) -> Result<InFlight<'_, 'a, T>, CopyError<DeviceAllocError>> {
        self.pair.push(stream)?;
        Ok(InFlight::new(&mut self.pair))
    }

    /// Copies to the host in the order of `stream`. The host does not wait if its memory is pinned; otherwise
    /// the copy is done on return. The guard waits when it is dropped.
    ///
    /// # Errors
    /// [`CopyError::Head`] unless only the device holds the newest values, or a [`DeviceAllocError`] inside
    /// [`CopyError::Backend`].
    pub fn pull_async(
        &mut self,
        stream: &Arc<CudaStream>,
    ) -> Result<InFlight<'_, 'a, T>, CopyError<DeviceAllocError>> {
        self.pair.pull(stream)?;
        Ok(InFlight::new(&mut self.pair))
    }

    /// Returns the host's memory to be overwritten. Copies and zeroes nothing.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; nothing changes.
    pub fn cpu_overwrite(&mut self) -> Result<CpuOverwrite<'_, 'a, T>, DeviceAllocError> {
        let len = self.len();
        // Waits first, so that an error leaves the head unchanged.
        if let Some(HostValues::Pinned(buffer)) = self.pair.host_buffer() {
            buffer.synchronize()?;
        }
        let place = match self.pair.host_overwrite()? {
            Some(host) => host.place()?,
            None => NonNull::from(nothing(len)),
        };
        Ok(CpuOverwrite::new(&mut self.pair, place))
    }

    /// Returns the device's memory to be overwritten. Copies and zeroes nothing.
    ///
    /// # Errors
    /// [`DeviceAllocError`]; nothing changes.
    pub fn gpu_overwrite(&mut self) -> Result<GpuOverwrite<'_, 'a, T>, DeviceAllocError> {
        self.pair.device_overwrite()?;
        Ok(GpuOverwrite::new(&mut self.pair, &mut self.nothing))
    }
}

/// Returns `len` values if `T` has size zero, otherwise no values.
fn nothing<'a, T>(len: usize) -> &'a mut [T] {
    let len = if size_of::<T>() == 0 { len } else { 0 };
    // SAFETY: a slice of no bytes is valid at any aligned address.
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
