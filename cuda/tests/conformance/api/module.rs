//! Modules, kernels, launches.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys;
use larder_cuda_abi::{DevicePtr, FunctionHandle, LaunchConfig, ModuleHandle, StreamHandle};

use super::{Answer, done, done_raw, out, stream_of, symbol};

/// cuModuleLoadData of PTX text.
pub(crate) fn load(ptx: &CStr) -> Answer<ModuleHandle> {
    // SAFETY: a text with its NUL; the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuModuleLoadData(at.cast(), ptx.as_ptr().cast()) })
        .map(ModuleHandle)
}

/// cuModuleUnload.
pub(crate) fn unload(module: ModuleHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuModuleUnload(module.0 as sys::CUmodule) })
}

/// cuModuleGetFunction.
pub(crate) fn function(module: ModuleHandle, name: &CStr) -> Answer<FunctionHandle> {
    let module = module.0 as sys::CUmodule;
    // SAFETY: C2; a text with its NUL; the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuModuleGetFunction(at.cast(), module, name.as_ptr()) })
        .map(FunctionHandle)
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
    /// One thread for each of `count`.
    pub(crate) const fn over(count: u32) -> Self {
        Self {
            grid: [count.div_ceil(128), 1, 1],
            block: [128, 1, 1],
        }
    }
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
    let mut places: Vec<*mut c_void> = words
        .iter_mut()
        .map(|word| (&raw mut *word).cast())
        .collect();
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    let (function, stream) = (function.0 as sys::CUfunction, stream_of(stream));
    let (places_at, none) = (places.as_mut_ptr(), core::ptr::null_mut());
    // SAFETY: C2; a place for every parameter, each wide enough.
    let answer = done(unsafe {
        sys::cuLaunchKernel(function, gx, gy, gz, bx, by, bz, 0, stream, places_at, none)
    });
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
    let function = function.0 as sys::CUfunction;
    let (places, extra) = (places.as_mut_ptr(), extra.as_mut_ptr());
    let stream = core::ptr::null_mut();
    // SAFETY: C2; both lists are whole; documented to be refused.
    done(unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, places, extra) })
}

/// cuLaunchKernelEx without attributes; parameters as in [`launch`].
pub(crate) fn launch_ex(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    type Launch = unsafe extern "C" fn(
        *const LaunchConfig,
        FunctionHandle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> u32;
    let config = LaunchConfig {
        grid: shape.grid,
        block: shape.block,
        shared_bytes: 0,
        stream,
        attributes: core::ptr::null_mut(),
        attribute_count: 0,
    };
    let mut words = parameters.to_vec();
    let mut places: Vec<*mut c_void> = words
        .iter_mut()
        .map(|word| (&raw mut *word).cast())
        .collect();
    // SAFETY: the type is the function's C prototype.
    let call = unsafe { symbol::<Launch>("cuLaunchKernelEx") };
    let (places_at, none) = (places.as_mut_ptr(), core::ptr::null_mut());
    // SAFETY: C2; a place for every parameter, each wide enough.
    done_raw(unsafe { call(&raw const config, function, places_at, none) })
}

/// cuLaunchCooperativeKernel, parameters as in [`launch`].
pub(crate) fn launch_cooperative(
    function: FunctionHandle,
    shape: Shape,
    stream: StreamHandle,
    parameters: &[u64],
) -> Answer {
    let mut words = parameters.to_vec();
    let mut places: Vec<*mut c_void> = words
        .iter_mut()
        .map(|word| (&raw mut *word).cast())
        .collect();
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    let (function, stream) = (function.0 as sys::CUfunction, stream_of(stream));
    let places_at = places.as_mut_ptr();
    // SAFETY: C2; a place for every parameter, each wide enough.
    done(unsafe {
        sys::cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, 0, stream, places_at)
    })
}

/// cuFuncGetAttribute.
pub(crate) fn function_attribute(function: FunctionHandle, attribute: u32) -> Answer<i32> {
    type Get = unsafe extern "C" fn(*mut i32, u32, FunctionHandle) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Get>("cuFuncGetAttribute") };
    let mut value = 0;
    // SAFETY: C2; the out argument is a local's.
    done_raw(unsafe { call(&raw mut value, attribute, function) })?;
    Ok(value)
}

/// cuModuleGetGlobal_v2: start and length.
pub(crate) fn global(module: ModuleHandle, name: &CStr) -> Answer<(DevicePtr, usize)> {
    let (mut start, mut bytes) = (0, 0);
    let (module, name) = (module.0 as sys::CUmodule, name.as_ptr());
    // SAFETY: C2; a text with its NUL; both out arguments are locals.
    done(unsafe { sys::cuModuleGetGlobal_v2(&raw mut start, &raw mut bytes, module, name) })?;
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
    let (function, stream) = (function.0 as sys::CUfunction, stream_of(stream));
    let (none, extra) = (core::ptr::null_mut(), extra.as_mut_ptr());
    // SAFETY: C2; a whole list, and a buffer as long as it says.
    done(unsafe { sys::cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, none, extra) })
}
