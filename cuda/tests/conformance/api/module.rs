//! Modules, kernels, launches.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys;
use larder_cuda_abi::{DevicePtr, FunctionHandle, LaunchConfig, ModuleHandle, StreamHandle};

use super::{Answer, out};

/// cuModuleLoadData of PTX text.
pub(crate) fn load(ptx: &CStr) -> Answer<ModuleHandle> {
    // SAFETY: a text with its NUL; the out argument is `out`'s.
    out(|at| unsafe { function!(cuModuleLoadData)(at, ptx.as_ptr().cast()) })
}

/// cuModuleUnload.
pub(crate) fn unload(module: ModuleHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuModuleUnload)(module) }.check()
}

/// cuModuleGetFunction.
pub(crate) fn function(module: ModuleHandle, name: &CStr) -> Answer<FunctionHandle> {
    // SAFETY: C2; a text with its NUL; the out argument is `out`'s.
    out(|at| unsafe { function!(cuModuleGetFunction)(at, module, name.as_ptr()) })
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads a block.
    pub(crate) block: [u32; 3],
}

impl Shape {
    /// More threads than a device runs at once, for kernels whose threads take words in turns.
    pub(crate) const WIDE: Self = Self {
        grid: [1024, 1, 1],
        block: [256, 1, 1],
    };

    /// One thread for each of `count`.
    pub(crate) const fn over(count: u32) -> Self {
        Self {
            grid: [count.div_ceil(128), 1, 1],
            block: [128, 1, 1],
        }
    }
}

/// A place for each parameter.
fn places_of(words: &mut [u64]) -> Vec<*mut c_void> {
    let places = words.iter_mut().map(|word| (&raw mut *word).cast());
    places.collect()
}

/// cuLaunchKernel with each parameter in eight bytes of its own, of which the kernel takes as many
/// as it declared, the low ones first. They are overwritten once the call has returned.
pub(crate) fn launch(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    let mut words = parameters.to_vec();
    let mut places = places_of(&mut words);
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    let (places_at, none) = (places.as_mut_ptr(), core::ptr::null_mut());
    // SAFETY: C2; a place for every parameter, each wide enough.
    let answer = unsafe {
        function!(cuLaunchKernel)(function, gx, gy, gz, bx, by, bz, 0, stream, places_at, none)
    }
    .check();
    words.fill(0xDEAD_DEAD_DEAD_DEAD);
    answer
}

/// cuLaunchKernel with parameters given in both ways at once.
pub(crate) fn launch_with_both(function: FunctionHandle) -> Answer {
    let mut word = 0_u64;
    let mut places: [*mut c_void; 3] = [(&raw mut word).cast(); 3];
    let mut buffer = [0_u64; 2];
    let mut bytes = size_of_val(&buffer);
    // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END.
    let mark = core::ptr::without_provenance_mut::<c_void>;
    let buffer = buffer.as_mut_ptr().cast();
    let mut extra = [mark(1), buffer, mark(2), (&raw mut bytes).cast(), mark(0)];
    let (places, extra) = (places.as_mut_ptr(), extra.as_mut_ptr());
    let stream = StreamHandle::NULL;
    // SAFETY: C2; both lists are whole; documented to be refused.
    unsafe { function!(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, places, extra) }
        .check()
}

/// cuLaunchKernelEx without attributes; parameters as in [`launch`].
pub(crate) fn launch_ex(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    launch_with(function, shape, stream, parameters, &mut [])
}

/// cuLaunchKernelEx of a kernel that may begin before the one ahead of it has ended; parameters as in [`launch`].
pub(crate) fn launch_dependent(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.programmaticStreamSerializationAllowed = 1;
    let attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value,
    };
    launch_with(function, shape, stream, parameters, &mut [attribute])
}

fn launch_with(
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
    let mut words = parameters.to_vec();
    let mut places = places_of(&mut words);
    let (places_at, none) = (places.as_mut_ptr(), core::ptr::null_mut());
    // SAFETY: C2; a place for every parameter, each wide enough; as many attributes as it says, which outlive the call.
    unsafe { function!(cuLaunchKernelEx)(&raw const config, function, places_at, none) }.check()
}

/// cuLaunchCooperativeKernel, parameters as in [`launch`].
pub(crate) fn launch_cooperative(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    let mut words = parameters.to_vec();
    let mut places = places_of(&mut words);
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    let places_at = places.as_mut_ptr();
    // SAFETY: C2; a place for every parameter, each wide enough.
    unsafe {
        function!(cuLaunchCooperativeKernel)(function, gx, gy, gz, bx, by, bz, 0, stream, places_at)
    }
    .check()
}

/// cuFuncGetAttribute.
pub(crate) fn function_attribute(function: FunctionHandle, attribute: u32) -> Answer<i32> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { function!(cuFuncGetAttribute)(at, attribute, function) })
}

/// cuModuleGetGlobal_v2: start and length.
pub(crate) fn global(module: ModuleHandle, name: &CStr) -> Answer<(DevicePtr, usize)> {
    let (mut start, mut bytes) = (0, 0);
    let name = name.as_ptr();
    // SAFETY: C2; a text with its NUL; both out arguments are locals.
    unsafe { function!(cuModuleGetGlobal_v2)(&raw mut start, &raw mut bytes, module, name) }
        .check()?;
    Ok((start, bytes))
}

/// cuLaunchKernel over one block with its parameters packed into one buffer.
pub(crate) fn launch_packed(
    function: FunctionHandle,
    threads: u32,
    stream: StreamHandle,
    packed: &[u8],
) -> Answer {
    let mut bytes = packed.len();
    // CU_LAUNCH_PARAM_BUFFER_POINTER, …_BUFFER_SIZE, …_END.
    let mut extra: [*mut c_void; 5] = [
        core::ptr::without_provenance_mut(1),
        packed.as_ptr().cast_mut().cast(),
        core::ptr::without_provenance_mut(2),
        (&raw mut bytes).cast(),
        core::ptr::null_mut(),
    ];
    let (none, extra) = (core::ptr::null_mut(), extra.as_mut_ptr());
    // SAFETY: C2; a whole list, and a buffer as long as it says.
    unsafe { function!(cuLaunchKernel)(function, 1, 1, 1, threads, 1, 1, 0, stream, none, extra) }
        .check()
}
