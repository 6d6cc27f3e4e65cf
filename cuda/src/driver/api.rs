//! The driver's functions, looked up by name when the driver is loaded.
//!
//! Why not the wrappers of a binding: they panic when a function is missing, and an answer newer
//! than the binding is undefined there. Here a missing function is a value and an answer a number.
//!
//! Invariant DRIVER1: the type of each field is the C prototype of the function it is looked up by, and
//! the library stays loaded for as long as the table lives. All calls of this module cite it.

use core::ffi::{c_char, c_int, c_void};
use std::path::Path;

use larder_cuda_abi::{
    AccessDesc, AllocationProp, Code, ContextHandle, DevicePtr, EventHandle, GraphHandle, Location,
    MemoryHandle, PoolHandle, PoolProps, StreamHandle,
};
use libloading::Library;

use super::error::{DriverError, LoadError};

/// A function that every driver has.
#[derive(Clone, Copy)]
pub(super) struct Required<F> {
    name: &'static str,
    pub(super) call: F,
}

impl<F> Required<F> {
    /// `Ok` for success, else an error that names the function.
    pub(super) fn check(&self, code: Code) -> Result<(), DriverError> {
        let function = self.name;
        code.check()
            .map_err(|code| DriverError::Call { function, code })
    }
}

/// A function that came with some version.
#[derive(Clone, Copy)]
pub(super) struct Optional<F> {
    name: &'static str,
    needs_version: u32,
    call: Option<F>,
}

impl<F: Copy> Optional<F> {
    /// The function, if the driver of this version has it.
    pub(super) fn of(&self, version: u32) -> Result<Required<F>, DriverError> {
        match self.call {
            Some(call) if version >= self.needs_version => Ok(Required {
                name: self.name,
                call,
            }),
            _ => Err(DriverError::Missing {
                function: self.name,
                needs_version: self.needs_version,
                version,
            }),
        }
    }
}

/// A library to look functions up in.
#[derive(Clone, Copy)]
struct Symbols<'a> {
    library: &'a Library,
    path: &'a Path,
}

impl Symbols<'_> {
    /// The function of that name. Only the `resolve` functions below ask for it, with the prototype
    /// of the name (DRIVER1).
    fn find<F: Copy>(self, name: &'static str) -> Option<F> {
        // SAFETY: DRIVER1: `F` is the prototype of the function of this name.
        let symbol = unsafe { self.library.get::<F>(name) };
        symbol.ok().map(|symbol| *symbol)
    }

    fn required<F: Copy>(self, name: &'static str) -> Result<Required<F>, LoadError> {
        let call = self.find(name).ok_or_else(|| LoadError::Symbol {
            path: self.path.to_owned(),
            function: name,
        })?;
        Ok(Required { name, call })
    }

    fn since<F: Copy>(self, needs_version: u32, name: &'static str) -> Optional<F> {
        Optional {
            name,
            needs_version,
            call: self.find(name),
        }
    }
}

type Fn1<A> = unsafe extern "C" fn(A) -> Code;
type Fn2<A, B> = unsafe extern "C" fn(A, B) -> Code;
type Fn3<A, B, C> = unsafe extern "C" fn(A, B, C) -> Code;
type Fn4<A, B, C, D> = unsafe extern "C" fn(A, B, C, D) -> Code;
type Fn5<A, B, C, D, E> = unsafe extern "C" fn(A, B, C, D, E) -> Code;
type CaptureInfo = unsafe extern "C" fn(
    StreamHandle,
    *mut u32,
    *mut u64,
    *mut GraphHandle,
    *mut *const c_void,
    *mut usize,
) -> Code;

