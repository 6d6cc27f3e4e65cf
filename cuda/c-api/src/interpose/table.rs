//! The interposed functions, one row each.
//!
//! A row has a function's prototype, which must be that of the table in `larder_cuda_abi`, and the
//! replacement of the call: `ask` makes the call to the driver. A function that takes a stream has two names,
//! the second of which is for programs with per-thread default streams: `meant` is the stream that is meant
//! under the function's name.
#![allow(non_snake_case, reason = "the driver's names")]

use core::ptr::NonNull;
use std::ffi::{CStr, c_char, c_int, c_void};

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{
    AllocationProp, ContextHandle, DevicePtr, FunctionHandle, GraphExecHandle, LaunchConfig,
    MemoryHandle, PoolHandle, PoolProps, StreamHandle, functions,
};

use super::{in_front_of, launch, lookup, memory, pages, pools};

/// Looks up a function by its NUL-terminated name. Only [`Functions::of`] calls it, with the type of the same
/// name (INTERDRV).
fn find<F: Copy>(library: *mut c_void, name: &str) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
    let address: NonNull<c_void> = lookup::symbol(library, name)?;
    // SAFETY: `F` is as large as an address and is, by INTERDRV, the type of the function at this address.
    Some(unsafe { core::mem::transmute_copy(&address) })
}

/// Returns the stream that a handle means if default streams are per-thread.
fn per_thread(stream: StreamHandle) -> StreamHandle {
    match stream {
        StreamHandle::NULL => StreamHandle::PER_THREAD,
        other => other,
    }
}

/// Exports a function that takes the place of the driver's function with the same name.
macro_rules! export {
    (
        $name:ident($($parameter:ident: $kind:ty),*),
        |$driver:pat_param, $ask:ident| $act:expr
    ) => {
        // SAFETY: INTER1: this library is preloaded to take the place of the driver's function. The prototype
        // is the same, as `by_name` checks.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($parameter: $kind),*) -> Code {
            in_front_of(
                |driver| driver.functions.$name,
                |$driver, real| {
                    // SAFETY: INTERDRV: the program has called this function of the driver, with these
                    // arguments.
                    let $ask = || unsafe { real($($parameter),*) };
                    $act
                },
            )
        }
    };
}

/// Exports the functions of the table, finds them by name, and declares [`Functions`].
macro_rules! in_front {
    (
        $(fn $name:ident $parameters:tt => |$driver:pat_param, $ask:ident| $act:expr;)*
        streams:
        $(
            fn $streamed:ident, $per_thread:ident $streamed_parameters:tt in $stream:expr
                => |$of:pat_param, $meant:ident, $asking:ident| $action:expr;
        )*
        called: $($called:ident)*;
    ) => {
        $(export! { $name $parameters, |$driver, $ask| $act })*
        $(
            export! { $streamed $streamed_parameters, |$of, $asking| {
                let $meant = $stream;
                $action
            }}
            export! { $per_thread $streamed_parameters, |$of, $asking| {
                let $meant = per_thread($stream);
                $action
            }}
        )*

        /// Returns the function here that takes the place of the driver's function with that name.
        pub(super) fn by_name(name: &str) -> Option<*const c_void> {
            $(if name == stringify!($name) {
                let found: functions::$name = $name;
                return Some(found as *const c_void);
            })*
            $(if name == stringify!($streamed) {
                let found: functions::$streamed = $streamed;
                return Some(found as *const c_void);
            }
            if name == stringify!($per_thread) {
                let found: functions::$streamed = $per_thread;
                return Some(found as *const c_void);
            })*
            None
        }

        /// The driver's functions: those that this library interposes, and those that it calls.
        pub(super) struct Functions {
            $(pub(super) $name: Option<functions::$name>,)*
            $(
                $streamed: Option<functions::$streamed>,
                $per_thread: Option<functions::$streamed>,
            )*
            $(pub(super) $called: Option<functions::$called>,)*
        }

        impl Functions {
            /// Looks up the functions in an open library.
            pub(super) fn of(library: *mut c_void) -> Self {
                Self {
                    $($name: find(library, concat!(stringify!($name), "\0")),)*
                    $(
                        $streamed: find(library, concat!(stringify!($streamed), "\0")),
                        $per_thread: find(library, concat!(stringify!($per_thread), "\0")),
                    )*
                    $($called: find(library, concat!(stringify!($called), "\0")),)*
                }
            }
        }
    };
}

