//! The functions of the driver that this project calls, implements or interposes. There is one row for each
//! function, with its C prototype and the version of CUDA that introduced it. `cuda/nvidia.py` compares the
//! rows with NVIDIA's headers.

use core::ffi::{c_char, c_void};

use crate::{
    AccessDesc, AllocationProp, Code, ContextHandle, DevicePtr, DeviceUuid, EventHandle,
    FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, HostFunction, LaunchConfig,
    Location, MemoryHandle, ModuleHandle, PoolHandle, PoolProps, SharedMemoryOf, StreamHandle,
};

/// Calls the macro `$callback` once, with a row for each function: `fn name(parameter: type, …) since
/// version;`, where 3020 is version 3.2. All functions return a [`Code`]. The types' names must be in scope
/// at the call.
#[macro_export]
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            // Start, version, error texts.
            fn cuInit(flags: u32) since 2000;
            fn cuDriverGetVersion(version: *mut i32) since 2020;
            fn cuGetErrorName(code: Code, text: *mut *const c_char) since 6000;
            fn cuGetErrorString(code: Code, text: *mut *const c_char) since 6000;
            fn cuProfilerStart() since 4000;
            fn cuProfilerStop() since 4000;
            // Functions by name.
            fn cuGetProcAddress(
                symbol: *const c_char, function: *mut *const c_void, version: i32, flags: u64
            ) since 11030;
            fn cuGetProcAddress_v2(
                symbol: *const c_char, function: *mut *const c_void, version: i32, flags: u64,
                status: *mut u32
            ) since 12000;
            // Devices and their primary contexts.
            fn cuDeviceGetCount(count: *mut i32) since 2000;
            fn cuDeviceGet(device: *mut i32, ordinal: i32) since 2000;
            fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) since 2000;
            fn cuDeviceGetUuid(uuid: *mut DeviceUuid, device: i32) since 9020;
            fn cuDeviceGetUuid_v2(uuid: *mut DeviceUuid, device: i32) since 11040;
            fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) since 3020;
            fn cuDeviceGetPCIBusId(text: *mut c_char, len: i32, device: i32) since 4010;
            fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) since 2000;
            fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) since 4000;
            fn cuDevicePrimaryCtxRetain(context: *mut ContextHandle, device: i32) since 7000;
            fn cuDevicePrimaryCtxRelease(device: i32) since 7000;
            fn cuDevicePrimaryCtxRelease_v2(device: i32) since 11000;
            fn cuDevicePrimaryCtxReset(device: i32) since 7000;
            fn cuDevicePrimaryCtxReset_v2(device: i32) since 11000;
            fn cuDevicePrimaryCtxGetState(
                device: i32, flags: *mut u32, active: *mut i32
            ) since 7000;
            // Contexts.
            fn cuCtxCreate_v2(context: *mut ContextHandle, flags: u32, device: i32) since 3020;
            fn cuCtxCreate_v3(
                context: *mut ContextHandle, affinity: *mut c_void, affinities: i32, flags: u32,
                device: i32
            ) since 11040;
            fn cuCtxCreate_v4(
                context: *mut ContextHandle, params: *mut c_void, flags: u32, device: i32
            ) since 12050;
            fn cuCtxDestroy(context: ContextHandle) since 2000;
            fn cuCtxDestroy_v2(context: ContextHandle) since 4000;
            fn cuCtxSetCurrent(context: ContextHandle) since 4000;
            fn cuCtxGetCurrent(context: *mut ContextHandle) since 4000;
            fn cuCtxGetDevice(device: *mut i32) since 2000;
            fn cuCtxPushCurrent_v2(context: ContextHandle) since 4000;
            fn cuCtxPopCurrent_v2(context: *mut ContextHandle) since 4000;
            fn cuCtxSetFlags(flags: u32) since 12010;
            fn cuCtxSynchronize() since 2000;
            fn cuCtxGetLimit(value: *mut usize, limit: u32) since 3010;
            fn cuCtxSetLimit(limit: u32, value: usize) since 3010;
            fn cuCtxGetCacheConfig(config: *mut u32) since 3020;
            fn cuCtxSetCacheConfig(config: u32) since 3020;
            fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) since 5050;
            // Plain device memory.
            fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) since 3020;
            fn cuMemAlloc_v2(at: *mut DevicePtr, bytes: usize) since 3020;
            fn cuMemAllocPitch_v2(
                at: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32
            ) since 3020;
            fn cuMemFree_v2(at: DevicePtr) since 3020;
            // Pinned and registered host memory.
            fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: u32) since 2020;
            fn cuMemFreeHost(at: *mut c_void) since 2000;
            fn cuMemHostGetDevicePointer_v2(
                to: *mut DevicePtr, at: *mut c_void, flags: u32
            ) since 3020;
            fn cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: u32) since 6050;
            fn cuMemHostUnregister(at: *mut c_void) since 4000;
            // Managed memory.
            fn cuMemAllocManaged(at: *mut DevicePtr, bytes: usize, flags: u32) since 6000;
            fn cuMemPrefetchAsync_v2(
                at: DevicePtr, bytes: usize, location: Location, flags: u32, stream: StreamHandle
            ) since 12020;
            fn cuMemAdvise_v2(
                at: DevicePtr, bytes: usize, advice: u32, location: Location
            ) since 12020;
            fn cuStreamAttachMemAsync(
                stream: StreamHandle, at: DevicePtr, bytes: usize, flags: u32
            ) since 6000;
            // Attributes of addresses.
            fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, at: DevicePtr) since 4000;
            // Virtual memory.
            fn cuMemGetAllocationGranularity(
                granularity: *mut usize, prop: *const AllocationProp, option: u32
            ) since 10020;
            fn cuMemAddressReserve(
                at: *mut DevicePtr, bytes: usize, align: usize, wish: DevicePtr, flags: u64
            ) since 10020;
            fn cuMemAddressFree(at: DevicePtr, bytes: usize) since 10020;
            fn cuMemCreate(
                handle: *mut MemoryHandle, bytes: usize, prop: *const AllocationProp, flags: u64
            ) since 10020;
            fn cuMemRelease(handle: MemoryHandle) since 10020;
            fn cuMemRetainAllocationHandle(handle: *mut MemoryHandle, at: *mut c_void) since 11000;
            fn cuMemMap(
                at: DevicePtr, bytes: usize, offset: usize, handle: MemoryHandle, flags: u64
            ) since 10020;
            fn cuMemUnmap(at: DevicePtr, bytes: usize) since 10020;
            fn cuMemSetAccess(
                at: DevicePtr, bytes: usize, rights: *const AccessDesc, count: usize
            ) since 10020;
            fn cuMemGetAccess(
                flags: *mut u64, location: *const Location, at: DevicePtr
            ) since 10020;
            fn cuMemExportToShareableHandle(
                descriptor: *mut c_void, handle: MemoryHandle, handle_type: u32, flags: u64
            ) since 10020;
            fn cuMemImportFromShareableHandle(
                handle: *mut MemoryHandle, descriptor: *mut c_void, handle_type: u32
            ) since 10020;
            // Pools, and memory in the order of a stream.
            fn cuDeviceGetDefaultMemPool(pool: *mut PoolHandle, device: i32) since 11020;
            fn cuDeviceGetMemPool(pool: *mut PoolHandle, device: i32) since 11020;
            fn cuDeviceSetMemPool(device: i32, pool: PoolHandle) since 11020;
            fn cuMemPoolCreate(pool: *mut PoolHandle, props: *const PoolProps) since 11020;
            fn cuMemPoolDestroy(pool: PoolHandle) since 11020;
            fn cuMemPoolTrimTo(pool: PoolHandle, keep: usize) since 11020;
            fn cuMemPoolSetAttribute(
                pool: PoolHandle, attribute: u32, value: *mut c_void
            ) since 11020;
            fn cuMemPoolGetAttribute(
                pool: PoolHandle, attribute: u32, value: *mut c_void
            ) since 11020;
            fn cuMemPoolSetAccess(
                pool: PoolHandle, access: *const AccessDesc, count: usize
            ) since 11020;
            fn cuMemPoolGetAccess(
                flags: *mut u32, pool: PoolHandle, location: *mut Location
            ) since 11020;
            fn cuMemAllocAsync(at: *mut DevicePtr, bytes: usize, stream: StreamHandle) since 11020;
            fn cuMemAllocFromPoolAsync(
                at: *mut DevicePtr, bytes: usize, pool: PoolHandle, stream: StreamHandle
            ) since 11020;
            fn cuMemFreeAsync(at: DevicePtr, stream: StreamHandle) since 11020;
            // Copies and fills.
            fn cuMemcpyHtoD_v2(to: DevicePtr, from: *const c_void, bytes: usize) since 3020;
            fn cuMemcpyHtoDAsync_v2(
                to: DevicePtr, from: *const c_void, bytes: usize, stream: StreamHandle
            ) since 3020;
            fn cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePtr, bytes: usize) since 3020;
            fn cuMemcpyDtoHAsync_v2(
                to: *mut c_void, from: DevicePtr, bytes: usize, stream: StreamHandle
            ) since 3020;
            fn cuMemcpyDtoD_v2(to: DevicePtr, from: DevicePtr, bytes: usize) since 3020;
            fn cuMemcpyDtoDAsync_v2(
                to: DevicePtr, from: DevicePtr, bytes: usize, stream: StreamHandle
            ) since 3020;
            fn cuMemcpyAsync(
                to: DevicePtr, from: DevicePtr, bytes: usize, stream: StreamHandle
            ) since 4000;
            fn cuMemcpyPeerAsync(
                to: DevicePtr, to_context: ContextHandle, from: DevicePtr,
                from_context: ContextHandle, bytes: usize, stream: StreamHandle
            ) since 4000;
            fn cuMemsetD8_v2(to: DevicePtr, value: u8, count: usize) since 3020;
            fn cuMemsetD8Async(
                to: DevicePtr, value: u8, count: usize, stream: StreamHandle
            ) since 3020;
            fn cuMemsetD16Async(
                to: DevicePtr, value: u16, count: usize, stream: StreamHandle
            ) since 3020;
            fn cuMemsetD32Async(
                to: DevicePtr, value: u32, count: usize, stream: StreamHandle
            ) since 3020;
            // Streams and host functions.
            fn cuStreamCreate(stream: *mut StreamHandle, flags: u32) since 2000;
            fn cuStreamCreateWithPriority(
                stream: *mut StreamHandle, flags: u32, priority: i32
            ) since 5050;
            fn cuStreamDestroy(stream: StreamHandle) since 2000;
            fn cuStreamDestroy_v2(stream: StreamHandle) since 4000;
            fn cuStreamGetId(stream: StreamHandle, id: *mut u64) since 12000;
            fn cuStreamGetCtx(stream: StreamHandle, context: *mut ContextHandle) since 9020;
            fn cuStreamSynchronize(stream: StreamHandle) since 2000;
            fn cuStreamQuery(stream: StreamHandle) since 2000;
            fn cuStreamWaitEvent(stream: StreamHandle, event: EventHandle, flags: u32) since 3020;
            fn cuLaunchHostFunc(
                stream: StreamHandle, function: HostFunction, data: *mut c_void
            ) since 10000;
            // Events.
            fn cuEventCreate(event: *mut EventHandle, flags: u32) since 2000;
            fn cuEventRecord(event: EventHandle, stream: StreamHandle) since 2000;
            fn cuEventQuery(event: EventHandle) since 2000;
            fn cuEventSynchronize(event: EventHandle) since 2000;
            fn cuEventDestroy_v2(event: EventHandle) since 4000;
            fn cuEventElapsedTime(
                milliseconds: *mut f32, start: EventHandle, end: EventHandle
            ) since 2000;
            fn cuEventElapsedTime_v2(
                milliseconds: *mut f32, start: EventHandle, end: EventHandle
            ) since 12080;
            // Modules and their functions.
            fn cuModuleLoad(module: *mut ModuleHandle, path: *const c_char) since 2000;
            fn cuModuleLoadData(module: *mut ModuleHandle, image: *const c_void) since 2000;
            fn cuModuleUnload(module: ModuleHandle) since 2000;
            fn cuModuleGetFunction(
                function: *mut FunctionHandle, module: ModuleHandle, name: *const c_char
            ) since 2000;
            fn cuModuleGetGlobal_v2(
                at: *mut DevicePtr, bytes: *mut usize, module: ModuleHandle, name: *const c_char
            ) since 3020;
            fn cuFuncGetAttribute(
                value: *mut i32, attribute: u32, function: FunctionHandle
            ) since 2020;
            fn cuFuncSetAttribute(function: FunctionHandle, attribute: u32, value: i32) since 9000;
            fn cuFuncSetCacheConfig(function: FunctionHandle, config: u32) since 3000;
            // Launches.
            fn cuLaunchKernel(
                function: FunctionHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
                block_y: u32, block_z: u32, shared_bytes: u32, stream: StreamHandle,
                parameters: *mut *mut c_void, extra: *mut *mut c_void
            ) since 4000;
            fn cuLaunchKernelEx(
                config: *const LaunchConfig, function: FunctionHandle,
                parameters: *mut *mut c_void, extra: *mut *mut c_void
            ) since 11060;
            fn cuLaunchCooperativeKernel(
                function: FunctionHandle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
                block_y: u32, block_z: u32, shared_bytes: u32, stream: StreamHandle,
                parameters: *mut *mut c_void
            ) since 9000;
            // Occupancy.
            fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
                blocks: *mut i32, function: FunctionHandle, threads: i32, shared: usize
            ) since 6050;
            fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                blocks: *mut i32, function: FunctionHandle, threads: i32, shared: usize,
                flags: u32
            ) since 7000;
            fn cuOccupancyMaxPotentialBlockSize(
                blocks: *mut i32, threads: *mut i32, function: FunctionHandle,
                shared_of: SharedMemoryOf, shared: usize, limit: i32
            ) since 6050;
            fn cuOccupancyMaxPotentialBlockSizeWithFlags(
                blocks: *mut i32, threads: *mut i32, function: FunctionHandle,
                shared_of: SharedMemoryOf, shared: usize, limit: i32, flags: u32
            ) since 7000;
            fn cuOccupancyAvailableDynamicSMemPerBlock(
                bytes: *mut usize, function: FunctionHandle, blocks: i32, threads: i32
            ) since 10020;
            fn cuOccupancyMaxPotentialClusterSize(
                size: *mut i32, function: FunctionHandle, config: *const LaunchConfig
            ) since 11070;
            fn cuOccupancyMaxActiveClusters(
                clusters: *mut i32, function: FunctionHandle, config: *const LaunchConfig
            ) since 11070;
            // Capture.
            fn cuStreamBeginCapture_v2(stream: StreamHandle, mode: u32) since 10010;
            fn cuStreamEndCapture(stream: StreamHandle, graph: *mut GraphHandle) since 10000;
            fn cuStreamIsCapturing(stream: StreamHandle, status: *mut u32) since 10000;
            fn cuStreamGetCaptureInfo_v2(
                stream: StreamHandle, status: *mut u32, id: *mut u64, graph: *mut GraphHandle,
                nodes: *mut *const GraphNodeHandle, count: *mut usize
            ) since 11030;
            fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) since 10010;
            // Graphs.
            fn cuGraphDestroy(graph: GraphHandle) since 10000;
            fn cuGraphGetNodes(
                graph: GraphHandle, nodes: *mut GraphNodeHandle, count: *mut usize
            ) since 10000;
            fn cuGraphInstantiateWithFlags(
                exec: *mut GraphExecHandle, graph: GraphHandle, flags: u64
            ) since 11040;
            fn cuGraphLaunch(exec: GraphExecHandle, stream: StreamHandle) since 10000;
            fn cuGraphUpload(exec: GraphExecHandle, stream: StreamHandle) since 11010;
            fn cuGraphExecDestroy(exec: GraphExecHandle) since 10000;
        }
    };
}

