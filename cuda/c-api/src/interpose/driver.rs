//! [`Driver`]: the driver's own functions, from the library that the program's first call was meant for.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{
    AllocationProp, ContextHandle, DevicePtr, FunctionHandle, GraphExecHandle, LaunchConfig,
    MemoryHandle, PoolHandle, PoolProps, StreamHandle, constants,
};

use super::{Library, lookup};

pub(super) type Fn1<A> = unsafe extern "C" fn(A) -> Code;
pub(super) type Fn2<A, B> = unsafe extern "C" fn(A, B) -> Code;
pub(super) type Fn3<A, B, C> = unsafe extern "C" fn(A, B, C) -> Code;
pub(super) type Fn4<A, B, C, D> = unsafe extern "C" fn(A, B, C, D) -> Code;
pub(super) type Fn5<A, B, C, D, E> = unsafe extern "C" fn(A, B, C, D, E) -> Code;
/// A kernel, its grid and blocks, shared memory, stream and parameters.
pub(super) type Cooperative = unsafe extern "C" fn(
    FunctionHandle,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    StreamHandle,
    *mut *mut c_void,
) -> Code;
/// `Cooperative` with further ways to give parameters.
pub(super) type Kernel = unsafe extern "C" fn(
    FunctionHandle,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    StreamHandle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Code;

/// A function that takes a stream, and the same for programs whose default stream is each thread's own.
#[derive(Clone, Copy)]
pub(super) struct Streamed<F> {
    pub(super) legacy: Option<F>,
    pub(super) per_thread: Option<F>,
}

/// INTERDRV: each field has the prototype of the function it is looked up by, and the library stays loaded.
pub(super) struct Driver {
    base: usize,
    pub(super) get_proc_address: Option<Fn4<*const c_char, *mut *const c_void, c_int, u64>>,
    pub(super) get_proc_address_v2:
        Option<Fn5<*const c_char, *mut *const c_void, c_int, u64, *mut u32>>,
    pub(super) alloc: Option<Fn2<*mut DevicePtr, usize>>,
    pub(super) alloc_pitch: Option<Fn5<*mut DevicePtr, *mut usize, usize, usize, u32>>,
    pub(super) alloc_managed: Option<Fn3<*mut DevicePtr, usize, u32>>,
    pub(super) free: Option<Fn1<DevicePtr>>,
    pub(super) info: Option<Fn2<*mut usize, *mut usize>>,
    pub(super) total: Option<Fn2<*mut usize, c_int>>,
    pub(super) context_destroy: Option<Fn1<ContextHandle>>,
    pub(super) context_destroy_v1: Option<Fn1<ContextHandle>>,
    pub(super) primary_retain: Option<Fn2<*mut ContextHandle, c_int>>,
    pub(super) primary_release: Option<Fn1<c_int>>,
    pub(super) primary_release_v2: Option<Fn1<c_int>>,
    pub(super) primary_reset: Option<Fn1<c_int>>,
    pub(super) primary_reset_v2: Option<Fn1<c_int>>,
    primary_state: Option<Fn3<c_int, *mut u32, *mut c_int>>,
    pub(super) alloc_async: Streamed<Fn3<*mut DevicePtr, usize, StreamHandle>>,
    pub(super) alloc_from_pool: Streamed<Fn4<*mut DevicePtr, usize, PoolHandle, StreamHandle>>,
    pub(super) free_async: Streamed<Fn2<DevicePtr, StreamHandle>>,
    pub(super) pool_create: Option<Fn2<*mut PoolHandle, *const PoolProps>>,
    pub(super) pool_destroy: Option<Fn1<PoolHandle>>,
    pub(super) pool_trim: Option<Fn2<PoolHandle, usize>>,
    pool_attribute: Option<Fn3<PoolHandle, u32, *mut c_void>>,
    device_pool: Option<Fn2<*mut PoolHandle, c_int>>,
    pub(super) create: Option<Fn4<*mut MemoryHandle, usize, *const AllocationProp, u64>>,
    pub(super) release: Option<Fn1<MemoryHandle>>,
    pub(super) retain: Option<Fn2<*mut MemoryHandle, *mut c_void>>,
    pub(super) map: Option<Fn5<DevicePtr, usize, usize, MemoryHandle, u64>>,
    pub(super) unmap: Option<Fn2<DevicePtr, usize>>,
    pub(super) launch: Streamed<Kernel>,
    pub(super) launch_cooperative: Streamed<Cooperative>,
    pub(super) launch_ex:
        Streamed<Fn4<*const LaunchConfig, FunctionHandle, *mut *mut c_void, *mut *mut c_void>>,
    pub(super) launch_graph: Streamed<Fn2<GraphExecHandle, StreamHandle>>,
    pub(super) stream_destroy: Option<Fn1<StreamHandle>>,
    pub(super) stream_destroy_v1: Option<Fn1<StreamHandle>>,
    stream_synchronize: Option<Fn1<StreamHandle>>,
    stream_capturing: Option<Fn2<StreamHandle, *mut u32>>,
    stream_context: Option<Fn2<StreamHandle, *mut ContextHandle>>,
    exchange_capture_mode: Option<Fn1<*mut u32>>,
    current: Option<Fn1<*mut ContextHandle>>,
    push: Option<Fn1<ContextHandle>>,
    pop: Option<Fn1<*mut ContextHandle>>,
    current_device: Option<Fn1<*mut c_int>>,
    device_by_ordinal: Option<Fn2<*mut c_int, c_int>>,
    bus_id: Option<Fn3<*mut c_char, c_int, c_int>>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Functions of one library by name.
#[derive(Clone, Copy)]
struct Symbols(*mut c_void);

impl Symbols {
    /// Only [`Driver::resolve`] asks, with the prototype of the name (INTERDRV).
    fn find<F: Copy>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        let address = lookup::symbol(self.0, name)?;
        // SAFETY: INTERDRV: a function of that name has that type.
        Some(unsafe { core::mem::transmute_copy(&address.as_ptr()) })
    }

    fn streamed<F: Copy>(self, legacy: &CStr, per_thread: &CStr) -> Streamed<F> {
        Streamed {
            legacy: self.find(legacy),
            per_thread: self.find(per_thread),
        }
    }
}

impl Driver {
    /// The driver that the program uses; if none of its calls has said which, that which it is linked with.
    pub(super) fn get() -> Option<&'static Self> {
        if let Some(driver) = DRIVER.get() {
            return Some(driver);
        }
        let linked = lookup::symbol(libc::RTLD_NEXT, c"cuInit")?;
        let driver = Self::in_library_of(linked.as_ptr())?;
        Some(DRIVER.get_or_init(|| driver))
    }

    /// Whether a function that the program is about to get is the driver's. The first one says which driver
    /// it is.
    pub(super) fn has(function: *const c_void) -> bool {
        if let Some(driver) = DRIVER.get() {
            let library = Library::of(function);
            return library.is_some_and(|library| library.base == driver.base);
        }
        let Some(driver) = Self::in_library_of(function) else {
            return false;
        };
        let base = driver.base;
        DRIVER.get_or_init(|| driver).base == base
    }

    fn in_library_of(function: *const c_void) -> Option<Self> {
        let library = Library::of(function)?;
        if Library::own().is_none_or(|own| own.base == library.base) {
            return None;
        }
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the loader's own path; nothing is loaded anew.
        let handle = unsafe { libc::dlopen(library.path.as_ptr(), flags) };
        (!handle.is_null()).then(|| Self::resolve(library.base, Symbols(handle)))
    }

    fn resolve(base: usize, all: Symbols) -> Self {
        Self {
            base,
            get_proc_address: all.find(c"cuGetProcAddress"),
            get_proc_address_v2: all.find(c"cuGetProcAddress_v2"),
            alloc: all.find(c"cuMemAlloc_v2"),
            alloc_pitch: all.find(c"cuMemAllocPitch_v2"),
            alloc_managed: all.find(c"cuMemAllocManaged"),
            free: all.find(c"cuMemFree_v2"),
            info: all.find(c"cuMemGetInfo_v2"),
            total: all.find(c"cuDeviceTotalMem_v2"),
            context_destroy: all.find(c"cuCtxDestroy_v2"),
            context_destroy_v1: all.find(c"cuCtxDestroy"),
            primary_retain: all.find(c"cuDevicePrimaryCtxRetain"),
            primary_release: all.find(c"cuDevicePrimaryCtxRelease"),
            primary_release_v2: all.find(c"cuDevicePrimaryCtxRelease_v2"),
            primary_reset: all.find(c"cuDevicePrimaryCtxReset"),
            primary_reset_v2: all.find(c"cuDevicePrimaryCtxReset_v2"),
            primary_state: all.find(c"cuDevicePrimaryCtxGetState"),
            alloc_async: all.streamed(c"cuMemAllocAsync", c"cuMemAllocAsync_ptsz"),
            alloc_from_pool: all
                .streamed(c"cuMemAllocFromPoolAsync", c"cuMemAllocFromPoolAsync_ptsz"),
            free_async: all.streamed(c"cuMemFreeAsync", c"cuMemFreeAsync_ptsz"),
            pool_create: all.find(c"cuMemPoolCreate"),
            pool_destroy: all.find(c"cuMemPoolDestroy"),
            pool_trim: all.find(c"cuMemPoolTrimTo"),
            pool_attribute: all.find(c"cuMemPoolGetAttribute"),
            device_pool: all.find(c"cuDeviceGetMemPool"),
            create: all.find(c"cuMemCreate"),
            release: all.find(c"cuMemRelease"),
            retain: all.find(c"cuMemRetainAllocationHandle"),
            map: all.find(c"cuMemMap"),
            unmap: all.find(c"cuMemUnmap"),
            launch: all.streamed(c"cuLaunchKernel", c"cuLaunchKernel_ptsz"),
            launch_cooperative: all.streamed(
                c"cuLaunchCooperativeKernel",
                c"cuLaunchCooperativeKernel_ptsz",
            ),
            launch_ex: all.streamed(c"cuLaunchKernelEx", c"cuLaunchKernelEx_ptsz"),
            launch_graph: all.streamed(c"cuGraphLaunch", c"cuGraphLaunch_ptsz"),
            stream_destroy: all.find(c"cuStreamDestroy_v2"),
            stream_destroy_v1: all.find(c"cuStreamDestroy"),
            stream_synchronize: all.find(c"cuStreamSynchronize"),
            stream_capturing: all.find(c"cuStreamIsCapturing"),
            stream_context: all.find(c"cuStreamGetCtx"),
            exchange_capture_mode: all.find(c"cuThreadExchangeStreamCaptureMode"),
            current: all.find(c"cuCtxGetCurrent"),
            push: all.find(c"cuCtxPushCurrent_v2"),
            pop: all.find(c"cuCtxPopCurrent_v2"),
            current_device: all.find(c"cuCtxGetDevice"),
            device_by_ordinal: all.find(c"cuDeviceGet"),
            bus_id: all.find(c"cuDeviceGetPCIBusId"),
        }
    }

    /// The number of the current context's device; `None` without a context.
    pub(super) fn device(&self) -> Option<c_int> {
        let mut device = 0;
        // SAFETY: INTERDRV; the number outlives the call.
        let code = unsafe { (self.current_device?)(&raw mut device) };
        (code == Code::SUCCESS).then_some(device)
    }

    /// Whether a device exists.
    pub(super) fn has_device(&self, ordinal: c_int) -> bool {
        let mut device = 0;
        self.device_by_ordinal.is_none_or(|get| {
            // SAFETY: INTERDRV; the number outlives the call.
            let code = unsafe { get(&raw mut device, ordinal) };
            code == Code::SUCCESS
        })
    }

    /// The current context; null is none.
    pub(super) fn context(&self) -> ContextHandle {
        let mut context = ContextHandle::NULL;
        if let Some(current) = self.current {
            // SAFETY: INTERDRV; the handle outlives the call. A refusal leaves null.
            let _ = unsafe { current(&raw mut context) };
        }
        context
    }

    /// A stream's context: the current one for a default stream, and where the driver does not say.
    pub(super) fn context_of(&self, stream: StreamHandle) -> ContextHandle {
        let default = [
            StreamHandle::NULL,
            StreamHandle::LEGACY,
            StreamHandle::PER_THREAD,
        ];
        let ask = self.stream_context.filter(|_| !default.contains(&stream));
        let mut context = ContextHandle::NULL;
        // SAFETY: INTERDRV; the program's stream; the handle outlives the call.
        let asked = ask.map(|ask| unsafe { ask(stream, &raw mut context) });
        match asked {
            Some(Code::SUCCESS) => context,
            _ => self.context(),
        }
    }

    /// The number of a stream's device.
    pub(super) fn device_of(&self, stream: StreamHandle) -> Option<c_int> {
        self.within(self.context_of(stream), Self::device)
    }

    /// Acts with a context current that is there, if the driver can make it so.
    fn within<R>(&self, context: ContextHandle, act: impl FnOnce(&Self) -> R) -> R {
        let (Some(push), Some(pop)) = (self.push, self.pop) else {
            return act(self);
        };
        if context == self.context() {
            return act(self);
        }
        // SAFETY: INTERDRV; a context that is there.
        let pushed = unsafe { push(context) };
        let answer = act(self);
        if pushed == Code::SUCCESS {
            let mut context = context;
            // SAFETY: INTERDRV; it was pushed just now.
            let _ = unsafe { pop(&raw mut context) };
        }
        answer
    }

    /// Whether what is queued on a stream goes into a graph.
    pub(super) fn is_capturing(&self, stream: StreamHandle) -> bool {
        let mut status = constants::CAPTURE_STATUS_NONE;
        if let Some(capturing) = self.stream_capturing {
            // SAFETY: INTERDRV; the number outlives the call. A refusal leaves "no".
            let _ = unsafe { capturing(stream, &raw mut status) };
        }
        status != constants::CAPTURE_STATUS_NONE
    }

    /// Waits until a stream of a context has done its work, so that no capture of another is spoilt.
    pub(super) fn drain(&self, context: ContextHandle, stream: StreamHandle) {
        let (Some(exchange), Some(synchronize)) =
            (self.exchange_capture_mode, self.stream_synchronize)
        else {
            return;
        };
        let mut mode = constants::CAPTURE_MODE_RELAXED;
        // SAFETY: INTERDRV; the number outlives the call.
        if unsafe { exchange(&raw mut mode) } != Code::SUCCESS {
            return;
        }
        // An error of the work is the program's to find.
        // SAFETY: INTERDRV; a stream that is there.
        let _ = self.within(context, |_| unsafe { synchronize(stream) });
        // SAFETY: INTERDRV; the mode of before.
        let _ = unsafe { exchange(&raw mut mode) };
    }

    /// Whether a device's primary context is there.
    pub(super) fn is_primary_active(&self, device: c_int) -> bool {
        let (mut flags, mut active) = (0, 0);
        let Some(state) = self.primary_state else {
            return true;
        };
        // SAFETY: INTERDRV; the numbers outlive the call.
        let code = unsafe { state(device, &raw mut flags, &raw mut active) };
        code != Code::SUCCESS || active != 0
    }

    /// The pool that a device's allocations come from.
    pub(super) fn pool_of(&self, device: c_int) -> Option<PoolHandle> {
        let mut pool = PoolHandle::NULL;
        // SAFETY: INTERDRV; the handle outlives the call.
        let code = unsafe { (self.device_pool?)(&raw mut pool, device) };
        (code == Code::SUCCESS).then_some(pool)
    }

    /// How much a pool holds from the device; `None` if the driver does not say.
    pub(super) fn held_by(&self, pool: PoolHandle) -> Option<u64> {
        let mut bytes = 0_u64;
        let place = (&raw mut bytes).cast();
        // SAFETY: INTERDRV; this attribute is a number of 64 bits, which outlives the call.
        let code = unsafe { (self.pool_attribute?)(pool, constants::POOL_RESERVED_CURRENT, place) };
        (code == Code::SUCCESS).then_some(bytes)
    }

    /// Has a pool give back what is idle.
    pub(super) fn trim(&self, pool: PoolHandle) {
        if let Some(trim) = self.pool_trim {
            // SAFETY: INTERDRV; the program's pool.
            let _ = unsafe { trim(pool, 0) };
        }
    }

    /// Where a device is, as the driver writes it.
    pub(super) fn bus_id_of(&self, device: c_int) -> Option<String> {
        let mut text = [0 as c_char; 32];
        let (place, room) = (text.as_mut_ptr(), text.len() as c_int);
        // SAFETY: INTERDRV; as much room as it says.
        let code = unsafe { (self.bus_id?)(place, room, device) };
        if code != Code::SUCCESS {
            return None;
        }
        // SAFETY: the driver ended the text within the room.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Some(text.to_str().ok()?.to_owned())
    }
}