in_front! {
    fn cuGetProcAddress(
        name: *const c_char, function: *mut *const c_void, version: c_int, flags: u64
    ) => |driver, ask| lookup::replace(driver, name, function, (version, flags), ask);
    fn cuGetProcAddress_v2(
        name: *const c_char, function: *mut *const c_void, version: c_int, flags: u64,
        status: *mut u32
    ) => |driver, ask| lookup::replace(driver, name, function, (version, flags), ask);

    fn cuMemAlloc_v2(at: *mut DevicePtr, bytes: usize)
        => |driver, ask| memory::alloc(driver, at, Some(bytes), ask);
    fn cuMemAllocPitch_v2(
        at: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32
    ) => |driver, ask| memory::alloc(driver, at, memory::pitched(width, height), ask);
    fn cuMemAllocManaged(at: *mut DevicePtr, bytes: usize, flags: u32)
        => |driver, ask| memory::alloc(driver, at, Some(bytes), ask);
    fn cuMemFree_v2(at: DevicePtr) => |driver, ask| memory::free(driver, at, ask);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize)
        => |driver, ask| memory::info(driver, free, total, ask);
    fn cuDeviceTotalMem_v2(total: *mut usize, device: c_int)
        => |driver, ask| memory::total(driver, total, device, ask);

    fn cuCtxDestroy(context: ContextHandle) => |_, ask| memory::end_context(context, ask);
    fn cuCtxDestroy_v2(context: ContextHandle) => |_, ask| memory::end_context(context, ask);
    fn cuDevicePrimaryCtxRetain(context: *mut ContextHandle, device: c_int)
        => |_, ask| memory::retain_primary(context, device, ask);
    fn cuDevicePrimaryCtxRelease(device: c_int)
        => |driver, ask| memory::release_primary(driver, device, ask);
    fn cuDevicePrimaryCtxRelease_v2(device: c_int)
        => |driver, ask| memory::release_primary(driver, device, ask);
    fn cuDevicePrimaryCtxReset(device: c_int) => |_, ask| memory::reset_primary(device, ask);
    fn cuDevicePrimaryCtxReset_v2(device: c_int) => |_, ask| memory::reset_primary(device, ask);

    fn cuMemPoolCreate(pool: *mut PoolHandle, props: *const PoolProps)
        => |_, ask| pools::create(pool, props, ask);
    fn cuMemPoolDestroy(pool: PoolHandle) => |driver, ask| pools::destroy(driver, pool, ask);
    fn cuMemPoolTrimTo(pool: PoolHandle, keep: usize) => |driver, ask| pools::trim(driver, ask);

    fn cuMemCreate(
        handle: *mut MemoryHandle, bytes: usize, props: *const AllocationProp, flags: u64
    ) => |driver, ask| pages::create(driver, handle, bytes, props, ask);
    fn cuMemRelease(handle: MemoryHandle) => |_, ask| pages::release(handle, ask);
    fn cuMemRetainAllocationHandle(handle: *mut MemoryHandle, at: *mut c_void)
        => |_, ask| pages::retain(handle, at.addr() as DevicePtr, ask);
    fn cuMemMap(at: DevicePtr, bytes: usize, offset: usize, handle: MemoryHandle, flags: u64)
        => |_, ask| pages::map(at, bytes, handle, ask);
    fn cuMemUnmap(at: DevicePtr, bytes: usize) => |_, ask| pages::unmap(at, bytes, ask);

    fn cuStreamDestroy(stream: StreamHandle) => |_, ask| launch::end_stream(stream, ask);
    fn cuStreamDestroy_v2(stream: StreamHandle) => |_, ask| launch::end_stream(stream, ask);

    streams:
    fn cuMemAllocAsync, cuMemAllocAsync_ptsz(
        at: *mut DevicePtr, bytes: usize, stream: StreamHandle
    ) in stream => |driver, meant, ask| pools::alloc(driver, at, (None, meant), bytes, ask);
    fn cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(
        at: *mut DevicePtr, bytes: usize, pool: PoolHandle, stream: StreamHandle
    ) in stream => |driver, meant, ask| pools::alloc(driver, at, (Some(pool), meant), bytes, ask);
    fn cuMemFreeAsync, cuMemFreeAsync_ptsz(at: DevicePtr, stream: StreamHandle)
        in stream => |driver, _meant, ask| memory::free(driver, at, ask);

    fn cuLaunchKernel, cuLaunchKernel_ptsz(
        function: FunctionHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
        block_y: u32, block_z: u32, shared: u32, stream: StreamHandle,
        parameters: *mut *mut c_void, extra: *mut *mut c_void
    ) in stream => |driver, meant, ask| launch::paced(driver, meant, ask);
    fn cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz(
        function: FunctionHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
        block_y: u32, block_z: u32, shared: u32, stream: StreamHandle,
        parameters: *mut *mut c_void
    ) in stream => |driver, meant, ask| launch::paced(driver, meant, ask);
    fn cuLaunchKernelEx, cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: FunctionHandle, parameters: *mut *mut c_void,
        extra: *mut *mut c_void
    ) in launch::stream_in(config) => |driver, meant, ask| launch::paced(driver, meant, ask);
    fn cuGraphLaunch, cuGraphLaunch_ptsz(graph: GraphExecHandle, stream: StreamHandle)
        in stream => |driver, meant, ask| launch::paced(driver, meant, ask);

    called:
        cuCtxGetCurrent cuCtxGetDevice cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuDeviceGet
        cuDeviceGetMemPool cuDeviceGetPCIBusId cuDevicePrimaryCtxGetState cuMemPoolGetAttribute
        cuStreamGetCtx cuStreamIsCapturing cuStreamSynchronize
        cuThreadExchangeStreamCaptureMode;
}