/// Functions of the driver, its devices and contexts, streams and events.
pub(super) struct Api {
    pub(super) init: Required<Fn1<u32>>,
    pub(super) driver_version: Required<Fn1<*mut c_int>>,
    pub(super) device_count: Required<Fn1<*mut c_int>>,
    pub(super) device: Required<Fn2<*mut c_int, c_int>>,
    pub(super) device_attribute: Required<Fn3<*mut c_int, u32, c_int>>,
    pub(super) device_bus_id: Required<Fn3<*mut c_char, c_int, c_int>>,
    pub(super) device_bytes: Required<Fn2<*mut usize, c_int>>,
    pub(super) device_can_access: Required<Fn3<*mut c_int, c_int, c_int>>,
    pub(super) context_current: Required<Fn1<*mut ContextHandle>>,
    pub(super) context_set: Required<Fn1<ContextHandle>>,
    pub(super) context_push: Required<Fn1<ContextHandle>>,
    pub(super) context_pop: Required<Fn1<*mut ContextHandle>>,
    pub(super) context_synchronize: Required<unsafe extern "C" fn() -> Code>,
    pub(super) stream_synchronize: Required<Fn1<StreamHandle>>,
    pub(super) stream_query: Required<Fn1<StreamHandle>>,
    pub(super) stream_wait: Required<Fn3<StreamHandle, EventHandle, u32>>,
    pub(super) stream_capturing: Required<Fn2<StreamHandle, *mut u32>>,
    pub(super) stream_context: Required<Fn2<StreamHandle, *mut ContextHandle>>,
    pub(super) stream_id: Optional<Fn2<StreamHandle, *mut u64>>,
    pub(super) stream_capture_info: Optional<CaptureInfo>,
    pub(super) exchange_capture_mode: Required<Fn1<*mut u32>>,
    pub(super) event_create: Required<Fn2<*mut EventHandle, u32>>,
    pub(super) event_destroy: Required<Fn1<EventHandle>>,
    pub(super) event_record: Required<Fn2<EventHandle, StreamHandle>>,
    pub(super) event_query: Required<Fn1<EventHandle>>,
    pub(super) event_synchronize: Required<Fn1<EventHandle>>,
    pub(super) event_elapsed: Required<Fn3<*mut f32, EventHandle, EventHandle>>,
    pub(super) memory: MemoryApi,
    pub(super) transfers: TransferApi,
    pub(super) pages: PageApi,
    pub(super) pools: PoolApi,
}

impl Api {
    /// Looks every function up. About sixty look-ups.
    pub(super) fn resolve(library: &Library, path: &Path) -> Result<Self, LoadError> {
        let all = Symbols { library, path };
        Ok(Self {
            init: all.required("cuInit")?,
            driver_version: all.required("cuDriverGetVersion")?,
            device_count: all.required("cuDeviceGetCount")?,
            device: all.required("cuDeviceGet")?,
            device_attribute: all.required("cuDeviceGetAttribute")?,
            device_bus_id: all.required("cuDeviceGetPCIBusId")?,
            device_bytes: all.required("cuDeviceTotalMem_v2")?,
            device_can_access: all.required("cuDeviceCanAccessPeer")?,
            context_current: all.required("cuCtxGetCurrent")?,
            context_set: all.required("cuCtxSetCurrent")?,
            context_push: all.required("cuCtxPushCurrent_v2")?,
            context_pop: all.required("cuCtxPopCurrent_v2")?,
            context_synchronize: all.required("cuCtxSynchronize")?,
            stream_synchronize: all.required("cuStreamSynchronize")?,
            stream_query: all.required("cuStreamQuery")?,
            stream_wait: all.required("cuStreamWaitEvent")?,
            stream_capturing: all.required("cuStreamIsCapturing")?,
            stream_context: all.required("cuStreamGetCtx")?,
            stream_id: all.since(12_000, "cuStreamGetId"),
            stream_capture_info: all.since(11_030, "cuStreamGetCaptureInfo_v2"),
            exchange_capture_mode: all.required("cuThreadExchangeStreamCaptureMode")?,
            event_create: all.required("cuEventCreate")?,
            event_destroy: all.required("cuEventDestroy_v2")?,
            event_record: all.required("cuEventRecord")?,
            event_query: all.required("cuEventQuery")?,
            event_synchronize: all.required("cuEventSynchronize")?,
            event_elapsed: all.required("cuEventElapsedTime")?,
            memory: MemoryApi::resolve(all)?,
            transfers: TransferApi::resolve(all)?,
            pages: PageApi::resolve(all),
            pools: PoolApi::resolve(all),
        })
    }
}

