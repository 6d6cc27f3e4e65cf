//! [`LaunchPacer`]: launches that keep to a job's share of the time.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, DriverError, LaunchArgs, LaunchConfig};
use larder_control::{Clock, DutyCycleReader, Pacer, PacerReport};

use super::JobShared;
use super::device_time::QueuedRuns;
use crate::{DeviceAllocError, Launch};

/// Delays launches so that they keep to a job's share of the time. Clones share the pacer.
///
/// Any work counts as a launch: call [`launch`](Self::launch) before a copy or a graph as before a kernel. At
/// full share a launch costs one load. Below full share each launch waits for an equal part of the run's
/// pause ([`Pacer`]), and at share 0 until the share is raised. Inside [`Job::run_on`](super::Job::run_on) a
/// launch that waits lets the device finish first. Work that is being captured is not launched: make the call
/// before the launch of its graph.
#[derive(Clone)]
pub struct LaunchPacer {
    pacer: Arc<Pacer<Arc<dyn Clock>>>,
    reader: DutyCycleReader,
    queued: Arc<QueuedRuns>,
}

impl LaunchPacer {
    pub(super) fn new(shared: &JobShared) -> Self {
        Self {
            pacer: Arc::clone(&shared.pacer),
            reader: shared.management.reader(),
            queued: Arc::clone(&shared.queued),
        }
    }

    /// Waits until a launch may go on. [`Job::cancel`](super::Job::cancel) and the job's end stop this wait
    /// and all later ones.
    #[inline]
    pub fn launch(&self) {
        if self.holds_back() {
            self.launch_slow();
        }
    }

    /// Returns whether the share of the time is less than full. Costs one load.
    #[inline]
    pub fn holds_back(&self) -> bool {
        !self.reader.perf().is_full()
    }

    #[cold]
    fn launch_slow(&self) {
        if self.pacer.is_pause_next() {
            self.queued.drain(&self.pacer);
        }
        // A launch goes on after a cancelled wait as it does after a complete one.
        let _ = self.pacer.launch_wait();
    }

    /// Returns the totals of the pauses so far.
    pub fn report(&self) -> PacerReport {
        self.pacer.report()
    }
}

impl fmt::Debug for LaunchPacer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchPacer")
            .field("perf", &self.reader.perf())
            .field("report", &self.report())
            .finish()
    }
}

/// Kernel launches that a [`LaunchPacer`] delays: those of [`Launch`] and cudarc's own.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
/// use larder_cuda::Launch;
/// use larder_cuda::job::{LaunchPaced, LaunchPacer};
///
/// # fn step(stream: &Arc<CudaStream>, kernel: &CudaFunction, pacer: &LaunchPacer) -> Result<(), Box<dyn std::error::Error>> {
/// let mut launch = Launch::on(stream, kernel);
/// launch.arg(&1_u32);
/// // SAFETY: the kernel takes one number.
/// unsafe { launch.launch_paced(pacer, LaunchConfig::for_num_elems(256)) }?;
/// # Ok(())
/// # }
/// ```
pub trait LaunchPaced {
    /// Error of a launch.
    type Error;

    /// Launches once the pacer allows it.
    ///
    /// # Safety
    /// The kernel must take the arguments as they were given; see [`LaunchArgs::launch`].
    ///
    /// # Errors
    /// The errors of the launch.
    unsafe fn launch_paced(
        &mut self,
        pacer: &LaunchPacer,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, Self::Error>;
}

impl LaunchPaced for Launch<'_> {
    type Error = DeviceAllocError;

    #[inline]
    unsafe fn launch_paced(
        &mut self,
        pacer: &LaunchPacer,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, DeviceAllocError> {
        pacer.launch();
        // SAFETY: the caller promises that the kernel takes the arguments as they were given, as `launch`
        // requires.
        unsafe { self.launch(config) }
    }
}

impl LaunchPaced for LaunchArgs<'_> {
    type Error = DriverError;

    #[inline]
    unsafe fn launch_paced(
        &mut self,
        pacer: &LaunchPacer,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, DriverError> {
        pacer.launch();
        // SAFETY: the caller promises that the kernel takes the arguments as they were given, as `launch`
        // requires.
        unsafe { self.launch(config) }
    }
}
