//! Every exported function of the driver, with what kind of thing each argument is.
//!
//! All arguments are words or smaller, so one signature calls all of them.

use super::world::Kinds;

/// Any function of the driver, seen so that spare arguments are ignored.
pub(crate) type Any =
    unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;

/// Name, function, kinds of arguments (see [`Kinds`]).
pub(crate) type Row = (&'static str, unsafe extern "C" fn(), &'static Kinds);

unsafe extern "C" {
    fn cuCtxCreate_v2();
    fn cuCtxCreate_v3();
    fn cuCtxCreate_v4();
    fn cuCtxDestroy();
    fn cuCtxDestroy_v2();
    fn cuCtxGetCacheConfig();
    fn cuCtxGetCurrent();
    fn cuCtxGetLimit();
    fn cuCtxGetStreamPriorityRange();
    fn cuCtxPopCurrent_v2();
    fn cuCtxPushCurrent_v2();
    fn cuCtxSetCacheConfig();
    fn cuCtxSetCurrent();
    fn cuCtxSetFlags();
    fn cuCtxSetLimit();
    fn cuCtxSynchronize();
    fn cuDeviceCanAccessPeer();
    fn cuDeviceGet();
    fn cuDeviceGetAttribute();
    fn cuDeviceGetCount();
    fn cuDeviceGetDefaultMemPool();
    fn cuDeviceGetMemPool();
    fn cuDeviceGetName();
    fn cuDeviceGetPCIBusId();
    fn cuDeviceGetUuid();
    fn cuDeviceGetUuid_v2();
    fn cuDevicePrimaryCtxGetState();
    fn cuDevicePrimaryCtxRelease_v2();
    fn cuDevicePrimaryCtxReset_v2();
    fn cuDevicePrimaryCtxRetain();
    fn cuDeviceSetMemPool();
    fn cuDeviceTotalMem_v2();
    fn cuDriverGetVersion();
    fn cuEventCreate();
    fn cuEventDestroy_v2();
    fn cuEventElapsedTime();
    fn cuEventElapsedTime_v2();
    fn cuEventQuery();
    fn cuEventRecord();
    fn cuEventSynchronize();
    fn cuFuncGetAttribute();
    fn cuFuncSetAttribute();
    fn cuFuncSetCacheConfig();
    fn cuGetErrorName();
    fn cuGetErrorString();
    fn cuGraphDestroy();
    fn cuGraphExecDestroy();
    fn cuGraphGetNodes();
    fn cuGraphInstantiateWithFlags();
    fn cuGraphLaunch();
    fn cuGraphUpload();
    fn cuInit();
    fn cuLaunchCooperativeKernel();
    fn cuLaunchHostFunc();
    fn cuLaunchKernel();
    fn cuMemAddressFree();
    fn cuMemAddressReserve();
    fn cuMemAdvise_v2();
    fn cuMemAllocAsync();
    fn cuMemAllocFromPoolAsync();
    fn cuMemAllocManaged();
    fn cuMemAlloc_v2();
    fn cuMemCreate();
    fn cuMemFreeAsync();
    fn cuMemFreeHost();
    fn cuMemFree_v2();
    fn cuMemGetAccess();
    fn cuMemGetAllocationGranularity();
    fn cuMemGetInfo_v2();
    fn cuMemHostAlloc();
    fn cuMemHostGetDevicePointer_v2();
    fn cuMemHostRegister_v2();
    fn cuMemHostUnregister();
    fn cuMemMap();
    fn cuMemPoolCreate();
    fn cuMemPoolDestroy();
    fn cuMemPoolGetAccess();
    fn cuMemPoolGetAttribute();
    fn cuMemPoolSetAccess();
    fn cuMemPoolSetAttribute();
    fn cuMemPoolTrimTo();
    fn cuMemPrefetchAsync_v2();
    fn cuMemRelease();
    fn cuMemSetAccess();
    fn cuMemUnmap();
    fn cuMemcpyAsync();
    fn cuMemcpyDtoDAsync_v2();
    fn cuMemcpyDtoD_v2();
    fn cuMemcpyDtoHAsync_v2();
    fn cuMemcpyDtoH_v2();
    fn cuMemcpyHtoDAsync_v2();
    fn cuMemcpyHtoD_v2();
    fn cuMemcpyPeerAsync();
    fn cuMemsetD16Async();
    fn cuMemsetD32Async();
    fn cuMemsetD8Async();
    fn cuMemsetD8_v2();
    fn cuModuleGetFunction();
    fn cuModuleGetGlobal_v2();
    fn cuModuleLoad();
    fn cuModuleLoadData();
    fn cuModuleUnload();
    fn cuOccupancyAvailableDynamicSMemPerBlock();
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor();
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags();
    fn cuOccupancyMaxActiveClusters();
    fn cuOccupancyMaxPotentialBlockSize();
    fn cuOccupancyMaxPotentialBlockSizeWithFlags();
    fn cuOccupancyMaxPotentialClusterSize();
    fn cuPointerGetAttribute();
    fn cuProfilerStart();
    fn cuProfilerStop();
    fn cuStreamAttachMemAsync();
    fn cuStreamBeginCapture_v2();
    fn cuStreamCreate();
    fn cuStreamCreateWithPriority();
    fn cuStreamDestroy();
    fn cuStreamDestroy_v2();
    fn cuStreamEndCapture();
    fn cuStreamGetCaptureInfo_v2();
    fn cuStreamIsCapturing();
    fn cuStreamQuery();
    fn cuStreamSynchronize();
    fn cuStreamWaitEvent();
    fn cuThreadExchangeStreamCaptureMode();
}

