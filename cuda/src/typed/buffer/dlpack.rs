//! DLPack: tensors exchanged with other libraries in the process, without a copy.
//!
//! The structs are those of DLPack's C interface, in version 1 and in the earlier form without a version. A
//! tensor carries no stream: two libraries agree on one separately, for example through Python's
//! `__dlpack__(stream)`.
//!
//! DLPACK1 An export is one box that holds the tensor, at a fixed place, with its shape and its buffer. Only
//! the deleter frees it.
//! DLPACK2 The stream of an export is ordered after all uses of the buffer, and noted as a writer. So the
//! deleter need not wait: the memory is freed after the work queued on that stream.
//! DLPACK3 The producer of an import knows nothing of our streams, so they are waited for before its deleter
//! is called. If the wait is refused, the deleter is not called.

use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr};

use super::{BufferView, BufferViewMut, DeviceBuffer, Uses};
use crate::{DeviceAllocError, DeviceAllocator, Returned};

/// The version of exports, and the newest that imports accept.
const VERSION: Version = Version { major: 1, minor: 0 };

/// `kDLCUDA` and `kDLCUDAManaged`: memory that a device's kernels can use.
const CUDA: i32 = 2;
const CUDA_MANAGED: i32 = 13;

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

/// `DLPackVersion`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Version {
    /// The major version. Each has its own layout.
    pub major: u32,
    /// The minor version. A newer one adds constants.
    pub minor: u32,
}

/// `DLDevice`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Device {
    /// `DLDeviceType`; 2 is CUDA.
    pub device_type: i32,
    /// The device's ordinal.
    pub device_id: i32,
}

/// `DLDataType`, the type of the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DataType {
    /// `DLDataTypeCode`: 0 is signed, 1 unsigned, 2 a float, 4 a bfloat, 5 complex, 6 a boolean.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes of one value; 1 for all but vectors.
    pub lanes: u16,
}

impl DataType {
    /// `f32`.
    pub const F32: Self = Self::new(2, 32);
    /// `f64`.
    pub const F64: Self = Self::new(2, 64);
    /// `float16` of IEEE 754.
    pub const F16: Self = Self::new(2, 16);
    /// `bfloat16`: 16 bits with the exponent range of `f32`.
    pub const BF16: Self = Self::new(4, 16);
    /// `u8`.
    pub const U8: Self = Self::new(1, 8);
    /// `u32`.
    pub const U32: Self = Self::new(1, 32);
    /// `i32`.
    pub const I32: Self = Self::new(0, 32);
    /// `i64`.
    pub const I64: Self = Self::new(0, 64);

    const fn new(code: u8, bits: u8) -> Self {
        let lanes = 1;
        Self { code, bits, lanes }
    }

    /// Returns the size of a value in bytes; `None` if it is not a whole number.
    fn bytes(self) -> Option<usize> {
        let bits = usize::from(self.bits) * usize::from(self.lanes);
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

/// `DLTensor`.
#[derive(Debug)]
#[repr(C)]
pub struct Tensor {
    /// The memory's address on the device.
    pub data: *mut c_void,
    /// Device of the memory.
    pub device: Device,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of the values.
    pub dtype: DataType,
    /// Values in each dimension.
    pub shape: *mut i64,
    /// Distance between neighbours in each dimension, in values; null if the values are contiguous and the
    /// last dimension is the densest.
    pub strides: *mut i64,
    /// Bytes from `data` to the first value.
    pub byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[derive(Debug)]
#[repr(C)]
pub struct ManagedTensorVersioned {
    /// The version, which the consumer checks first.
    pub version: Version,
    /// For the producer's use.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer, when nothing uses the tensor any longer.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// Bit 0: read-only.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: Tensor,
}

/// `DLManagedTensor`, the unversioned layout.
#[derive(Debug)]
#[repr(C)]
pub struct ManagedTensor {
    /// The tensor.
    pub dl_tensor: Tensor,
    /// For the producer's use.
    pub manager_ctx: *mut c_void,
    /// Called once by the consumer, when nothing uses the tensor any longer.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// An error of an export or import.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The shape and strides have different lengths, contain a negative number, or refer to values outside
    /// the buffer.
    #[error("the shape and strides name values that the buffer does not have")]
    Shape,
    /// The size of the tensor's type differs from that of the buffer's values, or the address is not aligned
    /// for them.
    #[error(
        "the tensor's type ({} bits, {} lanes) does not match the values, or its address is not aligned for them",
        dtype.bits,
        dtype.lanes
    )]
    Type {
        /// The tensor's type.
        dtype: DataType,
    },
    /// The tensor's major version is not 1, so its layout is unknown.
    #[error("the tensor is of DLPack {}.{}, which is not known: ask its producer for version 1", .0.major, .0.minor)]
    Version(Version),
    /// The tensor is on another device, or on the host.
    #[error("the tensor is on device {} of kind {}: copy it", .0.device_id, .0.device_type)]
    Device(Device),
    /// The streams could not be ordered.
    #[error("{0}")]
    Order(DeviceAllocError),
}

/// The type of the deleter in one of the two layouts.
type Deleter<M> = unsafe extern "C" fn(*mut M);

/// A tensor of one of the two layouts.
trait Managed: Sized {
    fn new(dl_tensor: Tensor, deleter: Deleter<Self>) -> Self;
    /// Returns the tensor, and whether it may be written.
    fn open(&self) -> Result<(&Tensor, bool), PackError>;
    fn deleter(&self) -> Option<Deleter<Self>>;
}

impl Managed for ManagedTensorVersioned {
    fn new(dl_tensor: Tensor, deleter: Deleter<Self>) -> Self {
        Self {
            version: VERSION,
            manager_ctx: core::ptr::null_mut(),
            deleter: Some(deleter),
            flags: 0,
            dl_tensor,
        }
    }

