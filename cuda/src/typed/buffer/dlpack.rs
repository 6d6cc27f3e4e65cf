//! DLPack: tensors given to other libraries of the process, and taken from them, without a copy.
//!
//! The structs are those of DLPack's C interface, version 1 and the one without a version before it. DLPack
//! carries no stream: two libraries agree on one beside it, as Python's `__dlpack__(stream)` does.
//!
//! PACK1 What is exported is one box with the tensor at a fixed place, its shape and its buffer. Only the
//!    deleter frees it.
//! PACK2 The stream of an export is ordered behind all that used the buffer, and noted as one that writes it.
//!    So the deleter, which waits for nothing, frees the memory behind what is queued there.
//! PACK3 The producer of an import knows nothing of our streams: they are waited for before its deleter is
//!    called. Where that is refused it is not called.

use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr};

use super::{BufferView, BufferViewMut, DeviceBuffer, Uses};
use crate::{DeviceAllocError, DeviceAllocator, Returned};

/// The version that exports say, and the newest that imports know.
const VERSION: Version = Version { major: 1, minor: 0 };

/// `kDLCUDA` and `kDLCUDAManaged`: addresses that a device's kernels use.
const CUDA: i32 = 2;
const CUDA_MANAGED: i32 = 13;

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

/// `DLPackVersion`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Version {
    /// Another one has another layout.
    pub major: u32,
    /// A newer one has more constants.
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
    /// 16 bits, as IEEE 754 has them.
    pub const F16: Self = Self::new(2, 16);
    /// 16 bits with the range of `f32`.
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

    /// Bytes of a value; `None` if it is not whole bytes.
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
    /// Whose.
    pub device: Device,
    /// Dimensions.
    pub ndim: i32,
    /// Of the values.
    pub dtype: DataType,
    /// Values in each dimension.
    pub shape: *mut i64,
    /// Values from one place to the next in each dimension; null if the last is densest and none is left out.
    pub strides: *mut i64,
    /// Bytes from `data` to the first value.
    pub byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[derive(Debug)]
#[repr(C)]
pub struct ManagedTensorVersioned {
    /// What whoever takes it looks at first.
    pub version: Version,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// To be called once by whoever has taken the tensor, when nothing uses it any more.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// Bit 0: not to be written.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: Tensor,
}

/// `DLManagedTensor`, of before versions.
#[derive(Debug)]
#[repr(C)]
pub struct ManagedTensor {
    /// The tensor.
    pub dl_tensor: Tensor,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// To be called once by whoever has taken the tensor, when nothing uses it any more.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// Why a tensor was not given or taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Shape and strides have different lengths, a negative number, or name places outside of the buffer.
    #[error("the shape and strides name values that the buffer does not have")]
    Shape,
    /// The type's bytes are not those of the buffer's values, or the address is not aligned for them.
    #[error("{} bits by {} are not the type of the values", dtype.bits, dtype.lanes)]
    Type {
        /// What the tensor has.
        dtype: DataType,
    },
    /// The tensor has another layout than is known.
    #[error("the tensor is of DLPack {}.{}, which is not known: ask its producer for version 1", .0.major, .0.minor)]
    Version(Version),
    /// The tensor is another device's, or the host's.
    #[error("the tensor is on device {} of kind {}: copy it", .0.device_id, .0.device_type)]
    Device(Device),
    /// The streams could not be put in order.
    #[error("{0}")]
    Order(DeviceAllocError),
}

/// What ends a tensor of one of the two layouts.
type Deleter<M> = unsafe extern "C" fn(*mut M);

/// A tensor of one of the two layouts.
trait Managed: Sized {
    fn new(dl_tensor: Tensor, deleter: Deleter<Self>) -> Self;
    /// The tensor, and whether it may be written.
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

/// PACK1: the tensor is its first field, so the address of one is that of the other.
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
/// The tensor is one of these exports, and nothing uses it any more.
unsafe extern "C" fn delete<M, T>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: PACK1, and the caller gives it once.
        drop(unsafe { Box::from_raw(managed.cast::<ExportedTensor<M, T>>()) });
    }
}

/// The type, shape and strides of a tensor, in values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout<'a> {
    /// Of the values.
    pub dtype: DataType,
    /// Values in each dimension.
    pub shape: &'a [i64],
    /// Values from one place to the next in each dimension, none of them negative.
    pub strides: &'a [i64],
}

