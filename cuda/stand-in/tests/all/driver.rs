//! The driver's functions that tests of several kinds call, and those of the stand-in's control.

use std::ffi::{c_char, c_void};

use larder_cuda_abi::stand_in::KernelBody;
use larder_cuda_abi::{AccessDesc, AllocationProp, Code, Location, PoolProps};

// Links the driver into this test.
use larder_cuda_stand_in as _;

unsafe extern "C" {
    pub(crate) safe fn cuInit(flags: u32) -> Code;
    pub(crate) safe fn cuDriverGetVersion(version: &mut i32) -> Code;
    pub(crate) safe fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Code;
    pub(crate) safe fn cuCtxCreate_v2(context: &mut usize, flags: u32, device: i32) -> Code;
    pub(crate) safe fn cuCtxDestroy_v2(context: usize) -> Code;
    pub(crate) safe fn cuCtxSetCurrent(context: usize) -> Code;
    pub(crate) safe fn cuCtxPushCurrent_v2(context: usize) -> Code;
    pub(crate) safe fn cuCtxPopCurrent_v2(context: &mut usize) -> Code;
    pub(crate) safe fn cuCtxSynchronize() -> Code;
    pub(crate) safe fn cuStreamCreate(stream: &mut usize, flags: u32) -> Code;
    pub(crate) safe fn cuStreamDestroy_v2(stream: usize) -> Code;
    pub(crate) safe fn cuStreamSynchronize(stream: usize) -> Code;
    pub(crate) safe fn cuStreamQuery(stream: usize) -> Code;
    pub(crate) safe fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> Code;
    pub(crate) safe fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> Code;
    pub(crate) safe fn cuStreamEndCapture(stream: usize, graph: &mut usize) -> Code;
    pub(crate) safe fn cuGraphInstantiateWithFlags(
        exec: &mut usize,
        graph: usize,
        flags: u64,
    ) -> Code;
    pub(crate) safe fn cuGraphLaunch(exec: usize, stream: usize) -> Code;
    pub(crate) safe fn cuGraphDestroy(graph: usize) -> Code;
    pub(crate) safe fn cuGraphExecDestroy(exec: usize) -> Code;
    pub(crate) safe fn cuEventCreate(event: &mut usize, flags: u32) -> Code;
    pub(crate) safe fn cuEventRecord(event: usize, stream: usize) -> Code;
    pub(crate) safe fn cuEventQuery(event: usize) -> Code;
    pub(crate) safe fn cuEventSynchronize(event: usize) -> Code;
    pub(crate) safe fn cuEventDestroy_v2(event: usize) -> Code;
    pub(crate) safe fn cuEventElapsedTime(ms: &mut f32, start: usize, end: usize) -> Code;
    pub(crate) safe fn cuLaunchHostFunc(
        stream: usize,
        f: extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Code;
    pub(crate) safe fn cuMemAlloc_v2(at: &mut u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemFree_v2(at: u64) -> Code;
    pub(crate) safe fn cuMemHostAlloc(at: &mut usize, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemFreeHost(at: usize) -> Code;
    pub(crate) safe fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemAllocAsync(at: &mut u64, bytes: usize, stream: usize) -> Code;
    pub(crate) safe fn cuMemAllocFromPoolAsync(at: &mut u64, n: usize, p: usize, s: usize) -> Code;
    pub(crate) safe fn cuMemFreeAsync(at: u64, stream: usize) -> Code;
    pub(crate) safe fn cuMemPoolCreate(pool: &mut usize, props: &PoolProps) -> Code;
    pub(crate) safe fn cuMemPoolDestroy(pool: usize) -> Code;
    pub(crate) safe fn cuMemPoolTrimTo(pool: usize, keep: usize) -> Code;
    pub(crate) safe fn cuMemPoolSetAttribute(pool: usize, attribute: u32, value: &u64) -> Code;
    pub(crate) safe fn cuDeviceGetDefaultMemPool(pool: &mut usize, device: i32) -> Code;
    pub(crate) safe fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: usize) -> Code;
    pub(crate) safe fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, n: usize, stream: usize) -> Code;
    pub(crate) safe fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, n: usize, s: usize) -> Code;
    pub(crate) safe fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) -> Code;
    pub(crate) safe fn cuMemAddressReserve(
        at: &mut u64,
        bytes: usize,
        align: usize,
        wish: u64,
        flags: u64,
    ) -> Code;
    pub(crate) safe fn cuMemAddressFree(at: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemCreate(
        handle: &mut u64,
        bytes: usize,
        prop: &AllocationProp,
        flags: u64,
    ) -> Code;
    pub(crate) safe fn cuMemRelease(handle: u64) -> Code;
    pub(crate) safe fn cuMemMap(at: u64, bytes: usize, offset: usize, h: u64, flags: u64) -> Code;
    pub(crate) safe fn cuMemUnmap(at: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemSetAccess(
        at: u64,
        bytes: usize,
        rights: *const AccessDesc,
        count: usize,
    ) -> Code;
    pub(crate) safe fn cuModuleLoadData(module: &mut usize, image: *const c_char) -> Code;
    pub(crate) safe fn cuThreadExchangeStreamCaptureMode(mode: &mut u32) -> Code;
    pub(crate) safe fn larder_stand_in_reset(devices: u32, bytes: u64);
    pub(crate) safe fn larder_stand_in_schedule(deferred: u32, seed: u64);
    pub(crate) safe fn larder_stand_in_used(device: i32) -> u64;
    pub(crate) safe fn larder_stand_in_share(path: *const c_char) -> Code;
    pub(crate) safe fn larder_stand_in_kernel(
        name: *const c_char,
        body: Option<KernelBody>,
    ) -> Code;
    pub(crate) safe fn larder_stand_in_fail(
        name: *const c_char,
        skip: u64,
        times: u64,
        code: Code,
    ) -> Code;
    pub(crate) safe fn larder_stand_in_clear_failures();
    pub(crate) safe fn larder_stand_in_clear_findings();
    pub(crate) safe fn cuDevicePrimaryCtxRetain(context: &mut usize, device: i32) -> Code;
    pub(crate) safe fn cuDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32) -> Code;
    pub(crate) safe fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize) -> Code;
    pub(crate) safe fn cuDeviceTotalMem_v2(bytes: &mut usize, device: i32) -> Code;
    pub(crate) safe fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> Code;
    pub(crate) safe fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, s: usize) -> Code;
    pub(crate) safe fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemcpyPeerAsync(
        to: u64,
        tc: usize,
        from: u64,
        fc: usize,
        n: usize,
        s: usize,
    ) -> Code;
    pub(crate) safe fn cuMemGetAllocationGranularity(
        granularity: &mut usize,
        prop: &AllocationProp,
        option: u32,
    ) -> Code;
    pub(crate) safe fn cuMemExportToShareableHandle(
        descriptor: &mut i32,
        handle: u64,
        handle_type: u32,
        flags: u64,
    ) -> Code;
    pub(crate) safe fn cuMemImportFromShareableHandle(
        handle: &mut u64,
        descriptor: usize,
        handle_type: u32,
    ) -> Code;
    pub(crate) safe fn cuMemGetAccess(flags: &mut u64, location: &Location, at: u64) -> Code;
    pub(crate) safe fn cuMemHostGetDevicePointer_v2(to: &mut u64, at: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemHostUnregister(at: usize) -> Code;
    pub(crate) safe fn cuMemAllocManaged(at: &mut u64, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemPrefetchAsync_v2(
        at: u64,
        bytes: usize,
        location: Location,
        flags: u32,
        stream: usize,
    ) -> Code;
    pub(crate) safe fn cuMemAdvise_v2(at: u64, bytes: usize, advice: u32, l: Location) -> Code;
    pub(crate) safe fn cuStreamAttachMemAsync(s: usize, at: u64, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuPointerGetAttribute(data: &mut u64, attribute: u32, at: u64) -> Code;
    pub(crate) safe fn larder_stand_in_poison(on: u32);
    pub(crate) safe fn larder_stand_in_mapping_waits(on: u32) -> u32;
    pub(crate) safe fn larder_stand_in_virtual_memory(on: u32);
    pub(crate) safe fn larder_stand_in_set_addresses(bytes: u64);
    pub(crate) safe fn larder_stand_in_set_pinned(bytes: u64);
    pub(crate) safe fn larder_stand_in_managed_concurrently(on: u32);
    pub(crate) safe fn larder_stand_in_set_memory(device: i32, bytes: u64) -> Code;
}