/// Plain memory: of the device, of the host, of both.
pub(super) struct MemoryApi {
    pub(super) info: Required<Fn2<*mut usize, *mut usize>>,
    pub(super) alloc: Required<Fn2<*mut DevicePtr, usize>>,
    pub(super) free: Required<Fn1<DevicePtr>>,
    pub(super) host_alloc: Required<Fn3<*mut *mut c_void, usize, u32>>,
    pub(super) host_free: Required<Fn1<*mut c_void>>,
    pub(super) host_register: Required<Fn3<*mut c_void, usize, u32>>,
    pub(super) host_unregister: Required<Fn1<*mut c_void>>,
    pub(super) host_device_pointer: Required<Fn3<*mut DevicePtr, *mut c_void, u32>>,
    pub(super) managed_alloc: Required<Fn3<*mut DevicePtr, usize, u32>>,
    pub(super) pointer_attribute: Required<Fn3<*mut c_void, u32, DevicePtr>>,
}

impl MemoryApi {
    fn resolve(all: Symbols<'_>) -> Result<Self, LoadError> {
        Ok(Self {
            info: all.required("cuMemGetInfo_v2")?,
            alloc: all.required("cuMemAlloc_v2")?,
            free: all.required("cuMemFree_v2")?,
            host_alloc: all.required("cuMemHostAlloc")?,
            host_free: all.required("cuMemFreeHost")?,
            host_register: all.required("cuMemHostRegister_v2")?,
            host_unregister: all.required("cuMemHostUnregister")?,
            host_device_pointer: all.required("cuMemHostGetDevicePointer_v2")?,
            managed_alloc: all.required("cuMemAllocManaged")?,
            pointer_attribute: all.required("cuPointerGetAttribute")?,
        })
    }
}

/// What moves bytes in the order of a stream.
pub(super) struct TransferApi {
    pub(super) to_host: Required<Fn4<*mut c_void, DevicePtr, usize, StreamHandle>>,
    pub(super) to_device: Required<Fn4<DevicePtr, *const c_void, usize, StreamHandle>>,
    pub(super) within: Required<Fn4<DevicePtr, DevicePtr, usize, StreamHandle>>,
    pub(super) fill_1: Required<Fn4<DevicePtr, u8, usize, StreamHandle>>,
    pub(super) fill_2: Required<Fn4<DevicePtr, u16, usize, StreamHandle>>,
    pub(super) fill_4: Required<Fn4<DevicePtr, u32, usize, StreamHandle>>,
}

impl TransferApi {
    fn resolve(all: Symbols<'_>) -> Result<Self, LoadError> {
        Ok(Self {
            to_host: all.required("cuMemcpyDtoHAsync_v2")?,
            to_device: all.required("cuMemcpyHtoDAsync_v2")?,
            within: all.required("cuMemcpyDtoDAsync_v2")?,
            fill_1: all.required("cuMemsetD8Async")?,
            fill_2: all.required("cuMemsetD16Async")?,
            fill_4: all.required("cuMemsetD32Async")?,
        })
    }
}

