//! The stand-in's functions, linked in, and a few words to write tests with.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::MutexGuard;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::stand_in::KernelBody;
use larder_cuda_abi::{AccessDesc, AllocFlags, AllocationProp, Code, Location, PoolProps};

pub(crate) use crate::common::{GRANULARITY, alive, alone, findings, made, ok};
use crate::numbers::Random;

/// A host function.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

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
    pub(crate) safe fn cuLaunchHostFunc(stream: usize, f: HostFunction, data: *mut c_void) -> Code;
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
    pub(crate) safe fn cuMemSetAccess(at: u64, n: usize, rights: &AccessDesc, count: usize)
    -> Code;
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
}

/// The driver for one test: two devices, a context of the first one current.
pub(crate) struct Gpu {
    pub(crate) context: usize,
    _one: MutexGuard<'static, ()>,
}

/// A fresh driver.
pub(crate) fn gpu() -> Gpu {
    let one = alone();
    larder_stand_in_clear_failures();
    larder_stand_in_reset(2, 16 << 30);
    ok(cuInit(0));
    ok(cuCtxSetCurrent(0));
    Gpu {
        context: made(|context| cuCtxCreate_v2(context, 0, 0)),
        _one: one,
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        larder_stand_in_schedule(0, 0);
        cuCtxSetCurrent(0);
    }
}

/// A stream that does not wait for the legacy one.
#[track_caller]
pub(crate) fn stream() -> usize {
    made(|stream| cuStreamCreate(stream, c::STREAM_NON_BLOCKING))
}

#[track_caller]
pub(crate) fn event() -> usize {
    made(|event| cuEventCreate(event, 0))
}

#[track_caller]
pub(crate) fn memory(bytes: usize) -> u64 {
    made(|at| cuMemAlloc_v2(at, bytes))
}

pub(crate) fn device(id: i32) -> Location {
    Location {
        kind: c::MEM_LOCATION_DEVICE,
        id,
    }
}

/// Properties of physical memory.
pub(crate) fn physical(id: i32) -> AllocationProp {
    AllocationProp {
        kind: c::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: c::MEM_HANDLE_TYPE_NONE,
        location: device(id),
        win32_meta_data: null_mut(),
        flags: AllocFlags::default(),
    }
}

pub(crate) fn pool_props(id: i32) -> PoolProps {
    PoolProps {
        kind: c::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: 0,
        location: device(id),
        win32_security_attributes: null_mut(),
        max_bytes: 0,
        usage: 0,
        reserved: [0; 54],
    }
}

/// Maps a handle somewhere new, for device 0 to read and write.
#[track_caller]
pub(crate) fn map(handle: u64, bytes: usize) -> u64 {
    let at = made(|at| cuMemAddressReserve(at, bytes, 0, 0, 0));
    ok(cuMemMap(at, bytes, 0, handle, 0));
    let right = AccessDesc {
        location: device(0),
        flags: c::MEM_ACCESS_READ_WRITE,
    };
    ok(cuMemSetAccess(at, bytes, &right, 1));
    at
}

/// Draws numbers.
#[derive(Clone, Debug)]
pub(crate) struct Draw(Random);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Once in so many times.
    pub(crate) fn rarely(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