    fn open(&self) -> Result<(&Tensor, bool), PackError> {
        if self.version.major != VERSION.major {
            return Err(PackError::Version(self.version));
        }
        Ok((&self.dl_tensor, self.flags & READ_ONLY == 0))
    }

    fn deleter(&self) -> Option<Deleter<Self>> {
        self.deleter
    }
}

impl Managed for ManagedTensor {
    fn new(dl_tensor: Tensor, deleter: Deleter<Self>) -> Self {
        Self {
            dl_tensor,
            manager_ctx: core::ptr::null_mut(),
            deleter: Some(deleter),
        }
    }

    fn open(&self) -> Result<(&Tensor, bool), PackError> {
        Ok((&self.dl_tensor, true))
    }

    fn deleter(&self) -> Option<Deleter<Self>> {
        self.deleter
    }
}

/// DLPACK1: the tensor is the first field, so it has the address of the box.
#[repr(C)]
struct ExportedTensor<M, T> {
    managed: M,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    _buffer: DeviceBuffer<T>,
}

/// The deleter of an export.
///
/// # Safety
/// The tensor is an export of this type, and nothing uses it any more.
unsafe extern "C" fn delete<M, T>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: DLPACK1: the tensor is the start of its box; the caller passes it once.
        drop(unsafe { Box::from_raw(managed.cast::<ExportedTensor<M, T>>()) });
    }
}

/// The type, shape and strides of a tensor, in values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout<'a> {
    /// Type of the values.
    pub dtype: DataType,
    /// Values in each dimension.
    pub shape: &'a [i64],
    /// Distance between neighbours in each dimension, in values; never negative.
    pub strides: &'a [i64],
}

impl Layout<'_> {
    /// Returns the number of places from the first value to the last, both included; `None` if a number is
    /// negative or too large.
    fn span(self) -> Option<usize> {
        let mut last = 0_usize;
        for (count, stride) in self.shape.iter().zip(self.strides) {
            let (count, stride) = (
                usize::try_from(*count).ok()?,
                usize::try_from(*stride).ok()?,
            );
            let Some(steps) = count.checked_sub(1) else {
                return Some(0);
            };
            last = last.checked_add(steps.checked_mul(stride)?)?;
        }
        (self.shape.len() == self.strides.len()).then_some(())?;
        last.checked_add(1)
    }

    fn check<T>(self, len: usize) -> Result<(), PackError> {
        if self.dtype.bytes() != Some(size_of::<T>()) {
            return Err(PackError::Type { dtype: self.dtype });
        }
        let span = self.span().ok_or(PackError::Shape)?;
        if span > len || i32::try_from(self.shape.len()).is_err() {
            return Err(PackError::Shape);
        }
        Ok(())
    }
}