/// Addresses, and physical memory mapped to them.
pub(super) struct PageApi {
    pub(super) reserve: Optional<Fn5<*mut DevicePtr, usize, usize, DevicePtr, u64>>,
    pub(super) free: Optional<Fn2<DevicePtr, usize>>,
    pub(super) create: Optional<Fn4<*mut MemoryHandle, usize, *const AllocationProp, u64>>,
    pub(super) release: Optional<Fn1<MemoryHandle>>,
    pub(super) map: Optional<Fn5<DevicePtr, usize, usize, MemoryHandle, u64>>,
    pub(super) unmap: Optional<Fn2<DevicePtr, usize>>,
    pub(super) set_access: Optional<Fn4<DevicePtr, usize, *const AccessDesc, usize>>,
    pub(super) get_access: Optional<Fn3<*mut u64, *const Location, DevicePtr>>,
    pub(super) granularity: Optional<Fn3<*mut usize, *const AllocationProp, u32>>,
    #[cfg(unix)]
    pub(super) export: Optional<Fn4<*mut c_void, MemoryHandle, u32, u64>>,
    #[cfg(unix)]
    pub(super) import: Optional<Fn3<*mut MemoryHandle, *mut c_void, u32>>,
}

/// The version that brought virtual memory.
pub(crate) const PAGES_SINCE: u32 = 10_020;

impl PageApi {
    fn resolve(all: Symbols<'_>) -> Self {
        Self {
            reserve: all.since(PAGES_SINCE, "cuMemAddressReserve"),
            free: all.since(PAGES_SINCE, "cuMemAddressFree"),
            create: all.since(PAGES_SINCE, "cuMemCreate"),
            release: all.since(PAGES_SINCE, "cuMemRelease"),
            map: all.since(PAGES_SINCE, "cuMemMap"),
            unmap: all.since(PAGES_SINCE, "cuMemUnmap"),
            set_access: all.since(PAGES_SINCE, "cuMemSetAccess"),
            get_access: all.since(PAGES_SINCE, "cuMemGetAccess"),
            granularity: all.since(PAGES_SINCE, "cuMemGetAllocationGranularity"),
            #[cfg(unix)]
            export: all.since(PAGES_SINCE, "cuMemExportToShareableHandle"),
            #[cfg(unix)]
            import: all.since(PAGES_SINCE, "cuMemImportFromShareableHandle"),
        }
    }
}

/// The driver's own pools, and memory in the order of a stream.
pub(super) struct PoolApi {
    pub(super) alloc: Optional<Fn3<*mut DevicePtr, usize, StreamHandle>>,
    pub(super) alloc_from: Optional<Fn4<*mut DevicePtr, usize, PoolHandle, StreamHandle>>,
    pub(super) free: Optional<Fn2<DevicePtr, StreamHandle>>,
    pub(super) create: Optional<Fn2<*mut PoolHandle, *const PoolProps>>,
    pub(super) destroy: Optional<Fn1<PoolHandle>>,
    pub(super) trim: Optional<Fn2<PoolHandle, usize>>,
    pub(super) set_attribute: Optional<Fn3<PoolHandle, u32, *mut c_void>>,
    pub(super) get_attribute: Optional<Fn3<PoolHandle, u32, *mut c_void>>,
    pub(super) of_device: Optional<Fn2<*mut PoolHandle, c_int>>,
}

/// The version that brought pools.
pub(crate) const POOLS_SINCE: u32 = 11_020;

impl PoolApi {
    fn resolve(all: Symbols<'_>) -> Self {
        Self {
            alloc: all.since(POOLS_SINCE, "cuMemAllocAsync"),
            alloc_from: all.since(POOLS_SINCE, "cuMemAllocFromPoolAsync"),
            free: all.since(POOLS_SINCE, "cuMemFreeAsync"),
            create: all.since(POOLS_SINCE, "cuMemPoolCreate"),
            destroy: all.since(POOLS_SINCE, "cuMemPoolDestroy"),
            trim: all.since(POOLS_SINCE, "cuMemPoolTrimTo"),
            set_attribute: all.since(POOLS_SINCE, "cuMemPoolSetAttribute"),
            get_attribute: all.since(POOLS_SINCE, "cuMemPoolGetAttribute"),
            of_device: all.since(POOLS_SINCE, "cuDeviceGetMemPool"),
        }
    }
}
