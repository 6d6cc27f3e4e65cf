//! [`Launch`]: kernel launches that take buffers.
//!
//! cudarc's `LaunchArgs` keeps its stream private, so an argument whose type is from another crate cannot
//! know where the kernel will run. Therefore our types are not arguments there, and a `Launch` stores the
//! stream as well.
//!
//! LAUNCH1 When a buffer becomes an argument, the launch's stream is ordered as for a copy of the buffer. No
//! other use of the buffer that conflicts with the kernel's is queued before the launch, since the buffer is
//! borrowed until then.
//! LAUNCH2 If the use of an argument could not be ordered, neither this call nor a later one launches
//! anything.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::{
    self as cuda, CudaEvent, CudaFunction, CudaStream, LaunchArgs, LaunchConfig, PushKernelArg, sys,
};

use super::view::ViewPart;
use super::{BufferView, BufferViewMut, DeviceBuffer, Uses, in_our_words};
use crate::DeviceAllocError;

/// A kernel and its arguments, to be launched on a stream: cudarc's `launch_builder` with buffers and their
/// parts as further arguments. The launch is ordered after their earlier uses on any stream.
///
/// ```no_run
/// use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
/// use larder_cuda::{Context, DeviceAllocator, Launch};
///
/// # fn example(add: CudaFunction) -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::new(&context)?;
/// let (copies, kernels) = (context.cudarc().new_stream()?, context.cudarc().new_stream()?);
/// let ones = memory.upload(&copies, &[1.0_f32; 100])?;
/// let mut sum = memory.zeros::<f32>(&kernels, 100)?;
/// // SAFETY: the kernel takes two pointers to 100 numbers each, and their count.
/// unsafe {
///     Launch::on(&kernels, &add)
///         .arg(&mut sum)
///         .arg(&ones) // waits for the upload
///         .arg(&100_u32)
///         .launch(LaunchConfig::for_num_elems(100))
/// }?;
/// # Ok(())
/// # }
/// ```
///
/// All arguments of cudarc's builder are accepted here, too. cudarc's builder accepts no buffer, since it
/// could not order the buffer's uses:
///
/// ```compile_fail,E0277
/// # use cudarc::driver::{CudaFunction, PushKernelArg};
/// # fn example(stream: &larder_cuda::CudaStream, add: CudaFunction, sum: larder_cuda::DeviceBuffer<f32>) {
/// stream.launch_builder(&add).arg(&sum);
/// # }
/// ```
///
/// # Cost
/// Each buffer costs as much as ordering a copy on the stream: no driver call if only that stream uses the
/// buffer. The stream is [added](crate::DeviceAllocator::add_stream) to the buffer's allocator.
pub struct Launch<'a> {
    args: LaunchArgs<'a>,
    stream: &'a Arc<CudaStream>,
    /// The first refusal (LAUNCH2).
    refused: Option<DeviceAllocError>,
}

/// The result of cudarc's launch: the events around it, if they are recorded.
type Launched = Result<Option<(CudaEvent, CudaEvent)>, cuda::DriverError>;

impl<'a> Launch<'a> {
    /// Makes a launch of `function` on `stream` that has no arguments yet.
    pub fn on(stream: &'a Arc<CudaStream>, function: &'a CudaFunction) -> Self {
        Self {
            args: stream.launch_builder(function),
            stream,
            refused: None,
        }
    }

    /// Makes each launch record and return two events: one before the kernel and one after it.
    pub fn record_kernel_launch(&mut self, flags: sys::CUevent_flags) -> &mut Self {
        self.args.record_kernel_launch(flags);
        self
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The kernel takes the arguments as they were passed, writes only arguments passed as `&mut`, and
    /// accesses no other memory; see [`LaunchArgs::launch`].
    ///
    /// # Errors
    /// The error of the first argument that could not be ordered: [`DeviceAllocError::Asleep`],
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`], or the driver's refusal. Otherwise the
    /// driver's error, if it refuses the launch.
    pub unsafe fn launch(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, DeviceAllocError> {
        // SAFETY: the caller keeps cudarc's promise.
        let act = |args: &mut LaunchArgs<'a>| unsafe { args.launch(config) };
        self.launch_by("cuLaunchKernel", act)
    }

    /// Queues the kernel as a cooperative launch, whose thread blocks may wait for each other.
    ///
    /// # Safety
    /// The promise of [`launch`](Self::launch).
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch).
    pub unsafe fn launch_cooperative(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, DeviceAllocError> {
        // SAFETY: the caller keeps cudarc's promise.
        let act = |args: &mut LaunchArgs<'a>| unsafe { args.launch_cooperative(config) };
        self.launch_by("cuLaunchCooperativeKernel", act)
    }

    fn launch_by(
        &mut self,
        function: &'static str,
        act: impl FnOnce(&mut LaunchArgs<'a>) -> Launched,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, DeviceAllocError> {
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => act(&mut self.args).map_err(|error| in_our_words(function, error).into()),
        }
    }

    /// Adds the address of a part, which stays at `address`, as an argument; `note` orders and notes the use
    /// of the part.
    fn part<T>(
        &mut self,
        address: &'a sys::CUdeviceptr,
        part: ViewPart<'_>,
        note: impl FnOnce(&mut Uses, super::Use<'_>) -> Result<(), cuda::DriverError>,
    ) -> &mut Self {
        if part.has_bytes::<T>() {
            let ordered = part.shared.order(self.stream, part.beside, note);
            self.refused = self.refused.take().or(ordered.err());
        }
        self.args.arg(address);
        self
    }
}

/// An argument that cudarc's builder accepts.
// SAFETY: the argument is passed to cudarc's own builder.
unsafe impl<'a, A> PushKernelArg<A> for Launch<'a>
where
    LaunchArgs<'a>: PushKernelArg<A>,
{
    #[inline(always)]
    fn arg(&mut self, arg: A) -> &mut Self {
        self.args.arg(arg);
        self
    }
}

/// A buffer that the kernel reads.
// SAFETY: the argument is the address, which stays in place while it is borrowed.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b DeviceBuffer<T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b DeviceBuffer<T>) -> &mut Self {
        self.part::<T>(&arg.address, arg.as_view().part, Uses::read)
    }
}

/// A buffer that the kernel writes.
// SAFETY: the argument is the address, which stays in place while it is borrowed.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut DeviceBuffer<T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b mut DeviceBuffer<T>) -> &mut Self {
        self.part::<T>(&arg.address, arg.as_view().part, Uses::write)
    }
}

/// A part of a buffer that the kernel reads.
// SAFETY: the argument is the address, which stays in place while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b BufferView<'c, T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b BufferView<'c, T>) -> &mut Self {
        self.part::<T>(&arg.part.address, arg.part, Uses::read)
    }
}

/// A writable part of a buffer that the kernel only reads.
// SAFETY: the argument is the address, which stays in place while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b BufferViewMut<'c, T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b BufferViewMut<'c, T>) -> &mut Self {
        self.part::<T>(&arg.part.address, arg.part, Uses::read)
    }
}

/// A part of a buffer that the kernel writes.
// SAFETY: the argument is the address, which stays in place while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut BufferViewMut<'c, T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b mut BufferViewMut<'c, T>) -> &mut Self {
        self.part::<T>(&arg.part.address, arg.part, Uses::write)
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("stream", &self.stream.cu_stream())
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}