impl<T: DeviceRepr + Send + 'static> DeviceBuffer<T> {
    /// Exports the buffer to another library, for work that is queued on `stream` from now on. When the
    /// deleter is called, on any thread, the memory is freed in the order of that stream. Other streams that
    /// the library uses must be joined with it before then.
    ///
    /// Costs as much as ordering a copy on the stream: no driver call if only `stream` has used the buffer.
    ///
    /// # Errors
    /// Returns the buffer if the layout does not match its values, or the stream could not be ordered.
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn into_dlpack(
        self,
        stream: &Arc<CudaStream>,
        layout: Layout<'_>,
    ) -> Result<NonNull<ManagedTensorVersioned>, Returned<Self, PackError>> {
        self.export(stream, layout)
    }

    /// Exports the buffer to a library that knows only unversioned DLPack; see
    /// [`into_dlpack`](Self::into_dlpack).
    ///
    /// # Errors
    /// The errors of [`into_dlpack`](Self::into_dlpack).
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn into_dlpack_unversioned(
        self,
        stream: &Arc<CudaStream>,
        layout: Layout<'_>,
    ) -> Result<NonNull<ManagedTensor>, Returned<Self, PackError>> {
        self.export(stream, layout)
    }

    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    fn export<M: Managed>(
        self,
        stream: &Arc<CudaStream>,
        layout: Layout<'_>,
    ) -> Result<NonNull<M>, Returned<Self, PackError>> {
        // DLPACK2: orders the stream and notes a write.
        let order = || match self.block {
            Some(_) => self.shared.order(stream, false, Uses::write),
            None => Ok(()),
        };
        let checked = layout.check::<T>(self.len);
        if let Err(error) = checked.and_then(|()| order().map_err(PackError::Order)) {
            return Err(Returned { value: self, error });
        }
        let (mut shape, mut strides) = (layout.shape.to_vec(), layout.strides.to_vec());
        let tensor = Tensor {
            data: core::ptr::without_provenance_mut(self.address as usize),
            device: Device {
                device_type: CUDA,
                device_id: self.allocator().context().ordinal(),
            },
            ndim: shape.len() as i32,
            dtype: layout.dtype,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let exported = Box::new(ExportedTensor {
            managed: M::new(tensor, delete::<M, T>),
            _shape: shape,
            _strides: strides,
            _buffer: self,
        });
        Ok(NonNull::from(Box::leak(exported)).cast())
    }
}

/// The values of another library's tensor, from the first to the last in memory, as a buffer. Dropping the
/// buffer waits on the host until its streams have finished with the values, and then calls the producer's
/// deleter (DLPACK3).
pub struct ImportedBuffer<T> {
    /// A buffer without a block.
    buffer: DeviceBuffer<T>,
    dtype: DataType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    is_writable: bool,
    tensor: NonNull<c_void>,
    /// Calls the tensor's deleter.
    release: unsafe fn(NonNull<c_void>),
}

impl<T: DeviceRepr> ImportedBuffer<T> {
    /// Imports a tensor for work on `stream`. Uses on other streams are ordered by `memory`. O(dimensions).
    ///
    /// # Safety
    /// The tensor is valid, no other consumer takes it, its values are values of `T`, and they are ready for
    /// work that is queued on `stream` from now on. If the tensor is writable, nothing else uses the values
    /// until the returned buffer is dropped.
    ///
    /// # Errors
    /// [`PackError`]; the caller keeps the tensor, and calls its deleter.
    pub unsafe fn from_dlpack(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        tensor: NonNull<ManagedTensorVersioned>,
    ) -> Result<Self, PackError> {
        // SAFETY: the caller makes the same promise.
        unsafe { Self::import(memory, stream, tensor) }
    }

    /// Imports a tensor of unversioned DLPack; see [`from_dlpack`](Self::from_dlpack).
    ///
    /// # Safety
    /// The promise of [`from_dlpack`](Self::from_dlpack).
    ///
    /// # Errors
    /// The errors of [`from_dlpack`](Self::from_dlpack).
    pub unsafe fn from_dlpack_unversioned(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        tensor: NonNull<ManagedTensor>,
    ) -> Result<Self, PackError> {
        // SAFETY: the caller makes the same promise.
        unsafe { Self::import(memory, stream, tensor) }
    }