impl Layout<'_> {
    /// How many values there are from the first place to the last; `None` if a number is negative or too
    /// large.
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
    /// Gives the buffer to another library, for work that is queued on `stream` from now on. The memory is
    /// freed in the order of that stream when the deleter is called, by any thread; other streams that the
    /// library uses are joined with it before.
    ///
    /// Costs what a copy on the stream would, and no call for the buffer's own.
    ///
    /// # Errors
    /// Gives the buffer back if the layout is not one of its values, or the stream could not be ordered.
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn into_dlpack(
        self,
        stream: &Arc<CudaStream>,
        layout: Layout<'_>,
    ) -> Result<NonNull<ManagedTensorVersioned>, Returned<Self, PackError>> {
        self.export(stream, layout)
    }

    /// Gives the buffer to another library that knows DLPack of before versions only; see
    /// [`into_dlpack`](Self::into_dlpack).
    ///
    /// # Errors
    /// Those of [`into_dlpack`](Self::into_dlpack).
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
        // PACK2.
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

/// Values of another library's tensor, from its first place to its last, as a buffer that gives them back
/// when it is dropped: the host waits until its streams are done with them (PACK3).
pub struct ImportedBuffer<T> {
    /// Of no block.
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
    /// Takes a tensor for work on `stream`, which the streams of `memory` are put in order with.
    /// O(dimensions).
    ///
    /// # Safety
    /// The tensor is whole, no other consumer takes it, its values are values of `T`, and they are there for
    /// work that is queued on `stream` from now on. If it may be written, nothing else uses them until this
    /// is dropped.
    ///
    /// # Errors
    /// [`PackError`]; the tensor is the caller's as before, who calls its deleter.
    pub unsafe fn from_dlpack(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        tensor: NonNull<ManagedTensorVersioned>,
    ) -> Result<Self, PackError> {
        // SAFETY: the caller promises the same.
        unsafe { Self::import(memory, stream, tensor) }
    }

    /// Takes a tensor of DLPack of before versions; see [`from_dlpack`](Self::from_dlpack).
    ///
    /// # Safety
    /// That of [`from_dlpack`](Self::from_dlpack).
    ///
    /// # Errors
    /// Those of [`from_dlpack`](Self::from_dlpack).
    pub unsafe fn from_dlpack_unversioned(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        tensor: NonNull<ManagedTensor>,
    ) -> Result<Self, PackError> {
        // SAFETY: the caller promises the same.
        unsafe { Self::import(memory, stream, tensor) }
    }

    /// # Safety
    /// That of [`from_dlpack`](Self::from_dlpack).
    unsafe fn import<M: Managed>(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        managed: NonNull<M>,
    ) -> Result<Self, PackError> {
        // SAFETY: the caller's tensor is whole. One of another version begins with the version, too.
        let (tensor, is_writable) = unsafe { managed.as_ref() }.open()?;
        let device = tensor.device;
        let is_ours = [CUDA, CUDA_MANAGED].contains(&device.device_type)
            && device.device_id == memory.context().ordinal();
        if !is_ours {
            return Err(PackError::Device(device));
        }
        let ndim = usize::try_from(tensor.ndim).map_err(|_| PackError::Shape)?;
        // SAFETY: a tensor has as many numbers as dimensions.
        let shape = unsafe { numbers(tensor.shape, ndim) }.ok_or(PackError::Shape)?;
        // SAFETY: a tensor has as many numbers as dimensions.
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
        // SAFETY: the caller promises values, memory and order until this is dropped, which waits.
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
    /// The values, to be read.
    pub fn as_view(&self) -> BufferView<'_, T> {
        self.buffer.as_view()
    }

    /// The values, to be written as well; `None` if the producer forbids that.
    pub fn as_view_mut(&mut self) -> Option<BufferViewMut<'_, T>> {
        self.is_writable.then(|| self.buffer.as_view_mut())
    }

    /// Where in them the tensor's values are.
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
        // PACK3: memory that is not given back is only lost.
        if waited {
            // SAFETY: it was imported as one of this layout, and is given back once.
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
    // SAFETY: the caller's tensor is whole until its deleter was called.
    let deleter = unsafe { tensor.as_ref() }.deleter();
    if let Some(deleter) = deleter {
        // SAFETY: the caller gives it back once.
        unsafe { deleter(tensor.as_ptr()) };
    }
}

/// So many numbers; `None` if there is no place of them though there should be some.
///
/// # Safety
/// A place that is not null has so many.
unsafe fn numbers(place: *const i64, count: usize) -> Option<Vec<i64>> {
    match (place.is_null(), count) {
        (_, 0) => Some(Vec::new()),
        (true, _) => None,
        // SAFETY: the caller promises so many.
        (false, _) => Some(unsafe { core::slice::from_raw_parts(place, count) }.to_vec()),
    }
}

/// Strides of a tensor without gaps whose last dimension is densest.
fn dense(shape: &[i64]) -> Option<Vec<i64>> {
    let mut strides = vec![1; shape.len()];
    let mut next = 1_i64;
    for (stride, count) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next = next.checked_mul(*count)?;
    }
    Some(strides)
}