macro_rules! declare {
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) since $version:literal;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            #[allow(non_camel_case_types, reason = "the driver's name")]
            pub type $name = unsafe extern "C" fn($($parameter: $kind),*) -> Code;
        )*

        /// The version of CUDA that introduced each function, like 12080 for 12.8.
        #[allow(non_upper_case_globals, reason = "the driver's names")]
        pub mod since {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: u32 = $version;
            )*
        }

        /// Each function's name and the version of CUDA that introduced it.
        pub const ALL: &[(&str, u32)] = &[$((stringify!($name), $version)),*];
    };
}

for_each_function!(declare);

/// Returns the newest function for a name without `_v…` among those that a version of CUDA has, such as
/// `cuMemAlloc_v2` for `cuMemAlloc`.
pub fn newest(base: &str, version: u32) -> Option<&'static str> {
    let is_it = |name: &str| match name.strip_prefix(base) {
        Some(ending) => ending.is_empty() || is_version(ending),
        None => false,
    };
    if base.rfind("_v").is_some_and(|at| is_version(&base[at..])) {
        // A name with a version is not a base name.
        return None;
    }
    let known = ALL
        .iter()
        .filter(|(name, since)| *since <= version && is_it(name));
    known.max_by_key(|(_, since)| *since).map(|(name, _)| *name)
}

/// Returns whether an ending is a version, such as `_v2` or `_v3`.
fn is_version(ending: &str) -> bool {
    let number = ending.strip_prefix("_v");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::newest;

    #[test]
    fn the_newest_of_a_name_is_found_by_its_version() {
        assert_eq!(newest("cuMemAlloc", 12_080), Some("cuMemAlloc_v2"));
        assert_eq!(newest("cuMemAlloc", 3_010), None);
        assert_eq!(newest("cuCtxCreate", 11_030), Some("cuCtxCreate_v2"));
        assert_eq!(newest("cuCtxCreate", 11_040), Some("cuCtxCreate_v3"));
        assert_eq!(newest("cuCtxDestroy", 3_020), Some("cuCtxDestroy"));
        assert_eq!(newest("cuMemAllocAsync", 11_020), Some("cuMemAllocAsync"));
        assert_eq!(newest("cuMemAlloc_v2", 12_080), None);
        assert_eq!(newest("cuMem", 12_080), None);
    }
}