    /// # Safety
    /// The promise of [`from_dlpack`](Self::from_dlpack).
    unsafe fn import<M: Managed>(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        managed: NonNull<M>,
    ) -> Result<Self, PackError> {
        // SAFETY: the caller's tensor is valid. Every version of the layout begins with the version.
        let (tensor, is_writable) = unsafe { managed.as_ref() }.open()?;
        let device = tensor.device;
        let is_ours = [CUDA, CUDA_MANAGED].contains(&device.device_type)
            && device.device_id == memory.context().ordinal();
        if !is_ours {
            return Err(PackError::Device(device));
        }
        let ndim = usize::try_from(tensor.ndim).map_err(|_| PackError::Shape)?;
        // SAFETY: a valid tensor has `ndim` numbers here.
        let shape = unsafe { numbers(tensor.shape, ndim) }.ok_or(PackError::Shape)?;
        // SAFETY: a valid tensor has `ndim` numbers here, or null.
        let strides = unsafe { numbers(tensor.strides, ndim) };
        let strides = strides.or_else(|| dense(&shape)).ok_or(PackError::Shape)?;
        let dtype = tensor.dtype;
        let layout = Layout {
            dtype,
            shape: &shape,
            strides: &strides,
        };
        let len = layout.span().ok_or(PackError::Shape)?;
        layout.check::<T>(len)?;
        let address = (tensor.data.addr() as u64).wrapping_add(tensor.byte_offset);
        if !address.is_multiple_of(align_of::<T>() as u64) {
            return Err(PackError::Type { dtype });
        }
        // SAFETY: the caller promises values, memory and order until the import is dropped, which waits.
        let buffer = unsafe { DeviceBuffer::over(memory, stream, address, len) };
        Ok(Self {
            buffer: buffer.map_err(PackError::Order)?,
            dtype,
            shape,
            strides,
            is_writable,
            tensor: managed.cast(),
            release: release::<M>,
        })
    }
}

impl<T> ImportedBuffer<T> {
    /// Returns a view for reading.
    pub fn as_view(&self) -> BufferView<'_, T> {
        self.buffer.as_view()
    }

    /// Returns a view for writing; `None` if the producer forbids writes.
    pub fn as_view_mut(&mut self) -> Option<BufferViewMut<'_, T>> {
        self.is_writable.then(|| self.buffer.as_view_mut())
    }

    /// Returns the layout of the tensor's values in a view.
    pub fn layout(&self) -> Layout<'_> {
        Layout {
            dtype: self.dtype,
            shape: &self.shape,
            strides: &self.strides,
        }
    }
}

impl<T> Drop for ImportedBuffer<T> {
    fn drop(&mut self) {
        let waited = self.buffer.order_own_stream().is_ok()
            && self
                .buffer
                .allocator()
                .context()
                .wait_for(self.buffer.stream())
                .is_ok();
        // DLPACK3: after a failed wait, the tensor is leaked instead of returned.
        if waited {
            // SAFETY: the tensor was imported with this layout, its streams were waited for, and it is
            // returned once.
            unsafe { (self.release)(self.tensor) };
        }
    }
}

impl<T> fmt::Debug for ImportedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedBuffer")
            .field("layout", &self.layout())
            .finish_non_exhaustive()
    }
}

/// Calls the deleter of a tensor.
///
/// # Safety
/// The tensor is of this layout, and nothing uses it any more.
unsafe fn release<M: Managed>(tensor: NonNull<c_void>) {
    let tensor = tensor.cast::<M>();
    // SAFETY: the caller's tensor is valid until its deleter is called.
    let deleter = unsafe { tensor.as_ref() }.deleter();
    if let Some(deleter) = deleter {
        // SAFETY: the caller passes the tensor once, and nothing uses it any more.
        unsafe { deleter(tensor.as_ptr()) };
    }
}

/// Reads `count` numbers; `None` if the pointer is null and `count` is not 0.
///
/// # Safety
/// A pointer that is not null points to `count` numbers.
unsafe fn numbers(place: *const i64, count: usize) -> Option<Vec<i64>> {
    match (place.is_null(), count) {
        (_, 0) => Some(Vec::new()),
        (true, _) => None,
        // SAFETY: the caller promises `count` numbers.
        (false, _) => Some(unsafe { core::slice::from_raw_parts(place, count) }.to_vec()),
    }
}

/// Returns the strides of a contiguous tensor whose last dimension is the densest.
fn dense(shape: &[i64]) -> Option<Vec<i64>> {
    let mut strides = vec![1; shape.len()];
    let mut next = 1_i64;
    for (stride, count) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next = next.checked_mul(*count)?;
    }
    Some(strides)
}
