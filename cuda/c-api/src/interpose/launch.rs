//! Kernels and graphs, held back as the job's share of the time says.
//!
//! A program that does not know of jobs has no steps. Below full share its launches are cut into slices of time:
//! the first launch behind a slice's length waits until the device has done what the slice queued, then pauses,
//! by upstream's formula for a run of that length. So the device's time is the host's, from a slice's first launch
//! to the end of its work. What a stream captures is not launched; the graph is. A stream leaves the slice before
//! the driver ends it or its context: nothing may be asked of it afterwards.
//!
//! Lock: one, around the slice. It is held over the wait and the pause, as no launch goes on meanwhile.

use std::ffi::c_void;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{
    ContextHandle, FunctionHandle, GraphExecHandle, LaunchConfig, StreamHandle,
};

use super::driver::Driver;
use super::pools::per_thread;
use super::{acts, in_front_of, is_meant};
use crate::device::locked;
use crate::job;

/// How long launches go on between two pauses: long beside a kernel, short beside a person.
const SLICE: Duration = Duration::from_millis(20);

/// Launches since the last pause.
struct Slice {
    began: Option<Instant>,
    /// With their contexts, as default streams share their handles. Few, so they are looked through.
    streams: Vec<SliceStream>,
}

pub(super) type SliceStream = (ContextHandle, StreamHandle);

static CURRENT: Mutex<Slice> = Mutex::new(Slice {
    began: None,
    streams: Vec::new(),
});

/// Holds a launch back, if the job's share of the time says so. At full share a few loads.
fn pace(driver: &Driver, stream: StreamHandle) {
    if !is_meant() || !job::is_paced(acts) || !acts() || driver.is_capturing(stream) {
        return;
    }
    // A suspended job waits here.
    job::before_launch();
    let mut slice = locked(&CURRENT);
    if let Some(began) = slice.began
        && began.elapsed() >= SLICE
    {
        for (context, stream) in slice.streams.drain(..) {
            driver.drain(context, stream);
        }
        slice.began = None;
        job::end_slice(began.elapsed());
    }
    slice.began.get_or_insert_with(Instant::now);
    let stream = (driver.context_of(stream), stream);
    if !slice.streams.contains(&stream) {
        slice.streams.push(stream);
    }
}

/// Takes out the streams of a context that is about to end.
pub(super) fn taken_of(context: ContextHandle) -> Vec<SliceStream> {
    taken(|(own, _)| *own == context)
}

fn taken(ends: impl Fn(&SliceStream) -> bool) -> Vec<SliceStream> {
    let mut slice = locked(&CURRENT);
    slice
        .streams
        .extract_if(.., |stream| ends(stream))
        .collect()
}

/// Puts streams back that did not end.
pub(super) fn put_back(streams: Vec<SliceStream>) {
    locked(&CURRENT).streams.extend(streams);
}

/// Launches, once the job may.
fn launch<F: Copy>(
    of: impl FnOnce(&Driver) -> Option<F>,
    stream: StreamHandle,
    call: impl FnOnce(F) -> Code,
) -> Code {
    in_front_of(of, |driver, real| {
        pace(driver, stream);
        call(real)
    })
}

/// Launches a kernel.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernel(
    function: FunctionHandle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: StreamHandle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    let of = |driver: &Driver| driver.launch.legacy;
    // SAFETY: the caller's promise.
    launch(of, stream, |real| unsafe {
        real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
            parameters, extra,
        )
    })
}

/// `cuLaunchKernel` where each thread has its own default stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernel_ptsz(
    function: FunctionHandle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: StreamHandle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    let of = |driver: &Driver| driver.launch.per_thread;
    // SAFETY: the caller's promise.
    launch(of, per_thread(stream), |real| unsafe {
        real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
            parameters, extra,
        )
    })
}

/// Launches a kernel whose blocks wait for each other.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: FunctionHandle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: StreamHandle,
    parameters: *mut *mut c_void,
) -> Code {
    let of = |driver: &Driver| driver.launch_cooperative.legacy;
    // SAFETY: the caller's promise.
    launch(of, stream, |real| unsafe {
        real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,
        )
    })
}

/// `cuLaunchCooperativeKernel` where each thread has its own default stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchCooperativeKernel_ptsz(
    function: FunctionHandle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: StreamHandle,
    parameters: *mut *mut c_void,
) -> Code {
    let of = |driver: &Driver| driver.launch_cooperative.per_thread;
    // SAFETY: the caller's promise.
    launch(of, per_thread(stream), |real| unsafe {
        real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,
        )
    })
}

/// The stream that a configuration names.
///
/// # Safety
/// It is null or one that can be read.
unsafe fn stream_in(config: *const LaunchConfig) -> StreamHandle {
    // SAFETY: the caller's promise.
    unsafe { config.as_ref() }.map_or(StreamHandle::NULL, |config| config.stream)
}

/// Launches a kernel with a configuration.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: FunctionHandle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    let of = |driver: &Driver| driver.launch_ex.legacy;
    // SAFETY: the caller's promise.
    let stream = unsafe { stream_in(config) };
    // SAFETY: the caller's promise.
    launch(of, stream, |real| unsafe {
        real(config, function, parameters, extra)
    })
}

/// `cuLaunchKernelEx` where each thread has its own default stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernelEx_ptsz(
    config: *const LaunchConfig,
    function: FunctionHandle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    let of = |driver: &Driver| driver.launch_ex.per_thread;
    // SAFETY: the caller's promise.
    let stream = per_thread(unsafe { stream_in(config) });
    // SAFETY: the caller's promise.
    launch(of, stream, |real| unsafe {
        real(config, function, parameters, extra)
    })
}

/// Launches a graph.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphLaunch(
    graph: GraphExecHandle,
    stream: StreamHandle,
) -> Code {
    let of = |driver: &Driver| driver.launch_graph.legacy;
    // SAFETY: the caller's promise.
    launch(of, stream, |real| unsafe { real(graph, stream) })
}

/// `cuGraphLaunch` where each thread has its own default stream.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphLaunch_ptsz(
    graph: GraphExecHandle,
    stream: StreamHandle,
) -> Code {
    let of = |driver: &Driver| driver.launch_graph.per_thread;
    // SAFETY: the caller's promise.
    launch(of, per_thread(stream), |real| unsafe {
        real(graph, stream)
    })
}

/// Ends a stream, which is waited for no more.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamDestroy_v2(stream: StreamHandle) -> Code {
    in_front_of(
        |driver| driver.stream_destroy,
        |_, real| {
            // SAFETY: the caller's promise.
            end_stream(stream, || unsafe { real(stream) })
        },
    )
}

/// Ends a stream, as until CUDA 3.
///
/// # Safety
/// The driver's conditions.
// SAFETY: INTER1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamDestroy(stream: StreamHandle) -> Code {
    in_front_of(
        |driver| driver.stream_destroy_v1,
        |_, real| {
            // SAFETY: the caller's promise.
            end_stream(stream, || unsafe { real(stream) })
        },
    )
}

fn end_stream(stream: StreamHandle, ask: impl FnOnce() -> Code) -> Code {
    let ending = acts().then(|| taken(|(_, known)| *known == stream));
    let code = ask();
    if let Some(ending) = ending
        && code != Code::SUCCESS
    {
        put_back(ending);
    }
    code
}
