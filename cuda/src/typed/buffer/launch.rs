//! [`Launch`]: kernels that take buffers.
//!
//! cudarc's `LaunchArgs` keeps its stream to itself: an argument of another crate's type cannot tell where
//! the kernel will run, so none of ours is one. A `Launch` holds the stream beside it.
//!
//! LAUNCH1 When a buffer becomes an argument, the stream of the launch is ordered for it as for a copy.
//!    Nothing else that matters to the kernel is queued until the launch: so long is the buffer borrowed.
//! LAUNCH2 Where one argument could not be ordered nothing is launched, now or by a later call.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::{
    self as cuda, CudaEvent, CudaFunction, CudaStream, LaunchArgs, LaunchConfig, PushKernelArg, sys,
};

use super::view::Part;
use super::{BufferView, BufferViewMut, DeviceBuffer, Uses, in_our_words};
use crate::DeviceAllocError;

/// A kernel and its arguments, to be launched on a stream: cudarc's `launch_builder`, which takes buffers
/// and their parts as well. Each is put in order on the stream, wherever it was used before.
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
/// Whatever cudarc's builder takes is an argument here, too. A buffer is none of cudarc's, since it could
/// not be put in order there:
///
/// ```compile_fail,E0277
/// # use cudarc::driver::{CudaFunction, PushKernelArg};
/// # fn example(stream: &larder_cuda::CudaStream, add: CudaFunction, sum: larder_cuda::DeviceBuffer<f32>) {
/// stream.launch_builder(&add).arg(&sum);
/// # }
/// ```
///
/// # Costs
/// For each buffer what a copy on the stream would cost: no driver call on the one stream that uses it. The
/// stream becomes [known](crate::DeviceAllocator::add_stream) to the buffer's allocator.
pub struct Launch<'a> {
    args: LaunchArgs<'a>,
    stream: &'a Arc<CudaStream>,
    /// LAUNCH2.
    refused: Option<DeviceAllocError>,
}

/// What cudarc answers: the events around a launch, where it was told to record them.
type Launched = Result<Option<(CudaEvent, CudaEvent)>, cuda::DriverError>;

impl<'a> Launch<'a> {
    /// A launch of `function` on `stream`, without arguments as yet.
    pub fn on(stream: &'a Arc<CudaStream>, function: &'a CudaFunction) -> Self {
        Self {
            args: stream.launch_builder(function),
            stream,
            refused: None,
        }
    }

    /// Has each launch record two events, before the kernel and behind it, which it gives back.
    pub fn record_kernel_launch(&mut self, flags: sys::CUevent_flags) -> &mut Self {
        self.args.record_kernel_launch(flags);
        self
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The kernel takes the arguments as they were given, writes only what was given as `&mut`, and touches
    /// no memory beside; see [`LaunchArgs::launch`].
    ///
    /// # Errors
    /// The first argument's that could not be ordered: [`DeviceAllocError::Stream`],
    /// [`DeviceAllocError::Streams`], or what the driver refused. Else the driver's, if it does not launch.
    pub unsafe fn launch(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, DeviceAllocError> {
        // SAFETY: the caller promises what cudarc asks for.
        let act = |args: &mut LaunchArgs<'a>| unsafe { args.launch(config) };
        self.launch_by("cuLaunchKernel", act)
    }

    /// Queues a kernel whose blocks wait for each other.
    ///
    /// # Safety
    /// What [`launch`](Self::launch) asks for.
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch).
    pub unsafe fn launch_cooperative(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, DeviceAllocError> {
        // SAFETY: the caller promises what cudarc asks for.
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

    /// One more argument: a part whose address stays at `address`, for work that is noted like that.
    fn part<T>(
        &mut self,
        address: &'a sys::CUdeviceptr,
        part: Part<'_>,
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

/// What cudarc takes.
// SAFETY: cudarc's own builder gets the argument.
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

/// The kernel reads the buffer.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b DeviceBuffer<T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b DeviceBuffer<T>) -> &mut Self {
        self.part::<T>(&arg.address, arg.as_view().part, Uses::read)
    }
}

/// The kernel writes the buffer.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut DeviceBuffer<T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b mut DeviceBuffer<T>) -> &mut Self {
        self.part::<T>(&arg.address, arg.as_view().part, Uses::write)
    }
}

/// The kernel reads a part of a buffer.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b BufferView<'c, T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b BufferView<'c, T>) -> &mut Self {
        self.part::<T>(&arg.part.address, arg.part, Uses::read)
    }
}

/// The kernel reads a part of a buffer that it could write.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b BufferViewMut<'c, T>> for Launch<'a> {
    fn arg(&mut self, arg: &'b BufferViewMut<'c, T>) -> &mut Self {
        self.part::<T>(&arg.part.address, arg.part, Uses::read)
    }
}

/// The kernel writes a part of a buffer.
// SAFETY: the argument is the address, which stays where it is while it is borrowed.
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
