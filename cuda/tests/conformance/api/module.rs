//! Modules, kernels, launches.

use std::{
    ffi::{CStr, c_void},
    ptr::{null_mut, without_provenance_mut},
};

use cudarc::driver::sys;
use larder_cuda_abi::{Code, DevicePtr, FunctionHandle, LaunchConfig, ModuleHandle, StreamHandle};

use super::Answer;

bindings! {
    fn load(ptx: &CStr) -> ModuleHandle { |at| cuModuleLoadData(at, ptx.as_ptr().cast()) }
    fn unload(module: ModuleHandle) { cuModuleUnload(module) }
    fn function(module: ModuleHandle, name: &CStr) -> FunctionHandle {
        |at| cuModuleGetFunction(at, module, name.as_ptr())
    }
    fn function_attribute(function: FunctionHandle, attribute: u32) -> i32 {
        |at| cuFuncGetAttribute(at, attribute, function)
    }
    fn global(module: ModuleHandle, name: &CStr) -> (DevicePtr, usize) {
        |start, bytes| cuModuleGetGlobal_v2(start, bytes, module, name.as_ptr())
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
}

impl Shape {
    /// More threads than a device runs at once, for kernels in which each thread handles many words.
    pub(crate) const WIDE: Self = Self {
        grid: [1024, 1, 1],
        block: [256, 1, 1],
    };

    /// One thread for each of `count` values.
    pub(crate) const fn over(count: u32) -> Self {
        Self {
            grid: [count.div_ceil(128), 1, 1],
            block: [128, 1, 1],
        }
    }
}

/// Gives each parameter eight bytes. The kernel reads as many as it declared, the low ones first. All are overwritten
/// once the call has returned.
fn with_places(parameters: &[u64], launch: impl FnOnce(*mut *mut c_void) -> Code) -> Answer {
    let mut words = parameters.to_vec();
    let places = words.iter_mut().map(|word| (&raw mut *word).cast());
    let answer = launch(places.collect::<Vec<_>>().as_mut_ptr()).check();
    words.fill(0xDEAD_DEAD_DEAD_DEAD);
    answer
}

pub(crate) fn launch(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    with_places(parameters, |places| {
        // SAFETY: C2; every parameter has a place that is wide enough.
        unsafe {
            function!(cuLaunchKernel)(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                0,
                stream,
                places,
                null_mut(),
            )
        }
    })
}

pub(crate) fn launch_cooperative(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    with_places(parameters, |places| {
        // SAFETY: C2; every parameter has a place that is wide enough.
        unsafe {
            function!(cuLaunchCooperativeKernel)(
                function, gx, gy, gz, bx, by, bz, 0, stream, places,
            )
        }
    })
}

pub(crate) fn launch_ex(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
    attributes: &mut [sys::CUlaunchAttribute],
) -> Answer {
    let config = LaunchConfig {
        grid: shape.grid,
        block: shape.block,
        shared_bytes: 0,
        stream,
        attributes: attributes.as_mut_ptr().cast(),
        attribute_count: u32::try_from(attributes.len()).expect("a few"),
    };
    with_places(parameters, |places| {
        // SAFETY: C2; every parameter has a place that is wide enough; there are as many attributes as `config` says,
        // and they outlive the call.
        unsafe { function!(cuLaunchKernelEx)(&raw const config, function, places, null_mut()) }
    })
}

/// Lets a kernel start before the previous one has ended.
pub(crate) fn begins_early() -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.programmaticStreamSerializationAllowed = 1;
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value,
    }
}

/// Launches one block with the parameters packed into one buffer. If `twice` is not empty, it gives them in the other
/// way as well.
pub(crate) fn launch_packed(
    function: FunctionHandle,
    threads: u32,
    stream: StreamHandle,
    packed: &[u8],
    twice: &[u64],
) -> Answer {
    let mut bytes = packed.len();
    // CU_LAUNCH_PARAM_BUFFER_POINTER, …_BUFFER_SIZE, …_END.
    let mut extra: [*mut c_void; 5] = [
        without_provenance_mut(1),
        packed.as_ptr().cast_mut().cast(),
        without_provenance_mut(2),
        (&raw mut bytes).cast(),
        null_mut(),
    ];
    let extra = extra.as_mut_ptr();
    with_places(twice, |places| {
        let places = if twice.is_empty() { null_mut() } else { places };
        // SAFETY: C2; the list is complete, and the buffer is as long as it says.
        unsafe {
            function!(cuLaunchKernel)(function, 1, 1, 1, threads, 1, 1, 0, stream, places, extra)
        }
    })
}
