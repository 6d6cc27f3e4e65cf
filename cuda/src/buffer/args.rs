//! Buffers as arguments of kernels.
//!
//! An argument does not see the stream of its launch. So `.arg(&buffer)` means the buffer's own stream,
//! and for a launch on another one `arg_on` and `arg_mut_on` order that stream first. The kernel gets the
//! address of the first value.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaStream, LaunchArgs, PushKernelArg, sys};

use super::view::Part;
use super::{BufferView, BufferViewMut, DeviceBuffer, Uses};
use crate::DeviceAllocError;

/// A buffer or a part of one as the argument of a kernel that reads it; see
/// [`DeviceBuffer::arg_on`].
pub struct BufferArg<'a, T> {
    address: sys::CUdeviceptr,
    values: PhantomData<&'a [T]>,
}

/// A buffer or a part of one as the argument of a kernel that writes it; see [`DeviceBuffer::arg_mut_on`].
pub struct BufferArgMut<'a, T> {
    address: sys::CUdeviceptr,
    values: PhantomData<&'a mut [T]>,
}

impl<T> DeviceBuffer<T> {
    /// An argument for kernels on `stream`, launched from now on, that read. Waits as a copy would; the
    /// stream becomes [known](crate::DeviceAllocator::add_stream).
    ///
    /// ```no_run
    /// # use larder_cuda::{Context, DeviceAllocator};
    /// use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
    ///
    /// # fn example(add_one: CudaFunction) -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::new(0)?;
    /// # let memory = DeviceAllocator::new(&context)?;
    /// let (own, other) = (context.cudarc().new_stream()?, context.cudarc().new_stream()?);
    /// let mut numbers = memory.zeros::<f32>(&own, 100)?;
    /// let config = LaunchConfig::for_num_elems(100);
    /// // SAFETY: the kernel takes one pointer and writes 100 numbers.
    /// unsafe { own.launch_builder(&add_one).arg(&mut numbers).launch(config) }?;
    /// let mut there = numbers.arg_mut_on(&other)?;
    /// // SAFETY: the kernel takes one pointer and writes 100 numbers.
    /// unsafe { other.launch_builder(&add_one).arg(&mut there).launch(config) }?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`], and if the stream could not be ordered
    /// behind the others.
    pub fn arg_on(&self, stream: &Arc<CudaStream>) -> Result<BufferArg<'_, T>, DeviceAllocError> {
        self.as_view().arg_on(stream)
    }

    /// An argument for kernels on `stream`, launched from now on, that write. Waits as a copy would; the
    /// stream becomes [known](crate::DeviceAllocator::add_stream).
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`], and if the stream could not be ordered
    /// behind the others.
    pub fn arg_mut_on(
        &mut self,
        stream: &Arc<CudaStream>,
    ) -> Result<BufferArgMut<'_, T>, DeviceAllocError> {
        let part = self.as_view_mut().part;
        part.order::<T>(stream, Uses::write)?;
        Ok(BufferArgMut {
            address: self.address,
            values: PhantomData,
        })
    }
}

impl<'a, T> BufferView<'a, T> {
    /// An argument for kernels on `stream` that read this part; see [`DeviceBuffer::arg_on`].
    ///
    /// # Errors
    /// Those of the same function of [`DeviceBuffer`].
    pub fn arg_on(&self, stream: &Arc<CudaStream>) -> Result<BufferArg<'a, T>, DeviceAllocError> {
        self.part.order::<T>(stream, Uses::read)?;
        Ok(BufferArg {
            address: self.part.address,
            values: PhantomData,
        })
    }
}

impl<T> BufferViewMut<'_, T> {
    /// An argument for kernels on `stream` that write this part; see [`DeviceBuffer::arg_mut_on`].
    ///
    /// # Errors
    /// Those of the same function of [`DeviceBuffer`].
    pub fn arg_mut_on(
        &mut self,
        stream: &Arc<CudaStream>,
    ) -> Result<BufferArgMut<'_, T>, DeviceAllocError> {
        self.part.order::<T>(stream, Uses::write)?;
        Ok(BufferArgMut {
            address: self.part.address,
            values: PhantomData,
        })
    }
}

impl Part<'_> {
    fn order<T>(
        &self,
        stream: &Arc<CudaStream>,
        note: impl FnOnce(&mut Uses, super::Use<'_>) -> Result<(), cudarc::driver::DriverError>,
    ) -> Result<(), DeviceAllocError> {
        if self.has_bytes::<T>() {
            self.shared.order(stream, self.beside, note)
        } else {
            Ok(())
        }
    }

    /// For a launch on the buffer's own stream, which has a number: there is nothing to be done behind it.
    fn read_on_origin<T>(&self) {
        if self.has_bytes::<T>() {
            drop(self.shared.read(&self.shared.stream, self.beside));
        }
    }

    fn write_on_origin<T>(&self) {
        if self.has_bytes::<T>() {
            drop(self.shared.write(&self.shared.stream, self.beside));
        }
    }
}

/// A kernel on the buffer's own stream reads it.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b DeviceBuffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b DeviceBuffer<T>) -> &mut Self {
        arg.as_view().part.read_on_origin::<T>();
        <Self as PushKernelArg<&'b sys::CUdeviceptr>>::arg(self, &arg.address)
    }
}

/// A kernel on the buffer's own stream writes it.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut DeviceBuffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut DeviceBuffer<T>) -> &mut Self {
        arg.as_view_mut().part.write_on_origin::<T>();
        <Self as PushKernelArg<&'b sys::CUdeviceptr>>::arg(self, &arg.address)
    }
}

/// A kernel on the buffer's own stream reads a part of it.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b BufferView<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b BufferView<'c, T>) -> &mut Self {
        arg.part.read_on_origin::<T>();
        <Self as PushKernelArg<&'b sys::CUdeviceptr>>::arg(self, &arg.part.address)
    }
}

/// A kernel on the buffer's own stream writes a part of it.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut BufferViewMut<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut BufferViewMut<'c, T>) -> &mut Self {
        arg.part.write_on_origin::<T>();
        <Self as PushKernelArg<&'b sys::CUdeviceptr>>::arg(self, &arg.part.address)
    }
}

// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b BufferArg<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b BufferArg<'c, T>) -> &mut Self {
        <Self as PushKernelArg<&'b sys::CUdeviceptr>>::arg(self, &arg.address)
    }
}

// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut BufferArgMut<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut BufferArgMut<'c, T>) -> &mut Self {
        <Self as PushKernelArg<&'b sys::CUdeviceptr>>::arg(self, &arg.address)
    }
}

impl<T> fmt::Debug for BufferArg<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferArg({:#x})", self.address)
    }
}

impl<T> fmt::Debug for BufferArgMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferArgMut({:#x})", self.address)
    }
}