#[rustfmt::skip]
pub(crate) const CALLS: &[Row] = &[
    ("cuCtxCreate_v2", cuCtxCreate_v2, "oC f d"),
    ("cuCtxCreate_v3", cuCtxCreate_v3, "oC 0 0 f d"),
    ("cuCtxCreate_v4", cuCtxCreate_v4, "oC 0 f d"),
    ("cuCtxDestroy", cuCtxDestroy, "C"),
    ("cuCtxDestroy_v2", cuCtxDestroy_v2, "C"),
    ("cuCtxGetCacheConfig", cuCtxGetCacheConfig, "o"),
    ("cuCtxGetCurrent", cuCtxGetCurrent, "o"),
    ("cuCtxGetLimit", cuCtxGetLimit, "o v"),
    ("cuCtxGetStreamPriorityRange", cuCtxGetStreamPriorityRange, "o o"),
    ("cuCtxPopCurrent_v2", cuCtxPopCurrent_v2, "o"),
    ("cuCtxPushCurrent_v2", cuCtxPushCurrent_v2, "C"),
    ("cuCtxSetCacheConfig", cuCtxSetCacheConfig, "v"),
    ("cuCtxSetCurrent", cuCtxSetCurrent, "C"),
    ("cuCtxSetFlags", cuCtxSetFlags, "f"),
    ("cuCtxSetLimit", cuCtxSetLimit, "v v"),
    ("cuCtxSynchronize", cuCtxSynchronize, ""),
    ("cuDeviceCanAccessPeer", cuDeviceCanAccessPeer, "o d d"),
    ("cuDeviceGet", cuDeviceGet, "o d"),
    ("cuDeviceGetAttribute", cuDeviceGetAttribute, "o v d"),
    ("cuDeviceGetCount", cuDeviceGetCount, "o"),
    ("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool, "o d"),
    ("cuDeviceGetMemPool", cuDeviceGetMemPool, "o d"),
    ("cuDeviceGetName", cuDeviceGetName, "o b d"),
    ("cuDeviceGetPCIBusId", cuDeviceGetPCIBusId, "o b d"),
    ("cuDeviceGetUuid", cuDeviceGetUuid, "o d"),
    ("cuDeviceGetUuid_v2", cuDeviceGetUuid_v2, "o d"),
    ("cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState, "d o o"),
    ("cuDevicePrimaryCtxRelease_v2", cuDevicePrimaryCtxRelease_v2, "d"),
    ("cuDevicePrimaryCtxReset_v2", cuDevicePrimaryCtxReset_v2, "d"),
    ("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain, "oC d"),
    ("cuDeviceSetMemPool", cuDeviceSetMemPool, "d P"),
    ("cuDeviceTotalMem_v2", cuDeviceTotalMem_v2, "o d"),
    ("cuDriverGetVersion", cuDriverGetVersion, "o"),
    ("cuEventCreate", cuEventCreate, "oE f"),
    ("cuEventDestroy_v2", cuEventDestroy_v2, "E"),
    ("cuEventElapsedTime", cuEventElapsedTime, "o E E"),
    ("cuEventElapsedTime_v2", cuEventElapsedTime_v2, "o E E"),
    ("cuEventQuery", cuEventQuery, "E"),
    ("cuEventRecord", cuEventRecord, "E S"),
    ("cuEventSynchronize", cuEventSynchronize, "E"),
    ("cuFuncGetAttribute", cuFuncGetAttribute, "o v F"),
    ("cuFuncSetAttribute", cuFuncSetAttribute, "F v v"),
    ("cuFuncSetCacheConfig", cuFuncSetCacheConfig, "F v"),
    ("cuGetErrorName", cuGetErrorName, "v o"),
    ("cuGetErrorString", cuGetErrorString, "v o"),
    ("cuGraphDestroy", cuGraphDestroy, "G"),
    ("cuGraphExecDestroy", cuGraphExecDestroy, "X"),
    ("cuGraphGetNodes", cuGraphGetNodes, "G o i"),
    ("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags, "oX G f"),
    ("cuGraphLaunch", cuGraphLaunch, "X S"),
    ("cuGraphUpload", cuGraphUpload, "X S"),
    ("cuInit", cuInit, "f"),
    ("cuLaunchCooperativeKernel", cuLaunchCooperativeKernel, "F u u u u u u v S k"),
    ("cuLaunchHostFunc", cuLaunchHostFunc, "S y 0"),
    ("cuLaunchKernel", cuLaunchKernel, "F u u u u u u v S k 0"),
    ("cuMemAddressFree", cuMemAddressFree, "R V"),
    ("cuMemAddressReserve", cuMemAddressReserve, "oR V l A 0"),
    ("cuMemAdvise_v2", cuMemAdvise_v2, "U s v z"),
    ("cuMemAllocAsync", cuMemAllocAsync, "oA N S"),
    ("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync, "oA N P S"),
    ("cuMemAllocManaged", cuMemAllocManaged, "oB N f"),
    ("cuMemAlloc_v2", cuMemAlloc_v2, "oA N"),
    ("cuMemCreate", cuMemCreate, "oH V p 0"),
    ("cuMemFreeAsync", cuMemFreeAsync, "W S"),
    ("cuMemFreeHost", cuMemFreeHost, "U"),
    ("cuMemFree_v2", cuMemFree_v2, "U"),
    ("cuMemGetAccess", cuMemGetAccess, "o L A"),
    ("cuMemGetAllocationGranularity", cuMemGetAllocationGranularity, "o p f"),
    ("cuMemGetInfo_v2", cuMemGetInfo_v2, "o o"),
    ("cuMemHostAlloc", cuMemHostAlloc, "oB N f"),
    ("cuMemHostGetDevicePointer_v2", cuMemHostGetDevicePointer_v2, "oB A f"),
    ("cuMemHostRegister_v2", cuMemHostRegister_v2, "r s f"),
    ("cuMemHostUnregister", cuMemHostUnregister, "r"),
    ("cuMemMap", cuMemMap, "R V 0 H 0"),
    ("cuMemPoolCreate", cuMemPoolCreate, "oP q"),
    ("cuMemPoolDestroy", cuMemPoolDestroy, "P"),
    ("cuMemPoolGetAccess", cuMemPoolGetAccess, "o P L"),
    ("cuMemPoolGetAttribute", cuMemPoolGetAttribute, "P v o"),
    ("cuMemPoolSetAccess", cuMemPoolSetAccess, "P w c"),
    ("cuMemPoolSetAttribute", cuMemPoolSetAttribute, "P v m"),
    ("cuMemPoolTrimTo", cuMemPoolTrimTo, "P N"),
    ("cuMemPrefetchAsync_v2", cuMemPrefetchAsync_v2, "U s z 0 S"),
    ("cuMemRelease", cuMemRelease, "H"),
    ("cuMemSetAccess", cuMemSetAccess, "R V w c"),
    ("cuMemUnmap", cuMemUnmap, "R V"),
    ("cuMemcpyAsync", cuMemcpyAsync, "a a s S"),
    ("cuMemcpyDtoDAsync_v2", cuMemcpyDtoDAsync_v2, "A A N S"),
    ("cuMemcpyDtoD_v2", cuMemcpyDtoD_v2, "A A N"),
    ("cuMemcpyDtoHAsync_v2", cuMemcpyDtoHAsync_v2, "h A s S"),
    ("cuMemcpyDtoH_v2", cuMemcpyDtoH_v2, "h A s"),
    ("cuMemcpyHtoDAsync_v2", cuMemcpyHtoDAsync_v2, "A h s S"),
    ("cuMemcpyHtoD_v2", cuMemcpyHtoD_v2, "A h s"),
    ("cuMemcpyPeerAsync", cuMemcpyPeerAsync, "A C A C N S"),
    ("cuMemsetD16Async", cuMemsetD16Async, "A v N S"),
    ("cuMemsetD32Async", cuMemsetD32Async, "A v N S"),
    ("cuMemsetD8Async", cuMemsetD8Async, "A v N S"),
    ("cuMemsetD8_v2", cuMemsetD8_v2, "A v N"),
    ("cuModuleGetFunction", cuModuleGetFunction, "oF M T"),
    ("cuModuleGetGlobal_v2", cuModuleGetGlobal_v2, "oA o M T"),
    ("cuModuleLoad", cuModuleLoad, "oM T"),
    ("cuModuleLoadData", cuModuleLoadData, "oM t"),
    ("cuModuleUnload", cuModuleUnload, "M"),
    ("cuOccupancyAvailableDynamicSMemPerBlock", cuOccupancyAvailableDynamicSMemPerBlock, "o F v v"),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessor", cuOccupancyMaxActiveBlocksPerMultiprocessor, "o F v v"),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, "o F v v f"),
    ("cuOccupancyMaxActiveClusters", cuOccupancyMaxActiveClusters, "o F j"),
    ("cuOccupancyMaxPotentialBlockSize", cuOccupancyMaxPotentialBlockSize, "o o F 0 v v"),
    ("cuOccupancyMaxPotentialBlockSizeWithFlags", cuOccupancyMaxPotentialBlockSizeWithFlags, "o o F 0 v v f"),
    ("cuOccupancyMaxPotentialClusterSize", cuOccupancyMaxPotentialClusterSize, "o F j"),
    ("cuPointerGetAttribute", cuPointerGetAttribute, "o v A"),
    ("cuProfilerStart", cuProfilerStart, ""),
    ("cuProfilerStop", cuProfilerStop, ""),
    ("cuStreamAttachMemAsync", cuStreamAttachMemAsync, "S U 0 f"),
    ("cuStreamBeginCapture_v2", cuStreamBeginCapture_v2, "S f"),
    ("cuStreamCreate", cuStreamCreate, "oS f"),
    ("cuStreamCreateWithPriority", cuStreamCreateWithPriority, "oS f v"),
    ("cuStreamDestroy", cuStreamDestroy, "S"),
    ("cuStreamDestroy_v2", cuStreamDestroy_v2, "S"),
    ("cuStreamEndCapture", cuStreamEndCapture, "S oG"),
    ("cuStreamGetCaptureInfo_v2", cuStreamGetCaptureInfo_v2, "S o o o o o"),
    ("cuStreamIsCapturing", cuStreamIsCapturing, "S o"),
    ("cuStreamQuery", cuStreamQuery, "S"),
    ("cuStreamSynchronize", cuStreamSynchronize, "S"),
    ("cuStreamWaitEvent", cuStreamWaitEvent, "S E f"),
    ("cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode, "m"),
];
